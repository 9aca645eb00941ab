//! The knowledge of a process about deaths, and the marking of their consequences in its own streams
//! (DEATH-3).
//!
//! A marked stream gives up a million clock values and goes on behind them. The reason: a use may have been
//! checked before the marking and enqueued after it. All values until the next handler begins (outside of
//! handlers: until the use after the next ticket) lie in the range that was reported to the node. This
//! process's table has the range before the stream may leave it. So nothing has to count the flushes that
//! could come in between; values cost nothing.
//!
//! Its users are all code that asks whether a ticket's data is there ([`ClockDomain::status`]), the streams,
//! which note their waits, and the control thread, which learns.
//!
//! **Invariants.** A value in a tainted range stays tainted; only a suspicion ends. A use is checked against
//! the table in the same step in which it is noted in its stream's log, so each use is either refused, or
//! found by the marking. This process says that it knows a round only when its own ranges of that round are
//! in its table.
//!
//! **Locks**, in the order in which they nest: a stream's state, its log, the table. The thread that marks
//! takes no stream's state: the holder of that lock may be blocked in the driver, behind the wait that the
//! marking is to end.
//!
//! **On a crash** of this process the node no longer waits for its answer. **On cancellation** nothing
//! happens: only host threads wait here, with a deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use super::taint::{EpochPage, Hints, StreamLog, Table, TaintRange, TaintUpdate, Tainted, TicketStatus};
use super::{ClockDomain, ClockError, Deadline, Ticket, UnknownClock, Waited};
use crate::ids::ProcessId;
use crate::limits::{MAX_DEAD_PAGES, MAX_PROCESSES, MAX_STREAMS};
use crate::os::lock::{Condvar, Mutex};

/// How long a host thread waits for its own process to learn the news that the node has sent to every
/// process. It takes as long as the process's control thread needs to be scheduled.
const CATCH_UP: Duration = Duration::from_secs(5);

/// Part of a [`ClockDomain`].
#[derive(Debug)]
pub(super) struct Knowledge {
    /// `None` outside of a node, where there are no deaths.
    epoch_page: Option<Arc<EpochPage>>,
    table: RwLock<Table>,
    /// Number of changes of the table. While it is zero, reading it is the only cost of a use. It is raised
    /// under the table's lock, last. So a thread that sees the new number finds the change, in the hints too,
    /// and a change that a thread finds has been counted.
    changes: AtomicU64,
    /// By slot: this process, and the processes whose unfinished data this process has, or had, in tensors.
    met: [AtomicU64; MAX_PROCESSES / 64],
    /// Whether anything in the table may concern a tensor of this process, because it is about a clock of a
    /// process that this one has met.
    concerns: AtomicBool,
    /// Tells without a lock that the table has nothing about a ticket; reading it is the cost of a use once
    /// the table has changed.
    hints: Hints,
    /// The round up to which this process has learnt and marked.
    round: AtomicU64,
    learnt: (Mutex<()>, Condvar),
    /// The logs, by clock of this process.
    logs: Box<[Arc<StreamLog>]>,
    /// The dead processes with pages still here, the oldest first.
    dead_pages: Mutex<Vec<ProcessId>>,
}

impl Knowledge {
    pub(super) fn new(epoch_page: Option<Arc<EpochPage>>) -> Self {
        Knowledge {
            epoch_page,
            table: RwLock::default(),
            changes: AtomicU64::new(0),
            met: Default::default(),
            concerns: AtomicBool::new(false),
            hints: Hints::default(),
            round: AtomicU64::new(0),
            learnt: Default::default(),
            logs: std::iter::repeat_with(Arc::default).take(MAX_STREAMS).collect(),
            dead_pages: Mutex::default(),
        }
    }

    /// Returns how many processes the node has, as it says; 0 where it has not said.
    pub(super) fn processes(&self) -> usize {
        self.epoch_page.as_ref().map_or(0, |epoch_page| epoch_page.processes())
    }

    /// Returns the process that passes on the messages from other hosts, as the node says.
    pub(super) fn gateway(&self) -> Option<ProcessId> {
        self.epoch_page.as_ref()?.gateway()
    }

