//! The body of a message that is being written. It goes into a buffer. A large list of bytes goes straight
//! into the memory in which the body will travel, so that it is copied there once, without the buffer.
//!
//! All code that encodes for another process uses it.
//!
//! **Invariants.** If there is no such memory, the body goes on in the buffer, and nothing is lost. Until the
//! frame is claimed, only this thread uses the memory.
//!
//! **Locks.** None; the memory comes from a pool, which has its own. **On a panic** and **on cancellation**
//! the memory goes back.

use std::io;

use crate::lease::Lease;
use crate::limits::{MAX_BODY, MAX_INLINE_BODY};
use crate::tensor::TensorMut;

/// A write of this many bytes or more goes past the buffer.
const LARGE: usize = MAX_INLINE_BODY / 2;

/// Room that is kept behind the body: for the rest of the value, as a rule, and for the context of a span.
const SLACK: usize = 4 << 10;

/// Returns host memory of this many bytes, or `None` if there is none.
pub(crate) type Room<'a> = &'a dyn Fn(usize) -> Option<TensorMut>;

/// A body in the memory in which it travels.
#[derive(Debug)]
pub(crate) struct Filled {
    memory: TensorMut,
    len: usize,
}

impl Filled {
    /// Returns the length of the body in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the lease that the body travels as. The memory may be longer than the body.
    pub(crate) fn lease(&self) -> Lease {
        self.memory.lease().clone()
    }

    /// Returns the bytes of the body. Empty if the memory cannot be read, but host memory of this process
    /// always can.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.as_slice::<u8>().ok().and_then(|all| all.get(..self.len)).unwrap_or_default()
    }

    /// Appends bytes. Returns whether there was room.
    pub(crate) fn extend(&mut self, bytes: &[u8]) -> bool {
        let end = self.len + bytes.len();
        let room = self.memory.as_mut_slice::<u8>().ok().and_then(|all| all.get_mut(self.len..end));
        let Some(room) = room else { return false };
        room.copy_from_slice(bytes);
        self.len = end;
        true
    }
}

/// Writes a body.
pub(crate) struct Writer<'a> {
    /// The bytes that are not in the memory: all of them, if there is no memory.
    buffer: Vec<u8>,
    filled: Option<Filled>,
    room: Option<Room<'a>>,
}

impl<'a> Writer<'a> {
    /// Makes a writer. `buffer` must be empty. Without `room` the whole body stays in the buffer.
    pub(crate) fn new(buffer: Vec<u8>, room: Option<Room<'a>>) -> Self {
        Writer { buffer, filled: None, room }
    }

    /// Returns the body in the buffer, or an empty buffer and the body in memory.
    ///
    /// # Errors
    /// As [`write_all`](io::Write::write_all).
    pub(crate) fn finish(mut self) -> io::Result<(Vec<u8>, Option<Filled>)> {
        if self.filled.is_some() {
            self.pass_on(&[])?;
        }
        Ok((self.buffer, self.filled))
    }

