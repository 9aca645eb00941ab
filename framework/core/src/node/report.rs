//! What a running node can say about what went wrong in it.

use super::hang::HangReport;
use super::shutdown::RestartReport;
use super::supervisor::WorkerStatus;

/// See [`Node::report`](super::Node::report).
#[derive(Clone, Debug)]
pub struct NodeReport {
    /// All workers, also those that have ended and whose slot is not used again yet.
    pub workers: Vec<WorkerStatus>,
    /// What has ended so far although it had a restart policy, by worker: how often it was restarted, and why.
    pub restarts: Vec<RestartReport>,
    /// What has stood still for longer than [`NodeBuilder::hang_limit`](super::NodeBuilder::hang_limit); the last of them.
    pub hangs: Vec<HangReport>,
}
