//! The two cursors of a ring, each in the view of its owner and of the peer.

use std::sync::atomic::Ordering;

use super::error::{Cursor, RingCorrupt};
use super::platform::Word;

/// The cursor that this side writes: ahead in private, published in batches, because a store per message
/// would move the cache line to the peer and back each time (5.9 against 17 million messages a second).
#[derive(Debug)]
pub(super) struct OwnCursor<W> {
    word: W,
    /// The position of this side.
    pub(super) at: u64,
    /// The position that the peer can see.
    pub(super) published: u64,
}

impl<W: Word> OwnCursor<W> {
    /// Makes a cursor at zero, the value of its fresh word.
    pub(super) fn new(word: W) -> Self {
        OwnCursor { word, at: 0, published: 0 }
    }

    /// Publishes everything since the last time, with one store, and returns whether there was anything.
    #[inline]
    pub(super) fn publish(&mut self, order: Ordering) -> bool {
        if self.at == self.published {
            return false;
        }
        self.word.store(self.at, order);
        self.published = self.at;
        true
    }

    /// Does the same as [`publish`](Self::publish), but only up to `end`, an earlier position of this side.
    /// Returns the position that the peer can see.
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

/// The cursor that the peer writes. It is cached here, loaded again only when the cached value does not
/// suffice, and checked before it is believed.
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
    /// Makes the view of the peer's `cursor`, at zero.
    pub(super) fn new(word: W, cursor: Cursor, unit: u64) -> Self {
        debug_assert!(unit.is_power_of_two());
        PeerCursor { word, cursor, unit, seen: 0 }
    }

    /// Loads the word again, and checks it: it must not go back, go beyond `limit`, or lie inside a record.
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
