//! A shutdown, in three phases: wait until nothing is under way, stop the actors, end the workers. Past its
//! deadline the supervisor kills all workers that are left.

#[cfg(feature = "hosts")]
mod led;

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crate::ids::ProcessId;
use crate::node::control::Down;
use crate::node::process_runtime::Activity;
use crate::node::shutdown::{Party, Phase, Rounds, ShutdownReport, Verdict, WorkerEnd};
use crate::observe::log::Severity;

use super::node_state::NodeState;
use super::record::{Worker, WorkerPhase};
use super::reply::Reply;
use super::run::SupervisorState;
use super::{NodeClosed, RestartReport, SpawnError};

/// How long a shutdown waits for the system to end a killed process before it goes on without it.
const KILL_GRACE: Duration = Duration::from_secs(10);

pub(super) struct Stopping {
    began: Instant,
    deadline: Instant,
    phase: Phase,
    rounds: Rounds,
    ask_at: Option<Instant>,
    drained: bool,
    late: bool,
    /// Whether a neighbour shuts this node down with others, and decides when nothing is under way.
    is_led: bool,
    ends: Vec<WorkerEnd>,
    replies: Vec<Reply<ShutdownReport>>,
}

impl Stopping {
    pub(super) fn next_event(&self) -> Option<Instant> {
        let end = if self.late { self.deadline + KILL_GRACE } else { self.deadline };
        Some(self.ask_at.map_or(end, |ask| ask.min(end)))
    }

    pub(super) fn into_report(
        self,
        restarts: Vec<RestartReport>,
    ) -> (ShutdownReport, Vec<Reply<ShutdownReport>>) {
        let took = self.began.elapsed();
        let report = ShutdownReport { drained: self.drained, workers: self.ends, restarts, took };
        (report, self.replies)
    }

    /// Whether a neighbour decides when nothing is under way.
    pub(super) fn is_led(&self) -> bool {
        self.is_led
    }

    /// Lets a neighbour decide from now on when nothing is under way: this host asks its processes only when
    /// the neighbour asks.
    pub(super) fn be_led(&mut self) {
        (self.ask_at, self.is_led) = (None, true);
    }

    fn follow(&mut self, verdict: Verdict) {
        if self.is_led() {
            return;
        }
        match verdict {
            Verdict::Waiting => {}
            Verdict::AskAgain(after) => self.ask_at = Some(Instant::now() + after),
            Verdict::Quiet => {
                self.drained = true;
                self.ask_at = None;
                self.phase = Phase::StoppingActors;
            }
        }
    }
}

impl SupervisorState {
    /// Begins a shutdown, or joins the one in progress: the earlier deadline holds. While a head shuts all
    /// hosts down, the head's deadline holds, unless this call leaves no time at all.
    pub(super) fn begin_stopping(&mut self, deadline: Instant, reply: Reply<ShutdownReport>) {
        let now = Instant::now();
        if let Some(stopping) = &mut self.node.stopping {
            if deadline <= now || !stopping.is_led() {
                stopping.deadline = stopping.deadline.min(deadline);
            }
            stopping.replies.push(reply);
            return;
        }
        self.node.stopping = Some(Stopping {
            began: now,
            deadline,
            phase: Phase::Draining,
            rounds: Rounds::new(self.node.workers.deaths),
            ask_at: Some(now),
            drained: false,
            late: false,
            is_led: false,
            ends: Vec::new(),
            replies: vec![reply],
        });
        self.node.shared.stopping.send_replace(true);
        // First the restarts end, so that nothing comes back from here on. Then the actors that produce
        // messages, in this process and in the workers, hear of the shutdown, before the first round of
        // questions: one that goes on producing would keep the first phase from ending.
        self.end_restarts();
        self.neighbours.shutdown_begins(&mut self.node);
        self.spares.end_all(&mut self.node);
        self.node.process_runtime.stopping();
        for worker in self.node.workers.iter_mut() {
            match std::mem::replace(&mut worker.phase, WorkerPhase::Ending) {
                WorkerPhase::Greeting { asker, .. } | WorkerPhase::Opening { asker, .. } => {
                    asker.answer(Err(SpawnError::Closed(NodeClosed::ShuttingDown)));
                    worker.end.killed = Some(Phase::Starting);
                    worker.give_up("the node shut down before it was ready".to_owned());
                }
                WorkerPhase::Running => {
                    worker.phase = WorkerPhase::Running;
                    worker.send(&Down::Stopping, Vec::new());
                }
                WorkerPhase::Ending => {}
            }
        }
        self.node.dirty = true;
    }

    /// Takes the next step of the shutdown, and returns whether the shutdown is complete.
    pub(super) fn advance_stopping(&mut self) -> bool {
        let now = Instant::now();
        // The deadline before anything else: no phase outlasts it.
        if self.node.stopping.as_ref().is_some_and(|stopping| stopping.deadline <= now && !stopping.late) {
            self.node.kill_all(now);
        }
        self.ask_activity(now);
        let Some(stopping) = &self.node.stopping else { return false };
        let (phase, late, give_up) = (stopping.phase, stopping.late, stopping.deadline + KILL_GRACE);
        let alone = self.node.workers.iter_mut().next().is_none();
        if late && !alone && give_up <= now {
            self.node.leave_behind();
            return true;
        }
        // Without workers the node's own process may still have messages under way to itself.
        if alone {
            return late || phase != Phase::Draining;
        }
        if phase == Phase::StoppingActors && !late {
            if !self.neighbours.may_stop_actors(&mut self.node) {
                return false;
            }
            self.node.stop_actors();
        }
        false
    }

