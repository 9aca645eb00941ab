//! What travels between the conductor, in the node, and the actors of a pipeline.

use serde::{Deserialize, Serialize};
use tensorpost_derive::GpuMessage;

use super::meter::{Counts, Failure, Span};
use super::waits::Wait;
use crate::actor::Address;
use crate::pipeline::dead::Dead;
use crate::pipeline::item::{Item, ItemId, Parcel};
use crate::pipeline::on_error::OnError;
use crate::pipeline::traits::{Source, Stage};

/// What every actor of a pipeline is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::pipeline) struct Config {
    /// The stage's name.
    pub(in crate::pipeline) stage: String,
    pub(in crate::pipeline) index: u16,
    pub(in crate::pipeline) replica: u16,
    /// For a source: what its items' ids begin with.
    pub(in crate::pipeline) source: u16,
    pub(in crate::pipeline) on_error: OnError,
    /// Who sends to it: edge and replica of each.
    pub(in crate::pipeline) lanes: Vec<u32>,
    /// Whether it restores the order of what comes.
    pub(in crate::pipeline) restore: bool,
    /// Whether an item is answered only when everything that came of it was.
    pub(in crate::pipeline) chain: bool,
    /// Whether items that the stage holds are not answered, although it is in no chain.
    pub(in crate::pipeline) holds: bool,
    /// Where a loop begins: in how many others.
    pub(in crate::pipeline) round: Option<usize>,
    /// Whether what was lost is sent again, to a replica that is left.
    pub(in crate::pipeline) resend: bool,
    pub(in crate::pipeline) trace: bool,
    /// For a stage that pairs: who its halves are from.
    pub(in crate::pipeline) pairing: Option<Pairing>,
    /// Milliseconds between two reports of progress.
    pub(in crate::pipeline) every: u64,
    pub(in crate::pipeline) events: Address<Event>,
}

/// A way out of an actor.
#[derive(Clone, Serialize, Deserialize)]
#[serde(bound = "")]
pub(in crate::pipeline) struct OutletArgs<T: Item> {
    pub(in crate::pipeline) select: Select,
    pub(in crate::pipeline) branches: Vec<BranchArgs<T>>,
    /// Who is to be told of items that are settled on some of the branches.
    pub(in crate::pipeline) tell: Vec<PartnerArgs>,
    /// Of a source: who is to be told that it makes nothing more before something is acknowledged.
    pub(in crate::pipeline) tell_still: Vec<Address<Control>>,
    /// And what its items' ids begin with.
    pub(in crate::pipeline) source: u16,
}

/// A stage that pairs what comes by a fork's branches with something else.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::pipeline) struct PartnerArgs {
    /// Its replicas.
    pub(in crate::pipeline) to: Vec<Address<Control>>,
    /// Which side the branches lead to.
    pub(in crate::pipeline) left: bool,
    /// Those without which no item reaches that side.
    pub(in crate::pipeline) branches: Vec<u16>,
}

/// Whose items a stage that pairs has, under at-least-once delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::pipeline) struct Pairing {
    /// Left and right.
    pub(in crate::pipeline) sides: [Side; 2],
}

/// One of the two flows that become one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::pipeline) struct Side {
    /// Who sends it.
    pub(in crate::pipeline) lanes: Vec<u32>,
    /// Items that can wait on this side: then the stage before it takes no more before one is acknowledged.
    pub(in crate::pipeline) room: u32,
    /// What the ids of the items begin with that are in it.
    pub(in crate::pipeline) sources: Vec<u16>,
}

/// Which of several takes an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::pipeline) enum Select {
    /// All of them, each a clone.
    All,
    /// One after the other.
    RoundRobin,
    /// The one with the fewest that it is not done with.
    LeastLoaded,
    /// The one whose turn it is by the value of a closure, modulo their number.
    By(String),
}

