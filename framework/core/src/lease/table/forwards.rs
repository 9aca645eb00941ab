//! Forwards: which holds are believed (WIRE-1, LEASE-3).
//!
//! A process that passes a lease on announces the forward to the owner before the frame becomes visible, and
//! so before the hold that follows from it; but on another ring. The owner counts the forwards of each
//! holder, by receiver. A hold names its forwarder, and takes one of these forwards. If there is none, the
//! forward may still be unread on the forwarder's ring. Such a hold is *unproven*: it keeps the entry open,
//! and has no other effect. The forward proves it, or it is refused at the end of a [`Pass`] that began after
//! the hold and has drained every ring. A forward by an unproven holder proves nothing until that holder's
//! own hold is proven.
//!
//! A refused hold stays noted: its holder may be honest, while the forwarder lied by not announcing it. The
//! releases of that holder count first against its refused holds. So it keeps every lease that it does have
//! until it has released all of its handles.
//!
//! If no hold takes a forward (its frame was rejected, or never sent), the forward is removed after the
//! forwarder's last lease is back, at the end of a pass. By then a hold for it would have been read, because
//! a forwarder releases its lease only after that hold. A forward is also removed when either of the two
//! processes dies, and when the owner has the memory for itself.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::{
    Emptied, LeaseTable, LeaseTableError, Measured, ProcessId, Record, Remaining, Sums, Ticket, Uses,
    note_uses, one_less, one_more,
};
use crate::limits::MAX_FORWARD_RECEIVERS;

/// Leases on an entry that `by` passes on to `to`.
#[derive(Clone, Debug)]
pub(super) struct Forward {
    by: ProcessId,
    /// The receiver; `None` if any process may take it.
    to: Option<ProcessId>,
    count: u32,
    /// The forwarder holds a lease itself, or did.
    good: bool,
    /// The pass after which the forwarder released its last lease.
    expires: Option<u64>,
}

impl Forward {
    pub(super) fn concerns(&self, process: ProcessId) -> bool {
        self.by == process || self.to == Some(process)
    }
}

/// Holds of one process on one entry that wait for their forwards.
#[derive(Clone, Debug)]
pub(super) struct Unproven {
    entry: (u32, u32),
    process: ProcessId,
    /// The forwarder, as the process names it.
    by: ProcessId,
    holds: u32,
    /// How many leases it has given back since, with uses that count if the holds are proven.
    releases: u32,
    uses: Uses,
    /// The pass after which the holds came.
    since: u64,
}

/// The unproven holds of each entry, an index and a generation, in the order in which they came. A message
/// with many tensors may bring thousands before their forwards are read, so each look is at one entry's.
pub(super) type Doubts = HashMap<(u32, u32), SmallVec<[Unproven; 1]>>;

/// The kind of lease that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// A lease that the owner granted.
    Granted,
    /// A lease that was taken by a hold.
    Forwarded,
    /// A lease whose hold had been refused.
    Refused,
    /// Not known until the holds of the process are settled.
    Later,
}

/// The outcome of holds that were unproven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// This many holds of a process were refused, for this reason.
    Refused(ProcessId, u32, LeaseTableError),
    /// The process had given one back in the meantime.
    GivenBack(ProcessId, GivenBack),
    /// Nobody holds the entry now.
    Emptied(Emptied),
}

/// A drain of every ring, which settles the holds that were unproven when it began.
#[derive(Clone, Copy, Debug)]
pub struct Pass(u64);

/// Removes the unproven holds of a process on an entry, and returns their number.
pub(super) fn forget(unproven: &mut Doubts, entry: (u32, u32), process: ProcessId) -> u32 {
    let mut holds = 0;
    while let Some(doubt) = take_first(unproven, entry, |doubt| doubt.process == process) {
        holds += doubt.holds;
    }
    holds
}

/// Removes the first of an entry's unproven holds for which `is_it` is true.
fn take_first(
    unproven: &mut Doubts,
    entry: (u32, u32),
    is_it: impl FnMut(&Unproven) -> bool,
) -> Option<Unproven> {
    let doubts = unproven.get_mut(&entry)?;
    let doubt = doubts.iter().position(is_it).map(|index| doubts.remove(index));
    if doubts.is_empty() {
        unproven.remove(&entry);
    }
    doubt
}

