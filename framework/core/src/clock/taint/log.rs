//! The log of a stream's waits, so that a death can be traced through the stream.
//!
//! There is one log per clock, for as long as the process lives: a stream may be dropped while its work goes
//! on.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::clock::{Ticket, passed};
use crate::ids::ProcessId;

/// Number of entries above which finished ones are removed.
const PRUNE_AT: usize = 16;

/// Number of entries above which those of one clock are merged into one (MBX-2).
const MERGE_AT: usize = 1024;

/// Number of its own values that a stream gives up when it is marked.
///
/// A use may have been checked before the marking and enqueued after it. All values that are written until
/// the stream has reached a point where no such use can be left are in the marked range; then it goes on
/// behind the range. A stream writes a handful of values until then, and values cost nothing.
const MARGIN: u64 = 1 << 20;

/// The waits of one stream that may not be over. It is pure: it has no lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Log {
    waits: Vec<Wait>,
    prune_at: usize,
}

/// Work that stands behind this own value, or a later one, comes after a wait for one of these values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Wait {
    position: u64,
    process: ProcessId,
    slot: u16,
    from: u64,
    to: u64,
}

/// The first own value that is tainted, and the process whose death tainted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// The first tainted value; all after it are tainted too.
    pub from: u64,
    /// The process that died.
    pub by: ProcessId,
}

impl Log {
    /// Notes that work behind own value `position` comes after a wait for `ticket`. `is_over` says whether a
    /// ticket's data is there for good, which ends an older note.
    pub fn push(&mut self, position: u64, ticket: &Ticket, is_over: impl Fn(&Ticket) -> bool) {
        let Ticket { process, slot, value } = *ticket;
        let known =
            |wait: &Wait| (wait.process, wait.slot, wait.from, wait.to) == (process, slot, value, value);
        // An earlier position covers this one.
        if self.waits.iter().any(known) {
            return;
        }
        self.waits.push(Wait { position, process, slot, from: value, to: value });
        if self.waits.len() <= self.prune_at.max(PRUNE_AT) {
            return;
        }
        self.waits.retain(|wait| {
            let ticket = |value| Ticket { process: wait.process, slot: wait.slot, value };
            !(is_over(&ticket(wait.to)) && is_over(&ticket(wait.from)))
        });
        if self.waits.len() > MERGE_AT {
            self.merge();
        }
        self.prune_at = 2 * self.waits.len();
    }

    /// Merges the entries of each clock into one: the values between them then count as waited for.
    fn merge(&mut self) {
        let mut merged: Vec<Wait> = Vec::new();
        for wait in self.waits.drain(..) {
            match merged.iter_mut().find(|known| (known.process, known.slot) == (wait.process, wait.slot)) {
                Some(known) => {
                    known.position = known.position.min(wait.position);
                    known.from = known.from.min(wait.from);
                    known.to = known.to.max(wait.to);
                }
                None => merged.push(wait),
            }
        }
        self.waits = merged;
    }

    /// Takes out the waits for values that are tainted now, and returns the first own value that is tainted
    /// by them. `tainted` gets a clock and the first and last of its values, and returns the process whose
    /// death tainted any of them.
    pub fn mark(
        &mut self,
        tainted: impl Fn(ProcessId, u16, u64, u64) -> Option<ProcessId>,
    ) -> Option<Marked> {
        let mut marked: Option<Marked> = None;
        self.waits.retain(|wait| {
            let Some(by) = tainted(wait.process, wait.slot, wait.from, wait.to) else { return true };
            if marked.is_none_or(|marked| !passed(wait.position, marked.from)) {
                marked = Some(Marked { from: wait.position, by });
            }
            false
        });
        marked
    }

    /// Returns the number of waits in it.
    #[cfg(any(test, feature = "inside"))]
    pub fn len(&self) -> usize {
        self.waits.len()
    }

    /// Whether there are none.
    #[cfg(any(test, feature = "inside"))]
    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }
}

/// A [`Log`] with its state, shared between the stream and the thread that marks.
///
/// Its lock is held for a few comparisons only, never during a driver call: a submitter may be blocked in the
/// driver, behind the very wait that the marking is to end.
#[derive(Debug, Default)]
pub(crate) struct StreamLog {
    /// The last clock write that the stream enqueued.
    written: AtomicU64,
    /// The value from which the stream goes on as soon as it may; 0 for none.
    floor: AtomicU64,
    log: Mutex<Log>,
}

impl StreamLog {
    /// Notes the stream's last clock write.
    pub(crate) fn set_written(&self, value: u64) {
        self.written.store(value, Ordering::Relaxed);
    }

    /// Returns the earliest own value that can stand for work that is enqueued now.
    pub(crate) fn next(&self) -> u64 {
        self.written.load(Ordering::Relaxed) + 1
    }

    /// Returns whether the stream was marked, and has not yet gone on behind the range.
    pub(crate) fn is_marked(&self) -> bool {
        // Pairs with TAINT-RELEASE in `give_up`.
        self.floor.load(Ordering::Acquire) != 0
    }

    /// Checks tickets and notes them, in one step as the marking sees it: either the marking finds the note,
    /// or the check finds the taint that it has marked.
    ///
    /// # Errors
    /// The first ticket that is tainted, with the process whose death tainted it. Tickets before it may be
    /// noted, which is harmless.
    pub(crate) fn push(
        &self,
        position: u64,
        tickets: &[Ticket],
        tainted_by: impl Fn(&Ticket) -> Option<ProcessId>,
        is_over: impl Fn(&Ticket) -> bool,
    ) -> Result<(), (Ticket, ProcessId)> {
        let mut log = self.log.lock();
        for ticket in tickets {
            if let Some(by) = tainted_by(ticket) {
                return Err((*ticket, by));
            }
            log.push(position, ticket, &is_over);
        }
        Ok(())
    }

