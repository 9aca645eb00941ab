//! The seal that tells the parts of one split from anything else that claims to be such a part.
//!
//! The splitter draws a random *token* for each part, which travels with that part alone. The *seal* is a
//! hash of the allocation, the whole tensor and every part's place and token; all parts carry it. The joining
//! process computes the seal again from the parts. So three kinds of parts do not fit: those of another
//! split, those that claim another place than they were cut from, and those that a sender made up without
//! having held them.
//!
//! The hash is the standard library's SipHash: 64 bits against mistakes and made-up bytes, not a signature.
//! All processes of a node are one build, so they agree on it.

use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};

use super::{DType, Layout};
use crate::lease::LeaseId;
use crate::lease::writers::Area;

/// Returns a token for each of `count` parts, which nobody can guess.
pub(super) fn tokens(count: usize) -> impl Iterator<Item = u64> {
    let random = RandomState::new();
    (0..count).map(move |index| random.hash_one(index))
}

/// Returns the seal of the split of `whole` into parts with these places and tokens, in order.
pub(super) fn seal<'a>(
    id: LeaseId,
    dtype: DType,
    whole: &Layout,
    parts: impl Iterator<Item = (&'a Area, u64)>,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    (id, dtype.code(), whole).hash(&mut hasher);
    for part in parts {
        part.hash(&mut hasher);
    }
    hasher.finish()
}
