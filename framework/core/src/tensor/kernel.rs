//! Host kernels: closures that run on a host stream, in order with everything else on it.
//!
//! `stream.run((input.of::<f32>(), output.of_mut::<f32>()), |(input, output)| …)` is to a host stream what a
//! kernel launch is to a CUDA stream. The call returns at once; the closure runs later, when everything that
//! the stream waits for has come, and sees plain slices. The tensors need not outlive the call: their memory
//! is not reused before the stream has passed.

#![expect(unsafe_code, reason = "a queued closure gets slices over memory that the stream's order protects")]

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use smallvec::smallvec;

use super::host::{check, elements, elements_mut, in_reach};
use super::{DeviceStream, Element, Tensor, TensorError, TensorMut};
use crate::device::host::HostStream;
use crate::device::{ChunkMapping, Keep};

/// A tensor to read in a host kernel, as elements of type `T`.
#[derive(Debug)]
pub struct ReadArg<'t, T>(&'t Tensor, PhantomData<T>);

/// A tensor to write in a host kernel, as elements of type `T`.
#[derive(Debug)]
pub struct WriteArg<'t, T>(&'t mut TensorMut, PhantomData<T>);

impl Tensor {
    /// Passes the tensor to [`DeviceStream::run`] to be read.
    pub fn of<T: Element>(&self) -> ReadArg<'_, T> {
        ReadArg(self, PhantomData)
    }
}

impl TensorMut {
    /// Passes the tensor to [`DeviceStream::run`] to be written (and read).
    pub fn of_mut<T: Element>(&mut self) -> WriteArg<'_, T> {
        WriteArg(self, PhantomData)
    }
}

/// The place of an argument's elements, and the mapping that it keeps.
#[derive(Debug)]
pub struct Bound {
    address: u64,
    range: Range<usize>,
    mapping: Arc<ChunkMapping>,
}

/// An argument of a host kernel.
pub trait KernelArg: sealed::Sealed {
    /// The type that the closure sees.
    type View<'k>;

    #[doc(hidden)]
    type Bound: Send + 'static;

    #[doc(hidden)]
    fn bind(self, stream: &DeviceStream) -> Result<Self::Bound, TensorError>;

    /// # Safety
    /// Called on the stream, in its order, after `bind`.
    #[doc(hidden)]
    unsafe fn view<'k>(bound: &Self::Bound) -> Result<Self::View<'k>, TensorError>;

    #[doc(hidden)]
    fn mapping(bound: &Self::Bound) -> &Arc<ChunkMapping>;
}

pub(super) mod sealed {
    pub trait Sealed {}
    impl<T> Sealed for super::ReadArg<'_, T> {}
    impl<T> Sealed for super::WriteArg<'_, T> {}
}

impl<T: Element> KernelArg for ReadArg<'_, T> {
    type View<'k> = &'k [T];
    type Bound = Bound;

    fn bind(self, stream: &DeviceStream) -> Result<Bound, TensorError> {
        let range = check::<T>(self.0.device(), self.0.dtype(), self.0.layout())?;
        in_reach(self.0.device(), stream)?;
        let address = self.0.read_on(stream.clocked())?;
        Ok(Bound { address, range, mapping: Arc::clone(self.0.lease().mapping()) })
    }

    unsafe fn view<'k>(bound: &Bound) -> Result<&'k [T], TensorError> {
        // SAFETY: on the stream, in order: the writer's clock has passed (CLOCK-1), and the memory is not
        // used again before this stream's clock has (CLOCK-2), though every handle may be gone. `bound` keeps
        // it mapped.
        unsafe { elements(bound.address, &bound.range) }
    }

    fn mapping(bound: &Bound) -> &Arc<ChunkMapping> {
        &bound.mapping
    }
}

impl<T: Element> KernelArg for WriteArg<'_, T> {
    type View<'k> = &'k mut [T];
    type Bound = Bound;

    fn bind(self, stream: &DeviceStream) -> Result<Bound, TensorError> {
        let range = check::<T>(self.0.device(), self.0.dtype(), self.0.layout())?;
        in_reach(self.0.device(), stream)?;
        let address = self.0.write_on(stream.clocked())?;
        let (_, mapping) = self.0.lease().writable()?;
        Ok(Bound { address, range, mapping })
    }

    unsafe fn view<'k>(bound: &Bound) -> Result<&'k mut [T], TensorError> {
        // SAFETY: as above. Other readers and writers of this memory wait for this stream's clock first, or
        // are on this stream, which runs one closure at a time. Two arguments cannot be one tensor: `&mut`.
        unsafe { elements_mut(bound.address, &bound.range) }
    }

    fn mapping(bound: &Bound) -> &Arc<ChunkMapping> {
        &bound.mapping
    }
}

