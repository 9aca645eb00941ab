//! The places of a tensor's elements: shape, strides and offset, and the arithmetic on them.
//!
//! Nothing here touches memory. A [`Layout`] is a small value without heap; an operation returns a new one
//! over the same memory or says which axis, range or shape was wrong. All numbers are in elements unless a
//! name says bytes, and all arithmetic is checked: an overflow is an error, never a wrap or a panic.
//!
//! Strides are zero or positive. Zero repeats an element (a broadcast); a negative stride is refused, because
//! a reversed axis would have its first element at the end of its span, and nothing that Tensorpost exchanges
//! memory with needs one.
//!
//! Every layout that exists satisfies these, also one that came from a peer (WIRE-1):
//! - LAYOUT-1: it has at most [`MAX_RANK`](crate::limits::MAX_RANK) axes and no negative stride.
//! - LAYOUT-2: the product of its extents, zeros left out, is at most `isize::MAX`.
//! - LAYOUT-3: the offset of every element, and that of the element that it would have if extents of zero
//!   were one, is below `isize::MAX`.
//!
//! An operation that only picks among the elements preserves them, so it needs no check of its own.

mod dims;
mod error;
mod extent;
mod reshape;
mod slice;
#[cfg(test)]
mod tests;
mod walk;
mod wire;

use std::fmt;

use dims::Dims;
pub use error::LayoutError;
pub(super) use walk::ContiguousRuns;
pub use wire::WIRE_BYTES;

/// Shape, strides and offset of a tensor, in elements, from the start of its lease's allocation.
///
/// Equality compares all three as they are, also the stride of an axis of one element, which places nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Dims<usize>,
    strides: Dims<isize>,
    offset: usize,
}

impl Layout {
    /// Returns the layout of elements one after the other in row-major order (the last axis fastest), from
    /// offset 0.
    ///
    /// An empty `shape` is a scalar: rank 0, one element.
    ///
    /// # Errors
    /// [`LayoutError::TooManyAxes`] and [`LayoutError::TooManyElements`].
    pub fn contiguous(shape: &[usize]) -> Result<Self, LayoutError> {
        let shape = Dims::from_slice(shape)?;
        checked_len(&shape)?;
        let mut strides = Dims::splat(&shape, 1);
        let mut packed: isize = 1;
        for (stride, &extent) in strides.iter_mut().zip(shape.iter()).rev() {
            *stride = packed;
            // LAYOUT-2: the product that `checked_len` has checked bounds every partial one.
            packed *= extent.max(1) as isize;
        }
        Ok(Self::trusted(shape, strides, 0))
    }

    /// Creates the layout whose element at index `i` lies at
    /// `offset + i[0] * strides[0] + i[1] * strides[1] + …`.
    ///
    /// # Errors
    /// [`LayoutError::TooManyAxes`], [`LayoutError::StrideCount`], [`LayoutError::NegativeStride`],
    /// [`LayoutError::TooManyElements`] and [`LayoutError::OutOfReach`].
    pub fn from_parts(shape: &[usize], strides: &[isize], offset: usize) -> Result<Self, LayoutError> {
        if shape.len() != strides.len() {
            return Err(LayoutError::StrideCount { rank: shape.len(), strides: strides.len() });
        }
        let layout = Layout { shape: Dims::from_slice(shape)?, strides: Dims::from_slice(strides)?, offset };
        layout.check()?;
        Ok(layout)
    }

    /// Checks that it satisfies LAYOUT-1 to LAYOUT-3, as a layout from a peer may not.
    ///
    /// # Errors
    /// [`LayoutError::NegativeStride`], [`LayoutError::TooManyElements`] and [`LayoutError::OutOfReach`].
    fn check(&self) -> Result<(), LayoutError> {
        if let Some((axis, &stride)) = self.strides.iter().enumerate().find(|(_, stride)| **stride < 0) {
            return Err(LayoutError::NegativeStride { axis, stride });
        }
        checked_len(&self.shape)?;
        if self.checked_last().is_some() {
            return Ok(());
        }
        let (shape, strides) = (self.shape().into(), self.strides().into());
        Err(LayoutError::OutOfReach { offset: self.offset, shape, strides })
    }

    /// Returns the same shape and strides from another offset.
    ///
    /// # Errors
    /// [`LayoutError::OutOfReach`].
    pub fn with_offset(&self, offset: usize) -> Result<Self, LayoutError> {
        Self::from_parts(&self.shape, &self.strides, offset)
    }

    /// Returns the number of axes; 0 for a scalar.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns the number of elements along each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns elements from one index of an axis to the next, for each axis; never negative.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Returns where the first element lies, in elements from the start of the allocation.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of elements: the product of the shape. A repeated element (stride zero) counts each
    /// time.
    pub fn len(&self) -> usize {
        // LAYOUT-2 bounds the product of the extents that are not zero; with a zero among them there is no
        // element.
        if self.is_empty() { 0 } else { self.shape.iter().product() }
    }

    /// Returns whether there is no element, because an axis has none.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Wraps numbers that satisfy LAYOUT-1 to LAYOUT-3 because they came from a layout that does.
    ///
    /// Without elements the offset becomes 0: the offset of a slice of shape `[n, 0]` could otherwise lie
    /// behind the end of an allocation of no bytes, and a receiver refuses such a layout (WIRE-1).
    fn trusted(shape: Dims<usize>, strides: Dims<isize>, offset: usize) -> Self {
        let offset = if shape.contains(&0) { 0 } else { offset };
        let layout = Layout { shape, strides, offset };
        debug_assert_eq!(Self::from_parts(layout.shape(), layout.strides(), offset), Ok(layout));
        layout
    }

    /// Extent and stride of each axis, outermost first.
    fn axes(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + ExactSizeIterator {
        self.shape.iter().zip(self.strides.iter()).map(|(&extent, stride)| (extent, stride.unsigned_abs()))
    }

    /// Returns the largest offset that LAYOUT-3 speaks of; `None` where it is not below `isize::MAX`.
    fn checked_last(&self) -> Option<usize> {
        self.axes()
            .try_fold(self.offset, |last, (extent, stride)| {
                last.checked_add(extent.saturating_sub(1).checked_mul(stride)?)
            })
            .filter(|&last| last < isize::MAX as usize)
    }

    /// # Errors
    /// [`LayoutError::NoSuchAxis`].
    fn check_axis(&self, axis: usize) -> Result<(), LayoutError> {
        if axis < self.rank() { Ok(()) } else { Err(LayoutError::NoSuchAxis { axis, rank: self.rank() }) }
    }
}

/// Returns the number of elements of a shape, where LAYOUT-2 holds.
///
/// # Errors
/// [`LayoutError::TooManyElements`].
fn checked_len(shape: &[usize]) -> Result<usize, LayoutError> {
    let product = shape
        .iter()
        .try_fold(1, |product: usize, &extent| product.checked_mul(extent.max(1)))
        .filter(|&product| product <= isize::MAX as usize);
    match product {
        Some(product) => Ok(if shape.contains(&0) { 0 } else { product }),
        None => Err(LayoutError::TooManyElements { shape: shape.into() }),
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layout")
            .field("shape", &self.shape)
            .field("strides", &self.strides)
            .field("offset", &self.offset)
            .finish()
    }
}
