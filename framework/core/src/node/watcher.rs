//! The seam to the crate that watches nodes, `tensorpost-watch`. The node records, and that crate shows what
//! was recorded: it depends on this one, so it gives this one a [`Watcher`] before `main`.
//!
//! A node in a program without that crate runs as any other. It has no live page, writes no trace, shows no
//! progress, exports none of its metrics, and its errors say nothing of the doctor.
//!
//! CON-1 holds for the live page, which has a thread of its own and asks the node as the console does.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::console::{GpuShare, NodeSnapshot};
use super::progress::{ProgressFile, ProgressSource, RunningDisplay};
use super::serving::Serving;
use super::supervisor::NodeClosed;
use crate::observe::metrics::Metrics;
use crate::observe::trace::joined::HostTrace;
use crate::observe::trace::{TraceError, TraceSummary};

static WATCHER: OnceLock<&'static dyn Watcher> = OnceLock::new();

/// The questions of a node to the crate that watches it. The answers here are those of a program without it.
#[expect(unused_variables, reason = "these answers depend on nothing")]
pub trait Watcher: Sync {
    /// Returns the obstacles to a node's or a worker's start that the doctor finds, to be put behind an
    /// error's text; empty where there are none. `program` is the program of the workers, if that is not the
    /// node's own. `said` is the remedy that the error names itself, which is not repeated.
    fn obstacles(&self, program: Option<&Path>, host_budget: u64, said: &str) -> String {
        String::new()
    }

    /// Returns the way to ask for the processes' use of the GPUs; `None` where that cannot be known.
    fn ask_shares(&self) -> Option<AskShares> {
        None
    }

    /// Serves the live page at the first of these addresses that is free. Returns its thread and the address.
    ///
    /// # Errors
    /// No address can be bound, or the system refuses a thread.
    fn serve(&self, addresses: &[SocketAddr], node: Watched) -> io::Result<(Serving, SocketAddr)> {
        Err(absent())
    }

    /// Serves the live page where the environment asks for it, if it does.
    fn serve_as_environment_asks(&self, node: Watched) -> Option<Serving> {
        None
    }

    /// Hands metrics to the program's recorder of the crate `metrics`, if it has installed one. In a program
    /// without that crate the recorder has the metrics of user code alone.
    fn export(&self, metrics: &Metrics) {}

    /// Shows the snapshots of `source`, until the returned display drops or `source` returns `None`: in the
    /// file, or else on stderr. A program without that crate shows nothing.
    fn show_progress(&self, source: ProgressSource, file: Option<ProgressFile>) -> Option<RunningDisplay> {
        None
    }

    /// Writes the file of a trace: of this host, and of others by their names.
    ///
    /// # Errors
    /// The file cannot be written.
    fn write_trace(
        &self,
        path: &Path,
        own: &HostTrace,
        others: &[(String, HostTrace)],
    ) -> Result<TraceSummary, TraceError> {
        Err(TraceError::new(path, absent()))
    }
}

/// Asks for each process's use of all GPUs of its machine, by its process id.
pub type AskShares = Box<dyn FnMut() -> HashMap<u32, GpuShare>>;

/// A node, for its [`Watcher`].
#[derive(Clone)]
pub struct Watched(pub(super) Arc<dyn Watchable>);

/// The node's side of [`Watched`].
pub(super) trait Watchable: Send + Sync {
    fn look(&self) -> Result<Option<NodeSnapshot>, NodeClosed>;

    fn warn(&self, text: String);
}

impl Watched {
    /// Returns the state of everything; `None` if the supervisor does not answer in time.
    ///
    /// # Errors
    /// The node has ended.
    pub fn snapshot(&self) -> Result<Option<NodeSnapshot>, NodeClosed> {
        self.0.look()
    }

    /// Adds a line to the node's log.
    pub fn say(&self, text: String) {
        self.0.warn(text);
    }
}

/// Makes `watcher` that of all nodes of this process. Only the first call counts.
pub fn watch_by(watcher: &'static dyn Watcher) {
    let _ = WATCHER.set(watcher);
}

/// Returns the watcher of all nodes of this process.
pub(super) fn watcher() -> &'static dyn Watcher {
    WATCHER.get().copied().unwrap_or(&Nobody)
}

/// The watcher in a program without that crate.
struct Nobody;

impl Watcher for Nobody {}

fn absent() -> io::Error {
    let text = "this is done by the crate `tensorpost-watch`, which this program does not have: `tensorpost` brings it \
                along, but where another program links a Rust `staticlib`, that has to be linked whole (`--whole-archive`)";
    io::Error::new(io::ErrorKind::Unsupported, text)
}
