//! The memory that a layout touches: spans, bytes, contiguity and overlap.

use std::ops::Range;

use super::{Layout, LayoutError};
use crate::limits::MAX_RANK;
use crate::tensor::dtype::DType;

impl Layout {
    /// Returns the range from the first element's offset to one past the last one's, in elements.
    ///
    /// A strided layout does not touch everything in between. A layout without elements touches nothing: its
    /// span is empty, at its offset.
    pub fn span(&self) -> Range<usize> {
        if self.is_empty() {
            return self.offset..self.offset;
        }
        // LAYOUT-3 bounds the sum.
        let last = self.axes().fold(self.offset, |last, (extent, stride)| last + (extent - 1) * stride);
        self.offset..last + 1
    }

    /// Returns the [`span`](Self::span) in bytes from the start of the allocation.
    ///
    /// # Errors
    /// [`LayoutError::TooManyBytes`] where the end is not representable.
    pub fn bytes_span(&self, dtype: DType) -> Result<Range<usize>, LayoutError> {
        let span = self.span();
        let end = self.checked_bytes(span.end, dtype)?;
        Ok(span.start * dtype.size()..end)
    }

    /// Returns the same elements in memory that starts `elements` later; `None` where one of them lies before
    /// that.
    pub(crate) fn moved_back(&self, elements: usize) -> Option<Self> {
        if self.is_empty() {
            return Some(Self::trusted(self.shape, self.strides, 0));
        }
        let offset = self.offset.checked_sub(elements)?;
        Some(Self::trusted(self.shape, self.strides, offset))
    }

    /// Returns the bytes of all elements, packed: the size of a contiguous copy.
    ///
    /// A layout with strides of zero can have many more bytes than its [`bytes_span`](Self::bytes_span), so a
    /// peer's layout that fits its allocation says nothing about the cost of a copy.
    ///
    /// # Errors
    /// [`LayoutError::TooManyBytes`] where they are more than `isize::MAX`.
    pub fn packed_bytes(&self, dtype: DType) -> Result<usize, LayoutError> {
        self.checked_bytes(self.len(), dtype)
    }

    fn checked_bytes(&self, elements: usize, dtype: DType) -> Result<usize, LayoutError> {
        elements
            .checked_mul(dtype.size())
            .filter(|&bytes| bytes <= isize::MAX as usize)
            .ok_or_else(|| LayoutError::TooManyBytes { shape: self.shape().into(), dtype })
    }

    /// Checks that every element lies inside an allocation of `allocation` bytes; for a layout without
    /// elements, that its offset does (WIRE-1).
    ///
    /// # Errors
    /// [`LayoutError::OutOfAllocation`], and [`LayoutError::TooManyBytes`] where the end is not
    /// representable.
    pub fn fits(&self, dtype: DType, allocation: u64) -> Result<(), LayoutError> {
        let end = self.bytes_span(dtype)?.end;
        if end as u64 <= allocation {
            return Ok(());
        }
        Err(LayoutError::OutOfAllocation { shape: self.shape().into(), dtype, end, allocation })
    }

    /// Returns whether the elements lie one after the other in row-major order, from any offset.
    ///
    /// The stride of an axis of one element plays no part; a layout without elements is contiguous.
    pub fn is_contiguous(&self) -> bool {
        let mut packed = 1;
        self.is_empty()
            || self.axes().rev().filter(|&(extent, _)| extent != 1).all(|(extent, stride)| {
                let follows = stride == packed;
                // LAYOUT-2 bounds the product.
                packed *= extent;
                follows
            })
    }

    /// Returns whether two indices may be the same memory, so that nothing can write through this layout.
    ///
    /// `false` is a proof. `true` is certain for a broadcast. For some interleaved strides (shape `[2, 3]`
    /// with strides `[4, 3]`) it is a mere suspicion, because the exact answer would take a search. Layouts
    /// that come from a contiguous one by slicing, indexing, permuting, viewing and splitting never overlap.
    pub fn overlaps_itself(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut axes = [(0, 0); MAX_RANK];
        let mut used = 0;
        for (extent, stride) in self.axes().filter(|&(extent, _)| extent > 1) {
            axes[used] = (stride, extent);
            used += 1;
        }
        let axes = &mut axes[..used];
        axes.sort_unstable();
        // By induction over the axes from the smallest stride: the inner ones give distinct offsets of at
        // most `reach`; a step larger than that puts every copy of them beyond the one before.
        let mut reach = 0;
        axes.iter().any(|&(stride, extent)| {
            let overlaps = stride <= reach;
            // LAYOUT-3 bounds the sum.
            reach += (extent - 1) * stride;
            overlaps
        })
    }

    /// Returns the same elements in the same row-major order with the fewest axes: for copies and kernels
    /// that loop over axes, whose inner loop then becomes as long as possible.
    ///
    /// Axes of one element go, neighbours that continue each other become one. A contiguous layout gets rank
    /// 1, a single element rank 0, a layout without elements shape `[0]`.
    pub fn coalesced(&self) -> Layout {
        let mut merged = *self;
        let mut used = 0;
        if self.is_empty() {
            (merged.shape[0], merged.strides[0], used) = (0, 1, 1);
        } else {
            for (extent, stride) in self.axes().filter(|&(extent, _)| extent != 1) {
                // LAYOUT-3 bounds the product by twice `isize::MAX`.
                let continued = (extent * stride) as isize;
                if used > 0 && merged.strides[used - 1] == continued {
                    merged.shape[used - 1] *= extent;
                } else {
                    merged.shape[used] = extent;
                    used += 1;
                }
                merged.strides[used - 1] = stride as isize;
            }
        }
        merged.shape.truncate(used);
        merged.strides.truncate(used);
        Self::trusted(merged.shape, merged.strides, merged.offset)
    }
}
