//! What becomes of what ended: who comes back, who does not, and who is told so.

use std::time::Instant;

use crate::ids::{ActorId, ProcessId};
use crate::mailbox::lives::{EndReason, Lifecycle, Obituary};
use crate::node::broker::Delivery;
use crate::node::group::{Group, Supervision};
use crate::node::host::NewActor;
use crate::node::restart::{Budget, Verdict};
use crate::observe::log::Severity;

use super::WorkerId;
use super::record::{Worker, WorkerState};
use super::restarts::{Away, Between, Charge, Fates};
use super::run::State;

impl State {
    /// From now on `actor` comes back when it ends.
    pub(super) fn supervise(
        &mut self,
        actor: ActorId,
        worker: WorkerId,
        made_of: NewActor,
        how: Supervision,
    ) {
        let Supervision { restart, group } = how;
        let charge = Charge { worker, made_of, budget: Budget::new(restart), group, doomed: false, life: 0 };
        self.restarts.charges.insert(actor, charge);
    }

    /// A worker has ended, for `reason`: says what becomes of its actors, and has those come back that do. Returns whether
    /// the worker does.
    pub(super) fn decide(
        &mut self,
        index: usize,
        worker: &Worker,
        reason: &EndReason,
        ended: WorkerState,
        told: &mut Vec<Delivery>,
    ) -> bool {
        let now = Instant::now();
        let mut round = worker.condemned.map(|condemned| condemned.round);
        let mut fates = Fates::default();
        // In a shutdown nothing comes back.
        if self.stopping.is_none() {
            fates = self.restarts.fates(worker.id, reason, worker.condemned, now);
            // Who was condemned with others has its round already: it decides for nobody else.
            if round.is_none() {
                round = self.share_fate(worker, reason, &mut fates, now, told);
            }
        }
        fates.gave_up.iter().for_each(|actor| self.restarts.forget(*actor));
        self.restarts.away.retain(|away| away.worker != worker.id);
        let roster = &self.broker.roster;
        let place = |actor: &ActorId| Some((*actor, roster.actor(*actor)?.place));
        let obituary = Obituary {
            process: worker.process,
            worker: worker.name.to_string(),
            reason: reason.clone(),
            restarting: fates.restarting.iter().filter_map(place).collect(),
            gave_up: fates.gave_up.clone(),
        };
        // Before the roster is told: it knows now which actors were there, and where.
        let mut events = self.events_of(worker.process, reason, &fates);
        // First where its actors are, for those who send; then the events, for those who watch: who hears that an actor is
        // down finds out by a send whether it comes back.
        self.broker.mourn(obituary, told);
        events.drain(..).for_each(|event| self.broker.tell(&event, told));
        let comes_back = !fates.restarting.is_empty();
        if comes_back || !fates.gave_up.is_empty() {
            self.restarts.note_end(worker.id, &worker.name, reason, comes_back);
        }
        if !fates.gave_up.is_empty() {
            let text = format!(
                "worker `{}`: {} of its actors are not restarted any more, their restarts are used up; last: {reason}",
                worker.name,
                fates.gave_up.len()
            );
            self.journal.node(Severity::Error, Some(&worker.name), text);
        }
        if comes_back {
            let text = format!("worker `{}` is restarted in {:?}: {reason}", worker.name, fates.delay);
            self.journal.node(Severity::Warn, Some(&worker.name), text);
            let (worker, name, at) = (worker.id, worker.name.clone(), now + fates.delay);
            self.restarts.between.push(Between { worker, name, slot: index, at, round, ended });
        }
        comes_back
    }

    /// What those are told who watch the actors of a process that ended.
    fn events_of(&self, process: ProcessId, reason: &EndReason, fates: &Fates) -> Vec<Lifecycle> {
        let mut actors = self.broker.roster.those_in(process);
        // Of one that was between two lives in a process that went on, the end of the last one was told.
        actors.extend(fates.gave_up.iter().filter(|actor| !actors.contains(actor)).collect::<Vec<_>>());
        actors.sort();
        let event = |actor| {
            if fates.gave_up.contains(&actor) {
                return Lifecycle::GaveUp { actor, reason: reason.clone() };
            }
            let will_restart = fates.restarting.contains(&actor);
            Lifecycle::Down { actor, reason: reason.clone(), will_restart }
        };
        actors.into_iter().map(event).collect()
    }

