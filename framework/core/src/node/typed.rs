//! The typed side of a node: the program that started the node spawns actors, finds them, and talks to them.

use std::future::Future;
use std::sync::Arc;

use super::group::{Group, Strategy};
use super::spawn::Spawn;
use super::supervisor::{SpawnError, StartError, WorkerId};
use super::{Node, NodeBuilder};
#[cfg(feature = "bindings")]
use crate::actor::raw::{RawAddress, RawMessage};
use crate::actor::{
    Address, Channel, LookupError, RegisterError, Registry, RemoteActor, Watch, lookup, register_address,
};
use crate::device::Device;
use crate::limits::DEFAULT_MAILBOX;
use crate::message::{GpuMessage, message_key};
use crate::os::block_on;
use crate::tensor::{DeviceStream, TensorError};
use crate::transport::TransportStats;

impl Node {
    /// The most [spare workers](Spawn::spares) that wait for one worker.
    pub const MAX_SPARES: u32 = super::limits::MAX_SPARES;

    /// Returns a builder with the settings of a node, and its start.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::new()
    }

    /// Prepares the start of an actor, by default in a worker process of its own.
    pub fn spawn<A: RemoteActor>(&self, args: A::Args) -> Spawn<'_, A> {
        Spawn::new(self, args)
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
    /// answers; [`registry`](Self::registry) has the lookup that is awaited.
    ///
    /// # Errors
    /// There is no such actor, it does not handle `M`, or the node is shutting down. If an actor of another
    /// host does not handle `M`, only asks report that.
    pub fn lookup<M: GpuMessage>(&self, name: &str) -> Result<Address<M>, LookupError> {
        let found = block_on(lookup::<M>(self.transport(), name, None))?;
        found.await_link();
        Ok(found)
    }

    /// Registers an actor under one more name.
    ///
    /// # Errors
    /// The name is taken, or the node is shutting down.
    pub fn register<M: GpuMessage>(&self, name: &str, address: &Address<M>) -> Result<(), RegisterError> {
        block_on(register_address(self.transport(), name, address))
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
#[cfg(feature = "bindings")]
impl Node {
    /// As [`channel`](Self::channel), for messages with this key.
    #[doc(hidden)]
    pub fn raw_channel(&self, key: u64) -> Result<(RawAddress, Channel<RawMessage>), StartError> {
        let (address, channel) = self.channel_with(Some(key))?;
        Ok((address.into(), channel))
    }
}

/// For packages of other languages.
#[cfg(feature = "bindings")]
impl NodeBuilder {
    /// Adds an actor type under the name that `Other` has in other programs.
    #[doc(hidden)]
    pub fn actor_as<A: RemoteActor, Other: RemoteActor>(mut self) -> Self {
        self.types.register_as::<A, Other>();
        self
    }

    /// Adds an actor type under the name that other programs know it by ([`RemoteActor::WIRE_NAME`]).
    #[doc(hidden)]
    pub fn actor_named<A: RemoteActor>(mut self, name: &'static str) -> Self {
        self.types.register_named::<A>(name);
        self
    }
}
