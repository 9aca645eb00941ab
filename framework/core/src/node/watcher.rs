//! The seam to the crate that watches nodes, `tensorpost-watch`. The node records, and that crate shows what
//! was recorded: it depends on this one, so it gives this one a [`Watcher`] before `main`.
//!
//! A node in a program without that crate runs as any other. It has no live page, writes no trace, and its
//! errors say nothing of the doctor.
//!
//! CON-1 holds on both sides: a watcher runs on threads of its own, and asks the node as the console does.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::NodeClosed;
use super::console::{GpuShare, NodeSnapshot};
use super::limits::WAIT_FOR_SUPERVISOR;
use super::supervisor::Shared;
use crate::observe::trace::joined::HostTrace;
use crate::observe::trace::{TraceError, TraceSummary};

static WATCHER: OnceLock<&'static dyn Watcher> = OnceLock::new();

/// The questions of a node to the crate that watches it.
pub trait Watcher: Sync {
    /// Returns the obstacles to a node's or a worker's start that the doctor finds, to be put behind an
    /// error's text; empty where there are none. `program` is the program of the workers, if that is not the
    /// node's own;
    /// `said` is the remedy that the error names itself, which is not repeated.
    fn obstacles(&self, program: Option<&Path>, host_budget: u64, said: &str) -> String;

    /// Returns the way to ask for the processes' use of the GPUs; `None` where that cannot be known.
    fn ask_shares(&self) -> Option<AskShares>;

    /// Serves the live page at the first of these addresses that is free, and returns that.
    ///
    /// # Errors
    /// No address can be bound, or the system refuses a thread.
    fn serve(&self, addresses: &[SocketAddr], node: Watched) -> io::Result<(Served, SocketAddr)>;

    /// Serves the live page where the environment asks for it, if it does.
    fn serve_as_environment_asks(&self, node: Watched) -> Option<Served>;

    /// Writes the file of a trace: of this host, and of others by their names.
    ///
    /// # Errors
    /// The file cannot be written.
    fn write_trace(
        &self,
        path: &Path,
        own: &HostTrace,
        others: &[(String, HostTrace)],
    ) -> Result<TraceSummary, TraceError>;
}

/// Asks for each process's use of all GPUs of its machine, by its process id.
pub type AskShares = Box<dyn FnMut() -> HashMap<u32, GpuShare>>;

/// A live page. Dropping it ends it.
pub type Served = Box<dyn Any + Send>;

/// A node, for its [`Watcher`].
#[derive(Clone)]
pub struct Watched(Arc<Shared>);

impl Watched {
    /// Returns the state of everything; `None` if the supervisor does not answer in time.
    ///
    /// # Errors
    /// The node has ended.
    pub fn snapshot(&self) -> Result<Option<NodeSnapshot>, NodeClosed> {
        self.0.snapshot_of_all(WAIT_FOR_SUPERVISOR)
    }

    /// Adds a line to the node's log.
    pub fn say(&self, text: String) {
        self.0.say(text);
    }
}

/// Makes `watcher` that of all nodes of this process. Only the first call counts.
pub fn watch_by(watcher: &'static dyn Watcher) {
    let _ = WATCHER.set(watcher);
}

/// Returns the obstacles to a start; see [`Watcher::obstacles`].
pub(super) fn obstacles(program: Option<&Path>, host_budget: u64, said: &str) -> String {
    WATCHER.get().map_or_else(String::new, |watcher| watcher.obstacles(program, host_budget, said))
}

/// Returns the way to ask for the use of the GPUs; see [`Watcher::ask_shares`].
pub(super) fn ask_shares() -> Option<AskShares> {
    WATCHER.get()?.ask_shares()
}

/// Serves the live page of a node; see [`Watcher::serve`].
pub(super) fn serve(addresses: &[SocketAddr], shared: Arc<Shared>) -> io::Result<(Served, SocketAddr)> {
    WATCHER.get().ok_or_else(absent)?.serve(addresses, Watched(shared))
}

/// Serves the live page of a node; see [`Watcher::serve_as_environment_asks`].
pub(super) fn serve_as_environment_asks(shared: &Arc<Shared>) -> Option<Served> {
    WATCHER.get()?.serve_as_environment_asks(Watched(Arc::clone(shared)))
}

/// Writes the file of a trace; see [`Watcher::write_trace`].
pub(super) fn write_trace(
    path: &Path,
    own: &HostTrace,
    others: &[(String, HostTrace)],
) -> Result<TraceSummary, TraceError> {
    let watcher = WATCHER.get().ok_or_else(|| TraceError::new(path, absent()))?;
    watcher.write_trace(path, own, others)
}

fn absent() -> io::Error {
    let text = "this is done by the crate `tensorpost-watch`, which this program does not have";
    io::Error::new(io::ErrorKind::Unsupported, text)
}
