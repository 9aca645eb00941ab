//! Actors across processes: plain actix actors whose addresses reach into every process of a node.
//!
//! A [`RemoteActor`] is an actix actor that can be made from arguments, in a worker. Its mailbox is the
//! framework's own. It is bounded, and the actor's context handles its messages one after the other; a
//! handler's panic ends the actor and nothing else. An [`Address`] sends to the actor from any process. A
//! message to an actor in the same process stays a value; a message to another process is encoded. Order,
//! bound and backpressure are the same.
//!
//! All actors of a worker, their futures and its reader run on one thread, unless an actor is started with
//! `own_thread`. A handler that computes for long delays the others; work that it puts on a stream does not.
//!
//! Two processes: this one makes a frame, a worker brightens it in place, and it comes back here.
//!
//! ```standalone_crate
//! use tensorpost::prelude::*;
//!
//! #[derive(Serialize, Deserialize, GpuMessage)]
//! struct Frame {
//!     id: u64,
//!     #[tensor(dtype = f32)]
//!     pixels: Tensor,
//! }
//!
//! struct Brighten {
//!     stream: DeviceStream,
//!     next: Address<Frame>,
//! }
//!
//! #[actor]
//! impl Brighten {
//!     // Runs in the worker process. Addresses travel in arguments and in messages.
//!     fn create(next: Address<Frame>, env: &Env) -> Self {
//!         Brighten { stream: env.stream(), next }
//!     }
//!
//!     // The frame is done with when what this returns resolves.
//!     #[handler]
//!     fn frame(&mut self, frame: Frame) -> ResponseFuture<()> {
//!         let sending = self.brighten(frame).map(|frame| self.next.send(frame));
//!         Box::pin(async move {
//!             match sending {
//!                 Ok(sending) => {
//!                     if let Err(error) = sending.await {
//!                         eprintln!("{error}"); // the frame is in `error.message`
//!                     }
//!                 }
//!                 Err(error) => eprintln!("a frame was dropped: {error}"),
//!             }
//!         })
//!     }
//!
//!     fn brighten(&self, frame: Frame) -> Result<Frame, TensorError> {
//!         // In place if nobody else holds the pixels, in a copy otherwise.
//!         let mut pixels = frame.pixels.into_mut(&self.stream).or_else(|shared| self.stream.copy(&shared.tensor))?;
//!         self.stream.run((pixels.of_mut::<f32>(),), |(pixels,)| pixels.iter_mut().for_each(|p| *p = (2.0 *
//!         *p).min(1.0)))?; Ok(Frame { pixels: pixels.freeze(), ..frame })
//!     }
//! }
//!
//! fn main() -> anyhow::Result<()> {
//!     let node = Node::builder().start()?;
//!     let (sink, mut frames) = node.channel::<Frame>()?;
//!     let brighten = node.spawn::<Brighten>(sink).start()?.address::<Frame>();
//!
//!     let pixels = node.host_stream()?.from_slice(&[2, 2], &[0.1_f32, 0.2, 0.4, 0.8])?.freeze();
//!     node.block_on(brighten.send(Frame { id: 1, pixels }))?;
//!
//!     let frame = frames.blocking_recv()?;
//!     assert_eq!(frame.pixels.to_vec::<f32>()?, [0.2, 0.4, 0.8, 1.0]);
//!     Ok(())
//! }
//! ```

mod address;
mod asking;
mod blocking;
mod code;
mod dead_letter;
mod error;
mod fetch;
mod handed_off;
mod handles;
mod inbox;
mod linked;
mod process_actors;
mod python;
#[cfg(feature = "bindings")]
pub(crate) mod raw;
mod receive;
mod registry;
mod sending;
mod watching;

use std::sync::Arc;

use actix::{Actor, Context};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use address::{Address, LookupError, RegisterError};
pub(crate) use address::{lookup, register_address};
pub use asking::Ask;
pub(crate) use blocking::would_block;
pub use code::{CapturesNothing, Code, CodeError, captures_nothing};
pub use dead_letter::{DeadLetter, DeadReason};
pub use error::{AskError, SendError, SendFailure};
pub use handles::Handles;
pub use inbox::{Channel, ChannelError};
pub(crate) use linked::{key_of, link};
pub use process_actors::{NewActor, Program, StartActor, WorkerProgram};
pub(crate) use process_actors::{OnActorEnd, ProcessActors, short, takes, takes_only};
pub use python::{Interpreter, Python};
pub use registry::Registry;
pub use sending::SendFuture;
pub use watching::Watch;