/// One of the stages that an outlet leads to.
#[derive(Clone, Serialize, Deserialize)]
#[serde(bound = "")]
pub(in crate::pipeline) struct BranchArgs<T: Item> {
    /// The receiving stage.
    pub(in crate::pipeline) stage: String,
    pub(in crate::pipeline) index: u16,
    pub(in crate::pipeline) lane: u32,
    pub(in crate::pipeline) to: Vec<Receiver<T>>,
    pub(in crate::pipeline) select: Select,
    /// Items get numbers, so that the order can be restored, and none is so far ahead of the oldest that is unanswered.
    pub(in crate::pipeline) number: Option<u32>,
    /// Items that may be unanswered.
    pub(in crate::pipeline) window: Option<u32>,
    /// Bytes that may be unanswered.
    pub(in crate::pipeline) max_bytes: Option<u64>,
    /// In how many loops the receiver is.
    pub(in crate::pipeline) depth: usize,
    /// Whether replicas that died are started again.
    pub(in crate::pipeline) restarts: bool,
    /// Whether the end waits until everything was answered.
    pub(in crate::pipeline) settle_first: bool,
    /// Whether the receiver ends when this actor does, so that an item is done with here when it is done with there.
    pub(in crate::pipeline) shares_fate: bool,
    /// Whether it leads back to the beginning of a loop.
    pub(in crate::pipeline) feedback: bool,
}

/// A replica.
#[derive(Clone, Serialize, Deserialize)]
#[serde(bound = "")]
pub(in crate::pipeline) enum Receiver<T: Item> {
    At(Address<Parcel<T>>),
    /// For those that are started later: they are looked up when they are needed.
    Named(String),
}

/// To start a source.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(in crate::pipeline) struct SourceArgs<S: Source> {
    pub(in crate::pipeline) user: S::Args,
    pub(in crate::pipeline) config: Config,
    pub(in crate::pipeline) results: OutletArgs<S::Out>,
}

/// To start a stage.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(in crate::pipeline) struct StageArgs<S: Stage> {
    pub(in crate::pipeline) user: S::Args,
    pub(in crate::pipeline) config: Config,
    pub(in crate::pipeline) results: OutletArgs<S::Out>,
    pub(in crate::pipeline) dead: OutletArgs<Dead<S::In>>,
}

/// "Begin, and answer when you are done."
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Counts, crate = crate)]
pub(in crate::pipeline) struct Run;

/// What the conductor says on the way.
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = crate)]
pub(in crate::pipeline) enum Control {
    /// A source makes no more items.
    Stop,
    /// Nothing more comes from these senders: they have died, or their ends were heard by an earlier life.
    Gone {
        /// Edge and replica of each.
        lanes: Vec<u32>,
        /// They are a source that does not come back: nobody else knows what it had sent.
        dead_source: bool,
    },
    /// To a stage that pairs: nothing more comes of these items on one of its sides.
    Alone {
        /// Which side.
        left: bool,
        /// The items.
        ids: Vec<ItemId>,
        /// Whether they are on their way again, on both sides.
        again: bool,
    },
    /// To a stage that pairs: a source makes nothing more before one of these is acknowledged, all that it has under way.
    Still {
        /// Which source.
        source: u16,
        /// Its items.
        ids: Vec<ItemId>,
    },
    /// Nothing moves in the whole pipeline. Whoever keeps halves lets some go; after a death, whoever waits for what is missing
    /// in an order goes on without it.
    GoOn {
        /// Whether somebody has died.
        after_a_death: bool,
    },
    /// The pipeline is over; the actor ends.
    Close,
}

/// What the actors tell on the way.
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = crate)]
pub(in crate::pipeline) enum Event {
    /// How far one is, and what it waits for.
    Progress(Box<Counts>, Vec<Wait>),
    /// The pipeline has to fail.
    Failed(Failure),
    /// What took time.
    Spans { stage: u16, replica: u16, pid: u32, spans: Vec<Span> },
}
