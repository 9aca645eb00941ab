//! What a process shows of its memory and its links to whoever looks with the console: pools with who holds
//! what, and how much went over each link.
//!
//! The control thread of a process takes it, about as often as somebody looks and at most ten times a second.
//! Nothing is counted for it that is not counted anyway. What a sender has locked at that moment is left out
//! rather than waited for (CON-1).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::list::at_most;
use crate::ids::{DeviceId, ProcessId};
use crate::limits::{MAX_ACTORS, MAX_PROCESSES, MAX_SHOWN_HOLDERS, MAX_SHOWN_POOLS};

/// One look at the memory and the links of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// Its own memory, by device.
    #[serde(deserialize_with = "at_most::<MAX_SHOWN_POOLS, _, _>")]
    pub pools: Vec<PoolReport>,
    /// Its links to each of the others, and to earlier lives that are read to the end.
    #[serde(deserialize_with = "at_most::<{ 2 * MAX_PROCESSES }, _, _>")]
    pub links: Vec<LinkReport>,
}

/// The memory of a process on one device. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolReport {
    /// The device.
    pub device: DeviceId,
    /// What its chunks may take together.
    pub budget: u64,
    /// What they take.
    pub chunks: u64,
    /// What somebody holds, in this process or another.
    pub held: u64,
    /// In how many tensors.
    pub tensors: u64,
    /// What of it other processes have leases on.
    pub in_flight: u64,
    /// What was released and whose last use has not passed.
    pub quarantined: u64,
    /// Who holds it, the largest first; a tensor that two hold is counted for both.
    #[serde(deserialize_with = "at_most::<MAX_SHOWN_HOLDERS, _, _>")]
    pub holders: Vec<HolderReport>,
    /// Holders that are not in the list.
    pub more_holders: u64,
}

/// What one process holds of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderReport {
    /// The process.
    pub process: ProcessId,
    /// How many bytes.
    pub bytes: u64,
    /// In how many tensors.
    pub tensors: u64,
    /// For how long the oldest of them has existed.
    pub oldest: Duration,
}

/// One process's side of its link to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    /// The other process.
    pub peer: ProcessId,
    /// Whether both sides have connected and neither has given it up.
    pub open: bool,
    /// Messages sent to the other's actors. `None`: a sender had it locked.
    pub sent: Option<Vec<SentReport>>,
    /// Replies that wait for room. `None` as above.
    pub replies_waiting: Option<u64>,
    /// Leases on this process's memory that the other was granted, directly or by a third.
    pub lent: u64,
    /// The part that it was granted directly: at most `MAX_GRANTED`.
    pub granted: u64,
}

/// What one process has sent to one actor of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentReport {
    /// The actor's place in its process.
    pub index: u16,
    /// Messages that were sent to it.
    pub sent: u64,
    /// Of them, those that it is done with. The others wait in the ring or in its mailbox, or are being
    /// handled.
    pub done: u64,
}

impl Survey {
    /// The survey of another process as it can be kept: one of ours keeps to the bounds, and another might
    /// not (WIRE-1).
    pub(crate) fn bounded(mut self) -> Self {
        self.links
            .iter_mut()
            .filter_map(|link| link.sent.as_mut())
            .for_each(|sent| sent.truncate(MAX_ACTORS));
        self
    }
}
