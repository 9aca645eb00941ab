//! Host tensors as `ndarray` arrays, without a copy.

use ndarray::{ArrayView, ArrayViewMut, Dimension, IxDyn, ShapeBuilder};

use super::{DeviceStream, Element, Layout, Tensor, TensorError, TensorMut};

impl Tensor {
    /// The tensor as an array view over the same memory, strides kept. Blocks until the data is there.
    ///
    /// # Errors
    /// Another dtype, a tensor that is not on the host, data that will not come.
    pub fn view_array<T: Element>(&self) -> Result<ArrayView<'_, T, IxDyn>, TensorError> {
        if self.is_empty() {
            // ndarray wants strides of its own where there is nothing to stride over.
            return ArrayView::from_shape(IxDyn(self.shape()), self.span_slice::<T>()?)
                .map_err(|error| shape_error(self.layout(), &error));
        }
        let span = self.layout().span();
        let strides: Vec<usize> = self.strides().iter().map(|stride| stride.unsigned_abs()).collect();
        let elements = self.span_slice::<T>()?;
        let start = self.layout().offset().saturating_sub(span.start).min(elements.len());
        ArrayView::from_shape(IxDyn(self.shape()).strides(IxDyn(&strides)), &elements[start..])
            .map_err(|error| shape_error(self.layout(), &error))
    }
}

impl TensorMut {
    /// The tensor as an array view over the same memory, to write. Blocks until earlier work on it is done.
    ///
    /// # Errors
    /// Another dtype, a tensor that is not packed or not on the host.
    pub fn view_array_mut<T: Element>(&mut self) -> Result<ArrayViewMut<'_, T, IxDyn>, TensorError> {
        let layout = *self.layout();
        ArrayViewMut::from_shape(IxDyn(layout.shape()), self.as_mut_slice::<T>()?)
            .map_err(|error| shape_error(&layout, &error))
    }
}

impl DeviceStream {
    /// A tensor with the elements of an array in its logical (row-major) order; one copy, into the tensor's memory.
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
