//! Finding edges in images.

use std::marker::PhantomData;

use tensorpost::prelude::*;

use super::Carrier;
use crate::ops::{self, Op};

/// Finds the edges of planes of floats, `[3, height, width]`, as [`image::edge`](crate::image::edge) does:
/// the result is magnitudes, `[height, width]`, in the image's own memory where nobody else has it.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Edges, Named};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// // In a pipeline: `.stage::<Edges<Named>>(())`. To try it out:
/// let mut stage = Edges::<Named>::new(&stream)?;
/// let even = Named::new(0, "even", stream.from_slice(&[3, 2, 2], &[9.0_f32; 12])?.freeze());
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
    stream: DeviceStream,
    types: PhantomData<fn(T) -> T>,
}

impl<T> Edges<T> {
    /// Creates the stage on the stream of `stream`.
    ///
    /// # Errors
    /// The device has no kernels, or they cannot be compiled.
    pub fn new(stream: &DeviceStream) -> anyhow::Result<Self> {
        ops::prepare(stream, &[Op::Edges])?;
        Ok(Edges { stream: stream.clone(), types: PhantomData })
    }
}

impl<T: Carrier> Stage for Edges<T> {
    type Args = ();
    type In = T;
    type Out = T;

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Self::new(&env.stream())
    }

    fn process(&mut self, item: T, out: &mut Out<T>) -> anyhow::Result<()> {
        out.emit(item.with(|planes| -> anyhow::Result<Tensor> {
            Ok(match planes.into_mut(&self.stream) {
                Ok(planes) => ops::edges_in_place(&self.stream, planes)?,
                Err(shared) => ops::edges(&self.stream, &shared.tensor)?,
            })
        })?);
        Ok(())
    }
}
