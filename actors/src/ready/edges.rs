//! Finding edges in images.

use std::marker::PhantomData;

use tensorpost::prelude::*;

use super::Carrier;
use crate::ops::{self, Op};

/// Finds the edges of planes of floats, `[3, height, width]`, as [`image::edge`](crate::image::edge) does: magnitudes,
/// `[height, width]`, in the image's own memory where nobody else has it.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Edges, Named};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let gpu = node.host()?;
/// // In a pipeline: `.stage::<Edges<Named>>(())`. To try it out:
/// let mut stage = Edges::<Named>::new(&gpu)?;
/// let even = Named::new(0, "even", gpu.from_slice(&[3, 2, 2], &[9.0_f32; 12])?.freeze());
/// let memory = even.tensor.lease().id();
/// let mut out = Out::new();
/// stage.process(even, &mut out)?;
/// let edges = out.take().remove(0).tensor;
/// assert_eq!((edges.lease().id(), edges.to_vec::<f32>()?), (memory, vec![0.0; 4]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Edges<T> {
    gpu: Gpu,
    types: PhantomData<fn(T) -> T>,
}

impl<T> Edges<T> {
    /// The stage on the stream of `gpu`.
    ///
    /// # Errors
    /// The device has no kernels, or they cannot be compiled.
    pub fn new(gpu: &Gpu) -> anyhow::Result<Self> {
        ops::prepare(gpu, &[Op::Edges])?;
        Ok(Edges { gpu: gpu.clone(), types: PhantomData })
    }
}

impl<T: Carrier> Stage for Edges<T> {
    type Args = ();
    type In = T;
    type Out = T;

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Self::new(&env.gpu())
    }

    fn process(&mut self, item: T, out: &mut Out<T>) -> anyhow::Result<()> {
        out.emit(item.with(|planes| -> anyhow::Result<Tensor> {
            Ok(match planes.into_mut(&self.gpu) {
                Ok(planes) => ops::edges_in_place(&self.gpu, planes)?,
                Err(shared) => ops::edges(&self.gpu, &shared.tensor)?,
            })
        })?);
        Ok(())
    }
}
