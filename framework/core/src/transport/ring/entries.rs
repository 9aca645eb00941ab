//! The return ring: entries of a fixed size, so that room for each can be promised in advance (LEASE-2).
//!
//! Memory, deaths and batching are as in the [data ring](super::data), except that positions count entries.
//!
//! There is room for many entries, and usually few are under way. So a producer that has written
//! [`RETURN_LAP`] slots begins at the start of the memory again as soon as the consumer has taken everything.
//! It touches the slots after them only if the consumer falls behind, and until then they cost nothing. A
//! word of the producer, the `front`, has the position that lies in the first slot. The producer changes it
//! only while nothing is under way. So a consumer that sees a tail also sees the front that goes with it, and
//! cannot see a later one before it has published that it took everything.

use std::fmt::Debug;
use std::sync::atomic::Ordering;

use thiserror::Error;

use super::ends::{Content, ReadingEnd, WritingEnd};
use super::error::{BadCapacity, RingCorrupt};
use super::native::Native;
use super::platform::{Bytes, Orders, Platform, Sound, Word};
use crate::limits::RETURN_LAP;

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

/// Makes a ring of `slots` entries between two threads of this process.
///
/// # Errors
/// [`BadCapacity`](super::BadCapacity) unless `slots` is a power of two of a sensible size.
#[cfg(any(test, feature = "inside"))]
pub fn in_memory(slots: usize) -> Result<(EntryProducer, EntryConsumer), BadCapacity> {
    let front = super::NativeWord::in_memory();
    let (writing, reading) = (WrittenFront::new(front.clone()), ReadFront::new(front));
    super::ends::in_memory(slots.saturating_mul(ENTRY_BYTES), writing, reading)
}

/// Entries in a ring; positions count them.
#[derive(Debug)]
pub enum Entries {}

impl Content for Entries {
    const POSITION_BYTES: usize = ENTRY_BYTES;
    const UNIT: u64 = 1;
    const MIN_BYTES: usize = ENTRY_BYTES;
    type Writing<W: Word + Debug> = WrittenFront<W>;
    type Reading<W: Word + Debug> = ReadFront<W>;
}

/// The front at the producer, which writes it.
#[derive(Debug)]
pub struct WrittenFront<W> {
    word: W,
    /// The position that lies in the first slot.
    at: u64,
    /// The most slots of the memory that were written before that.
    furthest: u64,
}

impl<W> WrittenFront<W> {
    fn new(word: W) -> Self {
        WrittenFront { word, at: 0, furthest: 0 }
    }
}

/// The front at the consumer, which reads it.
#[derive(Debug)]
pub struct ReadFront<W> {
    word: W,
    at: u64,
    /// The tail at which it was last loaded.
    seen_with: u64,
}

impl<W> ReadFront<W> {
    fn new(word: W) -> Self {
        ReadFront { word, at: 0, seen_with: 0 }
    }
}

/// The writing end.
pub type EntryProducer<P = Native, O = Sound> = WritingEnd<P, O, Entries>;

impl<P: Platform, O: Orders> EntryProducer<P, O> {
    /// Makes the writing end of a fresh ring. It stores to `tail`, `front` and `bytes`, and loads the peer's
    /// `head`. The words are zero.
    ///
    /// # Errors
    /// [`BadCapacity`] unless `bytes` is a power of two of a sensible size.
    pub fn new(tail: P::Word, head: P::Word, front: P::Word, bytes: P::Bytes) -> Result<Self, BadCapacity> {
        Self::with(tail, head, bytes, WrittenFront::new(front))
    }

    /// Returns an upper limit of the bytes of its memory that it has written to.
    pub fn touched(&self) -> usize {
        let slots = (self.tail.at - self.writing.at).max(self.writing.furthest).min(self.capacity);
        slots as usize * ENTRY_BYTES
    }

