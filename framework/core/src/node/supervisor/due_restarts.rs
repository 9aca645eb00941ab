//! Restarts the workers and actors that have served their backoff.
//!
//! A worker waits for four things. First, its backoff. Second, if it was killed, the answers of others on its
//! GPU whether the GPU still works (`gpu_probes`). Third, the ends of all other workers of its round
//! (`groups`), on other hosts too. Fourth, a slot: its old slot is free when everybody has read the last
//! messages of its last life (`node/reclaim`), because readers keep cursors by slot. A worker with a spare
//! needs no slot (`spares`). An actor that failed in a worker that goes on waits for its backoff only.

use std::time::{Duration, Instant};

use crate::actor::{NewActor, StartActor};
use crate::ids::{ActorId, ProcessId};
use crate::node::control::Down;
use crate::node::restart::Restart;
use crate::observe::log::Severity;
use crate::os::remedy_of_start;
use crate::transport::control_channel::Location;
use crate::transport::lifecycle::{EndReason, Lifecycle};

use super::node_state::NodeState;
use super::record::{Asker, Pending, WorkerPhase};
use super::restarts::Between;
use super::run::SupervisorState;
use super::spares::Spares;

/// How long past its backoff a worker waits for its old slot. The slot is free when everybody has read the
/// last messages of its last life. A process that has not read them by then is stopped or stuck, and the
/// worker takes another slot.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

impl SupervisorState {
    /// Returns when the next restart is due.
    pub(super) fn next_restart(&self) -> Option<Instant> {
        let now = Instant::now();
        let workers = self.node.restarts.between.iter().filter_map(|next| {
            // Past both times only an event can help: a process that reads the last messages, or a slot that
            // becomes free.
            [next.at, next.at + DRAIN_GRACE]
                .into_iter()
                .find(|at| *at > now || self.slot_for(next, now).is_some())
        });
        workers.chain(self.node.restarts.away.iter().map(|next| next.at)).min()
    }

    /// Restarts the workers and actors that have served their backoff.
    pub(super) fn restart_due(&mut self) {
        let now = Instant::now();
        while let Some(at) = self.node.restarts.away.iter().position(|next| next.at <= now) {
            let next = self.node.restarts.away.swap_remove(at);
            // A worker that is ending is not running: when it has ended, `decide` decides about this actor
            // together with all others in it.
            let running =
                |index: &usize| self.node.workers.at(*index).is_some_and(|worker| worker.is_running());
            if let Some(index) = self.node.workers.slot_of(next.worker).filter(running) {
                self.node.start_again(index, next.actor);
            }
        }
        // One at a time, with a new search each time: a launch takes a slot that another worker may have
        // wanted.
        let ready = |state: &SupervisorState| {
            let mut all = state.node.restarts.between.iter().enumerate();
            all.find_map(|(at, next)| Some((at, state.slot_for(next, now)?)))
        };
        while let Some((at, slot)) = ready(self) {
            let next = self.node.restarts.between.swap_remove(at);
            self.launch_again(next, slot);
        }
    }

    /// Returns the slot for the next life of a worker, or `None` if it is too early. Once everybody has read
    /// the last messages of the last life, that is the slot of a spare, or the old slot; if a process does
    /// not read them in time, it is another slot. A spare waits for the reading too, although it has another
    /// slot: a process that hears of an actor's next life must have read all of the last.
    fn slot_for(&self, next: &Between, now: Instant) -> Option<usize> {
        if next.at > now
            || self.node.is_ending(&next.rounds)
            || self.gpu_probes.waits_for_gpus(&self.node, next.worker)
        {
            return None;
        }
        if self.neighbours.is_held(&self.node, next.worker) {
            return None;
        }
        let is_late = next.at + DRAIN_GRACE <= now;
        if (is_late || self.node.is_reclaimed(next.slot))
            && let Some(spare) = Spares::spare_for(&self.node, next.worker)
        {
            return Some(spare);
        }
        let free = |slot: usize| {
            self.node.workers.slot(slot).is_some_and(|slot| slot.worker.is_none())
                && self.node.is_reclaimed(slot)
        };
        if free(next.slot) {
            return Some(next.slot);
        }
        if !is_late {
            return None;
        }
        // An unused slot comes first, so that the status of dead workers stays as long as possible. A slot
        // that another worker's next life waits for is never taken.
        if let Some(unused) = self.node.workers.next_unused() {
            return Some(unused);
        }
        (1..self.node.workers.slots().len()).find(|&slot| free(slot) && !self.node.restarts.reserves(slot))
    }