/// A tuple of arguments.
pub trait KernelArgs {
    /// The type that the closure sees: a tuple of slices.
    type Views<'k>;

    #[doc(hidden)]
    type Bounds: Send + 'static;

    #[doc(hidden)]
    fn bind(self, stream: &DeviceStream) -> Result<Self::Bounds, TensorError>;

    /// # Safety
    /// As for [`KernelArg::view`].
    #[doc(hidden)]
    unsafe fn views<'k>(bounds: &Self::Bounds) -> Result<Self::Views<'k>, TensorError>;

    #[doc(hidden)]
    fn mappings(bounds: &Self::Bounds) -> Keep;
}

macro_rules! tuples {
    ($(($($arg:ident $index:tt),+))+) => {$(
        impl<$($arg: KernelArg),+> KernelArgs for ($($arg,)+) {
            type Views<'k> = ($($arg::View<'k>,)+);
            type Bounds = ($($arg::Bound,)+);

            fn bind(self, stream: &DeviceStream) -> Result<Self::Bounds, TensorError> {
                Ok(($(self.$index.bind(stream)?,)+))
            }

            unsafe fn views<'k>(bounds: &Self::Bounds) -> Result<Self::Views<'k>, TensorError> {
                // SAFETY: the caller's promise, argument by argument.
                Ok(unsafe { ($($arg::view(&bounds.$index)?,)+) })
            }

            fn mappings(bounds: &Self::Bounds) -> Keep {
                smallvec![$(Arc::clone($arg::mapping(&bounds.$index))),+]
            }
        }
    )+};
}

/// No tensor at all, for a closure that only has to run in order.
impl KernelArgs for () {
    type Views<'k> = ();
    type Bounds = ();

    fn bind(self, _: &DeviceStream) -> Result<(), TensorError> {
        Ok(())
    }

    unsafe fn views<'k>((): &()) -> Result<Self::Views<'k>, TensorError> {
        Ok(())
    }

    fn mappings((): &()) -> Keep {
        Keep::new()
    }
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}

impl DeviceStream {
    /// Puts a closure on this host stream, with packed tensors as slices. Returns at once.
    ///
    /// ```
    /// use tensorpost::prelude::*;
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// # let node = Node::builder().start()?;
    /// # let stream = node.host_stream()?;
    /// let input = stream.from_slice(&[3], &[1.0_f32, 2.0, 3.0])?.freeze();
    /// let mut output = stream.empty(DType::F32, &[3])?;
    /// stream.run((input.of::<f32>(), output.of_mut::<f32>()), |(input, output)| {
    ///     for (output, input) in output.iter_mut().zip(input) {
    ///         *output = input * input;
    ///     }
    /// })?;
    /// // Waits for the closure, because it looks at what the closure writes.
    /// assert_eq!(output.freeze().to_vec::<f32>()?, [1.0, 4.0, 9.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// An argument of another dtype, not packed, or not on this device; an argument whose data was lost with
    /// a process; a stream that is not the host's. The next call on the stream reports a closure that
    /// panicked. A closure does not run if data that it depends on turns out to be lost with a process.
    pub fn run<A, F>(&self, args: A, kernel: F) -> Result<(), TensorError>
    where
        A: KernelArgs,
        F: for<'k> FnOnce(A::Views<'k>) + Send + 'static,
    {
        let Some(stream) = self.clocked().backend().as_any().downcast_ref::<HostStream>() else {
            return Err(TensorError::NotOnHost { device: self.device_id().to_string() });
        };
        let bounds = args.bind(self)?;
        let keep = A::mappings(&bounds);
        let (work, domain) = (self.clocked().next_ticket(), Arc::clone(self.clocked().domain()));
        stream.run(
            move || {
                // DEATH-3: the closure would read data that was never written. Waiters for this work already
                // know of the taint.
                if let Some(by) = domain.tainted_by(&work) {
                    tracing::warn!(%by, "a host kernel was not run: what it depends on was lost with a process");
                    return;
                }
                // SAFETY: this runs on the stream, in its order, after `bind`.
                match unsafe { A::views(&bounds) } {
                    Ok(views) => kernel(views),
                    Err(error) => tracing::error!(%error, "a host kernel was not run"),
                }
            },
            keep,
        )?;
        Ok(())
    }
}