    /// Marks the range of own values that depends on values that are tainted now. See [`Log::mark`].
    ///
    /// `add` makes the range known in this process, with the process whose death tainted it. It is called
    /// before the stream can go on behind the range: work with a ticket from there must find the values in
    /// the range tainted.
    pub(crate) fn mark(
        &self,
        tainted: impl Fn(ProcessId, u16, u64, u64) -> Option<ProcessId>,
        add: impl FnOnce(u64, u64, ProcessId),
    ) {
        let mut log = self.log.lock();
        let Some(Marked { from, by }) = log.mark(tainted) else { return };
        self.give_up(|to| add(from, to, by));
    }

    /// Marks as [`mark`](Self::mark) does, for work that is about to be enqueued and known to be worthless.
    #[cfg(feature = "cuda")]
    pub(crate) fn mark_now(&self, add: impl FnOnce(u64, u64)) {
        let _log = self.log.lock();
        // Begin one value back: a tensor that the same launch writes may have been noted before a flush.
        let from = self.written.load(Ordering::Relaxed).max(1);
        self.give_up(|to| add(from, to));
    }

    fn give_up(&self, add: impl FnOnce(u64)) {
        let written = self.written.load(Ordering::Relaxed);
        let to = (written + MARGIN).max(self.floor.load(Ordering::Relaxed).saturating_sub(1));
        add(to);
        // TAINT-RELEASE: a thread that finds the mark finds the range.
        self.floor.store(to + 1, Ordering::Release);
    }

    /// Returns the last value of the marked range, behind which the stream goes on, and clears the mark. The
    /// stream calls it with its state locked.
    pub(crate) fn leave_range(&self, written: u64) -> u64 {
        let _log = self.log.lock();
        let written = written.max(self.floor.swap(0, Ordering::Relaxed).saturating_sub(1));
        self.written.store(written, Ordering::Relaxed);
        written
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Certificate, Table, TaintRange, TaintUpdate};
    use super::*;

    fn mark(log: &mut Log, table: &Table) -> Option<Marked> {
        log.mark(|process, slot, from, to| table.any_of(process, slot, from, to))
    }

    fn process(slot: u16) -> ProcessId {
        ProcessId::new(slot, 0).expect("a small slot")
    }

    fn ticket(of: u16, value: u64) -> Ticket {
        Ticket { process: process(of), slot: 0, value }
    }

    fn dead(of: u16, last: u64) -> Table {
        let mut table = Table::default();
        let deaths = vec![Certificate::new(process(of), &[last])];
        table.learn(&TaintUpdate { round: 1, deaths, ..TaintUpdate::default() });
        table
    }

    /// DEATH-3: from the first wait for something missing, and no earlier.
    #[test]
    fn what_comes_after_the_first_missing_value_is_marked() {
        let mut log = Log::default();
        for (position, value) in [(1, 3), (4, 5), (9, 7)] {
            log.push(position, &ticket(1, value), |_| false);
        }
        log.push(2, &ticket(2, 8), |_| false);
        assert_eq!(mark(&mut log, &dead(1, 7)), None);
        assert_eq!(mark(&mut log, &dead(1, 4)), Some(Marked { from: 4, by: process(1) }));
        assert_eq!((log.len(), mark(&mut log, &dead(1, 4))), (2, None), "marked once");
    }

    /// A higher value of the same clock may be good where a lower one is in a range: each is noted.
    #[test]
    fn a_use_that_needed_no_wait_is_noted_too() {
        let mut log = Log::default();
        log.push(1, &ticket(1, 9), |_| false);
        log.push(5, &ticket(1, 4), |_| false);
        log.push(6, &ticket(1, 4), |_| false);
        assert_eq!(log.len(), 2);
        let mut table = Table::default();
        table.add(&TaintRange { process: process(1), slot: 0, from: 3, to: 4, by: process(7) });
        assert_eq!(mark(&mut log, &table), Some(Marked { from: 5, by: process(7) }));
    }

    /// MBX-2.
    #[test]
    fn waits_that_are_over_go_and_too_many_are_merged() {
        let mut log = Log::default();
        for value in 1..=10_000 {
            log.push(value, &ticket(1, value), |ticket| ticket.value + 10 < value);
            assert!(log.len() <= 2 * PRUNE_AT + 12);
        }
        for value in 10_001..=20_000 {
            log.push(value, &ticket(1, value), |_| false);
            assert!(log.len() <= 2 * MERGE_AT + 2, "{}", log.len());
        }
        assert!(mark(&mut log, &dead(1, 19_999)).is_some_and(|marked| marked.from <= 20_000));
    }

    #[test]
    fn a_marked_stream_goes_on_behind_its_range() {
        let log = StreamLog::default();
        log.set_written(6);
        log.push(log.next(), &[ticket(1, 5)], |_| None, |_| false).expect("nothing is tainted");
        let table = dead(1, 4);
        let mut marked = None;
        let add = |from, to, by| {
            assert!(!log.is_marked(), "the range is known before the stream may leave it");
            marked = Some((from, to, by));
        };
        log.mark(|process, slot, from, to| table.any_of(process, slot, from, to), add);
        let (from, to, by) = marked.expect("it waits");
        assert_eq!((from, by, log.is_marked()), (7, process(1), true));
        let late = log.push(8, &[ticket(1, 5)], |ticket| dead(1, 4).of(ticket), |_| false);
        assert_eq!(late, Err((ticket(1, 5), process(1))));
        assert_eq!(log.leave_range(7), to);
        assert_eq!((log.next(), log.is_marked()), (to + 1, false));
    }
}
