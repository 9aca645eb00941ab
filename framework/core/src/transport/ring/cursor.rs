//! The two cursors of a ring, each as its owner and as the peer sees it.

use std::sync::atomic::Ordering;

use super::error::{Cursor, RingCorrupt};
use super::platform::Word;

/// The cursor that this side writes: ahead in private, published in batches, because a store per message
/// would move the cache line to the peer and back each time (5.9 against 17 million messages a second).
#[derive(Debug)]
pub(super) struct OwnCursor<W> {
    word: W,
    /// Where this side is.
    pub(super) at: u64,
    /// What the peer can know.
    pub(super) published: u64,
}

impl<W: Word> OwnCursor<W> {
    /// A cursor at zero, as its fresh word says.
    pub(super) fn new(word: W) -> Self {
        OwnCursor { word, at: 0, published: 0 }
    }

    /// One store for everything since the last; nothing where there was nothing. Says whether there was.
    #[inline]
    pub(super) fn publish(&mut self, order: Ordering) -> bool {
        if self.at == self.published {
            return false;
        }
        self.word.store(self.at, order);
        self.published = self.at;
        true
    }

    /// Does the same as [`publish`](Self::publish), but nothing that was written behind `end`, which this
    /// side was at once. Says what the peer can know.
    #[inline]
    pub(super) fn publish_to(&mut self, end: u64, order: Ordering) -> u64 {
        debug_assert!(end <= self.at);
        if end > self.published {
            self.word.store(end, order);
            self.published = end;
        }
        self.published
    }
}

/// The cursor that the peer writes: cached here, loaded again only when the cached value does not suffice,
/// and not believed before it was checked.
#[derive(Debug)]
pub(super) struct PeerCursor<W> {
    word: W,
    cursor: Cursor,
    /// Positions are multiples of this power of two.
    unit: u64,
    /// The last value that was good.
    pub(super) seen: u64,
}

impl<W: Word> PeerCursor<W> {
    /// The peer's `cursor`, at zero.
    pub(super) fn new(word: W, cursor: Cursor, unit: u64) -> Self {
        debug_assert!(unit.is_power_of_two());
        PeerCursor { word, cursor, unit, seen: 0 }
    }

    /// Loads the word again. It never goes back, never beyond `limit`, and only between records.
    #[inline]
    pub(super) fn refresh(&mut self, order: Ordering, limit: u64) -> Result<u64, RingCorrupt> {
        let (at, cursor) = (self.word.load(order), self.cursor);
        if at < self.seen {
            return Err(RingCorrupt::Backwards { cursor, from: self.seen, to: at });
        }
        if at > limit {
            return Err(RingCorrupt::Beyond { cursor, at, limit });
        }
        if at & (self.unit - 1) != 0 {
            return Err(RingCorrupt::Misaligned { cursor, at });
        }
        self.seen = at;
        Ok(at)
    }
}
