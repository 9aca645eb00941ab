//! The messages between the nodes of different hosts, and the address that takes them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tensorpost_derive::GpuMessage;

use crate::actor::{Address, Interpreter, NewActor};
use crate::device::Device;
use crate::ids::{ActorId, ProcessId};
use crate::lease::GpuBudget;
use crate::limits::DEFAULT_MAILBOX;
use crate::node::restart::Restart;
use crate::node::supervisor::WorkerOrder;
use crate::node::supervisor::hosts::{Guest, RoundStep};
use crate::transport::Transport;
use crate::transport::control_channel::Location;
use crate::transport::gateway_messages::starter_of;

/// A request of one node to another.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = crate, reply = Answer)]
pub(in crate::node) enum Request {
    /// Start an actor.
    Start(Box<ToStart>),
    /// Start a worker, for actors that come later.
    Worker(Box<NewWorker>),
    /// Do this with a worker that was started for the asking host.
    Order(u64, WorkerOrder),
    /// Send a message to an actor, behind the messages that were sent to it there.
    Behind(Box<FencedMessage>),
    /// Ask how many actors are in workers there.
    Load,
    /// Show the host's figures, for a watcher of the head.
    Show(Show),
    /// Ask which device has this name there.
    Device(String),
    /// A message about a group with actors on both hosts.
    Group(OfGroup),
}

/// A worker to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::node) struct NewWorker {
    pub(in crate::node) name: String,
    /// Its streams on each GPU.
    pub(in crate::node) streams: usize,
    /// Set if it runs an interpreter, and not this program again.
    pub(in crate::node) interpreter: Option<Interpreter>,
    /// Set if it differs from the setting of that host's node.
    pub(in crate::node) gpu_budget: Option<GpuBudget>,
}

/// Where an actor is started.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::node) enum StartIn {
    /// In a worker of its own.
    New(NewWorker),
    /// In a worker that was started for the asking host.
    This(u64),
}

/// An actor, with a worker for it.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::node) struct ToStart {
    pub(in crate::node) worker: StartIn,
    pub(in crate::node) restart: Restart,
    pub(in crate::node) actor: NewActor,
    /// Set if it roams: its id comes from the host that asks.
    pub(in crate::node) guest: Option<Guest>,
    /// Set if it restarts with others: its group on the asking host.
    pub(in crate::node) group: Option<InGroup>,
}

/// The answer of the other node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::node) enum Answer {
    /// The actor takes messages. Its location has a meaning only on that host (HOST-2).
    Started {
        actor: ActorId,
        location: Location,
        worker: u64,
    },
    Worker(u64),
    /// The message was passed on, or the message about a group or the order about a worker carried out.
    Done,
    Load(usize),
    /// The figures, as JSON.
    Shown(Vec<u8>),
    Device(Device),
    /// It did not start, for this reason.
    No(String),
}

/// A message that another host's node sends.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::node) struct FencedMessage {
    pub(in crate::node) to: ActorId,
    pub(in crate::node) key: u64,
    pub(in crate::node) body: Vec<u8>,
}

/// The kinds of answers that a host is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::node) enum Show {
    Look,
    Metrics,
    Report,
    /// Begin to trace, with an empty answer.
    TraceBegin(Extent),
    /// End the trace, and return its records.
    TraceEnd(Extent),
}

/// The part of a host's work that is traced for its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::node) enum Extent {
    /// Until a watcher at the head has seen enough.
    Interval,
    /// From the moment when it joins, or from its start if its own program asks for that.
    Run,
}

/// A message about a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::node) struct OfGroup {
    /// Its number on its home.
    pub(in crate::node) group: u64,
    pub(in crate::node) says: Says,
}

/// The content of a message about a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::node) enum Says {
    /// From its home: take this step, for this reason. If the home `gives_up` the group, the members that end
    /// do not come back. Answered when the step is done.
    Do { step: RoundStep, why: String, gives_up: bool },
    /// To its home: a member has failed here. Its life belonged to the round `begun`, and its policy brings
    /// it back after `delay` milliseconds.
    Failed { begun: u64, delay: u64, why: String },
}

/// The group of a member that is started on another host than the group's home.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::node) struct InGroup {
    pub(in crate::node) group: u64,
    pub(in crate::node) name: String,
    /// The group's last round.
    pub(in crate::node) round: u64,
}

/// Makes the address of another host's starter. The location in it has no meaning here.
pub(in crate::node) fn starter(transport: &Arc<Transport>, host: u16) -> Address<Request> {
    let location = Location { process: ProcessId::NODE, index: 0, capacity: DEFAULT_MAILBOX };
    Address::new(Arc::clone(transport), starter_of(host), location)
}
