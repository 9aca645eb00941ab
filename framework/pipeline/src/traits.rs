//! What a user of pipelines writes: sources, stages and sinks. The attribute `#[stage]` writes the impls of
//! these traits from the methods of an `impl` block.
//!
//! `create` makes each in its worker process, and `prepare` may wait there for what it needs before its first
//! item. Its other methods run there too, on the thread of that process's actors, one call at a time. They
//! are plain code: nothing is awaited. While a call runs, the process reads no messages; what it put on a
//! stream goes on by itself.

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
    /// What `create` needs; every replica gets a clone.
    type Args: Serialize + DeserializeOwned + Clone + 'static;
    /// What it makes.
    type Out: Item;

    /// Makes the source, in its process.
    ///
    /// # Errors
    /// Whatever keeps it from working; starting the pipeline reports it.
    fn create(args: Self::Args, env: &Env) -> anyhow::Result<Self>;

    /// Gets it ready in each of its lives, after `create` and before its first item: here it may wait, as
    /// [an actor](tensorpost_core::api::actor::RemoteActor::prepare) may. Items wait meanwhile.
    ///
    /// The pipeline starts from its sinks to its sources, one after the other, so what is waited for here
    /// must come from elsewhere, or from behind.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    fn prepare(&mut self, env: &Env) -> impl Future<Output = anyhow::Result<()>> {
        let _ = env;
        std::future::ready(Ok(()))
    }

    /// The next item, or `None` at the end. Called when the pipeline has taken the one before, and not any
    /// more once the pipeline was cancelled. One that may wait for long, such as a camera, looks at
    /// [`Env::is_stopping`] meanwhile.
    ///
    /// # Errors
    /// What the stage's [`OnError`](super::OnError) decides about; after `Skip` this is called again.
    fn next(&mut self) -> anyhow::Result<Option<Self::Out>>;

    /// As [`Stage::ELSEWHERE`].
    #[doc(hidden)]
    const ELSEWHERE: Option<&'static str> = None;

    /// How many items it makes in all, if it knows: for the progress, which says then how long it will take.
    /// Asked once, before the first item.
    fn length(&self) -> Option<u64> {
        None
    }
}

/// What becomes of items: any number of results for each. `#[stage]` on an `impl` block with `process` writes
/// this; by hand it is
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
    /// What `create` needs; every replica gets a clone.
    type Args: Serialize + DeserializeOwned + Clone + 'static;
    /// What it takes.
    type In: Item;
    /// What it makes.
    type Out: Item;

    /// Makes the stage, in its process.
    ///
    /// # Errors
    /// Whatever keeps it from working; starting the pipeline reports it.
    fn create(args: Self::Args, env: &Env) -> anyhow::Result<Self>;

    /// Gets it ready in each of its lives, after `create` and before its first item: here it may wait, as
    /// [an actor](tensorpost_core::api::actor::RemoteActor::prepare) may. Items wait meanwhile.
    ///
    /// The pipeline starts from its sinks to its sources, one after the other, so what is waited for here
    /// must come from elsewhere, or from behind.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    fn prepare(&mut self, env: &Env) -> impl Future<Output = anyhow::Result<()>> {
        let _ = env;
        std::future::ready(Ok(()))
    }

    /// Takes an item. What it gives to `out` is sent when it returns without an error, in the same order.
    ///
    /// # Errors
    /// What the stage's [`OnError`](super::OnError) decides about. What it had given to `out` is dropped.
    fn process(&mut self, item: Self::In, out: &mut Out<Self::Out>) -> anyhow::Result<()>;

    /// When [`wake`](Self::wake) should be called; asked after every call. For stages that do not wait for
    /// items for ever, such as a batch that is sent on although it is not full.
    fn wake_at(&self) -> Option<Instant> {
        None
    }

    /// The moment named by [`wake_at`](Self::wake_at) has passed.
    ///
    /// # Errors
    /// Fails the pipeline, unless errors of the stage are skipped.
    fn wake(&mut self, out: &mut Out<Self::Out>) -> anyhow::Result<()> {
        let _ = out;
        Ok(())
    }

    /// All items have come; what it still has can go to `out`.
    ///
    /// After a death more may come behind the end, sent again or by a source that began anew. It is called
    /// again after each.
    ///
    /// # Errors
    /// Fails the pipeline, unless errors of the stage are skipped.
    fn finish(&mut self, out: &mut Out<Self::Out>) -> anyhow::Result<()> {
        let _ = out;
        Ok(())
    }

    /// The name under which its actor is known in the program that its worker runs, where that is another
    /// one.
    #[doc(hidden)]
    const ELSEWHERE: Option<&'static str> = None;

    /// Whether the types of its items are other programs' alone.
    #[doc(hidden)]
    const TAKES_ANY: bool = false;

    /// For the pipeline's own stages.
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
    /// What `create` needs; every replica gets a clone.
    type Args: Serialize + DeserializeOwned + Clone + 'static;
    /// What it takes.
    type In: Item;

    /// Makes the sink, in its process.
    ///
    /// # Errors
    /// Whatever keeps it from working; starting the pipeline reports it.
    fn create(args: Self::Args, env: &Env) -> anyhow::Result<Self>;

    /// Gets it ready in each of its lives, after `create` and before its first item: here it may wait, as
    /// [an actor](tensorpost_core::api::actor::RemoteActor::prepare) may. Items wait meanwhile.
    ///
    /// The pipeline starts from its sinks to its sources, one after the other, so what is waited for here
    /// must come from elsewhere, or from behind.
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
    /// What the stage's [`OnError`](super::OnError) decides about.
    fn consume(&mut self, item: Self::In) -> anyhow::Result<()>;

    /// All items have come. After a death more may come, and it is called again after each.
    ///
    /// # Errors
    /// Fails the pipeline, unless errors of the stage are skipped.
    fn finish(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
