//! Actors in separate operating-system processes that send each other messages with tensors in them. The
//! tensor stays in its memory, and the message carries a lease on it. The receiver's stream waits until the
//! data is ready. Dropping the last handle gives the memory back to the process that it came from.
//!
//! Actors are plain actix actors. A message is a type with [`GpuMessage`](message::GpuMessage) derived;
//! tensors may be anywhere inside it. Each spawned actor runs in a worker process of its own unless the
//! program says otherwise. A worker is the program itself, started again; it runs its actors and nothing of
//! `main`.
//!
//! ```no_run
//! use tensorpost::prelude::*;
//!
//! #[derive(Serialize, Deserialize, GpuMessage)] // no reply unless #[gpu_message(reply = …)]
//! struct Frame {
//!     id: u64,
//!     #[tensor(dtype = f32, shape = [_, _])] // checked on both sides
//!     pixels: Tensor,
//!     regions: Vec<Region>,
//! }
//!
//! #[derive(Serialize, Deserialize)] // nested tensors are found with no annotation
//! struct Region {
//!     label: String,
//!     crop: Option<Tensor>,
//! }
//!
//! struct Invert {
//!     stream: DeviceStream,
//!     next: Address<Frame>,
//! }
//!
//! #[actor]
//! impl Invert {
//!     // In the worker process. Addresses travel in arguments and in messages.
//!     fn create(next: Address<Frame>, env: &Env) -> Self {
//!         Invert { stream: env.stream(), next }
//!     }
//!
//!     // The sender has its place in the mailbox back when what this returns resolves.
//!     #[handler]
//!     fn frame(&mut self, frame: Frame) -> ResponseFuture<()> {
//!         match self.invert(frame) {
//!             Ok(frame) => {
//!                 let sending = self.next.send(frame);
//!                 Box::pin(async move {
//!                     if let Err(error) = sending.await {
//!                         eprintln!("{error}");
//!                     }
//!                 })
//!             }
//!             Err(error) => {
//!                 eprintln!("a frame was dropped: {error}");
//!                 Box::pin(async {})
//!             }
//!         }
//!     }
//!
//!     fn invert(&self, frame: Frame) -> Result<Frame, TensorError> {
//!         let mut inverted = self.stream.empty(DType::F32, frame.pixels.shape())?;
//!         let arguments = (frame.pixels.of::<f32>(), inverted.of_mut::<f32>());
//!         self.stream.run(arguments, |(pixels, inverted)| {
//!             for (inverted, pixel) in inverted.iter_mut().zip(pixels) {
//!                 *inverted = 1.0 - pixel;
//!             }
//!         })?;
//!         Ok(Frame { pixels: inverted.freeze(), ..frame })
//!     }
//! }
//!
//! #[derive(Default)]
//! struct Print;
//!
//! #[actor]
//! impl Print {
//!     #[handler]
//!     fn frame(&mut self, frame: Frame) {
//!         println!("{}: {:?} {:?}", frame.id, frame.pixels, frame.pixels.to_vec::<f32>());
//!     }
//! }
//!
//! fn main() -> anyhow::Result<()> {
//!     let node = Node::builder().start()?;
//!     let print = node.spawn::<Print>(()).start()?;
//!     let invert = node.spawn::<Invert>(print.address()).name("invert").mailbox(16).start()?;
//!     let pixels = node.host_stream()?.from_slice(&[1, 4], &[0.0_f32, 0.25, 0.5, 1.0])?.freeze();
//!     let crop = pixels.slice(1, 0..2)?; // shares the memory and the lease
//!     let regions = vec![Region { label: "left".into(), crop: Some(crop) }];
//!     node.block_on(invert.address().send(Frame { id: 7, pixels, regions }))?;
//!     Ok(()) // dropping the node lets everything under way finish first
//! }
//! ```
//!
//! # Where to read on
//! The [derive](derive@message::GpuMessage) says what a message may hold; [`#[actor]`](macro@crate::actor)
//! writes the impls of actors, and [`#[stage]`](macro@crate::stage) those of stages, sources and sinks.
//! [`tensor`] has tensors and the streams that compute on them, [`mod@actor`] addresses, and [`node`]
//! processes. The modules [`pipeline`] and [`published`] build on these. Bounds are constants in the module
//! that they are about. In the repository, `SEMANTICS.md` states the guarantees in plain sentences,
//! `PIPELINES.md` the additions of pipelines, and `ARCHITECTURE.md` the mechanisms.
//!
//! # Features
//! `cuda` (default): NVIDIA GPUs; needs no toolkit to build and no driver to start. `ndarray` (default): host
//! tensors as `ndarray` views. `graphs`: many small kernels in one launch. `dlpack`: tensors to and from
//! other libraries of the process. `testing`: an attribute for tests that start workers, faults at named
//! points and leak checks, for tests of programs.

#[cfg(feature = "hosts")]
#[doc(inline)]
pub use tensorpost_core::api::hosts;
#[cfg(feature = "testing")]
#[doc(inline)]
pub use tensorpost_core::api::testing::{self, test};
#[doc(inline)]
pub use tensorpost_core::api::{actor, device, message, node, tensor};
#[doc(inline)]
pub use tensorpost_derive::{actor, main, stage};
#[doc(inline)]
pub use tensorpost_pipeline as pipeline;

