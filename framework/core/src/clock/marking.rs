//! What a process knows of deaths, and how it marks what follows from them in its own streams (DEATH-3).
//!
//! A marked stream gives up a million clock values and goes on behind them. A use may have been checked before the
//! marking and enqueued after it. All values until the next handler begins (outside of handlers: until the use after
//! the next ticket) lie in the range that was told to the node, and this process's table has the range before the
//! stream may leave it. So nobody has to count how many flushes could come in between; values cost nothing.
//!
//! Used by everything that asks whether a ticket's data is there ([`ClockDomain::status`]), by streams, which note what
//! they wait for, and by the control thread, which learns.
//!
//! **Invariants.** A value in a tainted range stays tainted; only a suspicion ends. A use is checked against the table in
//! the same step in which it is noted in its stream's log, so each use is either refused, or found by the marking. This
//! process says that it knows a round only when its own ranges of that round are in its table.
//!
//! **Locks**, in the order in which they nest: a stream's state, its log, the table. The thread that marks takes no
//! stream's state: whoever holds that may be blocked in the driver, behind the wait that the marking is to end.
//!
//! **On a crash** of this process the node no longer waits for its answer. **On cancellation** nothing happens: only host
//! threads wait here, with a deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use super::taint::{EpochPage, Hints, StreamLog, Table, TaintRange, TaintUpdate, Tainted, TicketStatus};
use super::{ClockDomain, ClockError, Deadline, Ticket, UnknownClock, Waited};
use crate::ids::ProcessId;
use crate::limits::{MAX_DEAD_PAGES, MAX_STREAMS};

/// How long a host thread waits for its own process to learn what the node has told everybody. It takes as long as
/// the process's control thread needs to be scheduled.
const CATCH_UP: Duration = Duration::from_secs(5);

/// Part of a [`ClockDomain`].
#[derive(Debug)]
pub(super) struct Knowledge {
    /// `None` outside of a node: nobody dies there.
    epoch_page: Option<Arc<EpochPage>>,
    table: RwLock<Table>,
    /// How often the table has changed: where it never has, that is the one look that uses cost. Raised under the table's lock,
    /// last: whoever sees it finds the change, in the hints too, and whoever found a change has it counted.
    changes: AtomicU64,
    /// Of what the table has nothing: the look that uses cost afterwards.
    hints: Hints,
    /// The round up to which this process has learnt and marked.
    round: AtomicU64,
    learnt: (Mutex<()>, Condvar),
    /// By clock of this process.
    logs: Box<[Arc<StreamLog>]>,
    /// The dead whose pages are still here, the oldest first.
    dead_pages: Mutex<Vec<ProcessId>>,
}

impl Knowledge {
    pub(super) fn new(epoch_page: Option<Arc<EpochPage>>) -> Self {
        Knowledge {
            epoch_page,
            table: RwLock::default(),
            changes: AtomicU64::new(0),
            hints: Hints::default(),
            round: AtomicU64::new(0),
            learnt: Default::default(),
            logs: std::iter::repeat_with(Arc::default).take(MAX_STREAMS).collect(),
            dead_pages: Mutex::default(),
        }
    }

    /// Whether this process knows what everybody must know by now.
    #[inline]
    fn is_current(&self) -> bool {
        let Some(epoch_page) = &self.epoch_page else { return true };
        // Acquire: what was learnt up to that round is seen by the look at the table that follows.
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
        // Behind the table: who sees this looks there.
        self.hints.range(range);
        self.changes.fetch_add(1, Ordering::Release);
        added
    }
}

impl ClockDomain {
    /// The state of a ticket, as far as this process knows. Never blocks.
    ///
    /// # Errors
    /// Its clock is not known here.
    pub fn status(&self, ticket: &Ticket) -> Result<TicketStatus, UnknownClock> {
        // In this order: see `taint`, "Why passed is not enough".
        let passed = self.passed(ticket)?;
        let current = self.knowledge().is_current();
        Ok(match self.knowledge().of(ticket) {
            Some(by) => TicketStatus::Tainted(by),
            None if passed && current => TicketStatus::Ready,
            None => TicketStatus::Pending,
        })
    }

    /// The process whose death tainted a ticket, as far as this process knows now.
    pub fn tainted_by(&self, ticket: &Ticket) -> Option<ProcessId> {
        self.knowledge().of(ticket)
    }

    /// Whether anything at all is tainted.
    #[inline]
    pub(crate) fn has_taint(&self) -> bool {
        self.knowledge().any()
    }

