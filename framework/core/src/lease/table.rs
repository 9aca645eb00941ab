//! The owner's lease table: every allocation of one pool, its holders, and its uses that have not passed yet.
//!
//! LEASE-1: only the owner counts, here, privately, by holder. An entry is closed only when nobody holds the
//! allocation, and its memory is used again only after (on the GPU: ordered behind) every recorded last use.
//! The lease table knows neither memory nor devices, so that tests can check the bookkeeping alone.
//!
//! This is the reading side of LEASE-3: the call that brings an entry to zero does not close it. The caller
//! first drains everything that its peers have posted ([`LeaseTable::close`] is a second, separate step),
//! because the hold of the next holder was posted before the release of the previous one, but on another
//! ring.
//!
//! Several threads drain. One of them may read the release while another is in the middle of its pass and
//! already past the ring with the hold. So every entry counts its changes, and the result of a pass is valid
//! only if the entry has not changed since the pass began.
//!
//! The owner accepts a hold only on an entry that was lent, and only as many holds as there were forwards
//! (`forwards`) to the holder. A grant sets `shared` on an entry. The owner clears it when it finds that it
//! alone has the memory, under the lock that it takes for that anyway. Leases that a peer took by holds are
//! counted apart from those that it was granted (`MAX_FORWARDED`, `MAX_GRANTED`). So leases that others
//! forward to a peer leave the room for leases that the owner grants it.

mod age;
mod forwards;
mod report;
mod sums;

use std::time::Instant;

use smallvec::SmallVec;

use self::age::Links;
use self::forwards::{Doubts, Forward};
pub use self::forwards::{GivenBack, Pass, Settled};
pub use self::report::EntryReport;
#[cfg(test)]
pub(super) use self::report::LOOKED_AT;
pub use self::sums::Sum;
use self::sums::Sums;
use crate::clock::Ticket;
use crate::ids::ProcessId;

/// The block that an entry stands for.
pub trait Measured {
    /// Returns its size in bytes.
    fn bytes(&self) -> u64;
}

/// Blocks for models, which count leases and no bytes.
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

/// The last uses of an allocation: the clock values that have to pass before the memory is free.
pub type Uses = SmallVec<[Ticket; 2]>;

/// Everything that one pool's owner knows about its allocations; `T` is the block that its allocator
/// returned.
#[derive(Clone, Debug)]
pub struct LeaseTable<T> {
    entries: Vec<Entry<T>>,
    closed: Vec<u32>,
    /// Holds for which no forward has been found yet, by entry.
    unproven: Doubts,
    /// Entries with forwards whose forwarder has released its last lease.
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
    /// How many of them are leases on parts of the allocation, each with a writer.
    in_parts: u32,
    /// Leases of other processes; none is zero.
    holders: SmallVec<[(ProcessId, u32); 2]>,
    /// How many of these each holder took by a hold, after another process had forwarded the memory to it;
    /// none is zero.
    forwarded: SmallVec<[(ProcessId, u32); 1]>,
    /// Forwards that holders have announced and that no hold has taken yet.
    forwards: SmallVec<[Forward; 1]>,
    /// Holds that are not proven yet. They keep the entry open like leases, and have no other effect.
    unproven: u32,
    /// Holds that were refused and not given back yet: their holder does not know of the refusal.
    refused: Vec<(ProcessId, u32)>,
    /// Another process was given a lease since the owner last had the memory for itself. If this is not set,
    /// nobody can have forwarded the memory, and a peer that claims to hold it lies.
    shared: bool,
    /// Raised by every change of the counts above.
    changes: u64,
    uses: Uses,
    since: Instant,
}

/// The state of an entry after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remaining {
    /// A process still holds the allocation.
    Held,
    /// Nobody in the lease table holds it: drain what peers have posted, then [`LeaseTable::close`] it.
    Empty(Emptied),
}

/// An entry at the moment when its last lease was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// The entry.
    pub entry: u32,
    /// Its generation.
    pub generation: u32,
    /// Its change count: see [`LeaseTable::changes`].
    pub changes: u64,
}

