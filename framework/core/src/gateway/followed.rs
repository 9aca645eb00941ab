//! Versions of what an actor of another host publishes: each comes here once, for all of this host who follow
//! it.
//!
//! Who follows asks the actor for whatever is newer than the version that it has
//! ([`Kind::Follow`](crate::message::wire::Kind)). One such question of a mailbox is under way, the *leading*
//! one. Who asks the same meanwhile waits along, and has the same answer: one body, and leases on the same
//! memory, as within a host. The version that came last is kept while a question for something newer than it
//! is under way, because then it is the newest that there is: who has an older one, or none, is given that at
//! once. Any other question goes to the other host by itself, as an ask does.
//!
//! **Invariants.** A version is given as it came, whole, to nobody twice and to nobody who has a newer one.
//! MBX-2: one version of each mailbox is kept, and goes [`KEPT`] after it came when nobody asks any more, or
//! when a message finds no memory; who waits along has a place of the mailbox as any sender. WIRE-1: what
//! cannot be read as a question or as a version is passed on unread to who asked.
//!
//! **On the loss** of the host or the actor whoever waits along is refused for the same reason as who leads.
//! **On the end** of this host all questions are: who follows ends too, and the other host knows nothing of
//! that, so no answer need ever come.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::Command;
use super::proxy::Out;
use super::run::Gateway;
use crate::ids::ActorId;
use crate::message::raw::RawReply;
use crate::tensor::Tensor;
use crate::transport::inbox::{Receipt, Refusal};

/// So long a version is kept that nobody asks to be followed by another.
const KEPT: Duration = Duration::from_secs(1);

/// An ask that went to another host.
pub(super) struct Asked {
    pub(super) actor: ActorId,
    pub(super) receipt: Receipt,
    /// Of one who follows.
    pub(super) question: Option<Question>,
}

/// "What is newer than this?"
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    than: u64,
    /// Of what it has that from; 0 for one that has nothing.
    life: u64,
}

/// A version that came.
struct Newest {
    life: u64,
    number: u64,
    body: Vec<u8>,
    tensors: Vec<Tensor>,
}

/// What is followed by way of one mailbox.
#[derive(Default)]
pub(super) struct Followed {
    leading: Option<Question>,
    along: Vec<Receipt>,
    newest: Option<Newest>,
    /// Whether somebody looks soon whether anybody follows still.
    forgets: bool,
}

impl Question {
    /// The question that a body is.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let [than, life] = numbers(body, ["than", "life"])?;
        Some(Question { than, life })
    }
}

impl Newest {
    fn reply(&self) -> RawReply {
        RawReply::Value { body: self.body.clone(), tensors: self.tensors.clone() }
    }
}

impl Followed {
    /// A message for the mailbox: it comes back where it has to go to the other host.
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
        // What is asked to be followed is the newest that there is.
        let newest = self.newest.as_ref().filter(|newest| leading.is_behind(newest));
        match newest.filter(|newest| asked.is_before(newest)) {
            Some(newest) => out.receipt.reply(newest.reply()),
            None if asked == leading => self.along.push(out.receipt),
            None => return Some(out),
        }
        None
    }

    /// The answer to a question has come. All who wait along have it, and it is kept for those who come
    /// later; whether somebody has to see to its end.
    pub(super) fn answered(&mut self, question: Option<Question>, body: &[u8], tensors: &[Tensor]) -> bool {
        let Some(question) = self.led_by(question) else { return false };
        let reply = || RawReply::Value { body: body.to_vec(), tensors: tensors.to_vec() };
        self.along.drain(..).for_each(|receipt| receipt.reply(reply()));
        let version = numbers(body, ["life", "number"]);
        // A topic that ends repeats the number, and has nothing more.
        let version = version.filter(|[_, number]| *number > question.than);
        self.newest = version.map(|[life, number]| Newest {
            life,
            number,
            body: body.to_vec(),
            tensors: tensors.to_vec(),
        });
        self.newest.is_some() && !std::mem::replace(&mut self.forgets, true)
    }

    /// There will be no answer to a question.
    pub(super) fn refused(&mut self, question: Option<Question>, why: &Refusal) {
        if self.led_by(question).is_some() {
            self.along.drain(..).for_each(|receipt| receipt.refuse(why));
        }
    }

    /// Nothing is followed here any more.
    pub(super) fn end(&mut self, why: &Refusal) {
        (self.leading, self.newest) = (None, None);
        self.along.drain(..).for_each(|receipt| receipt.refuse(why));
    }

    /// The question, if it is the leading one, which has ended then.
    fn led_by(&mut self, question: Option<Question>) -> Option<Question> {
        let question = question?;
        (self.leading == Some(question)).then(|| self.leading = None)?;
        Some(question)
    }
}

