//! Edges on tensors.

use tensorpost::prelude::*;

use super::{OpError, expect_shape, is_cuda, must, rgb_size};
use crate::image::edge;

/// Returns the Sobel magnitude of the luma of the CHW floats `planes`, `[3, height, width]`: a new tensor,
/// `[height, width]`, as [`edge::edges`] computes it. It is a view of twice the memory; the other half has
/// the luma.
///
/// # Errors
/// [`OpError`] says what is wrong with the tensor or the device; no memory.
pub fn edges(stream: &DeviceStream, planes: &Tensor) -> Result<Tensor, OpError> {
    let size = rgb_size("the image to find edges in", planes.shape())?;
    let mut own = stream.empty(DType::F32, &[2, size.height() as usize, size.width() as usize])?;
    edges_into(stream, planes, &mut own)?;
    Ok(own.freeze().index(0, 1)?)
}

/// Computes [`edges`] into a tensor of two planes, `[2, height, width]`: the luma, then the edges.
///
/// # Errors
/// As [`edges`].
pub fn edges_into(stream: &DeviceStream, planes: &Tensor, own: &mut TensorMut) -> Result<(), OpError> {
    let size = rgb_size("the image to find edges in", planes.shape())?;
    let wanted = [2, size.height() as usize, size.width() as usize];
    expect_shape("the tensor for luma and edges", own.shape(), &wanted)?;
    if is_cuda(stream)? {
        #[cfg(feature = "cuda")]
        return super::cuda::edge::beside(stream, planes, own, size);
    }
    stream.run((planes.of::<f32>(), own.of_mut::<f32>()), move |(chw, own)| {
        let (luma, magnitude) = own.split_at_mut(size.pixels());
        must(edge::edges(chw, size, luma, magnitude));
    })?;
    Ok(())
}

/// Computes [`edges`] within the image's own memory, as [`edge::edges_in_place`] does. Returns a view of its
/// green plane, `[height, width]`.
///
/// # Errors
/// As [`edges`], no memory excepted.
pub fn edges_in_place(stream: &DeviceStream, mut planes: TensorMut) -> Result<Tensor, OpError> {
    let size = rgb_size("the image to find edges in", planes.shape())?;
    if is_cuda(stream)? {
        #[cfg(feature = "cuda")]
        super::cuda::edge::in_place(stream, &mut planes, size)?;
    } else {
        stream.run((planes.of_mut::<f32>(),), move |(chw,)| must(edge::edges_in_place(chw, size)))?;
    }
    Ok(planes.freeze().index(0, edge::EDGES_PLANE)?)
}
