//! Forwarded memory, as its owner's pool sees it: see [`table::forwards`](crate::lease::table).

use super::{LeaseId, Pool, name};
use crate::ids::ProcessId;
use crate::lease::table::{LeaseTableError, Pass, Settled};
use crate::observe::trace::What;

impl Pool {
    /// `from` says that somebody forwarded the memory to it; see
    /// [`LeaseTable::hold`](crate::lease::table::LeaseTable::hold). Whether that is known to be so: if not,
    /// the caller [settles](Self::begin_pass) it when it has no lock.
    ///
    /// # Errors
    /// The entry is not in the lease table, or nobody can have forwarded it.
    pub(crate) fn hold(&self, id: LeaseId, from: ProcessId, by: ProcessId) -> Result<bool, LeaseTableError> {
        let proven = self.state.lock().table.hold(id.entry, id.generation, from, by)?;
        self.domain.tracer().note(|| What::LeaseGranted { lease: name(id), to: from });
        Ok(proven)
    }

    /// `from` passes the memory on to `to`.
    ///
    /// # Errors
    /// The entry is not in the lease table, or `from` has no lease on it.
    pub(crate) fn forward(&self, id: LeaseId, from: ProcessId, to: ProcessId) -> Result<(), LeaseTableError> {
        self.state.lock().table.forward(id.entry, id.generation, from, to)
    }

    /// Nothing is forwarded to a process that has ended.
    pub(crate) fn forget_forwards(&self, id: LeaseId, to: ProcessId) {
        self.state.lock().table.forget_forwards(id.entry, id.generation, to);
    }

    /// See [`LeaseTable::forwards`](crate::lease::table::LeaseTable::forwards).
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn forwards(&self, id: LeaseId) -> (usize, u32) {
        self.state.lock().table.forwards(id.entry, id.generation)
    }

    /// Begins a pass, where there is anything to settle: the caller drains every ring, and then
    /// [ends](Self::end_pass) it.
    pub(crate) fn begin_pass(&self) -> Option<Pass> {
        self.state.lock().table.begin_pass()
    }

    /// Ends a pass, if one was begun; what was settled since the last time. The caller calls
    /// [`close_emptied`](Self::close_emptied) when it has handled all that it found.
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
