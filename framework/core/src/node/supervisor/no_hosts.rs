//! The supervisor's part with other hosts in a build without the feature `hosts`: there are none.

use super::neighbours::Neighbours;
use super::run::SupervisorState;

impl Neighbours for SupervisorState {}
