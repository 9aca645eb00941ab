//! How a pipeline is run, apart from what it does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::progress::Progress;
use crate::actor::Program;
use crate::node::NodeBuilder;

/// Changes a node's settings.
pub(super) type Adjust = dyn Fn(NodeBuilder<Program>) -> NodeBuilder<Program>;

/// The settings.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) progress: Progress,
    pub(super) every: Duration,
    pub(super) trace: Option<PathBuf>,
    pub(super) deadline: Duration,
    pub(super) node: Option<Arc<Adjust>>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            progress: Progress::Off,
            every: Duration::from_millis(500),
            trace: None,
            deadline: Duration::from_secs(30),
            node: None,
        }
    }
}
