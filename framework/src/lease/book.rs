//! The owner's book: every allocation of one pool, who holds it, and which uses of it are still to pass.
//!
//! LEASE-1: only the owner counts, here, privately, by holder. A line is closed only when nobody holds the allocation,
//! and its memory is used again only after (on the GPU: ordered behind) every recorded last use. The book knows neither
//! memory nor devices, so that it can be checked as the bookkeeping it is.
//!
//! LEASE-3 has its reader here: a line that reaches zero is not closed by the call that brought it there. The caller
//! first drains everything that its peers have posted ([`Book::close`] is a second, separate step), because the hold of
//! the next holder was posted before the release of the previous one, but on another ring.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::clock::Ticket;
use crate::ids::ProcessId;

/// A last use: the clock value that has to pass before the memory is free.
pub type Uses = SmallVec<[Ticket; 2]>;

/// Everything that one pool's owner knows about its allocations; `T` is what it got from its allocator.
#[derive(Debug)]
pub struct Book<T> {
    lines: Vec<Line<T>>,
    closed: Vec<u32>,
}

#[derive(Debug)]
struct Line<T> {
    generation: u32,
    entry: Option<Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    block: T,
    /// Leases of the owner's own process.
    local: u32,
    /// Leases of other processes; none is zero.
    holders: SmallVec<[(ProcessId, u32); 2]>,
    /// Another process was given a lease.
    shared: bool,
    uses: Uses,
    since: Instant,
}

/// What a change left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Somebody still holds the allocation.
    Held,
    /// Nobody in the book holds it: drain what peers have posted, then [`Book::close`] it.
    Empty,
}

/// A change that does not fit the book: the mistake, or the lie, of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BookError {
    /// No such line in this generation.
    #[error(
        "line {line} generation {generation} is not in the book: the lease was given back before, or never existed"
    )]
    Unknown {
        /// Line asked for.
        line: u32,
        /// Generation asked for.
        generation: u32,
    },
    /// The process has fewer leases than it gives back.
    #[error("{process} gives back {count} leases on line {line} but holds {held}")]
    NotHeld {
        /// Who.
        process: ProcessId,
        /// Line.
        line: u32,
        /// How many it gave back.
        count: u32,
        /// How many it holds.
        held: u32,
    },
}

/// Who has a share in one allocation, for the report of a full pool.
#[derive(Clone, Debug)]
pub struct LineReport<'a, T> {
    /// What the allocator gave.
    pub block: &'a T,
    /// Leases of the owner's process.
    pub local: u32,
    /// Leases of others, by process.
    pub holders: &'a [(ProcessId, u32)],
    /// For how long the allocation has existed.
    pub age: Duration,
}

impl<T> Default for Book<T> {
    fn default() -> Self {
        Book { lines: Vec::new(), closed: Vec::new() }
    }
}

impl<T> Book<T> {
    /// Opens a line for a new allocation with one local lease and the uses that its first user has to wait for.
    /// Returns the line and its generation.
    pub fn open(&mut self, block: T, uses: Uses) -> (u32, u32) {
        let entry =
            Entry { block, local: 1, holders: SmallVec::new(), shared: false, uses, since: Instant::now() };
        if let Some(line) = self.closed.pop() {
            let slot = &mut self.lines[line as usize];
            slot.entry = Some(entry);
            return (line, slot.generation);
        }
        self.lines.push(Line { generation: 1, entry: Some(entry) });
        ((self.lines.len() - 1) as u32, 1)
    }