    /// Returns whether this process knows the round that the epoch page demands by now.
    #[inline]
    fn is_current(&self) -> bool {
        let Some(epoch_page) = &self.epoch_page else { return true };
        // Acquire: the look at the table that follows sees everything that was learnt up to that round.
        self.round.load(Ordering::Acquire) >= epoch_page.round()
    }

    #[inline]
    fn any(&self) -> bool {
        self.changes.load(Ordering::Relaxed) != 0
    }

    fn of(&self, ticket: &Ticket) -> Option<ProcessId> {
        if self.any() && self.hints.may_have(ticket) { self.table.read().of(ticket) } else { None }
    }

    fn add(&self, range: &TaintRange) -> bool {
        let mut table = self.table.write();
        let added = table.add(range);
        // Set the hint after the table: a thread that sees the hint looks in the table.
        self.hints.range(range);
        self.changes.fetch_add(1, Ordering::Release);
        self.concern([range.process]);
        added
    }

    /// Notes that the table has learnt something about these processes.
    fn concern(&self, of: impl IntoIterator<Item = ProcessId>) {
        // MET: pairs with `meet_first`. The later of the two looks, this one or that one, finds the other's
        // store.
        fence(Ordering::SeqCst);
        let has_met = |process: ProcessId| {
            let (word, bit) = place(process);
            self.met[word].load(Ordering::Relaxed) & bit != 0
        };
        if of.into_iter().any(has_met) {
            self.concerns.store(true, Ordering::Release);
        }
    }

    /// Notes that a tensor of this process waits for the clock of `process`.
    #[inline]
    pub(super) fn meet(&self, process: ProcessId) {
        let (word, bit) = place(process);
        if self.met[word].load(Ordering::Relaxed) & bit == 0 {
            self.meet_first(word, bit);
        }
    }

    #[cold]
    fn meet_first(&self, word: usize, bit: u64) {
        self.met[word].fetch_or(bit, Ordering::Relaxed);
        // MET: pairs with `concern`.
        fence(Ordering::SeqCst);
        if self.any() {
            // The change may have been about this process.
            self.concerns.store(true, Ordering::Release);
        }
    }
}

/// Returns the place of a process's slot in [`Knowledge::met`]. Lives of one slot share it.
#[inline]
fn place(process: ProcessId) -> (usize, u64) {
    let slot = process.slot() % MAX_PROCESSES;
    (slot / 64, 1 << (slot % 64))
}

impl ClockDomain {
    /// Returns the state of a ticket, as far as this process knows. Never blocks.
    ///
    /// # Errors
    /// Its clock is not known here.
    pub fn status(&self, ticket: &Ticket) -> Result<TicketStatus, UnknownClock> {
        // The order of these checks matters: see `taint`, "Why passed is not enough".
        let passed = self.passed(ticket)?;
        let current = self.knowledge().is_current();
        Ok(match self.knowledge().of(ticket) {
            Some(by) => TicketStatus::Tainted(by),
            None if passed && current => TicketStatus::Ready,
            None => TicketStatus::Pending,
        })
    }

    /// Returns the process whose death tainted a ticket, as far as this process knows now.
    pub fn tainted_by(&self, ticket: &Ticket) -> Option<ProcessId> {
        self.knowledge().of(ticket)
    }

    /// Returns whether a tensor of this process may be tainted. If unfinished data of the dead process never
    /// came here, directly or through other processes, no tensor of this process is tainted, and no use has
    /// to check.
    #[inline]
    pub(crate) fn has_taint(&self) -> bool {
        self.knowledge().concerns.load(Ordering::Relaxed)
    }

    /// Notes that a tensor of this process is ready at `ticket`: from here on the fate of that clock concerns
    /// this process.
    #[inline]
    pub(crate) fn relies_on(&self, ticket: &Ticket) {
        self.knowledge().meet(ticket.process);
    }

    /// Returns how often this process has learnt of taint. While this number stays the same, so do the
    /// answers of [`tainted_by`](Self::tainted_by).
    pub(crate) fn taints_learnt(&self) -> u64 {
        self.knowledge().changes.load(Ordering::Acquire)
    }

