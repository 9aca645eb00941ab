//! Typed views for cudarc.

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, sys::CUdeviceptr};

use super::check;
use crate::tensor::{DeviceStream, Element, Tensor, TensorError, TensorMut, TensorPart};

/// A packed tensor to read, on the stream of the [`DeviceStream`] that made the view.
#[derive(Debug)]
pub struct CudaView<'t, T> {
    address: u64,
    len: usize,
    stream: &'t Arc<CudaStream>,
    tensor: PhantomData<&'t [T]>,
}

/// A packed tensor to write, on the stream of the [`DeviceStream`] that made the view.
#[derive(Debug)]
pub struct CudaViewMut<'t, T> {
    address: u64,
    len: usize,
    stream: &'t Arc<CudaStream>,
    tensor: PhantomData<&'t mut [T]>,
}

impl<'t, T: Element> CudaView<'t, T> {
    pub(super) fn new(stream: &'t DeviceStream, tensor: &'t Tensor) -> Result<Self, TensorError> {
        check::<T>(stream, tensor.device(), tensor.dtype(), tensor.layout())?;
        tensor.read_on(stream.clocked())?;
        let (address, len) = (*tensor.first_element(), tensor.len());
        Ok(CudaView { address, len, stream: stream.cuda_stream()?, tensor: PhantomData })
    }
}

impl<'t, T: Element> CudaViewMut<'t, T> {
    pub(super) fn new(stream: &'t DeviceStream, tensor: &'t mut TensorMut) -> Result<Self, TensorError> {
        check::<T>(stream, tensor.device(), tensor.dtype(), tensor.layout())?;
        tensor.write_on(stream.clocked())?;
        let (address, len) = (*tensor.first_element(), tensor.len());
        Ok(CudaViewMut { address, len, stream: stream.cuda_stream()?, tensor: PhantomData })
    }

    pub(super) fn of_part(stream: &'t DeviceStream, part: &'t mut TensorPart) -> Result<Self, TensorError> {
        check::<T>(stream, part.device(), part.dtype(), part.layout())?;
        part.write_on(stream.clocked())?;
        let (address, len) = (*part.first_element(), part.len());
        Ok(CudaViewMut { address, len, stream: stream.cuda_stream()?, tensor: PhantomData })
    }
}

impl<T> CudaView<'_, T> {
    pub(super) fn address(&self) -> &u64 {
        &self.address
    }
}

impl<T> CudaViewMut<'_, T> {
    pub(super) fn address(&self) -> &u64 {
        &self.address
    }
}

/// Orders work on `stream` behind the view's own stream, where they differ. Then the host waits for the work
/// on `stream` when the guard drops, because only the view's stream is noted in the tensor's lease.
fn order<'a>(own: &Arc<CudaStream>, stream: &'a CudaStream) -> SyncOnDrop<'a> {
    if own.cu_stream() == stream.cu_stream() {
        return SyncOnDrop::Sync(None);
    }
    if let Err(error) = stream.join(own) {
        tracing::error!(%error, "a stream could not be put behind a tensor's");
    }
    SyncOnDrop::sync_stream(stream)
}

impl<T> DeviceSlice<T> for CudaView<'_, T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.stream
    }
}

impl<T> DeviceSlice<T> for CudaViewMut<'_, T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.stream
    }
}

impl<T> DevicePtr<T> for CudaView<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, order(self.stream, stream))
    }
}

impl<T> DevicePtr<T> for CudaViewMut<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, order(self.stream, stream))
    }
}

impl<T> DevicePtrMut<T> for CudaViewMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, order(self.stream, stream))
    }
}
