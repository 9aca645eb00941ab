//! The pieces of allocations that have a writer in this process: the guard of split tensors.
//!
//! A split tensor has one lease and several writers, each of its own piece. Within a process only this list
//! says which pieces those are. A piece is entered when it is made or arrives, and leaves when it is sent on,
//! joined or dropped. A piece that would give anything a second writer is refused, regardless of its sender:
//! the same piece twice, a piece of another split, or one that overlaps (ONE-WRITER, WIRE-1). Areas are
//! indices, and say which bytes they cover only together with the whole's layout. So all pieces of an
//! allocation must describe the whole in the same way.
//!
//! **On a crash** of another process nothing changes here: the pieces that it held are not in this list.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::LeaseId;

/// A box of indices, one range per axis of the whole. No range is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Area(SmallVec<[Range<usize>; 4]>);

impl Area {
    /// Makes the area of the indices in all of `ranges`; returns `None` if one of them is empty.
    pub fn new(ranges: impl IntoIterator<Item = Range<usize>>) -> Option<Self> {
        let ranges: SmallVec<[Range<usize>; 4]> = ranges.into_iter().collect();
        (!ranges.iter().any(Range::is_empty)).then_some(Area(ranges))
    }

    /// Returns one range per axis.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.0
    }

    /// Returns the number of indices, or `None` if `usize` cannot represent it.
    pub fn indices(&self) -> Option<usize> {
        self.0.iter().try_fold(1, |product: usize, range| product.checked_mul(range.len()))
    }

    /// Returns whether some index is in both. Areas of different ranks belong to different tensors, and count
    /// as meeting.
    pub fn meets(&self, other: &Area) -> bool {
        self.0.len() != other.0.len()
            || self.0.iter().zip(&other.0).all(|(a, b)| a.start < b.end && b.start < a.end)
    }
}

/// One piece of a split allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The split that it belongs to.
    pub seal: u64,
    /// Its number within the split.
    pub index: u32,
    /// The indices of the whole tensor that it covers.
    pub area: Area,
}

/// Why a piece cannot be given a writer here: the piece, or part of it, already has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Clash {
    /// The same piece twice.
    #[error("part {index} of the tensor is in this process already")]
    Doubled {
        /// Its number.
        index: u32,
    },
    /// This process has pieces of another split of the same memory.
    #[error("part {index} is of another split than the parts of the same memory that are in this process")]
    OtherSplit {
        /// Its number.
        index: u32,
    },
    /// It shares elements with another piece.
    #[error("part {index} overlaps part {with} of the same tensor, which is in this process")]
    Overlaps {
        /// Its number.
        index: u32,
        /// The piece that is here already.
        with: u32,
    },
}

/// The pieces that have a writer in this process.
#[derive(Debug, Default)]
pub struct Writers {
    by_lease: Mutex<HashMap<LeaseId, Split>>,
    /// Its length, so that a process without parts takes no lock to see that it has none.
    count: AtomicUsize,
}

/// An allocation with pieces here.
#[derive(Debug)]
struct Split {
    /// The whole, as all of them describe it.
    whole: Box<[u8]>,
    pieces: Vec<Piece>,
}

impl Writers {
    /// Enters `pieces` of one allocation, all or none. The caller has checked that the pieces of one call do
    /// not meet. `whole` is the tensor that they are pieces of, in a form of which each tensor of the
    /// allocation has one.
    ///
    /// # Errors
    /// One of them has a writer already.
    pub fn enter(
        &self,
        id: LeaseId,
        whole: &[u8],
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Result<(), Clash> {
        let mut by_lease = self.by_lease.lock();
        let of = by_lease.entry(id).or_insert_with(|| Split { whole: whole.into(), pieces: Vec::new() });
        let before = of.pieces.len();
        for piece in pieces {
            let clash = if *of.whole == *whole {
                of.pieces[..before].iter().find_map(|there| clash(&piece, there))
            } else {
                // Its area may cover bytes of pieces whose areas it does not meet.
                Some(Clash::OtherSplit { index: piece.index })
            };
            if let Some(clash) = clash {
                of.pieces.truncate(before);
                if before == 0 {
                    by_lease.remove(&id);
                }
                return Err(clash);
            }
            of.pieces.push(piece);
        }
        self.count.store(by_lease.len(), Ordering::Release);
        Ok(())
    }

    /// Returns whether some piece of an allocation has a writer here.
    #[inline]
    pub fn has(&self, id: LeaseId) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.by_lease.lock().contains_key(&id)
    }

