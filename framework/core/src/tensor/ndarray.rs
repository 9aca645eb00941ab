//! Host tensors as `ndarray` arrays, without a copy.
//!
//! The views have the whole algebra of `ndarray`: operators, axes, products, `Zip`. A program that names its
//! types depends on the same `ndarray` (0.17). `ndarray` panics where shapes do not agree;
//! [`Tensor::zip_map`] and its like give an error.

use ndarray::{ArrayView, ArrayViewMut, Dimension, IntoDimension, IxDyn, ShapeBuilder, StrideShape};

use super::{DeviceStream, Element, Layout, Tensor, TensorError, TensorMut};

impl Tensor {
    /// Returns the tensor as an array view over the same memory, strides kept. Blocks until the data is
    /// there.
    ///
    /// ```
    /// use ndarray::{Axis, Ix2};
    /// use tensorpost::prelude::*;
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// # let node = Node::builder().start()?;
    /// # let stream = node.host_stream()?;
    /// let weights = stream.from_slice(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0])?.freeze();
    /// let batch = stream.from_slice(&[1, 2], &[10.0_f32, 1.0])?.freeze();
    /// let (weights, batch) = (weights.view_array::<f32>()?, batch.view_array::<f32>()?);
    /// assert_eq!(weights.sum_axis(Axis(0)).as_slice(), Some(&[4.0, 6.0][..]));
    /// let product = batch.into_dimensionality::<Ix2>()?.dot(&weights.into_dimensionality::<Ix2>()?);
    /// let product = stream.from_array(&product.view())?.freeze(); // a tensor again, by one copy
    /// assert_eq!((product.shape(), product.to_vec::<f32>()?), (&[1, 2][..], vec![13.0, 24.0]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Another dtype, a tensor that is not on the host, data that will never be there.
    pub fn view_array<T: Element>(&self) -> Result<ArrayView<'_, T, IxDyn>, TensorError> {
        ArrayView::from_shape(strided(self.layout()), self.span_slice::<T>()?)
            .map_err(|error| shape_error(self.layout(), &error))
    }
}

impl TensorMut {
    /// Returns the tensor as an array view over the same memory, strides kept, to write. Blocks until earlier
    /// work on it is done.
    ///
    /// ```
    /// use ndarray::Zip;
    /// use tensorpost::prelude::*;
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// # let node = Node::builder().start()?;
    /// # let stream = node.host_stream()?;
    /// let (a, b) = (stream.from_slice(&[2], &[1.0_f32, 2.0])?.freeze(), stream.from_slice(&[2], &[3.0_f32, 4.0])?.freeze());
    /// let mut sum = stream.empty(DType::F32, &[2])?;
    /// Zip::from(sum.view_array_mut::<f32>()?) // straight into the tensor's memory
    ///     .and(a.view_array::<f32>()?)
    ///     .and(b.view_array::<f32>()?)
    ///     .for_each(|sum, a, b| *sum = a + b);
    /// let mut halves = sum.view_array_mut::<f32>()?;
    /// halves *= 0.5; // in place
    /// assert_eq!(sum.freeze().to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Another dtype, a tensor that is not on the host.
    pub fn view_array_mut<T: Element>(&mut self) -> Result<ArrayViewMut<'_, T, IxDyn>, TensorError> {
        let layout = *self.layout();
        ArrayViewMut::from_shape(strided(&layout), self.span_slice_mut::<T>()?)
            .map_err(|error| shape_error(&layout, &error))
    }
}

/// Returns shape and strides, over the layout's span.
fn strided(layout: &Layout) -> StrideShape<IxDyn> {
    let shape = IxDyn(layout.shape());
    if layout.is_empty() {
        // ndarray refuses strides other than its own for an array without elements.
        return shape.into();
    }
    let strides: Vec<usize> = layout.strides().iter().map(|stride| stride.unsigned_abs()).collect();
    shape.strides(strides.into_dimension())
}

impl DeviceStream {
    /// Copies the elements of an array, in its logical (row-major) order, into the memory of a tensor.
    ///
    /// # Errors
    /// As for [`from_slice`](DeviceStream::from_slice).
    pub fn from_array<T: Element, D: Dimension>(
        &self,
        array: &ArrayView<'_, T, D>,
    ) -> Result<TensorMut, TensorError> {
        match array.as_slice() {
            Some(elements) => self.from_slice(array.shape(), elements),
            None => self.from_slice(array.shape(), &array.iter().copied().collect::<Vec<T>>()),
        }
    }
}

fn shape_error(layout: &Layout, error: &ndarray::ShapeError) -> TensorError {
    tracing::debug!(%error, ?layout, "ndarray refuses the strides");
    TensorError::NotContiguous { shape: layout.shape().to_vec(), strides: layout.strides().to_vec() }
}
