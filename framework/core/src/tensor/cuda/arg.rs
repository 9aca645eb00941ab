//! Tensors as kernel arguments: `builder.arg(&tensor)`.

#![expect(unsafe_code, reason = "cudarc's trait for kernel arguments is an unsafe one")]

use cudarc::driver::{LaunchArgs, PushKernelArg};

use super::{CudaView, CudaViewMut};
use crate::stream::Stream;
use crate::stream::turn;
use crate::tensor::{Tensor, TensorError, TensorMut, TensorPart};

/// Returns the stream that a launch is on: the running handler's, or the one that the tensor belongs to.
fn launch_stream(home: Option<Stream>) -> Option<Stream> {
    let stream = turn::current_stream().or(home);
    if stream.is_none() {
        tracing::error!(
            "a kernel uses a tensor on no known stream: it may run before the data is there; pass `gpu.view(&tensor)`"
        );
    }
    stream
}

/// Handles an argument that the kernel must not use: the launch cannot be refused.
#[cold]
fn refused(stream: &Stream, error: &TensorError) {
    match error {
        // The memory is there, but the data is lost: the kernel's results are tainted too (DEATH-3), and
        // reading or sending them is an error.
        TensorError::Tainted { by } => {
            tracing::error!(%error, "a kernel was given a tensor whose data is lost; what it writes is lost too");
            stream.mark_now(*by);
        }
        error => stream.fail(error),
    }
}

// SAFETY: the argument is the address of the tensor's first element, a `u64` in the tensor, which the builder
// borrows for as long as it may be launched; a kernel parameter of pointer type has that representation.
unsafe impl<'a, 'b: 'a> PushKernelArg<&'b Tensor> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, tensor: &'b Tensor) -> &mut Self {
        if let Some(stream) = launch_stream(tensor.lease().home())
            && let Err(error) = tensor.read_on(&stream)
        {
            refused(&stream, &error);
        }
        self.arg(tensor.first_element())
    }
}

// SAFETY: as above; `&mut` keeps every other use out until the launch.
unsafe impl<'a, 'b: 'a> PushKernelArg<&'b mut TensorMut> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, tensor: &'b mut TensorMut) -> &mut Self {
        if let Some(stream) = launch_stream(tensor.lease().home())
            && let Err(error) = tensor.write_on(&stream)
        {
            refused(&stream, &error);
        }
        self.arg(tensor.first_element())
    }
}

// SAFETY: as above. Memory outside the part's elements belongs to others; the launch promises not to write it
// (see `tensor::part`).
unsafe impl<'a, 'b: 'a> PushKernelArg<&'b mut TensorPart> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, part: &'b mut TensorPart) -> &mut Self {
        if let Some(stream) = launch_stream(part.lease().home())
            && let Err(error) = part.write_on(&stream)
        {
            refused(&stream, &error);
        }
        self.arg(part.first_element())
    }
}

// SAFETY: as above; the view has ordered its stream already, and borrows the tensor.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b CudaView<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, view: &'b CudaView<'_, T>) -> &mut Self {
        self.arg(view.address())
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut CudaViewMut<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, view: &'b mut CudaViewMut<'_, T>) -> &mut Self {
        self.arg(view.address())
    }
}
