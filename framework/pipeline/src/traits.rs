//! The traits that a user of pipelines implements: sources, stages and sinks. The attribute `#[stage]` writes
//! the impls of these traits from the methods of an `impl` block.
//!
//! `create` makes each of them in its worker process, and `prepare` may wait there for anything that the
//! stage needs before its first item. The other methods run there too, on the thread of that process's
//! actors, one call at a time. They are plain code: nothing is awaited. While a call runs, the process reads
//! no messages; work that the call put on a stream goes on by itself.

use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorpost_core::api::actor::Env;

use super::item::Item;
use super::out::Out;
use super::pairs::PartnerNews;

/// Where items come from. `#[stage]` on an `impl` block with `next` writes this; by hand it is
///
/// ```
/// use tensorpost::prelude::*;
///
/// #[derive(Clone, Serialize, Deserialize, GpuMessage)]
/// struct Sample {
///     values: Tensor,
/// }
///
/// struct Samples {
///     stream: DeviceStream,
///     left: u32,
/// }
///
/// impl Source for Samples {
///     type Args = u32;
///     type Out = Sample;
///
///     fn create(count: u32, env: &Env) -> anyhow::Result<Self> {
///         Ok(Samples { stream: env.stream(), left: count })
///     }
///
///     fn next(&mut self) -> anyhow::Result<Option<Sample>> {
///         if self.left == 0 {
///             return Ok(None);
///         }
///         self.left -= 1;
///         Ok(Some(Sample { values: self.stream.zeros(DType::F32, &[16])?.freeze() }))
///     }
/// }
/// ```
pub trait Source: Sized + 'static {
    /// The arguments of `create`; every replica gets a clone.
    type Args: Serialize + DeserializeOwned + Clone + 'static;
    /// The type of the items that it makes.
    type Out: Item;

    /// Makes the source, in its process.
    ///
    /// # Errors
    /// Any error that keeps it from working; starting the pipeline reports it.
    fn create(args: Self::Args, env: &Env) -> anyhow::Result<Self>;

    /// Prepares it in each of its lives, after `create` and before its first item. It may wait here, as [an
    /// actor](tensorpost_core::api::actor::RemoteActor::prepare) may. Items wait meanwhile.
    ///
    /// The pipeline starts from its sinks to its sources, one after the other. So this may wait only for
    /// events from outside the pipeline, or from the stages behind this one.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    fn prepare(&mut self, env: &Env) -> impl Future<Output = anyhow::Result<()>> {
        let _ = env;
        std::future::ready(Ok(()))
    }

    /// Returns the next item, or `None` at the end. Called when the pipeline has taken the item before, and
    /// no more once the pipeline was cancelled. A source that may wait for long, such as a camera, checks
    /// [`Env::is_stopping`] meanwhile.
    ///
    /// # Errors
    /// The stage's [`OnError`](super::OnError) decides what happens then; after `Skip` this is called again.
    fn next(&mut self) -> anyhow::Result<Option<Self::Out>>;

    /// As [`Stage::WIRE_NAME`].
    #[doc(hidden)]
    const WIRE_NAME: Option<&'static str> = None;

    /// Returns how many items it makes in all, if it knows. The progress then shows how long the rest will
    /// take. Called once, before the first item.
    fn length(&self) -> Option<u64> {
        None
    }
}

