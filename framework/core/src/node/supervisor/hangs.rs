//! Hang detection.
//!
//! Every quarter of the limit the supervisor asks all workers. They answer on their control thread, which
//! runs no actor, so a worker that does not answer hangs as a whole. The supervisor compares each answer with
//! the one before. The node measures all durations itself, so a handler pays only a store before and after
//! its call and never reads the clock.
//!
//! A worker that reports a wait accuses another worker, so the node checks it (WIRE-1). The node has the
//! clock pages of all processes mapped. A wait counts only if the clock has not moved for the whole limit, by
//! the node's time, and stands before a value that its process has promised. If a worker reports a value that
//! was never promised, the node logs a complaint, and the hang is that worker's own.
//!
//! Time in which the node itself stood still, because it or its machine was suspended, counts against nobody.
//!
//! A worker that waits for another process's clock is a victim and not to blame. In a chain of waits, the
//! last process is to blame.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::clock::passed;
use crate::ids::{ActorId, ProcessId};
use crate::node::broker::Broker;
use crate::node::control::Down;
use crate::node::hang::{Hang, HangReport, OnHang};
use crate::node::journal::Journal;
use crate::node::limits::MAX_HANGS;
use crate::node::process_runtime::ProcessRuntime;
use crate::observe::hang_probe::{ActorProbe, HangProbe, WaitProbe};
use crate::observe::log::Severity;
use crate::transport::lifecycle::EndReason;

use super::part::Part;
use super::workers::Workers;

#[derive(Default)]
pub(super) struct Hangs {
    round: u64,
    next: Option<Instant>,
    seen: HashMap<ProcessId, Seen>,
    found: VecDeque<HangReport>,
}

/// The last answers of one worker.
#[derive(Default)]
struct Seen {
    /// The round that it has not answered, and when it was asked.
    unanswered: Option<(u64, Instant)>,
    /// By actor: its last probe, and since when it has not moved.
    mailboxes: HashMap<ActorId, (ActorProbe, Instant)>,
    waits: Vec<Standing>,
    /// The hangs already reported, so that each is reported once.
    reported: HashSet<ReportedKey>,
}

/// A wait that a process reports, as the node has checked it.
struct Standing {
    wait: WaitProbe,
    clock: Clock,
    /// Since when the process reports it and the clock has not moved.
    since: Instant,
}

/// A clock that a process waits for, as the page of its owner shows it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clock {
    /// It shows this value, and a later one was promised.
    Owes(u64),
    /// There is no such clock, or that value was never promised.
    OwesNothing,
}

