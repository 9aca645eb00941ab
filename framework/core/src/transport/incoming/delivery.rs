//! Delivers a frame that was taken: a message to its mailbox, a reply to the caller that waits for it.
//!
//! Invariants and locks are those of [the parent](super). MBX-2: a peer that sends more than its credits is
//! given up.

use std::sync::Arc;

use smallvec::SmallVec;

use super::FrameTaker;
use crate::clock::Ticket;
use crate::message::wire::{Frame, Kind};
use crate::observe::context::TraceContext;
use crate::tensor::Tensor;
use crate::transport::actors::{FoundInbox, KeptInboxes};
use crate::transport::asks::AskFailure;
use crate::transport::inbox::{Delivery, Receipt, Refusal, Undelivered};
use crate::transport::link::{AWAY, Credit, Fault};
use crate::transport::parts::Parts;

/// A message's content.
pub(super) struct Content<'a> {
    pub(super) body: &'a [u8],
    pub(super) tensors: Vec<Tensor>,
    pub(super) tickets: SmallVec<[Ticket; 2]>,
}

impl FrameTaker<'_> {
    pub(super) fn deliver(&mut self, inboxes: &mut KeptInboxes, frame: &Frame<'_>, content: Content<'_>) {
        let index = frame.header.index;
        let found =
            inboxes.get(&self.transport.actors, index).filter(|inbox| inbox.actor() == frame.header.actor);
        let found = found.map(|inbox| {
            let capacity = inbox.capacity();
            (inbox, capacity)
        });
        let late = || {
            self.transport
                .late_inbox(index, frame.header.actor)
                .map(|(inbox, most)| (FoundInbox::Now(inbox), most))
        };
        let Some((inbox, capacity)) = found.or_else(late) else {
            self.transport.counters.dead_letter();
            tracing::debug!(peer = %self.link.peer, actor = %frame.header.actor, "a message to an actor that is not here");
            let away = self.transport.actors.is_away(index);
            if self.transport.actors.inbox(index).is_none() {
                self.link.close(index, away);
                // An actor may have come between the check and the close; then the close has shut its open
                // mailbox, and this opens it again.
                if let (Some(inbox), Some(received)) =
                    (self.transport.actors.inbox(index), self.inbound.received.get(usize::from(index)))
                {
                    self.link.open_mailbox_at(index, inbox.capacity(), *received);
                }
            }
            let why = if away { Refusal::Restarting } else { Refusal::NoSuchActor };
            return self.refuse_frame(frame, &why);
        };
        let Some(received) = self.inbound.received.get_mut(usize::from(index)) else { return };
        let done = self.link.handed_back(index);
        if done < AWAY && received.saturating_sub(done) >= u64::from(capacity) {
            // MBX-2: a peer that ignores the credits is dropped; its messages are not buffered.
            self.reject(Fault::ItsOwn, &"it sent more than its credits");
            return self.transport.give_up(self.link);
        }
        *received += 1;
        let Content { body, tensors, tickets } = content;
        let kind = frame.header.kind;
        let correlation = kind.is_ask().then_some(frame.header.correlation);
        let credit = Credit { index, capacity };
        let receipt = Receipt::new(
            Arc::clone(self.transport),
            Arc::clone(self.link),
            credit,
            correlation,
            self.inbound.taking,
        );
        #[cfg(feature = "hosts")]
        let receipt = receipt.of_follower(kind == Kind::Follow);
        let (body, context) = match frame.header.has_context {
            true => TraceContext::split(body),
            false => (body, TraceContext::default()),
        };
        let delivery = Delivery { key: frame.header.key, body, tensors, tickets, receipt, context };
        if let Err(error) = inbox.deliver(delivery) {
            self.transport.counters.dead_letter();
            // If the actor has stopped in the meantime, no process is at fault.
            let is_wrong = !matches!(error, Undelivered::Stopped);
            let fault = if is_wrong { Fault::ItsOwn } else { Fault::Anybodys };
            let why = format_args!("{}: {error}", frame.header.actor);
            self.transport.note_refused(self.link, fault, "a message was not delivered", &why);
        }
    }

    pub(super) fn take_reply(&self, correlation: u64, reply: Result<Parts<'_>, AskFailure>) {
        // The caller may no longer wait: then the tensors drop here, and their leases go back.
        if let Some(answer) = self.transport.asks.take(correlation, self.link.peer) {
            // DEATH-3: tainted tensors are not handed out in a reply either.
            answer(reply.and_then(|parts| match parts.tensors.iter().find_map(Tensor::taint) {
                Some(tainted) => Err(AskFailure::Refused(Refusal::Tainted(tainted.by))),
                None => Ok(parts),
            }));
        }
    }

    /// Refuses a message that no mailbox took. The sender gets its credit back (MBX-2), and the refusal if it
    /// waits for a reply.
    pub(super) fn refuse_frame(&mut self, frame: &Frame<'_>, why: &Refusal) {
        if matches!(frame.header.kind, Kind::Reply | Kind::Refusal) {
            let why = if let Refusal::Undelivered(why) = why { why } else { "it was refused" };
            let failure = AskFailure::BadReply(format!("its frame was rejected: {why}"));
            self.take_reply(frame.header.correlation, Err(failure));
            return;
        }
        let index = frame.header.index;
        let counts = frame.header.kind.is_message();
        let received = self.inbound.received.get_mut(usize::from(index)).filter(|_| counts);
        let credit = received.map(|received| {
            *received += 1;
            // The mailbox may not exist, so the sender is told at once.
            Credit { index, capacity: 0 }
        });
        if frame.header.kind.is_ask() {
            self.transport.frames_to(self.link).refuse(frame.header.correlation, why, credit);
        } else {
            self.transport.frames_to(self.link).hand_back(credit);
        }
    }
}
