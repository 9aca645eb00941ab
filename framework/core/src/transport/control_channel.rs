//! The messages between a process's transport and the node.
//!
//! The transport never touches a socket: it passes a [`ToNode`] to its [`ControlChannel`], and is given
//! [`FromNode`]s. In a worker the channel is the control socket; in the node's own process it is the
//! supervisor's queue. Both directions may be called on any thread, and neither waits for the other side.
//!
//! Order: messages from one process arrive at the node in the order in which the process sent them, and
//! messages from the node to one process arrive in the order in which the node sent them. The link handshake
//! of `transport/link.rs` relies on it.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::clock::taint::{TaintRange, TaintUpdate};
use crate::device::Access;
use crate::ids::{ActorId, ChunkId, DeviceId, ProcessId};
use crate::transport::WhyRefused;
use crate::transport::gate::Envelope;
use crate::transport::lifecycle::{Lifecycle, ProcessDown, Whereabouts};

/// From a process to the node. Descriptors travel beside it, in the order that each variant names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToNode {
    /// Pass `link_message`, with all descriptors, to the process `to`. If there is no such process any more,
    /// the node answers [`FromNode::Exited`]; if there never was one, [`FromNode::Nobody`].
    Route {
        /// The process to pass it to.
        to: ProcessId,
        /// The message to pass.
        link_message: LinkMessage,
    },
    /// The half `number` of `peer` is not taken, and this process has none for `peer`: both are void, and the
    /// next use of the link on either side begins anew. Passed on as [`FromNode::LinkRefused`].
    RefuseLink {
        /// The sender of the half.
        peer: ProcessId,
        /// Its number.
        number: u64,
        /// Why.
        why: WhyRefused,
    },
    /// A new chunk exists. Descriptors: one to map read-only, one to map writable. The node keeps both until
    /// nobody can hold a lease in the chunk any more, so a chunk outlives its owner (LEASE-4).
    PublishChunk {
        /// Its name.
        chunk: ChunkId,
        /// The device with its memory.
        device: DeviceId,
        /// Its size.
        bytes: u64,
    },
    /// Ask for a descriptor of a chunk; answered by [`FromNode::Chunk`] or [`FromNode::NoChunk`].
    WantChunk {
        /// Its name.
        chunk: ChunkId,
        /// How it will be mapped.
        access: Access,
    },
    /// A chunk that [`FromNode::Chunk`] brought is not mapped (any more), because no lease on it is left
    /// here. Sent only for chunks whose owner has ended or has withdrawn them: others stay mapped.
    Unmapped {
        /// Its name.
        chunk: ChunkId,
        /// How it was to be mapped.
        access: Access,
    },
    /// Nobody holds anything in this chunk of the sender, and nobody will, so its memory can be freed.
    WithdrawChunk {
        /// Its name, which no other chunk is given.
        chunk: ChunkId,
    },
    /// This process has read everything that a process which ended had posted to it (LEASE-4). Answers
    /// [`FromNode::Exited`].
    Drained {
        /// The process that ended.
        process: ProcessId,
    },
    /// This process has marked everything that a round of [`FromNode::Taint`] taints (DEATH-3).
    Tainted {
        /// The round.
        round: u64,
        /// Ranges of this process's own clocks that are tainted now and were not before.
        ranges: Vec<TaintRange>,
    },
    /// Where does this actor live now? Answered by [`FromNode::Actor`].
    WantActor {
        /// The actor.
        actor: ActorId,
    },
    /// Tell this process what happens to an actor from now on; answered by [`FromNode::Watching`].
    Watch {
        /// Echoed in the answer.
        ticket: u64,
        /// The actor.
        actor: ActorId,
    },
    /// Nobody in this process watches this actor any more.
    Unwatch {
        /// The actor.
        actor: ActorId,
    },
    /// Put an address into the registry under a name; answered by [`FromNode::Registered`].
    Register {
        /// Echoed in the answer.
        ticket: u64,
        /// The name.
        name: String,
        /// The actor that the name stands for.
        actor: ActorId,
    },
    /// Look a name up; answered by [`FromNode::Found`].
    Lookup {
        /// Echoed in the answer.
        ticket: u64,
        /// The name.
        name: String,
    },
    /// Start an actor; answered by [`FromNode::ActorStarted`].
    StartActor {
        /// Echoed in the answer.
        ticket: u64,
        /// The request, in the encoding of the node (`supervisor/start_requests.rs`).
        #[serde(with = "crate::message::codec::bytes")]
        request: Vec<u8>,
    },
    /// Everything that others had sent to this process by the time of the question was delivered.
    Fenced {
        /// From [`FromNode::Fence`].
        ticket: u64,
    },
    /// A message of the gateway to the node's part for what lies outside.
    Neighbours(Envelope),
}

/// An actor that has started and takes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedActor {
    /// The actor.
    pub actor: ActorId,
    /// Its location.
    pub location: Location,
    /// The number of its worker.
    pub worker: u64,
}

/// The actor that has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// The actor.
    pub actor: ActorId,
    /// Its location.
    pub location: Location,
    /// The keys of the messages that it handles, in order, if the node knows them.
    pub takes: Option<Vec<u64>>,
}

