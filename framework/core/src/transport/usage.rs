//! What a transport holds, for tests; and its end as a crash would have it.

use std::sync::Arc;

use super::Transport;
use crate::lease::Pool;

impl Transport {
    /// The pools that were made, by device.
    pub(crate) fn pools_made(&self) -> Vec<Arc<Pool>> {
        self.memory.pools().into_vec()
    }

    /// Peers that there is a link to, open or not.
    pub(crate) fn links_kept(&self) -> usize {
        self.links.all().len()
    }

    /// Chunks of others that anything is known of here.
    pub(crate) fn chunks_known(&self) -> usize {
        self.memory.chunks.known()
    }

    /// Chunks of others that are mapped here, those that are mapped twice counted twice.
    pub(crate) fn chunks_mapped(&self) -> usize {
        self.memory.chunks.mapped()
    }

    /// Tells `count` of everything that is held, and how much of it.
    pub(crate) fn count_what_is_held(&self, mut count: impl FnMut(String, usize)) {
        for pool in self.pools_made() {
            count(format!("allocations held on {}", pool.backend().name()), pool.stats().allocations);
        }
        for link in self.links.all().iter() {
            count(format!("leases on memory of {}", link.peer), link.held());
            let (in_flight, outbox) = link.under_way();
            count("frames with leases under way".to_owned(), in_flight);
            count("replies that wait for room".to_owned(), outbox);
        }
        count("mapped chunks of others".to_owned(), self.chunks_mapped());
        count("links".to_owned(), self.links_kept());
        count("asks without an answer".to_owned(), self.asks.count());
        count("messages not done with".to_owned(), self.actors.open());
    }

    /// From now on this process changes nothing that others can see: neither rings and clocks nor the node.
    /// What it still does, and what is dropped, concerns only itself.
    pub(crate) fn abandon(&self) {
        self.lifecycle.abandon();
        self.domain.freeze();
    }
}