use crate::ids::{ActorId, ProcessId};
use crate::message::{GpuMessage, scope};
use crate::observe::metrics::Tally;
pub use crate::os::step_aside;
use crate::tensor::DeviceStream;
use crate::transport::control_channel::Location;
pub use crate::transport::lifecycle::{EndReason, ExitedProcess, Lifecycle};
use crate::transport::{Transport, TransportStats};

/// An actor that can be started in a worker process. The attribute `#[actor]` writes this trait and the
/// `Handler`s from the methods of an `impl` block. The example below writes them by hand.
///
/// `Args` travel to the worker; they may hold addresses. `create` runs there, on the actor's thread.
///
/// ```no_run
/// use tensorpost::prelude::*;
///
/// #[derive(Serialize, Deserialize, GpuMessage)]
/// #[gpu_message(reply = f32)]
/// struct Sum(#[tensor(dtype = f32)] Tensor);
///
/// struct Adder {
///     bias: f32,
/// }
///
/// impl Actor for Adder {
///     type Context = Context<Self>;
/// }
///
/// impl RemoteActor for Adder {
///     type Args = f32;
///
///     fn create(bias: f32, _: &Env) -> anyhow::Result<Self> {
///         anyhow::ensure!(bias.is_finite(), "the bias is {bias}");
///         Ok(Adder { bias })
///     }
///
///     fn handles(on: &mut Handles<Self>) {
///         on.message::<Sum>();
///     }
/// }
///
/// impl Handler<Sum> for Adder {
///     type Result = MessageResult<Sum>;
///
///     fn handle(&mut self, message: Sum, _: &mut Context<Self>) -> Self::Result {
///         let values = message.0.to_vec::<f32>().unwrap_or_default();
///         MessageResult(self.bias + values.iter().sum::<f32>())
///     }
/// }
///
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().start()?;
/// let adder = node.spawn::<Adder>(0.5).start()?.address::<Sum>();
/// let values = node.host_stream()?.from_slice(&[2], &[1.0_f32, 2.0])?.freeze();
/// assert_eq!(node.block_on(adder.ask(Sum(values)))?, 3.5);
/// # Ok(())
/// # }
/// ```
pub trait RemoteActor: Actor<Context = Context<Self>> {
    /// The arguments of `create`.
    type Args: Serialize + DeserializeOwned;

    /// Makes the actor, in its process. It must not wait, because all actors there share the thread;
    /// [`prepare`](Self::prepare) is for work that has to wait.
    ///
    /// # Errors
    /// Any failure that keeps the actor from working. The call that starts the actor reports it.
    fn create(args: Self::Args, env: &Env) -> anyhow::Result<Self>;

    /// Gets the actor ready in each of its lives, after `create` and before its first message. It may wait
    /// here for things that it cannot do without. Messages that come meanwhile stay in its mailbox, and the
    /// process goes on with other actors. By default it does nothing. [`start`](crate::node::Spawn::start)
    /// returns when this is done.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tensorpost::prelude::*;
    ///
    /// # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Weights(Tensor);
    /// # #[derive(Serialize, Deserialize, GpuMessage)] struct Frame(Tensor);
    /// # impl Actor for Detect { type Context = Context<Self>; }
    /// # impl Handler<Frame> for Detect { type Result = (); fn handle(&mut self, _: Frame, _: &mut Context<Self>) {} }
    /// struct Detect {
    ///     weights: Subscriber<Weights>,
    /// }
    ///
    /// impl RemoteActor for Detect {
    ///     type Args = ();
    ///
    ///     fn create((): (), env: &Env) -> anyhow::Result<Self> {
    ///         Ok(Detect { weights: Subscriber::follow(env, "weights") })
    ///     }
    ///
    ///     async fn prepare(&mut self, _: &Env) -> anyhow::Result<()> {
    ///         self.weights.ready(Duration::from_secs(10)).await?; // so the first frame has weights
    ///         Ok(())
    ///     }
    ///
    ///     fn handles(on: &mut Handles<Self>) {
    ///         on.message::<Frame>();
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// As for [`create`](Self::create). The call that starts the actor reports the error; in a later life the
    /// actor's policy decides. Messages that had come are refused.
    ///
    /// # Cancel safety
    /// If the actor must end before it is ready, the future is dropped with the actor.
    fn prepare(&mut self, env: &Env) -> impl Future<Output = anyhow::Result<()>> {
        let _ = env;
        std::future::ready(Ok(()))
    }

    /// Whether the actor's messages are known only where it runs.
    #[doc(hidden)]
    const TAKES_ANY: bool = false;

    /// Returns the name under which another program knows the actor. The actor runs in that program, where it
    /// is another type.
    #[doc(hidden)]
    const WIRE_NAME: Option<&'static str> = None;

