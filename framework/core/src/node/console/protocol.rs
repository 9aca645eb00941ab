//! What a node and the command `tensorpost` say to each other.
//!
//! The node speaks first: a [`Hello`] with the number of the protocol, which a command of another one says to
//! its user. Then the command asks one [`Request`] at a time, and each has one [`Answer`]. Everything is
//! JSON, one packet each; an answer that is longer than a packet comes as sealed memory, see [`Packet`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::observe::log::Severity;
use crate::observe::metrics::{ActorMetrics, ProcessMetrics, ProcessState};
use crate::observe::survey::{LinkReport, PoolReport};
use crate::observe::trace::TracedProcess;

/// The number of this protocol. The form of [`Hello`] stays in all of them.
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

/// What the command asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// How everything stands.
    Look,
    /// The latest records of the log with a number above this.
    Log {
        /// The number of the last record that the command has.
        after: u64,
    },
    /// Note what every process does for so long. One watcher at a time.
    Trace {
        /// For how long.
        long: Duration,
    },
    /// End the node: let everything under way finish, and kill what is left after so long.
    Stop {
        /// How long that may take.
        within: Duration,
    },
}

/// What the node answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Request::Look`].
    Look(Box<Look>),
    /// To [`Request::Log`]. At most 256 records: ask again.
    Log(Vec<LogLine>),
    /// To [`Request::Trace`], when the time is up. The memory of the processes comes behind it.
    Trace(TraceFacts),
    /// The shutdown has begun, or had before.
    Stopping,
    /// The node has ended; its program has not.
    Ended,
    /// There is no such answer, and why.
    Refused(String),
}

/// A packet with an answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Packet {
    /// The answer.
    Answer(Answer),
    /// The answer is in the memory whose descriptor came along: so many bytes.
    Memory(u64),
    /// Memory of traced processes, in the order of [`TraceFacts::processes`], and then of
    /// [`TraceFacts::hosts`].
    Rings,
}

/// How everything stands in a node, at one moment. Two looks give rates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The node itself.
    pub node: NodeFacts,
    /// Its processes, its own first.
    pub processes: Vec<ProcessFacts>,
    /// The actors in them.
    pub actors: Vec<ActorFacts>,
    /// Their memory.
    pub pools: Vec<PoolFacts>,
    /// What is between them.
    pub links: Vec<LinkFacts>,
    /// What has stood still for longer than the node's limit; the last of them.
    pub hangs: Vec<HangFacts>,
    /// Actors that are not in this look, because it has an end.
    pub left_out: u64,
    /// On the head: the other hosts.
    pub hosts: Vec<HostFacts>,
    /// Of another host, as its head shows it: the places in its gateway of actors of others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<WayFacts>,
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
    /// How everything stands there, with its own clock and its own numbers of processes. `None`: it did not
    /// answer in time.
    pub look: Option<Box<Look>>,
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
    /// After how long what stands still counts as a hang; `None` where nobody looks.
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
    /// Why that was, the last time.
    pub last_end: Option<String>,
    /// What it has counted, where it has answered; its actors are in [`Look::actors`].
    pub metrics: Option<ProcessMetrics>,
    /// What it uses of the GPUs, where that is known: not in a container, and not in a node's first look.
    pub gpu: Option<GpuShare>,
}

/// What a process uses of all GPUs of its machine, as NVIDIA's management library has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuShare {
    /// Bytes of their memory: its context and modules, and what it has allocated. What it has mapped of
    /// others' is theirs. `None`: the driver does not say.
    pub bytes: Option<u64>,
    /// In how many of 100 parts of the time since the last look its kernels ran; the sum, where it has
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
    /// Its place there.
    pub index: u16,
    /// Messages that its mailbox has room for, from each sending process.
    pub capacity: u32,
    /// How far it is, with its process.
    pub state: ProcessState,
    /// What it has done, where its process has answered.
    pub metrics: Option<ActorMetrics>,
}

/// The memory of a process on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFacts {
    /// Whose it is.
    pub owner: ProcessId,
    /// How full it is, and who holds it.
    pub pool: PoolReport,
}

/// One side of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkFacts {
    /// Whose side.
    pub from: ProcessId,
    /// What went over it.
    pub link: LinkReport,
}

/// Something that stood still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangFacts {
    /// The process that is to blame, in the life that it had.
    pub process: ProcessId,
    /// Its name.
    pub name: String,
    /// How long, when it was seen.
    pub lasted: Duration,
    /// Whether it was killed for it.
    pub killed: bool,
    /// The whole report, as it is in the log.
    pub text: String,
}

/// What was traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceFacts {
    /// When it began, in nanoseconds of `CLOCK_MONOTONIC`: what is older does not belong to it.
    pub since: u64,
    /// When it ended: what is younger does not, either.
    pub until: u64,
    /// Records that each process could keep.
    pub records: u32,
    /// The processes that took part.
    pub processes: Vec<TracedProcess>,
    /// Processes that took part and ended, and are not remembered.
    pub forgotten: u64,
    /// The names of those that did not answer at the end, and of such hosts.
    pub silent: Vec<String>,
    /// Other hosts, whose traces come behind the memory of the processes: number and name, and the bytes.
    pub hosts: Vec<(String, u64)>,
}

/// A record of the node's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Its number, from 1, without gaps where none was dropped.
    pub number: u64,
    /// When it came to the node's log, in milliseconds since 1970.
    pub unix_ms: u64,
    /// How bad it is.
    pub severity: Severity,
    /// The host of that worker, where it is another one: its number and name.
    pub host: Option<String>,
    /// The worker that it is of, or about; `"node"` for the node of another host.
    pub worker: Option<String>,
    /// Where it comes from: mostly the module.
    pub target: String,
    /// The message, with its fields behind it.
    pub text: String,
}

impl Look {
    /// Messages that were sent to an actor and that it is not done with, as far as is known: those that other
    /// processes have sent, wherever they lie, or those in its mailbox, whichever are more.
    pub fn waiting(&self, actor: &ActorFacts) -> Option<u64> {
        let queued = actor.metrics.as_ref().map(|metrics| metrics.queued as u64);
        let links = self.links.iter().filter(|of| of.link.peer == actor.process);
        let sent =
            links.filter_map(|of| of.link.sent.as_ref()).flatten().filter(|sent| sent.index == actor.index);
        let open = sent.map(|sent| sent.sent - sent.done.min(sent.sent)).reduce(u64::saturating_add);
        queued.max(open)
    }

    /// A device, as short as it is clear: `host`, or the beginning of a GPU's UUID.
    pub fn device(device: DeviceId) -> String {
        let mut text = device.to_string();
        text.truncate("GPU-12345678".len());
        text
    }

    /// A process, by what people call it.
    pub fn process(&self, process: ProcessId) -> &str {
        let found = self.processes.iter().find(|known| known.process == process);
        found.map_or("a process that has ended", |known| known.name.as_str())
    }
}
