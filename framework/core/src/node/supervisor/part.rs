//! A part of the supervisor: it owns its state, and the loop asks it.

use std::time::{Duration, Instant};

use crate::ids::ProcessId;

/// See the module. The defaults are those of a part that has no deadline, and waits for no process.
pub(super) trait Part {
    /// Returns when it has to act next, if no event comes before.
    fn next_event(&self) -> Option<Instant> {
        None
    }

    /// Goes on without the processes that have not answered in time.
    fn tick(&mut self, _now: Instant) {}

    /// Extends its deadlines by `_lost`: the node stood still for that long, and others perhaps with it.
    fn stalled(&mut self, _lost: Duration) {}

    /// Stops waiting for a process that has ended.
    fn left(&mut self, _process: ProcessId) {}
}