    /// Returns the program of the actor's worker, if it is another than that of other actors.
    #[doc(hidden)]
    fn worker_program(args: &Self::Args) -> Option<WorkerProgram> {
        let _ = args;
        None
    }

    /// Returns the interpreter of the actor's worker. A host that starts it may have one of its own.
    #[doc(hidden)]
    fn interpreter(args: &Self::Args) -> Option<Interpreter> {
        let _ = args;
        None
    }

    /// Returns the text that people see, if the type does not give it.
    #[doc(hidden)]
    fn label(args: &Self::Args) -> Option<String> {
        let _ = args;
        None
    }

    /// Lists the messages that the actor takes from addresses.
    fn handles(on: &mut Handles<Self>);

    /// Called before each handler, with the process that sent its message; `None` stands for this process. A
    /// sender may lie in its message, but not about this.
    #[doc(hidden)] // for the pipelines, which are another crate
    #[inline]
    fn sent_by(&mut self, process: Option<ProcessId>) {
        let _ = process;
    }

    /// Called for a message that no handler gets, because the data of a tensor in it was lost with a process.
    /// The asker has been told. By default the message is logged and dropped.
    fn dead_letter(&mut self, letter: DeadLetter, ctx: &mut Context<Self>) {
        let _ = ctx;
        tracing::warn!(message = letter.name(), sender = %letter.sender(), reason = %letter.reason(), "a dead letter");
    }
}

/// The environment of an actor: its device, its name, its access to other actors.
///
/// ```no_run
/// # use tensorpost::prelude::*;
/// # #[derive(Serialize, Deserialize, GpuMessage)] struct Tick;
/// struct Ticker {
///     stream: DeviceStream,
///     itself: Address<Tick>,
///     env: Env, // kept, to look others up later: `self.env.lookup::<Tick>("sink").await`
/// }
/// # impl Actor for Ticker { type Context = Context<Self>; }
///
/// impl RemoteActor for Ticker {
///     type Args = ();
///
///     fn create((): (), env: &Env) -> anyhow::Result<Self> {
///         Ok(Ticker { stream: env.stream(), itself: env.address(), env: env.clone() })
///     }
/// #   fn handles(on: &mut Handles<Self>) { on.message::<Tick>(); }
/// }
/// # impl Handler<Tick> for Ticker { type Result = (); fn handle(&mut self, _: Tick, _: &mut Context<Self>) {} }
/// ```
#[derive(Clone, Debug)]
pub struct Env {
    pub(crate) transport: Arc<Transport>,
    pub(crate) stream: DeviceStream,
    pub(crate) name: String,
    pub(crate) actor: ActorId,
    pub(crate) location: Location,
    pub(crate) life: u32,
    pub(crate) tally: Arc<Tally>,
    /// Whether another life follows a failure.
    #[cfg(feature = "bindings")]
    pub(crate) comes_back: bool,
}

impl Env {
    /// Returns the actor's device, with a stream and the process's memory there. Deliveries to the actor wait
    /// on this stream. The stream is the actor's own, unless its process has so many actors on one GPU that
    /// they share. Unless `CUDA_DEVICE_MAX_CONNECTIONS` says otherwise, six actors have one each in a worker
    /// of [`Node::worker`](crate::node::Node::worker), and as many as
    /// [`streams`](crate::node::Spawn::streams) says in the worker of a spawn.
    pub fn stream(&self) -> DeviceStream {
        self.stream.clone()
    }

    /// Returns the text that people see of the actor: its [label](crate::node::Spawn::label), or its name, or
    /// else the last part of its type's path. For a stage it is the stage's name and the number of the
    /// replica, `detect.0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the actor's identity in the node.
    pub fn actor(&self) -> ActorId {
        self.actor
    }

    /// Returns the number of this life of the actor: 0 at first, and one more after each restart.
    pub fn incarnation(&self) -> u32 {
        self.life
    }

