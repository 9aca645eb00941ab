//! Settings of a run that do not change what the pipeline computes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tensorpost_core::api::node::NodeBuilder;

use super::progress::Progress;

/// Changes a node's settings.
pub(super) type Adjust = dyn Fn(NodeBuilder) -> NodeBuilder;

/// The settings.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) progress: Progress,
    pub(super) every: Duration,
    pub(super) trace: Option<PathBuf>,
    pub(super) deadline: Duration,
    /// How long nothing may move before the log says so.
    pub(super) hang_limit: Duration,
    /// Whether lost or left-over items are an error, even if a death explains them.
    pub(super) complete: bool,
    pub(super) node: Option<Arc<Adjust>>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            progress: Progress::Off,
            every: Duration::from_millis(500),
            trace: None,
            deadline: Duration::from_secs(30),
            hang_limit: Duration::from_secs(30),
            complete: false,
            node: None,
        }
    }
}

/// How often actors report when their progress is not shown.
const SELDOM: Duration = Duration::from_secs(1);

impl Settings {
    /// How often actors report.
    pub(super) fn told_every(&self) -> Duration {
        if self.progress.is_off() { SELDOM.min(self.hang_limit / 2) } else { self.every }
    }
}
