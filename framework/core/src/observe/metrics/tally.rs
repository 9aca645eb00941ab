//! What an actor counts itself, because no message to it says so: items that it makes and passes on, and those that it drops.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counts of one life of an actor. The actor's thread adds, and the control thread reads: each is right by itself, and
/// nothing else is ordered by them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    emitted: AtomicU64,
    dropped: AtomicU64,
    missed: AtomicU64,
}

impl Tally {
    pub(crate) fn emitted(&self, count: u64) {
        self.emitted.fetch_add(count, Relaxed);
    }

    pub(crate) fn dropped(&self, count: u64) {
        self.dropped.fetch_add(count, Relaxed);
    }

    pub(crate) fn missed(&self, count: u64) {
        self.missed.fetch_add(count, Relaxed);
    }

    /// What was emitted, dropped and missed.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [&self.emitted, &self.dropped, &self.missed].map(|count| count.load(Relaxed))
    }
}
