//! The workers that run another program than the node's others: interpreters.
//!
//! Used where a worker is started, for the first time or again, and where one did not start.
//!
//! **Invariants.** A worker runs one program in all its lives. The table holds no more than the workers that are there or come back.
//!
//! **Locks.** None: one thread owns it.

use std::collections::HashSet;

use crate::actor::WorkerProgram;
use crate::doctor;

use super::run::State;
use super::{Program, WorkerId};

impl State {
    /// This worker runs another program in all its lives.
    pub(super) fn note_program(&mut self, id: WorkerId, program: WorkerProgram) {
        let program = self.settings.program.another(program);
        let (workers, between) = (&mut self.workers, &self.restarts.between);
        // Those that are not there, and do not come back, need none.
        let known: HashSet<WorkerId> =
            workers.iter().map(|worker| worker.id).chain(between.iter().map(|next| next.worker)).collect();
        workers.programs.retain(|id, _| known.contains(id));
        workers.programs.insert(id, program);
    }

    /// What a worker runs.
    pub(super) fn program_of(&self, id: WorkerId) -> &Program {
        self.workers.programs.get(&id).unwrap_or(&self.settings.program)
    }

    /// What the doctor finds about a worker that did not start; `said` is what the error says itself.
    pub(super) fn examine(&self, id: WorkerId, said: &str) -> String {
        if let Some(program) = self.workers.programs.get(&id) {
            return doctor::at_start(None, self.settings.host_budget, said) + program.remedy;
        }
        doctor::at_start(self.settings.program.other(), self.settings.host_budget, said)
    }
}
