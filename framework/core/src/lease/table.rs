//! The owner's lease table: every allocation of one pool, who holds it, and which uses of it are still to
//! pass.
//!
//! LEASE-1: only the owner counts, here, privately, by holder. An entry is closed only when nobody holds the
//! allocation, and its memory is used again only after (on the GPU: ordered behind) every recorded last use.
//! The lease table knows neither memory nor devices, so that it can be checked as the bookkeeping it is.
//!
//! LEASE-3 has its reader here: an entry that reaches zero is not closed by the call that brought it there.
//! The caller first drains everything that its peers have posted ([`LeaseTable::close`] is a second, separate
//! step), because the hold of the next holder was posted before the release of the previous one, but on
//! another ring.
//!
//! Several threads drain, and one may read the release in the middle of another's pass, behind the ring with
//! the hold. So every entry counts its changes, and what a pass found holds only if the entry has not changed
//! since the pass began.
//!
//! A hold is believed only of an entry that was lent, and only for as many as were forwarded (`forwards`) to
//! its holder. A grant sets `shared` on an entry, and the owner clears it when it finds that it has the
//! memory for itself, under the lock that it takes for that anyway. Leases that a peer took by holds are
//! counted apart from those that it was granted (`MAX_FORWARDED`, `MAX_GRANTED`), so leases that others
//! forward to it take no room from what the owner sends it.

mod age;
mod forwards;
mod report;
mod sums;

use std::time::Instant;

use smallvec::SmallVec;

use self::age::Links;
use self::forwards::{Forward, Unproven};
pub use self::forwards::{Given, Pass, Settled};
pub use self::report::EntryReport;
#[cfg(test)]
pub(super) use self::report::LOOKED_AT;
pub use self::sums::Sum;
use self::sums::Sums;
use crate::clock::Ticket;
use crate::ids::ProcessId;

/// What an entry stands for.
pub trait Measured {
    /// Its bytes.
    fn bytes(&self) -> u64;
}

/// For models, which count leases and no bytes.
#[cfg(any(test, feature = "inside"))]
mod models {
    macro_rules! of_no_bytes {
        ($($type:ty)*) => {$(
            impl super::Measured for $type {
                fn bytes(&self) -> u64 {
                    0
                }
            }
        )*};
    }
    of_no_bytes!(() u8 i32);
}

/// A last use: the clock value that has to pass before the memory is free.
pub type Uses = SmallVec<[Ticket; 2]>;

/// Everything that one pool's owner knows about its allocations; `T` is what it got from its allocator.
#[derive(Clone, Debug)]
pub struct LeaseTable<T> {
    entries: Vec<Entry<T>>,
    closed: Vec<u32>,
    /// Holds that nobody was found to have forwarded yet, in the order in which they came.
    unproven: Vec<Unproven>,
    /// Entries with forwards whose forwarder has let go.
    expiring: Vec<(u32, u32)>,
    /// How many [passes](Pass) have begun.
    passes: u64,
    settled: Vec<Settled>,
    sums: Sums,
    /// The oldest and the newest of the open entries.
    ends: Links,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    generation: u32,
    record: Option<Record<T>>,
    /// The next older and the next newer of the open entries.
    beside: Links,
}

#[derive(Clone, Debug)]
struct Record<T> {
    block: T,
    /// Leases of the owner's own process.
    local: u32,
    /// How many of them stand for parts of it, each with a writer.
    in_parts: u32,
    /// Leases of other processes; none is zero.
    holders: SmallVec<[(ProcessId, u32); 2]>,
    /// How many of them their holder took when somebody forwarded the memory to it; none is zero.
    forwarded: SmallVec<[(ProcessId, u32); 1]>,
    /// What holders say that they forward, and nobody has taken yet.
    forwards: SmallVec<[Forward; 1]>,
    /// Holds that are not proven yet: they count as leases, and as nothing else.
    unproven: u32,
    /// Holds that were refused and not given back yet: who took them does not know.
    refused: Vec<(ProcessId, u32)>,
    /// Another process was given a lease since the owner last had the memory for itself. Where it was not,
    /// nobody can have forwarded it, and whoever says that it holds it lies.
    shared: bool,
    /// Raised by every change of the counts above.
    changes: u64,
    uses: Uses,
    since: Instant,
}

