//! Normalising images.

use std::marker::PhantomData;

use tensorpost::prelude::*;

use super::Carrier;
use super::item::own;
use crate::image::normalise::Normalisation;
use crate::ops::{self, Op};

/// Normalises planes of floats of the range 0..=255, `[3, height, width]`, by channel, in place where nobody
/// else has the memory.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::image::normalise::Normalisation;
/// use tensorpost_actors::ready::{Named, Normalise};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// // In a pipeline: `.stage::<Normalise<Named>>(Normalisation::IMAGENET)`. To try it out:
/// let mut stage = Normalise::<Named>::new(Normalisation::new([0.5; 3], [0.5; 3])?, &stream)?;
/// let pixel = Named::new(0, "pixel", stream.from_slice(&[3, 1, 1], &[0.0_f32, 127.5, 255.0])?.freeze());
/// let mut out = Out::new();
/// stage.process(pixel, &mut out)?;
/// assert_eq!(out.take()[0].tensor.to_vec::<f32>()?, [-1.0, 0.0, 1.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Normalise<T> {
    stream: DeviceStream,
    normalisation: Normalisation,
    types: PhantomData<fn(T) -> T>,
}

impl<T> Normalise<T> {
    /// Creates the stage on the stream of `stream`.
    ///
    /// # Errors
    /// The device has no kernels, or they cannot be compiled.
    pub fn new(normalisation: Normalisation, stream: &DeviceStream) -> anyhow::Result<Self> {
        ops::prepare(stream, &[Op::Normalise])?;
        Ok(Normalise { stream: stream.clone(), normalisation, types: PhantomData })
    }
}

impl<T: Carrier> Stage for Normalise<T> {
    type Args = Normalisation;
    type In = T;
    type Out = T;

    fn create(normalisation: Normalisation, env: &Env) -> anyhow::Result<Self> {
        Self::new(normalisation, &env.stream())
    }

    fn process(&mut self, item: T, out: &mut Out<T>) -> anyhow::Result<()> {
        out.emit(item.with(|planes| -> anyhow::Result<Tensor> {
            let mut planes = own(&self.stream, planes)?;
            ops::normalise(&self.stream, &mut planes, &self.normalisation)?;
            Ok(planes.freeze())
        })?);
        Ok(())
    }
}
