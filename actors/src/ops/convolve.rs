//! Convolution on tensors.

use tensorpost::prelude::*;

use super::{OpError, expect_shape, is_cuda, must, size_at, wrong};
use crate::image::ImageSize;
use crate::image::convolve::Convolution;

/// A convolution with its weights on a device.
#[derive(Clone, Debug)]
pub struct Convolver {
    convolution: Convolution,
    /// The weights on a GPU; on the host the closures contain them.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "kernels alone read it"))]
    weights: Option<Tensor>,
}

impl Convolver {
    /// Brings the weights to the device.
    ///
    /// # Errors
    /// No memory, or no kernels for the device in this build.
    pub fn new(stream: &DeviceStream, convolution: Convolution) -> Result<Self, OpError> {
        let weights = if is_cuda(stream)? {
            Some(stream.from_slice(&[convolution.weights().len()], convolution.weights())?.freeze())
        } else {
            None
        };
        Ok(Convolver { convolution, weights })
    }

    /// Returns the convolution that it applies.
    pub fn convolution(&self) -> &Convolution {
        &self.convolution
    }

    /// Convolves floats, `[height, width]` or `[planes, height, width]`, into a tensor of the same shape,
    /// plane by plane as [`Convolution::apply`] does.
    ///
    /// # Errors
    /// [`OpError`] says what is wrong with a tensor or the device.
    pub fn run(&self, stream: &DeviceStream, planes: &Tensor, out: &mut TensorMut) -> Result<(), OpError> {
        let size = size_of(planes.shape())?;
        expect_shape("the tensor for the convolved image", out.shape(), planes.shape())?;
        if is_cuda(stream)? {
            #[cfg(feature = "cuda")]
            if let Some(weights) = &self.weights {
                let side = self.convolution.side();
                return super::cuda::convolve::launch(stream, planes, weights, side, out, size);
            }
            return Err(OpError::Device { device: stream.name() }); // made for another device
        }
        let convolution = self.convolution.clone();
        stream.run((planes.of::<f32>(), out.of_mut::<f32>()), move |(planes, out)| {
            for (hw, out) in planes.chunks_exact(size.pixels()).zip(out.chunks_exact_mut(size.pixels())) {
                must(convolution.apply(hw, size, out));
            }
        })?;
        Ok(())
    }
}

/// Convolves floats, `[height, width]` or `[planes, height, width]`; a [`Convolver`] keeps the weights on the
/// device.
///
/// # Errors
/// As [`Convolver::run`], and no memory.
pub fn convolve(
    stream: &DeviceStream,
    planes: &Tensor,
    convolution: &Convolution,
) -> Result<TensorMut, OpError> {
    let mut out = stream.empty(DType::F32, planes.shape())?;
    Convolver::new(stream, convolution.clone())?.run(stream, planes, &mut out)?;
    Ok(out)
}

fn size_of(shape: &[usize]) -> Result<ImageSize, OpError> {
    let what = "the image to convolve";
    match shape {
        [_, _] => size_at(what, shape, 0),
        // CUDA bounds the third dimension of a grid.
        [planes, _, _] if *planes <= 65_535 => size_at(what, shape, 1),
        _ => Err(wrong(what, shape, "[height, width] or [planes, height, width]")),
    }
}
