//! Normalisation on tensors, in place.

use tensorpost::prelude::*;

use super::{OpError, is_cuda, must, rgb_size};
use crate::image::normalise::Normalisation;

/// Replaces each value of the CHW floats `planes`, `[3, height, width]`, as [`Normalisation::apply`] does.
///
/// # Errors
/// [`OpError`] says what is wrong with the tensor or the device.
pub fn normalise(
    stream: &DeviceStream,
    planes: &mut TensorMut,
    normalisation: &Normalisation,
) -> Result<(), OpError> {
    let size = rgb_size("the image to normalise", planes.shape())?;
    if is_cuda(stream)? {
        #[cfg(feature = "cuda")]
        return super::cuda::normalise::launch(stream, planes, size, normalisation, "normalise");
    }
    let normalisation = *normalisation;
    stream.run((planes.of_mut::<f32>(),), move |(chw,)| must(normalisation.apply(chw, size)))?;
    Ok(())
}

/// Undoes [`normalise`], as [`Normalisation::invert`] does.
///
/// # Errors
/// As [`normalise`].
pub fn denormalise(
    stream: &DeviceStream,
    planes: &mut TensorMut,
    normalisation: &Normalisation,
) -> Result<(), OpError> {
    let size = rgb_size("the image to undo the normalisation of", planes.shape())?;
    if is_cuda(stream)? {
        #[cfg(feature = "cuda")]
        return super::cuda::normalise::launch(stream, planes, size, normalisation, "denormalise");
    }
    let normalisation = *normalisation;
    stream.run((planes.of_mut::<f32>(),), move |(chw,)| must(normalisation.invert(chw, size)))?;
    Ok(())
}
