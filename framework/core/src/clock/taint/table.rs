//! The table of tainted values, as every process has it. It is pure: it has no clock and no lock.
//!
//! It is bounded (MBX-2). Ranges of one clock beyond [`MAX_TAINT_RANGES`] are merged, the oldest first. The
//! values between them count as tainted then, so a use of good data may fail, but lost data never passes for
//! good. The table keeps the last [`MAX_CERTIFICATES`] dead processes; a ticket of one that was dropped is a
//! ticket of an unknown clock, which is an error too.

use std::collections::{BTreeMap, VecDeque};

use super::{Certificate, TaintRange, TaintUpdate};
use crate::clock::{Ticket, passed};
use crate::ids::ProcessId;
use crate::limits::{MAX_CERTIFICATES, MAX_TAINT_RANGES};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Table {
    processes: BTreeMap<ProcessId, Entry>,
    /// The dead processes, the oldest first.
    dead: VecDeque<ProcessId>,
    /// The last round that the table has.
    round: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Entry {
    /// Set when the process has died.
    last: Option<Vec<u64>>,
    /// Set while the process is suspected, with the process whose death it did not answer for.
    suspect: Option<(Vec<u64>, ProcessId)>,
    /// Per clock, disjoint ranges in the order of their values.
    ranges: BTreeMap<u16, Vec<Span>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Span {
    from: u64,
    to: u64,
    by: ProcessId,
}

impl Entry {
    /// Returns the process whose death tainted any value in `from..=to` of a clock, if one is tainted.
    fn hit(&self, process: ProcessId, slot: u16, from: u64, to: u64) -> Option<ProcessId> {
        let beyond = |last: &[u64]| !passed(last.get(usize::from(slot)).copied().unwrap_or(0), to);
        if self.last.as_deref().is_some_and(beyond) {
            return Some(process);
        }
        let spans = self.ranges.get(&slot).into_iter().flatten();
        let mut spans = spans.filter(|span| passed(span.to, from) && passed(to, span.from));
        let by = spans.next().map(|span| span.by);
        by.or_else(|| self.suspect.as_ref().filter(|(last, _)| beyond(last)).map(|(_, by)| *by))
    }

    fn add(&mut self, range: &TaintRange) -> bool {
        let spans = self.ranges.entry(range.slot).or_default();
        if spans.iter().any(|span| passed(range.from, span.from) && passed(span.to, range.to)) {
            return false;
        }
        let mut new = Span { from: range.from, to: range.to, by: range.by };
        spans.retain(|span| {
            // Ranges that touch the new one are merged with it.
            let apart =
                !passed(span.to.wrapping_add(1), new.from) || !passed(new.to.wrapping_add(1), span.from);
            if !apart {
                new.by = span.by;
                new.from = if passed(new.from, span.from) { span.from } else { new.from };
                new.to = if passed(span.to, new.to) { span.to } else { new.to };
            }
            apart
        });
        let at = spans.iter().position(|span| passed(span.from, new.from)).unwrap_or(spans.len());
        spans.insert(at, new);
        if spans.len() > MAX_TAINT_RANGES {
            let second = spans.remove(1);
            spans[0].to = second.to;
        }
        true
    }
}

impl Table {
    /// Takes an update in. Returns whether anything in it was new.
    pub fn learn(&mut self, update: &TaintUpdate) -> bool {
        let before = self.round;
        self.round = self.round.max(update.round);
        let mut changed = self.round != before && !update.is_empty();
        for Certificate { process, last } in &update.deaths {
            let entry = self.processes.entry(*process).or_default();
            if entry.last.is_none() {
                entry.last = Some(last.clone());
                entry.suspect = None;
                self.dead.push_back(*process);
                changed = true;
            }
        }
        for range in &update.ranges {
            changed |= self.processes.entry(range.process).or_default().add(range);
        }
        for (Certificate { process, last }, by) in &update.suspects {
            let entry = self.processes.entry(*process).or_default();
            // A certificate is final: a dead process is not suspected any more.
            if entry.last.is_none() {
                entry.suspect = Some((last.clone(), *by));
            }
        }
        for process in &update.cleared {
            if let Some(entry) = self.processes.get_mut(process) {
                entry.suspect = None;
            }
        }
        // Drop old processes last: the ranges of this update would otherwise bring a dropped one back.
        while self.dead.len() > MAX_CERTIFICATES {
            if let Some(process) = self.dead.pop_front() {
                self.processes.remove(&process);
            }
        }
        changed
    }

    /// Adds one range. Returns whether it was new.
    pub fn add(&mut self, range: &TaintRange) -> bool {
        self.processes.entry(range.process).or_default().add(range)
    }

    /// Returns the process whose death tainted a ticket, if it is.
    pub fn of(&self, ticket: &Ticket) -> Option<ProcessId> {
        self.any_of(ticket.process, ticket.slot, ticket.value, ticket.value)
    }

    /// Returns the same as [`of`](Self::of), for any of the values `from..=to` of a clock.
    pub fn any_of(&self, process: ProcessId, slot: u16, from: u64, to: u64) -> Option<ProcessId> {
        self.processes.get(&process)?.hit(process, slot, from, to)
    }

    /// Returns the last value of a clock of a process that died; `None` where it is not known to have died.
    pub fn last_of(&self, process: ProcessId, slot: u16) -> Option<u64> {
        let last = self.processes.get(&process)?.last.as_ref()?;
        Some(last.get(usize::from(slot)).copied().unwrap_or(0))
    }

    /// Returns how far a suspected process had come when it was first suspected.
    pub fn suspected(&self, process: ProcessId) -> Option<&[u64]> {
        self.processes.get(&process)?.suspect.as_ref().map(|(last, _)| last.as_slice())
    }

    /// Returns the processes that the table knows something about.
    #[cfg(any(test, feature = "inside"))]
    pub fn processes(&self) -> impl Iterator<Item = ProcessId> {
        self.processes.keys().copied()
    }

    /// The last round that the table has.
    #[cfg(any(test, feature = "inside"))]
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Returns the whole table, for a process that joins.
    pub fn everything(&self) -> TaintUpdate {
        let mut update = TaintUpdate { round: self.round, ..TaintUpdate::default() };
        for process in &self.dead {
            if let Some(last) = self.processes.get(process).and_then(|entry| entry.last.clone()) {
                update.deaths.push(Certificate { process: *process, last });
            }
        }
        for (process, entry) in &self.processes {
            for (slot, spans) in &entry.ranges {
                update.ranges.extend(spans.iter().map(|span| TaintRange {
                    process: *process,
                    slot: *slot,
                    from: span.from,
                    to: span.to,
                    by: span.by,
                }));
            }
            if let Some((last, by)) = &entry.suspect {
                update.suspects.push((Certificate { process: *process, last: last.clone() }, *by));
            }
        }
        update
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(slot: u16) -> ProcessId {
        ProcessId::new(slot, 0).expect("a small slot")
    }

    fn ticket(of: u16, value: u64) -> Ticket {
        Ticket { process: process(of), slot: 2, value }
    }

    fn range(from: u64, to: u64) -> TaintRange {
        TaintRange { process: process(1), slot: 2, from, to, by: process(9) }
    }

    /// DEATH-1: values that the dead process had written are good, and later ones are not.
    #[test]
    fn a_certificate_parts_the_good_from_the_tainted() {
        let mut table = Table::default();
        let death = Certificate::new(process(1), &[0, 0, 5, 0]);
        assert_eq!(death.last.len(), 3, "zeros at the end need not travel");
        assert!(table.learn(&TaintUpdate {
            round: 1,
            deaths: vec![death.clone()],
            ..TaintUpdate::default()
        }));
        assert_eq!((table.of(&ticket(1, 5)), table.of(&ticket(1, 6))), (None, Some(process(1))));
        assert_eq!(table.of(&Ticket { slot: 7, ..ticket(1, 1) }), Some(process(1)), "never left zero");
        assert_eq!(table.of(&ticket(2, 6)), None);
        assert!(
            !table.learn(&TaintUpdate { round: 1, deaths: vec![death], ..TaintUpdate::default() }),
            "known already"
        );
        let mut joiner = Table::default();
        joiner.learn(&table.everything());
        assert_eq!(joiner, table);
    }

    #[test]
    fn ranges_that_touch_become_one_and_too_many_are_merged_from_the_oldest() {
        let mut table = Table::default();
        assert!(table.add(&range(10, 12)) && table.add(&range(20, 22)) && !table.add(&range(11, 12)));
        assert!(table.add(&range(13, 19)));
        assert_eq!(table.everything().ranges, [range(10, 22)]);
        for at in 1..MAX_TAINT_RANGES as u64 + 3 {
            assert!(table.add(&range(100 * at, 100 * at + 1)));
        }
        let ranges = table.everything().ranges;
        assert_eq!((ranges.len(), ranges[0]), (MAX_TAINT_RANGES, range(10, 301)));
        // MBX-2: good data may count as tainted, never the reverse.
        for at in 1..MAX_TAINT_RANGES as u64 + 3 {
            assert_eq!(table.of(&ticket(1, 100 * at)), Some(process(9)));
        }
        assert_eq!((table.of(&ticket(1, 9)), table.of(&ticket(1, 402))), (None, None));
    }

    #[test]
    fn a_suspect_is_believed_again_when_it_has_answered() {
        let mut table = Table::default();
        let suspect = Certificate::new(process(1), &[0, 0, 5]);
        let suspects = vec![(suspect, process(9))];
        table.learn(&TaintUpdate { round: 2, suspects, ..TaintUpdate::default() });
        assert_eq!((table.of(&ticket(1, 5)), table.of(&ticket(1, 6))), (None, Some(process(9))));
        table.learn(&TaintUpdate {
            round: 3,
            ranges: vec![range(8, 9)],
            cleared: vec![process(1)],
            ..TaintUpdate::default()
        });
        assert_eq!((table.of(&ticket(1, 6)), table.of(&ticket(1, 8))), (None, Some(process(9))));
    }

    /// MBX-2.
    #[test]
    fn the_oldest_dead_are_forgotten() {
        let mut table = Table::default();
        for life in 0..=MAX_CERTIFICATES as u32 {
            let process = ProcessId::new(3, life).expect("in range");
            let deaths = vec![Certificate::new(process, &[7])];
            table.learn(&TaintUpdate { round: 1, deaths, ..TaintUpdate::default() });
        }
        assert_eq!(table.last_of(ProcessId::new(3, 0).expect("in range"), 0), None);
        assert_eq!(table.last_of(ProcessId::new(3, 1).expect("in range"), 0), Some(7));
    }
}
