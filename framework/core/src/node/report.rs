//! The report of a running node: what has gone wrong in it.

use serde::{Deserialize, Serialize};

use super::hang::HangReport;
use super::shutdown::RestartReport;
use super::supervisor::WorkerStatus;

/// See [`Node::report`](super::Node::report).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeReport {
    /// All workers, also those that have ended and whose slot is not used again yet. The
    /// [`WorkerId`](super::WorkerId) of a worker on another host says so.
    pub workers: Vec<WorkerStatus>,
    /// The workers with a restart policy that have ended: how often each was restarted, and why.
    pub restarts: Vec<RestartReport>,
    /// The last hangs: workers, actors or clocks that stood still for longer than
    /// [`NodeBuilder::hang_limit`](super::NodeBuilder::hang_limit).
    pub hangs: Vec<HangReport>,
    /// Other hosts that did not answer in time.
    pub silent: Vec<String>,
}
