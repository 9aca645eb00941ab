//! The node's part in a death: the news that each process must have before any process is released (DEATH-1,
//! DEATH-3).
//!
//! The news goes in rounds. In each, the node tells all living processes the news (certificates of dead
//! processes, ranges that others have marked), and they answer with the ranges of their own that depend on
//! it. The next round passes these answers on. A round that brings nothing new is the last; then the node
//! releases the clocks of the dead. Four processes in a chain take four rounds, which is milliseconds.
//!
//! Deaths that happen meanwhile join in: nobody is released before all is known. A new certificate is told at
//! once, outside of the rounds. A message between two living processes may name a clock of the dead process
//! that its receiver has never seen. The news that a process has ended does not wait for a round, so the
//! certificate must come before that news. A process that dies owes no more answers: its own certificate
//! covers the values that it had not marked, because marked values cannot have passed before the release.
//!
//! A process that does not answer within [`WAIT_FOR_MARKS`] may be stopped, and must not keep the others
//! waiting. It is then *late*: all values that its clocks had not reached by then count as tainted until it
//! has answered the last round that it was told of. It does not believe its clocks before that either: it
//! sees on the epoch page that it is behind ([`EpochPage`](crate::clock::taint::EpochPage)).
//!
//! Nothing here touches a socket, a page or a clock: it is bookkeeping, and the model in `tests` runs it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::clock::taint::{Certificate, Table, TaintRange, TaintUpdate};
use crate::ids::ProcessId;

/// How long a process may take to answer a round.
pub const WAIT_FOR_MARKS: Duration = Duration::from_secs(1);

/// An action that the rounds call for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants say it of their fields")]
pub enum Act {
    /// Tell this process.
    Tell(ProcessId, TaintUpdate),
    /// Raise the epoch page to this round, then release the clocks of these dead processes, then tell
    /// everybody.
    Release { round: u64, dead: Vec<ProcessId> },
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rounds {
    /// All news so far.
    table: Table,
    living: BTreeSet<ProcessId>,
    /// Processes that have done nothing yet. They are told the news, but no round waits for them, because
    /// opening a device takes longer.
    opening: BTreeSet<ProcessId>,
    round: u64,
    /// The processes that have not answered the present round.
    waiting: BTreeSet<ProcessId>,
    deadline: Option<Instant>,
    /// Dead processes whose clocks are not released yet.
    dead: Vec<ProcessId>,
    /// The news for the next round.
    next: TaintUpdate,
    /// The processes that did not answer in time, with the last round that they were told of.
    late: BTreeMap<ProcessId, u64>,
    /// The last death, to which a suspicion is attributed.
    last_dead: Option<ProcessId>,
}

impl Rounds {
    /// Adds a process. Returns the news that it must get before anything else, if there is any. No round
    /// waits for it before it is [ready](Self::ready).
    pub fn joined(&mut self, process: ProcessId) -> Option<TaintUpdate> {
        self.living.insert(process);
        self.opening.insert(process);
        let mut update = self.table.everything();
        // Certificates that the other processes were told outside of a round.
        update.deaths.extend_from_slice(&self.next.deaths);
        (!update.is_empty()).then_some(update)
    }

    /// Notes that a process that joined begins to work. It takes in all earlier news before it has a link to
    /// another process, because links come on the same socket.
    pub fn ready(&mut self, process: ProcessId) {
        self.opening.remove(&process);
    }

    /// Notes the death of a process; `values` are the last values of its clocks.
    pub fn died(&mut self, process: ProcessId, values: &[u64], now: Instant, acts: &mut Vec<Act>) {
        self.living.remove(&process);
        self.opening.remove(&process);
        let certificate = match self.table.suspected(process) {
            // Its work since it was suspected may depend on a release that it did not know of.
            Some(suspected) => Certificate { process, last: suspected.to_vec() },
            None => Certificate::new(process, values),
        };
        self.late.remove(&process);
        self.dead.push(process);
        self.last_dead = Some(process);
        self.waiting.remove(&process);
        if !self.waiting.is_empty() {
            // Told at once under the number of the present round, and again in the next round, whose answers
            // are waited for. A process sends the ranges that it marks because of it before its answer to
            // that round. An additional answer until then changes nothing.
            let update = TaintUpdate {
                round: self.round,
                deaths: vec![certificate.clone()],
                ..TaintUpdate::default()
            };
            acts.extend(self.living.iter().map(|to| Act::Tell(*to, update.clone())));
        }
        self.next.deaths.push(certificate);
        if self.waiting.is_empty() {
            self.go_on(now, acts);
        }
    }

    /// Returns all processes that have joined and not died.
    pub fn living(&self) -> impl Iterator<Item = ProcessId> {
        self.living.iter().copied()
    }

    /// Takes a process's answer to a round: the ranges of its own that depend on the news.
    pub fn answered(
        &mut self,
        by: ProcessId,
        round: u64,
        ranges: &[TaintRange],
        now: Instant,
        acts: &mut Vec<Act>,
    ) {
        if !self.living.contains(&by) {
            return;
        }
        self.next.ranges.extend(ranges);
        if self.late.get(&by).is_some_and(|last| round >= *last) {
            self.late.remove(&by);
            self.next.cleared.push(by);
        }
        if round == self.round {
            self.waiting.remove(&by);
        }
        if self.waiting.is_empty() {
            self.go_on(now, acts);
        }
    }

    /// Returns when to call [`overdue`](Self::overdue).
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Ends a round whose time is up, without the processes that have not answered, and returns those.
    /// `values` gives the present values of their clocks.
    pub fn overdue(
        &mut self,
        now: Instant,
        values: impl Fn(ProcessId) -> Vec<u64>,
        acts: &mut Vec<Act>,
    ) -> Vec<ProcessId> {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        let late: Vec<_> = std::mem::take(&mut self.waiting).into_iter().collect();
        for process in &late {
            let by = self.last_dead.unwrap_or(*process);
            self.next.suspects.push((Certificate::new(*process, &values(*process)), by));
            self.late.insert(*process, self.round);
        }
        self.go_on(now, acts);
        late
    }

    /// Begins the next round, or releases the dead, if everybody has answered.
    fn go_on(&mut self, now: Instant, acts: &mut Vec<Act>) {
        while self.waiting.is_empty() {
            self.deadline = None;
            if self.next.is_empty() {
                if !self.dead.is_empty() {
                    let dead = std::mem::take(&mut self.dead);
                    acts.push(Act::Release { round: self.round, dead });
                }
                return;
            }
            self.round += 1;
            let mut update = std::mem::take(&mut self.next);
            update.round = self.round;
            self.table.learn(&update);
            for process in &self.living {
                acts.push(Act::Tell(*process, update.clone()));
                match self.late.get_mut(process) {
                    Some(last) => *last = self.round,
                    None if self.opening.contains(process) => {}
                    None => {
                        self.waiting.insert(*process);
                    }
                }
            }
            self.deadline = (!self.waiting.is_empty()).then(|| now + WAIT_FOR_MARKS);
        }
    }
}

#[cfg(test)]
mod tests;
