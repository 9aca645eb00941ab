//! The way from a process to what lies outside its node, in the process that is that way: the gateway.
//!
//! The transport asks a [`Gate`] where it would ask a mailbox of its own. Messages between the gate and the
//! node's part behind it are opaque here: an [`Envelope`] each way, on the control channel. Today the only
//! gateway is that to other hosts (`gateway/`, with the feature `hosts`); a process without one has no gate.
//!
//! **Attached processes.** A process that the node did not start talks to each process here over a link of
//! its own, as a worker does, so it comes through no gate. It may speak by envelopes of its own to the node.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::Transport;
use super::envelope::Envelope;
use super::inbox::Inbox;
use crate::ids::ActorId;

/// The calls of a transport to the gateway, in the process that is the gateway.
pub(crate) trait Gate: Send + Sync {
    /// Takes a message of the node. Never waits.
    fn hear(&self, said: &Envelope);

    /// Returns the mailbox for a message to an actor outside that was sent to a location which the actor has
    /// left.
    fn late(&self, actor: ActorId) -> Arc<dyn Inbox>;

    /// Leaves all that is outside. Resolves when it knows of it, or some time has passed.
    fn leave(&self) -> BoxFuture<'static, ()>;
}

impl Transport {
    /// Makes this process the gateway.
    #[cfg(feature = "hosts")]
    pub(crate) fn set_gate(&self, gate: Arc<dyn Gate>) {
        let again = self.gate.set(gate).is_err();
        debug_assert!(!again, "a process becomes the gateway once");
    }

    /// Returns, in the gateway, the mailbox for a message to an actor outside that has left the location
    /// which the message names. Also returns how many such messages one process can have sent there.
    pub(super) fn late_inbox(&self, index: u16, actor: ActorId) -> Option<(Arc<dyn Inbox>, u32)> {
        let gate = self.gate.get().filter(|_| self.directory.is_on_other_host(actor))?;
        Some((gate.late(actor), self.actors.most_at(index)?))
    }
}