    /// Waits, on this thread, until the data that a ticket stands for is there.
    ///
    /// # Errors
    /// The data will never be there ([`Tainted`]), or its clock is not known here.
    pub(crate) fn wait_for_data(
        &self,
        ticket: &Ticket,
        deadline: Option<Deadline>,
    ) -> Result<Waited, ClockError> {
        loop {
            // Check before the wait, so that nobody waits for data that will never be there, and again after
            // it, in `status`: the clock may have passed because of a release.
            if let Some(by) = self.tainted_by(ticket) {
                return Err(Tainted { ticket: *ticket, by }.into());
            }
            if self.wait(ticket, deadline)? == Waited::TimedOut || !self.catch_up(deadline) {
                return Ok(Waited::TimedOut);
            }
            // If it is not ready, it was tainted meanwhile, or another round has begun. The next turn of the
            // loop finds out.
            if self.status(ticket)? == TicketStatus::Ready {
                return Ok(Waited::Passed);
            }
        }
    }

    /// Waits until this process knows the round that the epoch page demands; returns false where that takes
    /// too long.
    fn catch_up(&self, deadline: Option<Deadline>) -> bool {
        let knowledge = self.knowledge();
        if knowledge.is_current() {
            return true;
        }
        let until = Instant::now() + CATCH_UP;
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        // Check under the lock: the learning thread raises the round before it takes the lock to wake this
        // thread.
        let mut learnt = knowledge.learnt.0.lock();
        while !knowledge.is_current() {
            if knowledge.learnt.1.wait_until(&mut learnt, until).timed_out() {
                return knowledge.is_current();
            }
        }
        true
    }

    /// Takes in an update of the node, marks its consequences, and returns the ranges of this process's own
    /// values that are newly tainted. The control thread calls it. It waits for no stream and no actor.
    pub fn learn(&self, update: &TaintUpdate) -> Vec<TaintRange> {
        let knowledge = self.knowledge();
        let mut update = update.clone();
        // Drop a suspicion against this process itself. The others do not believe it until it has answered,
        // but it knows its own losses: they are in ranges, which stay. The others will believe its meanwhile
        // work once it has answered.
        update.suspects.retain(|(suspect, _)| suspect.process != self.own());
        // The deaths go into the table before any log is read. A use that is noted later finds them there,
        // and is refused; a use that was noted before is in its log by now, and is marked below.
        let mut table = knowledge.table.write();
        if table.learn(&update) || !update.is_empty() {
            knowledge.hints.learn(&update);
            knowledge.changes.fetch_add(1, Ordering::Release);
            let of_ranges = update.ranges.iter().map(|range| range.process);
            let of_suspects = update.suspects.iter().map(|(suspect, _)| suspect.process);
            let of_deaths = update.deaths.iter().map(|death| death.process);
            knowledge.concern(of_ranges.chain(of_suspects).chain(of_deaths));
        }
        drop(table);
        // The table has the news before any log is read: a use that is noted from here on is checked against
        // it.
        let mut ranges = Vec::new();
        // Repeat until nothing changes, because streams of this process wait for each other. The loop ends:
        // each pass takes waits out of the logs, and a use of a value that is in the table by then is
        // refused.
        loop {
            let before = ranges.len();
            for (slot, log) in knowledge.logs.iter().enumerate() {
                let tainted =
                    |process, slot, from, to| knowledge.table.read().any_of(process, slot, from, to);
                log.mark(tainted, |from, to, by| {
                    let range = TaintRange { process: self.own(), slot: slot as u16, from, to, by };
                    // Add the range under the log's lock, before the stream may go on behind it, so that
                    // nobody finds one of these values good in between.
                    knowledge.add(&range);
                    ranges.push(range);
                });
            }
            if ranges.len() == before {
                break;
            }
        }
        // Raise the round only now: a thread that finds this process current has to find its own ranges too.
        knowledge.round.fetch_max(update.round, Ordering::AcqRel);
        let _learnt = knowledge.learnt.0.lock();
        knowledge.learnt.1.notify_all();
        ranges
    }

