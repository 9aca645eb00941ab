//! Asks between hosts: those that went out, with the questions of followers, and those that came, with their
//! answers.

use std::fmt;

use bytes::Bytes;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use tensorpost_hosts::ids::{Correlation, Seq};

use crate::actor::AskError;
use crate::ids::ActorId;
use crate::message::raw::{RawMessage, RawReply};
use crate::tensor::Tensor;
use crate::transport::inbox::Receipt;

/// An ask that went to another host.
pub(super) struct PendingAsk {
    pub(super) actor: ActorId,
    pub(super) receipt: Receipt,
    /// Set if the asker follows versions.
    pub(super) question: Option<Question>,
}

/// "What is newer than this version?"
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) than: u64,
    /// The life of the topic from which the follower has its version; 0 if it has none.
    pub(super) life: u64,
}

impl Question {
    /// Decodes a body as a question.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let [than, life] = numbers(body, ["than", "life"])?;
        Some(Question { than, life })
    }
}

/// The asking host, its session, and the actor that was asked.
#[derive(Clone, Copy)]
pub(super) struct Asking {
    pub(super) host: u16,
    pub(super) session: u64,
    pub(super) actor: ActorId,
}

/// The outcome of an ask of another host.
pub(super) struct Answered {
    pub(super) of: Asking,
    pub(super) post: Seq,
    pub(super) correlation: Correlation,
    pub(super) reply: Result<RawReply, AskError<RawMessage>>,
}

/// A reply on its way to another host.
pub(super) struct Replying {
    pub(super) of: Asking,
    /// The ask that it answers.
    pub(super) post: Seq,
    pub(super) correlation: Correlation,
    pub(super) body: Bytes,
    pub(super) tensors: Vec<Tensor>,
}

/// Returns the two numbers at the start of a body, if they have these names.
pub(super) fn numbers(body: &[u8], names: [&'static str; 2]) -> Option<[u64; 2]> {
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
    // The rest of the body is not read, which rmp-serde reports as an error.
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
            // A number is read whole, or not at all.
            let cut = numbers(&body[..end], ["life", "number"]);
            assert!(cut.is_none_or(|numbers| numbers == [7, u64::MAX]), "{cut:?} of {end} bytes");
        }
        for other in [&[0xc0][..], &[0x93, 1, 2, 3], &[0x82, 1, 2, 3, 4], &[0xdf, 0xff, 0xff, 0xff, 0xff]] {
            assert_eq!(Question::read(other), None);
        }
    }
}
