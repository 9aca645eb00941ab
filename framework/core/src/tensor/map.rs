//! Element-wise operations: new tensors from host tensors, and host tensors changed in place.
//!
//! All of them run on the calling thread once the data is there, and are done when the call returns. To
//! compute while the caller does something else, put a closure on a stream ([`DeviceStream::run`]).
//!
//! If a closure panics, a new tensor is not made, and a tensor that is changed in place is left half changed.

use super::host_blocks::Blocks;
use super::{DType, DeviceStream, Element, Tensor, TensorError, TensorMut};
use crate::ids::DeviceId;

impl Tensor {
    /// Returns a packed tensor of the same shape with `f` of each element of this host tensor, whatever its
    /// strides. `f` sees the elements in row-major order. The memory comes from `stream`, a stream of the
    /// host.
    ///
    /// ```
    /// use tensorpost::prelude::*;
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// # let node = Node::builder().start()?;
    /// # let stream = node.host_stream()?;
    /// let bytes = stream.from_slice(&[2, 2], &[0_u8, 51, 102, 255])?.freeze();
    /// let column = bytes.slice(1, 1..2)?;
    /// let floats = column.map(&stream, |byte: u8| f32::from(byte) / 255.0)?.freeze();
    /// assert_eq!((floats.shape(), floats.to_vec::<f32>()?), (&[2, 1][..], vec![0.2, 1.0]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Another dtype than `f` takes, a tensor or stream that is not on the host, data that will never be
    /// there, no memory.
    pub fn map<T: Element, U: Element>(
        &self,
        stream: &DeviceStream,
        mut f: impl FnMut(T) -> U,
    ) -> Result<TensorMut, TensorError> {
        let mut blocks = Blocks::<T>::new(self)?;
        let mut mapped = fresh::<U>(stream, self.shape())?;
        let mut rest = mapped.as_mut_slice::<U>()?;
        while let Some(block) = blocks.next() {
            let (now, later) = rest.split_at_mut(block.len());
            for (to, &from) in now.iter_mut().zip(block) {
                *to = f(from);
            }
            rest = later;
        }
        Ok(mapped)
    }

    /// [`map`](Self::map) with two tensors of one shape: `f` of each element and the one in the same place of
    /// `other`.
    ///
    /// ```
    /// use tensorpost::prelude::*;
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// # let node = Node::builder().start()?;
    /// # let stream = node.host_stream()?;
    /// let frames = stream.from_slice(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0])?.freeze();
    /// let background = stream.from_slice(&[2], &[1.0_f32, 1.5])?.freeze().broadcast_to(&[2, 2])?;
    /// let moved = frames.zip_map(&background, &stream, |x: f32, b: f32| (x - b).abs() > 1.0)?.freeze();
    /// assert_eq!(moved.to_vec::<bool>()?, [false, false, true, true]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`map`](Self::map), and [`TensorError::Shapes`] for shapes that differ.
    pub fn zip_map<T: Element, U: Element, V: Element>(
        &self,
        other: &Tensor,
        stream: &DeviceStream,
        mut f: impl FnMut(T, U) -> V,
    ) -> Result<TensorMut, TensorError> {
        same_shape(self.shape(), other.shape())?;
        let (mut left, mut right) = (Blocks::<T>::new(self)?, Blocks::<U>::new(other)?);
        let mut mapped = fresh::<V>(stream, self.shape())?;
        let mut rest = mapped.as_mut_slice::<V>()?;
        // Both have as many elements, so their blocks are of the same lengths.
        while let (Some(left), Some(right)) = (left.next(), right.next()) {
            let (now, later) = rest.split_at_mut(left.len());
            for ((to, &left), &right) in now.iter_mut().zip(left).zip(right) {
                *to = f(left, right);
            }
            rest = later;
        }
        Ok(mapped)
    }
}

impl TensorMut {
    /// Puts `f` of each element of this host tensor in the element's place, whatever the strides, in
    /// row-major order.
    ///
    /// ```
    /// use tensorpost::prelude::*;
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// # let node = Node::builder().start()?;
    /// # let stream = node.host_stream()?;
    /// let mut pixels = stream.from_slice(&[3], &[0.0_f32, 0.25, 1.0])?.freeze().into_mut(&stream)?; // as in a stage
    /// pixels.map_in_place(|pixel: f32| 1.0 - pixel)?;
    /// assert_eq!(pixels.freeze().to_vec::<f32>()?, [1.0, 0.75, 0.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Another dtype than `f` takes, a tensor that is not on the host, earlier work on it that was lost with
    /// a process.
    pub fn map_in_place<T: Element>(&mut self, mut f: impl FnMut(T) -> T) -> Result<(), TensorError> {
        let (layout, first) = (*self.layout(), self.layout().span().start);
        let elements = self.span_slice_mut::<T>()?;
        for run in layout.contiguous_runs() {
            for element in &mut elements[run.start - first..run.end - first] {
                *element = f(*element);
            }
        }
        Ok(())
    }

    /// [`map_in_place`](Self::map_in_place) with a second tensor of the same shape, which is only read.
    ///
    /// ```
    /// use tensorpost::prelude::*;
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// # let node = Node::builder().start()?;
    /// # let stream = node.host_stream()?;
    /// let mut background = stream.from_slice(&[2], &[1.0_f32, 2.0])?;
    /// let frame = stream.from_slice(&[2], &[3_u8, 2])?.freeze();
    /// background.zip_map_in_place(&frame, |b: f32, x: u8| b + 0.5 * (f32::from(x) - b))?;
    /// assert_eq!(background.freeze().to_vec::<f32>()?, [2.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`map_in_place`](Self::map_in_place), for either tensor, and [`TensorError::Shapes`] for shapes
    /// that differ.
    pub fn zip_map_in_place<T: Element, U: Element>(
        &mut self,
        other: &Tensor,
        mut f: impl FnMut(T, U) -> T,
    ) -> Result<(), TensorError> {
        same_shape(self.shape(), other.shape())?;
        let (layout, first) = (*self.layout(), self.layout().span().start);
        let mut theirs = Blocks::<U>::new(other)?;
        let elements = self.span_slice_mut::<T>()?;
        if layout.is_contiguous() {
            let mut rest = elements;
            while let Some(block) = theirs.next() {
                let (now, later) = rest.split_at_mut(block.len());
                for (element, &other) in now.iter_mut().zip(block) {
                    *element = f(*element, other);
                }
                rest = later;
            }
            return Ok(());
        }
        let mut offsets = layout.offsets();
        while let Some(block) = theirs.next() {
            for (&other, offset) in block.iter().zip(offsets.by_ref()) {
                let element = &mut elements[offset - first];
                *element = f(*element, other);
            }
        }
        Ok(())
    }
}

/// Returns a tensor on the host whose every element may be written as a `U`.
pub(super) fn fresh<U: Element>(stream: &DeviceStream, shape: &[usize]) -> Result<TensorMut, TensorError> {
    if stream.device_id() != DeviceId::HOST {
        return Err(TensorError::NotOnHost { device: stream.name() });
    }
    // Reused memory may hold bytes that are no bools.
    if U::DTYPE == DType::Bool { stream.zeros(U::DTYPE, shape) } else { stream.empty(U::DTYPE, shape) }
}

fn same_shape(left: &[usize], right: &[usize]) -> Result<(), TensorError> {
    if left == right {
        return Ok(());
    }
    Err(TensorError::Shapes { left: left.to_vec(), right: right.to_vec() })
}