    /// A worker that was to come back has no actor left that does.
    pub(super) fn stay_ended(&mut self, id: WorkerId) {
        if !self.restarts.of(id).is_empty() {
            return;
        }
        let Some(at) = self.restarts.between.iter().position(|between| between.worker == id) else { return };
        let Between { ended, .. } = self.restarts.between.swap_remove(at);
        if let Some(last) = self.workers.last_of_mut(id) {
            last.state = ended;
        }
        self.dirty = true;
    }

    /// A supervised actor of a worker that goes on has ended; false if it is not supervised, or the end is final.
    pub(super) fn actor_failed(&mut self, index: usize, actor: ActorId, reason: EndReason) -> bool {
        let Some(worker) = self.workers.at_mut(index) else { return false };
        let Some(charge) = self.restarts.charges.get_mut(&actor) else { return false };
        if !charge.budget.policy().when().after(reason.is_failure()) || self.stopping.is_some() {
            self.restarts.charges.remove(&actor);
            return false;
        }
        let alone = self.broker.roster.actors_of(worker.process) <= 1 && worker.pending.is_empty();
        let group = charge.group.as_ref().is_some_and(Group::is_one) && reason.is_failure();
        if alone || group || charge.doomed {
            // Alone, or in a group that restarts as one: the process ends with it, and what follows is decided when it has.
            worker.retire(reason);
            self.dirty = true;
            return true;
        }
        let now = Instant::now();
        let verdict = charge.budget.spend(&reason, now);
        let (id, name) = (worker.id, worker.name.clone());
        self.restarts.note_end(id, &name, &reason, matches!(verdict, Verdict::Restart(_)));
        let mut told = Vec::new();
        let event = if let Verdict::Restart(delay) = verdict {
            self.broker.roster.detach(actor);
            self.restarts.away.push(Away { actor, worker: id, at: now + delay });
            let text = format!("{actor} in worker `{name}` is restarted in {delay:?}: {reason}");
            self.journal.node(Severity::Warn, Some(&name), text);
            Lifecycle::Down { actor, reason, will_restart: true }
        } else {
            let text = format!("{actor} in worker `{name}` ended, its restarts are used up: {reason}");
            self.journal.node(Severity::Error, Some(&name), text);
            self.restarts.charges.remove(&actor);
            self.broker.given_up(actor, reason.clone());
            Lifecycle::GaveUp { actor, reason }
        };
        self.broker.announce(actor, &mut told);
        self.broker.tell(&event, &mut told);
        self.deliver(told);
        self.dirty = true;
        true
    }

    /// An actor has ended for good, and whoever waits for its next life is told so.
    pub(super) fn actor_given_up(&mut self, actor: ActorId, reason: EndReason) {
        let mut told = Vec::new();
        self.give_up_actor(actor, reason, &mut told);
        self.deliver(told);
    }

    pub(super) fn give_up_actor(&mut self, actor: ActorId, reason: EndReason, told: &mut Vec<Delivery>) {
        self.broker.given_up(actor, reason.clone());
        self.broker.announce(actor, told);
        self.broker.tell(&Lifecycle::GaveUp { actor, reason }, told);
    }

    /// The node shuts down: whoever waits for something to come back is told that it does not.
    pub(super) fn end_restarts(&mut self) {
        self.restarts.between.clear();
        self.restarts.away.clear();
        let mut told = Vec::new();
        let charges = std::mem::take(&mut self.restarts.charges);
        for actor in charges.into_keys() {
            if self.broker.roster.actor(actor).is_some_and(|entry| entry.away) {
                let reason = EndReason::KilledByNode("the node shuts down".to_owned());
                self.give_up_actor(actor, reason, &mut told);
            }
        }
        self.deliver(told);
    }
}
