//! How a worker's process is made: its program, if it differs from that of the other workers (an
//! interpreter), and how many hardware queues of a GPU it gets.
//!
//! Used when a worker is started, for the first time or again, and when a start has failed.
//!
//! **Invariants.** A worker is made in the same way in all its lives. The table has entries only for workers
//! that run or come back.
//!
//! **Locks.** None: one thread owns it.

use std::collections::HashSet;

use crate::actor::WorkerProgram;
use crate::lease::GpuBudget;
use crate::limits::{CUDA_CONNECTIONS, cuda_connections};
use crate::node::watcher::watcher;

use super::run::SupervisorState;
use super::{Program, WorkerId};

/// How the caller wants a worker to be made.
pub(crate) struct Making {
    /// `None`: the program of the worker `like`.
    pub(crate) program: Option<WorkerProgram>,
    /// `None`: the program of the node's other workers.
    pub(crate) like: Option<WorkerId>,
    /// `CUDA_DEVICE_MAX_CONNECTIONS`, unless the node's own environment sets it.
    pub(crate) connections: usize,
    /// The budget of its pool on each GPU, if it is not that of the node.
    pub(crate) gpu_budget: Option<GpuBudget>,
}

impl Making {
    /// Asks for hardware queues for `streams` streams on a GPU.
    pub(crate) fn of(program: Option<WorkerProgram>, streams: usize) -> Self {
        Making { program, like: None, connections: cuda_connections(streams), gpu_budget: None }
    }
}

/// A [`Making`] with its program resolved.
pub(super) struct Made {
    program: Option<Program>,
    connections: usize,
    gpu_budget: Option<GpuBudget>,
}

impl SupervisorState {
    /// Remembers how this worker is made, for all its lives.
    pub(super) fn note_making(&mut self, id: WorkerId, making: Making) {
        let Making { program, like, connections, gpu_budget } = making;
        let program = match program {
            Some(program) => Some(self.settings.program.another(program)),
            None => like.and_then(|worker| self.another_program_of(worker)).cloned(),
        };
        let (workers, between) = (&mut self.workers, &self.restarts.between);
        // Workers that have ended and do not come back need no entry.
        let known: HashSet<WorkerId> =
            workers.iter().map(|worker| worker.id).chain(between.iter().map(|next| next.worker)).collect();
        workers.makings.retain(|id, _| known.contains(id));
        if program.is_some() || connections != CUDA_CONNECTIONS || gpu_budget.is_some() {
            workers.makings.insert(id, Made { program, connections, gpu_budget });
        }
    }

    fn another_program_of(&self, id: WorkerId) -> Option<&Program> {
        self.workers.makings.get(&id)?.program.as_ref()
    }

    /// Returns the program that a worker runs.
    pub(super) fn program_of(&self, id: WorkerId) -> &Program {
        self.another_program_of(id).unwrap_or(&self.settings.program)
    }

    /// Returns how many hardware queues on a GPU a worker gets.
    pub(super) fn connections_of(&self, id: WorkerId) -> usize {
        self.workers.makings.get(&id).map_or(CUDA_CONNECTIONS, |made| made.connections)
    }

    /// Returns the budget of its pool on each GPU.
    pub(super) fn gpu_budget_of(&self, id: WorkerId) -> Option<GpuBudget> {
        let made = self.workers.makings.get(&id).and_then(|made| made.gpu_budget);
        made.or(self.settings.gpu_budget)
    }

    /// Returns the doctor's findings about a worker that did not start; `said` is the error's own text.
    pub(super) fn examine(&self, id: WorkerId, said: &str) -> String {
        if let Some(program) = self.another_program_of(id) {
            return watcher().obstacles(None, self.settings.host_budget, said) + program.remedy;
        }
        watcher().obstacles(self.settings.program.other(), self.settings.host_budget, said)
    }
}
