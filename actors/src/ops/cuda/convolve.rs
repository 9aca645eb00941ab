//! Launches of `convolve.cu`.

#![expect(unsafe_code, reason = "a kernel launch is a call into code that Rust cannot check")]

use cudarc::driver::PushKernelArg;
use tensorpost::prelude::*;

use super::{Source, area, kernel, refused};
use crate::image::ImageSize;
use crate::ops::OpError;

pub(super) const SOURCE: Source =
    Source { name: "convolve.cu", text: include_str!("convolve.cu"), kernels: &["convolve"] };

/// Launches the kernel. The caller has checked that `planes` and `out` have the same number of planes of this
/// size, and that there are `side * side` weights.
pub(in crate::ops) fn launch(
    stream: &DeviceStream,
    planes: &Tensor,
    weights: &Tensor,
    side: usize,
    out: &mut TensorMut,
    size: ImageSize,
) -> Result<(), OpError> {
    let count = (planes.len() / size.pixels()) as u32;
    if count == 0 {
        return Ok(());
    }
    let convolve = kernel(stream, &SOURCE, "convolve")?;
    let (planes, weights) = (stream.view::<f32>(planes)?, stream.view::<f32>(weights)?);
    let mut out = stream.view_mut::<f32>(out)?;
    // All of them are below 2^15.
    let (side, width, height) = (side as i32, size.width() as i32, size.height() as i32);
    let mut args = stream.launch_builder(&convolve)?;
    args.arg(&planes).arg(&weights).arg(&side).arg(&mut out).arg(&width).arg(&height);
    // SAFETY: the kernel has these parameters, and stays below these sizes, which are the tensors'.
    unsafe { args.launch(area(size.width(), size.height(), count)) }
        .map_err(refused("convolve", "launched"))?;
    Ok(())
}
