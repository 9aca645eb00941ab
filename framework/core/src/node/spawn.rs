//! The start of an actor: its settings, their checks, and the start itself, which blocks or is awaited.

use std::any::type_name;
use std::future::{Future, IntoFuture};
use std::ops::ControlFlow;
use std::pin::Pin;

use super::Node;
use super::deferred::Deferred;
use super::group::{Group, Supervision};
use super::hosts::{Elsewhere, OnHost};
use super::limits::{MAX_NAME, cut};
use super::restart::Restart;
use super::spawned::Spawned;
use super::supervisor::{Making, SpawnError, StartError, WorkerId};
use crate::actor::{NewActor, RemoteActor, WorkerProgram, key_of, link, short, takes_only};
use crate::device::Device;
use crate::ids::DeviceId;
use crate::lease::GpuBudget;
use crate::limits::{DEFAULT_MAILBOX, MAX_MAILBOX};
use crate::message::{EncodeError, codec};
use crate::os::on_own_thread;
use crate::transport::Transport;

/// Why an actor could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActorError {
    /// The mailbox's capacity is out of range.
    #[error(
        "a mailbox holds 1 to {MAX_MAILBOX} messages per sending process, not {0}; choose a `.mailbox(n)` in that range"
    )]
    Mailbox(u32),
    /// Its arguments cannot be encoded.
    #[error("the arguments of {actor} cannot be sent to a worker: {source}")]
    Args {
        /// The actor type.
        actor: &'static str,
        /// The error.
        source: EncodeError,
    },
    /// There is a tensor in its arguments. The node keeps the arguments beyond this call, and no lease goes
    /// with them.
    #[error("the arguments of {0} hold a tensor; start the actor without it, and send it in a message")]
    TensorInArgs(&'static str),
    /// It did not start on the host that the spawn named.
    #[error("on {host}: {why}")]
    Elsewhere {
        /// The host.
        host: String,
        /// The host's error, or the reason why it could not be asked.
        why: String,
    },
    /// A part of it cannot leave this host.
    #[error("{actor} cannot be started on {host}, because {what}")]
    StaysHere {
        /// The actor type.
        actor: &'static str,
        /// The host that the spawn named.
        host: String,
        /// The part that cannot go there, and why.
        what: &'static str,
    },
    /// Too many spares were asked for, or none would ever be used.
    #[error(
        "{0} spare workers for an actor: there can be up to {max}, and they are for one that comes back; give it a policy with \
         `.restart(..)`",
        max = Node::MAX_SPARES
    )]
    Spares(u32),
    /// An actor started it, and its worker runs a program of its own.
    #[error(
        "{0} runs in a program of its own, and an actor starts actors of its own program; start it from the program \
         that has the node"
    )]
    OtherProgram(&'static str),
    /// An actor started it, and the node says why it did not start.
    #[error("{0}")]
    Refused(String),
    /// The answer would be awaited in a call that may not wait.
    #[error(
        "a start in a handler or in `create` that blocks stops the thread that the node's answer comes by; await it in \
         a future that the handler returns, or in `prepare`"
    )]
    Blocking,
    /// The system has no thread for the wait.
    #[error("an awaited start needs a thread, and the system refused it: {0}")]
    Thread(std::io::Error),
    /// Its worker did not start.
    #[error(transparent)]
    Worker(#[from] SpawnError),
    /// It did not start in its worker.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// An actor to start; see [`Node::spawn`] and [`Env::spawn`](crate::actor::Env::spawn).
/// [`start`](Self::start) blocks until the actor takes messages. Code that may not block awaits the spawn
/// itself.
///
/// ```no_run
/// # use tensorpost::prelude::*;
/// # struct Blur;
/// # impl Actor for Blur { type Context = Context<Self>; }
/// # impl RemoteActor for Blur {
/// #     type Args = u32;
/// #     fn create(_: u32, _: &Env) -> anyhow::Result<Self> { Ok(Blur) }
/// #     fn handles(_: &mut Handles<Self>) {}
/// # }
/// # async fn later(node: &Node) -> anyhow::Result<()> {
/// let blur = node.spawn::<Blur>(3).await?;
/// # drop(blur);
/// # Ok(())
/// # }
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().start()?;
/// let alone = node.spawn::<Blur>(3).name("blur").device(Device::best()).mailbox(16).start()?;
/// // Two in one worker; each has a thread there.
/// let worker = node.worker("blurs")?;
/// let first = node.spawn::<Blur>(5).worker(worker).own_thread().start()?;
/// let second = node.spawn::<Blur>(7).worker(worker).own_thread().start()?;
/// assert_eq!(first.worker(), second.worker());
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// The start goes on if the future of an awaited spawn is dropped. An actor with a name can be looked up.
#[must_use = "nothing is started before `start` or `.await`"]
pub struct Spawn<'n, A: RemoteActor, By = Node> {
    pub(super) by: &'n By,
    pub(super) args: A::Args,
    pub(super) name: Option<String>,
    pub(super) label: Option<String>,
    pub(super) worker: Option<WorkerId>,
    pub(super) device: DeviceId,
    pub(super) receive_on: Option<DeviceId>,
    pub(super) mailbox: u32,
    pub(super) own_thread: bool,
    pub(super) streams: usize,
    pub(super) gpu_budget: Option<GpuBudget>,
    pub(super) spares: u32,
    pub(super) how: Supervision,
    /// The keys of the messages that it takes, in order, if its program does not know them and the caller
    /// does.
    pub(super) takes: Option<Vec<u64>>,
    /// Whether it starts in the worker of the actor that starts it.
    pub(super) here: bool,
    pub(super) on: Option<OnHost>,
}

