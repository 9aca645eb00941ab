//! Counts of everything that a transport holds, for tests; and a simulated crash.

use super::Transport;

impl Transport {
    /// Calls `count` with each kind of thing that is held, and its number.
    pub(crate) fn count_what_is_held(&self, mut count: impl FnMut(String, usize)) {
        for pool in self.memory.pools() {
            count(format!("allocations held on {}", pool.backend().name()), pool.stats().allocations);
        }
        for link in self.links.all().iter() {
            count(format!("leases on memory of {}", link.peer), link.held());
            let (in_flight, outbox) = link.under_way();
            count("frames with leases under way".to_owned(), in_flight);
            count("replies that wait for room".to_owned(), outbox);
        }
        count("mapped chunks of others".to_owned(), self.memory.chunks.mapped());
        count("links".to_owned(), self.links.all().len());
        count("asks without an answer".to_owned(), self.asks.count());
        count("messages not done with".to_owned(), self.actors.open());
    }

    /// Simulates a crash: from now on this process changes nothing that others can see, neither rings nor
    /// clocks, and sends the node nothing. Anything that it still does or drops affects only itself.
    pub(crate) fn abandon(&self) {
        self.lifecycle.abandon();
        self.domain.freeze();
    }
}
