//! The node without other hosts: what `all_hosts.rs` and `starter/` answer in a build without the feature
//! `hosts`.

use std::time::Duration;

use super::NodeReport;
use super::broker::Broker;
use super::broker::neighbours::NeighbourActors;
use super::console::NodeSnapshot;
use super::supervisor::{NodeClosed, Shared, Supervisor, WorkerId, WorkerOrder};
use crate::observe::metrics::Metrics;

/// The way to other hosts: there is none.
#[derive(Default)]
pub(crate) struct AllHosts;

impl AllHosts {
    /// Does nothing: no host asks for this one's trace.
    pub(in crate::node) fn this_host_traces(&self, _its_run: bool) {}
}

impl NeighbourActors for Broker {}

impl Shared {
    /// As [`snapshot`](Self::snapshot).
    pub(crate) fn snapshot_of_all(&self, patience: Duration) -> Result<Option<NodeSnapshot>, NodeClosed> {
        self.snapshot(patience)
    }

    /// Does nothing.
    pub(crate) fn begin_trace_of_hosts(&self) {}

    /// Returns nothing.
    pub(crate) fn end_trace_of_hosts(&self) -> (Vec<(String, Vec<u8>)>, Vec<String>) {
        Default::default()
    }

    /// Does nothing.
    pub(crate) fn drop_trace_of_hosts(&self) {}
}

impl Supervisor {
    /// As [`metrics`](Self::metrics).
    pub(crate) fn metrics_of_all(&self) -> Result<Metrics, NodeClosed> {
        self.metrics()
    }

    /// Returns what has gone wrong so far on this host.
    pub(crate) fn report_of_all(&self) -> Result<NodeReport, NodeClosed> {
        let (restarts, hangs) = self.report()?;
        Ok(NodeReport { workers: self.workers(), restarts, hangs, silent: Vec::new() })
    }

    /// Returns false: no worker is of another host.
    pub(in crate::node) fn tell_host_of(&self, _worker: WorkerId, _order: WorkerOrder) -> bool {
        false
    }
}
