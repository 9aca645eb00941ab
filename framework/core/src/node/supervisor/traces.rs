//! Tracing: of the whole run, if the program asks for it, and of an interval, if a watcher does.
//!
//! A node that does not trace begins an interval by telling each worker to make a ring, and ends it by telling them to note
//! nothing any more. A worker that becomes ready meanwhile is told, too, before it has an actor. A node that traces anyway
//! has all of it in its rings. One interval at a time: who comes second is refused.
//!
//! **On a crash** of a worker its ring stays here, as it does in the trace of a run. The watcher is the console's concern:
//! when it goes away, the interval ends.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::ids::ProcessId;
use crate::node::control::Down;
use crate::node::limits::MAX_TRACED_RECORDS;
use crate::observe::trace::{Collector, TraceRing};

use super::Reply;
use super::run::State;

/// The intervals that watchers ask for.
#[derive(Default)]
pub(super) struct Traces {
    /// The number of the last one that began.
    last: u64,
    now: Option<Arc<Collector>>,
}

impl State {
    /// Whether something is traced.
    pub(super) fn traces(&self) -> bool {
        self.settings.trace.is_some() || self.traces.now.is_some()
    }

    /// Begins an interval; the answer is where its rings come together.
    pub(super) fn begin_trace(&mut self, reply: &Reply<io::Result<Arc<Collector>>>) {
        let begun = match &self.settings.trace {
            Some((_, all_of_it)) => Ok(Arc::clone(all_of_it)),
            None => self.begin_interval(),
        };
        // Nobody takes it where the console has given up, and that has ended the interval behind this.
        let _ = reply.try_send(begun);
    }

    fn begin_interval(&mut self) -> io::Result<Arc<Collector>> {
        if self.traces.now.is_some() {
            let why = "it is traced already, for a watcher here or for its head; try again when that is over";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
        }
        let processes = 1 + self.workers.iter().count();
        let records = self.settings.trace_records.min(MAX_TRACED_RECORDS / processes);
        let collector = Arc::new(Collector::new(records));
        self.process_runtime.trace(TraceRing(collector.own(false)?));
        self.traces.last += 1;
        let (interval, records) = (self.traces.last, collector.records());
        for worker in self.workers.iter_mut().filter(|worker| worker.is_running()) {
            worker.send(&Down::Trace { interval, records }, Vec::new());
        }
        self.traces.now = Some(Arc::clone(&collector));
        Ok(collector)
    }

    /// Ends the interval, if there is one: nobody notes anything any more.
    pub(super) fn end_trace(&mut self) {
        if self.traces.now.take().is_none() {
            return;
        }
        self.process_runtime.end_trace();
        // Also one that is ending: its last turns are nobody's any more.
        for worker in self.workers.iter_mut() {
            worker.send(&Down::EndTrace, Vec::new());
        }
    }

    /// A worker has become ready: what it does from here on belongs to the interval.
    pub(super) fn trace_newcomer(&mut self, index: usize) {
        let (Some(collector), Some(worker)) = (&self.traces.now, self.workers.at_mut(index)) else { return };
        let (interval, records) = (self.traces.last, collector.records());
        worker.send(&Down::Trace { interval, records }, Vec::new());
    }

    /// A worker that opens has sent the memory that it notes the trace of the run in.
    pub(super) fn trace_joined(&mut self, index: usize, descriptors: Vec<OwnedFd>) {
        let collector = self.settings.trace.as_ref().map(|(_, collector)| Arc::clone(collector));
        self.joined(index, collector, true, descriptors);
    }

    /// A worker has sent the memory that it notes an interval in.
    pub(super) fn interval_joined(&mut self, index: usize, interval: u64, descriptors: Vec<OwnedFd>) {
        if self.traces.now.is_none() && interval <= self.traces.last || interval < self.traces.last {
            // That was over before this came. The memory is closed with its descriptor.
            return;
        }
        let collector = self.traces.now.clone().filter(|_| interval == self.traces.last);
        self.joined(index, collector, false, descriptors);
    }

    fn joined(
        &mut self,
        index: usize,
        collector: Option<Arc<Collector>>,
        is_new: bool,
        descriptors: Vec<OwnedFd>,
    ) {
        let Some(worker) = self.workers.at(index) else { return };
        let (Some(collector), Ok([ring])) = (collector, <[OwnedFd; 1]>::try_from(descriptors)) else {
            let text = "it sent a trace that nobody asked for, or not as it has to be".to_owned();
            return self.complain(index, text);
        };
        let (process, pid) = (worker.process, worker.child.id());
        if let Err(error) = collector.joined(process, worker.title(), pid, is_new, ring) {
            self.complain(index, error.to_string());
        }
    }

    /// A worker's process has ended.
    pub(super) fn trace_ended(&self, process: ProcessId, how: &str) {
        let run = self.settings.trace.as_ref().map(|(_, collector)| collector);
        run.into_iter()
            .chain(&self.traces.now)
            .for_each(|collector| collector.ended(process, how.to_owned()));
    }
}