/// The state of an entry after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Somebody still holds the allocation.
    Held,
    /// Nobody in the lease table holds it: drain what peers have posted, then [`LeaseTable::close`] it.
    Empty(Emptied),
}

/// An entry that nobody held, as it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// The entry.
    pub entry: u32,
    /// Its generation.
    pub generation: u32,
    /// Its change count: see [`LeaseTable::changes`].
    pub changes: u64,
}

/// A change that does not fit the lease table: the mistake, or the lie, of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseTableError {
    /// No such entry in this generation.
    #[error(
        "entry {entry} generation {generation} is not in the lease table: the lease was given back before, or never existed"
    )]
    Unknown {
        /// Entry asked for.
        entry: u32,
        /// Generation asked for.
        generation: u32,
    },
    /// Nobody but the owner can have the memory.
    #[error("{process} speaks of entry {entry}, which nobody was given who could have passed it on")]
    NotShared {
        /// Who.
        process: ProcessId,
        /// Entry.
        entry: u32,
    },
    /// Nobody who holds the memory says that it was passed on to this process.
    #[error("{process} says that entry {entry} was forwarded to it, and none of its holders has done so")]
    NotForwarded {
        /// Who.
        process: ProcessId,
        /// Entry.
        entry: u32,
    },
    /// The memory is in this process as a whole where parts of it came, or in parts where the whole came.
    #[error(
        "{process} sends entry {entry} back in another form than this process has it in: as a whole, or in parts"
    )]
    OtherForm {
        /// Who.
        process: ProcessId,
        /// Entry.
        entry: u32,
    },
    /// The process has fewer leases than it gives back.
    #[error("{process} gives back {count} leases on entry {entry} but holds {held}")]
    NotHeld {
        /// Who.
        process: ProcessId,
        /// Entry.
        entry: u32,
        /// How many it gave back.
        count: u32,
        /// How many it holds.
        held: u32,
    },
}

impl<T> Default for LeaseTable<T> {
    fn default() -> Self {
        LeaseTable {
            entries: Vec::new(),
            closed: Vec::new(),
            sums: Sums::default(),
            ends: Links::default(),
            unproven: Vec::new(),
            expiring: Vec::new(),
            passes: 0,
            settled: Vec::new(),
        }
    }
}

impl<T: Measured> LeaseTable<T> {
    /// Opens an entry for a new allocation with one local lease and the uses that its first user has to wait
    /// for. Returns the entry and its generation.
    pub fn open(&mut self, block: T, uses: Uses) -> (u32, u32) {
        let record = Record {
            block,
            local: 1,
            in_parts: 0,
            holders: SmallVec::new(),
            forwarded: SmallVec::new(),
            forwards: SmallVec::new(),
            unproven: 0,
            refused: Vec::new(),
            shared: false,
            changes: 0,
            uses,
            since: Instant::now(),
        };
        let bytes = record.block.bytes();
        self.sums.open.add(bytes);
        self.sums.local.add(bytes);
        let (entry, generation) = match self.closed.pop() {
            Some(entry) => {
                let slot = &mut self.entries[entry as usize];
                slot.record = Some(record);
                (entry, slot.generation)
            }
            None => {
                self.entries.push(Entry { generation: 1, record: Some(record), beside: Links::default() });
                ((self.entries.len() - 1) as u32, 1)
            }
        };
        self.link(entry);
        (entry, generation)
    }

    fn record(&mut self, entry: u32, generation: u32) -> Result<&mut Record<T>, LeaseTableError> {
        self.record_and_sums(entry, generation).map(|(record, _)| record)
    }

