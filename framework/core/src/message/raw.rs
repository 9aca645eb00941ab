//! Messages whose type is known only at run time: a key, a body that other code has written, and tensors.
//!
//! The Python package uses them, through `tensorpost_core::bindings`, and so does the gateway between hosts.
//! Such a message goes the same way as any other, but serde neither writes nor reads its body.
//! [`codec`](super::codec) takes the body as it is, and checks only the rules for all bodies.
//!
//! **Invariants.** The owner of the schema upholds WIRE-1 for the values inside. ONE-WRITER: a tensor on
//! memory in parts is refused, because a body that no code here can read may name a part as a tensor.

use std::any::TypeId;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::check::TensorCheckError;
use super::nesting::{self, NestingError};
use super::{GpuMessage, scope};
use crate::tensor::Tensor;

const OUTSIDE: &str = "a raw message can only be written into a message, or read from one";

/// The name for logs and reports of this crate, which knows no other.
const NAME: &str = "a message of another language";

/// A message, as the owner of its schema has written it.
#[derive(Debug)]
pub struct RawMessage {
    /// The key of its type: that of the portable schema.
    pub key: u64,
    /// MessagePack, named form.
    pub body: Vec<u8>,
    /// Its tensors, in the order of their indices in the body.
    pub tensors: Vec<Tensor>,
}

/// The reply to a raw message.
#[allow(missing_docs, reason = "the variants say it of their fields")]
pub enum RawReply {
    /// A value, in MessagePack's named form, and its tensors.
    Value { body: Vec<u8>, tensors: Vec<Tensor> },
    /// There is no reply.
    None(Unanswered),
}

/// The reason why a message gets no reply. The sender is told first.
pub enum Unanswered {
    /// The message was not handled, for this reason.
    Refused(String),
    /// Nobody can read the message, or its actor handles none of its type, for this reason. Only its sender
    /// can be to blame.
    Unread(String),
    /// The actor failed before it came to the message, and is restarted.
    TurnedAway,
    /// The message was handled, and the reply cannot be written, for this reason. The actor goes on.
    BadReply(String),
    /// The handler failed, as this says; the function makes the actor fail.
    Failed(String, Box<dyn FnOnce() + Send>),
}

/// The reason why an incoming message is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RawError {
    #[error("its body is malformed: {0}")]
    Nesting(#[from] NestingError),
    #[error("it holds a part of a split tensor, which this actor cannot take; join the parts first")]
    InParts,
}

impl RawMessage {
    /// Makes a message from the parts of a frame.
    pub(crate) fn arrived(key: u64, body: &[u8], tensors: Vec<Tensor>) -> Result<Self, RawError> {
        nesting::check(body)?;
        if tensors.iter().any(|tensor| tensor.lease().is_in_parts()) {
            return Err(RawError::InParts);
        }
        Ok(RawMessage { key, body: body.to_vec(), tensors })
    }
}

impl std::fmt::Debug for RawReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RawReply::Value { body, tensors } => write!(f, "{} bytes, {} tensors", body.len(), tensors.len()),
            RawReply::None(Unanswered::Refused(why) | Unanswered::Unread(why)) => write!(f, "none: {why}"),
            RawReply::None(Unanswered::TurnedAway) => f.write_str("none: its actor is restarted"),
            RawReply::None(Unanswered::BadReply(why) | Unanswered::Failed(why, _)) => {
                write!(f, "none: {why}")
            }
        }
    }
}

/// Returns whether values of `T` are taken from a body as it is.
pub(crate) fn is_raw<T>() -> bool {
    // `T` need not be `'static`, so the standard library has no `TypeId` of it. A name does not identify a
    // type, because two types may have the same. The compiler knows the answer.
    let id = typeid::of::<T>();
    id == TypeId::of::<RawMessage>() || id == TypeId::of::<RawReply>()
}

fn write<S: Serializer>(body: &[u8], tensors: &[Tensor], to: S) -> Result<S::Ok, S::Error> {
    scope::write_raw(body, tensors).map_err(ser::Error::custom)?;
    to.serialize_unit()
}

fn read<E: de::Error>() -> Result<(Vec<u8>, Vec<Tensor>), E> {
    let (body, tensors) = scope::read_raw().ok_or_else(|| E::custom(OUTSIDE))?;
    if tensors.iter().any(|tensor| tensor.lease().is_in_parts()) {
        return Err(E::custom(RawError::InParts));
    }
    Ok((body, tensors))
}

impl Serialize for RawMessage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(&self.body, &self.tensors, serializer)
    }
}

/// Reads the message without its key, which is not in a body.
impl<'de> Deserialize<'de> for RawMessage {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        read().map(|(body, tensors)| RawMessage { key: 0, body, tensors })
    }
}

impl Serialize for RawReply {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            RawReply::Value { body, tensors } => write(body, tensors, serializer),
            RawReply::None(_) => Err(ser::Error::custom("there is no reply")),
        }
    }
}

impl<'de> Deserialize<'de> for RawReply {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        read().map(|(body, tensors)| RawReply::Value { body, tensors })
    }
}

impl actix::Message for RawMessage {
    type Result = RawReply;
}

impl GpuMessage for RawMessage {
    type Reply = RawReply;
    const NAME: &'static str = NAME;
    const SCHEMA: u64 = 0;
    const WAITS_AT_USE: bool = true;

    fn check(&self) -> Result<(), TensorCheckError> {
        Ok(())
    }

    fn run_time_key(&self) -> Option<u64> {
        Some(self.key)
    }

    fn set_run_time_key(&mut self, key: u64) {
        self.key = key;
    }

    fn answer(reply: RawReply) -> Result<RawReply, Unanswered> {
        match reply {
            RawReply::None(unanswered) => Err(unanswered),
            value => Ok(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;
    use crate::message::codec::{decode, encode};

    #[derive(Serialize)]
    struct Typed {
        id: u64,
        words: Vec<String>,
    }

    fn body() -> Vec<u8> {
        encode(&Typed { id: 7, words: vec!["seven".into()] }, Vec::new()).unwrap().body
    }

    #[test]
    fn a_raw_message_is_the_bytes_that_a_typed_one_is() {
        let message = RawMessage::arrived(3, &body(), Vec::new()).unwrap();
        assert_eq!(encode(&message, Vec::new()).unwrap().body, body());
        assert_eq!(decode::<RawMessage>(&body(), Vec::new(), None).unwrap().body, body());
        match decode::<RawReply>(&body(), Vec::new(), None).unwrap() {
            RawReply::Value { body: read, tensors } => assert_eq!((read, tensors.len()), (body(), 0)),
            none => panic!("{none:?}"),
        }
    }

    #[test]
    fn it_is_no_part_of_another_and_bad_bytes_are_refused() {
        let message = || RawMessage { key: 3, body: body(), tensors: Vec::new() };
        let error = encode(&(message(), message()), Vec::new()).unwrap_err();
        assert!(error.to_string().contains("no part of one"), "{error}");
        assert!(decode::<(RawReply,)>(&body(), Vec::new(), None).is_err());
        assert!(RawMessage::arrived(3, &[0xc1], Vec::new()).is_err());
        let malformed = RawMessage { body: vec![0x91], ..message() };
        assert!(encode(&malformed, Vec::new()).is_err());
        assert!(encode(&RawReply::None(Unanswered::TurnedAway), Vec::new()).is_err());
    }
}
