//! Versions of what an actor of another host publishes: each comes to this host once, for all of its
//! followers.
//!
//! A follower asks the actor for any version newer than its own
//! ([`Kind::Follow`](crate::message::wire::Kind)). Each mailbox has at most one such question under way that
//! others can share, the *leading* one. A follower that asks the same meanwhile waits with it, and gets the
//! same answer: one body, and leases on the same memory, as within a host. The gateway keeps the latest
//! version while a question for a newer one is under way, because that version is then the newest there is. A
//! follower with an older version, or none, gets it at once. Any other question goes to the other host by
//! itself, as an ask does.
//!
//! **Invariants.** A version is passed on whole and as it came, never twice to the same follower, and never
//! to one that has a newer version. MBX-2: one version is kept for each mailbox. It goes [`KEPT`] after it
//! came if nobody asks any more, or when a message finds no memory. A follower that waits with another holds
//! a place of the mailbox, as any sender does. WIRE-1: a body that cannot be read as a question or as a
//! version is passed on unread.
//!
//! **On the loss** of the host or the actor, followers that wait with the leading one are refused for the
//! same reason. **On the end** of this host all questions are refused: the followers end too, and the other
//! host does not know that, so its answer might never come.

use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use super::asks::{Question, numbers};
use super::command::{Command, Out};
use super::mailboxes::Mailboxes;
use super::remotes::Remotes;
use crate::ids::ActorId;
use crate::message::raw::RawReply;
use crate::tensor::Tensor;
use crate::transport::inbox::{Receipt, Refusal};

/// How long a version is kept if nobody asks for the next one.
const KEPT: Duration = Duration::from_secs(1);

/// A version that has arrived.
struct Newest {
    life: u64,
    number: u64,
    body: Vec<u8>,
    tensors: Vec<Tensor>,
}

/// The followed state of one mailbox.
#[derive(Default)]
pub(super) struct Followed {
    leading: Option<Question>,
    along: Vec<Receipt>,
    newest: Option<Newest>,
    /// Whether a check is scheduled that forgets the version if nobody follows any more.
    forgets: bool,
}

impl Newest {
    fn reply(&self) -> RawReply {
        RawReply::Value { body: self.body.clone(), tensors: self.tensors.clone() }
    }
}

impl Followed {
    /// Takes a message for the mailbox. Gives it back if it has to go to the other host.
    pub(super) fn ask(&mut self, out: Box<Out>, is_stopping: bool) -> Option<Box<Out>> {
        let Some(asked) = out.question else { return Some(out) };
        if is_stopping {
            out.receipt.refuse(&Refusal::NoReply);
            return None;
        }
        let Some(leading) = self.leading else {
            self.leading = Some(asked);
            return Some(out);
        };
        // While the leading question asks for a version newer than this one, this one is the newest there is.
        let newest = self.newest.as_ref().filter(|newest| leading.is_behind(newest));
        match newest.filter(|newest| asked.is_before(newest)) {
            Some(newest) => out.receipt.reply(newest.reply()),
            None if asked == leading => self.along.push(out.receipt),
            None => return Some(out),
        }
        None
    }

    /// Passes an answer to all followers that wait with the leading question, and keeps it for those that
    /// come later. Returns whether the caller has to schedule the check that forgets it.
    pub(super) fn answered(&mut self, question: Option<Question>, body: &[u8], tensors: &[Tensor]) -> bool {
        let Some(question) = self.led_by(question) else { return false };
        let reply = || RawReply::Value { body: body.to_vec(), tensors: tensors.to_vec() };
        self.along.drain(..).for_each(|receipt| receipt.reply(reply()));
        let version = numbers(body, ["life", "number"]);
        // A topic that ends repeats the last number, and has nothing newer.
        let version = version.filter(|[_, number]| *number > question.than);
        self.newest = version.map(|[life, number]| Newest {
            life,
            number,
            body: body.to_vec(),
            tensors: tensors.to_vec(),
        });
        self.newest.is_some() && !std::mem::replace(&mut self.forgets, true)
    }

    /// Handles a question that will have no answer.
    pub(super) fn refused(&mut self, question: Option<Question>, why: &Refusal) {
        if self.led_by(question).is_some() {
            self.along.drain(..).for_each(|receipt| receipt.refuse(why));
        }
    }

    /// Forgets the version, and refuses all waiting followers.
    pub(super) fn end(&mut self, why: &Refusal) {
        (self.leading, self.newest) = (None, None);
        self.along.drain(..).for_each(|receipt| receipt.refuse(why));
    }

    /// Returns the question if it is the leading one, and ends it.
    fn led_by(&mut self, question: Option<Question>) -> Option<Question> {
        let question = question?;
        (self.leading == Some(question)).then(|| self.leading = None)?;
        Some(question)
    }
}

impl Question {
    /// Returns whether this question asks for the version after that one.
    fn is_behind(self, newest: &Newest) -> bool {
        self == Question { than: newest.number, life: newest.life }
    }

    /// Returns whether that version answers this question.
    fn is_before(self, newest: &Newest) -> bool {
        let has_none = self == Question { than: 0, life: 0 };
        has_none || (self.life == newest.life && self.than < newest.number)
    }
}

impl Mailboxes {
    /// Forgets the version of an actor's state that is kept here if nobody asks for the next one.
    pub(super) fn unfollow(&mut self, actor: ActorId) {
        let Some(mailbox) = self.get_mut(&actor) else { return };
        mailbox.followed.forgets = false;
        if mailbox.followed.leading.is_none() {
            mailbox.followed.newest = None;
        }
    }

    /// Gives back the versions kept for later followers, which then ask the other host.
    pub(super) fn forget_versions(&mut self) {
        self.values_mut().for_each(|mailbox| mailbox.followed.newest = None);
    }

    /// Refuses all followers, which end with this host.
    pub(super) fn end_questions(&mut self) {
        for mailbox in self.values_mut() {
            mailbox.followed.end(&Refusal::NoReply);
            // Dropping the receipt tells the asker that there is no answer.
            mailbox.queue.retain(|waiting| waiting.out.question.is_none());
        }
    }
}

impl Remotes {
    /// Drops the questions of followers, which end with this host.
    pub(super) fn end_questions(&mut self) {
        for remote in self.values_mut() {
            remote.asks.retain(|_, asked| asked.question.is_none());
        }
    }
}

/// Schedules a check of whether anybody still follows this actor.
pub(super) fn unfollow_later(to: &UnboundedSender<Command>, actor: ActorId) {
    let to = to.clone();
    tokio::spawn(async move {
        tokio::time::sleep(KEPT).await;
        let _ = to.send(Command::Unfollow(actor));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_answers_those_who_have_less_of_the_same() {
        let newest = Newest { life: 7, number: 5, body: Vec::new(), tensors: Vec::new() };
        let question = |than, life| Question { than, life };
        assert!(question(5, 7).is_behind(&newest) && !question(4, 7).is_behind(&newest));
        assert!(question(0, 0).is_before(&newest) && question(4, 7).is_before(&newest));
        // The follower has that version, a newer one, or one of another topic, in which this version has a
        // higher number.
        for other in [question(5, 7), question(6, 7), question(4, 8)] {
            assert!(!other.is_before(&newest), "{other:?}");
        }
    }
}
