//! A trace of a run: the actions of every process over time, in one file that trace viewers open.
//!
//! Each process notes events in a `ring` of its own. The node maps all rings (`collect`), and has the file
//! written by the crate that watches when it ends or is asked to. Nothing is sent while the program runs. A
//! node traces for its whole life, or for an interval that the command `tensorpost trace` asks for. In an
//! interval, each process makes its ring when the interval begins and gives it back at the end.
//!
//! The file has, for each process and each life of a restarted one:
//! * every handler call;
//! * every frame that was sent and delivered, with an arrow from the send through the delivery to the handler
//!   (messages inside one process have none);
//! * every wait that was put on a stream (for a host stream also how long it stood in it, which a GPU's does
//!   not tell);
//! * every allocation from its beginning until the owner has closed it, with its bytes and the processes that
//!   were granted leases;
//! * the process's start and end.
//!
//! **On a crash** of a worker its last records are in the file: they are in memory that the node has mapped.
//! An event that had begun and not ended lasts until the process's end. **On a crash of the node** there is
//! no file.
//!
//! While nothing is traced, each place that would note an event costs one relaxed load and a branch
//! (`Tracer`). The flag is in the process's `ClockDomain`, because all code that notes events has that. Names
//! are kept beside it, so that each new ring has all of them from its beginning.
//!
//! **Locks.** The names' lock is taken when an actor starts or ends and when tracing is switched, never for a
//! record; a ring's own lock comes after it.
//!
//! A frame is named by the position where it ends in its ring. Both sides know that, so the arrow from a send
//! to its handler costs no word on the wire. A handler is noted twice, at its begin and at its end, because
//! the last handler of a dying process has no end.

pub(crate) mod collect;
#[doc(hidden)] // for `tensorpost-watch`
pub mod joined;
#[doc(hidden)] // for `tensorpost-watch`
pub mod record;
#[doc(hidden)] // for `tensorpost-watch`
pub mod ring;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;

pub(crate) use collect::Collector;
pub use collect::{TraceError, TraceSummary, TracedProcess};
pub(crate) use record::{Form, FrameId, LeaseName, Record, Track, What};
pub(crate) use ring::{Of, Ring};

use crate::ids::ActorId;
use crate::limits::MAX_TRACE_NAMES;
use crate::os::monotonic_ns;

/// The environment variable that names the file of a node's trace, if the program names none.
pub const VARIABLE: &str = "TENSORPOST_TRACE";

/// The number of records that a process keeps by default: 64 bytes each, so 8 MiB.
pub const DEFAULT_RECORDS: usize = 1 << 17;

/// The number of rings of which a thread remembers that they have its name. A process has one ring at a time.
const MAX_KNOWN: usize = 4;

thread_local! {
    /// The actor whose handler runs on this thread.
    static ACTOR: Cell<Option<ActorId>> = const { Cell::new(None) };
    /// This thread's number, and the rings that know its name.
    static THREAD: RefCell<(Option<u32>, Vec<u64>)> = const { RefCell::new((None, Vec::new())) };
}

/// The memory that a process notes its trace in, on the way to its transport.
#[derive(Debug)]
pub struct TraceRing(pub(crate) Arc<Ring>);

/// The switch of a process's trace, and the ring for its records.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    on: AtomicBool,
    ring: ArcSwapOption<Ring>,
    names: Mutex<Names>,
}

/// Names, each with the number of its users: an actor's next life may begin before the last is gone.
type Names = HashMap<(Of, u64), (String, u32)>;

/// The ring of a process, in use. It stays until this drops, even if tracing is switched off meanwhile.
pub(crate) struct Using(Guard<Option<Arc<Ring>>>);

impl Using {
    fn ring(&self) -> Option<&Ring> {
        self.0.as_deref()
    }
}

impl Tracer {
    /// Notes everything in `ring` from here on. The ring is given all names that there are.
    pub(crate) fn start(&self, ring: Arc<Ring>) {
        let names = self.names.lock();
        for ((of, id), (name, _)) in &*names {
            ring.name(*of, *id, name);
        }
        self.ring.store(Some(ring));
        self.on.store(true, Ordering::Release);
    }

    /// Notes nothing from here on. The ring is freed when the last record that was begun is written.
    pub(crate) fn stop(&self) {
        let _names = self.names.lock();
        self.on.store(false, Ordering::Release);
        self.ring.store(None);
    }

