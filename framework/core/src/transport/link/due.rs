//! The mark of due entries on a link, and the number of the process's links with such a mark: a publishing
//! thread ends its search with the last of them.
//!
//! Code that commits frames, posts notices or hands credits back uses it, and so does `publish`.
//!
//! **Invariants.** A link counts from before its mark is visible until the peer can see the marked entries.
//! So a link whose mark another thread has taken, and has not published yet, is not skipped.
//!
//! **Locks.** None. **On a crash** of this process it has no more users.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// See the module. The bits are of [`wake_reasons`](crate::transport::wake_reasons).
#[derive(Debug)]
pub(super) struct Due {
    mark: AtomicU8,
    links: Arc<AtomicUsize>,
}

impl Due {
    /// Makes an empty mark. `links` counts the process's links with a mark.
    pub(super) fn new(links: Arc<AtomicUsize>) -> Self {
        Due { mark: AtomicU8::new(0), links }
    }

    pub(super) fn note(&self, due: u8) {
        let mut known = self.mark.load(Ordering::Acquire);
        loop {
            // Counted before the mark is visible: if a thread finds a count of zero, it has left no mark here
            // either.
            let counted = known == 0;
            if counted {
                self.links.fetch_add(1, Ordering::AcqRel);
            }
            match self.mark.compare_exchange_weak(known, known | due, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => known = now,
            }
            if counted {
                self.links.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Takes the mark of due entries; zero if nothing is due. A caller that gets a mark reports when the
    /// entries are [`published`](Self::published).
    pub(super) fn take(&self) -> u8 {
        // The load first: most links of a turn have nothing due, and a swap takes the cache line for itself.
        if self.mark.load(Ordering::Acquire) == 0 { 0 } else { self.mark.swap(0, Ordering::AcqRel) }
    }

    pub(super) fn published(&self) {
        self.links.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        if *self.mark.get_mut() != 0 {
            self.links.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
