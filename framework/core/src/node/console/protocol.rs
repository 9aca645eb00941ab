//! The messages between a node and the command `tensorpost`.
//!
//! The node speaks first: a [`Hello`] with the number of its protocol. A command with another protocol tells
//! its user that number. Then the command asks one [`Request`] at a time, and each has one [`Answer`]. Each
//! message is JSON in one packet; an answer that is longer than a packet comes as sealed memory, see
//! [`Packet`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::observe::log::Severity;
use crate::observe::metrics::{ActorMetrics, ProcessMetrics, ProcessState};
use crate::observe::survey::{LinkReport, PoolReport};
use crate::observe::trace::TracedProcess;

/// The number of this protocol. The form of [`Hello`] stays the same in all protocols.
pub const VERSION: u32 = 4;

/// The first packet, from the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The number of the node's protocol.
    pub console: u32,
    /// The version of `tensorpost-core` in the node.
    pub version: String,
    /// The process id of the node, as it sees itself.
    pub pid: u32,
    /// Why the node will not answer, if it will not.
    pub refused: Option<String>,
}

/// A question of the command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Ask for the state of everything.
    Look,
    /// Ask for the latest records of the log with a number above this.
    Log {
        /// The number of the last record that the command has.
        after: u64,
    },
    /// Trace every process for this time. One watcher at a time may do so.
    Trace {
        /// For how long.
        long: Duration,
    },
    /// End the node: let everything under way finish, and kill the remaining workers after this time.
    Stop {
        /// How long the shutdown may take.
        within: Duration,
    },
}

/// An answer of the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Request::Look`].
    Look(Box<NodeSnapshot>),
    /// To [`Request::Log`]. At most 256 records: ask again.
    Log(Vec<LogLine>),
    /// To [`Request::Trace`], when the time is up. The memory of the processes follows it.
    Trace(TraceFacts),
    /// The shutdown has begun, or had before.
    Stopping,
    /// The node has ended; its program has not.
    Ended,
    /// The node refuses, for this reason.
    Refused(String),
}

/// A packet with an answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Packet {
    /// The answer.
    Answer(Answer),
    /// The answer is in the memory whose descriptor came along, and has this many bytes.
    Memory(u64),
    /// Memory of traced processes, in the order of [`TraceFacts::processes`], and then of
    /// [`TraceFacts::hosts`].
    Rings,
}

/// The state of everything in a node, at one moment. Two snapshots give rates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSnapshot {
    /// The time of the snapshot, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The node itself.
    pub node: NodeFacts,
    /// Its processes, its own first.
    pub processes: Vec<ProcessFacts>,
    /// The actors in them.
    pub actors: Vec<ActorFacts>,
    /// Their memory.
    pub pools: Vec<PoolFacts>,
    /// The links between them.
    pub links: Vec<LinkFacts>,
    /// The last hangs that exceeded the node's limit.
    pub hangs: Vec<HangFacts>,
    /// How many actors are left out, because a snapshot is bounded.
    pub left_out: u64,
    /// On the head: the other hosts.
    pub hosts: Vec<HostFacts>,
    /// In the snapshot of another host, as its head shows it: the places in its gateway for actors of other
    /// hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<WayFacts>,
    /// The causes that hold up pipelines of the node's program, a line each. Each pipeline judges itself: its
    /// stages wait for each other, and most of those that do not move are only victims.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub standing: Vec<String>,
}

/// A place in a gateway, at which an actor of another host is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayFacts {
    /// The actor.
    pub actor: ActorId,
    /// The process of the gateway.
    pub process: ProcessId,
    /// The place there.
    pub index: u16,
    /// Messages that it has room for, from each sending process.
    pub capacity: u32,
}

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// Its number.
    pub number: u16,
    /// Its number and name.
    pub name: String,
    /// The state of everything there, with its own clock and its own numbers of processes. `None`: it did not
    /// answer in time.
    #[serde(rename = "look")]
    pub snapshot: Option<Box<NodeSnapshot>>,
}

/// The node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Its process id.
    pub pid: u32,
    /// Its program, as it was started.
    pub program: String,
    /// For how long it has run.
    pub up: Duration,
    /// Whether it is shutting down.
    pub stopping: bool,
    /// How long something must stand still to count as a hang; `None` if the node does not detect hangs.
    pub hang_limit: Option<Duration>,
    /// Whether it traces.
    pub tracing: bool,
}

/// A process of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Its slot and life.
    pub process: ProcessId,
    /// The worker's name; `"node"` for the node itself.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// How far it is.
    pub state: ProcessState,
    /// How often it was restarted, or an actor in it.
    pub restarts: u32,
    /// The reason of the last restart.
    pub last_end: Option<String>,
    /// Its metrics, if it has answered; those of its actors are in [`NodeSnapshot::actors`].
    pub metrics: Option<ProcessMetrics>,
    /// Its use of the GPUs, if that is known: not in a container, and not in a node's first snapshot.
    pub gpu: Option<GpuShare>,
}

