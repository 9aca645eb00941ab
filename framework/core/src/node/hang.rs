//! The report of what made no progress for too long: see
//! [`NodeBuilder::hang_limit`](super::NodeBuilder::hang_limit).

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

/// What makes no progress in a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Hang {
    /// Its process does not answer, on a thread that runs no actor.
    Silent {
        /// Whether a signal or a debugger has stopped it, as far as the system says.
        stopped: bool,
    },
    /// One of its actors has accepted messages and is done with none.
    Mailbox {
        /// The actor.
        actor: ActorId,
        /// Its name.
        name: String,
        /// How many messages.
        open: u64,
        /// Whether it is in a handler; otherwise its handlers' results do not resolve, or its thread is with
        /// another actor.
        handling: bool,
    },
    /// Somebody waits for one of its clocks, and it does not move.
    Clock {
        /// The process that waits.
        waiter: ProcessId,
        /// Its name.
        waiter_name: String,
        /// Which of its streams or threads waits.
        waits_in: WaitsIn,
        /// Which clock: that of the stream in the worker with this number.
        clock: u16,
        /// The value that is waited for.
        value: u64,
        /// The value that the clock shows.
        now: u64,
    },
    /// It says that it waits for a clock to show a value of which the clock's process knows nothing: it lies,
    /// or has believed somebody who does.
    Unpromised {
        /// Which of its streams or threads waits.
        waits_in: WaitsIn,
        /// The process whose clock it is, which has nothing to do with it.
        on: ProcessId,
        /// Which clock.
        clock: u16,
        /// The value that is waited for.
        value: u64,
    },
}

/// A worker in which something made no progress for longer than the limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangReport {
    /// The host of that worker, where it is another one: its number and name.
    pub host: Option<String>,
    /// The worker; `None` for the node's own process.
    pub worker: Option<WorkerId>,
    /// Its process, in the life that hung.
    pub process: ProcessId,
    /// Its name.
    pub name: String,
    /// In which way.
    pub hang: Hang,
    /// For how long, when it was seen.
    pub lasted: Duration,
    /// Whether it was killed for it.
    pub killed: bool,
}

#[cfg(feature = "hosts")]
impl Hang {
    /// Does something with each name of a process that is in it.
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