impl<T: Measured> LeaseTable<T> {
    /// Enters a hold: `from` says that `by` has forwarded the memory to it (LEASE-3). Returns whether `by` is
    /// known to have done so. If not, the owner has to [drain](Self::begin_pass) once more.
    ///
    /// # Errors
    /// The entry is unknown, or no process was given a lease that it could have forwarded: that hold is
    /// refused.
    pub fn hold(
        &mut self,
        entry: u32,
        generation: u32,
        from: ProcessId,
        by: ProcessId,
    ) -> Result<bool, LeaseTableError> {
        let since = self.passes;
        let (record, sums) = self.record_and_sums(entry, generation)?;
        if !record.shared {
            // Noted, so that the release of this hold is not taken for that of a lease that `from` does have.
            more(&mut record.refused, from, 1);
            return Err(LeaseTableError::NotShared { process: from, entry });
        }
        // An unproven hold is a change too: a check of this entry that began before must not count.
        record.changes += 1;
        if record.take_forward(from, by) {
            // From here on the forwards of `from` count, and may prove other holds.
            record.believe(from, sums);
            self.prove(entry, generation);
            return Ok(true);
        }
        record.unproven += 1;
        let name = (entry, generation);
        let doubts = self.unproven.entry(name).or_default();
        // Merged only with holds since the same pass, because a pass refuses only the holds from before it.
        let known = doubts.iter_mut().rfind(|doubt| (doubt.process, doubt.by) == (from, by));
        match known.filter(|doubt| doubt.since == since) {
            Some(doubt) => doubt.holds += 1,
            None => doubts.push(Unproven {
                entry: name,
                process: from,
                by,
                holds: 1,
                releases: 0,
                uses: Uses::new(),
                since,
            }),
        }
        Ok(false)
    }

    /// Enters a forward: `from` says that it passes a lease on to `to`.
    ///
    /// # Errors
    /// The entry is unknown, or `from` has no lease that it could pass on.
    pub fn forward(
        &mut self,
        entry: u32,
        generation: u32,
        from: ProcessId,
        to: ProcessId,
    ) -> Result<(), LeaseTableError> {
        let record = self.record(entry, generation)?;
        if !record.shared {
            return Err(LeaseTableError::NotShared { process: from, entry });
        }
        let (good, doubted) = (record.has(from), record.unproven > 0);
        let has_some = good || doubted && self.has_doubts((entry, generation), from);
        if !has_some {
            return Err(LeaseTableError::NotHeld { process: from, entry, count: 1, held: 0 });
        }
        self.record(entry, generation)?.note_forward(from, to, good);
        if good && doubted {
            self.prove(entry, generation);
        }
        Ok(())
    }

    /// Removes the forwards to a process that has ended.
    pub fn forget_forwards(&mut self, entry: u32, generation: u32, to: ProcessId) {
        if let Ok(record) = self.record(entry, generation) {
            record.forwards.retain(|forward| forward.to != Some(to));
        }
    }

    /// Does the same as [`release`](Self::release), and says which kind of lease it was. Refused holds are
    /// given back first, then leases that `from` was granted, and last those that it took by a
    /// [`hold`](Self::hold).
    ///
    /// # Errors
    /// As for [`release`](Self::release).
    pub fn give_back(
        &mut self,
        entry: u32,
        generation: u32,
        from: ProcessId,
        uses: &[Ticket],
    ) -> Result<(Remaining, GivenBack), LeaseTableError> {
        if !self.unproven.is_empty() && self.put_off(entry, generation, from, uses)? {
            return Ok((Remaining::Held, GivenBack::Later));
        }
        let passes = self.passes;
        let (record, sums) = self.record_and_sums(entry, generation)?;
        let of = |shares: &[(ProcessId, u32)]| {
            shares.iter().find(|(process, _)| *process == from).map_or(0, |(_, count)| *count)
        };
        let (held, forwarded) = (of(&record.holders), of(&record.forwarded));
        if !record.refused.is_empty() && one_refused_less(&mut record.refused, from) {
            if held > 0 {
                // Handles cannot be told apart: this may have been the handle of a lease that it does have,
                // so its uses count.
                note_uses(&mut record.uses, uses);
            }
            return Ok((Remaining::Held, GivenBack::Refused));
        }
        if held == 0 {
            return Err(LeaseTableError::NotHeld { process: from, entry, count: 1, held: 0 });
        }
        let given = if forwarded == held { GivenBack::Forwarded } else { GivenBack::Granted };
        one_less(&mut record.holders, from);
        if held == 1 {
            record.holder_left(from, sums);
        }
        if given == GivenBack::Forwarded {
            one_less(&mut record.forwarded, from);
        }
        note_uses(&mut record.uses, uses);
        let left = record.changed(entry, generation);
        if held == 1 && !record.forwards.is_empty() && record.let_go(from, passes) {
            self.expiring.push((entry, generation));
        }
        Ok((left, given))
    }

