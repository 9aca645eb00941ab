//! Credits within a process: the number of its own messages in a mailbox, and the senders that wait for one
//! of them to be done with.
//!
//! Senders of the actor's process take credits, and the mailbox hands them back.
//!
//! **Invariants.** MBX-2: no more credits are out than the mailbox holds. A thread that hands one back checks
//! after that whether any sender waits (WAITING, see [`waiting`](super::waiting)). `tests/loom_senders.rs`
//! explores this file.
//!
//! **Locks.** Only a queue's own, when a sender is woken.
//!
//! **On a crash** of the actor its mailbox is [closed](LocalCredits::close). **On cancellation** of a send
//! its place in the queue is given up.

use std::sync::OnceLock;

use super::waiting::Queue;
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering};

/// The number of the actor's own process's messages in its mailbox, and the senders that wait for one of them
/// to be done with.
#[derive(Debug)]
pub struct LocalCredits {
    capacity: u32,
    /// The low half counts messages that are not handled yet, the high half those that were, modulo 2^32.
    /// Both are in one word, because handing a credit back changes both.
    counts: AtomicU64,
    /// [`OPEN`], [`SHUT`] or [`COMES_BACK`].
    closed: AtomicU32,
    queue: Queue,
    /// The queue of senders that waited for the actor while it was elsewhere.
    guests: OnceLock<Queue>,
}

const OPEN: u32 = 0;
const SHUT: u32 = 1;
const COMES_BACK: u32 = 2;

/// One handled message in [`LocalCredits::counts`].
const HANDLED: u64 = 1 << 32;

impl LocalCredits {
    /// Makes the credits for a mailbox of `capacity` messages.
    pub fn new(capacity: u32) -> Arc<Self> {
        Arc::new(LocalCredits {
            capacity,
            counts: AtomicU64::new(0),
            closed: AtomicU32::new(OPEN),
            queue: Queue::default(),
            guests: OnceLock::new(),
        })
    }

    /// Takes one credit; returns false if there is none.
    pub(crate) fn take(&self) -> bool {
        let more = |counts: u64| ((counts as u32) < self.capacity).then_some(counts + 1);
        self.counts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// Hands one credit back.
    pub(crate) fn hand_back(&self) {
        // Subtracts one from the low half, and adds one to the high half. SeqCst, as in `stamp` and `take`:
        // see `Queue::is_empty`, which is called next.
        self.counts.fetch_add(HANDLED - 1, Ordering::SeqCst);
        self.wake_front();
    }

    /// Closes the mailbox: the actor has stopped, and is restarted if it is `away`.
    pub(crate) fn close(&self, away: bool) {
        self.closed.store(if away { COMES_BACK } else { SHUT }, Ordering::SeqCst);
        self.wake_front();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst) != OPEN
    }

    /// Returns whether the actor has stopped and is being restarted.
    pub(crate) fn is_away(&self) -> bool {
        self.closed.load(Ordering::Acquire) == COMES_BACK
    }

    /// Returns a number that changes whenever a waiting sender might find a credit.
    pub(crate) fn stamp(&self) -> u64 {
        (self.counts.load(Ordering::SeqCst) / HANDLED).wrapping_add(u64::from(self.is_closed()))
    }

    /// Takes in the queue of senders that waited for the actor while it was elsewhere.
    pub(crate) fn take_in(&self, queue: &Queue) {
        // If a queue is already set, it is the same one, because an actor has one queue for all its lives.
        let _ = self.guests.set(queue.clone());
    }

    fn wake_front(&self) {
        self.queue.wake_front();
        if let Some(guests) = self.guests.get() {
            guests.wake_front();
        }
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }
}