impl<'n, A: RemoteActor, By> Spawn<'n, A, By> {
    pub(super) fn new(by: &'n By, args: A::Args) -> Self {
        link::<A>();
        Spawn {
            by,
            args,
            name: None,
            label: None,
            worker: None,
            device: DeviceId::HOST,
            receive_on: None,
            mailbox: DEFAULT_MAILBOX,
            own_thread: false,
            streams: 1,
            gpu_budget: None,
            spares: 0,
            how: Supervision::default(),
            takes: None,
            here: false,
            on: None,
        }
    }

    /// Registers it under a name. A worker of its own gets the same name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the label that people see: in logs, metrics, reports of hangs and
    /// [`Env::name`](crate::actor::Env::name). The default is its name, or else the last part of its type's
    /// path. Several actors may have the same label.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(cut(label.into(), MAX_NAME));
        self
    }

    /// Puts it into a worker that runs already, see [`Node::worker`]. The worker may be on another host, if
    /// it is the worker of an actor that was started there (`.on(..)`): this actor starts beside that one.
    pub fn worker(mut self, worker: WorkerId) -> Self {
        self.worker = Some(worker);
        self
    }

    /// Sets the device that it works on; the default is the host. Its worker opens the device; this process
    /// does not.
    pub fn device(mut self, device: Device) -> Self {
        self.device = device.id();
        self
    }

    /// Copies the tensors of its messages to a device, its own for example, before a handler sees them: by
    /// one copy on the device if the two devices reach each other, through page-locked host memory if not.
    /// Tensors that are there already are not copied. Without this, a tensor of another GPU is read where it
    /// is.
    ///
    /// The copies are this process's own, each in memory of the pool on that device; a message that finds the
    /// pool full waits, and so do the messages behind it. A message from the same process is encoded and
    /// decoded for the copy, as if it came from another process. Replies to the actor's own asks are not
    /// copied.
    pub fn receive_on(mut self, device: Device) -> Self {
        self.receive_on = Some(device.id());
        self
    }

    /// Sets how many unhandled messages each sending process may have in its mailbox; the default is 128.
    pub fn mailbox(mut self, messages: u32) -> Self {
        self.mailbox = messages;
        self
    }

    /// Gives it a thread of its own in its worker, so that its handlers hold up no other actor there.
    pub fn own_thread(mut self) -> Self {
        self.own_thread = true;
        self
    }

    /// Sets how many streams its worker has on each GPU, from 1 to 30. The default is 1, the actor's
    /// [own](crate::actor::Env::stream). Ask for more if it makes streams with
    /// [`with_new_stream`](crate::tensor::DeviceStream::with_new_stream), or if other actors are put into its
    /// worker later; without more they share. Each stream makes the start longer (on an H200 0.14 s with one,
    /// 0.22 s with six) and leaves room for fewer processes under MPS. A worker that runs
    /// [already](Self::worker) keeps its six streams.
    pub fn streams(mut self, count: usize) -> Self {
        self.streams = count;
        self
    }

    /// Sets the bytes that its worker's pool on each GPU may take, instead of [the node's
    /// setting](super::NodeBuilder::gpu_budget). A worker that runs [already](Self::worker) keeps its budget.
    pub fn gpu_budget(mut self, bytes: u64) -> Self {
        self.gpu_budget = Some(GpuBudget::Bytes(bytes));
        self
    }

    /// As [`gpu_budget`](Self::gpu_budget), but as a share of each GPU's memory, from 0 to 1.
    pub fn gpu_share(mut self, share: f64) -> Self {
        self.gpu_budget = Some(GpuBudget::share(share));
        self
    }

    /// Sets its restart policy; the default is [`Restart::never`]. The supervisor starts it anew from the
    /// same arguments, under the same identity, so its addresses stay valid and it keeps its names (DEATH-2).
    /// Its state and its mailbox are lost. A first start that fails is not repeated: [`start`](Self::start)
    /// reports it.
    pub fn restart(mut self, policy: Restart) -> Self {
        self.how.restart = policy;
        self
    }

    /// Keeps `count` spare processes that have started, joined the node and opened the actor's device. After
    /// a death the actor continues in one of them: the process and, on a GPU, its context exist already. The
    /// default is 0, the most is [`Node::MAX_SPARES`]. Spares need a [restart policy](Self::restart), whose
    /// backoff still holds. A spare does not run `create` and `prepare` in advance.
    ///
    /// Spares start in the background when the actor runs, and again when one was used or has ended. Each is
    /// a process of its own and costs as much, on a GPU some 500 MiB of its memory, and counts as one of the
    /// node's processes. [`Node::workers`](super::Node::workers) lists them as
    /// [`Spare`](super::WorkerState::Spare). Under MPS a worker that dies in the middle of a kernel, or by a
    /// fault of its GPU, takes its spares with it, and the next life starts as without spares.
    pub fn spares(mut self, count: u32) -> Self {
        self.spares = count;
        self
    }

    /// Sets the keys of the messages that it takes, for a package of another language, which has its schemas.
    #[cfg(feature = "bindings")]
    #[doc(hidden)]
    pub fn takes(mut self, mut keys: Vec<u64>) -> Self {
        keys.sort_unstable();
        self.takes = Some(keys);
        self
    }

    /// Returns the name of its worker, and what people see of it.
    pub(super) fn shown_as(&self) -> String {
        let own_label = A::label(&self.args);
        let name = self.name.as_deref().or(self.label.as_deref());
        name.or(own_label.as_deref()).unwrap_or_else(|| short(type_name::<A>())).to_owned()
    }

    /// Checks the settings that every start has in common.
    pub(super) fn check(&self) -> Result<(), ActorError> {
        if self.spares > Node::MAX_SPARES || self.spares > 0 && !self.how.restart.when().after(true) {
            return Err(ActorError::Spares(self.spares));
        }
        if !(1..=MAX_MAILBOX).contains(&self.mailbox) {
            return Err(ActorError::Mailbox(self.mailbox));
        }
        Ok(())
    }

    /// Encodes the arguments, and describes the actor for the node.
    pub(super) fn describe(self, transport: &Transport) -> Result<(NewActor, Supervision), ActorError> {
        let args = codec::encode_in(&self.args, Vec::new(), transport.domain())
            .map_err(|source| ActorError::Args { actor: type_name::<A>(), source })?;
        if !args.tensors.is_empty() {
            return Err(ActorError::TensorInArgs(type_name::<A>()));
        }
        let own_label = A::label(&self.args);
        let actor = NewActor {
            label: self.label.or(own_label.filter(|_| self.name.is_none())),
            name: self.name,
            type_name: A::WIRE_NAME.unwrap_or(type_name::<A>()).to_owned(),
            type_key: key_of::<A>(),
            args: args.body,
            device: self.device,
            // Libraries of other languages want all their data on one device.
            receive_on: self.receive_on.or(A::TAKES_ANY.then_some(self.device)),
            own_thread: self.own_thread,
            capacity: self.mailbox,
            takes: self.takes.or_else(takes_only::<A>),
        };
        Ok((actor, self.how))
    }
}