impl Clock {
    /// Looks up the clock that a process says it waits for; `None` if the wait is over.
    fn of(wait: &WaitProbe, broker: &Broker) -> Option<Self> {
        let WaitProbe { on, clock, value, .. } = *wait;
        let Some(page) = broker.deaths.page_of(on).filter(|_| broker.roster.lifecycle(on)) else {
            // A process that has ended keeps nobody waiting (DEATH-1).
            return (!broker.knows(on)).then_some(Clock::OwesNothing);
        };
        match page.load(clock) {
            Some(shows) if passed(shows, value) => None,
            Some(shows) if page.is_promised(clock, value) => Some(Clock::Owes(shows)),
            _ => Some(Clock::OwesNothing),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ReportedKey {
    Silent,
    /// An actor, and its count of messages at the time.
    Mailbox(ActorId, u64),
    /// A clock that a process waits for, and the value.
    Clock(ProcessId, u16, u64),
}

impl Part for Hangs {
    fn next_event(&self) -> Option<Instant> {
        self.next
    }

    /// Takes `lost` out of all durations: the node stood still for that long, and others perhaps with it.
    fn stalled(&mut self, lost: Duration) {
        for seen in self.seen.values_mut() {
            let asked = seen.unanswered.iter_mut().map(|(_, asked)| asked);
            let actors = seen.mailboxes.values_mut().map(|(_, since)| since);
            let waits = seen.waits.iter_mut().map(|standing| &mut standing.since);
            asked.chain(actors).chain(waits).for_each(|since| *since += lost);
        }
    }

    fn left(&mut self, process: ProcessId) {
        self.seen.remove(&process);
    }
}

impl Hangs {
    pub(super) fn report(&self) -> Vec<HangReport> {
        self.found.iter().cloned().collect()
    }

    /// Whether another process keeps this process waiting. In a chain of waits, the node may hear of one wait
    /// two rounds after another, so half of the limit is enough.
    fn is_victim(&self, process: ProcessId, limit: Duration, now: Instant) -> bool {
        let waits = self.seen.get(&process).map(|seen| seen.waits.as_slice()).unwrap_or_default();
        waits.iter().any(|standing| {
            let owes = matches!(standing.clock, Clock::Owes(_));
            owes && standing.wait.on != process && now - standing.since >= limit / 2
        })
    }
}

impl Seen {
    /// Takes the waits that the process reports now. Returns the first one that cannot be true.
    fn take_waits(&mut self, told: Vec<WaitProbe>, broker: &Broker, now: Instant) -> Option<&WaitProbe> {
        let before = std::mem::take(&mut self.waits);
        let standing = |wait: WaitProbe| {
            let clock = Clock::of(&wait, broker)?;
            let same = before.iter().find(|before| before.wait == wait && before.clock == clock);
            Some(Standing { since: same.map_or(now, |before| before.since), wait, clock })
        };
        self.waits = told.into_iter().filter_map(standing).collect();
        self.forget_what_is_over();
        let forged = self.waits.iter().find(|standing| standing.clock == Clock::OwesNothing);
        forged.map(|standing| &standing.wait)
    }

    /// Forgets reports of mailboxes and clocks that have moved since: they may be reported again if they stop
    /// again.
    fn forget_what_is_over(&mut self) {
        let Seen { mailboxes, waits, reported, .. } = self;
        reported.retain(|said| match said {
            ReportedKey::Silent => true,
            ReportedKey::Mailbox(actor, moved) => {
                mailboxes.get(actor).is_some_and(|(is, _)| is.moved == *moved)
            }
            ReportedKey::Clock(on, clock, value) => waits
                .iter()
                .any(|Standing { wait, .. }| (wait.on, wait.clock, wait.value) == (*on, *clock, *value)),
        });
    }
}

impl Hangs {
    /// Judges the last round, and begins the next one, if it is due.
    pub(super) fn look(
        &mut self,
        limit: Duration,
        then: OnHang,
        (workers, broker): (&mut Workers, &Broker),
        process_runtime: &dyn ProcessRuntime,
        journal: &Journal,
    ) {
        let now = Instant::now();
        if self.next.is_some_and(|at| at > now) {
            return;
        }
        self.next = Some(now + limit / 4);
        // Judged before anybody is asked again: a missing answer counts from the time of its question.
        self.judge(limit, then, now, (workers, broker), journal);
        self.round += 1;
        let round = self.round;
        for worker in workers.iter_mut() {
            if !worker.is_running() || worker.end.told_to_exit {
                continue;
            }
            let seen = self.seen.entry(worker.process).or_default();
            // A worker that has not answered is not asked again: its socket would fill.
            if seen.unanswered.is_none() {
                seen.unanswered = Some((round, now));
                worker.send(&Down::Look { round }, Vec::new());
            }
        }
        // The node's own threads wait for clocks too.
        let own = process_runtime.hang_probe();
        // A false wait of the node's own process has nobody to complain of.
        let _ = self.seen.entry(ProcessId::NODE).or_default().take_waits(own.waits, broker, now);
    }

    /// Takes a worker's answer.
    ///
    /// # Errors
    /// WIRE-1: says what is wrong with the answer. The parts that can be true are taken.
    pub(super) fn hang_probe(
        &mut self,
        process: ProcessId,
        round: u64,
        hang_probe: HangProbe,
        broker: &Broker,
    ) -> Result<(), String> {
        let now = Instant::now();
        let seen = self.seen.get_mut(&process);
        let Some(seen) = seen.filter(|seen| seen.unanswered.is_some_and(|(asked, _)| asked == round)) else {
            return Err(format!("it says what stands still in it for look {round}, which was not made"));
        };
        seen.unanswered = None;
        seen.reported.remove(&ReportedKey::Silent);
        let before = std::mem::take(&mut seen.mailboxes);
        // A process may report only its own actors.
        let is_own = |actor: &ActorProbe| {
            broker.roster.actor(actor.actor).is_some_and(|entry| entry.location.process == process)
        };
        for actor in hang_probe.actors.into_iter().filter(|actor| actor.open > 0 && is_own(actor)) {
            let since = match before.get(&actor.actor) {
                Some((last, since)) if last.moved == actor.moved => *since,
                // It has moved, or is new: its time starts now.
                _ => now,
            };
            seen.mailboxes.insert(actor.actor, (actor, since));
        }
        match seen.take_waits(hang_probe.waits, broker, now) {
            None => Ok(()),
            Some(WaitProbe { waits_in, on, clock, value }) => Err(format!(
                "it says that it waits, in {waits_in}, for clock {clock} of {on} to show {value}, which {on} has not promised"
            )),
        }
    }

    fn judge(
        &mut self,
        limit: Duration,
        then: OnHang,
        now: Instant,
        (workers, broker): (&mut Workers, &Broker),
        journal: &Journal,
    ) {
        // Each hang with the process to blame, and the process whose entry remembers the report.
        let mut found: Vec<(ProcessId, ProcessId, ReportedKey, Hang, Duration)> = Vec::new();
        for (process, seen) in &self.seen {
            if let Some((_, asked)) = seen.unanswered.filter(|(_, asked)| now - *asked >= limit) {
                let hang = Hang::Silent { stopped: workers.is_stopped(*process) };
                found.push((*process, *process, ReportedKey::Silent, hang, now - asked));
                continue;
            }
            for Standing { wait, clock, since } in seen.waits.iter().filter(|of| now - of.since >= limit) {
                // The clock may have moved since the process reported the wait.
                if Clock::of(wait, broker) != Some(*clock) {
                    continue;
                }
                let said = ReportedKey::Clock(wait.on, wait.clock, wait.value);
                let waits_in = wait.waits_in.clone();
                let (to_blame, hang) = match *clock {
                    Clock::Owes(shows) => (
                        wait.on,
                        Hang::Clock {
                            waiter: *process,
                            waiter_name: workers.name_of(*process),
                            waits_in,
                            clock: wait.clock,
                            value: wait.value,
                            now: shows,
                        },
                    ),
                    Clock::OwesNothing => {
                        let WaitProbe { on, clock, value, .. } = *wait;
                        (*process, Hang::Unpromised { waits_in, on, clock, value })
                    }
                };
                found.push((to_blame, *process, said, hang, now - *since));
            }
            for (actor, since) in seen.mailboxes.values().filter(|(_, since)| now - *since >= limit) {
                let hang = Hang::Mailbox {
                    actor: actor.actor,
                    name: actor.name.clone(),
                    open: actor.open,
                    handling: actor.handling,
                };
                let said = ReportedKey::Mailbox(actor.actor, actor.moved);
                found.push((*process, *process, said, hang, now - *since));
            }
        }
        for (to_blame, remembered, said, hang, lasted) in found {
            let fresh = self.seen.get_mut(&remembered).is_some_and(|seen| seen.reported.insert(said));
            if fresh {
                let itself = matches!(hang, Hang::Silent { .. } | Hang::Unpromised { .. });
                let is_victim = !itself && self.is_victim(to_blame, limit, now);
                let then = if is_victim { OnHang::Report } else { then };
                self.hangs_now(to_blame, hang, lasted, then, workers, journal);
            }
        }
    }

    /// Reports a hang, and kills the worker if `then` says so.
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
            worker.end.cause.get_or_insert_with(|| EndReason::Hung(text.clone()));
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

#[cfg(test)]
mod tests;
