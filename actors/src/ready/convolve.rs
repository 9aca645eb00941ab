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
/// # let gpu = node.host()?;
/// // In a pipeline: `.stage::<Convolve<Named>>(Convolution::mean(3)?)`. To try it out:
/// let mut stage = Convolve::<Named>::new(Convolution::new([1.0; 9])?, &gpu)?;
/// let dot = [0.0_f32, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0];
/// let mut out = Out::new();
/// stage.process(Named::new(0, "dot", gpu.from_slice(&[3, 3], &dot)?.freeze()), &mut out)?;
/// assert_eq!(out.take()[0].tensor.to_vec::<f32>()?, [2.0; 9]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Convolve<T> {
    gpu: Gpu,
    convolver: Convolver,
    types: PhantomData<fn(T) -> T>,
}

impl<T> Convolve<T> {
    /// The stage on the stream of `gpu`.
    ///
    /// # Errors
    /// The device has no kernels, or they cannot be compiled; no memory for the weights.
    pub fn new(convolution: Convolution, gpu: &Gpu) -> anyhow::Result<Self> {
        ops::prepare(gpu, &[Op::Convolve])?;
        let convolver = Convolver::new(gpu, convolution)?;
        Ok(Convolve { gpu: gpu.clone(), convolver, types: PhantomData })
    }
}

impl<T: Carrier> Stage for Convolve<T> {
    type Args = Convolution;
    type In = T;
    type Out = T;

    fn create(convolution: Convolution, env: &Env) -> anyhow::Result<Self> {
        Self::new(convolution, &env.gpu())
    }

    fn process(&mut self, item: T, out: &mut Out<T>) -> anyhow::Result<()> {
        out.emit(item.with(|planes| -> anyhow::Result<Tensor> {
            let planes = self.gpu.contiguous(&planes)?;
            let mut convolved = self.gpu.empty(DType::F32, planes.shape())?;
            self.convolver.run(&self.gpu, &planes, &mut convolved)?;
            Ok(convolved.freeze())
        })?);
        Ok(())
    }
}
