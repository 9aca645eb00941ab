//! Addresses: any process of the node reaches an actor by one, and a name leads to one.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::asking::Ask;
use super::blocking::would_block;
use super::error::SendError;
use super::sending::{self, SendFuture};
use crate::clock::NodeNumber;
use crate::ids::ActorId;
use crate::message::portable::{Describer, Portable, Shape};
use crate::message::{GpuMessage, message_key, scope};
use crate::os::fork::INHERITED;
#[cfg(feature = "bindings")]
use crate::transport::LeaseLimit;
use crate::transport::Transport;
use crate::transport::control_channel::{ControlChannelClosed, Location, Named};

/// The address of an actor that takes messages of type `M`.
///
/// It can be cloned, compared, kept, and sent in messages and in an actor's arguments, within its own node:
/// actors of another node of the process have no way to it. Two addresses are equal if they lead to the same
/// actor. Sending does not care where the actor is; to an actor in the same process a message goes as it is.
/// When the actor is restarted, its addresses lead to its new life; messages that are sent meanwhile wait for
/// it (DEATH-2).
///
/// ```
/// use tensorpost::prelude::*;
///
/// #[derive(Serialize, Deserialize, GpuMessage)]
/// struct Frame {
///     pixels: Tensor,
/// }
///
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().start()?;
/// let (address, mut frames) = node.channel::<Frame>()?;
/// let pixels = node.host_stream()?.from_slice(&[3], &[1_u8, 2, 3])?.freeze();
///
/// // `send` waits for room; `try_send` gives the message back when there is none.
/// node.block_on(address.send(Frame { pixels: pixels.clone() }))?;
/// if let Err(error) = address.try_send(Frame { pixels }) {
///     println!("{error}; again later: {}", error.is_retryable());
///     let _frame: Frame = error.message;
/// }
/// assert_eq!(frames.blocking_recv()?.pixels.to_vec::<u8>()?, [1, 2, 3]);
/// # frames.blocking_recv()?;
/// # Ok(())
/// # }
/// ```
pub struct Address<M> {
    transport: Arc<Transport>,
    actor: ActorId,
    location: Location,
    /// The keys of the messages that the actor takes, in order. Set if the actor is not known to take `M`, or
    /// if the messages have keys of their own.
    only: Option<Arc<[u64]>>,
    /// The message type's key on the wire. Kept, because it is hashed from names.
    key: u64,
    message: PhantomData<fn(M)>,
}

/// Why a name was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// No actor has the name.
    #[error("no actor is registered under `{0}`; spawn one with `.name(\"{0}\")`, or register its address")]
    Unknown(String),
    /// The actor with this name does not handle messages of this type.
    #[error(
        "the actor `{name}` does not handle {message}; look it up for a type that it handles, or list this one in its handlers, in \
         `RemoteActor::handles` with `on.message::<{message}>()`"
    )]
    Unhandled {
        /// The name.
        name: String,
        /// The type.
        message: &'static str,
    },
    /// The caller would have to wait for the lookup in a call that may not wait
    /// ([`Env::without_waiting`](super::Env::without_waiting)).
    #[error(
        "this call cannot wait for the answer; look `{0}` up before the actor or the pipeline starts, and give the address along, \
         or await the lookup in `prepare`"
    )]
    Blocking(String),
    /// The node has ended.
    #[error("the node has ended")]
    NodeExited,
    /// This process was forked from a process of the node.
    #[error("{INHERITED}")]
    Forked,
}

/// Why a name was not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Another actor has the name, or it is not a valid name.
    #[error("`{0}` cannot be registered: another actor has it, or it is no name")]
    Taken(String),
    /// An actor of another host of the node has the name.
    #[error("`{name}` cannot be registered: an actor on host {host} has it")]
    Elsewhere {
        /// The name.
        name: String,
        /// The number of the host.
        host: u16,
    },
    /// The address belongs to an actor of another node of the process.
    #[error("`{name}` cannot be registered at {node}: the address is of {address}; register it there")]
    OtherNode {
        /// The name.
        name: String,
        /// The node of the address. The nodes of a process are counted from 1, in the order in which it
        /// started them.
        address: String,
        /// The node that was asked to register it.
        node: String,
    },
    /// The node has ended.
    #[error("the node has ended")]
    NodeExited,
    /// This process was forked from a process of the node.
    #[error("{INHERITED}")]
    Forked,
}

