//! Counts that an actor keeps itself, because no message to it shows them: items that it makes and passes on,
//! and items that it drops.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The counts of one life of an actor. The actor's thread adds and the control thread reads. Each count is
/// right by itself, and they order nothing else.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    emitted: Count,
    dropped: Count,
    missed: Count,
}

/// A count that an actor may or may not keep. An actor that will count begins it with a 0.
#[derive(Debug, Default)]
struct Count {
    sum: AtomicU64,
    begun: AtomicBool,
}

impl Count {
    fn add(&self, count: u64) {
        if count == 0 {
            self.begun.store(true, Relaxed);
        } else {
            self.sum.fetch_add(count, Relaxed);
        }
    }
}

impl Tally {
    pub(crate) fn emitted(&self, count: u64) {
        self.emitted.add(count);
    }

    pub(crate) fn dropped(&self, count: u64) {
        self.dropped.add(count);
    }

    pub(crate) fn missed(&self, count: u64) {
        self.missed.add(count);
    }

    /// Returns the emitted, dropped and missed items.
    pub(crate) fn counts(&self) -> [u64; 3] {
        self.each().map(|count| count.sum.load(Relaxed))
    }

    /// Returns which of these the actor counts, in that order.
    pub(crate) fn counted(&self) -> [bool; 3] {
        self.each().map(|count| count.begun.load(Relaxed) || count.sum.load(Relaxed) > 0)
    }

    fn each(&self) -> [&Count; 3] {
        [&self.emitted, &self.dropped, &self.missed]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_begins_with_0() {
        let tally = Tally::default();
        assert_eq!((tally.counts(), tally.counted()), ([0; 3], [false; 3]));
        tally.dropped(0);
        tally.missed(2);
        assert_eq!((tally.counts(), tally.counted()), ([0, 0, 2], [false, true, true]));
        tally.dropped(1);
        assert_eq!((tally.counts(), tally.counted()), ([0, 1, 2], [false, true, true]));
    }
}
