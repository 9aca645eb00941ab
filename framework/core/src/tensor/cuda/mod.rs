//! CUDA tensors in the user's own GPU code, through cudarc: kernels, cuBLAS, copies.
//!
//! There are two ways in, and both order the work (CLOCK-1, CLOCK-2):
//! - [`DeviceStream::view`] and [`DeviceStream::view_mut`] give typed views that implement cudarc's
//!   `DevicePtr` and `DevicePtrMut`, for cuBLAS, `memcpy_*` and everything else in cudarc. The view's stream
//!   waits for the data when the view is made.
//! - `builder.arg(&tensor)` in a kernel launch. The tensor is then used on the running handler's stream, or,
//!   outside of handlers, on the stream that it was made on or delivered to. Launch on that stream, which is
//!   [`DeviceStream::cuda_stream`]. To launch on another stream, pass a view of the tensor.
//!
//! Many small kernels go faster as one graph (`graph`, feature `graphs`).
//!
//! Both ways add the tensor's offset; the kernel has to know its strides.
//!
//! `builder.arg(&tensor)` cannot return an error, so a kernel with a tainted tensor cannot be refused. Its
//! stream is marked instead. The mark stays in this process: every way out of the process looks at this
//! process's taint table (DEATH-3).

mod arg;
#[cfg(feature = "graphs")]
mod graph;
mod view;

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchArgs};

#[cfg(feature = "graphs")]
pub use graph::{GraphLaunch, GraphPass, GraphTensor, LaunchGraph};
pub use view::{CudaView, CudaViewMut};

use super::{DeviceStream, Element, Layout, Tensor, TensorError, TensorMut, TensorPart};
use crate::device::DeviceError;
use crate::device::cuda::{CudaBackend, CudaStreamBackend};

impl DeviceStream {
    /// Returns the stream as cudarc knows it.
    ///
    /// # Errors
    /// This is not a CUDA device.
    pub fn cuda_stream(&self) -> Result<&Arc<CudaStream>, TensorError> {
        let stream = self.clocked().backend().as_any().downcast_ref::<CudaStreamBackend>();
        stream.map(CudaStreamBackend::stream).ok_or_else(|| self.not_cuda())
    }

    /// Returns the context as cudarc knows it; one per device and process.
    ///
    /// # Errors
    /// This is not a CUDA device.
    pub fn cuda_context(&self) -> Result<&Arc<CudaContext>, TensorError> {
        let backend = self.pool().backend().as_any().downcast_ref::<CudaBackend>();
        backend.map(CudaBackend::context).ok_or_else(|| self.not_cuda())
    }

    fn not_cuda(&self) -> TensorError {
        let what = "CUDA calls; start the actor with `.device(Device::cuda(0)?)`".to_owned();
        TensorError::Device(DeviceError::Unsupported { device: self.device_id(), what })
    }

    /// Returns a launch on this stream:
    /// `stream.launch_builder(&kernel)?.arg(&input).arg(&mut output).launch(config)`.
    ///
    /// # Errors
    /// This is not a CUDA device.
    pub fn launch_builder<'a>(&'a self, kernel: &'a CudaFunction) -> Result<LaunchArgs<'a>, TensorError> {
        Ok(self.cuda_stream()?.launch_builder(kernel))
    }

    /// Returns a packed tensor as cudarc reads it. This stream waits for the data from here on.
    ///
    /// # Errors
    /// Another dtype or device, a tensor that is not packed.
    pub fn view<'t, T: Element>(&'t self, tensor: &'t Tensor) -> Result<CudaView<'t, T>, TensorError> {
        CudaView::new(self, tensor)
    }

    /// Returns a packed tensor as cudarc writes it. This stream waits for all earlier uses from here on.
    ///
    /// # Errors
    /// As for [`view`](Self::view).
    pub fn view_mut<'t, T: Element>(
        &'t self,
        tensor: &'t mut TensorMut,
    ) -> Result<CudaViewMut<'t, T>, TensorError> {
        CudaViewMut::new(self, tensor)
    }

    /// Returns a packed part of a split tensor (some rows) as cudarc writes it. This stream waits for all
    /// earlier uses of the part from here on. Pass a part that is not packed to a kernel of your own, with
    /// its [`strides`](TensorPart::strides).
    ///
    /// # Errors
    /// As for [`view`](Self::view).
    pub fn view_part<'t, T: Element>(
        &'t self,
        part: &'t mut TensorPart,
    ) -> Result<CudaViewMut<'t, T>, TensorError> {
        CudaViewMut::of_part(self, part)
    }

    /// Copies a cudarc slice of this device into a tensor, by one copy on the device.
    ///
    /// # Errors
    /// A shape of another number of elements, no memory, a refusal of the driver.
    pub fn from_cuda<T: Element + DeviceRepr>(
        &self,
        shape: &[usize],
        slice: &CudaSlice<T>,
    ) -> Result<TensorMut, TensorError> {
        let wanted = Layout::contiguous(shape)?.len();
        if wanted != slice.len() {
            return Err(TensorError::Length { shape: shape.to_vec(), wanted, given: slice.len() });
        }
        let mut tensor = self.empty(T::DTYPE, shape)?;
        let stream = self.cuda_stream()?;
        // Goes behind the stream that the slice was written on.
        let (source, _recorded) = slice.device_ptr(stream);
        self.copy_from_address(&mut tensor, source)?;
        Ok(tensor)
    }
}

/// Checks that a packed tensor of type `T` is on the device of `stream`.
fn check<T: Element>(
    stream: &DeviceStream,
    device: crate::ids::DeviceId,
    dtype: super::DType,
    layout: &Layout,
) -> Result<(), TensorError> {
    if dtype != T::DTYPE {
        return Err(TensorError::DType { asked: T::DTYPE, found: dtype });
    }
    if !layout.is_contiguous() {
        return Err(TensorError::NotContiguous {
            shape: layout.shape().to_vec(),
            strides: layout.strides().to_vec(),
        });
    }
    super::host::in_reach(device, stream)
}
