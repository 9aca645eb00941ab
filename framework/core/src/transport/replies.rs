//! Replies out, or refusals in their place, and credits back.
//!
//! A receipt ([`inbox`](super::inbox)) uses it, `incoming` for messages that no mailbox took, and the reader
//! for replies that found no room.
//!
//! **Invariants.** MBX-2: a reply keeps its ask's credit until it is sent, so at most as many replies wait as
//! the peer may ask.
//!
//! **Locks, on a crash, and on cancellation:** as in [`outgoing`](super::outgoing).

use super::inbox::Refusal;
use super::link::Credit;
use super::outgoing::FrameSender;
use super::{Destination, NotNow, TransmitError, wake_reasons};
use crate::message::buffers::Use;
use crate::message::codec::{self, Encoded};
use crate::message::wire::Kind;

/// Replies that may wait for a peer in any case, regardless of its credits.
const FEW_REPLIES: usize = 4096;

impl FrameSender<'_> {
    /// Sends a reply, and hands back `asked`, the credit in the asked actor's mailbox, when it is sent. If
    /// there is no room now, the reader sends the reply when there is.
    ///
    /// A reply that only `acknowledges` wakes the asker when its credit does.
    pub(crate) fn reply(
        &self,
        correlation: u64,
        encoded: Encoded,
        asked: Option<Credit>,
        acknowledges: bool,
    ) {
        self.answer(Kind::Reply, correlation, encoded, asked, acknowledges);
    }

    /// Does the same as [`reply`](Self::reply), but with the reason why there is no reply.
    pub(crate) fn refuse(&self, correlation: u64, why: &Refusal, asked: Option<Credit>) {
        match codec::encode(why, Vec::new()) {
            Ok(encoded) => self.answer(Kind::Refusal, correlation, encoded, asked, false),
            Err(error) => {
                tracing::error!(%error, "a refusal could not be encoded");
                self.hand_back(asked);
            }
        }
    }

    /// Hands back the credit of a peer's message that is done with.
    pub(crate) fn hand_back(&self, asked: Option<Credit>) {
        self.hand_back_with(asked, wake_reasons::CREDIT);
    }

    /// Does the same as [`hand_back`](Self::hand_back). `what` has the [`wake_reasons`] for which the peer is
    /// woken, if it is.
    fn hand_back_with(&self, asked: Option<Credit>, what: u8) {
        #[cfg(any(test, feature = "testing"))]
        if self.transport.lifecycle.is_abandoned() {
            return;
        }
        if let Some(credit) = asked {
            let tell = self.link.hand_back(credit);
            // Published at the end of the turn.
            self.transport.publish_soon(self.link, if tell { what } else { wake_reasons::deferred(what) });
        }
    }

    fn answer(
        &self,
        kind: Kind,
        correlation: u64,
        encoded: Encoded,
        asked: Option<Credit>,
        acknowledges: bool,
    ) {
        self.transport.publish_before_answer(self.link);
        let destination = Destination::of_reply(kind, correlation);
        // A reply does not overtake those that wait. Replies need no order, but the first ones have waited
        // longest. For a reply that only acknowledges, the ring is deferred, and its credit decides when to
        // ring for both.
        let is_quiet = acknowledges && asked.is_some();
        let due = if is_quiet { wake_reasons::deferred(wake_reasons::FRAMES) } else { wake_reasons::FRAMES };
        let sent = if self.link.has_backlog() {
            Err(TransmitError::NotNow(NotNow::RingFull))
        } else if encoded.is_plain() {
            self.send_plain(&destination, &encoded.body, due).map(|()| None)
        } else {
            self.claim(&destination, &encoded).map(Some)
        };
        // The credit of the ask goes back after its reply on every path, and never before, because it bounds
        // the replies that wait (MBX-2).
        match sent {
            // If a caller waits for it, the frame rings, and the credit goes along.
            Ok(claim) => {
                match claim {
                    Some(claim) => self.commit_as(claim, &destination, encoded, due),
                    None => Use::Encoded.give_back(encoded.body),
                }
                self.hand_back_with(
                    asked,
                    if is_quiet { wake_reasons::FRAMES } else { wake_reasons::CREDIT },
                );
            }
            // It cannot be sent now, and this thread must not wait, because it may run a handler or be the
            // reader. The reader sends the reply when there is room, and until then the reply keeps the
            // credit (MBX-2).
            Err(TransmitError::NotNow(_) | TransmitError::Body { .. }) => {
                // While it waits, it takes no memory that messages to others need.
                let encoded = encoded.into_buffer();
                let waiting = self.link.queue_reply((destination.header(false, 0), encoded, asked));
                // The second limit sums over all actors, so it is computed only if the first is exceeded.
                if waiting > FEW_REPLIES && waiting > self.most_replies() {
                    tracing::error!(
                        peer = %self.link.peer,
                        waiting,
                        "a peer asks more than its credits and does not read the answers; it is given up"
                    );
                    self.transport.counters.count_rejected();
                    self.link.break_off();
                }
                // The reader may sleep without having asked to be woken for room; and it gives up a broken
                // link.
                self.transport.wakeups.wake_reader();
            }
            Err(TransmitError::Exited(_)) => {} // Nobody is left to read it.
            // It can never be sent as it is. A refusal is sent in its place; if it was a refusal itself, only
            // the credit goes back.
            Err(error) => {
                tracing::error!(peer = %self.link.peer, %error, "a reply could not be sent");
                if kind == Kind::Reply {
                    self.refuse(correlation, &Refusal::BadReply(error.to_string()), asked);
                } else {
                    self.hand_back(asked);
                }
            }
        }
    }

    /// Returns how many replies one peer can have waiting here if it keeps to its credits (MBX-2). That is as
    /// many as it may ask of all actors that there are or were, because each reply keeps its ask's credit
    /// until it is sent. Asks to actors that do not exist are counted in no mailbox, so this limit detects a
    /// peer that ignores the credits.
    fn most_replies(&self) -> usize {
        FEW_REPLIES + self.transport.actors.capacities()
    }

    /// Sends replies that found no room before; returns true if one was sent.
    pub(super) fn flush_outbox(&self) -> bool {
        let mut any = false;
        // From the front and one at a time, so that replies keep their order.
        while self.link.has_backlog() {
            let Some((header, encoded, asked)) = self.link.next_reply() else { return any };
            let destination = Destination::of_reply(header.kind, header.correlation);
            match self.claim(&destination, &encoded) {
                Ok(claim) => {
                    self.commit(claim, &destination, encoded);
                    self.hand_back(asked);
                    any = true;
                }
                Err(TransmitError::NotNow(_) | TransmitError::Body { .. }) => {
                    // Back to the front, with its credit, which bounds the replies that wait (MBX-2).
                    self.link.put_reply_back((header, encoded, asked));
                    return any;
                }
                Err(error) => {
                    tracing::error!(peer = %self.link.peer, %error, "a reply could not be sent");
                    self.hand_back(asked);
                }
            }
        }
        any
    }
}
