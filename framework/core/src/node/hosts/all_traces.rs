//! Traces of all hosts, for an interval or for the whole run: each host traces itself, and the head collects
//! the records at the end.
//!
//! The head asks the other hosts' starters to begin and to end (`node/hosts/all_hosts.rs`). Its console
//! does so for an interval that somebody watches; its supervisor does so for a traced run, when hosts join
//! and before they are shut down. A host records its own time, and sends with the records the distance of
//! the head's clock from its own, as the beats have measured it. The writer of the file shifts the times by
//! that (`observe/trace/joined.rs`). A host that does not answer, or does not know the head's clock, is
//! named as silent.
//!
//! **On the loss** of the head an agent ends; if its own program traces its run, the agent writes that trace.
//! **If a watcher goes away** in the middle, the other hosts are told to end, and their records are dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::starter::{Extent, Show};
use crate::limits::MAX_HOST_TRACE;
use crate::node::limits::{
    HOST_LOOK_DEADLINE, HOST_TRACE_DEADLINE, HOST_WAITS_FOR_SUPERVISOR, MAX_ALL_HOSTS_TRACES,
};
use crate::node::supervisor::{Shared, Supervisor};
use crate::observe::trace::Collector;
use crate::observe::trace::joined::HostTrace;
use crate::os::monotonic_ns;

fn collector(shared: &Shared) -> Result<Arc<Collector>, String> {
    let begun = shared.begin_trace(HOST_WAITS_FOR_SUPERVISOR).map_err(|closed| closed.to_string())?;
    begun.ok_or("its supervisor does not answer")?.map_err(|error| error.to_string())
}

/// Begins to trace here, if that has not begun. `Err` says why it cannot.
pub(in crate::node) fn begin(supervisor: &Supervisor, extent: Extent) -> Result<Vec<u8>, String> {
    let shared = supervisor.shared();
    let mut traced = shared.all_hosts.traced.lock();
    let since = monotonic_ns();
    if traced.collector.is_none() {
        traced.collector = Some(collector(&shared)?);
        // The workers hear of the trace before they give their part of this snapshot.
        let _ = shared.snapshot(HOST_WAITS_FOR_SUPERVISOR);
    }
    match extent {
        // An earlier interval is replaced: this host has not heard that its watcher went away.
        Extent::Interval => traced.interval_since = Some(since),
        Extent::Run => drop(traced.run_since.get_or_insert(since)),
    }
    Ok(Vec::new())
}

/// Ends a trace, and returns its records.
pub(in crate::node) fn end(supervisor: &Supervisor, extent: Extent) -> Result<Vec<u8>, String> {
    let shared = supervisor.shared();
    let mut traced = shared.all_hosts.traced.lock();
    let has_all = extent == Extent::Run && shared.all_hosts.traces_itself();
    let since = traced.since(extent).take().or(has_all.then_some(0)).ok_or("nothing is traced here")?;
    let is_over = traced.interval_since.is_none() && traced.run_since.is_none();
    let kept = if is_over { traced.collector.take() } else { traced.collector.clone() };
    let collector = kept.map_or_else(|| collector(&shared), Ok)?;
    if is_over {
        shared.end_trace();
    }
    // The workers hear of the end before they give their part of this snapshot, so their memory stays as it
    // is.
    let _ = shared.snapshot(HOST_WAITS_FOR_SUPERVISOR);
    let clock = *shared.all_hosts.clock.lock();
    let clock = clock.ok_or("how far its clock is from the head's is not known yet")?;
    let until = monotonic_ns();
    let since = if has_all { 0 } else { since };
    let (processes, forgotten) = collector.snapshot_of(since..=until);
    let bytes =
        HostTrace { processes, forgotten, until, clock }.encode().map_err(|error| error.to_string())?;
    shared.all_hosts.head_has_run.fetch_or(has_all, Relaxed);
    Ok(bytes)
}

impl Shared {
    /// Tells the other hosts to begin a trace, and waits until they have begun, or do not answer in time.
    pub(crate) fn begin_trace_of_hosts(&self) {
        // A host that does not answer is named at the end.
        let asked = self.ask_hosts(Show::TraceBegin(Extent::Interval), HOST_LOOK_DEADLINE);
        drop(self.raw_answers(asked, 0, 0));
    }

    /// As [`begin_trace_of_hosts`](Self::begin_trace_of_hosts), until the run ends. Hosts that trace the run
    /// already go on.
    pub(in crate::node) fn begin_run_of_hosts(&self) {
        // A host that has only just joined may take a while until it takes questions.
        let asked = self.ask_hosts(Show::TraceBegin(Extent::Run), HOST_TRACE_DEADLINE);
        drop(self.raw_answers(asked, 0, 0));
    }

    /// Ends the traces of the run, and returns the records of each host that has answered in time, by its
    /// number and name.
    pub(in crate::node) fn end_run_of_hosts(&self) -> Vec<(String, Vec<u8>)> {
        self.end_of_hosts(Extent::Run).0
    }

    /// Ends the interval, and returns each host's records, by its number and name, and the hosts that have
    /// not answered.
    pub(crate) fn end_trace_of_hosts(&self) -> (Vec<(String, Vec<u8>)>, Vec<String>) {
        self.end_of_hosts(Extent::Interval)
    }

    fn end_of_hosts(&self, extent: Extent) -> (Vec<(String, Vec<u8>)>, Vec<String>) {
        let (mut traces, mut silent) = (Vec::new(), Vec::new());
        let asked = self.ask_hosts(Show::TraceEnd(extent), HOST_TRACE_DEADLINE);
        for (host, answer) in self.raw_answers(asked, MAX_HOST_TRACE, MAX_ALL_HOSTS_TRACES) {
            match answer {
                Some(trace) => traces.push((host.short(), trace)),
                None => silent.push(format!("host {}", host.short())),
            }
        }
        (traces, silent)
    }

    /// Ends the interval without waiting for records, which nobody wants.
    pub(crate) fn drop_trace_of_hosts(&self) {
        // An ask is sent at once, even if its answer is dropped.
        drop(self.ask_hosts(Show::TraceEnd(Extent::Interval), HOST_TRACE_DEADLINE));
    }
}