    /// Puts a release by `from` off until its holds on the entry are settled. Returns false if none of them
    /// is unproven.
    fn put_off(
        &mut self,
        entry: u32,
        generation: u32,
        from: ProcessId,
        uses: &[Ticket],
    ) -> Result<bool, LeaseTableError> {
        let name = (entry, generation);
        let doubts = self.unproven.get(&name).into_iter().flatten().filter(|doubt| doubt.process == from);
        let (holds, releases) =
            doubts.fold((0, 0), |(holds, releases), doubt| (holds + doubt.holds, releases + doubt.releases));
        if holds == 0 {
            return Ok(false);
        }
        let record = self.record(entry, generation)?;
        // WIRE-1: only a release beyond its leases, refused holds and unproven holds together is certainly
        // wrong.
        let all = record.holders.iter().chain(&record.refused);
        let held = holds + all.filter(|(process, _)| *process == from).map(|(_, count)| count).sum::<u32>();
        if releases >= held {
            return Err(LeaseTableError::NotHeld { process: from, entry, count: releases + 1, held });
        }
        let doubts = self.unproven.get_mut(&name);
        if let Some(last) = doubts.and_then(|doubts| doubts.iter_mut().rfind(|doubt| doubt.process == from)) {
            last.releases += 1;
            note_uses(&mut last.uses, uses);
        }
        Ok(true)
    }

    /// Returns whether a pass would find nothing to settle.
    pub fn is_settled(&self) -> bool {
        self.unproven.is_empty() && self.expiring.is_empty()
    }

    /// Begins a pass; the caller now drains every ring. Returns `None` if there is nothing to settle.
    pub fn begin_pass(&mut self) -> Option<Pass> {
        if self.is_settled() {
            return None;
        }
        self.passes += 1;
        Some(Pass(self.passes))
    }

    /// Ends a pass, after every ring was drained. Refuses the holds from before the pass for which no forward
    /// came, and removes the forwards of processes that had released their last lease before it.
    pub fn end_pass(&mut self, Pass(pass): Pass) {
        let is_old = |doubt: &Unproven| doubt.since < pass;
        let old = self.unproven.iter().filter(|(_, doubts)| doubts.iter().any(is_old));
        let mut old: Vec<_> = old.map(|(entry, _)| *entry).collect();
        // The same order for the same holds.
        old.sort_unstable();
        for name in old {
            while let Some(doubt) = take_first(&mut self.unproven, name, is_old) {
                self.refuse(doubt);
            }
        }
        let mut expiring = std::mem::take(&mut self.expiring);
        expiring.retain(|(entry, generation)| {
            let Ok(record) = self.record(*entry, *generation) else { return false };
            record.forwards.retain(|forward| forward.expires.is_none_or(|at| at >= pass));
            record.forwards.iter().any(|forward| forward.expires.is_some())
        });
        // Keeps entries that were added in the meantime. The loop above adds none, but this code does not
        // rely on that.
        expiring.append(&mut self.expiring);
        self.expiring = expiring;
    }

    /// Refuses holds for which no forward has come.
    fn refuse(&mut self, doubt: Unproven) {
        let (entry, generation) = doubt.entry;
        let (process, others) = (doubt.process, self.has_doubts(doubt.entry, doubt.process));
        let Ok(record) = self.record(entry, generation) else { return };
        record.unproven -= doubt.holds;
        more(&mut record.refused, process, doubt.holds);
        if !others && !record.has(process) {
            record.forwards.retain(|forward| forward.by != process);
        }
        let why = LeaseTableError::NotForwarded { process, entry };
        self.settled.push(Settled::Refused(process, doubt.holds, why));
        self.give_back_later(doubt);
        if let Ok(record) = self.record(entry, generation)
            && let Remaining::Empty(emptied) = record.changed(entry, generation)
        {
            self.settled.push(Settled::Emptied(emptied));
        }
    }

    /// Takes the outcomes since the last call.
    pub fn take_settled(&mut self) -> Vec<Settled> {
        std::mem::take(&mut self.settled)
    }

    fn has_doubts(&self, entry: (u32, u32), process: ProcessId) -> bool {
        self.unproven.get(&entry).is_some_and(|doubts| doubts.iter().any(|doubt| doubt.process == process))
    }

    /// Proves the unproven holds on an entry for which a forward has come by now. A proven hold makes its
    /// holder's own forwards count, so the loop repeats until nothing changes.
    fn prove(&mut self, entry: u32, generation: u32) {
        let name = (entry, generation);
        let mut index = 0;
        while let Some(doubt) = self.unproven.get(&name).and_then(|doubts| doubts.get(index)) {
            let (process, by) = (doubt.process, doubt.by);
            let Ok((record, sums)) = self.record_and_sums(entry, generation) else { return };
            if !record.take_forward(process, by) {
                index += 1;
                continue;
            }
            record.unproven -= 1;
            record.believe(process, sums);
            let Some(doubts) = self.unproven.get_mut(&name) else { return };
            doubts[index].holds -= 1;
            if doubts[index].holds == 0
                && let Some(doubt) = take_first(&mut self.unproven, name, |doubt| {
                    (doubt.process, doubt.by, doubt.holds) == (process, by, 0)
                })
            {
                self.give_back_later(doubt);
            }
            index = 0;
        }
    }

