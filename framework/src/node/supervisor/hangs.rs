//! Hang detection.
//!
//! Every quarter of the limit the supervisor asks all workers. They answer on their control thread, which runs no
//! actor, so a worker that does not answer hangs as a whole. The supervisor compares each answer with the one before.
//! Durations are the node's own: a handler pays a store before and after its call and no look at the clock.
//!
//! A worker that waits for another process's clock is that one's victim and not to blame; where they wait in a row, the
//! last one is.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::ids::{ActorId, ProcessId};
use crate::node::control::Down;
use crate::node::hang::{Hang, HangReport, OnHang};
use crate::node::limits::MAX_HANGS;
use crate::observe::hang_probe::{ActorProbe, HangProbe, WaitProbe};
use crate::observe::log::Severity;
use crate::transport::lifecycle::EndReason;

use super::run::State;

#[derive(Default)]
pub(super) struct Hangs {
    round: u64,
    next: Option<Instant>,
    seen: HashMap<ProcessId, Seen>,
    found: VecDeque<HangReport>,
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

impl State {
    /// If it is time, judges the last answers and asks again.
    pub(super) fn look_for_hangs(&mut self) {
        let Some((limit, then)) = self.settings.hang_limit else { return };
        let now = Instant::now();
        if self.hangs.next.is_some_and(|at| at > now) {
            return;
        }
        self.hangs.next = Some(now + limit / 4);
        // Judged before anybody is asked again: an answer that is still missing counts from when it was asked for.
        self.judge(limit, then, now);
        self.hangs.round += 1;
        let round = self.hangs.round;
        for worker in self.slots.iter_mut().filter_map(|slot| slot.worker.as_mut()) {
            if !worker.is_running() || worker.told_to_exit {
                continue;
            }
            let seen = self.hangs.seen.entry(worker.process).or_default();
            // A worker that has not answered is not asked again: its socket would fill.
            if seen.unanswered.is_none() {
                seen.unanswered = Some(now);
                worker.send(&Down::Look { round }, Vec::new());
            }
        }
        // The node's own threads wait for clocks too.
        let own = self.process_runtime.hang_probe();
        let seen = self.hangs.seen.entry(ProcessId::NODE).or_default();
        seen.waits = own.waits;
        seen.forget_what_is_over();
    }

    /// A worker has answered. WIRE-1: what it says can only make it, or who it waits for, look stuck.
    pub(super) fn hang_probe(&mut self, process: ProcessId, round: u64, hang_probe: HangProbe) {
        let now = Instant::now();
        // A round that was never begun: the worker made it up.
        if round > self.hangs.round {
            return;
        }
        let Some(seen) = self.hangs.seen.get_mut(&process) else { return };
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
        seen.waits = hang_probe.waits;
        seen.forget_what_is_over();
    }

    fn judge(&mut self, limit: Duration, then: OnHang, now: Instant) {
        // The process to blame, and the one whose answers showed it, which remembers that it was reported.
        let mut found: Vec<(ProcessId, ProcessId, Said, Hang, Duration)> = Vec::new();
        for (process, seen) in &self.hangs.seen {
            if let Some(asked) = seen.unanswered.filter(|asked| now - *asked >= limit) {
                let hang = Hang::Silent { stopped: self.is_stopped(*process) };
                found.push((*process, *process, Said::Silent, hang, now - asked));
                continue;
            }
            for wait in seen.waits.iter().filter(|wait| Duration::from_nanos(wait.waited) >= limit) {
                let said = Said::Clock(wait.on, wait.clock, wait.value);
                let hang = Hang::Clock {
                    waiter: *process,
                    waiter_name: self.name_of(*process),
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
            let fresh = self.hangs.seen.get_mut(&remembered).is_some_and(|seen| seen.reported.insert(said));
            if fresh {
                self.hangs_now(to_blame, hang, lasted, then, limit);
            }
        }
    }

    fn hangs_now(&mut self, process: ProcessId, hang: Hang, lasted: Duration, then: OnHang, limit: Duration) {
        // A process that does not answer is to blame itself, whatever it last said that it waits for.
        let victim = self.hangs.is_victim(process, limit) && !matches!(hang, Hang::Silent { .. });
        let name = self.name_of(process);
        let stopping = self.stopping.is_some();
        let worker = self.slots.get_mut(process.slot()).and_then(|slot| slot.worker.as_mut());
        let mut worker = worker.filter(|worker| worker.process == process);
        let killed = then == OnHang::Restart && !victim && !stopping && worker.is_some();
        let id = worker.as_ref().map(|worker| worker.id);
        let report = HangReport { worker: id, process, name, hang, lasted, killed };
        let text = report.to_string();
        if let Some(worker) = worker.as_mut().filter(|_| killed) {
            worker.cause.get_or_insert_with(|| EndReason::Hung(text.clone()));
            worker.give_up(text.clone());
        }
        let name = worker.map(|worker| worker.name.clone());
        self.journal.node(Severity::Error, name.as_ref(), text);
        if self.hangs.found.len() >= MAX_HANGS {
            self.hangs.found.pop_front();
        }
        self.hangs.found.push_back(report);
    }

    fn name_of(&self, process: ProcessId) -> String {
        if process == ProcessId::NODE {
            return "node".to_owned();
        }
        let worker = self.slots.get(process.slot()).and_then(|slot| slot.worker.as_ref());
        let worker = worker.filter(|worker| worker.process == process);
        worker.map_or_else(|| "a process that has ended".to_owned(), |worker| worker.name.to_string())
    }

    /// Whether the system says that a process is stopped.
    fn is_stopped(&self, process: ProcessId) -> bool {
        let worker = self.slots.get(process.slot()).and_then(|slot| slot.worker.as_ref());
        let pid = worker.filter(|worker| worker.process == process).map(|worker| worker.child.id());
        // The state follows the program's name, which is in parentheses and may hold any character.
        let status = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
        let state = status.as_deref().and_then(|status| status.rsplit_once(") ")).map(|(_, rest)| rest);
        state.is_some_and(|state| state.starts_with(['T', 't']))
    }
}