impl Question {
    /// Whether it asks what follows that version.
    fn is_behind(self, newest: &Newest) -> bool {
        self == Question { than: newest.number, life: newest.life }
    }

    /// Whether that version is an answer.
    fn is_before(self, newest: &Newest) -> bool {
        let has_none = self == Question { than: 0, life: 0 };
        has_none || (self.life == newest.life && self.than < newest.number)
    }
}

impl Gateway {
    /// Looks, after a while, whether anybody follows this actor still.
    pub(super) fn unfollow_later(&self, actor: ActorId) {
        let to = self.to.clone();
        tokio::spawn(async move {
            tokio::time::sleep(KEPT).await;
            let _ = to.send(Command::Unfollow(actor));
        });
    }

    pub(super) fn unfollow(&mut self, actor: ActorId) {
        let Some(mailbox) = self.mailboxes.get_mut(&actor) else { return };
        mailbox.followed.forgets = false;
        if mailbox.followed.leading.is_none() {
            mailbox.followed.newest = None;
        }
    }

    /// Gives back what is kept for those who come later: they ask the other host.
    pub(super) fn forget_versions(&mut self) {
        self.mailboxes.values_mut().for_each(|mailbox| mailbox.followed.newest = None);
    }

    /// This host ends: so does whoever follows anything here.
    pub(super) fn end_questions(&mut self) {
        self.is_stopping = true;
        for mailbox in self.mailboxes.values_mut() {
            mailbox.followed.end(&Refusal::NoReply);
            // With the receipt goes the word that there is no answer.
            mailbox.queue.retain(|waiting| waiting.out.question.is_none());
        }
        for remote in self.hosts.values_mut() {
            remote.asks.retain(|_, asked| asked.question.is_none());
        }
    }
}

/// The numbers with which a body begins, under these names.
fn numbers(body: &[u8], names: [&'static str; 2]) -> Option<[u64; 2]> {
    struct Beginning<'a> {
        names: [&'static str; 2],
        found: &'a mut Option<[u64; 2]>,
    }

    impl<'de> Visitor<'de> for Beginning<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "fields, of which the first are {:?}", self.names)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            let mut field = |name| match map.next_entry::<&str, u64>()? {
                Some((found, number)) if found == name => Ok(number),
                _ => Err(A::Error::missing_field(name)),
            };
            *self.found = Some([field(self.names[0])?, field(self.names[1])?]);
            Ok(())
        }
    }

    let mut found = None;
    // What follows is not looked at, of which rmp-serde makes an error.
    let _ =
        rmp_serde::Deserializer::from_read_ref(body).deserialize_map(Beginning { names, found: &mut found });
    found
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;
    use crate::message::codec::encode;

    #[derive(Serialize)]
    struct Version {
        life: u64,
        number: u64,
        value: Option<Vec<String>>,
    }

    #[test]
    fn a_question_and_a_version_are_read_and_nothing_else_is() {
        let value = Some(vec!["it".to_owned(); 3]);
        let body =
            encode(&Version { life: 7, number: u64::MAX, value }, Vec::new()).expect("it is written").body;
        assert_eq!(numbers(&body, ["life", "number"]), Some([7, u64::MAX]));
        assert_eq!(numbers(&body, ["number", "life"]), None);
        assert_eq!(Question::read(&body), None);
        for end in 0..body.len() {
            // Whole, or not at all.
            let cut = numbers(&body[..end], ["life", "number"]);
            assert!(cut.is_none_or(|numbers| numbers == [7, u64::MAX]), "{cut:?} of {end} bytes");
        }
        for other in [&[0xc0][..], &[0x93, 1, 2, 3], &[0x82, 1, 2, 3, 4], &[0xdf, 0xff, 0xff, 0xff, 0xff]] {
            assert_eq!(Question::read(other), None);
        }
    }

    #[test]
    fn a_version_answers_those_who_have_less_of_the_same() {
        let newest = Newest { life: 7, number: 5, body: Vec::new(), tensors: Vec::new() };
        let question = |than, life| Question { than, life };
        assert!(question(5, 7).is_behind(&newest) && !question(4, 7).is_behind(&newest));
        assert!(question(0, 0).is_before(&newest) && question(4, 7).is_before(&newest));
        // It has that one, or a newer one, or one of another topic, to which this one gives higher numbers.
        for other in [question(5, 7), question(6, 7), question(4, 8)] {
            assert!(!other.is_before(&newest), "{other:?}");
        }
    }
}
