//! Who has an allocation for itself: may write it in place, or hand it over as the only one.
//!
//! The lease table alone does not say (LEASE-3): what holders have posted may lie in rings that nobody has
//! looked at since. So what is believed of a shared entry is believed behind a drain.

use super::{Block, LeaseId, Pool};
use crate::ids::ProcessId;
use crate::lease::table::LeaseTable;

impl Pool {
    /// Whether this process has one lease on the entry and no other process has any.
    pub(crate) fn is_sole(&self, id: LeaseId) -> bool {
        let shared = self.state.lock().table.was_shared(id.entry, id.generation);
        // A grant between the look and the claim would be this thread's: whoever grants has a lease of its
        // own, and this is the only one.
        self.has_only_lease(id, None, shared)
            && self.claim_if(id, |table| table.is_sole(id.entry, id.generation, None))
    }

    /// Whether this process has just one lease on the entry, of which its sender said that it is the only
    /// one.
    pub(crate) fn came_back_sole(&self, id: LeaseId) -> bool {
        self.take_in_holds(id);
        self.claim_if(id, |table| table.local(id.entry, id.generation) == 1)
    }

    /// For a claim to memory that came back: takes in the holds of those who had it meanwhile and passed it
    /// on. They posted them before it came here, on rings that may not have been looked at since; behind the
    /// claim they would be lies.
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

    /// Whether `to`, which was just granted its lease, has the only one beside the sender's own; `shared` is
    /// what that grant returned.
    pub(crate) fn is_sole_of(&self, id: LeaseId, to: ProcessId, shared: bool) -> bool {
        self.has_only_lease(id, Some(to), shared)
    }

    /// As [`LeaseTable::is_sole`]. Where the entry was `shared`, holders may have let go already, and passed
    /// the memory on before: what they posted says so.
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
            // LEASE-3: another thread may have drained a release meanwhile, and the hold before it may be on
            // a ring that this drain had passed. What is known of an entry is true only if it stood still.
            if !sole || now == before {
                break sole;
            }
            before = now;
        };
        // The reader finds those rings empty now: what the drain gave back is closed here, and whoever waits
        // is woken.
        self.close_emptied();
        sole
    }

    /// Whether this process has just one lease on the entry, whatever others have.
    pub(crate) fn is_only_local(&self, id: LeaseId) -> bool {
        let table = &self.state.lock().table;
        !is_lent(table, id) && table.local(id.entry, id.generation) == 1
    }
}

/// Whether a library of this process has the memory too: then nobody has it for itself.
fn is_lent(table: &LeaseTable<Block>, id: LeaseId) -> bool {
    table.block(id.entry, id.generation).is_some_and(Block::is_lent)
}
