//! A process's memory and links for the console: its pools with their holders, and the traffic of each link.
//!
//! The control thread of a process takes the survey as often as a watcher looks, and at most ten times a
//! second. Nothing is counted for it alone. State that a sender has locked at that moment is left out rather
//! than waited for (CON-1).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::list::at_most;
use crate::ids::{DeviceId, ProcessId};
use crate::limits::{MAX_ACTORS, MAX_PROCESSES, MAX_SHOWN_HOLDERS, MAX_SHOWN_POOLS};

/// A snapshot of the memory and the links of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// The process's own memory, by device.
    #[serde(deserialize_with = "at_most::<MAX_SHOWN_POOLS, _, _>")]
    pub pools: Vec<PoolReport>,
    /// The process's links to each other process, and to earlier lives that are being read to the end.
    #[serde(deserialize_with = "at_most::<{ 2 * MAX_PROCESSES }, _, _>")]
    pub links: Vec<LinkReport>,
}

/// The memory of a process on one device. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolReport {
    /// The device.
    pub device: DeviceId,
    /// The most that its chunks may take together.
    pub budget: u64,
    /// The bytes that its chunks take.
    pub chunks: u64,
    /// The bytes that are held, in this process or another.
    pub held: u64,
    /// The number of tensors that they are in.
    pub tensors: u64,
    /// The held bytes on which other processes have leases.
    pub in_flight: u64,
    /// The bytes that were released and whose last use has not passed.
    pub quarantined: u64,
    /// The holders, the largest first; a tensor with two holders is counted for both.
    #[serde(deserialize_with = "at_most::<MAX_SHOWN_HOLDERS, _, _>")]
    pub holders: Vec<HolderReport>,
    /// The number of holders that are not in the list.
    pub more_holders: u64,
}

/// A process's part of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderReport {
    /// The process.
    pub process: ProcessId,
    /// The bytes that it holds.
    pub bytes: u64,
    /// The number of tensors that they are in.
    pub tensors: u64,
    /// How long the oldest of them has existed.
    pub oldest: Duration,
}

/// One process's side of its link to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    /// The other process.
    pub peer: ProcessId,
    /// Whether both sides have connected and neither has given it up.
    pub open: bool,
    /// Messages sent to the other's actors. `None` if a sender had the link locked.
    pub sent: Option<Vec<SentReport>>,
    /// Replies that wait for room. `None` as for `sent`.
    pub replies_waiting: Option<u64>,
    /// Leases on this process's memory that the other was granted, directly or by a third process.
    pub lent: u64,
    /// The leases that it was granted directly: at most `MAX_GRANTED`.
    pub granted: u64,
}

/// The messages that one process has sent to one actor of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentReport {
    /// The actor's index in its process.
    pub index: u16,
    /// Messages that were sent to the actor.
    pub sent: u64,
    /// Messages that the actor has handled. The others wait in the ring or in its mailbox, or are being
    /// handled.
    pub done: u64,
}

impl Survey {
    /// Returns another process's survey in a form that can be kept. An honest process keeps to the bounds,
    /// but a peer might not (WIRE-1).
    pub(crate) fn bounded(mut self) -> Self {
        self.links
            .iter_mut()
            .filter_map(|link| link.sent.as_mut())
            .for_each(|sent| sent.truncate(MAX_ACTORS));
        self
    }
}