/// A process's use of all GPUs of its machine, as NVIDIA's management library reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuShare {
    /// Bytes of their memory: its context and modules, and its own allocations. Memory of others that it has
    /// mapped counts for them. `None`: the driver does not say.
    pub bytes: Option<u64>,
    /// The percentage of the time since the last snapshot in which its kernels ran; the sum, if it uses
    /// several GPUs. `None`: the driver does not say.
    pub busy: Option<u32>,
}

/// An actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorFacts {
    /// Its identity in the node.
    pub actor: ActorId,
    /// Its name.
    pub name: String,
    /// Its process.
    pub process: ProcessId,
    /// The index of its mailbox there.
    pub index: u16,
    /// Messages that its mailbox has room for, from each sending process.
    pub capacity: u32,
    /// How far it is, with its process.
    pub state: ProcessState,
    /// Its metrics, if its process has answered.
    pub metrics: Option<ActorMetrics>,
}

/// The memory of a process on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFacts {
    /// The process that owns it.
    pub owner: ProcessId,
    /// Its fill and its holders.
    pub pool: PoolReport,
}

/// One side of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkFacts {
    /// The sending process.
    pub from: ProcessId,
    /// The counts of the link.
    pub link: LinkReport,
}

/// A hang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangFacts {
    /// The process to blame, in its life at the time.
    pub process: ProcessId,
    /// Its name.
    pub name: String,
    /// How long it had lasted when it was seen.
    pub lasted: Duration,
    /// Whether the process was killed for it.
    pub killed: bool,
    /// The whole report, as it is in the log.
    pub text: String,
}

/// The description of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceFacts {
    /// When it began, in nanoseconds of `CLOCK_MONOTONIC`: older records do not belong to it.
    pub since: u64,
    /// When it ended: later records do not belong to it.
    pub until: u64,
    /// How many records each process could keep.
    pub records: u32,
    /// The processes that took part.
    pub processes: Vec<TracedProcess>,
    /// How many processes took part, ended, and are forgotten.
    pub forgotten: u64,
    /// The names of processes and hosts that did not answer at the end.
    pub silent: Vec<String>,
    /// The other hosts whose traces follow the memory of the processes: number and name, and the bytes of
    /// each.
    pub hosts: Vec<(String, u64)>,
}

/// A record of the node's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Its number, from 1, without gaps if no record was dropped.
    pub number: u64,
    /// When it came to the node's log, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Its severity.
    pub severity: Severity,
    /// The number and name of that worker's host, if it is another one.
    pub host: Option<String>,
    /// The worker that wrote it, or that it is about; `"node"` for the node of another host.
    pub worker: Option<String>,
    /// Its source: mostly the module.
    pub target: String,
    /// The message, with its fields behind it.
    pub text: String,
}

impl NodeSnapshot {
    /// Returns how many messages to an actor are not finished, as far as this snapshot shows. That is the
    /// number that other processes have sent, no matter where they lie, or the number in its mailbox, if that
    /// is larger.
    pub fn waiting(&self, actor: &ActorFacts) -> Option<u64> {
        let queued = actor.metrics.as_ref().map(|metrics| metrics.queued as u64);
        let links = self.links.iter().filter(|of| of.link.peer == actor.process);
        let sent =
            links.filter_map(|of| of.link.sent.as_ref()).flatten().filter(|sent| sent.index == actor.index);
        let open = sent.map(|sent| sent.sent - sent.done.min(sent.sent)).reduce(u64::saturating_add);
        queued.max(open)
    }

    /// Returns a short name of a device: `host`, or the beginning of a GPU's UUID.
    pub fn device(device: DeviceId) -> String {
        let mut text = device.to_string();
        text.truncate("GPU-12345678".len());
        text
    }

    /// Returns the name of a process.
    pub fn process(&self, process: ProcessId) -> &str {
        self.facts_of(process).map_or("a process that has ended", |known| known.name.as_str())
    }

    /// Returns what is known of a process.
    pub fn facts_of(&self, process: ProcessId) -> Option<&ProcessFacts> {
        self.processes.iter().find(|known| known.process == process)
    }

    /// Returns an actor of another snapshot in this one, if it is in the same process in both.
    pub fn same(&self, actor: &ActorFacts) -> Option<&ActorFacts> {
        self.actors.iter().find(|known| (known.actor, known.process) == (actor.actor, actor.process))
    }

    /// Returns the link from one process to another.
    pub fn link(&self, from: ProcessId, to: ProcessId) -> Option<&LinkFacts> {
        self.links.iter().find(|known| (known.from, known.link.peer) == (from, to))
    }

    /// Returns the snapshot of another host, if that has answered.
    pub fn of_host(&self, number: u16) -> Option<&NodeSnapshot> {
        self.hosts.iter().find(|host| host.number == number)?.snapshot.as_deref()
    }
}
