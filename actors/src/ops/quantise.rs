//! Floats to bytes on tensors.

use tensorpost::prelude::*;

use super::{OpError, expect_shape, is_cuda, must};
use crate::image::quantise;

/// Makes gray bytes of floats of any shape, as [`quantise::to_gray8`] does.
///
/// # Errors
/// [`OpError`] says what is wrong with the tensor or the device; no memory.
pub fn to_gray8(stream: &DeviceStream, values: &Tensor, gain: f32) -> Result<TensorMut, OpError> {
    let mut gray = stream.empty(DType::U8, values.shape())?;
    to_gray8_into(stream, values, gain, &mut gray)?;
    Ok(gray)
}

/// Computes [`to_gray8`] into a tensor of the same shape.
///
/// # Errors
/// As [`to_gray8`], no memory excepted.
pub fn to_gray8_into(
    stream: &DeviceStream,
    values: &Tensor,
    gain: f32,
    gray: &mut TensorMut,
) -> Result<(), OpError> {
    expect_shape("the tensor for gray bytes", gray.shape(), values.shape())?;
    if is_cuda(stream)? {
        #[cfg(feature = "cuda")]
        return super::cuda::quantise::launch(stream, values, gain, gray);
    }
    stream.run((values.of::<f32>(), gray.of_mut::<u8>()), move |(values, gray)| {
        must(quantise::to_gray8(values, gain, gray));
    })?;
    Ok(())
}
