//! The messages between the conductor, in the node, and the actors of a pipeline.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpost_core::api::actor::{Address, Code};
use tensorpost_core::api::message::GpuMessage;
use tensorpost_core::api::node::ProcessId;

use super::meter::{Counts, Failure, Span};
use super::waits::Wait;
use crate::item::ItemId;
use crate::on_error::OnError;

/// The configuration of an actor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    /// The stage's name.
    pub(crate) stage: String,
    pub(crate) index: u16,
    pub(crate) replica: u16,
    /// For a source: the first part of its items' ids.
    pub(crate) source: u16,
    pub(crate) on_error: OnError,
    /// Its senders: edge and replica of each.
    pub(crate) lanes: Vec<u32>,
    /// Whether it restores the order of the items that come.
    pub(crate) restore: bool,
    /// Whether an item is answered only when everything that came of it was.
    pub(crate) chain: bool,
    /// Whether items that the stage holds are not answered, although it is in no chain.
    pub(crate) holds: bool,
    /// Whether items that the stage holds keep their places in an order that is restored behind it.
    pub(crate) places: bool,
    /// Whether it may hold items beyond a call that has emitted results of them.
    pub(crate) may_hold: bool,
    /// Whether a `join` behind it judges by its results whether all of an item has come.
    pub(crate) is_joined: bool,
    /// For a stage at the beginning of a loop: the number of loops around that loop.
    pub(crate) round: Option<usize>,
    /// Whether lost items are sent again, to a replica that is left.
    pub(crate) resend: bool,
    pub(crate) trace: bool,
    /// For a `zip` or `join`: the senders of its halves.
    pub(crate) pairing: Option<Pairing>,
    /// For a source: the least time between two items.
    pub(crate) pace: Option<Duration>,
    /// Milliseconds between two reports of progress.
    pub(crate) every: u64,
    pub(crate) events: Address<Event>,
    pub(crate) keys: Keys,
}

/// The proofs of senders whose processes an actor cannot know. Only those that may give it orders, notices or
/// items know them. The first two are of one actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Keys {
    /// The conductor's, where its orders come by way of another host.
    pub(crate) order: u64,
    /// The forks' and sources' that tell a stage about its halves.
    pub(crate) notice: u64,
    /// That of the stages before it. All replicas have the same: a sender may be told of them later.
    pub(crate) items: u64,
}

/// A stage that pairs, for those that tell it about its halves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pairer {
    pub(crate) at: Address<Control>,
    /// Its key for notices.
    pub(crate) key: u64,
}

/// An output of an actor. It does not have the type of the items as a parameter: each type would need a
/// serialization of its own.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct OutletArgs {
    pub(crate) select: Select,
    pub(crate) branches: Vec<BranchArgs>,
    /// The stages to tell about items that are settled on some of the branches.
    pub(crate) tell: Vec<PartnerArgs>,
    /// For a source: the stages to tell when it makes nothing more before something is acknowledged.
    pub(crate) tell_still: Vec<Pairer>,
    /// The first part of its items' ids.
    pub(crate) source: u16,
}

/// A `zip` or `join` behind a fork's branches.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PartnerArgs {
    /// Its replicas.
    pub(crate) to: Vec<Pairer>,
    /// Whether the branches lead to its left side.
    pub(crate) left: bool,
    /// The branches without which no item reaches that side.
    pub(crate) branches: Vec<u16>,
}

/// The two sides of a `zip` or `join`, under at-least-once delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pairing {
    /// Left and right.
    pub(crate) sides: [PairSide; 2],
}

/// One of the two flows that become one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PairSide {
    /// Its senders.
    pub(crate) lanes: Vec<u32>,
    /// How many items can wait on this side. When they do, the stage before it takes no more before one is
    /// acknowledged.
    pub(crate) room: u32,
    /// Whether an item may come in it by several ways. One half of it does not tell then that all are here.
    pub(crate) several_ways: bool,
    /// The first parts of the ids of the items in it.
    pub(crate) sources: Vec<u16>,
}

/// How the receiver of an item is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Select {
    /// All of them; each gets a clone.
    All,
    /// One after the other.
    RoundRobin,
    /// The one with the fewest unfinished items.
    LeastLoaded,
    /// The one whose turn it is by the value of a closure, modulo their number.
    By(Code),
}

