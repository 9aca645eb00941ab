//! The parts of the transport that only the gateway to other hosts uses.

use std::sync::Arc;

use super::Transport;
use super::control_channel::ControlChannel;
use super::gate::Gate;

impl Transport {
    /// Makes this process the gateway.
    pub(crate) fn set_gate(&self, gate: Arc<dyn Gate>) {
        let again = self.gate.set(gate).is_err();
        debug_assert!(!again, "a process becomes the gateway once");
    }

    /// Returns the control channel to the node. The gateway needs it, because it sends more than a transport
    /// does.
    pub(crate) fn control(&self) -> &dyn ControlChannel {
        &*self.control
    }

    /// Returns which host of its node this process runs on.
    pub(crate) fn host(&self) -> u16 {
        self.directory.host()
    }

    /// Removes the actor at `index`, where another one may follow: see
    /// [`Actors::pause`](super::Actors::pause).
    pub(crate) fn pause(&self, index: u16) {
        self.actors.pause(index, &self.links);
    }
}
