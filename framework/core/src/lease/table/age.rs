//! The open entries of a lease table in the order in which they were opened, as a linked list through the
//! entries themselves. A caller that asks for the oldest ones visits few entries, and opening or closing an
//! entry touches only its two neighbours.

use super::{Entry, EntryReport, LeaseTable, Measured, Record};

/// No entry: a table never has this many.
const NONE: u32 = u32::MAX;

/// The numbers of two neighbouring entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    older: u32,
    newer: u32,
}

impl Default for Links {
    fn default() -> Self {
        Links { older: NONE, newer: NONE }
    }
}

impl<T: Measured> LeaseTable<T> {
    /// Returns the open entries, the oldest first.
    pub fn by_age(&self) -> impl Iterator<Item = EntryReport<'_, T>> {
        let slot = |number: u32| self.entries.get(number as usize);
        std::iter::successors(slot(self.ends.older), move |entry: &&Entry<T>| slot(entry.beside.newer))
            .filter_map(|entry| entry.record.as_ref().map(Record::report))
    }

    /// Appends `entry` as the newest.
    pub(super) fn link(&mut self, entry: u32) {
        let last = std::mem::replace(&mut self.ends.newer, entry);
        match self.entries.get_mut(last as usize) {
            Some(before) => before.beside.newer = entry,
            None => self.ends.older = entry,
        }
        self.entries[entry as usize].beside = Links { older: last, newer: NONE };
    }

    /// Removes `entry`, which is no longer open.
    pub(super) fn unlink(&mut self, entry: u32) {
        let Links { older, newer } = std::mem::take(&mut self.entries[entry as usize].beside);
        match self.entries.get_mut(older as usize) {
            Some(before) => before.beside.newer = newer,
            None => self.ends.older = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(behind) => behind.beside.older = older,
            None => self.ends.newer = older,
        }
    }
}
