//! Hints that tell, without a lock, that the [`Table`](super::Table) has nothing about a ticket. Nearly all
//! lookups after a death are for tickets of living processes, and cost two loads.
//!
//! A hint errs on one side only: it may send a thread to the table in vain. It is set after the table's
//! change and is never taken back, so a thread that is not sent there would have found nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{TaintRange, TaintUpdate};
use crate::clock::Ticket;
use crate::ids::ProcessId;
use crate::limits::{MAX_CERTIFICATES, MAX_STREAMS};

/// Four bits for each dead process that is remembered.
const WORDS: usize = 4 * MAX_CERTIFICATES / 64;
/// Number of living clocks with ranges, which worked for dead processes. If there are more, some share a
/// hint.
const CLOCKS: usize = 1 << 10;

/// See the module.
#[derive(Debug)]
pub(in crate::clock) struct Hints {
    /// A bit per process: it has died, or is suspected.
    processes: Box<[AtomicU64]>,
    /// Per clock: no range goes beyond this value.
    last: Box<[AtomicU64]>,
}

impl Default for Hints {
    fn default() -> Self {
        let zeros = |count| std::iter::repeat_with(AtomicU64::default).take(count).collect();
        Hints { processes: zeros(WORDS), last: zeros(CLOCKS) }
    }
}

/// Returns a hash with few collisions: the lives of a slot follow each other, and so do the slots.
fn spread(process: ProcessId) -> usize {
    let number = (process.incarnation() as usize) << 16 | process.slot();
    // Knuth, The Art of Computer Programming, 6.4: multiplication by 2^64 over the golden ratio.
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

fn clock(process: ProcessId, slot: u16) -> usize {
    spread(process).wrapping_mul(MAX_STREAMS).wrapping_add(usize::from(slot)) % CLOCKS
}

impl Hints {
    /// Returns whether the table may have something of a ticket.
    #[inline]
    pub(in crate::clock) fn may_have(&self, ticket: &Ticket) -> bool {
        let at = spread(ticket.process) % (WORDS * 64);
        self.processes[at / 64].load(Ordering::Acquire) & (1 << (at % 64)) != 0
            || self.last[clock(ticket.process, ticket.slot)].load(Ordering::Acquire) >= ticket.value
    }

    /// Sets the hint for a range that the table has.
    pub(in crate::clock) fn range(&self, range: &TaintRange) {
        // Clocks wrap, and a peer may send any numbers.
        let last = if range.from <= range.to { range.to } else { u64::MAX };
        self.last[clock(range.process, range.slot)].fetch_max(last, Ordering::Release);
    }

    /// Sets the hints for an update that the table has learnt.
    pub(in crate::clock) fn learn(&self, update: &TaintUpdate) {
        let suspects = update.suspects.iter().map(|(certificate, _)| certificate);
        for certificate in update.deaths.iter().chain(suspects) {
            let at = spread(certificate.process) % (WORDS * 64);
            self.processes[at / 64].fetch_or(1 << (at % 64), Ordering::Release);
        }
        update.ranges.iter().for_each(|range| self.range(range));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Certificate, Table};
    use super::*;

    fn process(number: u32) -> ProcessId {
        ProcessId::new(1 + (number % 40) as u16, number / 40).expect("in range")
    }

    proptest! {
        /// DEATH-3: the hints never hide an entry of the table.
        #[test]
        fn what_the_table_has_is_hinted_at(
            steps in prop::collection::vec((0..4_u8, 0..120_u32, 0..4_u16, any::<u64>(), 0..9_u64), 1..60),
            looks in prop::collection::vec((0..120_u32, 0..4_u16, 0..9_u64), 60),
        ) {
            let (mut table, hints) = (Table::default(), Hints::default());
            let mut values = vec![0, u64::MAX];
            for (round, (kind, number, slot, from, length)) in steps.into_iter().enumerate() {
                let round = round as u64 + 1;
                values.extend([from, from.wrapping_add(length)]);
                let certificate = Certificate { process: process(number), last: vec![from; 3] };
                let range =
                    TaintRange { process: process(number), slot, from, to: from.wrapping_add(length), by: process(1) };
                let update = TaintUpdate { round, ..TaintUpdate::default() };
                let update = match kind {
                    0 => TaintUpdate { deaths: vec![certificate], ..update },
                    1 => TaintUpdate { suspects: vec![(certificate, process(1))], ..update },
                    2 => TaintUpdate { ranges: vec![range], ..update },
                    _ => TaintUpdate { cleared: vec![process(number)], ..update },
                };
                table.learn(&update);
                hints.learn(&update);
            }
            for (number, slot, beyond) in looks {
                for value in &values {
                    let ticket = Ticket { process: process(number), slot, value: value.wrapping_add(beyond) };
                    prop_assert!(table.of(&ticket).is_none() || hints.may_have(&ticket), "{ticket:?}");
                }
            }
        }
    }

    #[test]
    fn the_living_are_not_sent_to_the_table() {
        let hints = Hints::default();
        let deaths =
            (0..10).map(|life| Certificate { process: process(40 * life), last: Vec::new() }).collect();
        let lost = TaintRange { process: process(7), slot: 2, from: 5, to: 1 << 20, by: process(0) };
        hints.learn(&TaintUpdate { round: 1, deaths, ranges: vec![lost], ..TaintUpdate::default() });
        let ticket = |number, value| Ticket { process: process(number), slot: 2, value };
        assert!((0..10).all(|life| hints.may_have(&ticket(40 * life, 9))));
        assert!(hints.may_have(&ticket(7, 9)) && !hints.may_have(&ticket(7, (1 << 20) + 1)));
        assert!((1..40).filter(|number| hints.may_have(&ticket(*number, 2 << 20))).count() <= 1);
    }
}
