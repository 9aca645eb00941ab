//! The return ring: entries of a fixed size, so that room for each can be promised in advance (LEASE-2).
//!
//! Memory, deaths and batching are as in the [data ring](super::data), except that positions count entries.

use std::marker::PhantomData;

use super::cursor::{OwnCursor, PeerCursor};
use super::error::{BadCapacity, Cursor, RingCorrupt};
use super::native::{Native, NativeBytes, NativeWord};
use super::platform::{Bytes, Orders, Platform, Sound};
use thiserror::Error;

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
/// [`BadCapacity`] unless `slots` is a power of two of a sensible size.
pub fn in_memory(slots: usize) -> Result<(EntryProducer, EntryConsumer), BadCapacity> {
    let len = slots.saturating_mul(ENTRY_BYTES);
    BadCapacity::check(len, ENTRY_BYTES)?;
    let (tail, head) = (NativeWord::in_memory(), NativeWord::in_memory());
    let (written, read) = NativeBytes::in_memory(len);
    Ok((EntryProducer::new(tail.clone(), head.clone(), written)?, EntryConsumer::new(tail, head, read)?))
}

/// The writing end.
#[derive(Debug)]
pub struct EntryProducer<P: Platform = Native, O: Orders = Sound> {
    tail: OwnCursor<P::Word>,
    head: PeerCursor<P::Word>,
    bytes: P::Bytes,
    slots: u64,
    orders: PhantomData<fn() -> O>,
}

impl<P: Platform, O: Orders> EntryProducer<P, O> {
    /// The writing end of a fresh ring: it stores to `tail` and `bytes`, and loads the peer's `head`. Both words
    /// are zero; `bytes` is [`ENTRY_BYTES`] for each slot.
    ///
    /// # Errors
    /// [`BadCapacity`] unless `bytes` is a power of two of a sensible size.
    pub fn new(tail: P::Word, head: P::Word, bytes: P::Bytes) -> Result<Self, BadCapacity> {
        BadCapacity::check(bytes.len(), ENTRY_BYTES)?;
        Ok(EntryProducer {
            tail: OwnCursor::new(tail),
            head: PeerCursor::new(head, Cursor::Head, 1),
            slots: (bytes.len() / ENTRY_BYTES) as u64,
            bytes,
            orders: PhantomData,
        })
    }

    /// Appends an entry, visible with the next [`publish`](Self::publish).
    ///
    /// # Errors
    /// [`PushError::Full`] where the consumer has to make room first. [`PushError::Corrupt`] where its cursor is
    /// wrong.
    #[inline]
    pub fn push(&mut self, entry: Entry) -> Result<(), PushError> {
        if self.tail.at - self.head.seen == self.slots && self.len_unconsumed()? == self.slots {
            return Err(PushError::Full);
        }
        let offset = offset(self.tail.at, self.slots);
        for (i, word) in entry.into_iter().enumerate() {
            self.bytes.write_word(offset + i * size_of::<u64>(), word);
        }
        self.tail.at += 1;
        Ok(())
    }

    /// Makes everything pushed since the last time visible to the consumer, with one store. Says whether there was
    /// anything: then, the consumer's doorbell is due.
    #[inline]
    pub fn publish(&mut self) -> bool {
        // TAIL release: pairs with `EntryConsumer::is_empty`.
        self.tail.publish(O::TAIL_RELEASE)
    }

    /// Whether something was pushed that the consumer cannot see yet.
    #[inline]
    pub fn has_unpublished(&self) -> bool {
        self.tail.at != self.tail.published
    }

    /// How many entries were pushed so far. The consumer has taken the last of them once
    /// [`consumed`](Self::consumed) is at least this.
    #[inline]
    pub fn position(&self) -> u64 {
        self.tail.at
    }

    /// How many entries the consumer has taken so far.
    ///
    /// # Errors
    /// [`RingCorrupt`] where its cursor went back, or beyond what was published.
    #[inline]
    pub fn consumed(&mut self) -> Result<u64, RingCorrupt> {
        // HEAD acquire: pairs with `EntryConsumer::publish_head`.
        self.head.refresh(O::HEAD_ACQUIRE, self.tail.published)
    }

    /// How many pushed entries, published or not, the consumer has not taken yet.
    ///
    /// # Errors
    /// As [`consumed`](Self::consumed).
    #[inline]
    pub fn len_unconsumed(&mut self) -> Result<u64, RingCorrupt> {
        Ok(self.tail.at - self.consumed()?)
    }
}

/// The reading end. What is in an entry is for the caller to check (WIRE-1).
#[derive(Debug)]
pub struct EntryConsumer<P: Platform = Native, O: Orders = Sound> {
    tail: PeerCursor<P::Word>,
    head: OwnCursor<P::Word>,
    bytes: P::Bytes,
    slots: u64,
    orders: PhantomData<fn() -> O>,
}

impl<P: Platform, O: Orders> EntryConsumer<P, O> {
    /// The reading end of a fresh ring: it stores to `head`, and loads the peer's `tail` and `bytes`. Both words
    /// are zero; `bytes` is [`ENTRY_BYTES`] for each slot.
    ///
    /// # Errors
    /// [`BadCapacity`] unless `bytes` is a power of two of a sensible size.
    pub fn new(tail: P::Word, head: P::Word, bytes: P::Bytes) -> Result<Self, BadCapacity> {
        BadCapacity::check(bytes.len(), ENTRY_BYTES)?;
        Ok(EntryConsumer {
            tail: PeerCursor::new(tail, Cursor::Tail, 1),
            head: OwnCursor::new(head),
            slots: (bytes.len() / ENTRY_BYTES) as u64,
            bytes,
            orders: PhantomData,
        })
    }

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
        let offset = offset(self.head.at, self.slots);
        let entry = std::array::from_fn(|i| self.bytes.read_word(offset + i * size_of::<u64>()));
        self.head.at += 1;
        Ok(Some(entry))
    }

    /// Gives the slots of everything popped since the last time back, with one store. Says whether there were any.
    #[inline]
    pub fn publish_head(&mut self) -> bool {
        // HEAD release: pairs with `EntryProducer::consumed`.
        self.head.publish(O::HEAD_RELEASE)
    }

    /// How many entries were popped so far.
    #[inline]
    pub fn position(&self) -> u64 {
        self.head.at
    }

    /// Whether nothing is there to pop: the second look that a sleeper takes before it sleeps.
    ///
    /// # Errors
    /// [`RingCorrupt`] where the producer's cursor cannot be right.
    #[inline]
    pub fn is_empty(&mut self) -> Result<bool, RingCorrupt> {
        if self.head.at != self.tail.seen {
            return Ok(false);
        }
        // The producer knows only of the published head: it cannot be further than a ring beyond that.
        let limit = self.head.published.saturating_add(self.slots);
        // TAIL acquire: pairs with `EntryProducer::publish`.
        Ok(self.tail.refresh(O::TAIL_ACQUIRE, limit)? == self.head.at)
    }
}

/// Offset in bytes of the entry at `position`.
#[inline]
fn offset(position: u64, slots: u64) -> usize {
    (position & (slots - 1)) as usize * ENTRY_BYTES
}
