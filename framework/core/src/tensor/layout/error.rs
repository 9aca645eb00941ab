//! The errors of a layout and of the operations on it.

use super::WIRE_BYTES;
use crate::limits::MAX_RANK;
use crate::tensor::dtype::DType;

/// A layout that cannot exist, or an operation that a layout does not allow.
///
/// Nothing changed: a layout is a value, and the one that was asked stays as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// More axes than a tensor can have.
    #[error(
        "a tensor has at most {MAX_RANK} axes: this shape has {rank}; give it a view in which some are one"
    )]
    TooManyAxes {
        /// Axes that were asked for.
        rank: usize,
    },
    /// Shape and strides differ in length.
    #[error("the shape has {rank} axes and there are {strides} strides: give one stride for each axis")]
    StrideCount {
        /// Axes in the shape.
        rank: usize,
        /// Strides that were given.
        strides: usize,
    },
    /// A stride below zero.
    #[error(
        "the stride of axis {axis} is {stride}: strides must not be negative, copy the tensor in the order you want"
    )]
    NegativeStride {
        /// The axis with the stride.
        axis: usize,
        /// The stride, in elements.
        stride: isize,
    },
    /// The number of elements is not representable.
    #[error("shape {shape:?} has more elements than memory can be addressed")]
    TooManyElements {
        /// The shape that was asked for.
        shape: Box<[usize]>,
    },
    /// An element's offset is not representable.
    #[error("offset {offset} with shape {shape:?} and strides {strides:?} reaches beyond addressable memory")]
    OutOfReach {
        /// Offset of the first element, in elements.
        offset: usize,
        /// The shape.
        shape: Box<[usize]>,
        /// The strides, in elements.
        strides: Box<[isize]>,
    },
    /// The number of bytes is not representable.
    #[error("a tensor of shape {shape:?} and type {dtype} has more bytes than memory can be addressed")]
    TooManyBytes {
        /// The shape.
        shape: Box<[usize]>,
        /// The element type.
        dtype: DType,
    },
    /// The layout touches bytes beyond its allocation.
    #[error("shape {shape:?} of {dtype} ends at byte {end} of an allocation of {allocation} bytes")]
    OutOfAllocation {
        /// The shape.
        shape: Box<[usize]>,
        /// The element type.
        dtype: DType,
        /// First byte past the last element.
        end: usize,
        /// Bytes of the allocation.
        allocation: u64,
    },
    /// An axis that the layout does not have.
    #[error("axis {axis} does not exist: the tensor has {rank} axes, counted from 0")]
    NoSuchAxis {
        /// The axis that was named.
        axis: usize,
        /// Axes of the layout.
        rank: usize,
    },
    /// A place for a new axis that is not between, before or after the axes.
    #[error("a new axis cannot be axis {axis} of a tensor of {rank} axes: {rank} would be the last place")]
    NoSuchPlace {
        /// The place that was named.
        axis: usize,
        /// Axes of the layout.
        rank: usize,
    },
    /// A slice past the end of its axis.
    #[error("slice {start}..{end} of axis {axis} is out of range: the axis has {extent} elements")]
    SliceOutOfRange {
        /// The axis to slice.
        axis: usize,
        /// First index.
        start: usize,
        /// First index past the slice.
        end: usize,
        /// Elements along the axis.
        extent: usize,
    },
    /// A slice that ends before it starts.
    #[error("slice {start}..{end} of axis {axis} ends before it starts")]
    SliceReversed {
        /// The axis to slice.
        axis: usize,
        /// First index.
        start: usize,
        /// First index past the slice.
        end: usize,
    },
    /// An index past the end of its axis.
    #[error("index {index} of axis {axis} is out of range: the axis has {extent} elements")]
    IndexOutOfRange {
        /// The axis to index.
        axis: usize,
        /// The index.
        index: usize,
        /// Elements along the axis.
        extent: usize,
    },
    /// A number of parts that an axis cannot be split into.
    #[error(
        "axis {axis} of {extent} elements cannot be split into {parts} parts: each part needs an element"
    )]
    Split {
        /// The axis to split.
        axis: usize,
        /// Elements along the axis.
        extent: usize,
        /// Parts that were asked for.
        parts: usize,
    },
    /// A list of axes that is no permutation.
    #[error("{axes:?} is no order of {rank} axes: name each of them once, counted from 0")]
    NotAPermutation {
        /// The axes that were given.
        axes: Box<[usize]>,
        /// Axes of the layout.
        rank: usize,
    },
    /// A transposition of fewer than two axes.
    #[error("transpose swaps the last two axes: this tensor has {rank}")]
    TransposeRank {
        /// Axes of the layout.
        rank: usize,
    },
    /// A view with another number of elements.
    #[error("shape {from:?} cannot be viewed as {to:?}: {from_len} elements are not {to_len}")]
    ViewLength {
        /// The shape as it is.
        from: Box<[usize]>,
        /// The shape that was asked for.
        to: Box<[usize]>,
        /// Elements of the layout.
        from_len: usize,
        /// Elements of the shape that was asked for.
        to_len: usize,
    },
    /// A view that would need other strides than one per axis.
    #[error(
        "shape {from:?} with strides {strides:?} cannot be viewed as {to:?} without a copy: make it contiguous first"
    )]
    ViewNeedsCopy {
        /// The shape as it is.
        from: Box<[usize]>,
        /// The strides, in elements.
        strides: Box<[isize]>,
        /// The shape that was asked for.
        to: Box<[usize]>,
    },
    /// More than one extent was left to infer.
    #[error("axes {first} and {second} are both left to infer: one at most can be")]
    InferTwice {
        /// The first axis without an extent.
        first: usize,
        /// The second.
        second: usize,
    },
    /// The extent left to infer has no or no single answer.
    #[error("axis {axis} cannot be inferred: {len} elements do not divide into groups of {known}")]
    CannotInfer {
        /// The axis without an extent.
        axis: usize,
        /// Elements of the layout.
        len: usize,
        /// Product of the extents that were given.
        known: usize,
    },
    /// An axis to drop that has more or fewer elements than one.
    #[error("axis {axis} has {extent} elements: squeeze drops an axis of exactly 1")]
    Squeeze {
        /// The axis to drop.
        axis: usize,
        /// Elements along it.
        extent: usize,
    },
    /// A shape that a layout does not repeat into.
    #[error(
        "shape {from:?} does not broadcast to {to:?}: counted from the last, each axis must be equal or 1"
    )]
    Broadcast {
        /// The shape as it is.
        from: Box<[usize]>,
        /// The shape that was asked for.
        to: Box<[usize]>,
    },
    /// A wire form of the wrong length.
    #[error("a layout on the wire is {WIRE_BYTES} bytes: got {bytes}")]
    WireLength {
        /// Bytes that were given.
        bytes: usize,
    },
    /// A wire form with an element type that does not exist.
    #[error("the layout on the wire names element type {code}, which does not exist")]
    WireDType {
        /// The code.
        code: u8,
    },
    /// A wire form with set bits where zeros belong.
    #[error("the layout on the wire has something other than zero in byte {at}, which nothing uses")]
    WirePadding {
        /// Position of the byte.
        at: usize,
    },
    /// A wire form with a number that this machine cannot represent.
    #[error("the layout on the wire has a number at byte {at} that is too large for this machine")]
    WireNumber {
        /// Position of the number's first byte.
        at: usize,
    },
}
