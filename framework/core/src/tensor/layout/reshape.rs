//! The same elements under other axes: permuting, viewing, and axes of one element.

use super::dims::Dims;
use super::{Layout, LayoutError, checked_len};

impl Layout {
    /// Returns the axes in another order: axis `i` of the result is axis `axes[i]` of `self`.
    ///
    /// # Errors
    /// [`LayoutError::NotAPermutation`].
    pub fn permute(&self, axes: &[usize]) -> Result<Self, LayoutError> {
        let refused = || LayoutError::NotAPermutation { axes: axes.into(), rank: self.rank() };
        if axes.len() != self.rank() {
            return Err(refused());
        }
        let mut seen = Dims::splat(&self.shape, false);
        let (mut shape, mut strides) = (self.shape, self.strides);
        for (to, &from) in axes.iter().enumerate() {
            match seen.get_mut(from) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(refused()),
            }
            shape[to] = self.shape[from];
            strides[to] = self.strides[from];
        }
        Ok(Self::trusted(shape, strides, self.offset))
    }

    /// Swaps the last two axes: the transpose of a matrix, or of each matrix of a batch.
    ///
    /// # Errors
    /// [`LayoutError::TransposeRank`] where there are fewer than two axes.
    pub fn transpose(&self) -> Result<Self, LayoutError> {
        let rank = self.rank();
        if rank < 2 {
            return Err(LayoutError::TransposeRank { rank });
        }
        let (mut shape, mut strides) = (self.shape, self.strides);
        shape.swap(rank - 2, rank - 1);
        strides.swap(rank - 2, rank - 1);
        Ok(Self::trusted(shape, strides, self.offset))
    }

    /// Returns the same elements in the same row-major order under another shape, without a copy.
    ///
    /// A contiguous layout can be viewed as any shape with as many elements. A strided one can be viewed
    /// exactly where each new axis stays inside a run of old axes that continue each other. The rule is that
    /// of torch's `view`, and no shape is refused that some strides could express.
    ///
    /// # Errors
    /// [`LayoutError::ViewLength`] where the number of elements differs, [`LayoutError::ViewNeedsCopy`] where
    /// no strides express it, and those of [`contiguous`](Self::contiguous).
    pub fn view(&self, shape: &[usize]) -> Result<Self, LayoutError> {
        let mut view = Self::contiguous(shape)?;
        let (from_len, to_len) = (self.len(), view.len());
        if from_len != to_len {
            let (from, to) = (self.shape().into(), shape.into());
            return Err(LayoutError::ViewLength { from, to, from_len, to_len });
        }
        if self.is_empty() {
            return Ok(view);
        }
        // Go from the innermost axis outwards: each coalesced axis has to be the product of a run of new
        // axes. Axes of one element that are left over at the end keep the stride that `contiguous` gave
        // them; it places nothing.
        let mut axes = (0..view.rank()).rev();
        for (extent, stride) in self.coalesced().axes().rev() {
            let mut done = 1;
            while done < extent
                && let Some(axis) = axes.next()
            {
                // LAYOUT-3 bounds the product: `done` is below `extent`.
                view.strides[axis] = (done * stride) as isize;
                done *= view.shape[axis];
            }
            if done != extent {
                let (from, strides) = (self.shape().into(), self.strides().into());
                return Err(LayoutError::ViewNeedsCopy { from, strides, to: shape.into() });
            }
        }
        Ok(Self::trusted(view.shape, view.strides, self.offset))
    }

    /// [`view`](Self::view) with at most one extent, the `None`, chosen so that the number of elements fits.
    ///
    /// # Errors
    /// [`LayoutError::InferTwice`], [`LayoutError::CannotInfer`], and those of [`view`](Self::view).
    pub fn view_infer(&self, shape: &[Option<usize>]) -> Result<Self, LayoutError> {
        let wanted = Dims::from_slice(shape)?;
        let mut shape = Dims::splat(&wanted, 1);
        let mut inferred = None;
        for (axis, extent) in wanted.iter().enumerate() {
            match (extent, inferred) {
                (&Some(extent), _) => shape[axis] = extent,
                (None, None) => inferred = Some(axis),
                (None, Some(first)) => return Err(LayoutError::InferTwice { first, second: axis }),
            }
        }
        if let Some(axis) = inferred {
            let (len, known) = (self.len(), checked_len(&shape)?);
            if known == 0 || len % known != 0 {
                return Err(LayoutError::CannotInfer { axis, len, known });
            }
            shape[axis] = len / known;
        }
        self.view(&shape)
    }

    /// Drops `axis`, which must have one element.
    ///
    /// # Errors
    /// [`LayoutError::NoSuchAxis`] and [`LayoutError::Squeeze`].
    pub fn squeeze(&self, axis: usize) -> Result<Self, LayoutError> {
        self.check_axis(axis)?;
        let extent = self.shape[axis];
        if extent != 1 {
            return Err(LayoutError::Squeeze { axis, extent });
        }
        let (mut shape, mut strides) = (self.shape, self.strides);
        shape.remove(axis);
        strides.remove(axis);
        Ok(Self::trusted(shape, strides, self.offset))
    }

    /// Inserts an axis of one element that becomes axis `axis`; an `axis` equal to the rank puts it last.
    ///
    /// # Errors
    /// [`LayoutError::NoSuchPlace`], and [`LayoutError::TooManyAxes`] where there is no room for another
    /// axis.
    pub fn unsqueeze(&self, axis: usize) -> Result<Self, LayoutError> {
        let rank = self.rank();
        if axis > rank {
            return Err(LayoutError::NoSuchPlace { axis, rank });
        }
        // The stride of one element places nothing; code that reads leading dimensions expects this one.
        let stride = match self.strides.get(axis) {
            Some(stride) => stride.saturating_mul(self.shape[axis].max(1) as isize),
            None => 1,
        };
        let (mut shape, mut strides) = (self.shape, self.strides);
        shape.insert(axis, 1)?;
        strides.insert(axis, stride)?;
        Ok(Self::trusted(shape, strides, self.offset))
    }

    /// Repeats axes of one element, and adds axes in front, without a copy. Counted from the last axis, each
    /// extent of `shape` must equal that of `self`, or `self` must have extent 1 or no axis there.
    ///
    /// A repeated axis has stride zero, so the result [overlaps itself](Self::overlaps_itself): it can be
    /// read, not written.
    ///
    /// # Errors
    /// [`LayoutError::Broadcast`], [`LayoutError::TooManyAxes`] and [`LayoutError::TooManyElements`].
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Self, LayoutError> {
        let target = Dims::from_slice(shape)?;
        checked_len(&target)?;
        let refused = || LayoutError::Broadcast { from: self.shape().into(), to: shape.into() };
        let added = target.len().checked_sub(self.rank()).ok_or_else(refused)?;
        let mut strides = Dims::splat(&target, 0);
        for ((&to, stride), (from, own)) in
            target[added..].iter().zip(&mut strides[added..]).zip(self.shape.iter().zip(self.strides.iter()))
        {
            match *from {
                from if from == to => *stride = *own,
                1 => *stride = 0,
                _ => return Err(refused()),
            }
        }
        Ok(Self::trusted(target, strides, self.offset))
    }
}
