//! Making a tensor whole again.

use super::seal::seal;
use super::{Claim, DeviceStream, Inner, TensorError, TensorMut, TensorPart};
use crate::clock::Ticket;
use crate::lease::LeaseId;
use crate::tensor::host::in_reach;
use crate::tensor::nodes::check_node;
use crate::tensor::{DType, Layout};

/// The reason why parts were not joined, and the parts, unchanged and in the order in which they came.
#[derive(Debug, thiserror::Error)]
#[error("the parts cannot be joined: {why}")]
#[non_exhaustive]
pub struct JoinError {
    /// The parts.
    pub parts: Vec<TensorPart>,
    /// The reason.
    pub why: JoinReason,
}

/// Why parts cannot be joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinReason {
    /// There is no part at all.
    #[error("there are none")]
    Nothing,
    /// Some parts are missing.
    #[error(
        "of {count} parts, number {missing:?} is missing (counted from 0): it is elsewhere, or it went with a process \
         that died or a message that was not delivered"
    )]
    Missing {
        /// Their numbers.
        missing: Vec<usize>,
        /// How many there are in all.
        count: usize,
    },
    /// A part belongs to another tensor, or to another split of this one.
    #[error(
        "what was given at position {position} is part of another tensor, or of another split of this one"
    )]
    Foreign {
        /// Its position in the list.
        position: usize,
    },
    /// A part is there twice.
    #[error("part {index} is there twice; somebody made it up")]
    Doubled {
        /// Its number.
        index: usize,
    },
    /// They are not the parts that the tensor was split into, though they say so.
    #[error("one of them was made up: together they do not have the seal of the split that they name")]
    Forged,
    /// The stream could not be put behind the work on the parts.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// A part as the check sees it.
struct Given<'p> {
    id: LeaseId,
    dtype: DType,
    whole: &'p Layout,
    claim: Claim,
}

impl TensorMut {
    /// Makes a tensor whole again from all its parts, in any order, in the process that has them. No byte is
    /// copied. Later work on `stream`'s stream comes after everything that any process did with the parts
    /// (CLOCK-1, CLOCK-2). An example is at [`TensorPart`].
    ///
    /// # Errors
    /// [`JoinError`] gives the parts back and says which are missing, foreign or there twice.
    pub fn join(
        parts: impl IntoIterator<Item = TensorPart>,
        stream: &DeviceStream,
    ) -> Result<TensorMut, JoinError> {
        let parts: Vec<TensorPart> = parts.into_iter().collect();
        match check(&parts).and_then(|()| put_behind(&parts, stream)) {
            Ok(()) => {}
            Err(why) => return Err(JoinError { parts, why }),
        }
        let Some(Inner { lease, address, dtype, whole, .. }) = parts.first().map(|part| &**part.inner())
        else {
            return Err(JoinError { parts, why: JoinReason::Nothing });
        };
        // One lease stays. Those of the other parts go back to the owner as they drop (LEASE-2).
        lease.written_on(stream.clocked());
        lease.set_home(stream.clocked());
        let (lease, address, dtype, whole) = (lease.clone(), *address, *dtype, *whole);
        drop(parts);
        lease.set_whole();
        Ok(TensorMut::from_parts(lease, address, dtype, whole, None))
    }
}

/// Makes `stream`'s stream wait for all earlier work on the parts.
fn put_behind(parts: &[TensorPart], stream: &DeviceStream) -> Result<(), JoinReason> {
    for part in parts {
        check_node(part.lease(), stream.clocked())?;
        in_reach(part.device(), stream)?;
    }
    let uses: Vec<Ticket> = parts.iter().flat_map(|part| part.inner().last_uses()).collect();
    stream.clocked().wait(uses).map_err(TensorError::from)?;
    Ok(())
}

fn check(parts: &[TensorPart]) -> Result<(), JoinReason> {
    let given: Vec<Given<'_>> = parts
        .iter()
        .map(|part| {
            let inner = part.inner();
            Given { id: inner.lease().id(), dtype: inner.dtype(), whole: inner.whole(), claim: inner.claim() }
        })
        .collect();
    verify(&given)
}

/// Checks that these are all parts of one split, each once, so that the joiner becomes the one writer
/// (ONE-WRITER).
fn verify(given: &[Given<'_>]) -> Result<(), JoinReason> {
    let first = given.first().ok_or(JoinReason::Nothing)?;
    let count = first.claim.count as usize;
    let same = |part: &Given<'_>| {
        (part.id, part.dtype, part.whole, part.claim.piece.seal, part.claim.count)
            == (first.id, first.dtype, first.whole, first.claim.piece.seal, first.claim.count)
    };
    if let Some(position) = given.iter().position(|part| !same(part)) {
        return Err(JoinReason::Foreign { position });
    }
    let mut by_index: Vec<Option<&Claim>> = vec![None; count];
    for part in given {
        let index = part.claim.piece.index as usize;
        match by_index.get_mut(index) {
            Some(place @ None) => *place = Some(&part.claim),
            Some(Some(_)) => return Err(JoinReason::Doubled { index }),
            None => return Err(JoinReason::Forged),
        }
    }
    let missing: Vec<usize> =
        by_index.iter().enumerate().filter(|(_, claim)| claim.is_none()).map(|(index, _)| index).collect();
    if !missing.is_empty() {
        return Err(JoinReason::Missing { missing, count });
    }
    let claims: Vec<&Claim> = by_index.into_iter().flatten().collect();
    let places = claims.iter().map(|claim| (&claim.piece.area, claim.token));
    let sealed = seal(first.id, first.dtype, first.whole, places) == first.claim.piece.seal;
    if sealed && covers(first.whole, &claims) { Ok(()) } else { Err(JoinReason::Forged) }
}

