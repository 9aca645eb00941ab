//! The receiver's side of a link: the data ring in, and the last values of the peer's words that the reader
//! has seen.
//!
//! Only the reader uses it, except for the checks whether anything is unread.
//!
//! **Invariants.** The reader loads the peer's words no more often than necessary, because each load takes a
//! cache line away from the peer. A cursor is noted before its entries are read, so that later entries move
//! it once more.
//!
//! **Locks.** `inbound`, held while frames are taken. All locks that taking them needs are taken inside it:
//! the places of actors, credits, notices in and out, the sender side, pools, the tables of asks and chunks.
//! Two others wait for it: an actor that comes to a location where another was, and the checks whether a peer
//! was read up to a position, or to its end.
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
    /// A frame of the peer is left unread until something comes that it needs.
    stuck: AtomicBool,
    /// The reader has work left that no word of the peer announces: frames that it did not take yet.
    unfinished: AtomicBool,
    /// The words that the peer moves: the tails of its two rings, and its head in the data ring to it. Set
    /// once everything is connected.
    cursors: OnceLock<[NativeWord; 3]>,
    /// Their values when the reader last loaded them.
    looked_at: [AtomicU64; 3],
}

/// The receiving end of the data ring.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) data: Consumer,
    /// Frames taken so far: the number of the next one.
    pub(crate) number: u32,
    /// The end of the frame that is being taken.
    pub(crate) taking: u64,
    /// Messages taken, by the index of this process's actor.
    pub(crate) received: Vec<u64>,
    /// For each link that the next frame waits for, the reason why it never opens, once that is known.
    pub(crate) awaits: Vec<Arc<OnceLock<LinkRefused>>>,
}

/// The index of the return ring's tail among the cursors.
const RETURNS: usize = 1;

/// The result of a look at a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// Whether there is anything to do.
    pub(crate) any: bool,
    /// Whether there may be something in the return ring.
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

    /// Opens the ring from the peer.
    pub(super) fn open(&self, data: Consumer) {
        *self.inbound.lock() =
            Some(Inbound { data, number: 0, taking: 0, received: vec![0; MAX_ACTORS], awaits: Vec::new() });
    }

    /// Makes the reader watch the words that the peer moves.
    pub(super) fn watch(&self, cursors: [NativeWord; 3]) {
        let _ = self.cursors.set(cursors);
    }

    /// Returns whether a frame is unread.
    pub(super) fn has_unread(&self) -> bool {
        // The thread that holds the lock is taking frames at this moment.
        self.inbound.try_lock().is_none_or(|mut inbound| {
            inbound.as_mut().is_some_and(|inbound| !inbound.data.is_empty().unwrap_or(true))
        })
    }
}

impl Link {
    /// Locks the receiving end, to take frames from it; it is `None` while the link is not connected. For the
    /// reader.
    pub(crate) fn inbound(&self) -> MutexGuard<'_, Option<Inbound>> {
        self.receiver.inbound.lock()
    }

    /// Returns whether everything that the peer had posted was read.
    pub(crate) fn is_drained(&self) -> bool {
        self.inbound().as_mut().is_none_or(|inbound| inbound.data.is_empty().unwrap_or(true))
    }

    /// Returns the position up to which the peer has sent by now. It is 0 while the link is not connected,
    /// because then the peer has sent nothing, and if the ring is corrupt, which ends the link.
    pub(crate) fn sent_by_now(&self) -> u64 {
        self.inbound().as_mut().map_or(0, |inbound| inbound.data.written().unwrap_or(0))
    }

    /// Returns whether everything up to `end` was taken.
    pub(crate) fn has_taken(&self, end: u64) -> bool {
        self.inbound().as_ref().is_none_or(|inbound| inbound.data.position() >= end)
    }

    /// Returns whether a frame of the peer is left unread until something comes that it needs.
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

    /// Returns what the reader has to do on this link: the peer has moved a cursor since the last call, or
    /// work is left over. Only the reader calls it, and then does all of that work.
    ///
    /// The tail of frames is loaded before that of returns, so a lease that the peer gave back before it sent
    /// a frame is seen with the frame.
    ///
    /// The peer's head in the data ring is loaded only if `heads` is set or a frame waits for it: each load
    /// takes the cache line away from the peer, which moves it with every batch of frames.
    pub(crate) fn poll(&self, heads: bool) -> Moved {
        let Some(cursors) = self.receiver.cursors.get() else { return Moved::default() };
        // A stuck frame or a reply may wait for leases.
        let returns = self.receiver.stuck.load(Ordering::Relaxed) || self.has_backlog();
        let any = returns || self.receiver.unfinished.load(Ordering::Relaxed);
        let mut moved = Moved { any, returns };
        let heads = heads || self.sender.has_forwards();
        let count = if heads { cursors.len() } else { cursors.len() - 1 };
        for (which, (cursor, looked_at)) in
            cursors.iter().zip(&self.receiver.looked_at).take(count).enumerate()
        {
            // Loaded before anything is read, so later entries move it once more. Acquire as in the rings,
            // though each ring loads its cursor again.
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
