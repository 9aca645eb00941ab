//! The mailbox here of an actor of another host. It decodes nothing, and hands its messages to the gateway's
//! task.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc::UnboundedSender;

use super::asks::Question;
use super::command::{Command, Out};
use crate::ids::{ActorId, ProcessId};
use crate::transport::gateway_messages::starter_of;
use crate::transport::inbox::{Delivery, Inbox, LocalCredits, Refusal, Undelivered};

/// The mailbox of an actor of another host; see the module.
pub(super) struct Proxy {
    pub(super) actor: ActorId,
    pub(super) capacity: u32,
    pub(super) local: Arc<LocalCredits>,
    /// Bounded in practice by credits.
    pub(super) to: UnboundedSender<Command>,
}

/// It takes no local message: only the gateway runs in its process, and sends to actors of this host alone.
impl Inbox for Proxy {
    fn actor(&self) -> ActorId {
        self.actor
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn deliver(&self, delivery: Delivery<'_>) -> Result<(), Undelivered> {
        let Delivery { key, body, tensors, tickets: _, receipt, context: _ } = delivery;
        // ONE-WRITER: a sender of this host has refused such a tensor; this message does not keep to that.
        if tensors.iter().any(|tensor| tensor.lease().is_in_parts()) {
            let why = "it holds a part of a split tensor, which does not leave its host";
            return Err(receipt.malformed("a message to another host", why.to_owned()));
        }
        // WIRE-1: on this host only the node may have actors started on another.
        if self.actor == starter_of(self.actor.host()) && receipt.sender() != ProcessId::NODE {
            receipt.refuse(&Refusal::NoSuchActor);
            return Err(Undelivered::Unregistered { key });
        }
        let body = Bytes::copy_from_slice(body);
        // A body that is not a question goes as an ordinary ask, and the actor answers it as it sees fit.
        let question = if receipt.follows() { Question::read(&body) } else { None };
        let out = Out { actor: self.actor, key, body, tensors, receipt, question };
        self.to.send(Command::Out(Box::new(out))).map_err(|_| Undelivered::Stopped)
    }

    fn local(&self) -> &Arc<LocalCredits> {
        &self.local
    }
}