    /// Resolves when the node begins to shut down. A shutdown lets everything under way finish, so an actor
    /// that makes messages by itself should stop making them then. The node waits until the deadline for a
    /// source that does not.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        self.transport.until_stopping()
    }

    /// Returns whether the actor is asked to end. It is [`stopping`](Self::stopping) for plain code that
    /// makes messages, or items, by itself and may take long. Another thread of the process sets it, so it
    /// changes during a call. In the worker of a pipeline's source it is true as soon as the sources are
    /// stopped: by a cancel, an error, or the node's shutdown.
    ///
    /// ```
    /// # use tensorpost::prelude::*;
    /// # fn frame_within(_: std::time::Duration) -> Option<Vec<u8>> { None }
    /// /// Waits for a camera, but not when nobody wants its pictures any more.
    /// fn next_frame(env: &Env) -> Option<Vec<u8>> {
    ///     while !env.is_stopping() {
    ///         if let Some(frame) = frame_within(std::time::Duration::from_millis(100)) {
    ///             return Some(frame);
    ///         }
    ///     }
    ///     None
    /// }
    /// ```
    pub fn is_stopping(&self) -> bool {
        self.transport.lifecycle.is_stopping()
    }

    /// Publishes all sends and answers of this turn's handlers so far. Handlers that come shortly after each
    /// other share a turn, and its end publishes all their sends. A handler that is about to take long can
    /// call this first, so that earlier sends do not wait for it.
    pub fn publish(&self) {
        crate::stream::turn::flush_now();
    }

    /// Resolves when all messages that `process` had sent to actors of this process by now are in their
    /// mailboxes. If the process has ended, these are all its messages. Without this, a message that tells of
    /// the end of a process, or of an actor in it, may be handled before them.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn until_read(&self, process: ProcessId) {
        self.transport.until_read(process).await;
    }

    /// Returns the process whose death lost the data of a tensor in `value`, if there is such a tensor
    /// (DEATH-3). A message whose data was lost on its way is a [dead letter](RemoteActor::dead_letter).
    /// Tensors that an actor has kept can be lost later, and this tells. It costs next to nothing while no
    /// process has died with work undone, and serialises `value` otherwise.
    pub fn lost_with(&self, value: &impl Serialize) -> Option<ProcessId> {
        if !self.transport.domain().has_taint() {
            return None;
        }
        scope::taint_in(value).map(|tainted| tainted.by)
    }

    /// Returns how often this process has learnt of lost data. While that number stays the same,
    /// [`lost_with`](Self::lost_with) gives the same answer for a value.
    pub fn losses_learnt(&self) -> u64 {
        self.transport.domain().taints_learnt()
    }

    /// Returns a registry, which finds actors by name from any task or thread of this process.
    pub fn registry(&self) -> Registry {
        Registry::new(Arc::clone(&self.transport))
    }

    /// Counts items that the actor has made and passed on, beside the messages that it handles. The count is
    /// in [`ActorMetrics::emitted`](crate::observe::metrics::ActorMetrics::emitted) and in the recorder's
    /// `tensorpost_items_emitted_total`. Sources and stages of pipelines count each item that was accepted. A
    /// count of 0 says that items may come: the counter exists from then on.
    pub fn note_emitted(&self, count: u64) {
        self.tally.emitted(count);
    }

    /// Counts items that the actor has dropped because the receiver had no room. The count is in
    /// [`ActorMetrics::dropped`](crate::observe::metrics::ActorMetrics::dropped) and in
    /// `tensorpost_items_dropped_total`. In a pipeline those count that send to a stage with `drop_oldest` or
    /// `drop_newest`. A count of 0 says that items may be dropped: the counter exists from then on.
    pub fn note_dropped(&self, count: u64) {
        self.tally.dropped(count);
    }

    /// Counts times at which the actor was to make an item and did not, because it was late. The count is in
    /// [`ActorMetrics::missed`](crate::observe::metrics::ActorMetrics::missed) and in
    /// `tensorpost_items_missed_total`. A source with a rate counts them. A count of 0 says that items may be
    /// missed: the counter exists from then on.
    pub fn note_missed(&self, count: u64) {
        self.tally.missed(count);
    }

    /// Returns counts of the frames that the actor's process has sent and received, for all its actors
    /// together.
    pub fn stats(&self) -> TransportStats {
        self.transport.stats()
    }

    /// Returns the actor's own address, to send along.
    pub fn address<M: GpuMessage>(&self) -> Address<M> {
        Address::new(Arc::clone(&self.transport), self.actor, self.location)
    }

    /// Finds the actor that was started or registered under `name`.
    ///
    /// # Errors
    /// There is no such actor, it does not handle `M`, or the node has ended.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn lookup<M: GpuMessage>(&self, name: &str) -> Result<Address<M>, LookupError> {
        address::lookup(&self.transport, name, None).await
    }

    /// As [`lookup`](Self::lookup), for messages with this key, if it is given.
    #[doc(hidden)]
    pub async fn lookup_with_key<M: GpuMessage>(
        &self,
        name: &str,
        key: Option<u64>,
    ) -> Result<Address<M>, LookupError> {
        address::lookup(&self.transport, name, key).await
    }

    /// Registers this actor under one more name.
    ///
    /// # Errors
    /// The name is taken, or the node has ended.
    ///
    /// # Cancel safety
    /// Once polled, the name may be registered although the future was dropped.
    pub async fn register(&self, name: &str) -> Result<(), RegisterError> {
        address::register(&self.transport, name, self.actor).await
    }
}
