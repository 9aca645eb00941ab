//! Access to actors for a package of another language: addresses without a type, and the ends of an actor
//! whose handlers are elsewhere.
//!
//! Messages go the same way as all others. Only the types are known elsewhere: the package has the schemas,
//! and this crate the keys.

use std::sync::Arc;

use serde::{Serialize, Serializer};

pub use super::handles::raw::{RawAnswer, RawSink, TakesRaw};
use super::{Address, Ask, Env, Lifecycle, SendError, SendFuture};
use crate::ids::ActorId;
use crate::lease::Lease;
use crate::message::codec::{self, DecodeError};
pub use crate::message::raw::{RawMessage, RawReply, Unanswered};
pub use crate::message::raw_item::RawItem;
use crate::stream::turn::{self, Turn};
use crate::tensor::Tensor;
use crate::transport::control_channel::Location;
use crate::transport::lifecycle::EndReason;
use crate::transport::{LeaseLimit, Transport};

/// The address of an actor, for messages of any type: each message names its type by its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RawAddress(Address<RawMessage>);

impl RawAddress {
    pub(crate) fn new(transport: &Arc<Transport>, actor: ActorId, location: Location) -> Self {
        RawAddress(Address::new(Arc::clone(transport), actor, location))
    }

    /// Reads an address from a body.
    ///
    /// # Errors
    /// The bytes are no address.
    pub fn read(body: &[u8], transport: &Arc<Transport>) -> Result<Self, DecodeError> {
        let context: Arc<dyn std::any::Any + Send + Sync> = Arc::<Transport>::clone(transport);
        codec::decode(body, Vec::new(), Some(context)).map(RawAddress)
    }

    /// Returns the actor that the address leads to.
    pub fn actor(&self) -> ActorId {
        self.0.actor()
    }

    /// Restricts the address to messages with these keys, which the actor takes, and no others.
    pub fn only(self, mut keys: Vec<u64>) -> Self {
        keys.sort_unstable();
        RawAddress(self.0.only(keys.into()))
    }

    /// Returns whether the actor takes messages with this key, as far as the address knows.
    pub fn takes(&self, key: u64) -> bool {
        self.0.takes_key(key)
    }

    /// As [`Address::send`].
    pub fn send(&self, message: RawMessage) -> SendFuture<RawMessage> {
        self.0.with_key(message.key).send(message)
    }

    /// As [`Address::try_send`].
    ///
    /// # Errors
    /// As there.
    pub fn try_send(&self, message: RawMessage) -> Result<(), Box<SendError<RawMessage>>> {
        self.0.with_key(message.key).try_send(message).map_err(Box::new)
    }

    /// As [`Address::ask`].
    pub fn ask(&self, message: RawMessage) -> Ask<RawMessage> {
        self.0.with_key(message.key).ask(message)
    }

    /// Returns the limit of leases that a message met which found no room in time, if it met one.
    pub fn leases_lacked(&self) -> Option<LeaseLimit> {
        self.0.leases_lacked()
    }

    /// Returns an address of a type, for an interface that asks for one and sends nothing to it.
    pub fn typed(&self) -> &Address<RawMessage> {
        &self.0
    }
}

impl From<Address<RawMessage>> for RawAddress {
    fn from(address: Address<RawMessage>) -> Self {
        RawAddress(address)
    }
}

impl Serialize for RawAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// While this exists, this thread's sends, answers and releases are put off and published together at its
/// end, as at the end of a handler in Rust. That costs one clock write for each stream, and one look at each
/// peer.
///
/// A thread that waits for another one meanwhile must call [`publish`](Self::publish) first, or may wait for
/// ever.
#[derive(Debug)]
#[must_use = "what was put off goes out when this drops"]
pub struct Together(#[expect(dead_code, reason = "it is for its drop")] Turn);

impl Together {
    /// Begins on this thread. Within another one it is a part of that.
    pub fn begin() -> Self {
        Together(Turn::begin())
    }

    /// Publishes everything that was put off on this thread. Does nothing if nothing was.
    #[inline]
    pub fn publish() {
        if turn::is_open() {
            turn::flush_now();
        }
    }
}

/// Returns whether other processes can have a lease on the memory of `tensor` from this transport.
pub fn can_leave_by(tensor: &Tensor, transport: &Transport) -> bool {
    let lease: &Lease = tensor.lease();
    lease.can_leave() && Arc::ptr_eq(lease.domain(), transport.domain())
}

impl Env {
    /// Returns the transport of the actor's process.
    pub fn transport(&self) -> &Arc<Transport> {
        &self.transport
    }

    /// Returns the actor's own address, for messages of any type.
    pub fn raw_address(&self) -> RawAddress {
        RawAddress(self.address())
    }

    /// Returns whether another life follows if this one fails.
    pub fn comes_back(&self) -> bool {
        self.comes_back
    }

    /// Makes this life of the actor fail, as a handler's panic with this text does. A handler that runs on
    /// the actor's thread finishes first.
    pub fn fail(&self, why: String) {
        let inbox =
            self.transport.actors.inbox(self.location.index).filter(|inbox| inbox.actor() == self.actor);
        if let Some(inbox) = inbox {
            inbox.fail(EndReason::HandlerPanic(why));
        }
    }

    /// As [`watch`](Self::watch), for an address without a type.
    pub fn watch_raw(&self, address: &RawAddress) {
        self.watch(address.typed(), &self.address::<Lifecycle>());
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