    /// How often this process has learnt that something is tainted. While it stands, so does what [`tainted_by`](Self::tainted_by)
    /// says.
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
            // Before the wait, so that nobody waits for what will never be, and after it, in `status`: the clock may
            // have passed because of a release.
            if let Some(by) = self.tainted_by(ticket) {
                return Err(Tainted { ticket: *ticket, by }.into());
            }
            if self.wait(ticket, deadline)? == Waited::TimedOut || !self.catch_up(deadline) {
                return Ok(Waited::TimedOut);
            }
            // If not, it was tainted meanwhile, or another round has begun. The next turn of the loop tells which.
            if self.status(ticket)? == TicketStatus::Ready {
                return Ok(Waited::Passed);
            }
        }
    }

    /// Waits until this process knows what everybody must know; false where that takes too long.
    fn catch_up(&self, deadline: Option<Deadline>) -> bool {
        let knowledge = self.knowledge();
        if knowledge.is_current() {
            return true;
        }
        let until = Instant::now() + CATCH_UP;
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        // Looked at under the lock: the round is raised before whoever learns takes it to wake us.
        let mut learnt = knowledge.learnt.0.lock();
        while !knowledge.is_current() {
            if knowledge.learnt.1.wait_until(&mut learnt, until).timed_out() {
                return knowledge.is_current();
            }
        }
        true
    }

    /// Takes in what the node says, marks what follows from it, and returns the ranges of this process's own values
    /// that are tainted now and were not before. On the control thread; waits for no stream and no actor.
    pub fn learn(&self, update: &TaintUpdate) -> Vec<TaintRange> {
        let knowledge = self.knowledge();
        let mut update = update.clone();
        // Others do not believe it until it has answered. It knows better itself: what is lost of its own is in ranges,
        // and they stay. What it does meanwhile will be believed.
        update.suspects.retain(|(suspect, _)| suspect.process != self.own());
        // The deaths go into the table before any log is looked at. A use that is noted behind that finds them, and is
        // refused; one that was noted before is in its log by now, and is marked below.
        let mut table = knowledge.table.write();
        if table.learn(&update) || !update.is_empty() {
            knowledge.hints.learn(&update);
            knowledge.changes.fetch_add(1, Ordering::Release);
        }
        drop(table);
        // The table has the news before any log is looked at: a use that is noted from here on is checked against it.
        let mut ranges = Vec::new();
        // Streams of this process wait for each other: until nothing changes. It ends, because each round takes waits out of
        // the logs, and a use of what is in the table by then is refused.
        loop {
            let before = ranges.len();
            for (slot, log) in knowledge.logs.iter().enumerate() {
                let tainted =
                    |process, slot, from, to| knowledge.table.read().any_of(process, slot, from, to);
                log.mark(tainted, |from, to, by| {
                    let range = TaintRange { process: self.own(), slot: slot as u16, from, to, by };
                    // Under the log's lock, before the stream may go on behind the range: nobody finds one of these values
                    // good in between.
                    knowledge.add(&range);
                    ranges.push(range);
                });
            }
            if ranges.len() == before {
                break;
            }
        }
        // Only now: who finds this process current has to find its own ranges too.
        knowledge.round.fetch_max(update.round, Ordering::AcqRel);
        let _learnt = knowledge.learnt.0.lock();
        knowledge.learnt.1.notify_all();
        ranges
    }

    /// The clocks of a process that died were released. Its page is kept for a while, for waits that are being made.
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

    /// Whether the process of a ticket is known to have died.
    pub(crate) fn knows_end_of(&self, ticket: &Ticket) -> bool {
        let knowledge = self.knowledge();
        knowledge.any() && knowledge.table.read().last_of(ticket.process, ticket.slot).is_some()
    }

    /// The log of this process's clock `slot`.
    pub(crate) fn log(&self, slot: u16) -> Arc<StreamLog> {
        let logs = &self.knowledge().logs;
        logs.get(usize::from(slot)).map_or_else(Arc::default, Arc::clone)
    }

    /// Marks everything that a stream is given from here on, until it may go on behind the range: it was given work on
    /// tainted data in a way that could not be refused. Who asks this process for its tensors is told; nobody else can
    /// have a ticket of that work yet.
    #[cfg(feature = "cuda")]
    pub(crate) fn mark_now(&self, slot: u16, by: ProcessId) {
        self.log(slot).mark_now(|from, to| {
            self.knowledge().add(&TaintRange { process: self.own(), slot, from, to, by });
        });
    }
}
