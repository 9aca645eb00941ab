//! A turn: one handler call with all its sends and drops.
//!
//! Inside a turn the clock writes of a stream, and the publishing of frames, are put off to its end, so that
//! a handler that sends ten messages costs one clock write and one published tail per receiver. A turn is a
//! guard on the thread: it ends when the guard drops, on a panic too, so that no deferred work is ever
//! forgotten. Turns do not nest; an inner one is part of the outer one.
//!
//! At the end of a turn clock writes are enqueued first, then tails are published: those of return rings
//! before those of frames, so that a message about a drop does not overtake the drop.
//!
//! Turns are opened by actors, for each handler, by the reader of the transport, and by code that returns
//! leases. Streams and links put their work off to the end of a turn. There are no locks: all of it belongs
//! to the thread.
//!
//! **On a crash** of this process the deferred work is lost with it, and nobody was told of it. **On
//! cancellation** nothing is lost: the guard drops.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use smallvec::SmallVec;

use super::Stream;
use crate::fault;
use crate::os::{Birth, monotonic_ns};

/// Work for the end of the turn: the transport publishes the frames that its links have gathered.
pub(crate) trait TurnEnd: Send + Sync + 'static {
    fn turn_ended(&self);
}

struct Open {
    /// A fork within a turn leaves the turn to the parent.
    birth: Birth,
    /// The stream that the handler works on.
    current: Option<Stream>,
    streams: SmallVec<[Stream; 2]>,
    ends: SmallVec<[Arc<dyn TurnEnd>; 1]>,
}

thread_local! {
    static TURN: RefCell<Option<Open>> = const { RefCell::new(None) };
    /// How many turns this thread has opened.
    static TURNS: Cell<u64> = const { Cell::new(0) };
    /// See [`note_time`].
    static TIME: Cell<Option<u64>> = const { Cell::new(None) };
}

/// An open turn on this thread.
#[derive(Debug)]
#[must_use = "the turn ends when this drops"]
pub(crate) struct Turn {
    outermost: bool,
}

impl Turn {
    /// Opens the turn of a handler that works on `stream`, or joins the one that is open.
    pub(crate) fn begin_on(stream: &Stream) -> Self {
        let turn = Self::begin();
        TURN.with_borrow_mut(|open| {
            if let Some(open) = open.as_mut().filter(|open| open.current.is_none()) {
                open.current = Some(stream.clone());
            }
        });
        turn
    }

    /// Returns whether there can be a turn on this thread. There can be none while the thread is ending,
    /// because its thread-locals are gone.
    #[cfg(feature = "dlpack")]
    pub(crate) fn is_possible() -> bool {
        TURN.try_with(|_| ()).is_ok()
    }

    /// Opens a turn, or joins the one that is open.
    pub(crate) fn begin() -> Self {
        let outermost = TURN.with_borrow_mut(|turn| {
            let outermost = turn.as_ref().is_none_or(Open::is_inherited);
            if outermost {
                *turn = Some(Open::begin());
                TURNS.set(TURNS.get() + 1);
            }
            outermost
        });
        Turn { outermost }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.outermost {
            return;
        }
        if let Some(open) = TURN.with_borrow_mut(Option::take) {
            fault::point("turn.end");
            open.flush_now();
        }
        TIME.set(None);
    }
}

/// Notes the time on the monotonic clock, in nanoseconds, which the opener of the turn has just read. Code
/// that can be wrong by the length of one handler need not read the clock again.
pub(crate) fn note_time(now: u64) {
    TIME.set(Some(now));
}

/// Returns the time that was [noted](note_time) last in this turn, or else the current time.
pub(crate) fn about_now() -> u64 {
    TIME.get().unwrap_or_else(monotonic_ns)
}

impl Open {
    fn begin() -> Self {
        Open { birth: Birth::now(), current: None, streams: SmallVec::new(), ends: SmallVec::new() }
    }

    fn is_inherited(&self) -> bool {
        self.birth.is_inherited()
    }

    fn flush_now(&self) {
        if self.is_inherited() {
            return;
        }
        // Clock writes go first: a receiver that is quick then finds the write already enqueued.
        for stream in &self.streams {
            stream.flush();
        }
        for end in &self.ends {
            end.turn_ended();
        }
    }
}

/// Does the deferred work of the turn now; the turn goes on.
pub(crate) fn flush_now() {
    // Take the turn out meanwhile, so that none of its work is put off again.
    let Some(mut open) = TURN.with_borrow_mut(Option::take) else { return };
    open.flush_now();
    open.streams.clear();
    open.ends.clear();
    TURN.with_borrow_mut(|turn| *turn = Some(open));
}

/// Returns the stream of the handler that runs on this thread.
#[cfg(feature = "cuda")]
pub(crate) fn current_stream() -> Option<Stream> {
    TURN.with_borrow(|turn| turn.as_ref().and_then(|open| open.current.clone()))
}

/// Returns whether a turn is open on this thread.
pub(crate) fn is_open() -> bool {
    TURN.with_borrow(Option::is_some)
}

/// Returns a number that tells the turn that is open on this thread from earlier ones; `None` where none is
/// open.
pub(super) fn current() -> Option<u64> {
    TURN.with_borrow(Option::is_some).then(|| TURNS.get())
}

/// Puts the clock write of `stream` off to the end of the turn. Returns false when no turn is open.
pub(super) fn defer(stream: &Stream) -> bool {
    TURN.with_borrow_mut(|turn| match turn {
        Some(open) if !open.is_inherited() => {
            if !open.streams.contains(stream) {
                open.streams.push(stream.clone());
            }
            true
        }
        _ => false,
    })
}

/// Arranges that `end` is called when the turn ends, once even if several calls ask for it. Returns false
/// when no turn is open, or when `owned` has no value; `owned` is called once a turn and returns the owner of
/// `end`.
pub(crate) fn at_end<E: TurnEnd>(end: &E, owned: impl FnOnce() -> Option<Arc<E>>) -> bool {
    TURN.with_borrow_mut(|turn| {
        let Some(open) = turn.as_mut().filter(|open| !open.is_inherited()) else { return false };
        let new = std::ptr::from_ref(end).cast::<()>();
        if open.ends.iter().any(|known| std::ptr::eq(Arc::as_ptr(known).cast::<()>(), new)) {
            return true;
        }
        let owned = owned();
        let is_there = owned.is_some();
        open.ends.extend(owned.map(|end| end as Arc<dyn TurnEnd>));
        is_there
    })
}