/// One of the stages that an outlet leads to.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct BranchArgs {
    /// The receiving stage.
    pub(crate) stage: String,
    pub(crate) index: u16,
    pub(crate) lane: u32,
    /// The key of its items' messages, where the sender's program does not know their type.
    pub(crate) key: Option<u64>,
    /// The receiving stage's [key for items](Keys::items).
    pub(crate) items: u64,
    pub(crate) to: Vec<Receiver>,
    pub(crate) select: Select,
    /// If items get numbers, so that the order can be restored: the most that a number may be ahead of the
    /// oldest unanswered one or, with at-least-once delivery, the most that may be unanswered.
    pub(crate) number: Option<u32>,
    /// Items that may be unanswered.
    pub(crate) window: Option<u32>,
    /// Bytes that may be unanswered.
    pub(crate) max_bytes: Option<u64>,
    /// The number of loops around the receiver.
    pub(crate) depth: usize,
    /// Whether replicas that died are started again.
    pub(crate) restarts: bool,
    /// Whether the end waits until everything was answered.
    pub(crate) settle_first: bool,
    /// Whether the receiver ends when this actor does, so that this actor answers an item only when the
    /// receiver has.
    pub(crate) restarts_together: bool,
    /// Whether it leads back to the beginning of a loop.
    pub(crate) feedback: bool,
    /// The settings of a receiver that drops items when it has no room.
    pub(crate) overflow: Option<OverflowArgs>,
}

/// The items that a stage drops when it has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Drops {
    /// The item that has waited longest.
    Oldest,
    /// The item that has just come.
    Newest,
}

/// The settings of a branch whose receiver drops items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OverflowArgs {
    pub(crate) drops: Drops,
    /// The number of items that may wait.
    pub(crate) room: u32,
}

/// A replica.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Receiver {
    /// The actor that takes the items; the sender knows their type.
    At(Address<Control>),
    /// A receiver that is started later. It is looked up when it is needed.
    Named(String),
    /// No replica yet: a place of a stage whose number of replicas changes.
    Nobody,
}

/// A place of a stage whose number of replicas changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ReplicaPlace {
    /// The place has no replica.
    Empty,
    /// A replica that takes items.
    Open(Address<Control>),
    /// A replica that takes no more items, and ends when it has finished those that it has.
    Leaving(Address<Control>),
}

/// "Begin, and answer when you are done."
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Counts, crate = tensorpost_core)]
pub(crate) struct Run {
    /// As in [`Control::Order`].
    pub(crate) key: Option<u64>,
}

/// A message about the run. An actor takes it only from those that may send it, see
/// [`Gate`](super::gate::Gate).
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core)]
pub(crate) enum Control {
    /// An order of the conductor. The key is the receiver's for orders, if the order goes by way of another
    /// host: the receiver knows the sender of all others by its process.
    Order { key: Option<u64>, directive: Directive },
    /// To a stage that pairs, with its key for notices: nothing more comes of these items on its `left` or
    /// its right side. If `again`, they are on their way again, on both sides.
    Alone { key: u64, left: bool, ids: Vec<ItemId>, again: bool },
    /// To a stage that pairs, with its key for notices: a source makes nothing more before one of these items
    /// is acknowledged. They are all that it has under way.
    Still { key: u64, source: u16, ids: Vec<ItemId> },
}

/// An order of the conductor. Lanes are senders: edge and replica of each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Directive {
    /// To a source: make no more items.
    Stop,
    /// Nothing more comes from these senders: they have died, or an earlier life has got their ends. They are
    /// `orphans` if they do not come back and their items are not sent again: a source, or a stage to which
    /// only such a source sends. Messages that their process, `with`, had sent before are read first.
    Exited { lanes: Vec<u32>, orphans: bool, with: Option<ProcessId> },
    /// All is over. Earlier lives of these senders had sent items that no later life has made again, and none
    /// will. `made` says, for each source that began anew, by the first part of its items' ids, how many its
    /// last life has made.
    NotAgain { lanes: Vec<u32>, made: Vec<(u16, u64)> },
    /// Nothing moves in the whole pipeline. A stage that keeps halves lets some go; after a death, a stage
    /// that restores an order goes on without the missing items.
    GoOn { after_a_death: bool },
    /// The places, in order, of a stage whose number of replicas changes.
    Places { stage: u16, places: Vec<ReplicaPlace> },
    /// Something comes from these senders after all: new replicas of the stage before take the places of
    /// earlier ones.
    Opens { lanes: Vec<u32> },
    /// The pipeline is over, or goes on without this replica: end.
    Close,
}

/// A report of an actor.
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core)]
pub(crate) enum Event {
    /// Its counts, and what it waits for.
    Progress(Box<Counts>, Vec<Wait>),
    /// An error that fails the pipeline.
    Failed(Failure),
    /// Spans for the trace.
    Spans { stage: u16, replica: u16, pid: u32, spans: Vec<Span> },
}
