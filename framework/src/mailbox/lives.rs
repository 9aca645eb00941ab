//! What processes are told of the lives of others: why one ended, and whether it comes back.
//!
//! An actor keeps its id for good; its place is of one life. The node says who ended *before* it says that the process is
//! gone, so whoever sees a broken link knows already what becomes of the actors behind it (DEATH-2).

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

use super::port::Place;
use crate::ids::{ActorId, ProcessId};

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
    /// The node ended it, for this reason.
    KilledByNode(String),
    /// It stood still for longer than the node's limit; this is what it waited for.
    Hung(String),
    /// It stopped because it, or the node's program, wanted to.
    Normal,
}

impl EndReason {
    /// Whether it ended although nobody wanted it to.
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
            EndReason::GpuFault(text) => f.write_str(text),
            EndReason::KilledByNode(why) => write!(f, "the node ended it: {why}"),
            EndReason::Hung(what) => write!(f, "it hung: {what}"),
            EndReason::Normal => f.write_str("it stopped"),
        }
    }
}

/// Whether an actor that ended is started anew, by how it ended.
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
    /// Whether an end leads to another life.
    pub(crate) fn after(self, failed: bool) -> bool {
        match self {
            RestartWhen::Never => false,
            RestartWhen::Failed => failed,
            RestartWhen::Ended => true,
        }
    }
}

/// Where an actor is, as the node says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Whereabouts {
    /// It takes messages there.
    At(Place),
    /// Its last life, which was there, has ended, and the next one has not begun.
    Restarting(Place),
    /// It has ended for good, and its restarts, if it had any, are used up.
    GaveUp(EndReason),
    /// There is no such actor (any more).
    Nowhere,
}

/// What the node says of a process that ended, before it says that it is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obituary {
    /// The process, in the life that ended.
    pub process: ProcessId,
    /// The worker's name.
    pub worker: String,
    /// Why.
    pub reason: EndReason,
    /// Those of its actors that come back, with the place that they had.
    pub restarting: Vec<(ActorId, Place)>,
    /// Those that had a restart policy and have used it up.
    pub gave_up: Vec<ActorId>,
}

/// A process that a message or a reply was lost with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departed {
    /// The process, in the life that ended.
    pub process: ProcessId,
    /// The worker's name and why it ended; `None` where this process has not heard.
    pub worker: Option<(String, EndReason)>,
    /// Whether the actor comes back: trying again makes sense.
    pub restarts: bool,
}

impl fmt::Display for Departed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.worker {
            Some((name, reason)) => write!(f, "worker `{name}` ({}) has ended: {reason}", self.process)?,
            None => write!(f, "the process {} has ended", self.process)?,
        }
        if self.restarts { f.write_str("; the actor is being restarted") } else { Ok(()) }
    }
}
