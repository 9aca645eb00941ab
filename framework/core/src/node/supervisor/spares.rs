//! Spare workers: processes that wait, ready, for a worker to end, and then go on as its next life.
//!
//! A spare is started as its worker was: the same program, as many hardware queues. It has a slot and a life
//! of that slot like any other process, so nothing of a dead one is ever its own; it has a clock page, hears
//! of all deaths and takes part in their rounds. It has opened the device of its worker's actors, which takes
//! most of a start on a GPU, and has no actor. Nobody has a link to it before they send to an actor in it.
//!
//! `comebacks` asks here first when a worker is due, and [`State::take_over`] makes the spare that worker:
//! from then on its end is the worker's, and the actors are started in it as in any next life. The worker's
//! old slot is left as it is until it has been reclaimed. If a spare is still starting, the worker waits for
//! that: a process that is started now would be later.
//!
//! [`State::keep_spares`] compares what is wanted with what is there, whenever something has changed. A
//! worker has spares while one of its actors would come back. New ones are started when it runs, and after a
//! restart a little later: their start would make its own slower, and its first messages.
//!
//! **On a crash** of a spare nobody loses anything. Another one is started, after a backoff that doubles, so
//! that spares which cannot start do not take the machine's time; their ends cost their worker no restart.
//! One that dies while it takes over *is* the worker: its end is charged, and the next spare, or a new
//! process, follows. Under MPS a spare is a client of its GPU's server: it is asked as the others are, and
//! ends with them when that is lost (`gpu_looks`). **On close** spares are told to exit before anybody else,
//! for they have nothing to finish.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::ids::DeviceId;
use crate::node::limits::{MAX_NAME, MAX_SPARES, SPARE_BACKOFF, SPARE_LASTED, SPARE_PAUSE, cut};
use crate::observe::log::Severity;
use crate::os::remedy_of_start;

use super::WorkerId;
use super::record::{Asker, Worker, WorkerPhase};
use super::restarts::Between;
use super::run::State;

/// What a process is that waits for a worker to end.
pub(super) struct SpareFor {
    pub(super) worker: WorkerId,
    /// What that is called.
    pub(super) name: Arc<str>,
    /// The device that it opens; `HOST` for none.
    pub(super) device: DeviceId,
    pub(super) began: Instant,
}

impl SpareFor {
    /// What it is called itself, as long as it waits.
    pub(super) fn shown_as(&self) -> String {
        const MARK: &str = " (spare)";
        cut(self.name.to_string(), MAX_NAME - MARK.len()) + MARK
    }
}

/// How many spares a worker is to have, and how it went so far.
struct Wanted {
    count: usize,
    device: DeviceId,
    /// Those that ended by themselves, or could not be started, one after the other.
    failures: u32,
    /// The next is not started before.
    not_before: Option<Instant>,
}

/// The workers that are to have spares.
#[derive(Default)]
pub(super) struct Spares {
    wanted: HashMap<WorkerId, Wanted>,
    /// Something has changed that was not looked at.
    changed: bool,
}

impl Spares {
    /// Something has changed: who is there, or who comes back.
    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    /// When a spare is due whose backoff is not over.
    pub(super) fn next_event(&self) -> Option<Instant> {
        self.wanted.values().filter_map(|wanted| wanted.not_before).min()
    }

    /// A worker is back: leaves it the machine for its first messages.
    pub(super) fn pause(&mut self, id: WorkerId) {
        if let Some(wanted) = self.wanted.get_mut(&id) {
            let until = Instant::now() + SPARE_PAUSE;
            wanted.not_before = wanted.not_before.max(Some(until));
        }
    }

    /// Whether the backoff of one is over.
    fn is_due(&self, now: Instant) -> bool {
        self.next_event().is_some_and(|at| at <= now)
    }
}

impl State {
    /// This worker is to have so many spares, for actors on this device. What was asked for before stays,
    /// where it is more.
    pub(super) fn want_spares(&mut self, id: WorkerId, count: u32, device: DeviceId) {
        if self.stopping.is_some() || count == 0 {
            return;
        }
        let new = || Wanted { count: 0, device: DeviceId::HOST, failures: 0, not_before: None };
        let wanted = self.spares.wanted.entry(id).or_insert_with(new);
        wanted.count = wanted.count.max(count.min(MAX_SPARES) as usize);
        if wanted.device == DeviceId::HOST {
            wanted.device = device;
        }
        self.dirty = true;
    }

    /// Starts what spares are missing, and ends those that nobody needs any more.
    pub(super) fn keep_spares(&mut self) {
        let now = Instant::now();
        if self.spares.wanted.is_empty()
            || self.stopping.is_some()
            || !(self.dirty || self.spares.changed || self.spares.is_due(now))
        {
            return;
        }
        self.spares.changed = false;
        for wanted in self.spares.wanted.values_mut() {
            wanted.not_before = wanted.not_before.filter(|at| *at > now);
        }
        let come_back = self.restarts.those_that_come_back();
        self.spares.wanted.retain(|id, _| come_back.contains(id));
        self.dismiss_spares(|id| !come_back.contains(&id));
        let mut there: HashMap<WorkerId, usize> = HashMap::new();
        // Also those that are ending: the backoff of the next is known when they have.
        for spare in self.workers.iter().filter_map(|worker| worker.spare.as_ref()) {
            *there.entry(spare.worker).or_default() += 1;
        }
        let lack = self.spares.wanted.iter().filter_map(|(id, wanted)| {
            let missing = wanted.count.saturating_sub(there.get(id).copied().unwrap_or(0));
            (missing > 0 && wanted.not_before.is_none() && self.has_started(*id)).then_some((*id, missing))
        });
        for (id, missing) in lack.collect::<Vec<_>>() {
            // Until one fails: the others would, too.
            let _ = (0..missing).try_for_each(|_| self.start_spare(id));
        }
    }

