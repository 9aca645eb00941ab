//! A shutdown that a neighbour of this node leads: it decides when nothing is under way.

use std::time::Instant;

use super::Stopping;
use crate::node::process_runtime::Activity;
use crate::node::shutdown::Phase;

impl Stopping {
    /// Whether it still waits until nothing is under way.
    pub(in super::super) fn is_draining(&self) -> bool {
        self.phase == Phase::Draining && !self.late
    }

    /// Returns the sum of the answers of all processes of this host, once all have answered.
    pub(in super::super) fn total(&self) -> Option<Activity> {
        self.rounds.total()
    }

    /// Lets this host decide by itself from now on when nothing is under way.
    pub(in super::super) fn drain_alone(&mut self) {
        if std::mem::take(&mut self.is_led) {
            self.ask_at = Some(Instant::now());
        }
    }

    /// Whether the deadline has passed and the remaining workers were killed.
    pub(in super::super) fn is_late(&self) -> bool {
        self.late
    }
}
