//! Reports of a lease table on its entries, one by one and in total.

use std::time::Instant;

use super::{LeaseTable, Measured, Record, Sum};
use crate::ids::ProcessId;

/// The holders of one allocation, for the report of a full pool.
#[derive(Clone, Debug)]
pub struct EntryReport<'a, T> {
    /// The allocator's handle.
    pub block: &'a T,
    /// Leases of the owner's process.
    pub local: u32,
    /// Leases of others, by process.
    pub holders: &'a [(ProcessId, u32)],
    /// Since when the allocation has existed.
    pub since: Instant,
}

impl<T: Measured> LeaseTable<T> {
    /// Returns the sum of all open entries.
    pub fn open_sum(&self) -> Sum {
        self.sums.open
    }

    /// Returns the sum of the entries on which another process has a lease.
    pub fn lent_sum(&self) -> Sum {
        self.sums.lent
    }

    /// Returns the sum that the owner's own process holds.
    pub fn local_sum(&self) -> Sum {
        self.sums.local
    }

    /// Returns the sum that each other process holds.
    pub fn sums_of_others(&self) -> impl Iterator<Item = (ProcessId, Sum)> {
        self.sums.others()
    }

    /// Returns every open entry, for reports.
    pub fn report(&self) -> impl Iterator<Item = EntryReport<'_, T>> {
        self.entries.iter().filter_map(|slot| slot.record.as_ref()).map(Record::report)
    }
}

impl<T: Measured> Record<T> {
    pub(super) fn report(&self) -> EntryReport<'_, T> {
        #[cfg(test)]
        LOOKED_AT.set(LOOKED_AT.get() + 1);
        EntryReport { block: &self.block, local: self.local, holders: &self.holders, since: self.since }
    }
}

#[cfg(test)]
thread_local! {
    /// Entries that this thread has looked at for a report.
    pub(in crate::lease) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