    /// Carries out the releases that a process made while its holds were unproven.
    fn give_back_later(&mut self, doubt: Unproven) {
        let (entry, generation) = doubt.entry;
        for _ in 0..doubt.releases {
            let Ok((left, given)) = self.give_back(entry, generation, doubt.process, &doubt.uses) else {
                continue;
            };
            self.settled.push(Settled::GivenBack(doubt.process, given));
            if let Remaining::Empty(emptied) = left {
                self.settled.push(Settled::Emptied(emptied));
            }
        }
    }

    /// Returns how many different forwards of an entry no hold has taken yet, and how many holds are
    /// unproven.
    #[cfg(any(test, feature = "testing"))]
    pub fn forwards(&self, entry: u32, generation: u32) -> (usize, u32) {
        let slot = self.entries.get(entry as usize).filter(|slot| slot.generation == generation);
        let record = slot.and_then(|slot| slot.record.as_ref());
        record.map_or((0, 0), |record| (record.forwards.len(), record.unproven))
    }
}

impl<T: Measured> Record<T> {
    fn has(&self, process: ProcessId) -> bool {
        self.holders.iter().any(|(holder, _)| *holder == process)
    }

    /// Turns a proven hold of `process` into a lease.
    fn believe(&mut self, process: ProcessId, sums: &mut Sums) {
        self.one_more_holder(process, sums);
        one_more(&mut self.forwarded, process);
        self.forwards
            .iter_mut()
            .filter(|forward| forward.by == process)
            .for_each(|forward| forward.good = true);
    }

    /// Takes one lease that `by` has forwarded to `to`, and returns whether there was one. It never takes the
    /// forward of another process: the hold for that one may come long after its forwarder has released its
    /// lease, and would then find none. The oldest forward is taken first. Forwards that `by` made before it
    /// released its last lease are [removed](LeaseTable::end_pass) by a pass, and those that it made since,
    /// with another lease, have to last.
    fn take_forward(&mut self, to: ProcessId, by: ProcessId) -> bool {
        let good = |forward: &Forward| forward.good && forward.by == by;
        let Some(index) = self.forwards.iter().position(|forward| good(forward) && forward.to == Some(to))
        else {
            return self.forwards.iter().any(|forward| good(forward) && forward.to.is_none());
        };
        self.forwards[index].count -= 1;
        if self.forwards[index].count == 0 {
            // Not `swap_remove`: the forwards stay in the order in which they came.
            self.forwards.remove(index);
        }
        true
    }

    fn note_forward(&mut self, by: ProcessId, to: ProcessId, good: bool) {
        let own = |forward: &Forward| forward.by == by && forward.expires.is_none();
        let is_it = |forward: &&mut Forward| own(forward) && forward.to.is_none_or(|known| known == to);
        if let Some(known) = self.forwards.iter_mut().find(is_it) {
            known.count = known.count.saturating_add(1);
            known.good |= good;
            return;
        }
        let mut new = Forward { by, to: Some(to), count: 1, good, expires: None };
        if self.forwards.iter().filter(|forward| own(forward)).count() >= MAX_FORWARD_RECEIVERS {
            self.forwards.retain(|forward| !own(forward));
            new.to = None;
        }
        self.forwards.push(new);
    }

    /// Marks the forwards of `by`, which has released its last lease, as expiring. Returns whether there are
    /// any.
    fn let_go(&mut self, by: ProcessId, pass: u64) -> bool {
        let mut any = false;
        for forward in self.forwards.iter_mut().filter(|forward| forward.by == by) {
            forward.expires.get_or_insert(pass);
            any = true;
        }
        any
    }
}

fn more(shares: &mut Vec<(ProcessId, u32)>, of: ProcessId, count: u32) {
    match shares.iter_mut().find(|(process, _)| *process == of) {
        Some((_, known)) => *known = known.saturating_add(count),
        None => shares.push((of, count)),
    }
}

fn one_refused_less(refused: &mut Vec<(ProcessId, u32)>, of: ProcessId) -> bool {
    let Some(index) = refused.iter().position(|(process, _)| *process == of) else { return false };
    refused[index].1 -= 1;
    if refused[index].1 == 0 {
        refused.swap_remove(index);
    }
    true
}

#[cfg(test)]
mod honest;
#[cfg(test)]
mod model;
