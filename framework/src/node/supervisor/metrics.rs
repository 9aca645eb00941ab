//! Asks all processes for their metrics. The control thread of each process answers, so a process whose actor stands in
//! a handler answers too. A process that does not answer within the deadline is named as silent, and one that ends is
//! left out.

use std::time::Instant;

use crate::ids::ProcessId;
use crate::limits::MAX_ACTORS;
use crate::node::control::Down;
use crate::observe::metrics::{DEADLINE, Metrics, NamedProcess, ProcessMetrics};
use crate::os::monotonic_ns;

use super::Reply;
use super::run::State;

/// One question to all. Each caller waits for its own, so there are as many as threads that wait (MBX-2).
pub(super) struct Asking {
    round: u64,
    until: Instant,
    waiting: Vec<(ProcessId, String)>,
    metrics: Metrics,
    reply: Reply<Metrics>,
}

/// The questions that are open.
#[derive(Default)]
pub(super) struct Askings {
    last: u64,
    open: Vec<Asking>,
}

impl Askings {
    pub(super) fn next_event(&self) -> Option<Instant> {
        self.open.iter().map(|asking| asking.until).min()
    }
}

impl State {
    pub(super) fn ask_metrics(&mut self, reply: Reply<Metrics>) {
        self.askings.last += 1;
        let round = self.askings.last;
        let own = NamedProcess {
            process: ProcessId::NODE,
            name: "node".to_owned(),
            metrics: self.process_runtime.metrics(),
        };
        let metrics = Metrics { at: monotonic_ns(), processes: vec![own], silent: Vec::new() };
        let mut waiting = Vec::new();
        for worker in self.workers().filter(|worker| worker.is_running()) {
            waiting.push((worker.process, worker.name.to_string()));
            worker.send(&Down::Metrics { round }, Vec::new());
        }
        let until = Instant::now() + DEADLINE;
        self.askings.open.push(Asking { round, until, waiting, metrics, reply });
        self.answer_metrics();
    }

    /// A worker has answered; `None`: it has ended, or its answer is none (WIRE-1).
    pub(super) fn metrics(&mut self, process: ProcessId, round: Option<u64>, answer: Option<ProcessMetrics>) {
        for asking in &mut self.askings.open {
            if round.is_some_and(|round| round != asking.round) {
                continue;
            }
            let Some(at) = asking.waiting.iter().position(|(of, _)| *of == process) else { continue };
            let (process, name) = asking.waiting.swap_remove(at);
            if let Some(metrics) = answer.clone() {
                asking.metrics.processes.push(NamedProcess { process, name, metrics });
            }
        }
        self.answer_metrics();
    }

    /// Answers the questions that have all their answers, or whose time is up.
    pub(super) fn answer_metrics(&mut self) {
        let now = Instant::now();
        let done =
            self.askings.open.extract_if(.., |asking| asking.waiting.is_empty() || asking.until <= now);
        for Asking { waiting, mut metrics, reply, .. } in done {
            metrics.silent = waiting.into_iter().map(|(_, name)| name).collect();
            metrics.silent.sort();
            metrics.processes.sort_by_key(|named| named.process);
            let _ = reply.try_send(metrics);
        }
    }
}

/// WIRE-1: whether these are metrics that a process can have.
pub(super) fn check(metrics: ProcessMetrics) -> Option<ProcessMetrics> {
    if metrics.actors.len() > MAX_ACTORS || !metrics.actors.iter().all(|actor| actor.handler.is_sound()) {
        return None;
    }
    Some(metrics)
}
