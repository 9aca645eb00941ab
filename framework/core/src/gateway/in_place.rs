//! Host memory of an arriving message. Lanes write their own pieces into it at the same time.
//!
//! Used by the [`Store`](super::store::Store). A lane copies its piece without a lock; it takes one only to
//! record which bytes it writes.
//!
//! **Invariants.** No two lanes write the same byte at a time. The session gives each piece to one lane, and
//! a write that overlaps another is turned away here. The memory goes to its message when no lane holds it
//! any more. **Locks.** That of the ranges being written, a leaf.

#![expect(unsafe_code, reason = "disjoint parts of one allocation, written by several threads")]

use std::ops::Range;
use std::sync::Arc;

use bytes::Buf;
use parking_lot::Mutex;
use tensorpost_hosts::net::Parts;

use crate::tensor::{TensorError, TensorMut};

/// Memory that lanes fill in place; see the module.
#[derive(Debug)]
pub(super) struct InPlace {
    owner: Owner,
    /// The address of its first byte, and its length in bytes.
    address: usize,
    bytes: usize,
    /// The ranges being written now: at most one per lane.
    writing: Mutex<Vec<Range<usize>>>,
}

/// The owner of the memory. Until it is taken out, the memory is accessed only by its address.
#[derive(Debug)]
enum Owner {
    Tensor(TensorMut),
    Body(Vec<u8>),
}

impl InPlace {
    /// Takes the memory of a new tensor.
    ///
    /// # Errors
    /// The tensor is not packed, or cannot be written yet.
    pub(super) fn tensor(mut tensor: TensorMut) -> Result<Arc<Self>, TensorError> {
        let memory = tensor.packed_bytes_mut()?;
        let (address, bytes) = (memory.as_mut_ptr().expose_provenance(), memory.len());
        Ok(Self::of(Owner::Tensor(tensor), address, bytes))
    }

    /// Allocates the memory of a large body.
    pub(super) fn body(bytes: usize) -> Arc<Self> {
        let mut body = vec![0; bytes];
        let address = body.as_mut_ptr().expose_provenance();
        Self::of(Owner::Body(body), address, bytes)
    }

    fn of(owner: Owner, address: usize, bytes: usize) -> Arc<Self> {
        Arc::new(InPlace { owner, address, bytes, writing: Mutex::default() })
    }

    /// Copies a piece to its place. Ignores a piece that lies outside the memory, or overlaps one that
    /// another lane is writing; the session has checked both already.
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
            // SAFETY: the parts together have as many bytes as the range, which lies in the owner's memory.
            // That memory stays in place as long as `self` does, and nobody uses it through the owner before
            // the owner is taken out of `self`. Nobody else writes this range, because it is in `writing`.
            // The parts are other memory: they existed before the range was given out.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), start.add(at), part.len()) };
            at += part.len();
        }
        self.writing.lock().retain(|other| *other != range);
    }

    /// Returns the tensor, if nobody writes it any more: all its pieces have landed.
    pub(super) fn into_tensor(self: Arc<Self>) -> Option<TensorMut> {
        match Arc::into_inner(self)?.owner {
            Owner::Tensor(tensor) => Some(tensor),
            Owner::Body(_) => None,
        }
    }

    /// Returns the body, as [`into_tensor`](Self::into_tensor) does.
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
