//! Spare workers: processes that wait until a worker ends, and then replace it as its next life.
//!
//! A spare is started as its worker was: with the same program and as many hardware queues. It has a slot and
//! a life of that slot like any other process, so it never owns anything of a dead one. It has a clock page,
//! hears of all deaths and takes part in their rounds. It has opened the device of its worker's actors, which
//! takes most of a start on a GPU, and has no actor. No process has a link to it before it sends to an actor
//! in it.
//!
//! `due_restarts` asks here first when a worker is due, and [`Spares::take_over`] makes the spare
//! that worker: from then on its end is the worker's end, and the actors are started in it as in any next
//! life. The worker's old slot is left as it is until it has been reclaimed. If a spare is still starting,
//! the worker waits for it: a new process would take longer.
//!
//! [`Spares::keep`] compares the wanted spares with the existing ones, whenever something has
//! changed. A worker has spares while one of its actors would come back. New spares are started when the
//! worker runs, and after a restart a little later: their start would slow down the worker's own start and
//! its first messages.
//!
//! **On a crash** of a spare nobody loses anything. Another one is started, after a backoff that doubles, so
//! that spares that cannot start do not take the machine's time; their ends cost their worker no restart. A
//! spare that dies while it takes over *is* the worker: its end is charged, and the next spare, or a new
//! process, follows. Under MPS a spare is a client of its GPU's server: the supervisor asks it as it asks the
//! others, and it ends with them if the GPU is lost (`gpu_probes`). **On close** spares are told to exit
//! before all others, because they have nothing to finish.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::ids::DeviceId;
use crate::node::limits::{MAX_SPARES, SPARE_BACKOFF, SPARE_LASTED, SPARE_PAUSE};
use crate::observe::log::Severity;
use crate::os::remedy_of_start;

use super::WorkerId;
use super::node_state::NodeState;
use super::part::Part;
use super::record::{Asker, SpareFor, Worker, WorkerPhase};
use super::restarts::Between;

/// How many spares a worker wants, and how their starts went so far.
struct Wanted {
    count: usize,
    device: DeviceId,
    /// How many in a row ended by themselves or could not be started.
    failures: u32,
    /// The next one is not started before this time.
    not_before: Option<Instant>,
}

/// The workers that want spares.
#[derive(Default)]
pub(super) struct Spares {
    wanted: HashMap<WorkerId, Wanted>,
    /// Whether something has changed since the last comparison.
    changed: bool,
}

impl Part for Spares {
    /// Returns when the next backoff is over.
    fn next_event(&self) -> Option<Instant> {
        self.wanted.values().filter_map(|wanted| wanted.not_before).min()
    }
}

impl Spares {
    /// Notes that workers, or the actors that come back, have changed.
    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    /// Delays spares of a worker that is back: it gets the machine for its first messages.
    pub(super) fn pause(&mut self, id: WorkerId) {
        if let Some(wanted) = self.wanted.get_mut(&id) {
            let until = Instant::now() + SPARE_PAUSE;
            wanted.not_before = wanted.not_before.max(Some(until));
        }
    }

    /// Whether a backoff is over.
    fn is_due(&self, now: Instant) -> bool {
        self.next_event().is_some_and(|at| at <= now)
    }

    /// Asks for `count` spares for a worker, for actors on `device`. An earlier, larger count stays.
    pub(super) fn want(&mut self, node: &mut NodeState, id: WorkerId, count: u32, device: DeviceId) {
        if node.stopping.is_some() || count == 0 {
            return;
        }
        let new = || Wanted { count: 0, device: DeviceId::HOST, failures: 0, not_before: None };
        let wanted = self.wanted.entry(id).or_insert_with(new);
        wanted.count = wanted.count.max(count.min(MAX_SPARES) as usize);
        if wanted.device == DeviceId::HOST {
            wanted.device = device;
        }
        node.dirty = true;
    }

    /// Starts missing spares, and ends those that are not needed any more.
    pub(super) fn keep(&mut self, node: &mut NodeState) {
        let now = Instant::now();
        if self.wanted.is_empty()
            || node.stopping.is_some()
            || !(node.dirty || self.changed || self.is_due(now))
        {
            return;
        }
        self.changed = false;
        for wanted in self.wanted.values_mut() {
            wanted.not_before = wanted.not_before.filter(|at| *at > now);
        }
        let come_back = node.restarts.those_that_come_back();
        self.wanted.retain(|id, _| come_back.contains(id));
        Spares::dismiss(node, |id| !come_back.contains(&id));
        let mut there: HashMap<WorkerId, usize> = HashMap::new();
        // Spares that are ending count too: the backoff of the next one is known when they have ended.
        for spare in node.workers.iter().filter_map(|worker| worker.spare.as_ref()) {
            *there.entry(spare.worker).or_default() += 1;
        }
        let lack = self.wanted.iter().filter_map(|(id, wanted)| {
            let missing = wanted.count.saturating_sub(there.get(id).copied().unwrap_or(0));
            (missing > 0 && wanted.not_before.is_none() && Spares::has_started(node, *id))
                .then_some((*id, missing))
        });
        for (id, missing) in lack.collect::<Vec<_>>() {
            // Stop when one fails: the others would fail too.
            let _ = (0..missing).try_for_each(|_| self.start(node, id));
        }
    }

    /// Returns a worker's spares that are not ending.
    fn of(node: &NodeState, id: WorkerId) -> impl Iterator<Item = &Worker> {
        node.workers.iter().filter(move |worker| {
            worker.spare.as_ref().is_some_and(|spare| spare.worker == id) && worker.can_go_on()
        })
    }

