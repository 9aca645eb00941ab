//! Reports of hangs: see [`NodeBuilder::hang_limit`](super::NodeBuilder::hang_limit).

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ActorId, ProcessId};
use crate::observe::text::time;

use super::supervisor::WorkerId;
pub use crate::observe::hang_probe::WaitsIn;

/// How the node treats a worker that hangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnHang {
    /// Report it.
    #[default]
    Report,
    /// Report it and kill it. The restart policies of its actors decide what follows.
    Restart,
}

/// The part of a worker that makes no progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Hang {
    /// Its process does not answer, on a thread that runs no actor.
    Silent {
        /// Whether a signal or a debugger has stopped it, as far as the system says.
        stopped: bool,
    },
    /// One of its actors has accepted messages and finishes none.
    Mailbox {
        /// The actor.
        actor: ActorId,
        /// Its name.
        name: String,
        /// How many messages.
        open: u64,
        /// Whether it is in a handler. Otherwise its handlers' results do not resolve, or another actor
        /// occupies its thread.
        handling: bool,
    },
    /// A process waits for one of its clocks, which does not move.
    Clock {
        /// The process that waits.
        waiter: ProcessId,
        /// Its name.
        waiter_name: String,
        /// The stream or thread that waits.
        waits_in: WaitsIn,
        /// The clock: the number of its stream in the worker.
        clock: u16,
        /// The value that is waited for.
        value: u64,
        /// The value that the clock shows.
        now: u64,
    },
    /// It says that it waits for a clock to show a value that the clock's process never promised: it lies, or
    /// has believed a process that lies.
    Unpromised {
        /// The stream or thread that waits.
        waits_in: WaitsIn,
        /// The owner of the clock, which is not to blame.
        on: ProcessId,
        /// The clock.
        clock: u16,
        /// The value that is waited for.
        value: u64,
    },
}

/// A worker in which something made no progress for longer than the limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HangReport {
    /// The number and name of that worker's host, if it is another one.
    pub host: Option<String>,
    /// The worker; `None` for the node's own process.
    pub worker: Option<WorkerId>,
    /// Its process, in the life that hung.
    pub process: ProcessId,
    /// Its name.
    pub name: String,
    /// The kind of hang.
    pub hang: Hang,
    /// How long it had lasted when it was seen.
    pub lasted: Duration,
    /// Whether the worker was killed for it.
    pub killed: bool,
}

#[cfg(feature = "hosts")]
impl Hang {
    /// Calls `change` with each name in it.
    pub(crate) fn names(&mut self, mut change: impl FnMut(&mut String)) {
        match self {
            Hang::Silent { .. } => {}
            Hang::Mailbox { name, .. } => change(name),
            Hang::Clock { waiter_name, waits_in: WaitsIn::Thread(thread), .. } => {
                change(waiter_name);
                change(thread);
            }
            Hang::Clock { waiter_name, .. } => change(waiter_name),
            Hang::Unpromised { waits_in: WaitsIn::Thread(thread), .. } => change(thread),
            Hang::Unpromised { .. } => {}
        }
    }
}

impl fmt::Display for HangReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HangReport { process, name, .. } = self;
        let lasted = time(self.lasted);
        write!(f, "`{name}` ({process}")?;
        match &self.host {
            Some(host) => write!(f, " of host {host}) ")?,
            None => f.write_str(") ")?,
        }
        match &self.hang {
            Hang::Silent { stopped: true } => write!(f, "is stopped and has not answered for {lasted}"),
            Hang::Silent { stopped: false } => write!(f, "has not answered for {lasted}"),
            Hang::Mailbox { actor, name, open, handling } => {
                write!(
                    f,
                    "does not move: {actor} `{name}` has {open} messages and is done with none of them "
                )?;
                write!(f, "since {lasted}")?;
                if *handling { f.write_str("; it is in a handler") } else { Ok(()) }
            }
            Hang::Clock { waiter, waiter_name, waits_in, clock, value, now } => {
                write!(f, "should have advanced its clock {clock} to {value}; it shows {now}. ")?;
                write!(f, "`{waiter_name}` ({waiter}) has waited for {lasted}, in {waits_in}")
            }
            Hang::Unpromised { waits_in, on, clock, value } => {
                write!(
                    f,
                    "says that it has waited for {lasted}, in {waits_in}, for clock {clock} of {on} to show "
                )?;
                write!(f, "{value}, which {on} has not promised")
            }
        }
    }
}
