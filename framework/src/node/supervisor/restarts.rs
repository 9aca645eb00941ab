//! Bringing back what ended: the actors with a restart policy, and the workers that they live in.
//!
//! A worker that ends is started again, as the same worker in another process, if one of its actors comes back; those of
//! its actors that have a policy are made anew in it, from their arguments. An actor that fails in a worker that goes on
//! is made anew there if others live in it too. If it was alone, its process is ended and started again: a panic can
//! leave behind a lock that is held, a stream that waits, or a context of the driver that is lost, and nothing of that
//! reaches the next life.
//!
//! Nothing else is touched, unless it shares the fate of what ended (`groups`). Everything is counted and timed here, on
//! the supervisor's own loop.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ids::{ActorId, ProcessId};
use crate::limits::MAX_PROCESSES;
use crate::mailbox::lives::{EndReason, Lifecycle, Obituary};
use crate::mailbox::port::Place;
use crate::node::broker::Delivery;
use crate::node::control::Down;
use crate::node::group::{Group, Supervision};
use crate::node::host::{NewActor, StartActor};
use crate::node::limits::MAX_ENDS;
use crate::node::restart::{Budget, Restart, Verdict};
use crate::observe::log::Severity;

use super::groups::Condemned;
use super::record::{Asker, Pending, Stage, Worker, WorkerState};
use super::run::{Slot, State};
use super::{RestartReport, WorkerId};

/// How long a worker waits for its slot: until everybody has read what its last life had posted. Those who have not by
/// then are stopped, or stuck.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// An actor that comes back when it ends.
pub(super) struct Charge {
    worker: WorkerId,
    /// What it is made of, each time.
    made_of: NewActor,
    budget: Budget,
    group: Option<Group>,
    /// Its group was given up: the end of its present life is final.
    doomed: bool,
    /// The number of its present or last life.
    life: u32,
}

/// A worker between two lives.
struct Between {
    worker: WorkerId,
    name: Arc<str>,
    /// Where it was; it goes there again, if it can.
    slot: usize,
    at: Instant,
    /// Ended together with others, which it waits for.
    round: Option<u64>,
    /// How its last life ended.
    ended: WorkerState,
}

/// An actor between two lives in a worker that goes on.
struct Away {
    actor: ActorId,
    worker: WorkerId,
    at: Instant,
}

/// How the lives of a worker ended.
struct History {
    name: String,
    restarts: u32,
    ends: VecDeque<EndReason>,
}

/// Everything that is to come back.
#[derive(Default)]
pub(super) struct Restarts {
    charges: HashMap<ActorId, Charge>,
    between: Vec<Between>,
    away: Vec<Away>,
    histories: HashMap<WorkerId, History>,
    pub(super) last_round: u64,
}

/// What becomes of the actors of a worker that ended.
#[derive(Default)]
pub(super) struct Fates {
    pub(super) restarting: Vec<ActorId>,
    pub(super) gave_up: Vec<ActorId>,
    pub(super) delay: Duration,
}

impl Restarts {
    /// The supervised actors of a worker.
    fn of(&self, worker: WorkerId) -> Vec<ActorId> {
        let mut actors: Vec<_> =
            self.charges.iter().filter(|(_, charge)| charge.worker == worker).map(|(id, _)| *id).collect();
        actors.sort();
        actors
    }

    /// Which of a worker's actors come back after it ended for `reason`, and when.
    fn fates(
        &mut self,
        worker: WorkerId,
        reason: &EndReason,
        condemned: Option<Condemned>,
        now: Instant,
    ) -> Fates {
        let mut fates = Fates::default();
        for actor in self.of(worker) {
            let Some(charge) = self.charges.get_mut(&actor) else { continue };
            let verdict = match condemned {
                _ if charge.doomed => Verdict::UsedUp,
                // For what others did, nothing is counted.
                Some(condemned) if charge.budget.policy().when().after(true) => {
                    Verdict::Restart(condemned.at.saturating_duration_since(now))
                }
                Some(_) => Verdict::Final,
                None => charge.budget.spend(reason, now),
            };
            match verdict {
                Verdict::Restart(delay) => {
                    fates.delay = fates.delay.max(delay);
                    fates.restarting.push(actor);
                }
                Verdict::UsedUp => fates.gave_up.push(actor),
                Verdict::Final => {
                    self.charges.remove(&actor);
                }
            }
        }
        fates
    }