    /// The processes that wait for a worker's end, and are not ending themselves.
    fn spares_of(&self, id: WorkerId) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(move |worker| {
            worker.spare.as_ref().is_some_and(|spare| spare.worker == id) && worker.can_go_on()
        })
    }

    /// Whether a worker runs with all of its actors.
    fn has_started(&self, id: WorkerId) -> bool {
        let mut workers = self.workers.iter().filter(|worker| worker.id == id);
        workers.any(|worker| worker.is_running() && worker.can_go_on() && worker.pending.is_empty())
    }

    fn start_spare(&mut self, id: WorkerId) -> Result<(), ()> {
        let (Some(at), Some(wanted)) = (self.workers.slot_of(id), self.spares.wanted.get(&id)) else {
            return Err(());
        };
        let Some(name) = self.workers.at(at).map(|worker| worker.name.clone()) else { return Err(()) };
        let (device, began) = (wanted.device, Instant::now());
        let Some(slot) = self.slot_for_spare() else {
            self.spare_failed(id, &name, "the node has as many processes as it can".to_owned());
            return Err(());
        };
        let deadline = began + self.settings.start_deadline;
        let phase = WorkerPhase::Greeting { deadline, asker: Asker::Nobody };
        let spare = SpareFor { worker: id, name: name.clone(), device, began };
        match self.launch(slot, self.workers.next_id(), &name, phase, Some(spare)) {
            Ok(()) => {
                // Who was there before is listed no longer.
                if let Some(slot) = self.workers.slot_mut(slot) {
                    slot.last = None;
                }
                self.workers.next_id_is_used();
                Ok(())
            }
            Err(error) => {
                self.spare_failed(id, &name, format!("{error}{}", remedy_of_start(&error)));
                Err(())
            }
        }
    }

    /// A spare could not be started, or has ended by itself.
    fn spare_failed(&mut self, id: WorkerId, name: &Arc<str>, why: String) {
        let policy = self.restarts.policy_of(id);
        let Some(wanted) = self.spares.wanted.get_mut(&id).filter(|_| self.stopping.is_none()) else {
            return;
        };
        let delay = policy.map_or(SPARE_BACKOFF, |policy| policy.delay(wanted.failures)).max(SPARE_BACKOFF);
        wanted.failures = wanted.failures.saturating_add(1);
        wanted.not_before = Some(Instant::now() + delay);
        let times = wanted.failures;
        // One that fails each time does so until its reason is gone, so the log has fewer and fewer of them.
        if times.is_power_of_two() {
            let text = format!(
                "a spare of worker `{name}` is missing, another is started in {delay:?} ({times} in a row): {why}"
            );
            self.journal.node(Severity::Warn, Some(name), text);
        }
    }

    /// The process of a spare has ended.
    pub(super) fn spare_ended(&mut self, worker: &Worker, how: String) {
        let Some(spare) = &worker.spare else { return };
        // Nobody is to blame for one that was told to end, or went down with a GPU that others have lost.
        if !worker.told_to_exit && worker.group_restart.is_none() {
            if spare.began.elapsed() >= SPARE_LASTED
                && let Some(wanted) = self.spares.wanted.get_mut(&spare.worker)
            {
                wanted.failures = 0;
            }
            self.spare_failed(spare.worker, &spare.name, how);
        }
        self.dirty = true;
    }

    /// The spare that goes on as a worker which is due: one that is ready, or else the one that will be
    /// first.
    pub(super) fn spare_for(&self, id: WorkerId) -> Option<usize> {
        let lives = |worker: &&Worker| !worker.has_ended();
        let best = self
            .spares_of(id)
            .filter(lives)
            .min_by_key(|worker| (!worker.is_running(), worker.spare.as_ref().map(|spare| spare.began)))?;
        Some(best.process.slot())
    }

    /// The spare in this slot is the next life of a worker from now on.
    pub(super) fn take_over(&mut self, index: usize, next: Between) {
        // The worker is listed once: the status of its last life stood in the old slot.
        if let Some(old) = self.workers.slot_mut(next.slot) {
            old.last = None;
        }
        let Some(worker) = self.workers.at_mut(index) else { return };
        worker.spare = None;
        (worker.id, worker.name) = (next.worker, next.name);
        let (name, process, is_ready) = (worker.name.clone(), worker.process, worker.is_running());
        if let WorkerPhase::Greeting { asker, .. } | WorkerPhase::Opening { asker, .. } = &mut worker.phase {
            *asker = Asker::Restart;
        }
        let state = if is_ready { "" } else { ", which is still starting" };
        let text =
            format!("worker `{name}` goes on in its spare {process} (pid {}){state}", worker.child.id());
        self.journal.node(Severity::Info, Some(&name), text);
        if let Some(wanted) = self.spares.wanted.get_mut(&next.worker) {
            (wanted.failures, wanted.not_before) = (0, None);
        }
        self.dirty = true;
        if is_ready {
            self.worker_is_back(index);
        }
    }

    /// Ends the spares of these workers.
    fn dismiss_spares(&mut self, of: impl Fn(WorkerId) -> bool) {
        for worker in self.workers.iter_mut() {
            if worker.spare.as_ref().is_some_and(|spare| of(spare.worker)) && worker.can_go_on() {
                worker.dismiss();
                self.dirty = true;
            }
        }
    }

    /// The node shuts down: ends all spares.
    pub(super) fn end_spares(&mut self) {
        self.spares.wanted.clear();
        self.dismiss_spares(|_| true);
    }
}
