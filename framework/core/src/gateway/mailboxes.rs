//! The mailboxes here of actors of other hosts.
//!
//! `outbound` holds one mailbox and what goes through it, `resting` how idle ones give up their places, and
//! `followers` the versions that they keep.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use super::outbound::{Mailbox, refuse};
use crate::ids::ActorId;
use crate::transport::Transport;
use crate::transport::inbox::Refusal;

/// The mailboxes, by actor.
#[derive(Default)]
pub(super) struct Mailboxes {
    pub(super) by_actor: HashMap<ActorId, Mailbox>,
    /// Places that the node wants for other actors (`resting`).
    pub(super) places_wanted: usize,
    /// The number of the last message for an actor of another host.
    last_item: u64,
}

impl Mailboxes {
    /// Returns the number of the next message that goes out.
    pub(super) fn next_item(&mut self) -> u64 {
        self.last_item += 1;
        self.last_item
    }

    pub(super) fn last_item(&self) -> u64 {
        self.last_item
    }

    /// Refuses the waiting messages of an actor whose host takes nothing any more.
    pub(super) fn refuse_waiting(&mut self, actor: ActorId, why: &Refusal, transport: &Transport) {
        let Some(mailbox) = self.by_actor.get_mut(&actor) else { return };
        mailbox.followed.end(why);
        for waiting in std::mem::take(&mut mailbox.queue) {
            refuse(transport, waiting.out.receipt, why);
        }
    }
}

impl Deref for Mailboxes {
    type Target = HashMap<ActorId, Mailbox>;

    fn deref(&self) -> &Self::Target {
        &self.by_actor
    }
}

impl DerefMut for Mailboxes {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.by_actor
    }
}
