//! The handle of an actor that was started.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use actix::Handler;

use super::supervisor::WorkerId;
#[cfg(feature = "bindings")]
use crate::actor::raw::RawAddress;
use crate::actor::{Address, Ask, RemoteActor, SendError, SendFuture};
use crate::ids::ActorId;
use crate::message::{GpuMessage, message_key};
use crate::transport::Transport;
use crate::transport::control_channel::Location;

/// The handle of an actor that was started, for all messages that it takes. It can be cloned and kept. The
/// actor does not end when the handle drops.
///
/// ```no_run
/// use tensorpost::prelude::*;
///
/// #[derive(Serialize, Deserialize, GpuMessage)]
/// struct Add(u64);
///
/// #[derive(Serialize, Deserialize, GpuMessage)]
/// #[gpu_message(reply = u64)]
/// struct Total;
///
/// #[derive(Default, RemoteActor)]
/// #[remote_actor(handles(Add, Total))]
/// struct Sum(u64);
///
/// impl Handler<Add> for Sum {
///     type Result = ();
///
///     fn handle(&mut self, Add(number): Add, _: &mut Context<Self>) {
///         self.0 += number;
///     }
/// }
///
/// impl Handler<Total> for Sum {
///     type Result = u64;
///
///     fn handle(&mut self, _: Total, _: &mut Context<Self>) -> u64 {
///         self.0
///     }
/// }
///
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().start()?;
/// let sum = node.spawn::<Sum>(()).start()?;
/// node.block_on(sum.send(Add(3)))?;
/// assert_eq!(node.block_on(sum.ask(Total))?, 3);
/// let to_send_along: Address<Add> = sum.address();
/// # drop(to_send_along);
/// # Ok(())
/// # }
/// ```
pub struct Spawned<A> {
    transport: Arc<Transport>,
    actor: ActorId,
    location: Location,
    worker: WorkerId,
    /// The keys of the messages that it lists, in order.
    takes: Arc<[u64]>,
    kind: PhantomData<fn(A)>,
}

impl<A: RemoteActor> Spawned<A> {
    /// Makes the handle of an actor that takes the messages with these keys.
    pub(super) fn new(
        transport: Arc<Transport>,
        (actor, location): (ActorId, Location),
        worker: WorkerId,
        takes: Arc<[u64]>,
    ) -> Self {
        Spawned { transport, actor, location, worker, takes, kind: PhantomData }
    }

    /// Returns its address for messages of type `M`, to send along, or for code that needs to know no more of
    /// it. If `A` handles `M` but does not list it in [`RemoteActor::handles`], sends give the message back
    /// and say so.
    pub fn address<M: GpuMessage>(&self) -> Address<M>
    where
        A: Handler<M>,
    {
        let address = Address::new(Arc::clone(&self.transport), self.actor, self.location);
        let takes = A::TAKES_ANY || self.takes.binary_search(&message_key::<M>()).is_ok();
        if takes { address } else { address.only(Arc::clone(&self.takes)) }
    }

    /// Sends a message to it, as [`Address::send`]. A program that sends much keeps an
    /// [`address`](Self::address), which has looked the link up already.
    ///
    /// # Errors
    /// [`SendError`] gives the message back.
    ///
    /// # Cancel safety
    /// As for [`Address::send`].
    pub fn send<M: GpuMessage>(&self, message: M) -> SendFuture<M>
    where
        A: Handler<M>,
    {
        self.address().send(message)
    }

    /// Sends a message to it, as [`Address::try_send`].
    ///
    /// # Errors
    /// [`SendError`] gives the message back.
    pub fn try_send<M: GpuMessage>(&self, message: M) -> Result<(), SendError<M>>
    where
        A: Handler<M>,
    {
        self.address().try_send(message)
    }

    /// Asks it any question that it handles, as [`Address::ask`].
    ///
    /// # Errors
    /// [`AskError`](crate::actor::AskError) says whether the message was sent.
    ///
    /// # Cancel safety
    /// As for [`Address::ask`].
    pub fn ask<M: GpuMessage>(&self, message: M) -> Ask<M>
    where
        A: Handler<M>,
    {
        self.address().ask(message)
    }

    /// Returns its identity in the node.
    pub fn actor(&self) -> ActorId {
        self.actor
    }

    /// Returns the worker that it runs in. This host's supervisor does not supervise a worker of another
    /// host.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }
}

impl<A> Clone for Spawned<A> {
    fn clone(&self) -> Self {
        Spawned {
            transport: Arc::clone(&self.transport),
            actor: self.actor,
            location: self.location,
            worker: self.worker,
            takes: Arc::clone(&self.takes),
            kind: PhantomData,
        }
    }
}

impl<A> fmt::Debug for Spawned<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spawned({} in {})", self.actor, self.location.process)
    }
}

/// For packages of other languages.
#[cfg(feature = "bindings")]
impl<A> Spawned<A> {
    /// Returns its address, for messages of any type.
    #[doc(hidden)]
    pub fn raw_address(&self) -> RawAddress {
        RawAddress::new(&self.transport, self.actor, self.location)
    }
}
