//! The typed side of a node: spawns actors, and lets the program that started the node talk to them.

use std::future::Future;
use std::sync::Arc;

use super::Node;
use super::NodeBuilder;
use super::deferred::Deferred;
use super::group::{Group, Strategy, Supervision};
use super::limits::{MAX_NAME, cut};
use super::restart::Restart;
use super::spawned::Spawned;
use super::supervisor::{Making, SpawnError, StartError, WorkerId};
#[cfg(feature = "foreign")]
use crate::actor::foreign::{RawAddress, RawMessage};
use crate::actor::{
    Address, Channel, LookupError, NewActor, RegisterError, Registry, RemoteActor, Watch, key_of, link,
    lookup, register_address, short, takes_only,
};
use crate::device::Device;
use crate::ids::DeviceId;
use crate::lease::GpuBudget;
use crate::limits::{DEFAULT_MAILBOX, MAX_MAILBOX};
use crate::message::{EncodeError, GpuMessage, codec, message_key};
use crate::tensor::{DeviceStream, TensorError};
use crate::transport::TransportStats;

/// Why an actor could not be started.
#[derive(Debug, thiserror::Error)]
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
    #[cfg(feature = "hosts")]
    #[error("on {host}: {why}")]
    Elsewhere {
        /// The host.
        host: String,
        /// The host's error, or the reason why it could not be asked.
        why: String,
    },
    /// A part of it cannot leave this host.
    #[cfg(feature = "hosts")]
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
    /// Its worker did not start.
    #[error(transparent)]
    Worker(#[from] SpawnError),
    /// It did not start in its worker.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl Node {
    /// The most [spare workers](Spawn::spares) that wait for one worker.
    pub const MAX_SPARES: u32 = super::limits::MAX_SPARES;

    /// Returns a builder with the settings of a node, and its start.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::new()
    }

    /// Prepares the start of an actor, by default in a worker process of its own.
    pub fn spawn<A: RemoteActor>(&self, args: A::Args) -> Spawn<'_, A> {
        link::<A>();
        Spawn {
            node: self,
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
            #[cfg(feature = "hosts")]
            on: None,
        }
    }

    /// Starts a worker process without actors, to put several into it.
    ///
    /// # Errors
    /// [`SpawnError`] says why the worker did not start.
    pub fn worker(&self, name: &str) -> Result<WorkerId, SpawnError> {
        self.supervisor().spawn_worker(name)
    }

    /// Makes a mailbox in the node's own process, for this program to read. Its address can be given to
    /// actors.
    ///
    /// # Errors
    /// There are too many, or the node is shutting down.
    pub fn channel<M: GpuMessage>(&self) -> Result<(Address<M>, Channel<M>), StartError> {
        self.channel_with(None)
    }

    /// Makes a mailbox for messages of type `M`, or with this key if only values know the key.
    fn channel_with<M: GpuMessage>(&self, key: Option<u64>) -> Result<(Address<M>, Channel<M>), StartError> {
        let (actor, location) = self.supervisor().adopt_actor(
            None,
            DEFAULT_MAILBOX,
            Some(key.unwrap_or_else(message_key::<M>)),
        )?;
        let supervisor = Arc::clone(self.supervisor());
        let ended = Box::new(move || supervisor.actor_ended(actor));
        let transport = self.transport();
        let (inbox, channel) = Channel::new(actor, location.index, location.capacity, transport, ended, key);
        // The node hands every location out once, so it is free.
        if let Err(error) = transport.serve_at(location.index, inbox) {
            tracing::error!(%error, "the node gave a location that the transport does not have");
        }
        Ok((Address::new(Arc::clone(transport), actor, location), channel))
    }

    /// Makes a group of actors, for [`Spawn::group`]. The name is for logs and reports; two groups may have
    /// the same.
    ///
    /// ```no_run
    /// # use tensorpost::prelude::*;
    /// # struct Shard;
    /// # impl Actor for Shard { type Context = Context<Self>; }
    /// # impl RemoteActor for Shard {
    /// #     type Args = u32;
    /// #     fn create(_: u32, _: &Env) -> anyhow::Result<Self> { Ok(Shard) }
    /// #     fn handles(_: &mut Handles<Self>) {}
    /// # }
    /// # fn main() -> anyhow::Result<()> {
    /// let node = Node::builder().start()?;
    /// // Shards of one model make no sense without each other: when one fails, all begin again.
    /// let shards = node.group("shards", Strategy::OneForAll);
    /// for number in 0..4 {
    ///     node.spawn::<Shard>(number).group(&shards).restart(Restart::on_failure(3)).start()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn group(&self, name: &str, strategy: Strategy) -> Group {
        Group::new(name, strategy)
    }

    /// Watches the actor behind `address`: tells when a life of it ends, when the next one takes messages,
    /// and when its supervisor gives up. If it is down at this moment, that is the first event.
    ///
    /// ```
    /// use tensorpost::prelude::*;
    ///
    /// #[derive(Serialize, Deserialize, GpuMessage)]
    /// struct Done;
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// let node = Node::builder().start()?;
    /// let (address, channel) = node.channel::<Done>()?;
    /// let mut watch = node.watch(&address);
    /// drop(channel);
    /// assert!(matches!(watch.blocking_recv(), Some(Lifecycle::Down { will_restart: false, .. })));
    /// assert_eq!(watch.blocking_recv(), None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch<M: GpuMessage>(&self, address: &Address<M>) -> Watch {
        Watch::begin(address)
    }

    /// Looks up the actor that was started or registered under `name`. Blocks until the node's supervisor
    /// answers.
    ///
    /// # Errors
    /// There is no such actor, it does not handle `M`, or the node is shutting down. If an actor of another
    /// host does not handle `M`, only asks report that.
    pub fn lookup<M: GpuMessage>(&self, name: &str) -> Result<Address<M>, LookupError> {
        let found = self.block_on(lookup::<M>(self.transport(), name, None))?;
        found.await_link();
        Ok(found)
    }

    /// Registers an actor under one more name.
    ///
    /// # Errors
    /// The name is taken, or the node is shutting down.
    pub fn register<M: GpuMessage>(&self, name: &str, address: &Address<M>) -> Result<(), RegisterError> {
        self.block_on(register_address(self.transport(), name, address))
    }

    /// Finds actors by name from any task or thread of this process.
    pub fn registry(&self) -> Registry {
        Registry::new(Arc::clone(self.transport()))
    }

    /// Opens a stream of this process on the host device, with the process's memory there. It makes tensors
    /// to send, and reads received ones.
    ///
    /// # Errors
    /// The process has no clock left.
    pub fn host_stream(&self) -> Result<DeviceStream, TensorError> {
        self.stream(&Device::host())
    }

    /// Opens a stream of this process on a device, with the process's memory there. On a GPU this opens a
    /// context in this process, which is not a client of the daemon of [`Sharing::Mps`](super::Sharing::Mps).
    ///
    /// # Errors
    /// The device cannot be opened, or the process has no clock left.
    pub fn stream(&self, device: &Device) -> Result<DeviceStream, TensorError> {
        let transport = self.transport();
        DeviceStream::new(transport.pool_for(device.id())?, Arc::clone(transport.domain()))
    }

    /// Runs a future on this thread, in a tokio runtime with time: for sends and asks from a program that is
    /// not async. Make timers inside the future, as in `async { timeout(limit, asked).await }`: outside of it
    /// there is no runtime for them.
    ///
    /// # Panics
    /// Inside another async runtime.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        match runtime {
            Ok(runtime) => runtime.block_on(future),
            // Without I/O a runtime needs nothing of the system, and without a runtime this call cannot go
            // on.
            Err(error) => panic!("no runtime: {error}"),
        }
    }

    /// Returns the counts of the transport of the node's own process.
    pub fn stats(&self) -> TransportStats {
        self.transport().stats()
    }
}

