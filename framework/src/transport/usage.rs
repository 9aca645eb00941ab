//! What a transport holds, for tests; and its end as a crash would have it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Transport;
use super::chunks::Known;
use crate::lease::Pool;

impl Transport {
    /// The pools that were made, by device.
    pub(crate) fn pools_made(&self) -> Vec<Arc<Pool>> {
        self.pools.read().clone()
    }

    /// Peers that there is a link to, open or not.
    pub(crate) fn links_kept(&self) -> usize {
        self.links.all().len()
    }

    /// Chunks of others that anything is known of here.
    pub(crate) fn chunks_known(&self) -> usize {
        self.chunks.len()
    }

    /// Chunks of others that are mapped here, those that are mapped twice counted twice.
    pub(crate) fn chunks_mapped(&self) -> usize {
        let mapped = |known: &Known| match known {
            Known::Mapped(_) => true,
            Known::Left(mapping) => mapping.strong_count() > 0,
            Known::Wanted | Known::Unwanted | Known::Missing => false,
        };
        self.chunks.iter().filter(|entry| mapped(entry.value())).count()
    }

    /// Tells `count` of everything that is held, and how much of it.
    pub(crate) fn count_what_is_held(&self, mut count: impl FnMut(String, usize)) {
        for pool in self.pools_made() {
            count(format!("allocations held on {}", pool.backend().name()), pool.stats().allocations);
        }
        for link in self.links.all().iter() {
            count(format!("leases on memory of {}", link.peer), link.held.load(Ordering::Relaxed));
            let out = link.out.lock();
            let (in_flight, outbox) =
                out.as_ref().map_or((0, 0), |out| (out.in_flight.len(), out.outbox.len()));
            count("frames with leases under way".to_owned(), in_flight);
            count("replies that wait for room".to_owned(), outbox);
        }
        count("mapped chunks of others".to_owned(), self.chunks_mapped());
        count("links".to_owned(), self.links_kept());
        count("asks without an answer".to_owned(), self.asks.len());
        count("messages not done with".to_owned(), self.open.load(Ordering::SeqCst));
    }

    /// From now on this process changes nothing that others can see: neither rings and clocks nor the node. What it
    /// still does, and what is dropped, concerns only itself.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
        self.domain.freeze();
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}
