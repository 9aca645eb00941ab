//! What a running node reports of what went wrong in it.

use serde::{Deserialize, Serialize};

use super::hang::HangReport;
use super::shutdown::RestartReport;
use super::supervisor::WorkerStatus;

/// See [`Node::report`](super::Node::report).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeReport {
    /// All workers, also those that have ended and whose slot is not used again yet. Those of other hosts say
    /// so in their [`WorkerId`](super::WorkerId).
    pub workers: Vec<WorkerStatus>,
    /// The workers with a restart policy that have ended: how often each was restarted, and why.
    pub restarts: Vec<RestartReport>,
    /// What has stood still for longer than [`NodeBuilder::hang_limit`](super::NodeBuilder::hang_limit); the
    /// last of them.
    pub hangs: Vec<HangReport>,
    /// Other hosts that did not say in time what there is.
    pub silent: Vec<String>,
}
