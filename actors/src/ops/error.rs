//! The reasons why an operation on tensors was not put on its stream.

use tensorpost::prelude::*;

use crate::image::ImageError;

/// An operation was refused. Nothing was changed, unless a variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// A tensor of another shape than the operation takes.
    #[error("{what} has shape {found:?}; it must be {wanted}")]
    Shape {
        /// The tensor, in words.
        what: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The required shape, in words.
        wanted: String,
    },
    /// A tensor of another dtype or device, one that is not packed, or a full pool.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Numbers or a size that make no sense.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The compiler for CUDA kernels is missing.
    #[error(
        "CUDA kernels cannot be compiled: {why}; install NVRTC of the driver's CUDA version (libnvrtc.so) and put its folder on LD_LIBRARY_PATH, or use the host device"
    )]
    NoCompiler {
        /// The error of the search for it.
        why: String,
    },
    /// A source that does not compile.
    #[error("the CUDA source `{source_name}` does not compile: {log}")]
    Compile {
        /// Its name.
        source_name: String,
        /// The output of the compiler.
        log: String,
    },
    /// The driver refused to load or launch a kernel.
    #[error("the CUDA kernel `{kernel}` could not be {done}: {why}")]
    Driver {
        /// The kernel.
        kernel: String,
        /// The refused step: loaded, launched …
        done: &'static str,
        /// The error of the driver.
        why: String,
    },
    /// A device that this build has no kernels for.
    #[error("{device} has no kernels in this build; turn the feature `cuda` on")]
    Device {
        /// The device.
        device: String,
    },
    /// A check found that a device's result differs from the host's. The result exists.
    #[error(
        "{what} differs from the host's result: element {at} is {found}, must be {wanted} within {tolerance}"
    )]
    Differs {
        /// The result, in words.
        what: String,
        /// The first element that is off, in row-major order.
        at: usize,
        /// The device's value.
        found: f64,
        /// The host's value.
        wanted: f64,
        /// The largest difference allowed.
        tolerance: f64,
    },
}