impl<M: GpuMessage> Address<M> {
    pub(crate) fn new(transport: Arc<Transport>, actor: ActorId, location: Location) -> Self {
        let forked = transport.is_inherited();
        let location = if forked { location } else { transport.directory.location_of(actor, location) };
        // The link is made now, so that it is there when the first message is sent. For an actor of another
        // host, the location is one on that host.
        if !forked && !transport.directory.meets_other_host(actor) && location.process != transport.process()
        {
            let _ = transport.link(location.process);
        }
        Address { transport, actor, location, only: None, key: message_key::<M>(), message: PhantomData }
    }

    /// Restricts the address to messages with these keys, in order, and no others.
    pub(crate) fn only(self, keys: Arc<[u64]>) -> Self {
        Address { only: Some(keys), ..self }
    }

    /// Returns the actor that the address leads to.
    pub fn actor(&self) -> ActorId {
        self.actor
    }

    #[cfg(feature = "bindings")]
    pub(super) fn leases_lacked(&self) -> Option<LeaseLimit> {
        let route = self.transport.route_to(self.actor, self.location).ok()?;
        self.transport.leases_lacked(&route)
    }

    /// Sends, waiting for room, and resolves when the mailbox has accepted the message. This call makes the
    /// first attempt at once: messages reach the mailbox in the order of the calls (MBX-1).
    ///
    /// # Errors
    /// [`SendError`] gives the message back.
    ///
    /// # Cancel safety
    /// A message that finds room is sent by this call, even if the future is dropped without a poll. One that
    /// finds none waits only while the future is polled. If the future is dropped before it resolves, the
    /// message was not sent.
    pub fn send(&self, message: M) -> SendFuture<M> {
        SendFuture::new(self, message)
    }

    /// Sends, if there is room now.
    ///
    /// # Errors
    /// [`SendError`] gives the message back. Its reason is [`SendFailure::Full`](super::SendFailure::Full) if
    /// there is no room, or others wait for it already. It is
    /// [`SendFailure::Connecting`](super::SendFailure::Connecting) while the first link to that process is
    /// being made (`start()` and `Node::lookup` wait for it). It is
    /// [`SendFailure::Restarting`](super::SendFailure::Restarting) while the actor is between two lives.
    pub fn try_send(&self, message: M) -> Result<(), SendError<M>> {
        sending::try_send(self, message)
    }

    /// Sends, waiting for room, and resolves to the handler's reply. This call makes the first attempt at
    /// once. Any runtime may await it, a web server's too; with a `timeout` it must be tokio's, with time.
    ///
    /// # Errors
    /// [`AskError`](super::AskError) says whether the message was sent.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the reply; the message may have been sent.
    pub fn ask(&self, message: M) -> Ask<M> {
        Ask::new(self.clone(), message)
    }

    /// Returns the same actor's address for messages with this key, by which the actor's program knows their
    /// type. The receiver checks them as ever (WIRE-1).
    #[doc(hidden)]
    pub fn with_key(&self, key: u64) -> Self {
        Address { key, ..self.clone() }
    }

    /// Returns the same actor's address for messages of another type, which the actor is known to take. If
    /// many types of messages go the same way, the code that names their receivers is compiled only once.
    #[doc(hidden)]
    pub fn cast<N: GpuMessage>(&self) -> Address<N> {
        let Address { transport, actor, location, only, .. } = self.clone();
        Address { transport, actor, location, only, key: message_key::<N>(), message: PhantomData }
    }

    /// Returns the key of messages of this type.
    #[doc(hidden)]
    pub fn usual_key() -> u64 {
        message_key::<M>()
    }

    /// Blocks for a moment, until the link to the actor's process is made. Must not be called on the reader's
    /// thread.
    pub(crate) fn await_link(&self) {
        self.transport.await_link(self.actor, self.location);
    }

    pub(crate) fn transport(&self) -> &Arc<Transport> {
        &self.transport
    }

    /// Returns where the actor was when this address was made.
    pub(super) fn location(&self) -> Location {
        self.location
    }

    pub(super) fn key(&self) -> u64 {
        self.key
    }

    pub(super) fn takes(&self) -> bool {
        self.takes_key(self.key)
    }

    /// Returns whether the actor takes messages with this key, as far as the address knows.
    pub(super) fn takes_key(&self, key: u64) -> bool {
        self.only.as_ref().is_none_or(|keys| keys.binary_search(&key).is_ok())
    }
}

/// The schema includes the message that the address takes: two programs that hold one address mean the same
/// messages by it.
impl<M: GpuMessage + Portable> Portable for Address<M> {
    fn describe(describer: &mut Describer) -> Shape {
        Shape::Address(Box::new(describer.message::<M>()))
    }
}

