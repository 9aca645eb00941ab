//! How a worker's process is made: its program, if it differs from that of the other workers (an
//! interpreter), and how many hardware queues of a GPU it gets.
//!
//! Used when a worker is started, for the first time or again, and when a start has failed.
//!
//! **Invariants.** A worker is made in the same way in all its lives. The table (`Workers::makings`) has
//! entries only for workers that run or come back.
//!
//! **Locks.** None: one thread owns it.

use crate::actor::WorkerProgram;
use crate::lease::GpuBudget;
use crate::limits::cuda_connections;

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
    pub(super) program: Option<Program>,
    pub(super) connections: usize,
    pub(super) gpu_budget: Option<GpuBudget>,
}