    fn entry(&mut self, line: u32, generation: u32) -> Result<&mut Entry<T>, BookError> {
        self.lines
            .get_mut(line as usize)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.entry.as_mut())
            .ok_or(BookError::Unknown { line, generation })
    }

    /// The block of a live line.
    pub fn block(&self, line: u32, generation: u32) -> Option<&T> {
        let slot = self.lines.get(line as usize).filter(|slot| slot.generation == generation)?;
        slot.entry.as_ref().map(|entry| &entry.block)
    }

    /// One more lease for the owner's own process, on something that `from` sent back to it.
    ///
    /// # Errors
    /// The line is unknown, or `from` holds no lease on it and so had nothing to send.
    pub fn adopt(&mut self, line: u32, generation: u32, from: ProcessId) -> Result<(), BookError> {
        let entry = self.entry(line, generation)?;
        if !entry.holders.iter().any(|(process, _)| *process == from) {
            return Err(BookError::NotHeld { process: from, line, count: 1, held: 0 });
        }
        entry.local += 1;
        Ok(())
    }

    /// `to` gets a lease: by the owner's own sending, or by a hold that `to` posted (LEASE-3). Says whether any process
    /// had been given one before: then holds on the line may be on their way.
    ///
    /// # Errors
    /// The line is unknown.
    pub fn grant(&mut self, line: u32, generation: u32, to: ProcessId) -> Result<bool, BookError> {
        let entry = self.entry(line, generation)?;
        match entry.holders.iter_mut().find(|(process, _)| *process == to) {
            Some((_, count)) => *count += 1,
            None => entry.holders.push((to, 1)),
        }
        Ok(std::mem::replace(&mut entry.shared, true))
    }

    /// `from` gives one lease back; `uses` are the last uses it made.
    ///
    /// # Errors
    /// The line is unknown or `from` holds no lease on it: nothing changes.
    pub fn release(
        &mut self,
        line: u32,
        generation: u32,
        from: ProcessId,
        uses: &[Ticket],
    ) -> Result<Left, BookError> {
        let entry = self.entry(line, generation)?;
        let Some(index) = entry.holders.iter().position(|(process, _)| *process == from) else {
            return Err(BookError::NotHeld { process: from, line, count: 1, held: 0 });
        };
        entry.holders[index].1 -= 1;
        if entry.holders[index].1 == 0 {
            entry.holders.swap_remove(index);
        }
        record(&mut entry.uses, uses);
        Ok(entry.left())
    }

    /// Drops all leases of a process that ended (LEASE-4), and returns the lines that nobody holds now. What the process
    /// had posted has been drained before.
    pub fn evict(&mut self, process: ProcessId) -> Vec<(u32, u32)> {
        let mut empty = Vec::new();
        for (line, slot) in self.lines.iter_mut().enumerate() {
            let Some(entry) = &mut slot.entry else { continue };
            let Some(index) = entry.holders.iter().position(|(holder, _)| *holder == process) else {
                continue;
            };
            entry.holders.swap_remove(index);
            if entry.left() == Left::Empty {
                empty.push((line as u32, slot.generation));
            }
        }
        empty
    }

    /// The owner's process drops one of its own leases.
    ///
    /// # Errors
    /// The line is unknown or has no local lease.
    pub fn release_local(&mut self, line: u32, generation: u32, uses: &[Ticket]) -> Result<Left, BookError> {
        let entry = self.entry(line, generation)?;
        // A local lease is a value of this process, so a count of zero here is a defect of ours, not of a peer.
        entry.local = entry.local.checked_sub(1).ok_or(BookError::Unknown { line, generation })?;
        record(&mut entry.uses, uses);
        Ok(entry.left())
    }

    /// Whether exactly one lease exists on the line: the owner's own (`to` = `None`) or, beside at most one local lease,
    /// the single one of `to`.
    pub fn is_sole(&self, line: u32, generation: u32, to: Option<ProcessId>) -> bool {
        let Some(entry) = self
            .lines
            .get(line as usize)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.entry.as_ref())
        else {
            return false;
        };
        match to {
            None => entry.local == 1 && entry.holders.is_empty(),
            Some(to) => entry.local <= 1 && entry.holders.as_slice() == [(to, 1)],
        }
    }

    /// Whether another process was ever given a lease on the line.
    pub fn was_shared(&self, line: u32, generation: u32) -> bool {
        self.lines
            .get(line as usize)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.entry.as_ref())
            .is_some_and(|entry| entry.shared)
    }

    /// How many leases the owner's own process has on a line.
    pub fn local(&self, line: u32, generation: u32) -> u32 {
        self.lines
            .get(line as usize)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.entry.as_ref())
            .map_or(0, |entry| entry.local)
    }

    /// The uses recorded so far on a line: what a new writer of the same memory has to wait for.
    pub fn uses(&self, line: u32, generation: u32) -> Uses {
        self.lines
            .get(line as usize)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.entry.as_ref())
            .map(|entry| entry.uses.clone())
            .unwrap_or_default()
    }

    /// Closes a line that nobody holds and hands its block out with the uses that still have to pass; `None` when
    /// somebody took a lease in the meantime, or it was closed before.
    pub fn close(&mut self, line: u32, generation: u32) -> Option<(T, Uses)> {
        let slot = self.lines.get_mut(line as usize).filter(|slot| slot.generation == generation)?;
        if slot.entry.as_ref().is_none_or(|entry| entry.left() == Left::Held) {
            return None;
        }
        let entry = slot.entry.take()?;
        // After 2^32 lives a line is left closed for good, so that no name ever means two allocations.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.closed.push(line);
        }
        Some((entry.block, entry.uses))
    }

    /// Leases on a line: the owner's own, and those of others by process.
    #[cfg(any(test, feature = "testing"))]
    pub fn shares(&self, line: u32, generation: u32) -> Option<(u32, Vec<(ProcessId, u32)>)> {
        let slot = self.lines.get(line as usize).filter(|slot| slot.generation == generation)?;
        slot.entry.as_ref().map(|entry| (entry.local, entry.holders.to_vec()))
    }

    /// How many lines are open.
    pub fn len(&self) -> usize {
        self.lines.iter().filter(|slot| slot.entry.is_some()).count()
    }

    /// Whether no line is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What each live allocation got from its allocator, and whether another process has a lease on it.
    pub fn live(&self) -> impl Iterator<Item = (&T, bool)> {
        let entries = self.lines.iter().filter_map(|slot| slot.entry.as_ref());
        entries.map(|entry| (&entry.block, !entry.holders.is_empty()))
    }

    /// Every open line, for reports.
    pub fn report(&self) -> impl Iterator<Item = LineReport<'_, T>> {
        self.lines.iter().filter_map(|slot| slot.entry.as_ref()).map(|entry| LineReport {
            block: &entry.block,
            local: entry.local,
            holders: &entry.holders,
            age: entry.since.elapsed(),
        })
    }
}