    /// Appends the buffer and then `bytes` to the memory, or all of it to the buffer. Fails if bytes that are
    /// already in the memory cannot be read there.
    #[cold]
    fn pass_on(&mut self, bytes: &[u8]) -> io::Result<()> {
        let before = self.filled.as_ref().map_or(0, |filled| filled.len);
        let len = before + self.buffer.len() + bytes.len();
        if len > MAX_INLINE_BODY {
            let has_room = len <= MAX_BODY && self.make_room(len);
            let is_there = has_room
                && self
                    .filled
                    .as_mut()
                    .is_some_and(|filled| filled.extend(&self.buffer) && filled.extend(bytes));
            if is_there {
                self.buffer.clear();
                return Ok(());
            }
            // Memory is asked for only once: a full pool looks at all that it has lent before it refuses.
            self.room = None;
        }
        if let Some(filled) = self.filled.take() {
            // The bytes that went there from the buffer stand behind those that were there before.
            let Some(known) = filled.bytes().get(..before) else {
                return Err(io::Error::other("the host memory of its body cannot be read"));
            };
            let mut all = known.to_vec();
            all.append(&mut self.buffer);
            self.buffer = all;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Makes sure that there is memory for `len` bytes in all, and moves the bytes written so far into it.
    /// Returns whether there is.
    fn make_room(&mut self, len: usize) -> bool {
        let known = self.filled.as_ref().map_or(0, |filled| filled.memory.len());
        if known >= len + SLACK / 2 {
            return true;
        }
        let wanted = (len + SLACK).max(known.saturating_mul(2)).min(MAX_BODY);
        let Some(memory) = self.room.and_then(|room| room(wanted)) else { return false };
        let mut filled = Filled { memory, len: 0 };
        let is_moved = self.filled.as_ref().is_none_or(|before| filled.extend(before.bytes()));
        if is_moved {
            self.filled = Some(filled);
        }
        is_moved
    }
}

impl io::Write for Writer<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    #[inline]
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() < LARGE || self.room.is_none() {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        self.pass_on(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::cell::Cell;
    use std::io::Write;

    use super::*;
    use crate::message::codec;
    use crate::message::packed::Lists;
    use crate::tensor::DType;
    use crate::testing::Cluster;

    /// Writes pieces of these lengths, with memory for `times` requests. Returns whether the body was written
    /// to memory.
    fn written(pieces: &[usize], times: usize) -> bool {
        let cluster = Cluster::new(1);
        let stream = cluster.stream(0);
        let left = Cell::new(times);
        let room = |bytes: usize| {
            let more = left.get().checked_sub(1)?;
            left.set(more);
            stream.empty(DType::U8, &[bytes]).ok()
        };
        let mut writer = Writer::new(Vec::new(), Some(&room));
        let mut all = Vec::new();
        for (number, bytes) in pieces.iter().enumerate() {
            let piece: Vec<u8> = (0..*bytes).map(|at| (at * 7 + number) as u8).collect();
            writer.write_all(&piece).expect("it is memory");
            all.extend(piece);
        }
        let (buffer, filled) = writer.finish().expect("it is memory");
        match &filled {
            Some(filled) => assert!(filled.bytes() == all && buffer.is_empty()),
            None => assert!(buffer == all),
        }
        filled.is_some()
    }

    #[test]
    fn a_large_list_goes_past_the_buffer_with_what_stands_around_it() {
        assert!(written(&[3, 1 << 20, 5], 1));
        assert!(written(&[3, 1 << 20, 40, 100_000, 7], 2), "it grows");
        assert!(!written(&[3, MAX_INLINE_BODY / 2, 5], 1), "what fits a frame stays in it");
        assert!(written(&[3, LARGE, LARGE, 5], 1), "two that do not");
        assert!(!written(&[1000; 300], 1), "many small ones make no list");
    }

    /// A reply that waits is encoded so: it has the same body, and takes no memory.
    #[test]
    fn a_body_goes_back_into_its_buffer() {
        let cluster = Cluster::new(1);
        let stream = cluster.stream(0);
        let room = |bytes: usize| stream.empty(DType::U8, &[bytes]).ok();
        let value = ("before", vec![3_u8; 200_000], "behind");
        let lists = Lists::Packed;
        let encoded =
            codec::encode_for_peer(&value, Vec::new(), lists, Some(&room), cluster.transport(0).domain());
        let encoded = encoded.expect("it is written");
        assert!(encoded.filled.is_some() && encoded.body.is_empty() && !encoded.is_plain());
        assert_eq!(stream.pool().stats().allocations, 1);
        let bytes = encoded.body_len();
        let encoded = encoded.into_buffer();
        let known = codec::encode_as(&value, Vec::new(), lists).expect("it is written");
        assert!(encoded.filled.is_none() && encoded.body == known.body && encoded.body_len() == bytes);
        assert_eq!(stream.pool().stats().allocations, 0);
    }

    #[test]
    fn a_full_pool_is_asked_once() {
        let asked = Cell::new(0);
        let room = |_| {
            asked.set(asked.get() + 1);
            None
        };
        let mut writer = Writer::new(Vec::new(), Some(&room));
        for _ in 0..10 {
            writer.write_all(&[1; LARGE]).expect("it is memory");
        }
        let (buffer, filled) = writer.finish().expect("it is memory");
        assert!(buffer.len() == 10 * LARGE && filled.is_none());
        assert_eq!(asked.get(), 1);
    }

    #[test]
    fn without_memory_all_of_it_is_in_the_buffer() {
        assert!(!written(&[3, 1 << 20, 5], 0));
        assert!(!written(&[3, 1 << 20, 5, 3 << 20, 9], 1), "it does not grow");
        assert!(!written(&[3, 1 << 20, 70_000 - 40_000, 30_000, 30_000], 1), "nor at its end");
    }
}
