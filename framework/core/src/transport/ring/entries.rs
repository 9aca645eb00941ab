//! The return ring: entries of a fixed size, so that room for each can be promised in advance (LEASE-2).
//!
//! Memory, deaths and batching are as in the [data ring](super::data), except that positions count entries.

use thiserror::Error;

use super::ends::{Content, ReadingEnd, WritingEnd};
use super::error::RingCorrupt;
use super::native::Native;
use super::platform::{Bytes, Orders, Platform, Sound};

/// One entry: a cache line.
pub type Entry = [u64; 8];

/// Bytes of one entry.
pub const ENTRY_BYTES: usize = size_of::<Entry>();

/// Why an entry was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PushError {
    /// The consumer has not made room yet.
    #[error("the return ring is full; publish what is in it and try again once the peer has consumed some")]
    Full,
    /// The peer's cursor is wrong.
    #[error(transparent)]
    Corrupt(#[from] RingCorrupt),
}

/// A ring of `slots` entries between two threads of this process.
///
/// # Errors
/// [`BadCapacity`](super::BadCapacity) unless `slots` is a power of two of a sensible size.
#[cfg(any(test, feature = "inside"))]
pub fn in_memory(slots: usize) -> Result<(EntryProducer, EntryConsumer), super::BadCapacity> {
    super::ends::in_memory(slots.saturating_mul(ENTRY_BYTES))
}

/// Entries in a ring; positions count them.
#[derive(Debug)]
pub enum Entries {}

impl Content for Entries {
    const POSITION_BYTES: usize = ENTRY_BYTES;
    const UNIT: u64 = 1;
    const MIN_BYTES: usize = ENTRY_BYTES;
    type Reading = ();
}

/// The writing end.
pub type EntryProducer<P = Native, O = Sound> = WritingEnd<P, O, Entries>;

impl<P: Platform, O: Orders> EntryProducer<P, O> {
    /// Appends an entry, visible with the next [`publish`](Self::publish).
    ///
    /// # Errors
    /// [`PushError::Full`] where the consumer has to make room first. [`PushError::Corrupt`] where its cursor is
    /// wrong.
    #[inline]
    pub fn push(&mut self, entry: Entry) -> Result<(), PushError> {
        if self.tail.at - self.head.seen == self.capacity && self.unconsumed()? == self.capacity {
            return Err(PushError::Full);
        }
        let offset = offset(self.tail.at, self.capacity);
        for (i, word) in entry.into_iter().enumerate() {
            self.bytes.write_word(offset + i * size_of::<u64>(), word);
        }
        self.tail.at += 1;
        Ok(())
    }
}

impl<P: Platform, O: Orders> EntryProducer<P, O> {
    /// Appends `mark`, and goes on in `bytes`, which nobody has written or read. Returns the memory that it leaves. Who reads the
    /// mark [follows](EntryConsumer::follow).
    ///
    /// # Errors
    /// `bytes` comes back where the consumer is not known to have taken all entries, or where they are of another length: nothing
    /// has changed.
    pub fn move_to(&mut self, mark: Entry, bytes: P::Bytes) -> Result<P::Bytes, P::Bytes> {
        if self.tail.at != self.head.seen || bytes.len() != self.bytes.len() || self.push(mark).is_err() {
            return Err(bytes);
        }
        Ok(self.go_on_in(bytes))
    }
}

/// The reading end. What is in an entry is for the caller to check (WIRE-1).
pub type EntryConsumer<P = Native, O = Sound> = ReadingEnd<P, O, Entries>;

impl<P: Platform, O: Orders> EntryConsumer<P, O> {
    /// Takes a copy of the next entry; `None` where nothing was published. The producer gets the slot back with
    /// the next [`publish_head`](Self::publish_head).
    ///
    /// # Errors
    /// [`RingCorrupt`] where the producer's cursor cannot be right.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<Entry>, RingCorrupt> {
        if self.is_empty()? {
            return Ok(None);
        }
        let offset = offset(self.head.at, self.capacity);
        let entry = std::array::from_fn(|i| self.bytes.read_word(offset + i * size_of::<u64>()));
        self.head.at += 1;
        Ok(Some(entry))
    }

    /// Reads on in `bytes`: the entry that was taken last says that the producer has moved to them. Returns what is left.
    pub fn follow(&mut self, bytes: P::Bytes) -> P::Bytes {
        debug_assert_eq!(bytes.len(), self.bytes.len(), "a ring moves to memory of its own length");
        std::mem::replace(&mut self.bytes, bytes)
    }
}

/// Offset in bytes of the entry at `position`.
#[inline]
fn offset(position: u64, slots: u64) -> usize {
    (position & (slots - 1)) as usize * ENTRY_BYTES
}
