//! The settings of a supervisor, which a node's builder makes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::actor::Code;
use crate::clock::ProcessPages;
use crate::lease::GpuBudget;
use crate::node::console::LogRing;
use crate::node::hang::OnHang;
use crate::observe::trace::Collector;

use super::launch::Program;

/// The settings of a supervisor.
pub(crate) struct Settings {
    pub(crate) program: Program,
    pub(crate) start_deadline: Duration,
    pub(crate) worker_log: String,
    /// Makes the layer that the program adds to a worker's telemetry.
    pub(crate) worker_telemetry: Option<Code>,
    pub(crate) host_budget: u64,
    pub(crate) gpu_budget: Option<GpuBudget>,
    /// The pages that the node's own process was opened with.
    pub(crate) pages: ProcessPages,
    /// The file for the trace of the run, and the collector of its rings, if the run is traced.
    pub(crate) trace: Option<(PathBuf, Arc<Collector>)>,
    /// How many records each process keeps for a trace.
    pub(crate) trace_records: usize,
    /// Why workers on one GPU take turns. If `None`, their kernels overlap, and they end together when one of
    /// them costs the others the GPU.
    pub(crate) time_slices: Option<String>,
    /// How long something may stand still, and what the supervisor does then.
    pub(crate) hang_limit: Option<(Duration, OnHang)>,
    /// The latest records of the log, kept for the console if there is one.
    pub(crate) log_ring: Option<Arc<LogRing>>,
    /// One more environment variable for the workers.
    pub(crate) environment: Option<(&'static str, std::ffi::OsString)>,
}
