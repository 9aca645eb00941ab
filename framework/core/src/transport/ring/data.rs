//! The data ring: records of any length from one process to another, in order.
//!
//! Layout (ONE-WRITER): the tail and the bytes are on the producer's pages, the head is on the consumer's. If
//! the producer dies, the records that it had published stay readable, and unpublished ones were never there.
//! If the consumer dies, the ring fills up and the producer sees [`RingError::Full`] until it is told of the
//! death. There is nothing to cancel: no call waits.
//!
//! Positions count bytes since the beginning and never wrap; the low bits of a position are the offset. A
//! record is contiguous: a header of 8 bytes (length, marker), the payload, and up to 7 bytes to the next
//! multiple of 8. If a record does not fit before the end of the ring, a pad leads to the beginning; both
//! become visible together. A record with its header takes at most half the ring, so the pad and the record
//! always fit an empty one.
//!
//! The producer may continue in other memory that both have mapped ([`Producer::move_to`],
//! [`Consumer::follow`]). A header with a marker of its own is then the last item in the old memory.

use std::fmt::Debug;

use super::ends::{Content, ReadingEnd, WritingEnd};
use super::error::{BadCapacity, RingCorrupt, RingError};
use super::native::Native;
use super::platform::{Bytes, Orders, Platform, Sound, Word};

const HEADER: u64 = 8;
const UNIT: u64 = 8;
/// Markers that occur neither in zeroed memory nor in text.
const RECORD: u32 = 0xB10C_DA7A;
const PAD: u32 = 0xB10C_0FAD;
/// After this marker the ring continues in other memory.
const MOVED: u32 = 0xB10C_60E5;

#[inline]
fn header(length: u64, marker: u32) -> u64 {
    (u64::from(marker) << 32) | length
}

/// Returns the bytes that a record with a payload of `len` takes.
#[inline]
fn footprint(len: u64) -> u64 {
    HEADER + len.next_multiple_of(UNIT)
}

/// Returns the largest payload, in bytes, of a ring of `capacity` bytes.
pub const fn max_payload(capacity: usize) -> usize {
    capacity / 2 - HEADER as usize
}

/// Makes a ring of `capacity` bytes between two threads of this process.
///
/// # Errors
/// [`BadCapacity`](super::BadCapacity) unless `capacity` is a power of two of a sensible size.
#[cfg(any(test, feature = "inside"))]
pub fn in_memory(capacity: usize) -> Result<(Producer, Consumer), BadCapacity> {
    super::ends::in_memory(capacity, 0, 0)
}

/// Records in a ring; positions count bytes.
#[derive(Debug)]
pub enum Records {}

impl Content for Records {
    const POSITION_BYTES: usize = 1;
    const UNIT: u64 = UNIT;
    // Two records with some payload.
    const MIN_BYTES: usize = 32;
    /// The position at which it began to write its present memory.
    type Writing<W: Word + Debug> = u64;
    /// The end of the record that was peeked; the head if none was.
    type Reading<W: Word + Debug> = u64;
}

/// The writing end.
pub type Producer<P = Native, O = Sound> = WritingEnd<P, O, Records>;

impl<P: Platform, O: Orders> Producer<P, O> {
    /// Makes the writing end of a fresh ring. It stores to `tail` and `bytes`, and loads the peer's `head`.
    /// Both words are zero.
    ///
    /// # Errors
    /// [`BadCapacity`] unless `bytes` is a power of two of a sensible size.
    pub fn new(tail: P::Word, head: P::Word, bytes: P::Bytes) -> Result<Self, BadCapacity> {
        Self::with(tail, head, bytes, 0)
    }

    /// Returns an upper limit of the bytes of its memory that it has written to or skipped.
    pub fn touched(&self) -> usize {
        (self.tail.at - self.writing).min(self.capacity) as usize
    }

