//! The marks of wake-ups that were put off: that there are some, and for each link which.
//!
//! Used by whoever publishes something and does not ring, and by the reader, which rings when it finds
//! nothing to do. Why a ring is put off, and until when: [`wake_reasons`](super::wake_reasons).
//!
//! **Invariants.** A wake-up is never lost. Whoever puts a ring off marks it and then looks whether the
//! reader is parked; the reader says that it parks and then looks at the marks. Between the two stands a
//! fence on both sides (DEFERRED), so one of them sees the other. `tests/loom_doorbell.rs` explores this
//! file.
//!
//! **Locks.** None. **On a crash** and **on cancellation** see `wakeups`.

use crate::sync::{AtomicBool, AtomicU8, Ordering, fence};

/// Of a process: whether something was put off, and whether its reader is parked.
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

    /// Something was published that nobody was rung for. Whether the reader is parked, and so is to be woken.
    pub(crate) fn mark(&self) -> bool {
        self.is_due.swap(true, Ordering::AcqRel);
        // DEFERRED: pairs with the fence in `park`: one of the two sees what the other has written.
        fence(Ordering::SeqCst);
        self.is_parked.load(Ordering::Relaxed)
    }

    /// The reader is about to sleep. What is put off from now on wakes it; what was before is seen by its
    /// next look.
    pub(crate) fn park(&self) {
        self.is_parked.store(true, Ordering::Relaxed);
        // DEFERRED: pairs with the fence in `mark`.
        fence(Ordering::SeqCst);
    }

    /// The reader sleeps no longer.
    pub(crate) fn unpark(&self) {
        self.is_parked.store(false, Ordering::Relaxed);
    }

    /// Returns whether something is due. It is taken by that: what is put off meanwhile marks it again, so
    /// this comes before the look at the links.
    pub(crate) fn take(&self) -> bool {
        self.is_due.load(Ordering::Relaxed) && self.is_due.swap(false, Ordering::AcqRel)
    }

    /// Returns whether something is due.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }
}

/// Of a link: what its peer was not woken for.
#[derive(Debug)]
pub(crate) struct DeferredFor(AtomicU8);

impl DeferredFor {
    pub(crate) fn new() -> Self {
        DeferredFor(AtomicU8::new(0))
    }

    /// This was published, and the peer is not woken for it now.
    pub(crate) fn mark(&self, what: u8) {
        // After it was published: pairs with the swap in `take`.
        self.0.fetch_or(what, Ordering::AcqRel);
    }

    /// Takes what is due. What was published with it, by whichever thread, comes before whatever follows: the
    /// fence of the ringer.
    pub(crate) fn take(&self) -> u8 {
        self.0.swap(0, Ordering::AcqRel)
    }

    /// Does the same as [`take`](Self::take), for a peer that is rung for something else anyway: mostly
    /// nothing is due then.
    pub(crate) fn clear(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.take();
        }
    }
}
