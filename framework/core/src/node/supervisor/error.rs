//! The errors of requests to the node.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;

use crate::limits::MAX_PROCESSES;
use crate::node::handshake::BuildMismatch;
use crate::node::limits::MAX_CONTROL_MESSAGE;
use crate::node::limits::MAX_ROAMING;
use crate::node::registry::NameError;
use crate::node::roster::LocationError;
use crate::node::watcher::watcher;
use crate::observe::text::time;
use crate::os::fork::INHERITED;
use crate::os::remedy_of_start;

use super::WorkerId;

/// The node does not take requests any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeClosed {
    /// It is shutting down.
    #[error("the node is shutting down")]
    ShuttingDown,
    /// It has shut down.
    #[error("the node has shut down")]
    Ended,
    /// This process was forked from the node's.
    #[error("{INHERITED}")]
    Forked,
}

/// Why the node could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The program that workers run cannot be looked at.
    #[error(
        "the workers' program {program} cannot be looked at: {source}; is the path right, and /proc mounted?{found}"
    )]
    Program {
        /// Its path.
        program: String,
        /// The system's error.
        source: io::Error,
        /// The doctor's findings.
        found: String,
    },
    /// The node's own process could not be opened.
    #[error("the node's own process could not be opened: {0}")]
    Open(String),
    /// The system has no thread or descriptor left.
    #[error(
        "the node needs two threads and a few descriptors, and the system refused one: {source}{remedy}{found}",
        remedy = remedy_of_start(.source)
    )]
    System {
        /// The system's error.
        source: io::Error,
        /// The doctor's findings.
        found: String,
    },
    /// There is no MPS.
    #[error(transparent)]
    Mps(#[from] crate::node::MpsError),
    /// This host could not become one of its node.
    #[error("this host could not become one of its node: {0}")]
    Hosts(String),
}

impl NodeError {
    pub(crate) fn system(source: io::Error) -> Self {
        NodeError::System { source, found: String::new() }
    }

    /// Adds the doctor's findings about a start with this program and this budget.
    pub(crate) fn examined(self, program: Option<&Path>, host_budget: u64) -> Self {
        let at_start = |said: &str| watcher().obstacles(program, host_budget, said);
        match self {
            NodeError::Program { program, source, .. } => {
                NodeError::Program { program, source, found: at_start("") }
            }
            NodeError::Open(why) => NodeError::Open(format!("{why}{}", at_start(&why))),
            NodeError::System { source, .. } => {
                let found = at_start(&remedy_of_start(&source));
                NodeError::System { source, found }
            }
            // The error itself says what to do about the daemon.
            NodeError::Mps(error) => NodeError::Mps(error),
            NodeError::Hosts(why) => NodeError::Hosts(why),
        }
    }
}

/// Why a worker did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// Its name cannot be a name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// There are too many processes.
    #[error("the node has {MAX_PROCESSES} processes already; put several actors into one worker")]
    TooMany,
    /// The system refused to start it.
    #[error("worker `{name}` could not be started from {program}: {source}{}{found}", remedy_of_start(.source))]
    Start {
        /// Its name.
        name: String,
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
        /// The doctor's findings.
        found: String,
    },
    /// It runs another build.
    #[error("worker `{name}` was refused: {source}")]
    Build {
        /// Its name.
        name: String,
        /// The difference between the builds.
        source: BuildMismatch,
    },
    /// It took too long; it was killed.
    #[error(
        "worker `{name}` was not ready after {} ({doing}) and was killed; look for what its program does before `main` \
         (in `main`, too, if nothing takes the worker over: `#[tensorpost::main]` does), or allow more time with \
         `start_deadline`{found}",
        time(*.deadline)
    )]
    Deadline {
        /// Its name.
        name: String,
        /// The time that it had.
        deadline: Duration,
        /// The stage that it had reached.
        doing: &'static str,
        /// The doctor's findings.
        found: String,
    },
    /// It ended before it was ready.
    #[error("worker `{name}` ended before it was ready ({}){}{found}", exit_text(.exit), because(.why))]
    Exited {
        /// Its name.
        name: String,
        /// Its exit status.
        exit: Option<ExitStatus>,
        /// The reason that it gave, if it gave one.
        why: Option<String>,
        /// The doctor's findings.
        found: String,
    },
    /// The node does not start workers any more.
    #[error(transparent)]
    Closed(#[from] NodeClosed),
}

/// Why an actor did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is no such worker.
    #[error("{0} is no worker of this node, or has ended and was replaced")]
    UnknownWorker(WorkerId),
    /// The worker has ended, before or while the actor was created.
    #[error("worker `{worker}` ended ({}) before the actor of type `{type_name}` ran{}", exit_text(.exit), because(.why))]
    WorkerExited {
        /// Its name.
        worker: String,
        /// The actor's type.
        type_name: String,
        /// Its exit status.
        exit: Option<ExitStatus>,
        /// Why, if it is known.
        why: Option<String>,
    },
    /// The actor's `create` failed.
    #[error("an actor of type `{type_name}` could not be created in worker `{worker}`: {why}")]
    Create {
        /// The worker's name.
        worker: String,
        /// The actor's type.
        type_name: String,
        /// The error of `create`, with its causes.
        why: String,
    },
    /// Its name is taken, or cannot be a name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// There is no room for it.
    #[error(transparent)]
    Location(#[from] LocationError),
    /// Its arguments are too large.
    #[error(
        "the arguments of an actor of type `{type_name}` do not fit into {MAX_CONTROL_MESSAGE} bytes; \
         send large data as a tensor in a message"
    )]
    TooLarge {
        /// The actor's type.
        type_name: String,
    },
    /// This host has started the most actors that may continue on other hosts, and they have not ended.
    #[error(
        "this host has {MAX_ROAMING} actors that may go on on other hosts; start some from another host, or without \
         `Restart::on_other_hosts`"
    )]
    TooManyRoam,
    /// The node does not start actors any more.
    #[error(transparent)]
    Closed(#[from] NodeClosed),
}

pub(crate) fn exit_text(exit: &Option<ExitStatus>) -> String {
    exit.map_or_else(|| "exit status unknown".to_owned(), |exit| exit.to_string())
}

/// Returns a hint for a worker that was ended by a signal that the node did not send.
pub(crate) fn hint(exit: &Option<ExitStatus>) -> &'static str {
    match exit.and_then(|exit| exit.signal()).and_then(Signal::from_named_raw) {
        Some(Signal::KILL) => {
            "; the node did not kill it: if the system had no memory left (dmesg, memory.events of the cgroup), lower \
             `host_budget` or raise the limit"
        }
        Some(Signal::BUS) => {
            "; was there no memory left for a page that it touched (memory.max of the cgroup)?"
        }
        Some(Signal::SEGV) => {
            "; a thread that overflows its stack does that, and so does code that is `unsafe` or in another language"
        }
        Some(Signal::XFSZ) => "; raise the limit of file size (ulimit -f)",
        Some(Signal::XCPU) => "; raise the limit of processor time (ulimit -t)",
        _ => "",
    }
}

pub(crate) fn because(why: &Option<String>) -> String {
    why.as_ref().map_or_else(String::new, |why| format!(": {why}"))
}
