//! Why an operation on tensors was not put on its stream.

use tensorpost::prelude::*;

use crate::image::ImageError;

/// An operation was refused. Nothing was changed, unless a variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// A tensor of another shape than the operation takes.
    #[error("{what} has shape {found:?}; it must be {wanted}")]
    Shape {
        /// Which tensor.
        what: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// What it must be, in words.
        wanted: String,
    },
    /// A tensor of another dtype or device, one that is not packed, or a full pool.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Numbers or a size that make no sense.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The compiler for CUDA kernels is not there.
    #[error(
        "CUDA kernels cannot be compiled: {why}; install NVRTC of the driver's CUDA version (libnvrtc.so) and put its folder on LD_LIBRARY_PATH, or use the host device"
    )]
    NoCompiler {
        /// What the search for it said.
        why: String,
    },
    /// A source that does not compile.
    #[error("the CUDA source `{source_name}` does not compile: {log}")]
    Compile {
        /// Its name.
        source_name: String,
        /// What the compiler said.
        log: String,
    },
    /// The driver refused to load or launch a kernel.
    #[error("the CUDA kernel `{kernel}` could not be {done}: {why}")]
    Driver {
        /// The kernel.
        kernel: String,
        /// Loaded, launched …
        done: &'static str,
        /// What the driver said.
        why: String,
    },
    /// A device that this build has no kernels for.
    #[error("{device} has no kernels in this build; turn the feature `cuda` on")]
    Device {
        /// The device.
        device: String,
    },
    /// A check found a device's result to be another than the host's. The result is there.
    #[error(
        "{what} differs from the host's result: element {at} is {found}, must be {wanted} within {tolerance}"
    )]
    Differs {
        /// Which result.
        what: String,
        /// The first element that is off, in row-major order.
        at: usize,
        /// What the device made.
        found: f64,
        /// What the host makes.
        wanted: f64,
        /// The largest difference allowed.
        tolerance: f64,
    },
}
