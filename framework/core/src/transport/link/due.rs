//! What is to be published on a link, and on how many links of the process something is: whoever publishes
//! ends its look with the last of them.
//!
//! Used by whoever commits frames, posts notices and hands credits back, and by `publish`.
//!
//! **Invariants.** A link counts from before its mark can be seen until what was marked can be seen by the
//! peer: so a link whose mark another thread has taken, and has not published yet, is not passed by.
//!
//! **Locks.** None. **On a crash** of this process nobody asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// See the module. The bits are of [`wake_reasons`](crate::transport::wake_reasons).
#[derive(Debug)]
pub(super) struct Due {
    mark: AtomicU8,
    links: Arc<AtomicUsize>,
}

impl Due {
    /// `links` counts those of the process.
    pub(super) fn new(links: Arc<AtomicUsize>) -> Self {
        Due { mark: AtomicU8::new(0), links }
    }

    pub(super) fn note(&self, due: u8) {
        let mut known = self.mark.load(Ordering::Acquire);
        loop {
            // Counted before it can be seen: whoever finds that nothing is due has nothing here either.
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

    /// Takes what is to be published; zero if nothing is. Who gets something says when it is
    /// [`published`](Self::published).
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