    /// Notes that the clocks of a dead process were released. Its page is kept for a while, for waits that
    /// are just being made.
    pub(crate) fn clocks_released(&self, process: ProcessId) {
        let forget = {
            let mut dead = self.knowledge().dead_pages.lock();
            if self.page_of(process).is_some() && !dead.contains(&process) {
                dead.push(process);
            }
            (dead.len() > MAX_DEAD_PAGES).then(|| dead.remove(0))
        };
        if let Some(process) = forget {
            self.remove_peer(process);
        }
    }

    /// Returns whether the process of a ticket is known to have died.
    pub(crate) fn knows_end_of(&self, ticket: &Ticket) -> bool {
        let knowledge = self.knowledge();
        knowledge.any() && knowledge.table.read().last_of(ticket.process, ticket.slot).is_some()
    }

    /// Returns the log of this process's clock `slot`.
    pub(crate) fn log(&self, slot: u16) -> Arc<StreamLog> {
        let logs = &self.knowledge().logs;
        logs.get(usize::from(slot)).map_or_else(Arc::default, Arc::clone)
    }

    /// Marks all work that a stream is given from here on, until it may go on behind the range: it was given
    /// work on tainted data in a way that could not be refused. All code in this process that asks about the
    /// resulting tensors is told; no other process can have a ticket of that work yet.
    #[cfg(feature = "cuda")]
    pub(crate) fn mark_now(&self, slot: u16, by: ProcessId) {
        self.log(slot).mark_now(|from, to| {
            self.knowledge().add(&TaintRange { process: self.own(), slot, from, to, by });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::ClockPage;
    use super::super::taint::Certificate;
    use super::*;

    fn process(slot: u16) -> ProcessId {
        ProcessId::new(slot, 0).expect("a small slot")
    }

    fn domain() -> Arc<ClockDomain> {
        ClockDomain::with_epoch_page(process(0), ClockPage::create().expect("memory"), None)
    }

    fn ticket(of: u16, value: u64) -> Ticket {
        Ticket { process: process(of), slot: 2, value }
    }

    fn death(of: u16) -> TaintUpdate {
        let deaths = vec![Certificate::new(process(of), &[0, 0, 5])];
        TaintUpdate { round: u64::from(of), deaths, ..TaintUpdate::default() }
    }

    /// DEATH-3: a process is concerned only by the deaths of processes whose data it has.
    #[test]
    fn only_who_wrote_what_is_here_concerns_a_process() {
        let here = domain();
        here.relies_on(&ticket(1, 3));
        here.learn(&death(2));
        assert!(!here.has_taint(), "nothing of it ever came");
        assert_eq!(here.tainted_by(&ticket(2, 6)), Some(process(2)), "it is known all the same");
        here.learn(&death(1));
        assert!(here.has_taint());

        let here = domain();
        here.learn(&death(2));
        assert!(!here.has_taint());
        here.relies_on(&ticket(2, 6));
        assert!(here.has_taint(), "it came after the death, over somebody who lives");
    }

    #[test]
    fn ranges_and_suspicions_concern_a_process_too() {
        let range = |of| TaintRange { process: process(of), slot: 2, from: 5, to: 9, by: process(7) };
        let ranges = |of| TaintUpdate { round: 1, ranges: vec![range(of)], ..TaintUpdate::default() };
        let here = domain();
        here.learn(&ranges(1));
        assert!(!here.has_taint());
        here.learn(&ranges(0));
        assert!(here.has_taint(), "its own work");

        let here = domain();
        here.relies_on(&ticket(1, 3));
        here.learn(&ranges(1));
        assert!(here.has_taint(), "of one that lives, and worked for the dead");

        let here = domain();
        here.relies_on(&ticket(1, 3));
        let suspects = vec![(Certificate::new(process(1), &[0, 0, 5]), process(7))];
        here.learn(&TaintUpdate { round: 1, suspects, ..TaintUpdate::default() });
        assert!(here.has_taint());
    }
}