impl<A: RemoteActor> Spawn<'_, A> {
    /// Puts it into a group, which decides how the failure of one member affects the others.
    pub fn group(mut self, group: &Group) -> Self {
        self.how.group = Some(group.clone());
        self
    }

    /// Starts the actor, and its worker unless one was given. Blocks until the actor takes messages; await
    /// the spawn where blocking is not allowed.
    ///
    /// # Errors
    /// [`ActorError`] says what is wrong: with the arguments, the worker, or what `create` or `prepare`
    /// returned.
    pub fn start(self) -> Result<Spawned<A>, ActorError> {
        self.ready()?.start()
    }

    /// Checks the actor and encodes its arguments, for a later start in a worker that is given then.
    ///
    /// # Errors
    /// [`ActorError`] says what is wrong with it.
    #[doc(hidden)]
    pub fn defer(self) -> Result<Deferred<A>, ActorError> {
        self.check()?;
        let node = self.by;
        let (actor, how) = self.describe(node.transport())?;
        Ok(Deferred::new(actor, how, node.transport(), node.supervisor()))
    }

    /// Does all of a start that needs the node or the arguments themselves.
    fn ready(self) -> Result<Ready<A>, ActorError> {
        let worker = NewWorker {
            name: self.shown_as(),
            program: A::worker_program(&self.args),
            streams: self.streams,
            gpu_budget: self.gpu_budget,
        };
        let elsewhere = Elsewhere::of(&self);
        let (in_worker, spares, device) = (self.worker, self.spares, self.device);
        Ok(Ready { deferred: self.defer()?, worker, in_worker, spares, device, elsewhere })
    }
}