    /// Appends an entry, visible with the next [`publish`](Self::publish).
    ///
    /// # Errors
    /// [`PushError::Full`] if the consumer has to make room first. [`PushError::Corrupt`] if its cursor is
    /// wrong.
    #[inline]
    pub fn push(&mut self, entry: Entry) -> Result<(), PushError> {
        if self.tail.at - self.head.seen == self.capacity && self.unconsumed()? == self.capacity {
            return Err(PushError::Full);
        }
        let lap = self.tail.at - self.writing.at;
        // The consumer can have taken everything only if everything is published. The second condition also
        // saves loading the head for each entry of a batch.
        if lap >= (RETURN_LAP as u64).min(self.capacity / 2) && self.tail.at == self.tail.published {
            self.begin_again()?;
        }
        let offset = offset(self.tail.at - self.writing.at, self.capacity);
        for (i, word) in entry.into_iter().enumerate() {
            self.bytes.write_word(offset + i * size_of::<u64>(), word);
        }
        self.tail.at += 1;
        Ok(())
    }
}

impl<P: Platform, O: Orders> EntryProducer<P, O> {
    /// Moves the front to the next entry, if the consumer has taken everything.
    #[inline]
    fn begin_again(&mut self) -> Result<(), RingCorrupt> {
        if self.unconsumed()? == 0 {
            let front = &mut self.writing;
            front.furthest = front.furthest.max(self.tail.at - front.at);
            front.at = self.tail.at;
            // Relaxed: the release of the tail publishes it, before any later entry.
            front.word.store(front.at, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Appends `mark`, and continues in `bytes`, which nobody has written or read. Returns the memory that it
    /// leaves. The consumer that reads the mark [follows](EntryConsumer::follow).
    ///
    /// # Errors
    /// `bytes` comes back if the consumer is not known to have taken all entries, or if they have another
    /// length. Nothing has changed then.
    pub fn move_to(&mut self, mark: Entry, bytes: P::Bytes) -> Result<P::Bytes, P::Bytes> {
        if self.tail.at != self.head.seen || bytes.len() != self.bytes.len() || self.push(mark).is_err() {
            return Err(bytes);
        }
        // The consumer does the same when it has read the mark, so the word is not needed for it.
        (self.writing.at, self.writing.furthest) = (self.tail.at, 0);
        Ok(std::mem::replace(&mut self.bytes, bytes))
    }
}

/// The reading end. The caller checks the content of an entry (WIRE-1).
pub type EntryConsumer<P = Native, O = Sound> = ReadingEnd<P, O, Entries>;

impl<P: Platform, O: Orders> EntryConsumer<P, O> {
    /// Makes the reading end of a fresh ring. It stores to `head`, and loads the peer's `tail`, `front` and
    /// `bytes`. The words are zero.
    ///
    /// # Errors
    /// [`BadCapacity`] unless `bytes` is a power of two of a sensible size.
    pub fn new(tail: P::Word, head: P::Word, front: P::Word, bytes: P::Bytes) -> Result<Self, BadCapacity> {
        Self::with(tail, head, bytes, ReadFront::new(front))
    }

    /// Takes a copy of the next entry, or `None` if nothing was published. The producer gets the slot back
    /// with the next [`publish_head`](Self::publish_head).
    ///
    /// # Errors
    /// [`RingCorrupt`] if the producer's cursor cannot be right.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<Entry>, RingCorrupt> {
        if self.is_empty()? {
            return Ok(None);
        }
        if self.reading.seen_with != self.tail.seen {
            self.reading.seen_with = self.tail.seen;
            // Loaded after the acquire of the tail. A front that is lower than the known one is from before a
            // move. A wrong one leads to entries that nobody wrote, which harms only the producer (WIRE-1).
            self.reading.at = self.reading.at.max(self.reading.word.load(Ordering::Relaxed));
        }
        let offset = offset(self.head.at.wrapping_sub(self.reading.at), self.capacity);
        let entry = std::array::from_fn(|i| self.bytes.read_word(offset + i * size_of::<u64>()));
        self.head.at += 1;
        Ok(Some(entry))
    }

    /// Reads on in `bytes`, after the last entry said that the producer has moved to them. Returns the memory
    /// that it leaves.
    pub fn follow(&mut self, bytes: P::Bytes) -> P::Bytes {
        debug_assert_eq!(bytes.len(), self.bytes.len(), "a ring moves to memory of its own length");
        self.reading.at = self.head.at;
        std::mem::replace(&mut self.bytes, bytes)
    }
}

/// Returns the offset, in bytes, of the entry that is `position` entries from the front.
#[inline]
fn offset(position: u64, slots: u64) -> usize {
    (position & (slots - 1)) as usize * ENTRY_BYTES
}
