//! The mailboxes here of actors of other hosts.
//!
//! `outbound` holds how messages go through one mailbox, `resting` how idle ones give up their places, and
//! `followers` the versions that they keep.

use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};

use super::command::Out;
use super::dropped::dropped;
use super::followers::Followed;
use super::preparer::Preparing;
use crate::ids::ActorId;
use crate::transport::Transport;
use crate::transport::inbox::{Receipt, Refusal};

/// The mailbox here of an actor of another host: the messages that were not posted yet.
pub(super) struct Mailbox {
    pub(super) place: MailboxPlace,
    /// The number of messages that its host takes for it at a time. At 0 all wait here.
    pub(super) offered: u32,
    pub(super) queue: VecDeque<QueuedMessage>,
    /// Messages that its host is not done with, plus asks without an answer.
    pub(super) under_way: usize,
    /// The versions of its published state that others of this host follow.
    pub(super) followed: Followed,
    /// The time of its last message, or at which it got its place, counted in messages that came to this
    /// gateway.
    pub(super) used: u64,
}

/// The place at which senders of this host reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MailboxPlace {
    /// At this index of this process.
    At(u16),
    /// It had one until now: the node is about to tell every process.
    GivenUp,
    /// It has none. Messages that still come were sent before their sender heard of that.
    Nowhere,
}

impl Mailbox {
    pub(super) fn new(place: MailboxPlace, offered: u32) -> Self {
        Mailbox {
            place,
            offered,
            queue: VecDeque::new(),
            under_way: 0,
            followed: Followed::default(),
            used: 0,
        }
    }
}

/// A message that was not posted yet.
pub(super) struct QueuedMessage {
    pub(super) item: u64,
    pub(super) out: Box<Out>,
    /// Set until its tensors are ready to be sent.
    pub(super) preparing: Option<Preparing>,
}

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

/// Drops a message that cannot go on: tells its asker, and counts it.
pub(super) fn refuse(transport: &Transport, receipt: Receipt, why: &Refusal) {
    if !receipt.wants_reply() {
        dropped(transport.directory.host(), &format_args!("a message to another host: {why:?}"));
    }
    receipt.refuse(why);
    transport.counters.dead_letter();
}
