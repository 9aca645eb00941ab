//! The receiver's side of a link: the data ring in, and what the reader has seen of the peer's words.
//!
//! Used by the reader alone, but for the questions whether anything lies unread.
//!
//! **Invariants.** The peer's words are looked at no more often than they have to be: each look takes a cache
//! line away from the peer. A cursor is noted before what it tells of is read, so that what comes later moves
//! it once more.
//!
//! **Locks.** `inbound`, held while frames are taken, and outside of everything that taking them leads to:
//! the places of actors, credits, notices in and out, the sender side, pools, the tables of asks and chunks.
//! Nobody else waits for it but an actor that comes to a place where one was, and the looks whether a peer
//! was read so far, or to its end.
//!
//! **On a crash** of the peer its frames are read to the end. **On cancellation** of the reader frames stay
//! in the ring.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use super::Link;
use crate::limits::MAX_ACTORS;
use crate::transport::LinkRefused;
use crate::transport::ring::{Consumer, NativeWord, Word};

/// See the module.
#[derive(Debug)]
pub(super) struct ReceiverSide {
    inbound: Mutex<Option<Inbound>>,
    /// A frame of the peer lies unread until something comes that it needs.
    stuck: AtomicBool,
    /// Something is left to do for the reader of which no word of the peer's will tell: frames that it did
    /// not take yet.
    unfinished: AtomicBool,
    /// What the peer moves: the tails of its two rings, and its head in the data ring to it. There once all
    /// is connected.
    cursors: OnceLock<[NativeWord; 3]>,
    /// They as the reader last found them.
    looked_at: [AtomicU64; 3],
}

/// The receiving end of the data ring.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) data: Consumer,
    /// Frames taken so far: the number of the next one.
    pub(crate) number: u32,
    /// Where the frame that is being taken ends.
    pub(crate) taking: u64,
    /// Messages taken, by the index of this process's actor.
    pub(crate) received: Vec<u64>,
    /// Why the links never open that the next frame waits for, once that is known.
    pub(crate) awaits: Vec<Arc<OnceLock<LinkRefused>>>,
}

/// The place of the tail of the return ring among the cursors.
const RETURNS: usize = 1;

/// What a look at a link has found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// Anything.
    pub(crate) any: bool,
    /// There may be something in the return ring.
    pub(crate) returns: bool,
}

impl ReceiverSide {
    pub(super) fn new() -> Self {
        ReceiverSide {
            inbound: Mutex::new(None),
            stuck: AtomicBool::new(false),
            unfinished: AtomicBool::new(false),
            cursors: OnceLock::new(),
            looked_at: Default::default(),
        }
    }

    /// The ring from the peer is there.
    pub(super) fn open(&self, data: Consumer) {
        *self.inbound.lock() =
            Some(Inbound { data, number: 0, taking: 0, received: vec![0; MAX_ACTORS], awaits: Vec::new() });
    }

    /// From now on the reader looks at what the peer moves.
    pub(super) fn watch(&self, cursors: [NativeWord; 3]) {
        let _ = self.cursors.set(cursors);
    }

    /// Returns whether a frame lies unread.
    pub(super) fn has_unread(&self) -> bool {
        // Who holds the lock is taking frames just now.
        self.inbound.try_lock().is_none_or(|mut inbound| {
            inbound.as_mut().is_some_and(|inbound| !inbound.data.is_empty().unwrap_or(true))
        })
    }
}

impl Link {
    /// The receiving end, to take frames from; `None` in it while the link is not connected. For the reader.
    pub(crate) fn inbound(&self) -> MutexGuard<'_, Option<Inbound>> {
        self.receiver.inbound.lock()
    }

    /// Returns whether everything that the peer had posted was read.
    pub(crate) fn is_drained(&self) -> bool {
        self.inbound().as_mut().is_none_or(|inbound| inbound.data.is_empty().unwrap_or(true))
    }

    /// Where what the peer has sent by now ends. 0 while the link is not connected: then it has sent nothing;
    /// and where the ring is corrupt, which ends the link.
    pub(crate) fn sent_by_now(&self) -> u64 {
        self.inbound().as_mut().map_or(0, |inbound| inbound.data.written().unwrap_or(0))
    }

    /// Returns whether everything up to there was taken.
    pub(crate) fn has_taken(&self, end: u64) -> bool {
        self.inbound().as_ref().is_none_or(|inbound| inbound.data.position() >= end)
    }

    /// Returns whether a frame of the peer lies unread until something comes that it needs.
    pub(crate) fn is_stuck(&self) -> bool {
        self.receiver.stuck.load(Ordering::Relaxed)
    }

    pub(crate) fn set_stuck(&self, is_stuck: bool) {
        self.receiver.stuck.store(is_stuck, Ordering::Relaxed);
    }

    /// Sets whether the reader has left frames that it could have taken.
    pub(crate) fn set_unfinished(&self, is_unfinished: bool) {
        self.receiver.unfinished.store(is_unfinished, Ordering::Relaxed);
    }

    /// What there is for the reader to do but to look at this again: the peer has moved a cursor since the
    /// last time that this was asked, or something is left over. For the reader alone, which then does all of
    /// it.
    ///
    /// The tail of frames is looked at before that of returns: what the peer gave back before it sent a frame
    /// is seen with it.
    ///
    /// Its head in the data ring counts only if `heads` or where a frame waits for it: each look takes the
    /// cache line away from the peer, which moves it with every batch of frames.
    pub(crate) fn look(&self, heads: bool) -> Moved {
        let Some(cursors) = self.receiver.cursors.get() else { return Moved::default() };
        // What it waits for may be leases.
        let returns = self.receiver.stuck.load(Ordering::Relaxed) || self.has_backlog();
        let any = returns || self.receiver.unfinished.load(Ordering::Relaxed);
        let mut moved = Moved { any, returns };
        let heads = heads || self.sender.has_forwards();
        let count = if heads { cursors.len() } else { cursors.len() - 1 };
        for (which, (cursor, looked_at)) in
            cursors.iter().zip(&self.receiver.looked_at).take(count).enumerate()
        {
            // Before anything is read: what comes later moves it once more. Acquire as in the rings, though
            // each looks again.
            let at = cursor.load(Ordering::Acquire);
            if at != looked_at.load(Ordering::Relaxed) {
                looked_at.store(at, Ordering::Relaxed);
                moved.any = true;
                moved.returns |= which == RETURNS;
            }
        }
        moved
    }
}
