//! The supervisor's part with other hosts in a build without the feature `hosts`: there are none.

use crate::node::broker::{Broker, Delivery};

use super::neighbours::Neighbours;
use super::run::SupervisorState;

impl Neighbours for SupervisorState {}

/// Returns nothing: nobody must hear anything first.
pub(super) fn before_deliveries(_broker: &mut Broker) -> Vec<Delivery> {
    Vec::new()
}
