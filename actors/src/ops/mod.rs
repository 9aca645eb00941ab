//! The arithmetic of [`image`](crate::image) on tensors: one call for every device.
//!
//! Each function puts its work on the stream of the [`DeviceStream`] that it is given and returns at once. On
//! the host device the work is a closure around the function of [`image`](crate::image). On an NVIDIA GPU it
//! is a kernel, which NVRTC compiles from source once per process. [`prepare`] compiles kernels ahead: call
//! it where an actor is created.
//!
//! ```
//! use tensorpost::prelude::*;
//! use tensorpost_actors::image::{ImageSize, normalise::Normalisation, resize::Range};
//! use tensorpost_actors::ops::{self, Op};
//!
//! # fn main() -> anyhow::Result<()> {
//! # let node = Node::builder().start()?;
//! let stream = node.host_stream()?; // in an actor: `env.stream()`, on whatever device it was started
//! ops::prepare(&stream, &[Op::Resize, Op::Normalise, Op::Edges])?;
//! let gray = stream.from_slice(&[2, 2, 3], &[128_u8; 12])?.freeze();
//! let mut planes = ops::resize(&stream, &gray, ImageSize::new(4, 3)?, Range::Bytes)?;
//! ops::normalise(&stream, &mut planes, &Normalisation::IMAGENET)?;
//! let edges = ops::edges(&stream, &planes.freeze())?;
//! assert_eq!(stream.download::<f32>(&edges)?, [0.0; 12]); // waits for all of it
//! # Ok(())
//! # }
//! ```
//!
//! # Agreement
//! This is how far a GPU's result may be from the host's. The kernels do the same operations in the same
//! order, without contraction and with exact division and square roots, so that most results are equal to the
//! bit:
//!
//! | operation | largest difference |
//! |---|---|
//! | [`resize()`], [`normalise()`], [`denormalise`], [`edges`], [`convolve()`], [`to_gray8`] | 0 |
//! | [`stats()`]: count, smallest, largest, checksum | 0 |
//! | [`stats()`]: mean and deviation | [`STATS_TOLERANCE`](crate::image::stats::TOLERANCE), relative: their sums have another order |
//!
//! [`check`] compares a result with the host's.

pub mod check;
mod convolve;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod edge;
mod error;
mod normalise;
mod quantise;
mod resize;
mod stats;

pub use convolve::{Convolver, convolve};
pub use edge::{edges, edges_in_place, edges_into};
pub use error::OpError;
pub use normalise::{denormalise, normalise};
pub use quantise::{to_gray8, to_gray8_into};
pub use resize::{Resizer, resize};
pub use stats::{SUMMARY_WORDS, read_stats, stats, stats_into};

use tensorpost::prelude::*;

use crate::image::{ImageError, ImageSize};

/// An operation, to name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// [`resize()`] and [`Resizer`].
    Resize,
    /// [`normalise()`] and [`denormalise`].
    Normalise,
    /// [`edges`], [`edges_into`] and [`edges_in_place`].
    Edges,
    /// [`convolve()`] and [`Convolver`].
    Convolve,
    /// [`to_gray8`] and [`to_gray8_into`].
    ToGray8,
    /// [`stats()`] and [`stats_into`].
    Stats,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 6] = [Op::Resize, Op::Normalise, Op::Edges, Op::Convolve, Op::ToGray8, Op::Stats];
}

/// Makes operations ready on the device of `stream`: on a GPU, compiles and loads their kernels, once per
/// process. The call is optional, but without it the first use of an operation makes its caller wait, and may
/// wait for other work on the GPU.
///
/// # Errors
/// [`OpError::NoCompiler`] without NVRTC; [`OpError::Device`] in a build without the device's kernels.
pub fn prepare(stream: &DeviceStream, ops: &[Op]) -> Result<(), OpError> {
    if is_cuda(stream)? {
        #[cfg(feature = "cuda")]
        return ops.iter().try_for_each(|&op| cuda::prepare(stream, op));
    }
    let _ = ops;
    Ok(())
}

/// Returns whether a CUDA kernel does the work; otherwise a closure on the host does it.
fn is_cuda(stream: &DeviceStream) -> Result<bool, OpError> {
    match stream.kind() {
        DeviceKind::Host => Ok(false),
        DeviceKind::Cuda if cfg!(feature = "cuda") => Ok(true),
        _ => Err(OpError::Device { device: stream.name() }),
    }
}

/// Panics on an error, in a closure on a host stream. The shapes were checked before, so an error is a defect
/// of this crate. The panic becomes the stream's failure, which its next caller gets.
fn must(done: Result<(), ImageError>) {
    if let Err(error) = done {
        std::panic::panic_any(error.to_string());
    }
}

/// Returns the size of an image of shape `[.., height, width]`, at `axis` the height.
fn size_at(what: &'static str, shape: &[usize], axis: usize) -> Result<ImageSize, OpError> {
    let side = |axis: usize| shape.get(axis).map(|&side| u32::try_from(side).unwrap_or(u32::MAX));
    match (side(axis + 1), side(axis)) {
        (Some(width), Some(height)) => Ok(ImageSize::new(width, height)?),
        _ => Err(wrong(what, shape, "an image")),
    }
}

/// Returns the size of planes of shape `[3, height, width]`.
fn rgb_size(what: &'static str, shape: &[usize]) -> Result<ImageSize, OpError> {
    match shape {
        [3, _, _] => size_at(what, shape, 1),
        _ => Err(wrong(what, shape, "[3, height, width]")),
    }
}

/// Checks that a tensor has the wanted shape.
fn expect_shape(what: &'static str, found: &[usize], wanted: &[usize]) -> Result<(), OpError> {
    if found == wanted { Ok(()) } else { Err(wrong(what, found, &format!("{wanted:?}"))) }
}

fn wrong(what: &'static str, found: &[usize], wanted: &str) -> OpError {
    OpError::Shape { what, found: found.to_vec(), wanted: wanted.to_owned() }
}
