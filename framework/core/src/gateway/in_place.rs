//! Host memory of a message that comes, into which the lanes write at the same time, each its own pieces.
//!
//! Used by the [`Store`](super::store::Store). A lane copies a piece without any lock; under one it only says
//! which bytes it writes.
//!
//! **Invariants.** No byte is written by two at a time: the session gives each piece to one lane, and whoever
//! comes with bytes that another writes is turned away here. The memory goes to its message when no lane has
//! it any more. **Locks.** That of what is being written, under which nothing waits.

#![expect(unsafe_code, reason = "disjoint parts of one allocation, written by several threads")]

use std::ops::Range;
use std::sync::Arc;

use bytes::Buf;
use parking_lot::Mutex;
use tensorpost_hosts::net::Parts;

use crate::tensor::{TensorError, TensorMut};

/// See the module.
#[derive(Debug)]
pub(super) struct InPlace {
    owner: Owner,
    /// Of its first byte, and as many as it has.
    address: usize,
    bytes: usize,
    /// What is written now: no more than there are lanes.
    writing: Mutex<Vec<Range<usize>>>,
}

/// Whose memory it is, which nobody touches but by the address until it is taken out.
#[derive(Debug)]
enum Owner {
    Tensor(TensorMut),
    Body(Vec<u8>),
}

impl InPlace {
    /// The memory of a tensor that is new.
    ///
    /// # Errors
    /// It is not packed, or not there to be written.
    pub(super) fn tensor(mut tensor: TensorMut) -> Result<Arc<Self>, TensorError> {
        let memory = tensor.packed_bytes_mut()?;
        let (address, bytes) = (memory.as_mut_ptr().expose_provenance(), memory.len());
        Ok(Self::of(Owner::Tensor(tensor), address, bytes))
    }

    /// The memory of a large body.
    pub(super) fn body(bytes: usize) -> Arc<Self> {
        let mut body = vec![0; bytes];
        let address = body.as_mut_ptr().expose_provenance();
        Self::of(Owner::Body(body), address, bytes)
    }

    fn of(owner: Owner, address: usize, bytes: usize) -> Arc<Self> {
        Arc::new(InPlace { owner, address, bytes, writing: Mutex::default() })
    }

    /// Copies a piece to where it belongs; not what the memory does not have, nor what another lane is
    /// writing. The session has looked at both.
    pub(super) fn write(&self, offset: u64, piece: &Parts) {
        let Some(range) = usize::try_from(offset).ok().and_then(|start| {
            let end = start.checked_add(piece.remaining())?;
            (end <= self.bytes).then_some(start..end)
        }) else {
            return;
        };
        {
            let mut writing = self.writing.lock();
            if writing.iter().any(|other| other.start < range.end && range.start < other.end) {
                return;
            }
            writing.push(range.clone());
        }
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.address);
        let mut at = range.start;
        for part in piece.iter() {
            // SAFETY: the parts have as many bytes as the range together, which lies in the owner's memory.
            // That is there, and unmoved, for as long as `self`; nobody reads or writes it by its owner
            // before that was taken out of `self`, and nobody else writes this range, which is in `writing`.
            // The parts are other memory: they were here before the range was given out.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), start.add(at), part.len()) };
            at += part.len();
        }
        self.writing.lock().retain(|other| *other != range);
    }

    /// The tensor, when nobody writes it any more: all its pieces have landed.
    pub(super) fn into_tensor(self: Arc<Self>) -> Option<TensorMut> {
        match Arc::into_inner(self)?.owner {
            Owner::Tensor(tensor) => Some(tensor),
            Owner::Body(_) => None,
        }
    }

    /// The body, as [`into_tensor`](Self::into_tensor).
    pub(super) fn into_body(self: Arc<Self>) -> Option<Vec<u8>> {
        match Arc::into_inner(self)?.owner {
            Owner::Body(body) => Some(body),
            Owner::Tensor(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use bytes::Bytes;

    use super::*;

    #[test]
    fn lanes_write_one_body_at_the_same_time() {
        const PIECE: usize = 64;
        let (body, together) = (InPlace::body(8 * PIECE), Barrier::new(4));
        std::thread::scope(|scope| {
            for lane in 0..4_usize {
                let (body, together) = (&body, &together);
                scope.spawn(move || {
                    together.wait();
                    for piece in [lane, lane + 4] {
                        body.write(
                            (piece * PIECE) as u64,
                            &Parts::from(Bytes::from(vec![piece as u8 + 1; PIECE])),
                        );
                    }
                });
            }
        });
        let written = body.into_body().expect("nobody writes");
        let expected: Vec<u8> = (0..8).flat_map(|piece| [piece + 1; PIECE]).collect();
        assert_eq!(written, expected);
    }

    #[test]
    fn nothing_is_written_beside_it_or_twice_at_a_time() {
        let body = InPlace::body(8);
        for offset in [5, 8, u64::MAX] {
            body.write(offset, &Parts::from(Bytes::from_static(&[1; 4])));
        }
        body.writing.lock().push(2..4);
        body.write(0, &Parts::from(Bytes::from_static(&[2; 3])));
        body.write(3, &Parts::from(Bytes::from_static(&[3; 1])));
        body.write(4, &Parts::from(Bytes::from_static(&[4; 4])));
        body.writing.lock().clear();
        let lane = Arc::clone(&body);
        assert!(body.into_body().is_none(), "a lane has it");
        assert_eq!(lane.into_body().as_deref(), Some(&[0, 0, 0, 0, 4, 4, 4, 4][..]));
    }
}
