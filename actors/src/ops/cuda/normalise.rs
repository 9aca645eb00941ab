//! Launches of `normalise.cu`.

#![expect(unsafe_code, reason = "a kernel launch is a call into code that Rust cannot check")]

use cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use tensorpost::prelude::*;

use super::{Source, kernel, line, refused};
use crate::image::ImageSize;
use crate::image::normalise::Normalisation;
use crate::ops::OpError;

pub(super) const SOURCE: Source = Source {
    name: "normalise.cu",
    text: include_str!("normalise.cu"),
    kernels: &["normalise", "denormalise"],
};

/// The struct of this name in the source.
#[derive(Clone, Copy)]
#[repr(C)]
struct Channels {
    mean: [f32; 3],
    deviation: [f32; 3],
}

// SAFETY: six floats, laid out as C does, and the kernel reads them so.
unsafe impl DeviceRepr for Channels {}

/// Launches the kernel `name`; both kernels have the same parameters. The caller has checked that the tensor
/// has this size.
pub(in crate::ops) fn launch(
    stream: &DeviceStream,
    planes: &mut TensorMut,
    size: ImageSize,
    normalisation: &Normalisation,
    name: &'static str,
) -> Result<(), OpError> {
    let kernel = kernel(stream, &SOURCE, name)?;
    let mut planes = stream.view_mut::<f32>(planes)?;
    let plane = size.pixels();
    let of = Channels { mean: normalisation.mean(), deviation: normalisation.std() };
    let mut args = stream.launch_builder(&kernel)?;
    args.arg(&mut planes).arg(&plane).arg(&of);
    let blocks = line(plane);
    let config = LaunchConfig { grid_dim: (blocks.grid_dim.0, 3, 1), ..blocks };
    // SAFETY: the kernel has these parameters, and stays within three planes of this many elements, as the
    // tensor has.
    unsafe { args.launch(config) }.map_err(refused(name, "launched"))?;
    Ok(())
}
