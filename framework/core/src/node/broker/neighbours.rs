//! The seam between the broker and what lies outside this node's own processes: actors and names that
//! neighbours have.
//!
//! The broker owns its [`NeighbourActors`] as one value. They reach nothing of the broker but the [`Tables`]
//! that it lends to a hook. Today's neighbours are other hosts (`node/hosts/other_hosts.rs`, with the feature
//! `hosts`), which the supervisor gives to the broker. Without them the value has only the defaults. The
//! supervisor's own seam to them is `supervisor/neighbours.rs`. A hook adds what processes must be told to
//! the deliveries of the change that it is part of, so nobody hears of half a change.
//!
//! **Attached processes.** A process that the node did not start is in the roster, as a worker is, with its
//! actors and names. So it comes through none of these hooks but `before_deliveries`, if news of it must go
//! first.

use std::any::Any;

use crate::ids::{ActorId, ProcessId};
use crate::node::reclaim::Reclaims;
use crate::node::registry::Registry;
use crate::node::roster::Roster;
use crate::node::watches::Watches;
use crate::transport::control_channel::{FromNode, ToNode};
use crate::transport::lifecycle::{Lifecycle, Whereabouts};

use super::{Complaint, Delivery};

/// The tables of the broker that neighbours read and change, for one call.
#[cfg_attr(not(feature = "hosts"), allow(dead_code, reason = "the other fields are for neighbours"))]
pub(crate) struct Tables<'a> {
    pub(crate) roster: &'a mut Roster,
    pub(crate) registry: &'a mut Registry,
    pub(crate) watches: &'a mut Watches,
    pub(crate) reclaims: &'a Reclaims,
}

impl Tables<'_> {
    /// Tells all watchers of an actor what has happened to it.
    pub(crate) fn tell(&mut self, event: &Lifecycle, out: &mut Vec<Delivery>) {
        out.extend(Delivery::to_all(self.watches.note(event), FromNode::Lifecycle(event.clone())));
    }

    /// Tells all processes where an actor is now.
    pub(crate) fn announce(&self, actor: ActorId, at: &Whereabouts, out: &mut Vec<Delivery>) {
        out.extend(Delivery::to_all(self.roster.living(), FromNode::Actor { actor, at: at.clone() }));
    }
}

/// See the module. The defaults are those of a node without neighbours.
pub(crate) trait NeighbourActors: Any + Send {
    /// Handles a message that is about actors of neighbours; `None` if it is not.
    fn handle_for_neighbours(
        &mut self,
        _tables: Tables<'_>,
        _from: ProcessId,
        _message: &ToNode,
        _out: &mut Vec<Delivery>,
    ) -> Option<Result<(), Complaint>> {
        None
    }

    /// Whether an actor is at a neighbour that may be in reach.
    fn is_neighbours(&self, _roster: &Roster, _actor: ActorId) -> bool {
        false
    }

    /// Returns the host of a neighbour whose actor has this name, as far as this host has granted it.
    fn host_of_name(&self, _name: &str) -> Option<u16> {
        None
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
    fn before_deliveries(&mut self, _tables: Tables<'_>, _out: &mut Vec<Delivery>) {}

    /// Drops what a process that has ended waits for.
    fn drop_waits(&mut self, _tables: Tables<'_>, _process: ProcessId, _out: &mut Vec<Delivery>) {}

    /// Notes that a process has read all messages of a process that has ended: neighbours may have waited for
    /// that.
    fn has_drained(&mut self, _tables: Tables<'_>, _out: &mut Vec<Delivery>) {}

    /// Counts everything that waits for neighbours.
    #[cfg(feature = "testing")]
    fn kept_for_neighbours(&self) -> usize {
        0
    }
}

/// The neighbours of a node that has none.
struct Nobody;

impl NeighbourActors for Nobody {}

impl Default for Box<dyn NeighbourActors> {
    fn default() -> Self {
        Box::new(Nobody)
    }
}
