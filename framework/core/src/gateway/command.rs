//! The commands for the gateway's task, and the values that come with them.

use std::sync::Arc;

use bytes::Bytes;
use tensorpost_hosts::ids::Seq;
use tensorpost_hosts::join::Member;
use tensorpost_hosts::net::Peer;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::asks::{Answered, Question, Replying};
use super::store::Store;
use crate::ids::ActorId;
use crate::tensor::{Tensor, TensorError};
use crate::transport::control_channel::Location;
use crate::transport::gateway_messages::ToGateway;
use crate::transport::inbox::Receipt;
use crate::transport::lifecycle::Lifecycle;

/// A command for the gateway's task.
pub(super) enum Command {
    /// From its node.
    Node(ToGateway),
    /// A message for another host.
    Out(Box<Out>),
    /// The tensors of a message are ready to be sent, or never will be.
    Prepared(Box<Prepared>),
    /// A tensor of a message that is under way is lost. `why` is the reason, `None` if the tensor is tainted.
    Spoilt { host: u16, session: u64, post: Seq, why: Option<String> },
    /// An actor of this host has answered an ask of another host.
    Answered(Box<Answered>),
    /// The node is still to be told how many records of a host's log were lost.
    LogLost(u16),
    /// Something happened to an actor of this host that other hosts know.
    Event(Lifecycle),
    /// The answer of this host's node to another host's look-up of a name.
    Found { host: u16, session: u64, ticket: u64, found: Option<(ActorId, Location)> },
    /// A host has joined the node.
    Joined(Box<Newcomer>),
    /// The head's verdict: a host was not heard for too long and is lost.
    Verdict(u16),
    /// A host refuses connections from this one.
    Refused { host: u16, session: u64, why: String },
    /// A mailbox has taken a message of a session that has ended.
    LeftBehind { host: u16, actor: ActorId },
    /// Time to tell the node that this process still makes progress.
    Beat,
    /// The head has not answered for too long: this host has to stop.
    CutOff,
    /// Some time has passed since a version of this actor's published state arrived.
    Unfollow(ActorId),
    /// A message that is arriving finds no memory.
    Hungry,
    /// This host shuts down.
    Stopping,
    /// Leave the node.
    Leave(oneshot::Sender<()>),
}

/// A host that has joined the node.
pub(super) struct Newcomer {
    pub(super) member: Member,
    pub(super) peer: Arc<Peer>,
    pub(super) store: Arc<Store>,
}

/// A message for an actor of another host.
#[derive(Debug)]
pub(super) struct Out {
    pub(super) actor: ActorId,
    pub(super) key: u64,
    pub(super) body: Bytes,
    pub(super) tensors: Vec<Tensor>,
    /// Held until the other host is done with the message, so that the credits of both hosts form one chain
    /// (HOST-9).
    pub(super) receipt: Receipt,
    /// Set if the sender follows versions.
    pub(super) question: Option<Question>,
}

/// The outcome of the wait for the tensors of a message, or of a reply.
pub(super) struct Prepared {
    pub(super) item: u64,
    pub(super) of: Of,
    pub(super) tensors: Result<Vec<Tensor>, TensorError>,
}

/// The message or reply that the tensors belong to.
pub(super) enum Of {
    Message(ActorId),
    Reply(Replying),
}

/// Makes the memory of the messages for one session with another host.
pub(super) fn store_for(host: u16, session: u64, gateway: UnboundedSender<Command>) -> Arc<Store> {
    Arc::new(Store::new(move |post, why| {
        // An error means that the gateway has ended, and the message with it.
        let _ = gateway.send(Command::Spoilt { host, session, post, why });
    }))
}
