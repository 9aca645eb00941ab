//! Whether a thread has the last of what several have: then what the others did with it comes before what it
//! does.
//!
//! Used by leases and parts of tensors, before memory is written that others have read: a hand-over, or the
//! writable form of a tensor, against the last drop on another thread. `tests/loom_sharing.rs` explores this
//! file.

use crate::sync::{Arc, AtomicUsize, Ordering, fence};

/// Whether this is the only value on `shared`, with all its clones gone.
pub(crate) fn is_last<T>(shared: &Arc<T>) -> bool {
    let last = Arc::strong_count(shared) == 1;
    // LAST: as in `Arc::get_mut`. What the droppers of the other clones did comes before what follows.
    fence(Ordering::Acquire);
    last
}

/// How many handles stand on something, of which frames on their way and queues have none.
#[derive(Debug, Default)]
pub(super) struct Handles(AtomicUsize);

impl Handles {
    /// One more.
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One fewer.
    pub(super) fn remove(&self) {
        // HANDLES release: what the dropping thread did with the memory comes before what a new sole owner
        // does.
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// How many.
    pub(super) fn count(&self) -> usize {
        // HANDLES acquire: pairs with the release in `remove`.
        self.0.load(Ordering::Acquire)
    }
}
