//! Tracing: of the whole run, if the program asks for it, and of an interval, if a watcher asks.
//!
//! A node that does not trace its run begins an interval by telling each worker to make a ring, and ends it
//! by telling the workers to stop recording. It also tells a worker that becomes ready meanwhile, before that
//! worker has an actor. A node that traces its run has the interval in its rings already. There is one
//! interval at a time: a second watcher is refused.
//!
//! **On a crash** of a worker its ring stays here, as it does in the trace of a run. The console looks after
//! the watcher: when the watcher goes away, the interval ends.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::ids::ProcessId;
use crate::node::control::Down;
use crate::node::limits::MAX_TRACED_RECORDS;
use crate::node::watcher::watcher;
use crate::observe::log::Severity;
use crate::observe::trace::{Collector, TraceRing};

use super::node_state::NodeState;
use super::reply::Reply;
use super::run::SupervisorState;

/// The intervals that watchers ask for.
#[derive(Default)]
pub(super) struct Traces {
    /// The number of the last interval that began.
    last: u64,
    now: Option<Arc<Collector>>,
}

impl SupervisorState {
    /// Writes the trace of the run, if there is one, and logs that.
    pub(super) fn write_run(&mut self) {
        let Some((path, run)) = self.node.settings.trace.take() else { return };
        let Some(others) = self.neighbours.traces_of_others(&mut self.node, &path) else {
            let text = "what this host has traced is in the trace of the head".to_owned();
            return self.node.journal.node(Severity::Info, None, text);
        };
        match watcher().write_trace(&path, &run.so_far(), &others) {
            Ok(summary) => {
                let text = format!("a trace was written to {}: {summary}", path.display());
                self.node.journal.node(Severity::Info, None, text);
            }
            Err(error) => self.node.journal.node(Severity::Error, None, error.to_string()),
        }
    }
}

impl Traces {
    /// Whether this node traces now.
    pub(super) fn are_on(&self, node: &NodeState) -> bool {
        node.settings.trace.is_some() || self.now.is_some()
    }

    /// Begins an interval; the answer is the collector of its rings.
    pub(super) fn begin(&mut self, node: &mut NodeState, reply: &Reply<io::Result<Arc<Collector>>>) {
        let begun = match &node.settings.trace {
            Some((_, all_of_it)) => Ok(Arc::clone(all_of_it)),
            None => self.begin_interval(node),
        };
        // If the console has given up, nobody takes the answer, and the console's command behind this one
        // ends the interval.
        reply.answer(begun);
    }

    fn begin_interval(&mut self, node: &mut NodeState) -> io::Result<Arc<Collector>> {
        if self.now.is_some() {
            let why = "it is traced already, for a watcher here or for its head; try again when that is over";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
        }
        let processes = 1 + node.workers.iter().count();
        let records = node.settings.trace_records.min(MAX_TRACED_RECORDS / processes);
        let collector = Arc::new(Collector::new(records));
        node.process_runtime.trace(TraceRing(collector.own(false)?));
        self.last += 1;
        let (interval, records) = (self.last, collector.records());
        for worker in node.workers.iter_mut().filter(|worker| worker.is_running()) {
            worker.send(&Down::Trace { interval, records }, Vec::new());
        }
        self.now = Some(Arc::clone(&collector));
        Ok(collector)
    }

    /// Ends the interval, if there is one: all processes stop recording.
    pub(super) fn end(&mut self, node: &mut NodeState) {
        if self.now.take().is_none() {
            return;
        }
        node.process_runtime.end_trace();
        // A worker that is ending is told too: its last turns belong to no interval.
        for worker in node.workers.iter_mut() {
            worker.send(&Down::EndTrace, Vec::new());
        }
    }

    /// Includes a worker that has become ready in the interval: its work from here on is recorded.
    pub(super) fn newcomer(&mut self, node: &mut NodeState, index: usize) {
        let (Some(collector), Some(worker)) = (&self.now, node.workers.at_mut(index)) else { return };
        let (interval, records) = (self.last, collector.records());
        worker.send(&Down::Trace { interval, records }, Vec::new());
    }

    /// Takes the ring in which a worker that opens records the trace of the run.
    pub(super) fn run_joined(&mut self, node: &mut NodeState, index: usize, descriptors: Vec<OwnedFd>) {
        let collector = node.settings.trace.as_ref().map(|(_, collector)| Arc::clone(collector));
        self.joined(node, index, collector, true, descriptors);
    }

    /// Takes the ring in which a worker records an interval.
    pub(super) fn interval_joined(
        &mut self,
        node: &mut NodeState,
        index: usize,
        interval: u64,
        descriptors: Vec<OwnedFd>,
    ) {
        if self.now.is_none() && interval <= self.last || interval < self.last {
            // That interval was over before this came. The ring closes with its descriptor.
            return;
        }
        let collector = self.now.clone().filter(|_| interval == self.last);
        self.joined(node, index, collector, false, descriptors);
    }

    fn joined(
        &mut self,
        node: &mut NodeState,
        index: usize,
        collector: Option<Arc<Collector>>,
        is_new: bool,
        descriptors: Vec<OwnedFd>,
    ) {
        let Some(worker) = node.workers.at(index) else { return };
        let (Some(collector), Ok([ring])) = (collector, <[OwnedFd; 1]>::try_from(descriptors)) else {
            let text = "it sent a trace that nobody asked for, or not as it has to be".to_owned();
            return node.complain(index, text);
        };
        let (process, pid) = (worker.process, worker.child.id());
        if let Err(error) = collector.joined(process, worker.title(), pid, is_new, ring) {
            node.complain(index, error.to_string());
        }
    }

    /// Notes in the traces that a worker's process has ended.
    pub(super) fn ended(&self, node: &NodeState, process: ProcessId, how: &str) {
        let run = node.settings.trace.as_ref().map(|(_, collector)| collector);
        run.into_iter().chain(&self.now).for_each(|collector| collector.ended(process, how.to_owned()));
    }
}
