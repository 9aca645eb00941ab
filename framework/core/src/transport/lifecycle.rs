//! Reports to processes on the lifecycles of actors and processes: why one ended, and whether it restarts.
//!
//! An actor keeps its id for good, and its location for one life. The node says why a process is down
//! *before* it says that the process has exited. So a process that sees a broken link already knows what
//! becomes of the actors behind it (DEATH-2). [`Lifecycle`] has the events for the watchers of one actor.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

use tensorpost_derive::GpuMessage;

use super::control_channel::Location;
use crate::ids::{ActorId, ProcessId};

/// Counts of the messages between this process and others, so that a shutdown can wait until none is under
/// way. Those of a host are the sums of its processes' counts among themselves; it is busy with messages to
/// other hosts, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Messages handed to other processes since the start. Messages to a process that has died since may stay
    /// counted: after a death only changes of the counts matter, not their sums.
    pub sent: u64,
    /// Messages taken from other processes since the start; the same holds for messages of dead processes.
    pub received: u64,
    /// Whether anything is queued, running or on its way out, or lies unread where another process put it.
    pub busy: bool,
    /// Whether messages to it will never be read, because it has given up their sender. Then, too, only
    /// changes of the counts matter.
    pub leaves_unread: bool,
}

/// Why an actor or a worker ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EndReason {
    /// A handler, or a future in the actor's context, panicked with this text.
    HandlerPanic(String),
    /// The actor's `create` failed or panicked, or the worker could not be opened.
    CreateFailed(String),
    /// The process exited by itself, with this status.
    Exit(i32),
    /// A signal that the node did not send ended the process.
    Signal(i32),
    /// The GPU's driver reported an error that costs the process its context.
    GpuFault(String),
    /// The process could not go on, as this says: a closure on a host stream or one of the framework's own
    /// threads panicked, or a thread overflowed its stack.
    Broken(String),
    /// The node ended it, for this reason.
    KilledByNode(String),
    /// It hung for longer than the node's limit; the text says on what it waited.
    Hung(String),
    /// An actor that it is linked to went down, as this says.
    Linked(String),
    /// Others of its group failed, or of its GPU under [`Sharing::Mps`](crate::node::Sharing::Mps), as this
    /// says; they restart together.
    Group(String),
    /// It ended so long before the question that the node no longer remembers why.
    Forgotten,
    /// It lives on another host, which cannot be reached any more, or never could, as this says. This host
    /// does not know what became of it there.
    OutOfReach(String),
    /// It was waiting for a restart when the node shut down: no other life follows.
    NodeStopped,
    /// It stopped because it, or the node's program, wanted it to.
    Normal,
}

impl EndReason {
    /// Returns the same reason, with its text changed by `change`.
    pub(crate) fn with_text(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            EndReason::HandlerPanic(text) => EndReason::HandlerPanic(change(text)),
            EndReason::CreateFailed(text) => EndReason::CreateFailed(change(text)),
            EndReason::GpuFault(text) => EndReason::GpuFault(change(text)),
            EndReason::Broken(text) => EndReason::Broken(change(text)),
            EndReason::KilledByNode(text) => EndReason::KilledByNode(change(text)),
            EndReason::Hung(text) => EndReason::Hung(change(text)),
            EndReason::Linked(text) => EndReason::Linked(change(text)),
            EndReason::Group(text) => EndReason::Group(change(text)),
            EndReason::OutOfReach(text) => EndReason::OutOfReach(change(text)),
            plain @ (EndReason::Exit(_)
            | EndReason::Signal(_)
            | EndReason::Forgotten
            | EndReason::NodeStopped
            | EndReason::Normal) => plain,
        }
    }

    /// Returns whether the end was a failure, not a stop on request.
    pub fn is_failure(&self) -> bool {
        *self != EndReason::Normal
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::HandlerPanic(text) => f.write_str(text),
            EndReason::CreateFailed(text) => write!(f, "it could not be created: {text}"),
            EndReason::Exit(code) => write!(f, "exit status: {code}"),
            EndReason::Signal(number) => ExitStatus::from_raw(*number).fmt(f),
            EndReason::GpuFault(text) | EndReason::Broken(text) => f.write_str(text),
            EndReason::KilledByNode(why) => write!(f, "the node ended it: {why}"),
            EndReason::Hung(what) => write!(f, "it hung: {what}"),
            EndReason::Linked(what) => write!(f, "what it is linked to went down: {what}"),
            EndReason::Group(what) => write!(f, "it restarts with others: {what}"),
            EndReason::OutOfReach(what) => f.write_str(what),
            EndReason::Forgotten => f.write_str("it ended some time ago"),
            EndReason::NodeStopped => f.write_str("it is not restarted any more, the node shuts down"),
            EndReason::Normal => f.write_str("it stopped"),
        }
    }
}

