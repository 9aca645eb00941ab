//! The two ends of a ring with any content: cursors, and the progress of each side.
//!
//! [`data`](super::data) and [`entries`](super::entries) define what a position counts, and add writing and
//! reading.

use std::fmt::Debug;
use std::marker::PhantomData;

use super::cursor::{OwnCursor, PeerCursor};
use super::error::{BadCapacity, Cursor, RingCorrupt};
use super::platform::{Bytes, Orders, Platform, Word};

/// The content of a ring: the unit of its positions, and the positions that a cursor can have.
pub trait Content {
    /// The number of bytes from one position to the next.
    const POSITION_BYTES: usize;
    /// Cursors are multiples of this power of two.
    const UNIT: u64;
    /// Least capacity in bytes.
    const MIN_BYTES: usize;
    /// The state of the writing end besides its position.
    type Writing<W: Word + Debug>: Debug;
    /// The state of the reading end besides its position.
    type Reading<W: Word + Debug>: Debug;
}

/// Both ends of a ring within one process.
#[cfg(any(test, feature = "inside"))]
type Ends<C> = (WritingEnd<super::Native, super::Sound, C>, ReadingEnd<super::Native, super::Sound, C>);

/// Makes a ring of `bytes` bytes between two threads of this process.
#[cfg(any(test, feature = "inside"))]
pub(super) fn in_memory<C: Content>(
    bytes: usize,
    writing: C::Writing<super::NativeWord>,
    reading: C::Reading<super::NativeWord>,
) -> Result<Ends<C>, BadCapacity> {
    use super::native::{NativeBytes, NativeWord};

    BadCapacity::check(bytes, C::MIN_BYTES)?;
    let (tail, head) = (NativeWord::in_memory(), NativeWord::in_memory());
    let (written, read) = NativeBytes::in_memory(bytes);
    let producer = WritingEnd::with(tail.clone(), head.clone(), written, writing)?;
    Ok((producer, ReadingEnd::with(tail, head, read, reading)?))
}

/// The writing end of a ring of `C`.
#[derive(Debug)]
pub struct WritingEnd<P: Platform, O: Orders, C: Content> {
    pub(super) tail: OwnCursor<P::Word>,
    pub(super) head: PeerCursor<P::Word>,
    pub(super) bytes: P::Bytes,
    /// In positions.
    pub(super) capacity: u64,
    pub(super) writing: C::Writing<P::Word>,
    kind: PhantomData<fn() -> (O, C)>,
}

impl<P: Platform, O: Orders, C: Content> WritingEnd<P, O, C> {
    pub(super) fn with(
        tail: P::Word,
        head: P::Word,
        bytes: P::Bytes,
        writing: C::Writing<P::Word>,
    ) -> Result<Self, BadCapacity> {
        BadCapacity::check(bytes.len(), C::MIN_BYTES)?;
        Ok(WritingEnd {
            tail: OwnCursor::new(tail),
            head: PeerCursor::new(head, Cursor::Head, C::UNIT),
            capacity: (bytes.len() / C::POSITION_BYTES) as u64,
            bytes,
            writing,
            kind: PhantomData,
        })
    }

    /// Makes everything written since the last time visible to the reader, with one store. Returns whether
    /// there was anything; if so, the reader's doorbell is due.
    #[inline]
    pub fn publish(&mut self) -> bool {
        // TAIL release: pairs with `ReadingEnd::is_empty`.
        self.tail.publish(O::TAIL_RELEASE)
    }

    /// Does the same as [`publish`](Self::publish), but only up to `end`, an earlier
    /// [`position`](Self::position). Returns the position up to which the reader can see.
    #[inline]
    pub(crate) fn publish_to(&mut self, end: u64) -> u64 {
        // TAIL release: as above.
        self.tail.publish_to(end, O::TAIL_RELEASE)
    }

    /// Returns whether something was written that the reader cannot see yet.
    #[cfg(any(test, feature = "inside"))]
    #[inline]
    pub fn has_unpublished(&self) -> bool {
        self.tail.at != self.tail.published
    }

    /// Returns the position after the last write. The reader has consumed everything once
    /// [`consumed`](Self::consumed) is at least this.
    #[inline]
    pub fn position(&self) -> u64 {
        self.tail.at
    }

