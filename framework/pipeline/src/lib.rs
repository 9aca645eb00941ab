//! Pipelines: sources, stages and sinks in processes of their own, and the items that flow between them.
//!
//! A pipeline is written down with types, so an edge between stages whose types differ does not compile.
//! Every other mistake in it is found before a process starts. It is bounded everywhere: a slow sink slows
//! its source down. The pipeline ends when its sources have ended or were stopped, and everything that they
//! made has been handled.
//!
//! ```standalone_crate
//! use tensorpost::prelude::*;
//!
//! #[derive(Clone, Serialize, Deserialize, GpuMessage)]
//! struct Frame {
//!     #[tensor(dtype = f32)]
//!     pixels: Tensor,
//! }
//!
//! struct Invert(DeviceStream);
//!
//! #[stage]
//! impl Invert {
//!     fn create(env: &Env) -> Self {
//!         Invert(env.stream()) // in its worker process
//!     }
//!
//!     fn process(&mut self, frame: Frame) -> anyhow::Result<Frame> {
//!         let mut pixels = frame.pixels.into_mut(&self.0)?; // the memory that the source wrote
//!         self.0.run((pixels.of_mut::<f32>(),), |(pixels,)| pixels.iter_mut().for_each(|p| *p = 1.0 - *p))?;
//!         Ok(Frame { pixels: pixels.freeze() })
//!     }
//! }
//!
//! fn main() -> anyhow::Result<()> {
//!     let report = Pipeline::new("inverted")
//!         .items("frames", |env| {
//!             let stream = env.stream();
//!             (0..100).filter_map(move |_| stream.zeros(DType::F32, &[64, 64]).ok()).map(|p| Frame { pixels:
//!             p.freeze() })
//!         })
//!         .stage::<Invert>(())
//!         .for_each("check", |frame: Frame| Ok(anyhow::ensure!(frame.pixels.to_vec::<f32>()? == [1.0; 4096])))
//!         .run()?; // starts three worker processes, which run this program's stages
//!     println!("{report}");
//!     assert_eq!(report.stage("check").map(|stage| stage.items_in), Some(100));
//!     Ok(())
//! }
//! ```
//!
//! An edge between different types does not compile:
//!
//! ```compile_fail,E0271
//! # use tensorpost::prelude::*;
//! # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Frame(u64);
//! # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Sound(u64);
//! # struct Listen;
//! # impl Sink for Listen {
//! #     type Args = ();
//! #     type In = Sound;
//! #     fn create((): (), _: &Env) -> anyhow::Result<Self> { Ok(Listen) }
//! #     fn consume(&mut self, _: Sound) -> anyhow::Result<()> { Ok(()) }
//! # }
//! let frames = Pipeline::new("wrong").items("frames", |_| (0..3).map(Frame));
//! frames.sink::<Listen>(()); // `Listen` takes `Sound`s
//! ```
//!
//! # Where to read on
//! You write [`Source`], [`Stage`] and [`Sink`], with the attribute `#[stage]` or by hand. [`Flow`] has the
//! operations on items between them: replicas and their order, closures, forks and joins, batches and
//! windows, loops, errors and restarts. A [`Pipeline`] runs on a node of its own ([`run`](Pipeline::run)), or
//! on an existing one ([`Node::run_pipeline`](RunPipeline::run_pipeline)). A pipeline can be
//! [described](Pipeline::describe) as text and as diagrams, reports [its progress](Pipeline::progress), and
//! returns a [`Report`]. `PIPELINES.md` says what is promised about order, ends, errors and deaths.
//!
//! **In a worker** nothing of `main` runs. The worker finds code among what the program links, so a pipeline
//! may be written down anywhere and at any time: in a loop, on any thread, before or after its node. A
//! closure captures nothing; if it does, the program does not compile. [`with`](Flow::with) gives it
//! arguments, such as an actor's address.

mod conduct;
mod cycles;
mod dead;
mod describe;
mod error;
mod flow;
mod hosts;
mod input;
mod item;
mod joins;
mod launch;
pub mod limits;
#[cfg(test)]
mod limits_tests;
mod location;
mod many;
mod on_error;
mod out;
mod pairs;
mod plan;
mod progress;
mod push;
#[cfg_attr(
    not(feature = "bindings"),
    expect(unreachable_pub, reason = "only the package for Python names what it is told")
)]
mod python;
mod report;
mod results;
mod run;
mod settings;
mod stages;
mod standstill;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod trace;
mod traits;
mod tune;
mod with;
mod work;
mod worker;

pub use dead::DeadItem;
pub use describe::Description;
pub use error::{Mistake, PipelineError};
pub use flow::{AfterSource, AfterStage, Ending, Flow, NoOutput, Pipeline, PlainFlow, Tuned};
pub use input::Input;
pub use item::{Item, ItemId};
pub use location::StageLocation;
pub use many::{Batch, Either, Gather, GatherError, Many, Pair, gather_tensors};
pub use on_error::OnError;
pub use out::{HeldItem, Out};
pub use progress::{Progress, Snapshot, StageSnapshot};
pub use report::{Death, Report, StageReport, Waiting};
pub use results::Results;
pub use run::{Canceller, RunPipeline, Running};
pub use traits::{Sink, Source, Stage};
pub use with::With;
pub use worker::meter::{Failure, LostItem};

/// Used by the package for Python. Nothing in it is stable.
#[cfg(feature = "bindings")]
#[doc(hidden)]
pub mod bindings {
    pub use crate::python::{PythonStage, SOURCE, STAGE};
    pub use crate::work::{source_of_python, stage_of_python};
}
