//! A list of one value per axis, inline, so that a layout costs no allocation and copies as plain data.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::LayoutError;
use crate::limits::MAX_RANK;

/// Up to [`MAX_RANK`] values. The unused slots always hold the default, so that equality can be derived.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Dims<T> {
    items: [T; MAX_RANK],
    rank: u8,
}

const _: () = assert!(MAX_RANK <= u8::MAX as usize);

impl<T: Copy + Default> Dims<T> {
    /// Returns a list of `item`, as long as `like`.
    pub(super) fn splat<U>(like: &Dims<U>, item: T) -> Self {
        let mut dims = Self::defaults(like.len());
        dims.fill(item);
        dims
    }

    /// Returns a list of `rank` defaults; `rank` is at most [`MAX_RANK`].
    pub(super) fn defaults(rank: usize) -> Self {
        debug_assert!(rank <= MAX_RANK);
        Dims { items: [T::default(); MAX_RANK], rank: rank as u8 }
    }

    /// # Errors
    /// [`LayoutError::TooManyAxes`] where `items` has more than [`MAX_RANK`] entries.
    pub(super) fn from_slice(items: &[T]) -> Result<Self, LayoutError> {
        let mut dims = Dims { items: [T::default(); MAX_RANK], rank: 0 };
        match dims.items.get_mut(..items.len()) {
            Some(slots) => slots.copy_from_slice(items),
            None => return Err(LayoutError::TooManyAxes { rank: items.len() }),
        }
        dims.rank = items.len() as u8;
        Ok(dims)
    }

    /// Puts `item` in front of position `at`, which is at most the rank.
    ///
    /// # Errors
    /// [`LayoutError::TooManyAxes`] where the list is full.
    pub(super) fn insert(&mut self, at: usize, item: T) -> Result<(), LayoutError> {
        let rank = self.len();
        if rank == MAX_RANK {
            return Err(LayoutError::TooManyAxes { rank: rank + 1 });
        }
        self.items[rank] = item;
        self.rank += 1;
        self[at..].rotate_right(1);
        Ok(())
    }

    /// Takes out position `at`, which is below the rank.
    pub(super) fn remove(&mut self, at: usize) {
        self[at..].rotate_left(1);
        self.rank -= 1;
        self.items[usize::from(self.rank)] = T::default();
    }

    /// Drops the positions from `rank` on.
    pub(super) fn truncate(&mut self, rank: usize) {
        self[rank..].fill(T::default());
        self.rank = rank as u8;
    }
}

impl<T> Deref for Dims<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items[..usize::from(self.rank)]
    }
}

impl<T> DerefMut for Dims<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..usize::from(self.rank)]
    }
}

impl<T: fmt::Debug> fmt::Debug for Dims<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
