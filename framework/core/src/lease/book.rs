//! The owner's book: every allocation of one pool, who holds it, and which uses of it are still to pass.
//!
//! LEASE-1: only the owner counts, here, privately, by holder. A line is closed only when nobody holds the allocation,
//! and its memory is used again only after (on the GPU: ordered behind) every recorded last use. The book knows neither
//! memory nor devices, so that it can be checked as the bookkeeping it is.
//!
//! LEASE-3 has its reader here: a line that reaches zero is not closed by the call that brought it there. The caller
//! first drains everything that its peers have posted ([`Book::close`] is a second, separate step), because the hold of
//! the next holder was posted before the release of the previous one, but on another ring.
//!
//! Several threads drain, and one may read the release in the middle of another's pass, behind the ring with the hold. So
//! every line counts its changes, and what a pass found holds only if the line has not changed since the pass began.
//!
//! A hold is believed only of a line that was lent. A forwarder tells the owner nothing, so the owner cannot know who
//! was forwarded what; but it knows the lines of which nobody can have forwarded anything. A grant sets `shared` on a
//! line, and the owner clears it when it finds that it has the memory for itself, under the lock that it takes for that
//! anyway. Leases that a peer took by holds are counted apart from those that it was granted (`MAX_FORWARDED`,
//! `MAX_GRANTED`), so leases that others forward to it take no room from what the owner sends it.

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
    /// How many of them stand for parts of it, each with a writer.
    in_parts: u32,
    /// Leases of other processes; none is zero.
    holders: SmallVec<[(ProcessId, u32); 2]>,
    /// How many of them their holder took when somebody forwarded the memory to it; none is zero.
    forwarded: SmallVec<[(ProcessId, u32); 1]>,
    /// Another process was given a lease since the owner last had the memory for itself. Where it was not, nobody can have
    /// forwarded it, and whoever says that it holds it lies.
    shared: bool,
    /// Raised by every change of the counts above.
    changes: u64,
    uses: Uses,
    since: Instant,
}

/// The state of a line after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Somebody still holds the allocation.
    Held,
    /// Nobody in the book holds it: drain what peers have posted, then [`Book::close`] it.
    Empty(Emptied),
}