/// A change that does not fit the lease table: a peer made a mistake, or lied.
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
    /// Only the owner can have the memory.
    #[error("{process} speaks of entry {entry}, which nobody was given who could have passed it on")]
    NotShared {
        /// The process.
        process: ProcessId,
        /// Entry.
        entry: u32,
    },
    /// No holder of the memory has said that it passed the memory on to this process.
    #[error("{process} says that entry {entry} was forwarded to it, and none of its holders has done so")]
    NotForwarded {
        /// The process.
        process: ProcessId,
        /// Entry.
        entry: u32,
    },
    /// Parts of the memory arrived while this process has the whole, or the whole arrived while it has parts.
    #[error(
        "{process} sends entry {entry} back in another form than this process has it in: as a whole, or in parts"
    )]
    OtherForm {
        /// The process.
        process: ProcessId,
        /// Entry.
        entry: u32,
    },
    /// The process has fewer leases than it gives back.
    #[error("{process} gives back {count} leases on entry {entry} but holds {held}")]
    NotHeld {
        /// The process.
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
            unproven: Doubts::new(),
            expiring: Vec::new(),
            passes: 0,
            settled: Vec::new(),
        }
    }
}

impl<T: Measured> LeaseTable<T> {
    /// Opens an entry for a new allocation, with one local lease and the uses that the first user has to wait
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
        // `close` has raised the generation of a closed entry, so older names of it stay unknown.
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

    /// Returns the block of an open entry.
    pub fn block(&self, entry: u32, generation: u32) -> Option<&T> {
        let slot = self.entries.get(entry as usize).filter(|slot| slot.generation == generation)?;
        slot.record.as_ref().map(|record| &record.block)
    }

    /// Adds a lease of the owner's own process, on memory that `from` sent back to it.
    ///
    /// # Errors
    /// The entry is unknown, or `from` holds no lease on it and so had nothing to send.
    #[cfg(any(test, feature = "inside"))]
    pub fn adopt(&mut self, entry: u32, generation: u32, from: ProcessId) -> Result<(), LeaseTableError> {
        self.adopt_as(entry, generation, from, false)
    }

    /// Does the same as [`adopt`](Self::adopt), for the whole, which nobody writes, or for a part, which its
    /// holder may write.
    ///
    /// # Errors
    /// The same as for [`adopt`](Self::adopt); or the owner has the memory for itself, or has it in the other
    /// form. No word of a peer may give a writer to memory that this process reads, or a reader to memory
    /// that this process writes (ONE-WRITER).
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

    /// Marks the owner's own lease as one on parts, or on the whole again. If it is on the whole, nobody else
    /// uses the memory: leases that the table still shows for other processes are on their way back.
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

    /// Notes that one of the owner's leases on parts is about to be [dropped](Self::release_local).
    pub fn drop_part(&mut self, entry: u32, generation: u32) -> Result<(), LeaseTableError> {
        let record = self.record(entry, generation)?;
        record.in_parts = record.in_parts.saturating_sub(1);
        Ok(())
    }

    /// Notes that the owner has the memory for itself, as [`is_sole`](Self::is_sole) found or the sender
    /// said. Until the memory is [granted](Self::grant) again, a peer that holds or sends it lies.
    pub fn claim(&mut self, entry: u32, generation: u32) -> Result<(), LeaseTableError> {
        self.record(entry, generation)?.claim();
        Ok(())
    }

    /// Gives `to` a lease, because the owner sends it the memory. Returns whether any process had been given
    /// one before: then holds on the entry may be on their way.
    ///
    /// # Errors
    /// The entry is unknown.
    pub fn grant(&mut self, entry: u32, generation: u32, to: ProcessId) -> Result<bool, LeaseTableError> {
        let (record, sums) = self.record_and_sums(entry, generation)?;
        record.one_more_holder(to, sums);
        record.changes += 1;
        Ok(std::mem::replace(&mut record.shared, true))
    }

