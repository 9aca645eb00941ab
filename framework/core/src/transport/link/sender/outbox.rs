//! Replies that found no room, in order. The reader sends them when there is room.
//!
//! `outgoing` uses it. Invariants and locks are those of the [sender's side](super). MBX-2: each still has
//! the credit of its ask, so there are at most as many as the peer may ask.

use std::sync::atomic::Ordering;

use crate::message::codec::Encoded;
use crate::message::wire::Header;
use crate::transport::link::{Credit, Link};

/// A reply that found no room, with the credit of its ask.
pub(crate) type Reply = (Header, Encoded, Option<Credit>);

impl Link {
    /// Returns whether replies wait for room. Then no other reply may overtake them.
    pub(crate) fn has_backlog(&self) -> bool {
        self.sender.backlog.load(Ordering::Acquire)
    }

    /// Puts a reply behind those that wait for room, and returns how many there are then.
    pub(crate) fn queue_reply(&self, reply: Reply) -> usize {
        self.sender.out.lock().as_mut().map_or(0, |out| {
            out.outbox.push_back(reply);
            self.sender.backlog.store(true, Ordering::Release);
            out.outbox.len()
        })
    }

    /// Takes the first reply that waits for room.
    pub(crate) fn next_reply(&self) -> Option<Reply> {
        self.sender.out.lock().as_mut().and_then(|out| {
            let next = out.outbox.pop_front();
            // Stays set even if this is the last one, because it may have to wait again.
            self.sender.backlog.store(next.is_some(), Ordering::Release);
            next
        })
    }

    /// Puts the reply that was taken last back in front.
    pub(crate) fn put_reply_back(&self, reply: Reply) {
        if let Some(out) = self.sender.out.lock().as_mut() {
            out.outbox.push_front(reply);
            self.sender.backlog.store(true, Ordering::Release);
        }
    }
}
