//! Launches of `edge.cu`.

#![expect(unsafe_code, reason = "a kernel launch is a call into code that Rust cannot check")]

use cudarc::driver::PushKernelArg;
use tensorpost::prelude::*;

use super::{Source, area, kernel, line, refused};
use crate::image::ImageSize;
use crate::ops::OpError;

pub(super) const SOURCE: Source = Source {
    name: "edge.cu",
    text: include_str!("edge.cu"),
    kernels: &["luma", "luma_in_place", "sobel_to_next_plane"],
};

/// Computes the luma into the first plane of `own`, and the edges into the second. The caller has checked
/// that both tensors fit the size.
pub(in crate::ops) fn beside(
    stream: &DeviceStream,
    planes: &Tensor,
    own: &mut TensorMut,
    size: ImageSize,
) -> Result<(), OpError> {
    let luma = kernel(stream, &SOURCE, "luma")?;
    let planes = stream.view::<f32>(planes)?;
    let mut hw = stream.view_mut::<f32>(own)?;
    let plane = size.pixels();
    let mut args = stream.launch_builder(&luma)?;
    args.arg(&planes).arg(&mut hw).arg(&plane);
    // SAFETY: the kernel has these parameters; it reads three planes of this many elements and writes one,
    // and the tensors have three and two.
    unsafe { args.launch(line(plane)) }.map_err(refused("luma", "launched"))?;
    sobel(stream, own, size)
}

/// Computes the luma into the first plane of an image, and the edges into its second. The caller has checked
/// that the tensor fits the size.
pub(in crate::ops) fn in_place(
    stream: &DeviceStream,
    planes: &mut TensorMut,
    size: ImageSize,
) -> Result<(), OpError> {
    let luma = kernel(stream, &SOURCE, "luma_in_place")?;
    let mut chw = stream.view_mut::<f32>(planes)?;
    let plane = size.pixels();
    let mut args = stream.launch_builder(&luma)?;
    args.arg(&mut chw).arg(&plane);
    // SAFETY: the kernel has these parameters, and stays within three planes of this many elements, as the
    // tensor has.
    unsafe { args.launch(line(plane)) }.map_err(refused("luma_in_place", "launched"))?;
    sobel(stream, planes, size)
}

fn sobel(stream: &DeviceStream, planes: &mut TensorMut, size: ImageSize) -> Result<(), OpError> {
    let sobel = kernel(stream, &SOURCE, "sobel_to_next_plane")?;
    let mut planes = stream.view_mut::<f32>(planes)?;
    let (width, height) = (size.width(), size.height());
    let mut args = stream.launch_builder(&sobel)?;
    args.arg(&mut planes).arg(&width).arg(&height);
    // SAFETY: the kernel has these parameters; it reads the first plane of this size and writes the second,
    // and the tensor has at least two.
    unsafe { args.launch(area(width, height, 1)) }.map_err(refused("sobel_to_next_plane", "launched"))?;
    Ok(())
}