impl<T> Entry<T> {
    fn left(&self) -> Left {
        if self.local == 0 && self.holders.is_empty() { Left::Empty } else { Left::Held }
    }
}

/// Keeps the latest value of each clock.
fn record(uses: &mut Uses, new: &[Ticket]) {
    for ticket in new {
        match uses.iter_mut().find(|known| known.process == ticket.process && known.slot == ticket.slot) {
            Some(known) => {
                if !crate::clock::passed(known.value, ticket.value) {
                    known.value = ticket.value;
                }
            }
            None => uses.push(*ticket),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn process(slot: u16) -> ProcessId {
        ProcessId::new(slot, 0).expect("a small slot")
    }

    fn ticket(slot: u16, value: u64) -> Ticket {
        Ticket { process: process(1), slot, value }
    }

    #[test]
    fn a_line_closes_when_the_last_lease_is_back_and_once() {
        let mut book = Book::default();
        let (line, life) = book.open("block", Uses::new());
        book.grant(line, life, process(1)).unwrap();
        book.grant(line, life, process(1)).unwrap();
        assert_eq!(book.release_local(line, life, &[]), Ok(Left::Held));
        assert_eq!(book.close(line, life), None, "somebody holds it");
        assert_eq!(book.release(line, life, process(1), &[]), Ok(Left::Held));
        assert_eq!(book.release(line, life, process(1), &[]), Ok(Left::Empty));
        assert_eq!(book.len(), 1, "empty is not closed (LEASE-3)");
        assert_eq!(book.close(line, life), Some(("block", Uses::new())));
        assert_eq!(book.close(line, life), None);
        assert!(book.is_empty());
    }

    /// LEASE-3: between the two looks, the next holder came.
    #[test]
    fn a_hold_after_the_first_look_keeps_the_line_open() {
        let mut book = Book::default();
        let (line, life) = book.open((), Uses::new());
        book.grant(line, life, process(1)).unwrap();
        book.release_local(line, life, &[]).unwrap();
        assert_eq!(book.release(line, life, process(1), &[]), Ok(Left::Empty));
        book.grant(line, life, process(2)).unwrap();
        assert_eq!(book.close(line, life), None);
        assert_eq!(book.release(line, life, process(2), &[]), Ok(Left::Empty));
        assert!(book.close(line, life).is_some());
    }

    #[test]
    fn an_old_name_means_nothing() {
        let mut book = Book::default();
        let (line, old) = book.open(1, Uses::new());
        book.release_local(line, old, &[]).unwrap();
        book.close(line, old).unwrap();
        let (again, new) = book.open(2, Uses::new());
        assert_eq!(again, line, "a line is used again");
        let unknown = Err(BookError::Unknown { line, generation: old });
        assert_eq!(book.grant(line, old, process(1)).map(drop), unknown);
        assert_eq!(book.adopt(line, old, process(1)), unknown);
        assert_eq!(book.release(line, old, process(1), &[]).map(drop), unknown);
        assert_eq!(book.release_local(line, old, &[]).map(drop), unknown);
        assert_eq!((book.block(line, old), book.block(line, new)), (None, Some(&2)));
        assert!(
            book.close(line, old).is_none()
                && !book.is_sole(line, old, None)
                && book.is_sole(line, new, None)
        );
        assert_eq!(
            book.grant(line + 1, 1, process(1)),
            Err(BookError::Unknown { line: line + 1, generation: 1 })
        );
    }

    #[test]
    fn nobody_gives_back_or_sends_what_it_has_not() {
        let mut book = Book::default();
        let (line, life) = book.open((), Uses::new());
        book.grant(line, life, process(1)).unwrap();
        let not_held = BookError::NotHeld { process: process(2), line, count: 1, held: 0 };
        assert_eq!(book.release(line, life, process(2), &[ticket(0, 9)]), Err(not_held));
        assert_eq!(book.adopt(line, life, process(2)), Err(not_held));
        assert_eq!(book.shares(line, life), Some((1, vec![(process(1), 1)])));
        assert!(book.uses(line, life).is_empty(), "a lie leaves no use behind");
        book.adopt(line, life, process(1)).unwrap();
        assert_eq!(book.shares(line, life), Some((2, vec![(process(1), 1)])));
    }

    #[test]
    fn of_each_clock_the_latest_use_is_kept() {
        let mut book = Book::default();
        let (line, life) = book.open((), Uses::from_slice(&[ticket(0, 5)]));
        for (slot, value) in [(0, 4), (1, 7), (0, 8), (1, 7), (2, u64::MAX), (2, 3)] {
            book.grant(line, life, process(1)).unwrap();
            book.release(line, life, process(1), &[ticket(slot, value)]).unwrap();
        }
        // Cyclically: three comes after the largest number.
        let uses = [ticket(0, 8), ticket(1, 7), ticket(2, 3)];
        assert_eq!(book.uses(line, life).as_slice(), uses);
        book.release_local(line, life, &[]).unwrap();
        assert_eq!(book.close(line, life).unwrap().1.as_slice(), uses);
    }

    #[test]
    fn sole_is_who_has_the_only_lease() {
        let mut book = Book::default();
        let (line, life) = book.open((), Uses::new());
        let (one, two) = (process(1), process(2));
        assert!(book.is_sole(line, life, None) && !book.is_sole(line, life, Some(one)));
        book.grant(line, life, one).unwrap();
        // The sender's own local lease is dropped behind the grant.
        assert!(!book.is_sole(line, life, None) && book.is_sole(line, life, Some(one)));
        book.grant(line, life, two).unwrap();
        assert!(!book.is_sole(line, life, Some(one)) && !book.is_sole(line, life, Some(two)));
        book.release(line, life, two, &[]).unwrap();
        book.grant(line, life, one).unwrap();
        assert!(!book.is_sole(line, life, Some(one)), "it has two");
    }

    /// LEASE-4.
    #[test]
    fn a_dead_holder_leaves_every_line() {
        let mut book = Book::default();
        let lines: Vec<_> = (0..4).map(|n| book.open(n, Uses::new())).collect();
        for (n, (line, life)) in lines.iter().enumerate() {
            for shared in 0..n {
                assert_eq!(
                    book.grant(*line, *life, process(1)),
                    Ok(shared > 0),
                    "every grant after the first"
                );
            }
            if n != 2 {
                book.release_local(*line, *life, &[]).unwrap();
            }
        }
        book.grant(lines[3].0, lines[3].1, process(2)).unwrap();
        assert_eq!(book.evict(process(1)), [lines[1]], "two has a local lease, three another holder");
        assert_eq!(book.shares(lines[3].0, lines[3].1), Some((0, vec![(process(2), 1)])));
        assert!(book.evict(process(1)).is_empty());
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Open,
        Grant(u16),
        Adopt(u16),
        Release(u16),
        ReleaseLocal,
        Close,
        Evict(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Open),
            (1_u16..4).prop_map(Step::Grant),
            (1_u16..4).prop_map(Step::Adopt),
            (1_u16..4).prop_map(Step::Release),
            Just(Step::ReleaseLocal),
            Just(Step::Close),
            (1_u16..4).prop_map(Step::Evict),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 256 }))]

        /// LEASE-1: the book is a count by holder, whatever is done to it in whatever order, by names old and new.
        #[test]
        fn the_book_counts_like_a_table(steps in prop::collection::vec((step(), any::<prop::sample::Index>()), 1..80)) {
            let mut book = Book::default();
            let mut names: Vec<(u32, u32)> = Vec::new();
            // By name: local leases, and those of others.
            let mut table: BTreeMap<(u32, u32), (u32, BTreeMap<u16, u32>)> = BTreeMap::new();
            for (step, which) in steps {
                if names.is_empty() || matches!(step, Step::Open) {
                    let name = book.open((), Uses::new());
                    prop_assert!(!names.contains(&name), "a name is never given twice");
                    names.push(name);
                    table.insert(name, (1, BTreeMap::new()));
                    continue;
                }
                let name @ (line, life) = names[which.index(names.len())];
                let row = table.get_mut(&name);
                match step {
                    Step::Open => {}
                    Step::Grant(to) => {
                        prop_assert_eq!(book.grant(line, life, process(to)).is_ok(), row.is_some());
                        if let Some(row) = row {
                            *row.1.entry(to).or_default() += 1;
                        }
                    }
                    Step::Adopt(from) => {
                        let row = row.filter(|row| row.1.contains_key(&from));
                        prop_assert_eq!(book.adopt(line, life, process(from)).is_ok(), row.is_some());
                        if let Some(row) = row {
                            row.0 += 1;
                        }
                    }
                    Step::Release(from) => {
                        let row = row.filter(|row| row.1.contains_key(&from));
                        let left = row.map(|row| {
                            let count = row.1.entry(from).or_default();
                            *count -= 1;
                            if *count == 0 {
                                row.1.remove(&from);
                            }
                            if row.0 == 0 && row.1.is_empty() { Left::Empty } else { Left::Held }
                        });
                        prop_assert_eq!(book.release(line, life, process(from), &[]).ok(), left);
                    }
                    Step::ReleaseLocal => {
                        let row = row.filter(|row| row.0 > 0);
                        let left = row.map(|row| {
                            row.0 -= 1;
                            if row.0 == 0 && row.1.is_empty() { Left::Empty } else { Left::Held }
                        });
                        prop_assert_eq!(book.release_local(line, life, &[]).ok(), left);
                    }
                    Step::Close => {
                        let empty = row.is_some_and(|row| row.0 == 0 && row.1.is_empty());
                        prop_assert_eq!(book.close(line, life).is_some(), empty);
                        if empty {
                            table.remove(&name);
                        }
                    }
                    Step::Evict(dead) => {
                        let emptied: Vec<_> = table
                            .iter_mut()
                            .filter_map(|(name, row)| {
                                let had = row.1.remove(&dead).is_some();
                                (had && row.0 == 0 && row.1.is_empty()).then_some(*name)
                            })
                            .collect();
                        let mut found = book.evict(process(dead));
                        found.sort_unstable();
                        prop_assert_eq!(found, emptied);
                    }
                }
                prop_assert_eq!(book.len(), table.len());
                for name in &names {
                    let shares = table.get(name).map(|(local, others)| {
                        (*local, others.iter().map(|(slot, count)| (process(*slot), *count)).collect::<Vec<_>>())
                    });
                    let found = book.shares(name.0, name.1).map(|(local, mut others)| {
                        others.sort();
                        (local, others)
                    });
                    prop_assert_eq!(found, shares);
                }
            }
        }
    }
}