    /// The groups that restart as one because of this end, and those that are given up.
    pub(super) fn groups_hit(&self, fates: &Fates, reason: &EndReason) -> (Vec<Group>, Vec<Group>) {
        let of = |actors: &[ActorId]| {
            let mut groups: Vec<Group> = Vec::new();
            for actor in actors {
                let group = self.charges.get(actor).and_then(|charge| charge.group.as_ref());
                if let Some(group) = group.filter(|group| group.is_one() && !groups.contains(group)) {
                    groups.push(group.clone());
                }
            }
            groups
        };
        if !reason.is_failure() {
            return (Vec::new(), Vec::new());
        }
        let given_up = of(&fates.gave_up);
        let mut hit = of(&fates.restarting);
        hit.extend(given_up.iter().filter(|group| !hit.contains(group)).cloned().collect::<Vec<_>>());
        (hit, given_up)
    }

    /// The groups that restart as one in which these workers have actors.
    pub(super) fn groups_of(&self, workers: &HashSet<WorkerId>) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let charges = self.charges.values().filter(|charge| workers.contains(&charge.worker));
        for group in charges.filter_map(|charge| charge.group.as_ref()).filter(|group| group.is_one()) {
            if !groups.contains(group) {
                groups.push(group.clone());
            }
        }
        groups
    }

    /// The workers in which these groups have actors.
    pub(super) fn workers_in(&self, groups: &[Group]) -> Vec<WorkerId> {
        let is_in = |charge: &&Charge| charge.group.as_ref().is_some_and(|group| groups.contains(group));
        self.charges.values().filter(is_in).map(|charge| charge.worker).collect()
    }

    pub(super) fn members(&self, group: &Group) -> Vec<(ActorId, WorkerId)> {
        let members = self.charges.iter().filter(|(actor, _)| self.is_in(**actor, group));
        members.map(|(actor, charge)| (*actor, charge.worker)).collect()
    }

    pub(super) fn is_in(&self, actor: ActorId, group: &Group) -> bool {
        self.charges.get(&actor).is_some_and(|charge| charge.group.as_ref() == Some(group))
    }

    /// The end of its present life is final.
    pub(super) fn doom(&mut self, actor: ActorId) {
        if let Some(charge) = self.charges.get_mut(&actor) {
            charge.doomed = true;
        }
    }

    /// It does not come back.
    pub(super) fn forget(&mut self, actor: ActorId) {
        self.charges.remove(&actor);
    }

    fn note_end(&mut self, worker: WorkerId, name: &str, reason: &EndReason, restarts: bool) {
        let history = self.histories.entry(worker).or_insert_with(|| History {
            name: name.to_owned(),
            restarts: 0,
            ends: VecDeque::new(),
        });
        history.restarts += u32::from(restarts);
        if history.ends.len() >= MAX_ENDS {
            history.ends.pop_front();
        }
        history.ends.push_back(reason.clone());
    }

    /// How often a worker, or an actor in it, was restarted, and why that was last.
    pub(super) fn of_worker(&self, worker: WorkerId) -> (u32, Option<EndReason>) {
        self.histories.get(&worker).map_or((0, None), |past| (past.restarts, past.ends.back().cloned()))
    }

    /// Everything that ended unasked, by worker.
    pub(super) fn report(&self) -> Vec<RestartReport> {
        let mut report: Vec<_> = self
            .histories
            .iter()
            .map(|(worker, past)| RestartReport {
                worker: *worker,
                name: past.name.clone(),
                restarts: past.restarts,
                ends: past.ends.iter().cloned().collect(),
            })
            .collect();
        report.sort_by_key(|past| past.worker);
        report
    }

    /// How the last life of a worker ended that is between two.
    pub(super) fn last_end(&self, worker: WorkerId) -> Option<WorkerState> {
        self.between.iter().find(|between| between.worker == worker).map(|between| between.ended.clone())
    }

    /// Whether a slot waits for the next life of its worker.
    pub(super) fn reserves(&self, slot: usize) -> bool {
        self.between.iter().any(|between| between.slot == slot)
    }
}

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
        if self.stopping.is_none() {
            fates = self.restarts.fates(worker.id, reason, worker.condemned, now);
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
        let mut events = self.events_of(worker.process, reason, &fates);
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
        let mut actors = self.broker.roster.started_in(process);
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
        let last = self.slots.iter_mut().filter_map(|slot| slot.last.as_mut()).find(|last| last.worker == id);
        if let Some(last) = last {
            last.state = ended;
        }
        self.dirty = true;
    }

    /// A supervised actor of a worker that goes on has ended; false if it is not supervised, or the end is final.
    pub(super) fn actor_failed(&mut self, index: usize, actor: ActorId, reason: EndReason) -> bool {
        let Some(worker) = self.slots[index].worker.as_mut() else { return false };
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

    /// When something is to come back that can.
    pub(super) fn next_restart(&self) -> Option<Instant> {
        let now = Instant::now();
        let workers = self.restarts.between.iter().filter_map(|next| {
            // Behind both times there is only an event: a worker that drains, or a slot that becomes free.
            [next.at, next.at + DRAIN_GRACE]
                .into_iter()
                .find(|at| *at > now || self.slot_for(next, now).is_some())
        });
        workers.chain(self.restarts.away.iter().map(|next| next.at)).min()
    }

    /// Brings back whatever it is time for.
    pub(super) fn restart_due(&mut self) {
        let now = Instant::now();
        while let Some(at) = self.restarts.away.iter().position(|next| next.at <= now) {
            let next = self.restarts.away.swap_remove(at);
            let running =
                |slot: &Slot| slot.worker.as_ref().is_some_and(|w| w.id == next.worker && w.is_running());
            if let Some(index) = self.slots.iter().position(running) {
                self.start_again(index, next.actor);
            }
        }
        let ready = |state: &State| {
            let mut all = state.restarts.between.iter().enumerate();
            all.find_map(|(at, next)| Some((at, state.slot_for(next, now)?)))
        };
        while let Some((at, slot)) = ready(self) {
            let next = self.restarts.between.swap_remove(at);
            self.launch_again(next, slot);
        }
    }

    /// The slot for the next life of a worker, if it is time for it: the same as before, once everybody has read what the
    /// last life had posted; another where somebody does not read.
    fn slot_for(&self, next: &Between, now: Instant) -> Option<usize> {
        if next.at > now || self.is_ending(next.round) {
            return None;
        }
        let free = |slot: usize| {
            self.slots.get(slot).is_some_and(|slot| slot.worker.is_none()) && self.is_buried(slot)
        };
        if free(next.slot) {
            return Some(next.slot);
        }
        if next.at + DRAIN_GRACE > now {
            return None;
        }
        if self.slots.len() < MAX_PROCESSES {
            return Some(self.slots.len());
        }
        (1..self.slots.len()).find(|&slot| free(slot) && !self.restarts.reserves(slot))
    }

    /// Whether everybody has read what the last life in a slot had posted.
    pub(super) fn is_buried(&self, slot: usize) -> bool {
        let life = self.slots.get(slot).and_then(|known| known.next_life.checked_sub(1));
        let process = life.and_then(|life| ProcessId::new(u16::try_from(slot).ok()?, life));
        process.is_none_or(|process| self.broker.is_buried(process))
    }

    fn launch_again(&mut self, next: Between, slot: usize) {
        if slot == self.slots.len() {
            self.slots.push(Slot::default());
        }
        let deadline = Instant::now() + self.settings.start_deadline;
        let stage = Stage::Greeting { deadline, asker: Asker::Restart };
        if slot != next.slot
            && let Some(last) = self.slots.get_mut(next.slot)
        {
            last.last = None;
        }
        if let Err(source) = self.launch(slot, next.worker, &next.name, stage) {
            // The system may have room for it later; the budget and the backoff are as for a death.
            let reason = EndReason::CreateFailed(format!("its process could not be started: {source}"));
            let fates = self.restarts.fates(next.worker, &reason, None, Instant::now());
            self.restarts.note_end(next.worker, &next.name, &reason, !fates.restarting.is_empty());
            let mut told = Vec::new();
            for actor in fates.gave_up {
                self.restarts.forget(actor);
                self.broker.given_up(actor, reason.clone());
                self.broker.announce(actor, &mut told);
                self.broker.tell(&Lifecycle::GaveUp { actor, reason: reason.clone() }, &mut told);
            }
            self.deliver(told);
            if !fates.restarting.is_empty() {
                let at = Instant::now() + fates.delay; // its companions, if any, have all ended
                self.restarts.between.push(Between { at, slot, ..next });
            }
        }
        self.dirty = true;
    }

    /// A worker that was started again is ready: its actors follow.
    pub(super) fn worker_is_back(&mut self, index: usize) {
        let Some(worker) = self.slots[index].worker.as_ref() else { return };
        let (id, name, process) = (worker.id, worker.name.clone(), worker.process);
        self.journal.node(Severity::Info, Some(&name), format!("worker `{name}` is back, as {process}"));
        for actor in self.restarts.of(id) {
            self.start_again(index, actor);
        }
    }

    fn start_again(&mut self, index: usize, actor: ActorId) {
        let Some(worker) = self.slots[index].worker.as_mut() else { return };
        let Some(charge) = self.restarts.charges.get_mut(&actor) else { return };
        let place = match self.broker.roster.move_to(actor, worker.process) {
            Ok(Some(place)) => place,
            Ok(None) => return,
            Err(error) => {
                self.actor_failed(index, actor, EndReason::CreateFailed(error.to_string()));
                return;
            }
        };
        charge.life += 1;
        worker.uses(charge.made_of.device);
        let start = start_of(actor, place, &charge.made_of, charge.life, charge.budget.policy());
        let type_name = start.type_name.clone();
        worker.pending.insert(actor, Pending { place, type_name, ended: None, first: None });
        worker.send(&Down::Start(start), Vec::new());
        self.dirty = true;
    }

    /// An actor has started in another life.
    pub(super) fn actor_is_back(&mut self, actor: ActorId) {
        self.broker.roster.started(actor);
        let mut told = Vec::new();
        self.broker.announce(actor, &mut told);
        // Behind the news of where it is: whoever hears of it can write to it.
        if let Some(charge) = self.restarts.charges.get(&actor) {
            self.broker.tell(&Lifecycle::Up { actor, incarnation: charge.life }, &mut told);
        }
        self.deliver(told);
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
                self.broker.given_up(actor, reason.clone());
                self.broker.announce(actor, &mut told);
                self.broker.tell(&Lifecycle::GaveUp { actor, reason }, &mut told);
            }
        }
        self.deliver(told);
    }
}

/// What the worker is told to start.
pub(super) fn start_of(
    actor: ActorId,
    place: Place,
    made_of: &NewActor,
    life: u32,
    policy: Restart,
) -> StartActor {
    let type_name = made_of.type_name.clone();
    StartActor {
        actor,
        place,
        name: made_of.name.clone().unwrap_or_else(|| format!("{type_name} {actor}")),
        type_name,
        args: made_of.args.clone(),
        device: made_of.device,
        receive_on: made_of.receive_on,
        own_thread: made_of.own_thread,
        life,
        restarts: policy.when(),
    }
}