/// For packages of other languages.
#[cfg(feature = "foreign")]
impl Node {
    /// As [`channel`](Self::channel), for messages with this key.
    #[doc(hidden)]
    pub fn raw_channel(&self, key: u64) -> Result<(RawAddress, Channel<RawMessage>), StartError> {
        let (address, channel) = self.channel_with(Some(key))?;
        Ok((address.into(), channel))
    }
}

/// For packages of other languages.
#[cfg(feature = "foreign")]
impl NodeBuilder {
    /// Adds an actor type under the name that `Other` has in other programs.
    #[doc(hidden)]
    pub fn actor_as<A: RemoteActor, Other: RemoteActor>(mut self) -> Self {
        self.types.register_as::<A, Other>();
        self
    }

    /// Adds an actor type under the name that other programs know it by ([`RemoteActor::ELSEWHERE`]).
    #[doc(hidden)]
    pub fn actor_named<A: RemoteActor>(mut self, name: &'static str) -> Self {
        self.types.register_named::<A>(name);
        self
    }
}

/// An actor to start; see [`Node::spawn`].
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
#[must_use = "nothing is started before `start`"]
pub struct Spawn<'n, A: RemoteActor> {
    node: &'n Node,
    args: A::Args,
    name: Option<String>,
    label: Option<String>,
    worker: Option<WorkerId>,
    device: DeviceId,
    receive_on: Option<DeviceId>,
    mailbox: u32,
    own_thread: bool,
    streams: usize,
    gpu_budget: Option<GpuBudget>,
    spares: u32,
    how: Supervision,
    #[cfg(feature = "hosts")]
    pub(super) on: Option<super::hosts::OnHost>,
}