    /// Removes a piece that has left this process or whose writer has ended.
    pub fn leave(&self, id: LeaseId, seal: u64, index: u32) {
        let mut by_lease = self.by_lease.lock();
        let Some(of) = by_lease.get_mut(&id) else { return };
        if let Some(at) = of.pieces.iter().position(|piece| piece.seal == seal && piece.index == index) {
            of.pieces.swap_remove(at);
        }
        if of.pieces.is_empty() {
            by_lease.remove(&id);
            self.count.store(by_lease.len(), Ordering::Release);
        }
    }

    /// Returns how many allocations have pieces here.
    #[cfg(any(test, feature = "testing"))]
    pub fn allocations(&self) -> usize {
        self.by_lease.lock().len()
    }
}

fn clash(new: &Piece, there: &Piece) -> Option<Clash> {
    let index = new.index;
    if new.seal != there.seal {
        Some(Clash::OtherSplit { index })
    } else if index == there.index {
        Some(Clash::Doubled { index })
    } else if new.area.meets(&there.area) {
        Some(Clash::Overlaps { index, with: there.index })
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ChunkId, ProcessId};

    /// Stands for the whole of all these pieces.
    const WHOLE: &[u8] = b"[4, 4]";

    fn id(entry: u32) -> LeaseId {
        LeaseId { chunk: ChunkId { owner: ProcessId::NODE, index: 0 }, entry, generation: 1 }
    }

    fn piece(seal: u64, index: u32, ranges: [Range<usize>; 2]) -> Piece {
        Piece { seal, index, area: Area::new(ranges).expect("not empty") }
    }

    #[test]
    fn an_area_meets_what_shares_an_index() {
        let area = |ranges: [Range<usize>; 2]| Area::new(ranges).expect("not empty");
        let middle = area([2..4, 2..4]);
        assert_eq!(middle.indices(), Some(4));
        for (other, meets) in [
            ([0..8, 0..8], true),
            ([3..9, 3..4], true),
            ([2..3, 3..4], true),
            ([0..2, 2..4], false),
            ([4..5, 2..4], false),
            ([2..4, 0..2], false),
            ([2..4, 4..9], false),
            ([0..2, 4..9], false),
        ] {
            let other = area(other);
            assert_eq!((middle.meets(&other), other.meets(&middle)), (meets, meets), "{other:?}");
        }
        assert_eq!(Area::new([0..4, 2..2]), None, "an empty range");
        assert!(middle.meets(&Area::new(std::iter::once(8..9)).expect("not empty")), "another tensor's");
        assert_eq!(Area::new([0..usize::MAX, 0..2]).expect("not empty").indices(), None);
        assert_eq!(Area::new([]).expect("a scalar").indices(), Some(1));
    }

    /// ONE-WRITER: each piece is in this process at most once.
    #[test]
    fn a_piece_has_one_writer_and_another_when_that_one_has_left() {
        let writers = Writers::default();
        let (left, right) = (piece(7, 0, [0..4, 0..2]), piece(7, 1, [0..4, 2..4]));
        assert!(!writers.has(id(1)));
        writers.enter(id(1), WHOLE, [left.clone(), right.clone()]).expect("nobody is there");
        assert!(writers.has(id(1)) && !writers.has(id(2)));
        assert_eq!(writers.enter(id(1), WHOLE, [right.clone()]), Err(Clash::Doubled { index: 1 }));
        let forged = piece(7, 2, [3..4, 1..2]);
        assert_eq!(writers.enter(id(1), WHOLE, [forged]), Err(Clash::Overlaps { index: 2, with: 0 }));
        assert_eq!(
            writers.enter(id(1), WHOLE, [piece(8, 3, [9..10, 0..1])]),
            Err(Clash::OtherSplit { index: 3 })
        );
        writers.enter(id(2), WHOLE, [piece(8, 0, [0..4, 0..2])]).expect("another allocation");

        // Seen as another tensor, the memory has other bytes at the same indices.
        let elsewhere = piece(7, 2, [9..10, 0..1]);
        let refused = writers.enter(id(1), b"[2, 8]", [elsewhere]);
        assert_eq!(refused, Err(Clash::OtherSplit { index: 2 }));

        // All or none: the first of the two would have been accepted.
        writers.leave(id(1), 7, 1);
        assert_eq!(
            writers.enter(id(1), WHOLE, [right.clone(), left.clone()]),
            Err(Clash::Doubled { index: 0 })
        );
        writers.enter(id(1), WHOLE, [right]).expect("it was not entered");
        for index in [0, 1] {
            writers.leave(id(1), 7, index);
        }
        writers.leave(id(1), 7, 1);
        writers.leave(id(2), 8, 0);
        assert_eq!(writers.allocations(), 0, "nothing is kept of what is over");
    }
}