/// A message from one process to another that the node passes on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum LinkMessage {
    /// Here is my half of the link between us. Descriptors: the sender's clock page, its wake page, its words
    /// for you, the memory of its rings to you, the bell with which you ring it. Once you have mapped it, say
    /// so in your words for me.
    Link {
        /// Greater than zero and than the number of every half before. A process that has mapped the half, or
        /// refuses it, names it by this.
        number: u64,
    },
    /// Here is fresh memory for my rings to you; the rings continue in it once they say so. Descriptors: one.
    /// Sent over an open link, and again only after the last one was answered.
    Rings {
        /// Greater than the number of every such memory before; the answer names it.
        number: u64,
    },
    /// I have mapped your fresh rings, or I cannot.
    RingsAnswer {
        /// The number of the rings.
        number: u64,
        /// Whether they are mapped.
        is_taken: bool,
    },
}

/// From the node to a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromNode {
    /// A link message from another process, with its descriptors.
    LinkMessage {
        /// The process that wrote it.
        from: ProcessId,
        /// The message.
        link_message: LinkMessage,
    },
    /// The half `number` that was for `peer` leads to no link: `by`, which is the peer or the node, lacks
    /// something for it. The half that the peer had sent is void too.
    LinkRefused {
        /// The process that it was for.
        peer: ProcessId,
        /// Its number.
        number: u64,
        /// The process that does not take it.
        by: ProcessId,
        /// The name of that process, if it is a worker.
        name: String,
        /// Why.
        why: WhyRefused,
    },
    /// A chunk that was asked for. Descriptors: one, for the access asked.
    Chunk {
        /// Its name.
        chunk: ChunkId,
        /// The device with its memory.
        device: DeviceId,
        /// Its size.
        bytes: u64,
        /// The access that the descriptor gives.
        access: Access,
    },
    /// A chunk that was asked for does not exist.
    NoChunk {
        /// Its name.
        chunk: ChunkId,
        /// How it was to be mapped.
        access: Access,
    },
    /// The owner has withdrawn a chunk that this process has, or had, mapped: nobody holds anything in it.
    ChunkWithdrawn {
        /// Its name.
        chunk: ChunkId,
    },
    /// The location of an actor, because this process asked for it or because it changed.
    Actor {
        /// The actor.
        actor: ActorId,
        /// Its whereabouts.
        at: Whereabouts,
    },
    /// An actor of another host that was not used here for long has no location here any more. A sender to it
    /// has to ask again.
    Unplaced {
        /// The actor.
        actor: ActorId,
    },
    /// Answer with [`ToNode::Fenced`] when everything that others have sent to this process by now was
    /// delivered.
    Fence {
        /// Echoed in the answer.
        ticket: u64,
    },
    /// The report why a process ended, and what becomes of its actors. Comes before its
    /// [`Exited`](FromNode::Exited).
    ProcessDown(ProcessDown),
    /// The answer to [`ToNode::Watch`]. Every [`Lifecycle`](FromNode::Lifecycle) of the actor that arrives
    /// after this answer also happened after it.
    Watching {
        /// From the request.
        ticket: u64,
        /// The event by which it went down, if it is not up.
        down: Option<Lifecycle>,
    },
    /// Something has happened to an actor that this process watches.
    Lifecycle(Lifecycle),
    /// The answer to [`ToNode::Register`]: whether the name was free.
    Registered {
        /// From the request.
        ticket: u64,
        /// `Err` holds the actor that has the name.
        result: Result<(), ActorId>,
    },
    /// The answer to [`ToNode::Lookup`].
    Found {
        /// From the request.
        ticket: u64,
        /// The actor under that name, and its location.
        found: Option<Named>,
    },
    /// The answer to [`ToNode::StartActor`].
    ActorStarted {
        /// From the request.
        ticket: u64,
        /// `Err` says why it did not start.
        result: Result<StartedActor, String>,
    },
    /// News of deaths that a process must mark before anything that depends on the dead is released
    /// (DEATH-3). Answered by [`ToNode::Tainted`]. A process that joins is told everything, before any other
    /// message.
    Taint(TaintUpdate),
    /// The clocks of a process that died were released (DEATH-1).
    ClocksReleased {
        /// The process.
        process: ProcessId,
    },
    /// A process ended. The receiver still reads everything that it had posted, and then tells the node
    /// ([`ToNode::Drained`]).
    Exited {
        /// The process.
        process: ProcessId,
    },
    /// A link message was for a process that does not exist, or not yet.
    Nobody {
        /// The name on the link message.
        process: ProcessId,
    },
    /// Every process has read everything that a process which ended had posted: its leases can be dropped
    /// (LEASE-4).
    Reclaim {
        /// The process.
        process: ProcessId,
    },
    /// A message for the gateway. The first one makes the process the gateway.
    Neighbours(Envelope),
}

/// The location of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Location {
    /// Its process, in this life.
    pub process: ProcessId,
    /// Its index among the actors of that process.
    pub index: u16,
    /// How many unhandled messages one sending process may have in its mailbox.
    pub capacity: u32,
}

/// The way to the node.
pub trait ControlChannel: Send + Sync + 'static {
    /// Hands `message` and its descriptors over. Never waits for an answer.
    ///
    /// # Errors
    /// [`ControlChannelClosed`] when the node is gone.
    fn send(&self, message: ToNode, descriptors: Vec<OwnedFd>) -> Result<(), ControlChannelClosed>;

    /// Hands over a message that may be dropped, such as a log line, if that holds up no other message.
    /// Returns whether it was taken.
    #[cfg(feature = "hosts")]
    fn send_if_room(&self, message: ToNode) -> bool {
        self.send(message, Vec::new()).is_ok()
    }
}

/// The node is gone, so nothing can be asked of it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the node has ended; this process is about to end too")]
pub struct ControlChannelClosed;
