//! What a package for another language needs of actors: addresses without a type, and the ends of an actor
//! whose handlers are elsewhere.
//!
//! Messages go the way of all others. What differs is who knows their types: the package has the schemas, and
//! this crate the keys.

use std::sync::Arc;

use serde::{Serialize, Serializer};

pub use super::handles::foreign::{RawAnswer, RawSink, TakesRaw};
use super::{Address, Ask, Env, Lifecycle, Send, SendError};
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

/// The address of an actor, for messages of any type: each says by its key which it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RawAddress(Address<RawMessage>);

impl RawAddress {
    pub(crate) fn new(transport: &Arc<Transport>, actor: ActorId, location: Location) -> Self {
        RawAddress(Address::new(Arc::clone(transport), actor, location))
    }

    /// Reads an address out of a body.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn read(body: &[u8], transport: &Arc<Transport>) -> Result<Self, DecodeError> {
        let context: Arc<dyn std::any::Any + std::marker::Send + Sync> = Arc::<Transport>::clone(transport);
        codec::decode(body, Vec::new(), Some(context)).map(RawAddress)
    }

    /// The actor that it leads to.
    pub fn actor(&self) -> ActorId {
        self.0.actor()
    }

    /// As [`Address::send`].
    pub fn send(&self, message: RawMessage) -> Send<RawMessage> {
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

    /// The limit of leases that a message to the actor met which found no room in time, if it met that.
    pub fn leases_lacked(&self) -> Option<LeaseLimit> {
        self.0.leases_lacked()
    }

    /// For what asks for an address of some type, and sends nothing to it.
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

/// While this is there, what this thread sends, answers and lets go of goes out together, at its end, as at
/// that of a handler in Rust: one clock write for each stream, and one look at each peer.
///
/// Whoever waits for somebody else inside of it says [`publish`](Self::publish) first, or may wait for ever.
#[derive(Debug)]
#[must_use = "what was put off goes out when this drops"]
pub struct Together(#[expect(dead_code, reason = "it is for its drop")] Turn);

impl Together {
    /// From here on, on this thread. Inside of another it is a part of that.
    pub fn begin() -> Self {
        Together(Turn::begin())
    }

    /// What was put off on this thread goes out now. Nothing where nothing was.
    #[inline]
    pub fn publish() {
        if turn::is_open() {
            turn::flush_now();
        }
    }
}

/// Whether other processes can have a lease on the memory of `tensor` from this transport.
pub fn can_leave_by(tensor: &Tensor, transport: &Transport) -> bool {
    let lease: &Lease = tensor.lease();
    lease.can_leave() && Arc::ptr_eq(lease.domain(), transport.domain())
}

impl Env {
    /// The transport of the actor's process.
    pub fn transport(&self) -> &Arc<Transport> {
        &self.transport
    }

    /// The actor's own address, for messages of any type.
    pub fn raw_address(&self) -> RawAddress {
        RawAddress(self.address())
    }

    /// Whether another life follows if this one fails.
    pub fn comes_back(&self) -> bool {
        self.comes_back
    }

    /// Has this life of the actor fail, as a handler's panic with this text does. What its handler is doing
    /// on the actor's thread is finished first.
    pub fn fail(&self, why: String) {
        let inbox = self.transport.inbox(self.location.index).filter(|inbox| inbox.actor() == self.actor);
        if let Some(inbox) = inbox {
            inbox.fail(EndReason::HandlerPanic(why));
        }
    }

    /// As [`watch`](Self::watch), of an actor by an address without a type.
    pub fn watch_raw(&self, address: &RawAddress) {
        self.watch(address.typed(), &self.address::<Lifecycle>());
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