pub mod prelude;
pub mod published;

/// Observation of a running node: metrics, progress, traces, and one clock for all processes.
///
/// ```
/// use tensorpost::observe::{ProgressWriter, ShownProgress, monotonic_ns};
/// use tensorpost::prelude::*;
///
/// # fn main() -> anyhow::Result<()> {
/// let before = monotonic_ns();
/// let node = Node::builder().start()?;
/// let metrics = node.metrics()?;
/// assert_eq!(metrics.processes.len(), 1); // the program's own
/// assert!(metrics.silent.is_empty() && metrics.at >= before);
///
/// let mut line = Vec::new();
/// ProgressWriter::plain(&mut line).show(ShownProgress::from(&metrics));
/// assert!(String::from_utf8(line)?.contains("0 B in flight"));
/// # Ok(())
/// # }
/// ```
pub mod observe {
    #[doc(inline)]
    pub use tensorpost_core::api::observe::{
        ActorMetrics, Histogram, Metrics, NamedProcess, ProcessMetrics, ProcessState, ProgressDisplay, Row,
        ShownProgress, ShownStage, Telemetry, TraceContext, TraceError, TraceSummary, monotonic_ns,
    };
    #[doc(inline)]
    pub use tensorpost_watch::api::{ProgressWriter, chrome};
}

#[doc(hidden)]
pub use tensorpost_core::__private;

/// The examples of the derive's guide, of the README and of the site's pages, compiled as they are. Those of
/// the guide to GPUs need cudarc, so `tensorpost-actors` compiles them.
#[cfg(doctest)]
mod doctests {
    #[doc = include_str!("../derive/GUIDE.md")]
    struct DeriveGuide;

    #[doc = include_str!("../derive/PORTABLE.md")]
    struct PortableDerive;

    #[doc = include_str!("../derive/REMOTE_ACTOR.md")]
    struct ActorDerive;

    #[doc = include_str!("../derive/ACTOR.md")]
    struct ActorAttribute;

    #[doc = include_str!("../derive/STAGE.md")]
    struct StageAttribute;

    #[doc = include_str!("../../README.md")]
    struct Readme;

    #[doc = include_str!("../../docs/site/start/rust.md")]
    struct StartInRust;

    #[doc = include_str!("../../docs/site/guides/pipelines.md")]
    struct PipelinesGuide;

    #[doc = include_str!("../../docs/site/guides/actors.md")]
    struct ActorsGuide;

    #[doc = include_str!("../../docs/site/guides/weights.md")]
    struct WeightsGuide;

    #[doc = include_str!("../../docs/site/guides/operating.md")]
    struct OperatingGuide;

    #[cfg(feature = "hosts")]
    #[doc = include_str!("../hosts/README.md")]
    struct HostsReadme;

    #[cfg(feature = "testing")]
    #[doc = include_str!("../derive/TEST.md")]
    struct TestAttribute;

    #[cfg(feature = "testing")]
    #[doc = include_str!("../../docs/TESTING.md")]
    struct Testing;
}

/// SAFE-1: safe code cannot name any item that would let it read or write memory that it does not hold, not
/// even with the feature `testing`.
///
/// A lease made by hand, with any offset:
/// ```compile_fail,E0624
/// let _ = tensorpost::tensor::Lease::held;
/// ```
/// A second tensor on the lease of a writable one:
/// ```compile_fail,E0603
/// let _ = tensorpost_core::message::codec::tensors;
/// ```
/// Clocks that say that everything is done, and pages of clocks with arbitrary contents:
/// ```compile_fail
/// let _ = tensorpost_core::clock::ClockPage::release_all;
/// ```
/// ```compile_fail
/// let _ = tensorpost_core::clock::ClockDomain::add_peer;
/// ```
/// The mapping below a chunk, and words of a mapping:
/// ```compile_fail
/// let _ = tensorpost_core::device::ChunkMapping::holder;
/// ```
/// ```compile_fail
/// let _ = tensorpost_core::os::Mapping::word64;
/// ```
/// A stream of the program's own making, which the framework would trust about memory:
/// ```compile_fail,E0603
/// use tensorpost_core::device::sealed::Sealed;
/// ```
#[cfg(doctest)]
struct NotToBeNamed;

/// SAFE-1 without the feature `testing`: a program cannot name the inside, and no public method hands out a
/// part of it.
///
/// ```compile_fail,E0603
/// use tensorpost_core::stream::Stream;
/// ```
/// ```compile_fail,E0624
/// fn clocks_that_say_what_one_likes(stream: &tensorpost::tensor::DeviceStream) {
///     stream.clocked();
/// }
/// ```
/// ```compile_fail,E0624
/// fn memory_by_its_address(lease: &tensorpost::tensor::Lease) {
///     lease.mapping();
/// }
/// ```
/// ```compile_fail,E0624
/// fn chunks_of_ones_own(device: &tensorpost::device::Device) {
///     device.backend();
/// }
/// ```
#[cfg(all(doctest, not(feature = "testing")))]
struct NotToBeReached;
