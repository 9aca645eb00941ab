//! Decides whether a process has an allocation for itself: then it may write it in place, or hand it over as
//! the only holder.
//!
//! The lease table alone does not tell (LEASE-3): notices of holders may lie unread in their rings. So
//! answers about a shared entry count only after a drain.

use super::{Block, LeaseId, Pool};
use crate::ids::ProcessId;
use crate::lease::table::LeaseTable;

impl Pool {
    /// Returns whether this process has one lease on the entry and no other process has any.
    pub(crate) fn is_sole(&self, id: LeaseId) -> bool {
        let shared = self.state.lock().table.was_shared(id.entry, id.generation);
        // No other thread can grant between the check and the claim: a thread that grants has a lease of its
        // own, and this thread has the only one.
        self.has_only_lease(id, None, shared)
            && self.claim_if(id, |table| table.is_sole(id.entry, id.generation, None))
    }

    /// Returns whether this process has just one lease on the entry, which the sender said is the only one.
    pub(crate) fn came_back_sole(&self, id: LeaseId) -> bool {
        self.take_in_holds(id);
        self.claim_if(id, |table| table.local(id.entry, id.generation) == 1)
    }

    /// Takes in, before a claim to memory that came back, the holds of the processes that had it in the
    /// meantime and passed it on. They posted these before the memory came here, on rings that may be unread
    /// since. After the claim these holds would be refused as lies.
    pub(super) fn take_in_holds(&self, id: LeaseId) {
        let shared = self.state.lock().table.was_shared(id.entry, id.generation);
        if shared {
            self.reclaim();
        }
    }

    fn claim_if(&self, id: LeaseId, is_sole: impl FnOnce(&LeaseTable<Block>) -> bool) -> bool {
        let mut state = self.state.lock();
        !is_lent(&state.table, id)
            && is_sole(&state.table)
            && state.table.claim(id.entry, id.generation).is_ok()
    }

    /// Returns whether `to`, which was just granted its lease, has the only one beside the sender's own.
    /// `shared` is what that grant returned.
    pub(crate) fn is_sole_of(&self, id: LeaseId, to: ProcessId, shared: bool) -> bool {
        self.has_only_lease(id, Some(to), shared)
    }

    /// Does the same as [`LeaseTable::is_sole`]. If the entry was `shared`, holders may already have released
    /// their leases and have passed the memory on before, so everything that they posted is drained first.
    fn has_only_lease(&self, id: LeaseId, to: Option<ProcessId>, shared: bool) -> bool {
        let LeaseId { entry, generation, .. } = id;
        if !shared {
            let table = &self.state.lock().table;
            return !is_lent(table, id) && table.is_sole(entry, generation, to);
        }
        let mut before = self.state.lock().table.changes(entry, generation);
        let sole = loop {
            self.drain();
            let state = self.state.lock();
            let sole = !is_lent(&state.table, id) && state.table.is_sole(entry, generation, to);
            let now = state.table.changes(entry, generation);
            // LEASE-3: another thread may have drained a release in the meantime, and the hold before it may
            // be on a ring that this drain had passed. An answer about an entry is true only if the entry did
            // not change during the drain.
            if !sole || now == before {
                break sole;
            }
            before = now;
        };
        // The reader finds those rings empty now, so this thread closes the entries that the drain emptied,
        // and wakes the waiters for memory.
        self.close_emptied();
        sole
    }

    /// Returns whether this process has just one lease on the entry, regardless of other processes' leases.
    pub(crate) fn is_only_local(&self, id: LeaseId) -> bool {
        let table = &self.state.lock().table;
        !is_lent(table, id) && table.local(id.entry, id.generation) == 1
    }
}

/// Returns whether a library of this process has the memory too. Then no process has it for itself.
fn is_lent(table: &LeaseTable<Block>, id: LeaseId) -> bool {
    table.block(id.entry, id.generation).is_some_and(Block::is_lent)
}
