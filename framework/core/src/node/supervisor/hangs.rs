//! Hang detection.
//!
//! Every quarter of the limit the supervisor asks all workers. They answer on their control thread, which runs no
//! actor, so a worker that does not answer hangs as a whole. The supervisor compares each answer with the one before.
//! Durations are the node's own: a handler pays a store before and after its call and no look at the clock.
//!
//! Time in which the node stood still itself (its machine was suspended, or it was) counts against nobody.
//!
//! A worker that waits for another process's clock is that one's victim and not to blame; where they wait in a row, the
//! last one is.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::ids::{ActorId, ProcessId};
use crate::node::control::Down;
use crate::node::hang::{Hang, HangReport, OnHang};
use crate::node::host::ProcessRuntime;
use crate::node::journal::Journal;
use crate::node::limits::MAX_HANGS;
use crate::observe::hang_probe::{ActorProbe, HangProbe, WaitProbe};
use crate::observe::log::Severity;
use crate::transport::lifecycle::EndReason;

use super::workers::Workers;

#[derive(Default)]
pub(super) struct Hangs {
    round: u64,
    next: Option<Instant>,
    seen: HashMap<ProcessId, Seen>,
    found: VecDeque<HangReport>,
    /// Until when, and for how long, the node last stood still itself.
    stall: Option<(Instant, Duration)>,
}

/// What the last answers of one worker showed.
#[derive(Default)]
struct Seen {
    /// When it was asked what it has not answered.
    unanswered: Option<Instant>,
    /// By actor: how far it was, and since when.
    mailboxes: HashMap<ActorId, (ActorProbe, Instant)>,
    waits: Vec<WaitProbe>,
    /// The reports made of it, so that each is made once.
    reported: HashSet<Said>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Said {
    Silent,
    /// An actor, and how far it was.
    Mailbox(ActorId, u64),
    /// A clock that somebody waits for, and the value.
    Clock(ProcessId, u16, u64),
}

impl Hangs {
    pub(super) fn next_event(&self) -> Option<Instant> {
        self.next
    }

    pub(super) fn report(&self) -> Vec<HangReport> {
        self.found.iter().cloned().collect()
    }

    /// The node has stood still for so long, and others perhaps with it: that time is in nobody's durations.
    pub(super) fn stalled(&mut self, lost: Duration) {
        self.stall = Some((Instant::now(), lost));
        for seen in self.seen.values_mut() {
            seen.unanswered = seen.unanswered.map(|asked| asked + lost);
            seen.mailboxes.values_mut().for_each(|(_, since)| *since += lost);
        }
    }

    /// Waits as their process has measured them, without time in which the node stood still.
    fn without_stall(&self, mut waits: Vec<WaitProbe>) -> Vec<WaitProbe> {
        if let Some((until, lost)) = self.stall {
            let since = until.elapsed();
            for wait in &mut waits {
                // What began after the stall has lost nothing by it.
                let before = Duration::from_nanos(wait.waited).saturating_sub(since);
                wait.waited -= before.min(lost).as_nanos() as u64;
            }
        }
        waits
    }

    pub(super) fn left(&mut self, process: ProcessId) {
        self.seen.remove(&process);
    }

    /// Whether a process is itself kept waiting by another, for as long as the limit.
    fn is_victim(&self, process: ProcessId, limit: Duration) -> bool {
        let waits = self.seen.get(&process).map(|seen| seen.waits.as_slice()).unwrap_or_default();
        waits.iter().any(|wait| wait.on != process && Duration::from_nanos(wait.waited) >= limit)
    }
}

impl Seen {
    /// Forgets reports of what has moved since: it may be reported again if it stops again.
    fn forget_what_is_over(&mut self) {
        let Seen { mailboxes, waits, reported, .. } = self;
        reported.retain(|said| match said {
            Said::Silent => true,
            Said::Mailbox(actor, moved) => mailboxes.get(actor).is_some_and(|(is, _)| is.moved == *moved),
            Said::Clock(on, clock, value) => {
                waits.iter().any(|wait| (wait.on, wait.clock, wait.value) == (*on, *clock, *value))
            }
        });
    }
}

impl Hangs {
    /// Judges the last look, and begins the next one, if it is time for that.
    pub(super) fn look(
        &mut self,
        limit: Duration,
        then: OnHang,
        workers: &mut Workers,
        process_runtime: &dyn ProcessRuntime,
        journal: &Journal,
    ) {
        let now = Instant::now();
        if self.next.is_some_and(|at| at > now) {
            return;
        }
        self.next = Some(now + limit / 4);
        // Judged before anybody is asked again: an answer that is still missing counts from when it was asked for.
        self.judge(limit, then, now, workers, journal);
        self.round += 1;
        let round = self.round;
        for worker in workers.iter_mut() {
            if !worker.is_running() || worker.told_to_exit {
                continue;
            }
            let seen = self.seen.entry(worker.process).or_default();
            // Who has not answered is not asked again: its socket would fill.
            if seen.unanswered.is_none() {
                seen.unanswered = Some(now);
                worker.send(&Down::Look { round }, Vec::new());
            }
        }
        // The node's own threads wait for clocks too.
        let own = process_runtime.hang_probe();
        let waits = self.without_stall(own.waits);
        let seen = self.seen.entry(ProcessId::NODE).or_default();
        seen.waits = waits;
        seen.forget_what_is_over();
    }

