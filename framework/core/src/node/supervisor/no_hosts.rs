//! The supervisor's part with other hosts in a build without the feature `hosts`: there are none.

use crate::node::broker::neighbours::NeighbourActors;

use super::neighbours::Neighbours;

struct Nobody;

impl Neighbours for Nobody {}

/// Returns a node's neighbours: nobody.
pub(super) fn neighbours() -> Box<dyn Neighbours> {
    Box::new(Nobody)
}

/// Returns the actors and names of a node's neighbours: none.
pub(super) fn neighbour_actors() -> Box<dyn NeighbourActors> {
    <Box<dyn NeighbourActors>>::default()
}