    fn record_and_sums(
        &mut self,
        entry: u32,
        generation: u32,
    ) -> Result<(&mut Record<T>, &mut Sums), LeaseTableError> {
        self.entries
            .get_mut(entry as usize)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.record.as_mut())
            .map(|record| (record, &mut self.sums))
            .ok_or(LeaseTableError::Unknown { entry, generation })
    }

    /// The block of a live entry.
    pub fn block(&self, entry: u32, generation: u32) -> Option<&T> {
        let slot = self.entries.get(entry as usize).filter(|slot| slot.generation == generation)?;
        slot.record.as_ref().map(|record| &record.block)
    }

    /// One more lease for the owner's own process, on something that `from` sent back to it.
    ///
    /// # Errors
    /// The entry is unknown, or `from` holds no lease on it and so had nothing to send.
    #[cfg(any(test, feature = "inside"))]
    pub fn adopt(&mut self, entry: u32, generation: u32, from: ProcessId) -> Result<(), LeaseTableError> {
        self.adopt_as(entry, generation, from, false)
    }

    /// As [`adopt`](Self::adopt), of the whole, which nobody writes, or of a part, which its holder may
    /// write.
    ///
    /// # Errors
    /// As for [`adopt`](Self::adopt); the owner has the memory for itself, or in the other form. What a peer
    /// says must not make a writer of memory that somebody here reads, nor a reader of memory that somebody
    /// here writes (ONE-WRITER).
    pub fn adopt_as(
        &mut self,
        entry: u32,
        generation: u32,
        from: ProcessId,
        in_parts: bool,
    ) -> Result<(), LeaseTableError> {
        let (record, sums) = self.record_and_sums(entry, generation)?;
        if !record.holders.iter().any(|(process, _)| *process == from) {
            return Err(LeaseTableError::NotHeld { process: from, entry, count: 1, held: 0 });
        }
        if !record.shared {
            return Err(LeaseTableError::NotShared { process: from, entry });
        }
        let others = if in_parts { record.local - record.in_parts } else { record.in_parts };
        if others > 0 {
            return Err(LeaseTableError::OtherForm { process: from, entry });
        }
        if record.local == 0 {
            sums.local.add(record.block.bytes());
        }
        record.local += 1;
        record.in_parts += u32::from(in_parts);
        record.changes += 1;
        Ok(())
    }

    /// The owner's own lease stands for parts from here on, or for the whole again. Of the whole, nobody else
    /// has anything: what others still have in the lease table is on its way back.
    pub fn set_in_parts(
        &mut self,
        entry: u32,
        generation: u32,
        in_parts: bool,
    ) -> Result<(), LeaseTableError> {
        let record = self.record(entry, generation)?;
        if in_parts {
            record.in_parts += 1;
        } else {
            record.in_parts = record.in_parts.saturating_sub(1);
            record.claim();
        }
        Ok(())
    }

    /// A lease of the owner's that stood for parts is about to be [dropped](Self::release_local).
    pub fn drop_part(&mut self, entry: u32, generation: u32) -> Result<(), LeaseTableError> {
        let record = self.record(entry, generation)?;
        record.in_parts = record.in_parts.saturating_sub(1);
        Ok(())
    }

    /// The owner has the memory for itself, as [`is_sole`](Self::is_sole) or its sender says: whoever holds
    /// or sends it from here on, until it is [granted](Self::grant) again, lies.
    pub fn claim(&mut self, entry: u32, generation: u32) -> Result<(), LeaseTableError> {
        self.record(entry, generation)?.claim();
        Ok(())
    }

    /// `to` gets a lease by the owner's own sending. Says whether any process had been given one
    /// before: then holds on the entry may be on their way.
    ///
    /// # Errors
    /// The entry is unknown.
    pub fn grant(&mut self, entry: u32, generation: u32, to: ProcessId) -> Result<bool, LeaseTableError> {
        let (record, sums) = self.record_and_sums(entry, generation)?;
        record.one_more_holder(to, sums);
        record.changes += 1;
        Ok(std::mem::replace(&mut record.shared, true))
    }

    /// `from` gives one lease back; `uses` are the last uses it made.
    ///
    /// # Errors
    /// The entry is unknown or `from` holds no lease on it: nothing changes.
    #[cfg(any(test, feature = "inside"))]
    pub fn release(
        &mut self,
        entry: u32,
        generation: u32,
        from: ProcessId,
        uses: &[Ticket],
    ) -> Result<Left, LeaseTableError> {
        Ok(self.give_back(entry, generation, from, uses)?.0)
    }

    /// Drops all leases of a process that ended (LEASE-4), with what it forwarded and what was forwarded to
    /// it, and returns the entries that nobody holds now. What the process had posted has been drained
    /// before.
    pub fn evict(&mut self, process: ProcessId) -> Vec<Emptied> {
        let mut empty = Vec::new();
        for (entry, slot) in self.entries.iter_mut().enumerate() {
            let Some(record) = &mut slot.record else { continue };
            record.forwards.retain(|forward| !forward.concerns(process));
            record.refused.retain(|(holder, _)| *holder != process);
            let held = record.holders.iter().position(|(holder, _)| *holder == process);
            if let Some(index) = held {
                record.holders.swap_remove(index);
                record.forwarded.retain(|(holder, _)| *holder != process);
                record.holder_left(process, &mut self.sums);
            }
            let mut unproven = 0;
            if record.unproven > 0 {
                unproven = forwards::forget(&mut self.unproven, (entry as u32, slot.generation), process);
                record.unproven -= unproven;
            }
            if (held.is_some() || unproven > 0)
                && let Left::Empty(emptied) = record.changed(entry as u32, slot.generation)
            {
                empty.push(emptied);
            }
        }
        empty
    }

    /// The owner's process drops one of its own leases.
    ///
    /// # Errors
    /// The entry is unknown or has no local lease.
    pub fn release_local(
        &mut self,
        entry: u32,
        generation: u32,
        uses: &[Ticket],
    ) -> Result<Left, LeaseTableError> {
        let (record, sums) = self.record_and_sums(entry, generation)?;
        // A local lease is a value of this process, so a count of zero here is a defect of ours, not of a
        // peer.
        record.local = record.local.checked_sub(1).ok_or(LeaseTableError::Unknown { entry, generation })?;
        if record.local == 0 {
            sums.local.take(record.block.bytes());
        }
        note_uses(&mut record.uses, uses);
        Ok(record.changed(entry, generation))
    }

    /// How often the counts of an entry have changed. Who drains between two looks at an entry, and finds the
    /// same number in both, knows of every hold that was posted before the first.
    pub fn changes(&self, entry: u32, generation: u32) -> Option<u64> {
        let slot = self.entries.get(entry as usize).filter(|slot| slot.generation == generation)?;
        slot.record.as_ref().map(|record| record.changes)
    }

    /// Whether exactly one lease exists on the entry: the owner's own (`to` = `None`) or, beside at most one
    /// local lease, the single one of `to`.
    pub fn is_sole(&self, entry: u32, generation: u32, to: Option<ProcessId>) -> bool {
        let Some(record) = self
            .entries
            .get(entry as usize)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.record.as_ref())
        else {
            return false;
        };
        match to {
            _ if record.unproven > 0 => false,
            None => record.local == 1 && record.holders.is_empty(),
            Some(to) => record.local <= 1 && record.holders.as_slice() == [(to, 1)],
        }
    }

    /// Whether another process was ever given a lease on the entry.
    pub fn was_shared(&self, entry: u32, generation: u32) -> bool {
        self.entries
            .get(entry as usize)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.record.as_ref())
            .is_some_and(|record| record.shared)
    }

    /// How many leases the owner's own process has on an entry.
    pub fn local(&self, entry: u32, generation: u32) -> u32 {
        self.entries
            .get(entry as usize)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.record.as_ref())
            .map_or(0, |record| record.local)
    }

    /// The uses recorded so far on an entry: what a new writer of the same memory has to wait for.
    pub fn uses(&self, entry: u32, generation: u32) -> Uses {
        self.entries
            .get(entry as usize)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.record.as_ref())
            .map(|record| record.uses.clone())
            .unwrap_or_default()
    }

    /// Closes an entry that nobody holds and hands its block out with the uses that still have to pass;
    /// `None` when it has changed since it was emptied, or was closed before. Where it is empty once more,
    /// that emptied it anew: whoever drained that closes it (LEASE-3).
    pub fn close(&mut self, emptied: Emptied) -> Option<(T, Uses)> {
        let Emptied { entry, generation, changes } = emptied;
        let slot = self.entries.get_mut(entry as usize).filter(|slot| slot.generation == generation)?;
        if slot.record.as_ref().is_none_or(|record| !record.is_empty() || record.changes != changes) {
            return None;
        }
        let record = slot.record.take()?;
        // After 2^32 lives an entry is left closed for good, so that no name ever means two allocations.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.closed.push(entry);
        }
        self.sums.open.take(record.block.bytes());
        self.unlink(entry);
        Some((record.block, record.uses))
    }

    /// Leases on an entry: the owner's own, and those of others by process.
    #[cfg(any(test, feature = "testing"))]
    pub fn shares(&self, entry: u32, generation: u32) -> Option<(u32, Vec<(ProcessId, u32)>)> {
        let slot = self.entries.get(entry as usize).filter(|slot| slot.generation == generation)?;
        slot.record.as_ref().map(|record| (record.local, record.holders.to_vec()))
    }

    /// How many entries are open.
    #[cfg(any(test, feature = "inside"))]
    pub fn len(&self) -> usize {
        self.entries.iter().filter(|slot| slot.record.is_some()).count()
    }

    /// Whether no entry is open.
    #[cfg(any(test, feature = "inside"))]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Measured> Record<T> {
    fn one_more_holder(&mut self, process: ProcessId, sums: &mut Sums) {
        let (holders, bytes) = (self.holders.len(), self.block.bytes());
        one_more(&mut self.holders, process);
        if self.holders.len() > holders {
            sums.begins(process, bytes);
            if holders == 0 {
                sums.lent.add(bytes);
            }
        }
    }

    /// `process` was taken out of the holders.
    fn holder_left(&self, process: ProcessId, sums: &mut Sums) {
        let bytes = self.block.bytes();
        sums.ends(process, bytes);
        if self.holders.is_empty() {
            sums.lent.take(bytes);
        }
    }

    fn is_empty(&self) -> bool {
        self.local == 0 && self.holders.is_empty() && self.unproven == 0
    }

    fn claim(&mut self) {
        self.shared = false;
        self.forwards.clear();
    }

    /// Counts a change, and says what it left behind.
    fn changed(&mut self, entry: u32, generation: u32) -> Left {
        self.changes += 1;
        if !self.is_empty() {
            return Left::Held;
        }
        Left::Empty(Emptied { entry, generation, changes: self.changes })
    }
}

fn one_more<const N: usize>(shares: &mut SmallVec<[(ProcessId, u32); N]>, of: ProcessId)
where
    [(ProcessId, u32); N]: smallvec::Array<Item = (ProcessId, u32)>,
{
    match shares.iter_mut().find(|(process, _)| *process == of) {
        Some((_, count)) => *count += 1,
        None => shares.push((of, 1)),
    }
}

fn one_less<const N: usize>(shares: &mut SmallVec<[(ProcessId, u32); N]>, of: ProcessId)
where
    [(ProcessId, u32); N]: smallvec::Array<Item = (ProcessId, u32)>,
{
    let Some(index) = shares.iter().position(|(process, _)| *process == of) else { return };
    shares[index].1 -= 1;
    if shares[index].1 == 0 {
        shares.swap_remove(index);
    }
}

/// Keeps the latest value of each clock.
fn note_uses(uses: &mut Uses, new: &[Ticket]) {
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
mod tests;
