//! The clock values that stand for data that was never written (DEATH-1, DEATH-3).
//!
//! A process that dies leaves values that others wait for and that it will never reach. Their waits must end,
//! and the memory behind them must not be mistaken for data. So the node first publishes the *death
//! certificate*: the last value of each clock of the dead process. A ticket beyond it is **tainted**. Work
//! that a living stream was given behind a wait for a tainted ticket will produce nothing of worth either. So
//! every process marks, for each of its streams, the *range* of own clock values that stand for such work,
//! and tells the node. The node tells the other processes, until nothing changes. Only then does it release
//! the waiters.
//!
//! This module has the [`Table`] of tainted values, which every process and the node keep. It has the [`Log`]
//! of a stream, which remembers the stream's waits, and the [`EpochPage`], on which the node says how much
//! every process has to know.
//!
//! # Why "passed" is not enough
//! After a release every clock of the dead process has passed every value, and so, soon after, have the
//! clocks of the streams that waited for it. A value is believed only if (1) its clock has passed it, *then*
//! (2) this process knows as much as the epoch page says, *then* (3) the table does not have it. The node
//! raises the epoch page before it releases, so a process that sees the effect of a release sees the epoch
//! page too. A process that was stopped, and has not marked yet, finds that it is behind and waits for its
//! own control thread to catch up.

mod epoch_page;
mod hints;
mod log;
mod table;

use serde::{Deserialize, Serialize};

pub use epoch_page::EpochPage;
pub(super) use hints::Hints;
#[cfg(feature = "inside")]
pub use log::Log;
pub(crate) use log::StreamLog;
pub use table::Table;

use super::Ticket;
use crate::ids::ProcessId;

/// The last values of the clocks of a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Certificate {
    /// The process whose clocks these are.
    pub process: ProcessId,
    /// The last value of each clock; clocks left out at the end never left zero.
    pub last: Vec<u64>,
}

impl Certificate {
    /// Creates a certificate, with the zeros at the end cut off.
    pub fn new(process: ProcessId, values: &[u64]) -> Self {
        let used = values.iter().rposition(|value| *value != 0).map_or(0, |at| at + 1);
        Certificate { process, last: values[..used].to_vec() }
    }
}

/// Values of one clock, both ends included, that stand for work behind a wait that a death left unsatisfied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaintRange {
    /// The process whose clock it is.
    pub process: ProcessId,
    /// The number of the clock.
    pub slot: u16,
    /// First value.
    pub from: u64,
    /// Last value.
    pub to: u64,
    /// The process whose death it was.
    pub by: ProcessId,
}

/// The news of one round, from the node to every process. Each process answers with the ranges of its own
/// that follow from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaintUpdate {
    /// The round; rounds are counted from one.
    pub round: u64,
    /// Processes that died.
    pub deaths: Vec<Certificate>,
    /// Ranges of living processes, and of dead ones from before their death.
    pub ranges: Vec<TaintRange>,
    /// Processes that did not answer in time (they may be stopped). Every value beyond these counts as
    /// tainted, until the process is among `cleared`. With each comes the process whose death it did not
    /// answer for.
    pub suspects: Vec<(Certificate, ProcessId)>,
    /// Processes that have answered since: of their values only their ranges are tainted.
    pub cleared: Vec<ProcessId>,
}

impl TaintUpdate {
    /// Returns whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.deaths.is_empty()
            && self.ranges.is_empty()
            && self.suspects.is_empty()
            && self.cleared.is_empty()
    }
}

/// The state of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketStatus {
    /// The data is there.
    Ready,
    /// The data is on its way, as far as this process knows.
    Pending,
    /// The data will never be there: the writer, or a process that the writer waited for, has died.
    Tainted(ProcessId),
}

/// The data that a ticket stands for was lost with a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the data that clock {} of {} stands for depends on work that {by} had not done when it died; make it again",
    .ticket.slot, .ticket.process
)]
pub struct Tainted {
    /// The ticket.
    pub ticket: Ticket,
    /// The process whose death it was.
    pub by: ProcessId,
}
