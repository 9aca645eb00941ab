//! Launches of `resize.cu`.

#![expect(unsafe_code, reason = "a kernel launch is a call into code that Rust cannot check")]

use cudarc::driver::PushKernelArg;
use tensorpost::prelude::*;

use super::{Source, area, kernel, refused};
use crate::image::ImageSize;
use crate::image::resize::Range;
use crate::ops::OpError;

pub(super) const SOURCE: Source =
    Source { name: "resize.cu", text: include_str!("resize.cu"), kernels: &["resize"] };

/// Launches the kernel. The caller has checked that the tensors have these sizes.
pub(in crate::ops) fn launch(
    stream: &DeviceStream,
    pixels: &Tensor,
    from: ImageSize,
    planes: &mut TensorMut,
    to: ImageSize,
    range: Range,
) -> Result<(), OpError> {
    let resize = kernel(stream, &SOURCE, "resize")?;
    let (pixels, mut planes) = (stream.view::<u8>(pixels)?, stream.view_mut::<f32>(planes)?);
    let (from, to) = ([from.width(), from.height()], [to.width(), to.height()]);
    let unit = u32::from(range == Range::Unit);
    let mut args = stream.launch_builder(&resize)?;
    args.arg(&pixels).arg(&from[0]).arg(&from[1]).arg(&mut planes).arg(&to[0]).arg(&to[1]).arg(&unit);
    // SAFETY: the kernel has these parameters, and stays below these sizes, which are the tensors'.
    unsafe { args.launch(area(to[0], to[1], 1)) }.map_err(refused("resize", "launched"))?;
    Ok(())
}