/// A line that nobody held, as it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// The line.
    pub line: u32,
    /// Its generation.
    pub generation: u32,
    /// Its change count: see [`Book::changes`].
    pub changes: u64,
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
    /// Nobody but the owner can have the memory.
    #[error("{process} speaks of line {line}, which nobody was given who could have passed it on")]
    NotShared {
        /// Who.
        process: ProcessId,
        /// Line.
        line: u32,
    },
    /// The memory is in this process as a whole where parts of it came, or in parts where the whole came.
    #[error(
        "{process} sends line {line} back in another form than this process has it in: as a whole, or in parts"
    )]
    OtherForm {
        /// Who.
        process: ProcessId,
        /// Line.
        line: u32,
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

/// The holders of one allocation, for the report of a full pool.
#[derive(Clone, Debug)]
pub struct LineReport<'a, T> {
    /// The allocator's handle.
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
        let entry = Entry {
            block,
            local: 1,
            in_parts: 0,
            holders: SmallVec::new(),
            forwarded: SmallVec::new(),
            shared: false,
            changes: 0,
            uses,
            since: Instant::now(),
        };
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
    #[cfg(any(test, feature = "inside"))]
    pub fn adopt(&mut self, line: u32, generation: u32, from: ProcessId) -> Result<(), BookError> {
        self.adopt_as(line, generation, from, false)
    }

    /// As [`adopt`](Self::adopt), of the whole, which nobody writes, or of a part, which its holder may write.
    ///
    /// # Errors
    /// As for [`adopt`](Self::adopt); the owner has the memory for itself, or in the other form. What a peer says must not
    /// make a writer of memory that somebody here reads, nor a reader of memory that somebody here writes (ONE-WRITER).
    pub fn adopt_as(
        &mut self,
        line: u32,
        generation: u32,
        from: ProcessId,
        in_parts: bool,
    ) -> Result<(), BookError> {
        let entry = self.entry(line, generation)?;
        if !entry.holders.iter().any(|(process, _)| *process == from) {
            return Err(BookError::NotHeld { process: from, line, count: 1, held: 0 });
        }
        if !entry.shared {
            return Err(BookError::NotShared { process: from, line });
        }
        let others = if in_parts { entry.local - entry.in_parts } else { entry.in_parts };
        if others > 0 {
            return Err(BookError::OtherForm { process: from, line });
        }
        entry.local += 1;
        entry.in_parts += u32::from(in_parts);
        entry.changes += 1;
        Ok(())
    }

    /// The owner's own lease stands for parts from here on, or for the whole again. Of the whole, nobody else has anything:
    /// what others still have in the book is on its way back.
    pub fn set_in_parts(&mut self, line: u32, generation: u32, in_parts: bool) -> Result<(), BookError> {
        let entry = self.entry(line, generation)?;
        if in_parts {
            entry.in_parts += 1;
        } else {
            entry.in_parts = entry.in_parts.saturating_sub(1);
            entry.shared = false;
        }
        Ok(())
    }

    /// A lease of the owner's that stood for parts is about to be [dropped](Self::release_local).
    pub fn drop_part(&mut self, line: u32, generation: u32) -> Result<(), BookError> {
        let entry = self.entry(line, generation)?;
        entry.in_parts = entry.in_parts.saturating_sub(1);
        Ok(())
    }

    /// `from` says that the memory was forwarded to it (LEASE-3).
    ///
    /// # Errors
    /// The line is unknown, or nobody was given a lease who could have forwarded it.
    pub fn hold(&mut self, line: u32, generation: u32, from: ProcessId) -> Result<(), BookError> {
        let entry = self.entry(line, generation)?;
        if !entry.shared {
            return Err(BookError::NotShared { process: from, line });
        }
        one_more(&mut entry.holders, from);
        one_more(&mut entry.forwarded, from);
        entry.changes += 1;
        Ok(())
    }

    /// The owner has the memory for itself, as [`is_sole`](Self::is_sole) or its sender says: whoever holds or sends it from
    /// here on, until it is [granted](Self::grant) again, lies.
    pub fn claim(&mut self, line: u32, generation: u32) -> Result<(), BookError> {
        self.entry(line, generation)?.shared = false;
        Ok(())
    }

    /// `to` gets a lease by the owner's own sending. Says whether any process had been given one
    /// before: then holds on the line may be on their way.
    ///
    /// # Errors
    /// The line is unknown.
    pub fn grant(&mut self, line: u32, generation: u32, to: ProcessId) -> Result<bool, BookError> {
        let entry = self.entry(line, generation)?;
        one_more(&mut entry.holders, to);
        entry.changes += 1;
        Ok(std::mem::replace(&mut entry.shared, true))
    }

    /// `from` gives one lease back; `uses` are the last uses it made.
    ///
    /// # Errors
    /// The line is unknown or `from` holds no lease on it: nothing changes.
    #[cfg(any(test, feature = "inside"))]
    pub fn release(
        &mut self,
        line: u32,
        generation: u32,
        from: ProcessId,
        uses: &[Ticket],
    ) -> Result<Left, BookError> {
        Ok(self.give_back(line, generation, from, uses)?.0)
    }

    /// As [`release`](Self::release); says too whether it was one that `from` took by a [`hold`](Self::hold). Those that it
    /// was granted go first.
    ///
    /// # Errors
    /// As for [`release`](Self::release).
    pub fn give_back(
        &mut self,
        line: u32,
        generation: u32,
        from: ProcessId,
        uses: &[Ticket],
    ) -> Result<(Left, bool), BookError> {
        let entry = self.entry(line, generation)?;
        let of = |shares: &[(ProcessId, u32)]| {
            shares.iter().find(|(process, _)| *process == from).map_or(0, |(_, count)| *count)
        };
        let (held, forwarded) = (of(&entry.holders), of(&entry.forwarded));
        if held == 0 {
            return Err(BookError::NotHeld { process: from, line, count: 1, held: 0 });
        }
        let was_forwarded = forwarded == held;
        one_less(&mut entry.holders, from);
        if was_forwarded {
            one_less(&mut entry.forwarded, from);
        }
        record(&mut entry.uses, uses);
        Ok((entry.changed(line, generation), was_forwarded))
    }

    /// Drops all leases of a process that ended (LEASE-4), and returns the lines that nobody holds now. What the process
    /// had posted has been drained before.
    pub fn evict(&mut self, process: ProcessId) -> Vec<Emptied> {
        let mut empty = Vec::new();
        for (line, slot) in self.lines.iter_mut().enumerate() {
            let Some(entry) = &mut slot.entry else { continue };
            let Some(index) = entry.holders.iter().position(|(holder, _)| *holder == process) else {
                continue;
            };
            entry.holders.swap_remove(index);
            entry.forwarded.retain(|(holder, _)| *holder != process);
            if let Left::Empty(emptied) = entry.changed(line as u32, slot.generation) {
                empty.push(emptied);
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
        Ok(entry.changed(line, generation))
    }

    /// How often the counts of a line have changed. Who drains between two looks at a line, and finds the same number in
    /// both, knows of every hold that was posted before the first.
    pub fn changes(&self, line: u32, generation: u32) -> Option<u64> {
        let slot = self.lines.get(line as usize).filter(|slot| slot.generation == generation)?;
        slot.entry.as_ref().map(|entry| entry.changes)
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

    /// Closes a line that nobody holds and hands its block out with the uses that still have to pass; `None` when it has
    /// changed since it was emptied, or was closed before. Where it is empty once more, that emptied it anew: whoever
    /// drained that closes it (LEASE-3).
    pub fn close(&mut self, emptied: Emptied) -> Option<(T, Uses)> {
        let Emptied { line, generation, changes } = emptied;
        let slot = self.lines.get_mut(line as usize).filter(|slot| slot.generation == generation)?;
        if slot.entry.as_ref().is_none_or(|entry| !entry.is_empty() || entry.changes != changes) {
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
    #[cfg(any(test, feature = "inside"))]
    pub fn len(&self) -> usize {
        self.lines.iter().filter(|slot| slot.entry.is_some()).count()
    }

    /// Whether no line is open.
    #[cfg(any(test, feature = "inside"))]
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
    fn is_empty(&self) -> bool {
        self.local == 0 && self.holders.is_empty()
    }

    /// Counts a change, and says what it left behind.
    fn changed(&mut self, line: u32, generation: u32) -> Left {
        self.changes += 1;
        if !self.is_empty() {
            return Left::Held;
        }
        Left::Empty(Emptied { line, generation, changes: self.changes })
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
mod tests;
