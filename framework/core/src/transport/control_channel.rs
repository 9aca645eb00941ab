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
use crate::transport::envelope::Envelope;
use crate::transport::lifecycle::{Lifecycle, ProcessDown, Whereabouts};

/// From a process to the node. Descriptors travel beside it, in the order that each variant names. The answer
/// to a question repeats its `ticket`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the variants say it of their fields, and no program sees them")]
pub enum ToNode {
    /// Pass `link_message`, with all descriptors, to the process `to`. If there is no such process any more,
    /// the node answers [`FromNode::Exited`]; if there never was one, [`FromNode::Nobody`].
    Route { to: ProcessId, link_message: LinkMessage },
    /// The half `number` that came from `peer` is not taken, and this process has none for `peer`: both are
    /// void, and the next use of the link on either side begins anew. Passed on as
    /// [`FromNode::LinkRefused`].
    RefuseLink { peer: ProcessId, number: u64, why: WhyRefused },
    /// A new chunk of this size exists. Descriptors: one to map read-only, one to map writable. The node
    /// keeps both until nobody can hold a lease in the chunk any more, so a chunk outlives its owner
    /// (LEASE-4).
    PublishChunk { chunk: ChunkId, device: DeviceId, bytes: u64 },
    /// Ask for a descriptor of a chunk, to map it so; answered by [`FromNode::Chunk`] or
    /// [`FromNode::NoChunk`].
    WantChunk { chunk: ChunkId, access: Access },
    /// A chunk that [`FromNode::Chunk`] brought is not mapped so (any more), because no lease on it is left
    /// here. Sent only for chunks whose owner has ended or has withdrawn them: others stay mapped.
    Unmapped { chunk: ChunkId, access: Access },
    /// Nobody holds anything in this chunk of the sender, and nobody will, so its memory can be freed. No
    /// other chunk is given its name.
    WithdrawChunk { chunk: ChunkId },
    /// This process has read everything that a process which ended had posted to it (LEASE-4). Answers
    /// [`FromNode::Exited`].
    Drained { process: ProcessId },
    /// This process has marked everything that a round of [`FromNode::Taint`] taints (DEATH-3): these ranges
    /// of its own clocks are tainted now and were not before.
    Tainted { round: u64, ranges: Vec<TaintRange> },
    /// Where does this actor live now? Answered by [`FromNode::Actor`].
    WantActor { actor: ActorId },
    /// Tell this process what happens to an actor from now on; answered by [`FromNode::Watching`].
    Watch { ticket: u64, actor: ActorId },
    /// Nobody in this process watches this actor any more.
    Unwatch { actor: ActorId },
    /// Put an address into the registry under a name; answered by [`FromNode::Registered`].
    Register { ticket: u64, name: String, actor: ActorId },
    /// Look a name up; answered by [`FromNode::Found`].
    Lookup { ticket: u64, name: String },
    /// Start an actor; answered by [`FromNode::ActorStarted`].
    StartActor {
        ticket: u64,
        /// In the encoding of the node (`supervisor/start_requests.rs`).
        #[serde(with = "crate::message::codec::bytes")]
        request: Vec<u8>,
    },
    /// Everything that others had sent to this process by the time of [`FromNode::Fence`] was delivered.
    Fenced { ticket: u64 },
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
#[allow(missing_docs, reason = "the variants say it of their fields")]
pub enum LinkMessage {
    /// Here is my half of the link between us. Descriptors: the sender's clock page, its wake page, its words
    /// for you, the memory of its rings to you, the bell with which you ring it. Once you have mapped it, say
    /// so in your words for me. The number is greater than zero and than that of every half before: a process
    /// that has mapped the half, or refuses it, names it by this.
    Link { number: u64 },
    /// Here is fresh memory for my rings to you; the rings continue in it once they say so. Descriptors: one.
    /// Sent over an open link, and again only after the last one was answered. The number is greater than
    /// that of every such memory before.
    Rings { number: u64 },
    /// I have mapped your fresh rings with this number, or I cannot.
    RingsAnswer { number: u64, is_taken: bool },
}

/// From the node to a process. An answer repeats the `ticket` of its question.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the variants say it of their fields")]
pub enum FromNode {
    /// A link message from another process, with its descriptors.
    LinkMessage { from: ProcessId, link_message: LinkMessage },
    /// The half `number` that was for `peer` leads to no link: `by`, which is the peer or the node, lacks
    /// something for it. The half that the peer had sent is void too. `name` is that of `by`, if it is a
    /// worker.
    LinkRefused { peer: ProcessId, number: u64, by: ProcessId, name: String, why: WhyRefused },
    /// A chunk that was asked for, with its size. Descriptors: one, for the access asked.
    Chunk { chunk: ChunkId, device: DeviceId, bytes: u64, access: Access },
    /// A chunk that was asked for does not exist.
    NoChunk { chunk: ChunkId, access: Access },
    /// The owner has withdrawn a chunk that this process has, or had, mapped: nobody holds anything in it.
    ChunkWithdrawn { chunk: ChunkId },
    /// The location of an actor, because this process asked for it or because it changed.
    Actor { actor: ActorId, at: Whereabouts },
    /// An actor of another host that was not used here for long has no location here any more. A sender to it
    /// has to ask again.
    Unplaced { actor: ActorId },
    /// Answer with [`ToNode::Fenced`] when everything that others have sent to this process by now was
    /// delivered.
    Fence { ticket: u64 },
    /// The report why a process ended, and what becomes of its actors. Comes before its
    /// [`Exited`](FromNode::Exited).
    ProcessDown(ProcessDown),
    /// The answer to [`ToNode::Watch`]: the event by which the actor went down, if it is not up. Every
    /// [`Lifecycle`](FromNode::Lifecycle) of the actor that arrives after this answer also happened after it.
    Watching { ticket: u64, down: Option<Lifecycle> },
    /// Something has happened to an actor that this process watches.
    Lifecycle(Lifecycle),
    /// The answer to [`ToNode::Register`]: whether the name was free. `Err` holds the actor that has it.
    Registered { ticket: u64, result: Result<(), ActorId> },
    /// The answer to [`ToNode::Lookup`].
    Found { ticket: u64, found: Option<Named> },
    /// The answer to [`ToNode::StartActor`]. `Err` says why it did not start.
    ActorStarted { ticket: u64, result: Result<StartedActor, String> },
    /// News of deaths that a process must mark before anything that depends on the dead is released
    /// (DEATH-3). Answered by [`ToNode::Tainted`]. A process that joins is told everything, before any other
    /// message.
    Taint(TaintUpdate),
    /// The clocks of a process that died were released (DEATH-1).
    ClocksReleased { process: ProcessId },
    /// A process ended. The receiver still reads everything that it had posted, and then tells the node
    /// ([`ToNode::Drained`]).
    Exited { process: ProcessId },
    /// A link message was for this process, which does not exist, or not yet.
    Nobody { process: ProcessId },
    /// Every process has read everything that a process which ended had posted: its leases can be dropped
    /// (LEASE-4).
    Reclaim { process: ProcessId },
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