    /// Reserves room for a record with a payload of `len` bytes. Dropping the reservation leaves nothing
    /// behind.
    ///
    /// # Errors
    /// [`RingError::Full`] if the consumer has to make room first: [`publish`](Self::publish), then wait for
    /// it. [`RingError::TooLarge`] above [`max_payload`]. [`RingError::Corrupt`] if the consumer's cursor is
    /// wrong.
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<Reservation<'_, P, O>, RingError> {
        let max = max_payload(self.capacity as usize);
        if len > max {
            return Err(RingError::TooLarge { len, max });
        }
        let size = footprint(len as u64);
        let to_end = self.capacity - self.offset();
        let pad = if size > to_end { to_end } else { 0 };
        if pad + size > self.capacity - (self.tail.at - self.head.seen) {
            self.consumed()?;
            if pad + size > self.capacity - (self.tail.at - self.head.seen) {
                return Err(RingError::Full);
            }
        }
        let start = if pad == 0 { self.offset() } else { 0 };
        Ok(Reservation { pad, payload: (start + HEADER) as usize, len, ring: self })
    }

    /// Returns whether at least `bytes` bytes are free, headers and pads included. Loads the consumer's
    /// cursor only if its last value is not enough, because the consumer writes that cache line.
    ///
    /// # Errors
    /// The same as for [`consumed`](Self::consumed).
    #[inline]
    pub fn has_free(&mut self, bytes: usize) -> Result<bool, RingCorrupt> {
        let known = self.capacity - (self.tail.at - self.head.seen);
        Ok(bytes as u64 <= known || bytes <= self.free()?)
    }

    /// Returns the bytes that are free now, headers and pads included.
    ///
    /// # Errors
    /// The same as for [`consumed`](Self::consumed).
    pub fn free(&mut self) -> Result<usize, RingCorrupt> {
        Ok((self.capacity - self.unconsumed()?) as usize)
    }

    /// Continues in `bytes`, which nobody has written or read, from the next record on, and returns the
    /// memory that it leaves. The consumer learns of it in order, with the next [`publish`](Self::publish),
    /// and [follows](Consumer::follow).
    ///
    /// # Errors
    /// `bytes` comes back if the consumer is not known to have read everything, or if they have another
    /// length. Nothing has changed then.
    pub fn move_to(&mut self, bytes: P::Bytes) -> Result<P::Bytes, P::Bytes> {
        // An empty ring has room for the mark.
        if self.tail.at != self.head.seen || bytes.len() != self.bytes.len() {
            return Err(bytes);
        }
        self.bytes.write_word(self.offset() as usize, header(0, MOVED));
        self.tail.at += HEADER;
        self.writing = self.tail.at;
        Ok(std::mem::replace(&mut self.bytes, bytes))
    }

    #[inline]
    fn offset(&self) -> u64 {
        self.tail.at & (self.capacity - 1)
    }
}

/// Room for one record, which [`commit`](Self::commit) makes from it.
#[derive(Debug)]
#[must_use = "a reservation that is dropped leaves no record"]
pub struct Reservation<'a, P: Platform = Native, O: Orders = Sound> {
    ring: &'a mut Producer<P, O>,
    /// Bytes from the tail to the end of the ring that this record has to skip.
    pad: u64,
    /// Offset of the payload.
    payload: usize,
    len: usize,
}

impl<P: Platform, O: Orders> Reservation<'_, P, O> {
    /// Copies `bytes` into the payload, `offset` bytes from its beginning. Bytes that are never written keep
    /// the content of an earlier record.
    ///
    /// # Panics
    /// If that goes beyond the reserved length.
    #[inline]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(
            offset <= self.len && bytes.len() <= self.len - offset,
            "bytes {offset}+{} are outside a reservation of {}",
            bytes.len(),
            self.len
        );
        self.ring.bytes.write(self.payload + offset, bytes);
    }

    /// Returns the length of the payload, in bytes.
    #[cfg(any(test, feature = "inside"))]
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "it is the length of what will be, not of what is there")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Makes it the next record, visible with the next [`Producer::publish`], and returns the position of its
    /// end.
    #[inline]
    pub fn commit(self) -> u64 {
        let ring = self.ring;
        if self.pad != 0 {
            ring.bytes.write_word(ring.offset() as usize, header(self.pad - HEADER, PAD));
        }
        ring.bytes.write_word(self.payload - HEADER as usize, header(self.len as u64, RECORD));
        ring.tail.at += self.pad + footprint(self.len as u64);
        ring.tail.at
    }
}

