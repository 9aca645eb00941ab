//! Counts of a transport since it opened. Any thread counts; nobody waits for it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Atomic counters of a transport since it opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) dead_letters: AtomicU64,
    pub(crate) bytes_lent: AtomicU64,
    pub(crate) bytes_fetched: AtomicU64,
    pub(crate) bytes_staged: AtomicU64,
}

/// Counts of a transport since it opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransportStats {
    /// Frames sent to other processes.
    pub sent: u64,
    /// Frames taken from other processes.
    pub received: u64,
    /// Frames and notices refused because they were malformed or forged (WIRE-1).
    pub rejected: u64,
    /// Messages that no actor took, or that reached no handler because a tensor in them was lost with a
    /// process.
    pub dead_letters: u64,
    /// Bytes of tensors that were sent as leases instead of being copied.
    pub bytes_not_copied: u64,
    /// Bytes of tensors that were copied to the receiving actor's device, because the actor asked for that
    /// ([`Spawn::receive_on`](crate::node::Spawn::receive_on)) or could not reach them.
    pub bytes_fetched: u64,
    /// Those of these bytes that went through host memory because one GPU has no access to the other's
    /// memory.
    pub bytes_staged: u64,
}

impl Counters {
    pub(super) fn stats(&self) -> TransportStats {
        TransportStats {
            sent: self.sent.load(Ordering::Relaxed),
            // Pairs with the release at the increment: a reader of the count also sees the outcome of the
            // frame.
            received: self.received.load(Ordering::Acquire),
            rejected: self.rejected.load(Ordering::Relaxed),
            dead_letters: self.dead_letters.load(Ordering::Relaxed),
            bytes_not_copied: self.bytes_lent.load(Ordering::Relaxed),
            bytes_fetched: self.bytes_fetched.load(Ordering::Relaxed),
            bytes_staged: self.bytes_staged.load(Ordering::Relaxed),
        }
    }

    /// Counts a frame that was taken. Only the reader does, under the link's lock. A thread that sees the
    /// count, and then sees the link unlocked, sees the outcome of the frame.
    pub(super) fn count_received(&self) {
        let count = self.received.load(Ordering::Relaxed).wrapping_add(1);
        self.received.store(count, Ordering::Release);
    }

    /// Counts something malformed or forged that was refused (WIRE-1).
    pub(super) fn count_rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a message that reaches no handler.
    pub(crate) fn dead_letter(&self) {
        self.dead_letters.fetch_add(1, Ordering::Relaxed);
    }
}
