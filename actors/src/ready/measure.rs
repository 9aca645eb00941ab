//! Statistics of tensors.

use std::fmt;
use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use tensorpost::prelude::*;

use super::Carrier;
use crate::image::stats::Stats;
use crate::ops::{self, Op, OpError};

/// The statistics of an item, which may still be on their way.
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
#[serde(bound(serialize = "L: Serialize", deserialize = "L: DeserializeOwned"))]
pub struct Summary<L> {
    /// The item's label.
    pub label: L,
    /// As [`ops::stats`] makes them.
    pub words: Tensor,
}

impl<L> Summary<L> {
    /// Returns the statistics. Blocks until they are there.
    ///
    /// # Errors
    /// A tensor on another device than that of `stream`; data that will never be there.
    pub fn read(&self, stream: &DeviceStream) -> Result<Stats, OpError> {
        ops::read_stats(stream, &self.words)
    }
}

impl<L> Carrier for Summary<L>
where
    L: Clone + fmt::Debug + fmt::Display + Serialize + DeserializeOwned + Send + 'static,
{
    type Label = L;

    fn apart(self) -> (L, Tensor) {
        (self.label, self.words)
    }

    fn whole(label: L, words: Tensor) -> Self {
        Summary { label, words }
    }
}

/// Reduces each item, floats of any shape, to its statistics: count, sum, smallest, largest, mean, deviation,
/// checksum. The statistics are computed on the device, and read where they are needed.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Measure, Named};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// // In a pipeline: `.stage::<Measure<Named>>(())`. To try it out:
/// let mut stage = Measure::<Named>::new(&stream)?;
/// let mut out = Out::new();
/// stage.process(Named::new(0, "n", stream.from_slice(&[4], &[1.0_f32, 3.0, 1.0, 3.0])?.freeze()), &mut out)?;
/// let stats = out.take()[0].read(&stream)?;
/// assert_eq!((stats.count, stats.min, stats.max, stats.mean, stats.std), (4, 1.0, 3.0, 2.0, 1.0));
/// assert_eq!(stats.sum(), 8.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Measure<T> {
    stream: DeviceStream,
    types: PhantomData<fn(T)>,
}

impl<T> Measure<T> {
    /// Creates the stage on the stream of `stream`.
    ///
    /// # Errors
    /// The device has no kernels, or they cannot be compiled.
    pub fn new(stream: &DeviceStream) -> anyhow::Result<Self> {
        ops::prepare(stream, &[Op::Stats])?;
        Ok(Measure { stream: stream.clone(), types: PhantomData })
    }
}

impl<T: Carrier> Stage for Measure<T> {
    type Args = ();
    type In = T;
    type Out = Summary<T::Label>;

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Self::new(&env.stream())
    }

    fn process(&mut self, item: T, out: &mut Out<Self::Out>) -> anyhow::Result<()> {
        let (label, values) = item.apart();
        let values = self.stream.contiguous(&values)?;
        out.emit(Summary { label, words: ops::stats(&self.stream, &values)? });
        Ok(())
    }
}