/// The reading end.
pub type Consumer<P = Native, O = Sound> = ReadingEnd<P, O, Records>;

impl<P: Platform, O: Orders> Consumer<P, O> {
    /// Makes the reading end of a fresh ring. It stores to `head`, and loads the peer's `tail` and `bytes`.
    /// Both words are zero.
    ///
    /// # Errors
    /// [`BadCapacity`] unless `bytes` is a power of two of a sensible size.
    pub fn new(tail: P::Word, head: P::Word, bytes: P::Bytes) -> Result<Self, BadCapacity> {
        Self::with(tail, head, bytes, 0)
    }

    /// Copies the next record's payload into `out`, in place of the old content, and returns the position of
    /// its end. Returns `None`, and leaves `out` as it was, if nothing was published. The record stays the
    /// next one until [`consume`](Self::consume).
    ///
    /// The record is copied before any of it is read, so a peer that changes it at the same time cannot make
    /// it pass a check and then change it.
    ///
    /// # Errors
    /// [`RingCorrupt`] if the peer's cursor or the record's header cannot be right; `out` is as it was. At
    /// [`RingCorrupt::Moved`], a caller that has the memory to which the producer has moved can
    /// [`follow`](Self::follow) it.
    #[inline]
    pub fn peek(&mut self, out: &mut Vec<u8>) -> Result<Option<u64>, RingCorrupt> {
        if self.is_empty()? {
            return Ok(None);
        }
        let mut at = self.head.at;
        let (mut length, mut marker) = self.header(at);
        if marker == PAD {
            at = self.skip_pad(at, length)?;
            (length, marker) = self.header(at);
        }
        if marker != RECORD {
            // A move is not valid after a pad, which always leads to a record.
            let moved = marker == MOVED && length == 0 && at == self.head.at;
            return Err(if moved { RingCorrupt::Moved { at } } else { RingCorrupt::Marker { at, marker } });
        }
        // Both ends of the room are multiples of 8, so a length that fits fits rounded up.
        let room = (self.tail.seen - at).min(self.capacity - self.offset(at)).min(self.capacity / 2) - HEADER;
        if u64::from(length) > room {
            return Err(RingCorrupt::Length { at, length, limit: room });
        }
        // Keeps the old content, so that a reused buffer is not zeroed again.
        out.resize(length as usize, 0);
        self.bytes.read((self.offset(at) + HEADER) as usize, out);
        self.reading = at + footprint(u64::from(length));
        Ok(Some(self.reading))
    }

    /// Moves past the mark that was found by [`peek`](Self::peek) as [`RingCorrupt::Moved`], and reads on in
    /// `bytes`, the memory that the producer has moved to. Returns the memory that is left.
    pub fn follow(&mut self, bytes: P::Bytes) -> P::Bytes {
        debug_assert_eq!(bytes.len(), self.bytes.len(), "a ring moves to memory of its own length");
        self.head.at += HEADER;
        self.reading = self.head.at;
        std::mem::replace(&mut self.bytes, bytes)
    }

    /// Moves past the record that was [`peek`](Self::peek)ed, and returns the position. Without one, nothing
    /// moves. The producer learns of it by [`publish_head`](Self::publish_head).
    #[inline]
    pub fn consume(&mut self) -> u64 {
        self.head.at = self.reading;
        self.reading
    }

    /// Returns the position after the pad at `at`, where there has to be a record.
    #[cold]
    fn skip_pad(&self, at: u64, length: u32) -> Result<u64, RingCorrupt> {
        let to_end = self.capacity - self.offset(at);
        let leads_to_a_record = HEADER + u64::from(length) == to_end && to_end < self.tail.seen - at;
        // Only a record, never a pad, starts at the beginning of the ring.
        if self.offset(at) == 0 || !leads_to_a_record {
            return Err(RingCorrupt::Pad { at, length });
        }
        Ok(at + to_end)
    }

    #[inline]
    fn header(&self, at: u64) -> (u32, u32) {
        let word = self.bytes.read_word(self.offset(at) as usize);
        (word as u32, (word >> 32) as u32)
    }

    #[inline]
    fn offset(&self, at: u64) -> u64 {
        at & (self.capacity - 1)
    }
}
