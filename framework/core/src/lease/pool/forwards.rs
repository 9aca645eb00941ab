//! Forwarded memory in the owner's pool: see [`table::forwards`](crate::lease::table).

use super::{LeaseId, Pool, name};
use crate::ids::ProcessId;
use crate::lease::table::{LeaseTableError, Pass, Settled};
use crate::observe::trace::What;

impl Pool {
    /// Enters a hold: `from` says that `by` forwarded the memory to it; see
    /// [`LeaseTable::hold`](crate::lease::table::LeaseTable::hold). Returns whether the forward is known. If
    /// not, the caller [settles](Self::begin_pass) the hold when it holds no lock.
    ///
    /// # Errors
    /// The entry is not in the lease table, or nobody can have forwarded it.
    pub(crate) fn hold(&self, id: LeaseId, from: ProcessId, by: ProcessId) -> Result<bool, LeaseTableError> {
        let proven = self.state.lock().table.hold(id.entry, id.generation, from, by)?;
        self.domain.tracer().note(|| What::LeaseGranted { lease: name(id), to: from });
        Ok(proven)
    }

    /// Enters a forward: `from` passes the memory on to `to`.
    ///
    /// # Errors
    /// The entry is not in the lease table, or `from` has no lease on it.
    pub(crate) fn forward(&self, id: LeaseId, from: ProcessId, to: ProcessId) -> Result<(), LeaseTableError> {
        self.state.lock().table.forward(id.entry, id.generation, from, to)
    }

    /// Removes the forwards to a process that has ended.
    pub(crate) fn forget_forwards(&self, id: LeaseId, to: ProcessId) {
        self.state.lock().table.forget_forwards(id.entry, id.generation, to);
    }

    /// See [`LeaseTable::forwards`](crate::lease::table::LeaseTable::forwards).
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn forwards(&self, id: LeaseId) -> (usize, u32) {
        self.state.lock().table.forwards(id.entry, id.generation)
    }

    /// Begins a pass if there is anything to settle. The caller drains every ring, and then
    /// [ends](Self::end_pass) it.
    pub(crate) fn begin_pass(&self) -> Option<Pass> {
        self.state.lock().table.begin_pass()
    }

    /// Ends a pass, if one was begun, and returns the holds settled since the last call. The caller calls
    /// [`close_emptied`](Self::close_emptied) after it has handled them all.
    pub(crate) fn end_pass(&self, pass: Option<Pass>) -> Vec<Settled> {
        let mut state = self.state.lock();
        if let Some(pass) = pass {
            state.table.end_pass(pass);
        }
        let mut settled = state.table.take_settled();
        settled.retain(|settled| {
            if let Settled::Emptied(emptied) = settled {
                self.add_candidate(&mut state, *emptied);
            }
            !matches!(settled, Settled::Emptied(_))
        });
        settled
    }
}
