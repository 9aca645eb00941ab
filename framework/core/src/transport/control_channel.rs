//! What a process's transport and the node say to each other.
//!
//! The transport never talks to a socket: it hands a [`ToNode`] to its [`ControlChannel`] and is handed
//! [`FromNode`]s. In a worker it is the control socket; in the node's own process it is the supervisor's
//! queue. Either may be called on any thread and neither waits for the other side.
//!
//! Order: what one process sends through its control channel arrives at the node in that order, and what the
//! node sends to one process arrives in that order. The link handshake of `transport/link.rs` relies on it.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::clock::taint::{TaintRange, TaintUpdate};
use crate::device::Access;
use crate::ids::{ActorId, ChunkId, DeviceId, ProcessId};
use crate::transport::WhyRefused;
#[cfg(feature = "hosts")]
use crate::transport::hosts::{FromGateway, ToGateway};
use crate::transport::lifecycle::{Lifecycle, ProcessDown, Whereabouts};

/// From a process to the node. Descriptors travel beside it, in the order that each variant names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToNode {
    /// Pass `link_message`, with all descriptors, to the process `to`. If there is no such process any more,
    /// the node answers [`FromNode::Exited`]; if there never was one, [`FromNode::Nobody`].
    Route {
        /// The process to pass it to.
        to: ProcessId,
        /// What to pass.
        link_message: LinkMessage,
    },
    /// The half `number` of `peer` is not taken, and this process has none for `peer`: both are void, and the
    /// next use of the link on either side begins anew. Passed on as [`FromNode::LinkRefused`].
    RefuseLink {
        /// Who sent the half.
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
        /// Where its memory is.
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
    /// here. Only of chunks whose owner has ended or withdrawn them: others stay mapped.
    Unmapped {
        /// Its name.
        chunk: ChunkId,
        /// How it was to be mapped.
        access: Access,
    },
    /// Nobody holds anything in this chunk of the sender's, and nobody will: its memory is to be free.
    WithdrawChunk {
        /// Its name, which no other chunk is given.
        chunk: ChunkId,
    },
    /// Everything that a process which ended had posted to this one was read (LEASE-4). Answers
    /// [`FromNode::Exited`].
    Drained {
        /// The process that ended.
        process: ProcessId,
    },
    /// What a round of [`FromNode::Taint`] has led to is marked (DEATH-3).
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
    /// All that others had sent to this process when it was asked was delivered.
    Fenced {
        /// From [`FromNode::Fence`].
        ticket: u64,
    },
    /// What this host's gateway says of others. Last, so that the form of the rest is that of a build without
    /// it.
    #[cfg(feature = "hosts")]
    Hosts(FromGateway),
}

/// The actor that has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// The actor.
    pub actor: ActorId,
    /// Its location.
    pub location: Location,
    /// The keys of the messages that it handles, in order, where the node knows them.
    pub takes: Option<Vec<u64>>,
}

/// From one process to another, by way of the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum LinkMessage {
    /// Here is my half of the link between us. Descriptors: the sender's clock page, its wake page, its words
    /// for you, the memory of its rings to you, the bell with which you ring it. Once you have mapped it you
    /// say so in your words for me.
    Link {
        /// Greater than zero, and than that of every half before: who has mapped it, or refuses it, names it.
        number: u64,
    },
    /// Here is fresh memory for my rings to you, in which they go on once they say so. Descriptors: one. Over
    /// a link that stands, and again when the last was answered.
    Rings {
        /// Greater than that of every such memory before: the answer names it.
        number: u64,
    },
    /// I have mapped your fresh rings, or I cannot.
    RingsAnswer {
        /// Of the rings.
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
        /// Who wrote it.
        from: ProcessId,
        /// What it says.
        link_message: LinkMessage,
    },
    /// The half `number` that was for `peer` leads to no link: `by`, which is the peer or the node, lacks
    /// something for it. What the peer had sent is void too.
    LinkRefused {
        /// Whom it was for.
        peer: ProcessId,
        /// Its number.
        number: u64,
        /// Who does not take it.
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
        /// Where its memory is.
        device: DeviceId,
        /// Its size.
        bytes: u64,
        /// What the descriptor is for.
        access: Access,
    },
    /// A chunk that was asked for does not exist.
    NoChunk {
        /// Its name.
        chunk: ChunkId,
        /// How it was to be mapped.
        access: Access,
    },
    /// A chunk that this process has, or had, mapped went back: nobody holds anything in it.
    ChunkWithdrawn {
        /// Its name.
        chunk: ChunkId,
    },
    /// Where an actor is: asked for, or because it changed.
    Actor {
        /// The actor.
        actor: ActorId,
        /// Where it is.
        at: Whereabouts,
    },
    /// An actor of another host, which nobody here has used for long, has no place here any more. Whoever
    /// wants to send to it asks again.
    Unplaced {
        /// The actor.
        actor: ActorId,
    },
    /// Say so, with [`ToNode::Fenced`], when all that others have sent to this process by now was delivered.
    Fence {
        /// Echoed in the answer.
        ticket: u64,
    },
    /// Why a process ended, and what becomes of its actors. Comes before its [`Exited`](FromNode::Exited).
    ProcessDown(ProcessDown),
    /// The answer to [`ToNode::Watch`]. Each [`Lifecycle`](FromNode::Lifecycle) of the actor that comes after
    /// it happened after it.
    Watching {
        /// From the request.
        ticket: u64,
        /// How it went down, if it is not up.
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
    /// What is to be known about deaths before anything that depends on the dead is released (DEATH-3).
    /// Answered by [`ToNode::Tainted`]. A process that joins is told everything, before any other message.
    Taint(TaintUpdate),
    /// The clocks of a process that died were released (DEATH-1).
    ClocksReleased {
        /// Which.
        process: ProcessId,
    },
    /// A process ended. What it had posted is still to be read; then the node is told ([`ToNode::Drained`]).
    Exited {
        /// Which.
        process: ProcessId,
    },
    /// A link message was for a process that there never was (yet).
    Nobody {
        /// The name on the link message.
        process: ProcessId,
    },
    /// Everybody has read what a process that ended had posted: its leases can be dropped (LEASE-4).
    Reclaim {
        /// Which.
        process: ProcessId,
    },
    /// What this host's gateway is told. Last, as in [`ToNode`].
    #[cfg(feature = "hosts")]
    Hosts(ToGateway),
}

/// Where an actor lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Location {
    /// Its process, in this life.
    pub process: ProcessId,
    /// Its index among the actors of that process.
    pub index: u16,
    /// Messages that one sending process may have unhandled in its mailbox.
    pub capacity: u32,
}

/// The way to the node.
pub trait ControlChannel: Send + Sync + 'static {
    /// Hands `message` and its descriptors over. Never waits for an answer.
    ///
    /// # Errors
    /// [`ControlChannelClosed`] when the node is gone.
    fn send(&self, message: ToNode, descriptors: Vec<OwnedFd>) -> Result<(), ControlChannelClosed>;

    /// Hands over what may be dropped, as a log may, where that holds up nothing else. Whether it was taken.
    #[cfg(feature = "hosts")]
    fn send_if_room(&self, message: ToNode) -> bool {
        self.send(message, Vec::new()).is_ok()
    }
}

/// The node is gone, so nothing can be asked of it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the node has ended; this process is about to end too")]
pub struct ControlChannelClosed;
