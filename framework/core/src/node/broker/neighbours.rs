//! The seam between the broker and what lies outside this node's own processes: actors and names that
//! neighbours have.
//!
//! Today's neighbours are other hosts (`node/hosts/other_hosts.rs`, with the feature `hosts`). The
//! supervisor's seam to them is `supervisor/neighbours.rs`. A hook adds what processes must be told to the
//! deliveries of the change that it is part of, so nobody hears of half a change.
//!
//! **Attached processes.** A process that the node did not start is in the roster, as a worker is, with its
//! actors and names. So it comes through none of these hooks but `before_deliveries`, if news of it must go
//! first.

use crate::ids::{ActorId, ProcessId};
use crate::transport::control_channel::ToNode;

use super::{Complaint, Delivery};

/// See the module. The defaults are those of a node without neighbours.
pub(crate) trait NeighbourActors {
    /// Handles a message that is about actors of neighbours; `None` if it is not.
    fn handle_for_neighbours(
        &mut self,
        _from: ProcessId,
        _message: &ToNode,
        _out: &mut Vec<Delivery>,
    ) -> Option<Result<(), Complaint>> {
        None
    }

    /// Whether an actor is at a neighbour that may be in reach.
    fn is_neighbours(&self, _actor: ActorId) -> bool {
        false
    }

    /// Has neighbours asked for a name that nobody has here. Returns whether they are asked: the answer goes
    /// to `_from` then.
    fn find_at_neighbours(
        &mut self,
        _from: ProcessId,
        _ticket: u64,
        _name: &str,
        _out: &mut Vec<Delivery>,
    ) -> bool {
        false
    }

    /// Adds what neighbours must hear before any process here hears the next deliveries.
    fn before_deliveries(&mut self, _out: &mut Vec<Delivery>) {}

    /// Drops what a process that has ended waits for.
    fn drop_waits(&mut self, _process: ProcessId, _out: &mut Vec<Delivery>) {}

    /// Notes that a process has read all messages of a process that has ended: neighbours may have waited for
    /// that.
    fn has_drained(&mut self, _out: &mut Vec<Delivery>) {}

    /// Counts everything that waits for neighbours.
    #[cfg(feature = "testing")]
    fn kept_for_neighbours(&self) -> usize {
        0
    }
}