    /// Returns the ring, if tracing is on.
    #[inline]
    pub(crate) fn ring(&self) -> Option<Using> {
        // Relaxed: a thread that sees the switch late leaves out the first records or notes some more. The
        // cell orders its own content.
        if self.on.load(Ordering::Relaxed) { self.using() } else { None }
    }

    fn using(&self) -> Option<Using> {
        let ring = self.ring.load();
        ring.is_some().then_some(Using(ring))
    }

    /// Returns the time, if tracing is on: for an event that is noted when it is over.
    #[inline]
    pub(crate) fn begin(&self) -> Option<u64> {
        self.ring().map(|_| monotonic_ns())
    }

    /// Notes an event that happens now.
    #[inline]
    pub(crate) fn note(&self, what: impl FnOnce() -> What) {
        if let Some(ring) = self.ring() {
            write(&ring, monotonic_ns(), None, what());
        }
    }

    /// Notes an event that began at `since` and ends now; `what` is given its length.
    pub(crate) fn note_since(&self, since: Option<u64>, what: impl FnOnce(u64) -> What) {
        if let (Some(ring), Some(since)) = (self.ring(), since) {
            write(&ring, since, None, what(monotonic_ns().saturating_sub(since)));
        }
    }

    /// Notes an event that began at `since`, on the row of a host stream.
    pub(crate) fn note_on_stream(&self, slot: u16, since: u64, what: impl FnOnce() -> What) {
        if let Some(ring) = self.ring() {
            write(&ring, since, Some(Track::Stream(slot)), what());
        }
    }

    /// Adds a name to this ring and those to come.
    pub(crate) fn name(&self, of: Of, id: u64, name: &str) {
        let mut names = self.names.lock();
        let room = names.len() < MAX_TRACE_NAMES;
        match names.entry((of, id)) {
            Entry::Occupied(mut known) => {
                let (known, count) = known.get_mut();
                name.clone_into(known);
                *count = count.saturating_add(1);
            }
            Entry::Vacant(place) if room => drop(place.insert((name.to_owned(), 1))),
            Entry::Vacant(_) => {}
        }
        if let Some(ring) = self.ring.load().as_deref() {
            ring.name(of, id, name);
        }
    }

    /// Forgets a name: rings to come do not have it.
    pub(crate) fn forget(&self, of: Of, id: u64) {
        if let Entry::Occupied(mut known) = self.names.lock().entry((of, id)) {
            known.get_mut().1 -= 1;
            if known.get().1 == 0 {
                known.remove();
            }
        }
    }

    /// Notes events of this thread as the actor's until the guard drops: for the futures that its handlers
    /// left.
    #[inline]
    pub(crate) fn acting(&self, actor: ActorId) -> Option<Acting> {
        self.ring().map(|_| Acting { before: ACTOR.replace(Some(actor)) })
    }

    /// Notes that a handler of `actor` is about to be called. Until the guard drops, events of this thread
    /// are the actor's.
    #[inline]
    pub(crate) fn handler(
        &self,
        actor: ActorId,
        message: impl FnOnce() -> (u64, Option<FrameId>),
    ) -> Option<Handling> {
        let ring = self.ring()?;
        let (key, frame) = message();
        let since = monotonic_ns();
        let acting = Acting { before: ACTOR.replace(Some(actor)) };
        write(&ring, since, None, What::HandlerBegan { key, frame });
        Some(Handling { ring, since, key, frame, _acting: acting })
    }
}

/// See [`Tracer::acting`].
#[must_use = "it ends when this drops"]
pub(crate) struct Acting {
    before: Option<ActorId>,
}

impl Drop for Acting {
    fn drop(&mut self) {
        ACTOR.set(self.before);
    }
}

/// A running handler; see [`Tracer::handler`].
#[must_use = "the handler ends when this drops"]
pub(crate) struct Handling {
    /// The ring that has the handler's beginning.
    ring: Using,
    since: u64,
    key: u64,
    frame: Option<FrameId>,
    /// Dropped after the end was noted.
    _acting: Acting,
}

impl Drop for Handling {
    fn drop(&mut self) {
        let took = monotonic_ns().saturating_sub(self.since);
        write(&self.ring, self.since, None, What::HandlerEnded { key: self.key, frame: self.frame, took });
    }
}