    /// Returns the position up to which the reader has consumed.
    ///
    /// # Errors
    /// [`RingCorrupt`] if its cursor went back, beyond the published position, or inside a record.
    #[inline]
    pub fn consumed(&mut self) -> Result<u64, RingCorrupt> {
        // HEAD acquire: pairs with `ReadingEnd::publish_head`.
        self.head.refresh(O::HEAD_ACQUIRE, self.tail.published)
    }

    /// Returns the number of positions that were written, published or not, and that the reader has not
    /// consumed.
    ///
    /// # Errors
    /// The same as for [`consumed`](Self::consumed).
    #[inline]
    pub fn unconsumed(&mut self) -> Result<u64, RingCorrupt> {
        Ok(self.tail.at - self.consumed()?)
    }
}

#[cfg(any(test, feature = "testing"))]
impl<O: Orders, C: Content> WritingEnd<super::Native, O, C> {
    /// Returns a weak handle on its memory.
    pub(crate) fn memory(&self) -> std::sync::Weak<dyn std::any::Any + Send + Sync> {
        self.bytes.memory()
    }
}

/// The reading end of a ring of `C`. It believes nothing that the peer wrote before it was checked (WIRE-1).
#[derive(Debug)]
pub struct ReadingEnd<P: Platform, O: Orders, C: Content> {
    pub(super) tail: PeerCursor<P::Word>,
    pub(super) head: OwnCursor<P::Word>,
    pub(super) bytes: P::Bytes,
    /// In positions.
    pub(super) capacity: u64,
    pub(super) reading: C::Reading<P::Word>,
    orders: PhantomData<fn() -> O>,
}

impl<P: Platform, O: Orders, C: Content> ReadingEnd<P, O, C> {
    pub(super) fn with(
        tail: P::Word,
        head: P::Word,
        bytes: P::Bytes,
        reading: C::Reading<P::Word>,
    ) -> Result<Self, BadCapacity> {
        BadCapacity::check(bytes.len(), C::MIN_BYTES)?;
        Ok(ReadingEnd {
            tail: PeerCursor::new(tail, Cursor::Tail, C::UNIT),
            head: OwnCursor::new(head),
            capacity: (bytes.len() / C::POSITION_BYTES) as u64,
            bytes,
            reading,
            orders: PhantomData,
        })
    }

    /// Gives the room of everything consumed since the last time back, with one store. Returns whether there
    /// was any.
    #[inline]
    pub fn publish_head(&mut self) -> bool {
        // HEAD release: pairs with `WritingEnd::consumed`.
        self.head.publish(O::HEAD_RELEASE)
    }

    /// Returns whether something was consumed that the writer does not know of yet.
    #[cfg(any(test, feature = "inside"))]
    #[inline]
    pub fn has_unpublished(&self) -> bool {
        self.head.at != self.head.published
    }

    /// Returns the position after the last consumed item.
    #[inline]
    pub fn position(&self) -> u64 {
        self.head.at
    }

    /// Returns the position after the last item that is visible by now.
    ///
    /// # Errors
    /// [`RingCorrupt`] if the writer's cursor cannot be right.
    pub fn written(&mut self) -> Result<u64, RingCorrupt> {
        let limit = self.head.published.saturating_add(self.capacity);
        // TAIL acquire: pairs with `WritingEnd::publish`.
        self.tail.refresh(O::TAIL_ACQUIRE, limit)
    }

    /// Returns whether there is nothing to read. A sleeper calls it for its second look before it sleeps.
    ///
    /// # Errors
    /// [`RingCorrupt`] if the writer's cursor cannot be right.
    #[inline]
    pub fn is_empty(&mut self) -> Result<bool, RingCorrupt> {
        if self.head.at != self.tail.seen {
            return Ok(false);
        }
        // The writer knows only the published head, so it cannot be more than a ring's length beyond that.
        let limit = self.head.published.saturating_add(self.capacity);
        // TAIL acquire: pairs with `WritingEnd::publish`.
        Ok(self.tail.refresh(O::TAIL_ACQUIRE, limit)? == self.head.at)
    }
}

#[cfg(any(test, feature = "testing"))]
impl<O: Orders, C: Content> ReadingEnd<super::Native, O, C> {
    /// Returns a weak handle on its memory.
    pub(crate) fn memory(&self) -> std::sync::Weak<dyn std::any::Any + Send + Sync> {
        self.bytes.memory()
    }
}