    /// Takes back one lease from `from`; `uses` are its last uses.
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
    ) -> Result<Remaining, LeaseTableError> {
        Ok(self.give_back(entry, generation, from, uses)?.0)
    }

    /// Drops all leases of a process that ended (LEASE-4), its forwards, and the forwards to it. Returns the
    /// entries that nobody holds now. The caller has drained everything that the process had posted.
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
                && let Remaining::Empty(emptied) = record.changed(entry as u32, slot.generation)
            {
                empty.push(emptied);
            }
        }
        empty
    }

    /// Drops one of the leases of the owner's own process.
    ///
    /// # Errors
    /// The entry is unknown or has no local lease.
    pub fn release_local(
        &mut self,
        entry: u32,
        generation: u32,
        uses: &[Ticket],
    ) -> Result<Remaining, LeaseTableError> {
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

    /// Returns how often the counts of an entry have changed. A thread that drains between two looks at an
    /// entry, and finds the same number in both, knows of every hold that was posted before the first look.
    pub fn changes(&self, entry: u32, generation: u32) -> Option<u64> {
        let slot = self.entries.get(entry as usize).filter(|slot| slot.generation == generation)?;
        slot.record.as_ref().map(|record| record.changes)
    }

    /// Returns whether exactly one lease exists on the entry: the owner's own if `to` is `None`, else the
    /// single one of `to`, beside at most one local lease.
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

    /// Returns whether another process was ever given a lease on the entry.
    pub fn was_shared(&self, entry: u32, generation: u32) -> bool {
        self.entries
            .get(entry as usize)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.record.as_ref())
            .is_some_and(|record| record.shared)
    }

    /// Returns how many leases the owner's own process has on an entry.
    pub fn local(&self, entry: u32, generation: u32) -> u32 {
        self.entries
            .get(entry as usize)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.record.as_ref())
            .map_or(0, |record| record.local)
    }

    /// Returns the uses recorded so far on an entry. A new writer of the same memory has to wait for them.
    pub fn uses(&self, entry: u32, generation: u32) -> Uses {
        self.entries
            .get(entry as usize)
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.record.as_ref())
            .map(|record| record.uses.clone())
            .unwrap_or_default()
    }

    /// Closes an entry that nobody holds, and returns its block with the uses that still have to pass.
    /// Returns `None` if the entry has changed since it was emptied, or was closed before. If a later release
    /// emptied it again, the thread that drained that release closes it (LEASE-3).
    pub fn close(&mut self, emptied: Emptied) -> Option<(T, Uses)> {
        let Emptied { entry, generation, changes } = emptied;
        let slot = self.entries.get_mut(entry as usize).filter(|slot| slot.generation == generation)?;
        if slot.record.as_ref().is_none_or(|record| !record.is_empty() || record.changes != changes) {
            return None;
        }
        let record = slot.record.take()?;
        // After 2^32 uses an entry stays closed for good, so that no name ever means two allocations.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.closed.push(entry);
        }
        self.sums.open.take(record.block.bytes());
        self.unlink(entry);
        Some((record.block, record.uses))
    }

    /// Returns the leases on an entry: the owner's own, and those of others by process.
    #[cfg(any(test, feature = "testing"))]
    pub fn shares(&self, entry: u32, generation: u32) -> Option<(u32, Vec<(ProcessId, u32)>)> {
        let slot = self.entries.get(entry as usize).filter(|slot| slot.generation == generation)?;
        slot.record.as_ref().map(|record| (record.local, record.holders.to_vec()))
    }

    /// Returns how many entries are open.
    #[cfg(any(test, feature = "inside"))]
    pub fn len(&self) -> usize {
        self.entries.iter().filter(|slot| slot.record.is_some()).count()
    }

    /// Returns whether no entry is open.
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

    /// Updates the sums after `process` was taken out of the holders.
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

    /// Counts a change, and returns the state of the entry after it.
    fn changed(&mut self, entry: u32, generation: u32) -> Remaining {
        self.changes += 1;
        if !self.is_empty() {
            return Remaining::Held;
        }
        Remaining::Empty(Emptied { entry, generation, changes: self.changes })
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