impl<A: RemoteActor> IntoFuture for Spawn<'_, A> {
    type Output = Result<Spawned<A>, ActorError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let ready = self.ready();
        Box::pin(async move {
            let ready = ready?;
            // A start waits for a process, which takes longer than a thread.
            on_own_thread("tp-start", move || ready.start()).await.map_err(ActorError::Thread)?
        })
    }
}

/// A worker to start for an actor.
pub(super) struct NewWorker {
    pub(super) name: String,
    pub(super) program: Option<WorkerProgram>,
    pub(super) streams: usize,
    pub(super) gpu_budget: Option<GpuBudget>,
}

/// An actor that can be started on any thread.
pub(super) struct Ready<A> {
    pub(super) deferred: Deferred<A>,
    pub(super) worker: NewWorker,
    /// Set if it starts in a worker that runs already.
    pub(super) in_worker: Option<WorkerId>,
    pub(super) spares: u32,
    pub(super) device: DeviceId,
    pub(super) elsewhere: Elsewhere,
}

impl<A: RemoteActor> Ready<A> {
    fn start(self) -> Result<Spawned<A>, ActorError> {
        let here = match self.start_elsewhere()? {
            ControlFlow::Break(started) => return Ok(started),
            ControlFlow::Continue(here) => here,
        };
        let Ready { deferred, worker: new, in_worker, spares, device, .. } = here;
        let supervisor = deferred.supervisor();
        let worker = match in_worker {
            Some(worker) => worker,
            None => {
                let NewWorker { name, program, streams, gpu_budget } = new;
                let making = Making { gpu_budget, ..Making::of(program, streams) };
                supervisor.spawn_worker_of(&name, making)?
            }
        };
        let started = deferred.start(worker).inspect_err(|_| {
            if in_worker.is_none() {
                // Nobody else knows of the worker.
                supervisor.retire(worker);
            }
        })?;
        if spares > 0 {
            supervisor.keep_spares(worker, spares, device);
        }
        Ok(started)
    }
}