    /// Whether a worker runs with all of its actors.
    fn has_started(node: &NodeState, id: WorkerId) -> bool {
        let mut workers = node.workers.iter().filter(|worker| worker.id == id);
        workers.any(|worker| worker.is_running() && worker.can_go_on() && worker.pending.is_empty())
    }

    fn start(&mut self, node: &mut NodeState, id: WorkerId) -> Result<(), ()> {
        let (Some(at), Some(wanted)) = (node.workers.slot_of(id), self.wanted.get(&id)) else {
            return Err(());
        };
        let Some(name) = node.workers.at(at).map(|worker| worker.name.clone()) else { return Err(()) };
        let (device, began) = (wanted.device, Instant::now());
        let Some(slot) = node.slot_for_spare() else {
            self.failed(node, id, &name, "the node has as many processes as it can".to_owned());
            return Err(());
        };
        let deadline = began + node.settings.start_deadline;
        let phase = WorkerPhase::Greeting { deadline, asker: Asker::Nobody };
        let spare = SpareFor { worker: id, name: name.clone(), device, began };
        match node.launch(slot, node.workers.next_id(), &name, phase, Some(spare)) {
            Ok(()) => {
                // The slot's last worker is listed no longer.
                if let Some(slot) = node.workers.slot_mut(slot) {
                    slot.last = None;
                }
                node.workers.next_id_is_used();
                Ok(())
            }
            Err(error) => {
                self.failed(node, id, &name, format!("{error}{}", remedy_of_start(&error)));
                Err(())
            }
        }
    }

    /// Logs that a spare could not be started, or has ended by itself, and sets the backoff of the next.
    fn failed(&mut self, node: &mut NodeState, id: WorkerId, name: &Arc<str>, why: String) {
        let policy = node.restarts.policy_of(id);
        let Some(wanted) = self.wanted.get_mut(&id).filter(|_| node.stopping.is_none()) else {
            return;
        };
        let delay = policy.map_or(SPARE_BACKOFF, |policy| policy.delay(wanted.failures)).max(SPARE_BACKOFF);
        wanted.failures = wanted.failures.saturating_add(1);
        wanted.not_before = Some(Instant::now() + delay);
        let times = wanted.failures;
        // Spares that always fail do so until the reason is gone, so the log has fewer and fewer of these
        // lines.
        if times.is_power_of_two() {
            let text = format!(
                "a spare of worker `{name}` is missing, another is started in {delay:?} ({times} in a row): {why}"
            );
            node.journal.node(Severity::Warn, Some(name), text);
        }
    }

    /// Handles the end of a spare's process.
    pub(super) fn ended(&mut self, node: &mut NodeState, worker: &Worker, how: String) {
        let Some(spare) = &worker.spare else { return };
        // It counts as no failure if the spare was told to end, or went down with a GPU that others have
        // lost.
        if !worker.end.told_to_exit && worker.group_restart.is_none() {
            if spare.began.elapsed() >= SPARE_LASTED
                && let Some(wanted) = self.wanted.get_mut(&spare.worker)
            {
                wanted.failures = 0;
            }
            self.failed(node, spare.worker, &spare.name, how);
        }
        node.dirty = true;
    }

    /// Returns the slot of the spare that replaces a worker that is due: a ready spare, or else the one that
    /// began to start first.
    pub(super) fn spare_for(node: &NodeState, id: WorkerId) -> Option<usize> {
        let lives = |worker: &&Worker| !worker.has_ended();
        let best = Spares::of(node, id)
            .filter(lives)
            .min_by_key(|worker| (!worker.is_running(), worker.spare.as_ref().map(|spare| spare.began)))?;
        Some(best.process.slot())
    }

    /// Makes the spare in this slot the next life of a worker. Returns whether it is ready.
    pub(super) fn take_over(&mut self, node: &mut NodeState, index: usize, next: Between) -> bool {
        // List the worker only once: the old slot still has the status of its last life.
        if let Some(old) = node.workers.slot_mut(next.slot) {
            old.last = None;
        }
        let Some(worker) = node.workers.at_mut(index) else { return false };
        worker.spare = None;
        (worker.id, worker.name) = (next.worker, next.name);
        let (name, process, is_ready) = (worker.name.clone(), worker.process, worker.is_running());
        if let WorkerPhase::Greeting { asker, .. } | WorkerPhase::Opening { asker, .. } = &mut worker.phase {
            *asker = Asker::Restart;
        }
        let state = if is_ready { "" } else { ", which is still starting" };
        let text =
            format!("worker `{name}` goes on in its spare {process} (pid {}){state}", worker.child.id());
        node.journal.node(Severity::Info, Some(&name), text);
        if let Some(wanted) = self.wanted.get_mut(&next.worker) {
            (wanted.failures, wanted.not_before) = (0, None);
        }
        node.dirty = true;
        is_ready
    }

    /// Ends the spares of these workers.
    fn dismiss(node: &mut NodeState, of: impl Fn(WorkerId) -> bool) {
        for worker in node.workers.iter_mut() {
            if worker.spare.as_ref().is_some_and(|spare| of(spare.worker)) && worker.can_go_on() {
                worker.dismiss();
                node.dirty = true;
            }
        }
    }

    /// Ends all spares, because the node shuts down.
    pub(super) fn end_all(&mut self, node: &mut NodeState) {
        self.wanted.clear();
        Spares::dismiss(node, |_| true);
    }
}
