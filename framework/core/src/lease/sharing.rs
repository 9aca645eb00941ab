//! Tells a thread whether it holds the last of several shared handles. If so, everything that the other
//! holders did with the memory happens before what this thread does next.
//!
//! Leases and parts of tensors use it before memory is written that other threads have read. It orders a
//! hand-over, or the writable form of a tensor, behind the last drop on another thread.
//! `tests/loom_sharing.rs` explores this file.

use crate::sync::{Arc, AtomicUsize, Ordering, fence};

/// Returns whether this is the only value on `shared`, with all its clones gone.
pub(crate) fn is_last<T>(shared: &Arc<T>) -> bool {
    let last = Arc::strong_count(shared) == 1;
    // LAST: as in `Arc::get_mut`. All work of the threads that dropped the other clones happens before the
    // code after this fence.
    fence(Ordering::Acquire);
    last
}

/// Counts the handles on a lease. Frames on their way and queues hold no handle.
#[derive(Debug, Default)]
pub(super) struct Handles(AtomicUsize);

impl Handles {
    /// Counts one handle more.
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one handle fewer.
    pub(super) fn remove(&self) {
        // HANDLES release: the dropping thread's work on the memory happens before that of a new sole owner.
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Returns the number of handles.
    pub(super) fn count(&self) -> usize {
        // HANDLES acquire: pairs with the release in `remove`.
        self.0.load(Ordering::Acquire)
    }
}