/// Returns whether the areas have every index of `whole` once. The seal says so already, but this check does
/// not rest on a hash.
fn covers(whole: &Layout, claims: &[&Claim]) -> bool {
    let inside = claims.iter().all(|claim| super::cut(whole, &claim.piece.area).is_some());
    let sum = claims.iter().try_fold(0_usize, |sum, claim| {
        claim.piece.area.indices().and_then(|indices| sum.checked_add(indices))
    });
    let apart = claims
        .iter()
        .enumerate()
        .all(|(at, claim)| claims[at + 1..].iter().all(|other| !claim.piece.area.meets(&other.piece.area)));
    inside && apart && sum == Some(whole.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ChunkId, ProcessId};
    use crate::lease::writers::{Area, Piece};

    /// A 4 by 6 matrix in three parts: two columns each.
    struct Split {
        whole: Layout,
        claims: Vec<Claim>,
    }

    fn id(entry: u32) -> LeaseId {
        LeaseId { chunk: ChunkId { owner: ProcessId::NODE, index: 0 }, entry, generation: 1 }
    }

    fn area(rows: std::ops::Range<usize>, columns: std::ops::Range<usize>) -> Area {
        Area::new([rows, columns]).expect("not empty")
    }

    impl Split {
        fn of(areas: [Area; 3]) -> Self {
            let whole = Layout::contiguous(&[4, 6]).expect("small");
            let tokens = [11, 12, 13];
            let seal = seal(id(1), DType::F32, &whole, areas.iter().zip(tokens));
            let claims = (0..).zip(areas).zip(tokens);
            let claims = claims.map(|((index, area), token)| Claim {
                piece: Piece { seal, index, area },
                count: 3,
                token,
            });
            Split { whole, claims: claims.collect() }
        }

        fn columns() -> Self {
            Self::of([area(0..4, 0..2), area(0..4, 2..4), area(0..4, 4..6)])
        }

        fn verify(&self) -> Result<(), JoinReason> {
            let given = self.claims.iter().map(|claim| Given {
                id: id(1),
                dtype: DType::F32,
                whole: &self.whole,
                claim: claim.clone(),
            });
            verify(&given.collect::<Vec<_>>())
        }
    }

    #[test]
    fn all_parts_in_any_order_are_the_tensor() {
        let mut split = Split::columns();
        split.verify().expect("whole");
        split.claims.rotate_left(1);
        split.verify().expect("whole");
    }

    #[test]
    fn what_is_missing_foreign_or_doubled_is_named() {
        let mut split = Split::columns();
        let [a, _, c] = [0, 1, 2].map(|part| split.claims[part].clone());
        split.claims = vec![c.clone(), a.clone()];
        assert!(matches!(split.verify(), Err(JoinReason::Missing { missing, count: 3 }) if missing == [1]));
        split.claims = vec![c.clone(), a.clone(), c.clone()];
        assert!(matches!(split.verify(), Err(JoinReason::Doubled { index: 2 })));
        let mut other = c;
        other.piece.seal ^= 1;
        split.claims = vec![a, other];
        assert!(matches!(split.verify(), Err(JoinReason::Foreign { position: 1 })));
        split.claims.clear();
        assert!(matches!(split.verify(), Err(JoinReason::Nothing)));
    }

    /// WIRE-1: a forged part lacks the token, and a part that claims another place does not fit the seal.
    #[test]
    fn what_was_made_up_does_not_fit_the_seal() {
        let change: [fn(&mut Claim); 3] = [
            |claim| claim.token ^= 1,
            |claim| claim.piece.area = area(0..4, 3..6),
            |claim| claim.piece.area = area(0..2, 4..6),
        ];
        for change in change {
            let mut split = Split::columns();
            change(&mut split.claims[2]);
            assert!(matches!(split.verify(), Err(JoinReason::Forged)));
        }
    }

    /// ONE-WRITER: even with a seal that fits.
    #[test]
    fn a_split_whose_parts_overlap_or_leave_something_out_is_none() {
        for areas in [
            [area(0..4, 0..2), area(0..4, 2..4), area(0..4, 3..6)],
            [area(0..4, 0..2), area(0..4, 2..4), area(0..4, 5..6)],
            [area(0..4, 0..2), area(0..4, 2..4), area(0..4, 5..7)],
        ] {
            assert!(matches!(Split::of(areas).verify(), Err(JoinReason::Forged)));
        }
    }
}