/// Turns items into results, any number for each. `#[stage]` on an `impl` block with `process` writes this;
/// by hand it is
///
/// ```
/// use tensorpost::prelude::*;
/// # #[derive(Clone, Serialize, Deserialize, GpuMessage)]
/// # struct Sample { values: Tensor }
///
/// struct Square {
///     stream: DeviceStream,
/// }
///
/// impl Stage for Square {
///     type Args = ();
///     type In = Sample;
///     type Out = Sample;
///
///     fn create((): (), env: &Env) -> anyhow::Result<Self> {
///         Ok(Square { stream: env.stream() })
///     }
///
///     fn process(&mut self, sample: Sample, out: &mut Out<Sample>) -> anyhow::Result<()> {
///         // In place where nobody else holds the values, in a copy otherwise.
///         let values = sample.values.into_mut(&self.stream);
///         let mut values = values.or_else(|shared| self.stream.copy(&shared.tensor))?;
///         self.stream.run((values.of_mut::<f32>(),), |(values,)| {
///             for value in values {
///                 *value *= *value;
///             }
///         })?;
///         out.emit(Sample { values: values.freeze() });
///         Ok(())
///     }
/// }
/// ```
pub trait Stage: Sized + 'static {
    /// The arguments of `create`; every replica gets a clone.
    type Args: Serialize + DeserializeOwned + Clone + 'static;
    /// The type of the items that it takes.
    type In: Item;
    /// The type of the items that it makes.
    type Out: Item;

    /// Makes the stage, in its process.
    ///
    /// # Errors
    /// Any error that keeps it from working; starting the pipeline reports it.
    fn create(args: Self::Args, env: &Env) -> anyhow::Result<Self>;

    /// Prepares it in each of its lives, after `create` and before its first item. It may wait here, as [an
    /// actor](tensorpost_core::api::actor::RemoteActor::prepare) may. Items wait meanwhile.
    ///
    /// The pipeline starts from its sinks to its sources, one after the other. So this may wait only for
    /// events from outside the pipeline, or from the stages behind this one.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    fn prepare(&mut self, env: &Env) -> impl Future<Output = anyhow::Result<()>> {
        let _ = env;
        std::future::ready(Ok(()))
    }

    /// Takes an item. The results that it gives to `out` are sent when it returns without an error, in the
    /// same order.
    ///
    /// # Errors
    /// The stage's [`OnError`](super::OnError) decides what happens then. The results that the call had given
    /// to `out` are dropped.
    fn process(&mut self, item: Self::In, out: &mut Out<Self::Out>) -> anyhow::Result<()>;

    /// Returns when [`wake`](Self::wake) should be called; asked after every call. It is for stages that do
    /// not wait for items for ever, such as a batch that is sent on although it is not full.
    fn wake_at(&self) -> Option<Instant> {
        None
    }

    /// Called when the moment named by [`wake_at`](Self::wake_at) has passed.
    ///
    /// # Errors
    /// Fails the pipeline, unless errors of the stage are skipped.
    fn wake(&mut self, out: &mut Out<Self::Out>) -> anyhow::Result<()> {
        let _ = out;
        Ok(())
    }

    /// Called when all items have come. The stage can give the items that it still has to `out`.
    ///
    /// After a death more items may come behind the end, sent again or made by a source that began anew. This
    /// is called again after each of them.
    ///
    /// # Errors
    /// Fails the pipeline, unless errors of the stage are skipped.
    fn finish(&mut self, out: &mut Out<Self::Out>) -> anyhow::Result<()> {
        let _ = out;
        Ok(())
    }

    /// The name under which the worker's program knows the stage's actor, where that is another program.
    #[doc(hidden)]
    const WIRE_NAME: Option<&'static str> = None;

    /// Whether only other programs know the types of its items.
    #[doc(hidden)]
    const TAKES_ANY: bool = false;

    /// Tells a stage of the pipeline's own about the halves that it holds.
    #[doc(hidden)]
    fn partners(&mut self, notice: PartnerNews<'_>, out: &mut Out<Self::Out>) {
        let _ = (notice, out);
    }
}

/// Where items end. `#[stage]` on an `impl` block with `consume` writes this; by hand it is
///
/// ```
/// use tensorpost::prelude::*;
/// # #[derive(Clone, Serialize, Deserialize, GpuMessage)]
/// # struct Sample { values: Tensor }
///
/// struct Print {
///     count: u64,
/// }
///
/// impl Sink for Print {
///     type Args = ();
///     type In = Sample;
///
///     fn create((): (), _: &Env) -> anyhow::Result<Self> {
///         Ok(Print { count: 0 })
///     }
///
///     fn consume(&mut self, sample: Sample) -> anyhow::Result<()> {
///         self.count += 1;
///         println!("{:?}", sample.values.to_vec::<f32>()?);
///         Ok(())
///     }
///
///     fn finish(&mut self) -> anyhow::Result<()> {
///         println!("{} samples", self.count);
///         Ok(())
///     }
/// }
/// ```
pub trait Sink: Sized + 'static {
    /// The arguments of `create`; every replica gets a clone.
    type Args: Serialize + DeserializeOwned + Clone + 'static;
    /// The type of the items that it takes.
    type In: Item;

    /// Makes the sink, in its process.
    ///
    /// # Errors
    /// Any error that keeps it from working; starting the pipeline reports it.
    fn create(args: Self::Args, env: &Env) -> anyhow::Result<Self>;

    /// Prepares it in each of its lives, after `create` and before its first item. It may wait here, as [an
    /// actor](tensorpost_core::api::actor::RemoteActor::prepare) may. Items wait meanwhile.
    ///
    /// The pipeline starts from its sinks to its sources, one after the other. So this may wait only for
    /// events from outside the pipeline, or from the stages behind this one.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    fn prepare(&mut self, env: &Env) -> impl Future<Output = anyhow::Result<()>> {
        let _ = env;
        std::future::ready(Ok(()))
    }

    /// Takes an item.
    ///
    /// # Errors
    /// The stage's [`OnError`](super::OnError) decides what happens then.
    fn consume(&mut self, item: Self::In) -> anyhow::Result<()>;

    /// Called when all items have come. After a death more may come, and this is called again after each of
    /// them.
    ///
    /// # Errors
    /// Fails the pipeline, unless errors of the stage are skipped.
    fn finish(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
