//! Convolving images.

use std::marker::PhantomData;

use tensorpost::prelude::*;

use super::Carrier;
use crate::image::convolve::Convolution;
use crate::ops::{self, Convolver, Op};

/// Convolves floats, `[height, width]` or `[planes, height, width]`, plane by plane, as [`Convolution`] does.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::image::convolve::Convolution;
/// use tensorpost_actors::ready::{Convolve, Named};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// // In a pipeline: `.stage::<Convolve<Named>>(Convolution::mean(3)?)`. To try it out:
/// let mut stage = Convolve::<Named>::new(Convolution::new([1.0; 9])?, &stream)?;
/// let dot = [0.0_f32, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0];
/// let mut out = Out::new();
/// stage.process(Named::new(0, "dot", stream.from_slice(&[3, 3], &dot)?.freeze()), &mut out)?;
/// assert_eq!(out.take()[0].tensor.to_vec::<f32>()?, [2.0; 9]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Convolve<T> {
    stream: DeviceStream,
    convolver: Convolver,
    types: PhantomData<fn(T) -> T>,
}

impl<T> Convolve<T> {
    /// Creates the stage on the stream of `stream`.
    ///
    /// # Errors
    /// The device has no kernels, or they cannot be compiled; no memory for the weights.
    pub fn new(convolution: Convolution, stream: &DeviceStream) -> anyhow::Result<Self> {
        ops::prepare(stream, &[Op::Convolve])?;
        let convolver = Convolver::new(stream, convolution)?;
        Ok(Convolve { stream: stream.clone(), convolver, types: PhantomData })
    }
}

impl<T: Carrier> Stage for Convolve<T> {
    type Args = Convolution;
    type In = T;
    type Out = T;

    fn create(convolution: Convolution, env: &Env) -> anyhow::Result<Self> {
        Self::new(convolution, &env.stream())
    }

    fn process(&mut self, item: T, out: &mut Out<T>) -> anyhow::Result<()> {
        out.emit(item.with(|planes| -> anyhow::Result<Tensor> {
            let planes = self.stream.contiguous(&planes)?;
            let mut convolved = self.stream.empty(DType::F32, planes.shape())?;
            self.convolver.run(&self.stream, &planes, &mut convolved)?;
            Ok(convolved.freeze())
        })?);
        Ok(())
    }
}
