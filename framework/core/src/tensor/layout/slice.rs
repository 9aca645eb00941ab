//! Picking a part of an axis: slices, single indices, and splits into disjoint parts.

use std::fmt::Debug;
use std::iter::FusedIterator;
use std::ops::{Bound, RangeBounds};

use super::{Layout, LayoutError};

impl Layout {
    /// Returns the elements whose index along `axis` lies in `range`.
    ///
    /// An empty range inside the axis is allowed and touches nothing; its layout keeps the offset of `self`.
    ///
    /// # Errors
    /// [`LayoutError::NoSuchAxis`], [`LayoutError::SliceOutOfRange`] and [`LayoutError::SliceReversed`].
    pub fn slice(&self, axis: usize, range: impl RangeBounds<usize>) -> Result<Self, LayoutError> {
        self.check_axis(axis)?;
        let extent = self.shape[axis];
        // Saturated bounds are beyond every axis (LAYOUT-2), so they end up as the error they are.
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => extent,
        };
        if start > extent || end > extent {
            return Err(LayoutError::SliceOutOfRange { axis, start, end, extent });
        }
        if start > end {
            return Err(LayoutError::SliceReversed { axis, start, end });
        }
        Ok(self.narrow(axis, start, end - start))
    }

    /// Returns the elements with index `index` along `axis`, without that axis: the result has one axis
    /// fewer.
    ///
    /// # Errors
    /// [`LayoutError::NoSuchAxis`] and [`LayoutError::IndexOutOfRange`].
    pub fn index(&self, axis: usize, index: usize) -> Result<Self, LayoutError> {
        self.check_axis(axis)?;
        let extent = self.shape[axis];
        if index >= extent {
            return Err(LayoutError::IndexOutOfRange { axis, index, extent });
        }
        let mut picked = self.narrow(axis, index, 1);
        picked.shape.remove(axis);
        picked.strides.remove(axis);
        Ok(picked)
    }

    /// Cuts `axis` into `parts` consecutive parts whose extents differ by at most one, the larger ones first.
    ///
    /// Together they have every index of `self` once, so where `self` does not
    /// [overlap itself](Self::overlaps_itself), the parts are disjoint memory: each may have its own writer.
    /// (Their *spans* interleave unless the axis is the outermost.)
    ///
    /// # Errors
    /// [`LayoutError::NoSuchAxis`], and [`LayoutError::Split`] for zero parts and for more parts than
    /// elements (an axis without elements is one part).
    pub fn split(
        &self,
        axis: usize,
        parts: usize,
    ) -> Result<impl ExactSizeIterator<Item = Layout> + FusedIterator + Clone + Debug + use<>, LayoutError>
    {
        self.check_axis(axis)?;
        let extent = self.shape[axis];
        if parts == 0 || parts > extent.max(1) {
            return Err(LayoutError::Split { axis, extent, parts });
        }
        Ok(Parts { whole: *self, axis, start: 0, left: parts })
    }

    /// `extent` elements of `axis` from `start`, which must lie inside it.
    fn narrow(&self, axis: usize, start: usize, extent: usize) -> Self {
        let mut offset = self.offset;
        if extent > 0 {
            // LAYOUT-3 bounds the sum: `start` is the index of an element.
            offset += start * self.strides[axis].unsigned_abs();
        }
        let mut shape = self.shape;
        shape[axis] = extent;
        Self::trusted(shape, self.strides, offset)
    }
}

/// The parts of an axis, in order; from [`Layout::split`].
#[derive(Clone, Debug)]
struct Parts {
    whole: Layout,
    axis: usize,
    /// First index of the next part.
    start: usize,
    /// Parts that are still to come.
    left: usize,
}

impl Iterator for Parts {
    type Item = Layout;

    fn next(&mut self) -> Option<Layout> {
        if self.left == 0 {
            return None;
        }
        let extent = (self.whole.shape[self.axis] - self.start).div_ceil(self.left);
        let part = self.whole.narrow(self.axis, self.start, extent);
        self.start += extent;
        self.left -= 1;
        Some(part)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Parts {}
impl FusedIterator for Parts {}