    /// A worker has answered. WIRE-1: what it says can only make it, or who it waits for, look stuck.
    pub(super) fn hang_probe(&mut self, process: ProcessId, round: u64, hang_probe: HangProbe) {
        let now = Instant::now();
        // A round that was never begun: the worker made it up.
        if round > self.round {
            return;
        }
        let waits = self.without_stall(hang_probe.waits);
        let Some(seen) = self.seen.get_mut(&process) else { return };
        seen.unanswered = None;
        seen.reported.remove(&Said::Silent);
        let before = std::mem::take(&mut seen.mailboxes);
        for actor in hang_probe.actors.into_iter().filter(|actor| actor.open > 0) {
            let since = match before.get(&actor.actor) {
                Some((last, since)) if last.moved == actor.moved => *since,
                // It has moved, or is new: it stands still since now at the earliest.
                _ => now,
            };
            seen.mailboxes.insert(actor.actor, (actor, since));
        }
        seen.waits = waits;
        seen.forget_what_is_over();
    }

    fn judge(
        &mut self,
        limit: Duration,
        then: OnHang,
        now: Instant,
        workers: &mut Workers,
        journal: &Journal,
    ) {
        // By the process that is to blame, with the process that it is remembered under.
        let mut found: Vec<(ProcessId, ProcessId, Said, Hang, Duration)> = Vec::new();
        for (process, seen) in &self.seen {
            if let Some(asked) = seen.unanswered.filter(|asked| now - *asked >= limit) {
                let hang = Hang::Silent { stopped: workers.is_stopped(*process) };
                found.push((*process, *process, Said::Silent, hang, now - asked));
                continue;
            }
            for wait in seen.waits.iter().filter(|wait| Duration::from_nanos(wait.waited) >= limit) {
                let said = Said::Clock(wait.on, wait.clock, wait.value);
                let hang = Hang::Clock {
                    waiter: *process,
                    waiter_name: workers.name_of(*process),
                    waits_in: wait.waits_in.clone(),
                    clock: wait.clock,
                    value: wait.value,
                    now: wait.now,
                };
                found.push((wait.on, *process, said, hang, Duration::from_nanos(wait.waited)));
            }
            for (actor, since) in seen.mailboxes.values().filter(|(_, since)| now - *since >= limit) {
                let hang = Hang::Mailbox {
                    actor: actor.actor,
                    name: actor.name.clone(),
                    open: actor.open,
                    handling: actor.handling,
                };
                let said = Said::Mailbox(actor.actor, actor.moved);
                found.push((*process, *process, said, hang, now - *since));
            }
        }
        for (to_blame, remembered, said, hang, lasted) in found {
            let fresh = self.seen.get_mut(&remembered).is_some_and(|seen| seen.reported.insert(said));
            if fresh {
                let is_victim = self.is_victim(to_blame, limit) && !matches!(hang, Hang::Silent { .. });
                let then = if is_victim { OnHang::Report } else { then };
                self.hangs_now(to_blame, hang, lasted, then, workers, journal);
            }
        }
    }

    /// Reports a hang, and has the worker killed if `then` says so.
    fn hangs_now(
        &mut self,
        process: ProcessId,
        hang: Hang,
        lasted: Duration,
        then: OnHang,
        workers: &mut Workers,
        journal: &Journal,
    ) {
        let name = workers.name_of(process);
        let mut worker = workers.of_mut(process);
        let killed = then == OnHang::Restart && worker.is_some();
        let id = worker.as_ref().map(|worker| worker.id);
        let report = HangReport { host: None, worker: id, process, name, hang, lasted, killed };
        let text = report.to_string();
        if let Some(worker) = worker.as_mut().filter(|_| killed) {
            worker.cause.get_or_insert_with(|| EndReason::Hung(text.clone()));
            worker.give_up(text.clone());
        }
        let name = worker.map(|worker| worker.name.clone());
        journal.node(Severity::Error, name.as_ref(), text);
        if self.found.len() >= MAX_HANGS {
            self.found.pop_front();
        }
        self.found.push_back(report);
    }
}