/// Looks up the actor under `name`, for messages with `key` if their type does not determine it.
pub(crate) async fn lookup<M: GpuMessage>(
    transport: &Arc<Transport>,
    name: &str,
    key: Option<u64>,
) -> Result<Address<M>, LookupError> {
    if transport.is_inherited() {
        return Err(LookupError::Forked);
    }
    if would_block().await {
        return Err(LookupError::Blocking(name.to_owned()));
    }
    let found = transport.directory.lookup(name.to_owned(), &*transport.control).await;
    let found = found.map_err(|ControlChannelClosed| LookupError::NodeExited)?;
    let Some(Named { actor, location, takes }) = found else {
        return Err(LookupError::Unknown(name.to_owned()));
    };
    let address = Address::new(Arc::clone(transport), actor, location);
    let address = key.map_or_else(|| address.clone(), |key| address.with_key(key));
    let Some(keys) = takes else { return Ok(address) };
    #[cfg(feature = "raw")]
    if key.is_none() && crate::message::raw::is_raw::<M>() {
        // Each message will say its own type.
        return Ok(address.only(keys.into()));
    }
    match keys.binary_search(&address.key) {
        Ok(_) => Ok(address),
        Err(_) => Err(LookupError::Unhandled { name: name.to_owned(), message: M::NAME }),
    }
}

/// Registers `actor` under `name`.
pub(crate) async fn register(
    transport: &Arc<Transport>,
    name: &str,
    actor: ActorId,
) -> Result<(), RegisterError> {
    if transport.is_inherited() {
        return Err(RegisterError::Forked);
    }
    let result = transport.directory.register(name.to_owned(), actor, &*transport.control).await;
    let result = result.map_err(|ControlChannelClosed| RegisterError::NodeExited)?;
    #[cfg(feature = "hosts")]
    let own = transport.directory.host();
    #[cfg(not(feature = "hosts"))]
    let own = 0;
    result.map_err(|holder| match holder.host() {
        // Without a holder the name is not a valid one.
        host if holder.0 != 0 && host != own => RegisterError::Elsewhere { name: name.to_owned(), host },
        _ => RegisterError::Taken(name.to_owned()),
    })
}

/// Registers the actor behind `address` under `name`, at the node of `transport`.
pub(crate) async fn register_address<M: GpuMessage>(
    transport: &Arc<Transport>,
    name: &str,
    address: &Address<M>,
) -> Result<(), RegisterError> {
    if !Arc::ptr_eq(transport, address.transport()) {
        let [address, node] = [address.transport(), transport].map(|of| of.domain().node().to_string());
        return Err(RegisterError::OtherNode { name: name.to_owned(), address, node });
    }
    register(transport, name, address.actor()).await
}

impl<M> Clone for Address<M> {
    fn clone(&self) -> Self {
        Address {
            transport: Arc::clone(&self.transport),
            actor: self.actor,
            location: self.location,
            only: self.only.clone(),
            key: self.key,
            message: PhantomData,
        }
    }
}

impl<M> PartialEq for Address<M> {
    fn eq(&self, other: &Self) -> bool {
        // Actors of two nodes have the same numbers.
        self.actor == other.actor && Arc::ptr_eq(&self.transport, &other.transport)
    }
}

impl<M> Eq for Address<M> {}

impl<M> Hash for Address<M> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.actor.hash(state);
    }
}

impl<M> fmt::Debug for Address<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({} in {})", self.actor, self.location.process)
    }
}

/// Checks that an address of the node `own` may be part of the encoded message.
///
/// # Errors
/// The message leaves by another node, where the actor's number belongs to another actor.
pub(super) fn goes_out_by<E: ser::Error>(own: NodeNumber) -> Result<(), E> {
    scope::goes_out_by(own).map_err(|other| {
        E::custom(format_args!(
            "the address in it is of {own}, and it goes out by {other}, whose actors have no way to an actor of {own}; give the address of \
             an actor or a channel of {other}, which sends the messages on"
        ))
    })
}

impl<M> Serialize for Address<M> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        goes_out_by(self.transport.domain().node())?;
        // If the actor was restarted since, its new location is written, so that the reader need not ask for
        // it.
        let forked = self.transport.is_inherited();
        let now = || self.transport.directory.location_of(self.actor, self.location);
        (self.actor, if forked { self.location } else { now() }).serialize(serializer)
    }
}

impl<'de, M: GpuMessage> Deserialize<'de> for Address<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (actor, location) = <(ActorId, Location)>::deserialize(deserializer)?;
        let transport = scope::context().and_then(|context| context.downcast::<Transport>().ok());
        let transport = transport.ok_or_else(|| {
            de::Error::custom("an Address can only be read from a message, a reply or an actor's arguments")
        })?;
        Ok(Address::new(transport, actor, location))
    }
}