    fn launch_again(&mut self, next: Between, slot: usize) {
        if self.node.workers.at(slot).is_some() {
            if self.spares.take_over(&mut self.node, slot, next) {
                self.worker_is_back(slot);
            }
            return;
        }
        self.node.workers.open_slot(slot);
        let deadline = Instant::now() + self.node.settings.start_deadline;
        let phase = WorkerPhase::Greeting { deadline, asker: Asker::Restart };
        // List the worker only once: the old slot still has the status of its last life.
        if slot != next.slot
            && let Some(last) = self.node.workers.slot_mut(next.slot)
        {
            last.last = None;
        }
        if let Err(source) = self.node.launch(slot, next.worker, &next.name, phase, None) {
            // The system may have room for it later. A failed launch is charged like a death, so that
            // launches that always fail come to an end.
            let reason = EndReason::CreateFailed(format!(
                "its process could not be started: {source}{}",
                remedy_of_start(&source)
            ));
            let decisions = self.node.restarts.decisions(next.worker, &reason, None, Instant::now());
            self.node.restarts.note_end(next.worker, &next.name, &reason, !decisions.restarting.is_empty());
            let mut told = Vec::new();
            for actor in decisions.gave_up {
                self.node.restarts.forget(actor);
                self.node.broker.give_up(actor, reason.clone(), &mut told);
            }
            self.node.deliver(told);
            if !decisions.restarting.is_empty() {
                let at = Instant::now() + decisions.delay; // its companions, if any, have all ended
                self.node.restarts.between.push(Between { at, slot, ..next });
            }
        }
        self.node.dirty = true;
    }

    /// Starts the actors of a worker that was started again and is ready.
    pub(super) fn worker_is_back(&mut self, index: usize) {
        let Some(worker) = self.node.workers.at(index) else { return };
        let (id, name, process) = (worker.id, worker.name.clone(), worker.process);
        self.node.journal.node(Severity::Info, Some(&name), format!("worker `{name}` is back, as {process}"));
        self.spares.pause(id);
        for actor in self.node.restarts.of(id) {
            self.node.start_again(index, actor);
        }
        // It may have been let go while it started.
        self.for_actors.leave_if_empty(&mut self.node, index);
    }
}

impl NodeState {
    /// Whether everybody has read the last messages of the last life in a slot.
    pub(super) fn is_reclaimed(&self, slot: usize) -> bool {
        let life = self.workers.slot(slot).and_then(|known| known.next_life.checked_sub(1));
        let process = life.and_then(|life| ProcessId::new(u16::try_from(slot).ok()?, life));
        process.is_none_or(|process| self.broker.is_reclaimed(process))
    }

    fn start_again(&mut self, index: usize, actor: ActorId) {
        let Some(worker) = self.workers.at_mut(index) else { return };
        let Some(supervised) = self.restarts.supervised.get_mut(&actor) else { return };
        let location = match self.broker.roster.move_to(actor, worker.process) {
            Ok(Some(location)) => location,
            Ok(None) => return,
            Err(error) => {
                self.actor_failed(index, actor, EndReason::CreateFailed(error.to_string()));
                return;
            }
        };
        // Counted only now that the actor has a location: a life that could not begin has no number.
        supervised.life += 1;
        worker.uses(supervised.made_of.device);
        let start =
            start_of(actor, location, &supervised.made_of, supervised.life, supervised.budget.policy());
        let type_name = start.made_of.type_name.clone();
        worker.pending.insert(actor, Pending { location, type_name, ended: None, first: None });
        worker.send(&Down::Start(start), Vec::new());
        self.dirty = true;
    }

    /// Announces an actor that has started in another life.
    pub(super) fn actor_is_back(&mut self, actor: ActorId) {
        let life = self.restarts.supervised.get(&actor).map(|supervised| supervised.life);
        self.with_broker(|broker, told| {
            broker.roster.started(actor);
            broker.announce(actor, told);
            // After `announce`: a watcher that hears of `Up` can reach the actor at once.
            if let Some(incarnation) = life {
                broker.tell(&Lifecycle::Up { actor, incarnation }, told);
            }
        });
    }
}

/// Makes the message that tells a worker to start an actor.
pub(super) fn start_of(
    actor: ActorId,
    location: Location,
    made_of: &NewActor,
    life: u32,
    policy: Restart,
) -> StartActor {
    StartActor { actor, location, made_of: made_of.clone(), life, restarts: policy.when() }
}