/// An event of a watched actor. Each end of a life is one event, and each start of a later life is another.
/// The actor is named by its id, which [`Address::actor`](crate::actor::Address::actor) returns; it is the
/// same in all its lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = crate)]
#[non_exhaustive]
pub enum Lifecycle {
    /// A life of it has ended.
    Down {
        /// The actor.
        actor: ActorId,
        /// Why.
        reason: EndReason,
        /// Whether another life follows. If not, this was the last event.
        will_restart: bool,
    },
    /// It takes messages again, in another life.
    Up {
        /// The actor.
        actor: ActorId,
        /// The life: 0 was the first.
        incarnation: u32,
    },
    /// A life of it has ended, and no restart follows: its restarts are used up, the node shuts down, or its
    /// host is lost. This was the last event.
    GaveUp {
        /// The actor.
        actor: ActorId,
        /// Why that life ended.
        reason: EndReason,
    },
}

impl Lifecycle {
    /// Returns the actor of this event.
    pub fn actor(&self) -> ActorId {
        match self {
            Lifecycle::Down { actor, .. } | Lifecycle::Up { actor, .. } | Lifecycle::GaveUp { actor, .. } => {
                *actor
            }
        }
    }

    /// Returns whether no other event of this actor can follow.
    pub fn is_final(&self) -> bool {
        matches!(self, Lifecycle::Down { will_restart: false, .. } | Lifecycle::GaveUp { .. })
    }

    /// Returns why a life failed; `None` if the event is not a failure.
    pub fn failure(&self) -> Option<&EndReason> {
        match self {
            Lifecycle::Down { reason, .. } | Lifecycle::GaveUp { reason, .. } => {
                Some(reason).filter(|reason| reason.is_failure())
            }
            Lifecycle::Up { .. } => None,
        }
    }
}

impl fmt::Display for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lifecycle::Down { actor, reason, will_restart: true } => {
                write!(f, "{actor} went down and is restarted: {reason}")
            }
            Lifecycle::Down { actor, reason, will_restart: false } => write!(f, "{actor} ended: {reason}"),
            Lifecycle::Up { actor, incarnation } => write!(f, "{actor} is up, in life {incarnation}"),
            Lifecycle::GaveUp { actor, reason: reason @ EndReason::NodeStopped } => {
                write!(f, "{actor} ended: {reason}")
            }
            Lifecycle::GaveUp { actor, reason: reason @ EndReason::OutOfReach(_) } => {
                write!(f, "{actor} is out of reach: {reason}")
            }
            Lifecycle::GaveUp { actor, reason } => {
                write!(f, "{actor} ended, and its restarts are used up: {reason}")
            }
        }
    }
}

/// The ends of an actor that lead to a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartWhen {
    /// Never.
    #[default]
    Never,
    /// When it failed.
    Failed,
    /// Always, unless the node stops it.
    Ended,
}

impl RestartWhen {
    /// Returns whether an end leads to another life.
    pub(crate) fn after(self, failed: bool) -> bool {
        match self {
            RestartWhen::Never => false,
            RestartWhen::Failed => failed,
            RestartWhen::Ended => true,
        }
    }
}

/// The node's answer to the question where an actor is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Whereabouts {
    /// It takes messages there.
    At(Location),
    /// Its last life, which was there, has ended, and the next one has not begun.
    Restarting(Location),
    /// It has ended for good, and its restarts, if it had any, are used up.
    GaveUp(EndReason),
    /// There is no such actor (any more).
    Nowhere,
}

impl Whereabouts {
    /// Returns whether no other answer will follow.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Whereabouts::GaveUp(_) | Whereabouts::Nowhere)
    }
}

/// The node's report on a process that ended, which it sends before it says that the process has exited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessDown {
    /// The process, in the life that ended.
    pub process: ProcessId,
    /// The worker's name.
    pub worker: String,
    /// Why.
    pub reason: EndReason,
    /// Its actors that will be restarted, with the locations that they had.
    pub restarting: Vec<(ActorId, Location)>,
    /// Its actors that had a restart policy and have used it up.
    pub gave_up: Vec<ActorId>,
}

/// A process that a message or a reply was lost with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExitedProcess {
    /// The process, in the life that ended.
    pub process: ProcessId,
    /// The worker's name and why it ended; `None` if this process was not told.
    pub worker: Option<(String, EndReason)>,
    /// Whether the actor is restarted, so that a retry makes sense.
    pub restarts: bool,
}

/// The name of the worker that is the way to other hosts.
pub const GATEWAY: &str = "gateway";

impl fmt::Display for ExitedProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.worker {
            Some((name, reason)) => write!(f, "worker `{name}` ({}) has ended: {reason}", self.process)?,
            None => write!(f, "the process {} has ended", self.process)?,
        }
        if self.restarts { f.write_str("; the actor is being restarted") } else { Ok(()) }
    }
}