    fn ask_activity(&mut self, now: Instant) {
        let Some(stopping) = &mut self.node.stopping else { return };
        if stopping.phase != Phase::Draining || stopping.late || stopping.ask_at.is_none_or(|at| at > now) {
            return;
        }
        stopping.ask_at = None;
        self.begin_round();
    }

    /// Asks all processes once more whether anything is under way.
    pub(super) fn begin_round(&mut self) {
        let others = self.neighbours.parties(&self.node);
        let Some(stopping) = &mut self.node.stopping else { return };
        // The round knows all processes that are asked, this one among them, before the first answer can
        // come.
        let mut workers: Vec<_> = self.node.workers.iter_mut().filter(|worker| worker.is_running()).collect();
        let asked = workers.iter().map(|worker| worker.process).chain([ProcessId::NODE]);
        let round = stopping.rounds.begin(asked.map(Party::from).chain(others));
        let mut own = self.node.process_runtime.activity();
        for worker in &mut workers {
            // An actor that is being created may send before the worker says that it has started.
            own.busy |= !worker.pending.is_empty();
            worker.send(&Down::Probe { round }, Vec::new());
        }
        let left = stopping.deadline.saturating_duration_since(Instant::now());
        self.answered(|rounds| rounds.answer(ProcessId::NODE, round, own));
        self.neighbours.ask_parties(&mut self.node, round, left);
    }

    pub(super) fn activity(&mut self, process: ProcessId, round: u64, activity: Activity) {
        self.answered(|rounds| rounds.answer(process, round, activity));
    }

    /// Takes an answer of a process, or the fact that a process will never answer.
    fn answered(&mut self, answer: impl FnOnce(&mut Rounds) -> Verdict) {
        self.node.take_answer(answer);
        self.neighbours.has_answered(&mut self.node);
    }

    /// Notes the end of a worker's process in the report of the shutdown, if one is in progress.
    pub(super) fn note_end(&mut self, worker: &Worker, exit: Option<ExitStatus>) {
        // A spare had nothing to do and exchanged no message, so one that ended in time is left out.
        if worker.spare.is_some() && worker.end.killed.is_none() {
            return;
        }
        if let Some(stopping) = &mut self.node.stopping {
            stopping.ends.push(end_of(worker, exit));
        }
        self.answered(|rounds| rounds.left(worker.process));
    }
}

impl NodeState {
    /// As [`SupervisorState::answered`], for a caller that tells the neighbours itself.
    pub(super) fn take_answer(&mut self, answer: impl FnOnce(&mut Rounds) -> Verdict) {
        if let Some(stopping) = self.stopping.as_mut().filter(|stopping| stopping.phase == Phase::Draining) {
            let verdict = answer(&mut stopping.rounds);
            stopping.follow(verdict);
        }
    }

    /// Stops the actors of all workers, then ends the workers. No worker exits before all actors have
    /// stopped, so the actors' last messages still find their addresses.
    fn stop_actors(&mut self) {
        for worker in
            self.workers.iter_mut().filter(|worker| worker.is_running() && !worker.actors_stop.is_told)
        {
            worker.actors_stop.is_told = true;
            worker.send(&Down::StopActors, Vec::new());
        }
        if self.workers.iter_mut().any(|worker| worker.is_running() && !worker.actors_stop.is_done) {
            return;
        }
        for worker in self.workers.iter_mut().filter(|worker| worker.is_running()) {
            worker.end.told_to_exit = true;
            worker.send(&Down::Exit { comes_back: false }, Vec::new());
        }
        if let Some(stopping) = &mut self.stopping {
            stopping.phase = Phase::Exiting;
        }
        self.dirty = true;
    }

    /// Goes on without the workers that were killed and do not end.
    fn leave_behind(&mut self) {
        let Some(stopping) = &mut self.stopping else { return };
        for worker in self.workers.iter() {
            let text =
                format!("worker `{}` was killed and does not end; is it stuck in a driver?", worker.name);
            self.journal.node(Severity::Error, Some(&worker.name), text);
            stopping.ends.push(end_of(worker, None));
        }
    }

    /// Kills every worker, because the deadline has passed or because a caller asked for it.
    pub(super) fn kill_all(&mut self, now: Instant) {
        if let Some(stopping) = &mut self.stopping {
            stopping.late = true;
            stopping.deadline = stopping.deadline.min(now);
        }
        let phase = self.stopping.as_ref().map(|stopping| stopping.phase);
        for worker in self.workers.iter_mut() {
            let text = match phase {
                Some(phase) => {
                    let phase = *worker.end.killed.get_or_insert(phase);
                    format!("the time for the shutdown was up {phase}")
                }
                None => "the node was asked to kill all its workers".to_owned(),
            };
            worker.give_up(text);
        }
    }
}

fn end_of(worker: &Worker, exit: Option<ExitStatus>) -> WorkerEnd {
    WorkerEnd { worker: worker.id, name: worker.name.to_string(), exit, killed: worker.end.killed }
}