fn write(ring: &Using, at: u64, track: Option<Track>, what: What) {
    let Some(ring) = ring.ring() else { return };
    let track = track.unwrap_or_else(|| match ACTOR.get() {
        Some(actor) => Track::Actor(actor),
        None => Track::Thread(this_thread(ring)),
    });
    ring.write(Record { at, track, what });
}

fn this_thread(ring: &Ring) -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    THREAD.with_borrow_mut(|(number, known)| {
        let number = *number.get_or_insert_with(|| NEXT.fetch_add(1, Ordering::Relaxed));
        if !known.contains(&ring.id()) {
            if known.len() >= MAX_KNOWN {
                known.remove(0);
            }
            known.push(ring.id());
            if let Some(name) = std::thread::current().name() {
                ring.name(Of::Thread, u64::from(number), name);
            }
        }
        number
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_ring_nothing_is_made() {
        let tracer = Tracer::default();
        tracer.note(|| unreachable!("nothing is traced"));
        assert!(tracer.begin().is_none());
        assert!(tracer.handler(ActorId(1), || unreachable!("nothing is traced")).is_none());
    }

    #[test]
    fn what_a_handler_does_is_on_its_actors_row_and_the_rest_on_the_threads() {
        let tracer = Tracer::default();
        tracer.start(Arc::new(Ring::create(64).unwrap()));
        let lease = LeaseName { chunk: 0, entry: 1, generation: 1 };
        let handling = tracer.handler(ActorId(4), || (9, None));
        tracer.note(|| What::LeaseOpened { lease, bytes: 3 });
        drop(handling);
        tracer.note(|| What::LeaseClosed { lease });
        let seen = tracer.ring().unwrap().ring().unwrap().snapshot();
        let actor = Track::Actor(ActorId(4));
        assert_eq!(seen.records[0].what, What::HandlerBegan { key: 9, frame: None });
        assert!(seen.records[..3].iter().all(|record| record.track == actor));
        assert!(matches!(seen.records[2].what, What::HandlerEnded { key: 9, .. }));
        assert_eq!(seen.records[2].at, seen.records[0].at, "the end says when it began");
        let Track::Thread(number) = seen.records[3].track else { panic!("{:?}", seen.records[3]) };
        assert!(seen.names[&(Of::Thread, u64::from(number))].contains("what_a_handler_does"));
    }

    #[test]
    fn each_ring_has_all_names_and_what_was_noted_while_it_was_on() {
        let tracer = Tracer::default();
        let ring = || Arc::new(Ring::create(64).unwrap());
        let lease = |entry| What::LeaseClosed { lease: LeaseName { chunk: 0, entry, generation: 1 } };
        // The names come before anything is traced; the second life of an actor begins before the first is
        // gone.
        tracer.name(Of::Actor, 1, "blur");
        tracer.name(Of::Actor, 1, "blur");
        tracer.name(Of::Actor, 2, "gone");
        tracer.forget(Of::Actor, 1);
        tracer.forget(Of::Actor, 2);
        let [first, second] = [ring(), ring()];
        tracer.start(Arc::clone(&first));
        tracer.name(Of::Message, 7, "Frame");
        let handling = tracer.handler(ActorId(1), || (7, None));
        tracer.note(|| lease(1));
        tracer.stop();
        tracer.note(|| unreachable!("nothing is traced"));
        tracer.start(Arc::clone(&second));
        tracer.note(|| lease(2));
        drop(handling);
        tracer.stop();
        assert!(tracer.ring().is_none());

        let named = |ring: &Ring| {
            let mut names: Vec<_> = ring.snapshot().names.into_iter().collect();
            names.retain(|((of, _), _)| *of != Of::Thread);
            names.sort_by_key(|((_, id), _)| *id);
            names.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
        };
        assert_eq!((named(&first), named(&second)), (vec!["blur".into(), "Frame".into()], named(&first)));
        let [began, noted, ended] = first.snapshot().records.try_into().unwrap();
        assert!(matches!((began.what, ended.what), (What::HandlerBegan { .. }, What::HandlerEnded { .. })));
        assert_eq!((noted.what, began.at), (lease(1), ended.at));
        let second_noted: Vec<_> = second.snapshot().records.iter().map(|record| record.what).collect();
        assert_eq!(second_noted, [lease(2)]);
        assert_eq!(
            (Arc::strong_count(&first), Arc::strong_count(&second)),
            (1, 1),
            "the memory is given back"
        );
    }
}
