//! Asks all processes for their metrics. The control thread of each process answers, so a process whose actor
//! is busy in a handler answers too. A process that does not answer within the deadline is named as silent,
//! and a process that ends is left out.
//!
//! A snapshot for the console asks the same and a little more, and waits less. A worker that still owes its
//! part of an earlier snapshot is not asked again, because its socket would fill, and the snapshot does not
//! wait for it (CON-1).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::ids::ProcessId;
use crate::limits::MAX_ACTORS;
use crate::node::console::NodeSnapshot;
use crate::node::control::Down;
use crate::observe::metrics::{DEADLINE, Metrics, NamedProcess, ProcessMetrics, ProcessState};
use crate::observe::survey::Survey;
use crate::os::monotonic_ns;

use super::node_state::NodeState;
use super::part::Part;
use super::record::WorkerState;
use super::reply::Reply;

/// How long a process has for its part of a snapshot: a command that attaches shows something within 100 ms.
const WAIT_FOR_SNAPSHOT: Duration = Duration::from_millis(90);

/// An answer in progress, and the caller that waits for it.
pub(super) enum PendingAnswer {
    Metrics(Box<Metrics>, Reply<Metrics>),
    Snapshot(Box<NodeSnapshot>, Reply<NodeSnapshot>),
}

/// One question to all processes. Each caller waits for its own, so there are no more than there are waiting
/// threads (MBX-2).
struct Asking {
    round: u64,
    until: Instant,
    waiting: Vec<NamedProcess>,
    asked: PendingAnswer,
}

/// The open questions.
#[derive(Default)]
pub(super) struct Askings {
    last: u64,
    open: Vec<Asking>,
    /// The processes that still owe their part of an earlier snapshot.
    behind: HashSet<ProcessId>,
}

impl Part for Askings {
    fn next_event(&self) -> Option<Instant> {
        self.open.iter().map(|asking| asking.until).min()
    }

    /// Stops waiting for the answers of a worker that has ended.
    fn left(&mut self, process: ProcessId) {
        self.behind.remove(&process);
        self.take(process, None, None, None);
    }
}

impl Askings {
    /// Asks all workers that run. The caller gets its answer when all have answered, or the time is up.
    pub(super) fn ask(&mut self, mut asked: PendingAnswer, node: &mut NodeState) {
        let NodeState { workers, restarts, process_runtime, .. } = node;
        self.last += 1;
        let round = self.last;
        let closely = matches!(asked, PendingAnswer::Snapshot(..));
        let mut waiting = Vec::new();
        for worker in workers.iter_mut().filter(|worker| worker.is_running()) {
            // It still owes its part of an earlier snapshot (CON-1).
            if closely && !self.behind.insert(worker.process) {
                continue;
            }
            waiting.push(NamedProcess {
                host: None,
                process: worker.process,
                name: worker.name.to_string(),
                state: worker.status(0).state.shown(),
                restarts: restarts.of_worker(worker.id).0,
                metrics: ProcessMetrics::default(),
            });
            worker.send(&Down::Metrics { round, closely }, Vec::new());
        }
        asked.begin(monotonic_ns());
        let own = NamedProcess {
            host: None,
            process: ProcessId::NODE,
            name: "node".to_owned(),
            state: ProcessState::Running,
            restarts: 0,
            metrics: process_runtime.metrics(),
        };
        asked.add(own, closely.then(|| process_runtime.survey()));
        let until = Instant::now() + if closely { WAIT_FOR_SNAPSHOT } else { DEADLINE };
        self.open.push(Asking { round, until, waiting, asked });
        self.answer();
    }

    /// Takes a worker's answer; `None`: the answer was not valid (WIRE-1).
    pub(super) fn take(
        &mut self,
        process: ProcessId,
        round: Option<u64>,
        answer: Option<ProcessMetrics>,
        survey: Option<Survey>,
    ) {
        if survey.is_some() {
            self.behind.remove(&process);
        }
        for asking in &mut self.open {
            if round.is_some_and(|round| round != asking.round) {
                continue;
            }
            let Some(at) = asking.waiting.iter().position(|of| of.process == process) else { continue };
            let named = asking.waiting.swap_remove(at);
            if let Some(metrics) = answer.clone() {
                asking.asked.add(NamedProcess { metrics, ..named }, survey.clone());
            }
        }
        self.answer();
    }

    /// Answers the questions that have all their answers, or whose time is up.
    pub(super) fn answer(&mut self) {
        let now = Instant::now();
        let done = self.open.extract_if(.., |asking| asking.waiting.is_empty() || asking.until <= now);
        for Asking { waiting, asked, .. } in done {
            asked.finish(waiting);
        }
    }
}

impl PendingAnswer {
    fn begin(&mut self, at: u64) {
        match self {
            PendingAnswer::Metrics(metrics, _) => metrics.at = at,
            PendingAnswer::Snapshot(snapshot, _) => snapshot.at = at,
        }
    }

    /// Adds a process's answer.
    fn add(&mut self, answered: NamedProcess, survey: Option<Survey>) {
        match self {
            PendingAnswer::Metrics(metrics, _) => metrics.processes.push(answered),
            PendingAnswer::Snapshot(snapshot, _) => {
                snapshot.add(answered.process, answered.metrics, survey.unwrap_or_default())
            }
        }
    }

    /// Sends the answer; the processes `silent` have not answered.
    fn finish(self, silent: Vec<NamedProcess>) {
        match self {
            PendingAnswer::Metrics(mut metrics, reply) => {
                metrics.silent = silent.into_iter().map(|of| of.name).collect();
                metrics.silent.sort();
                metrics.processes.sort_by_key(|named| named.process);
                reply.answer(*metrics);
            }
            PendingAnswer::Snapshot(mut snapshot, reply) => {
                snapshot.finish();
                reply.answer(*snapshot);
            }
        }
    }
}

impl WorkerState {
    /// Returns the state in one word.
    pub(super) fn shown(&self) -> ProcessState {
        match self {
            WorkerState::Starting => ProcessState::Starting,
            WorkerState::Running => ProcessState::Running,
            WorkerState::Ending => ProcessState::Ending,
            WorkerState::Spare { .. } => ProcessState::Spare,
            WorkerState::Restarting { .. } => ProcessState::Restarting,
            WorkerState::Exited { .. } => ProcessState::Ended,
        }
    }
}

/// WIRE-1: returns the metrics if a process can have them.
pub(crate) fn check(metrics: ProcessMetrics) -> Option<ProcessMetrics> {
    if metrics.actors.len() > MAX_ACTORS || !metrics.actors.iter().all(|actor| actor.handler.is_sound()) {
        return None;
    }
    Some(metrics)
}