impl<A: RemoteActor> Spawn<'_, A> {
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

    /// Puts it into a group, which decides how the failure of one member affects the others.
    pub fn group(mut self, group: &Group) -> Self {
        self.how.group = Some(group.clone());
        self
    }

    /// Starts the actor, and its worker unless one was given. Blocks until the actor takes messages.
    ///
    /// # Errors
    /// [`ActorError`] says what is wrong: with the arguments, the worker, or what `create` or `prepare`
    /// returned.
    pub fn start(self) -> Result<Spawned<A>, ActorError> {
        let type_name = std::any::type_name::<A>();
        if self.spares > Node::MAX_SPARES || self.spares > 0 && !self.how.restart.when().after(true) {
            return Err(ActorError::Spares(self.spares));
        }
        let own_label = A::label(&self.args);
        let own_worker = self.worker.is_none();
        let program = A::worker_program(&self.args);
        let name = self.name.as_deref().or(self.label.as_deref());
        let name = name.or(own_label.as_deref()).unwrap_or_else(|| short(type_name)).to_owned();
        let (spares, device) = (self.spares, self.device);
        #[cfg(feature = "hosts")]
        let interpreter = A::interpreter(&self.args);
        #[cfg(feature = "hosts")]
        if let Some(host) = self.on.as_ref().map(|on| self.node.other_host(on)).transpose()?.flatten() {
            let worker_there = self.worker.filter(|worker| worker.host() == Some(host.number));
            let whole = [
                (self.worker.is_none() || worker_there.is_some(), "its worker is of another host"),
                (program.is_none() || interpreter.is_some(), "its worker runs a program of this host"),
            ];
            if let Some((_, what)) = whole.into_iter().find(|(goes, _)| !goes) {
                return Err(ActorError::StaysHere { actor: type_name, host: host.to_string(), what });
            }
            let new = super::elsewhere::NewWorker {
                name,
                streams: self.streams,
                interpreter,
                gpu_budget: self.gpu_budget,
            };
            if let Some(worker) = worker_there.filter(|_| !self.how.restart.roams()) {
                return self.defer()?.start(worker);
            }
            if self.how.restart.roams() {
                let on_host = |device| device == DeviceId::HOST;
                let has_device = !on_host(device) || !self.receive_on.is_none_or(on_host);
                if has_device || worker_there.is_some() {
                    let what =
                        "its device or its worker is of one host, and its policy lets it go on on others";
                    return Err(ActorError::StaysHere { actor: type_name, host: host.to_string(), what });
                }
                return self.defer()?.start_roaming(&host, new, spares);
            }
            let supervisor = Arc::clone(self.node.supervisor());
            let started = self.defer()?.start_on(&host, super::elsewhere::StartIn::New(new), device)?;
            if spares > 0 {
                supervisor.keep_spares(started.worker(), spares, device);
            }
            return Ok(started);
        }
        let (supervisor, streams, worker) = (Arc::clone(self.node.supervisor()), self.streams, self.worker);
        let gpu_budget = self.gpu_budget;
        let deferred = self.defer()?;
        let worker = match worker {
            Some(worker) => worker,
            None => {
                let making = Making { gpu_budget, ..Making::of(program, streams) };
                supervisor.spawn_worker_of(&name, making)?
            }
        };
        let started = deferred.start(worker).inspect_err(|_| {
            if own_worker {
                // Nobody else knows of the worker.
                supervisor.retire(worker);
            }
        });
        if started.is_ok() && spares > 0 {
            supervisor.keep_spares(worker, spares, device);
        }
        started
    }

    /// Checks the actor and encodes its arguments, for a later start in a worker that is given then.
    ///
    /// # Errors
    /// [`ActorError`] says what is wrong with it.
    #[doc(hidden)]
    pub fn defer(self) -> Result<Deferred<A>, ActorError> {
        let type_name = std::any::type_name::<A>();
        if !(1..=MAX_MAILBOX).contains(&self.mailbox) {
            return Err(ActorError::Mailbox(self.mailbox));
        }
        let args = codec::encode_in(&self.args, Vec::new(), self.node.transport().domain())
            .map_err(|source| ActorError::Args { actor: type_name, source })?;
        if !args.tensors.is_empty() {
            return Err(ActorError::TensorInArgs(type_name));
        }
        let own_label = A::label(&self.args);
        let actor = NewActor {
            label: self.label.or(own_label.filter(|_| self.name.is_none())),
            name: self.name,
            type_name: A::ELSEWHERE.unwrap_or(type_name).to_owned(),
            type_key: key_of::<A>(),
            args: args.body,
            device: self.device,
            // Libraries of other languages want all their data on one device.
            receive_on: self.receive_on.or(A::TAKES_ANY.then_some(self.device)),
            own_thread: self.own_thread,
            capacity: self.mailbox,
            takes: takes_only::<A>(),
        };
        Ok(Deferred::new(actor, self.how, self.node.transport(), self.node.supervisor()))
    }
}
