//! The marks of deferred wake-ups: whether there are any, and which ones for each link.
//!
//! Threads that publish without a ring set the marks, and the reader, when it finds nothing to do, rings for
//! them. [`wake_reasons`](super::wake_reasons) says why a ring is deferred, and until when.
//!
//! **Invariants.** A wake-up is never lost. A thread that defers a ring marks it, and then checks whether the
//! reader is parked. The reader announces that it parks, and then checks the marks. Both sides have a fence
//! between the two steps (DEFERRED), so one of them sees the other. `tests/loom_doorbell.rs` explores this
//! file.
//!
//! **Locks.** None. **On a crash** and **on cancellation** see `wakeups`.

use crate::sync::{AtomicBool, AtomicU8, Ordering, fence};

/// The state of a process: whether a ring is deferred, and whether its reader is parked.
#[derive(Debug)]
pub(crate) struct Deferred {
    is_due: AtomicBool,
    /// The reader waits for its doorbell, or is about to.
    is_parked: AtomicBool,
}

impl Deferred {
    pub(crate) fn new() -> Self {
        Deferred { is_due: AtomicBool::new(false), is_parked: AtomicBool::new(false) }
    }

    /// Marks that a ring is deferred. Returns whether the reader is parked, and so must be woken.
    pub(crate) fn mark(&self) -> bool {
        self.is_due.swap(true, Ordering::AcqRel);
        // DEFERRED: pairs with the fence in `park`: one of the two sees what the other has written.
        fence(Ordering::SeqCst);
        self.is_parked.load(Ordering::Relaxed)
    }

    /// Notes that the reader is about to sleep. A ring deferred from now on wakes it; its next poll sees the
    /// earlier ones.
    pub(crate) fn park(&self) {
        self.is_parked.store(true, Ordering::Relaxed);
        // DEFERRED: pairs with the fence in `mark`.
        fence(Ordering::SeqCst);
    }

    /// Notes that the reader is awake.
    pub(crate) fn unpark(&self) {
        self.is_parked.store(false, Ordering::Relaxed);
    }

    /// Takes the mark, and returns whether it was set. A ring deferred in the meantime sets it again, so this
    /// comes before the check of the links.
    pub(crate) fn take(&self) -> bool {
        self.is_due.load(Ordering::Relaxed) && self.is_due.swap(false, Ordering::AcqRel)
    }

    /// Returns whether something is due.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }
}

/// The state of a link: the reasons for which its peer was not woken.
#[derive(Debug)]
pub(crate) struct DeferredFor(AtomicU8);

impl DeferredFor {
    pub(crate) fn new() -> Self {
        DeferredFor(AtomicU8::new(0))
    }

    /// Marks reasons that were published and for which the peer is not woken now.
    pub(crate) fn mark(&self, what: u8) {
        // After the publishing: pairs with the swap in `take`.
        self.0.fetch_or(what, Ordering::AcqRel);
    }

    /// Takes the reasons that are due. Everything that any thread published with them happens before the
    /// caller's next step, the fence of the ringer.
    pub(crate) fn take(&self) -> u8 {
        self.0.swap(0, Ordering::AcqRel)
    }

    /// Does the same as [`take`](Self::take), for a peer that is rung for another reason anyway; usually
    /// nothing is due then.
    pub(crate) fn clear(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.take();
        }
    }
}
