//! The frames of the control stream and the pieces of the lanes, which two gateways exchange once each knows
//! who the other is. [`encode`] and [`decode`] convert between frames and bytes.
//!
//! Everything that must not be lost has a number and is sent again after a broken connection: [`Body`].
//! Frames that matter only at the moment have none: [`Frame::Ack`] and the beats. Nor have frames that may be
//! lost: a host's [log](Frame::Log).

mod bits;
pub mod one_form;
mod wire;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use self::bits::Bits;
pub use self::wire::{WireError, decode, decode_piece, encode, encode_piece};
pub(crate) use self::wire::{whole, within};
use crate::ids::{ActorId, Correlation, Gateway, HostLife, Seq};

/// A frame of the control stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants say it of their fields")]
pub enum Frame {
    /// The first frame of each side.
    Hello(Hello),
    /// A frame that arrives in order and once, with its number.
    Numbered { seq: Seq, body: Body },
    /// All frames up to this one have arrived.
    Ack { received: Seq },
    /// "Are you there?" The number counts the beats.
    Beat { number: u64 },
    /// The answer to the beat of that number, and when it was given, in nanoseconds of the answering host's
    /// `CLOCK_MONOTONIC`.
    Answer { number: u64, at: u64 },
    /// Records of an agent's log, for its head.
    Log(Log),
}

/// Records of a host's log, one after the other. They are numbered, so that the other side sees how many did
/// not arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The number of the first record, from 1. If there are no records, the number of the next one.
    pub first: u64,
    /// The number of records.
    pub count: u16,
    /// Bytes that only the two gateways read.
    pub records: Bytes,
}

/// The greeting with which a connection continues a session, or begins it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender.
    pub from: HostLife,
    /// The receiver.
    pub to: HostLife,
    /// The sender's gateway.
    pub gateway: Gateway,
    /// The receiver's gateway; [`Gateway::UNKNOWN`] until the receiver has introduced itself.
    pub to_gateway: Gateway,
    /// Counts the connections that the dialling host has tried; the answer repeats the number. The highest
    /// one is in force.
    pub attempt: u64,
    /// The state of the session at the sender.
    pub resume: Resume,
}

/// The state of one side of a session: what it has received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// All frames up to this one have arrived.
    pub received: Seq,
    /// For each incomplete message among them, in order, the pieces that have landed.
    pub partial: Vec<Partial>,
}

/// The landed pieces of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// The message.
    pub post: Seq,
    /// For each of its spans, one bit per piece.
    pub spans: Vec<Bits>,
}

impl Partial {
    /// Returns the bytes that a message takes in a [`Resume`]. `pieces` is the number of pieces of each span.
    /// Counted are its number and the number of spans, and for each span its length and its words ([`Bits`]).
    pub fn bytes_of(pieces: impl Iterator<Item = u64>) -> usize {
        pieces.fold(10, |bytes, pieces| bytes + 8 + 8 * pieces.div_ceil(64) as usize)
    }
}

/// The destination of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A mailbox.
    Send(ActorId),
    /// A mailbox; the sender waits for the reply.
    Ask(ActorId, Correlation),
    /// The reply to an ask, for its asker.
    Reply(Correlation),
}

impl Target {
    /// Returns the actor whose mailbox it goes to; `None` for a reply.
    pub fn actor(self) -> Option<ActorId> {
        match self {
            Target::Send(actor) | Target::Ask(actor, _) => Some(actor),
            Target::Reply(_) => None,
        }
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    /// Its destination.
    pub target: Target,
    /// Bytes that only the two gateways read: its key, its body, the layouts of its tensors.
    pub head: Bytes,
    /// The number of bytes of each of its spans, which travel in pieces: a tensor's memory, or a large body.
    pub spans: Vec<u64>,
}

/// The content of a numbered frame.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants say it of their fields")]
pub enum Body {
    /// A message. Its pieces come on the lanes.
    Post(Post),
    /// The memory behind the pieces of a message is not needed any more: it is complete if `whole`, and was
    /// aborted otherwise.
    Landed { post: Seq, whole: bool },
    /// These messages are done: their places in their mailboxes are free.
    Done { posts: Vec<Seq> },
    /// Bytes of the window that are free again.
    Grant { bytes: u64 },
    /// There will be no reply to this ask, for a reason that the two nodes encode.
    Refusal { correlation: Correlation, why: Bytes },
    /// A message that is not complete yet never will be: its data turned out to be tainted. The reason names
    /// the host and the worker (HOST-6).
    Abort { post: Seq, why: Bytes },
    /// This host takes messages to this actor, at most `capacity` at a time; 0 takes the offer back.
    Serve { actor: ActorId, capacity: u32 },
    /// A note of one node to the other: names, watches, hosts and actors that begin and end.
    Note(Bytes),
}

/// The name of a piece: its message, span, and offset in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The message.
    pub post: Seq,
    /// The index of its span.
    pub span: u16,
    /// Bytes from the span's start, a multiple of the size of pieces.
    pub offset: u64,
    /// The bytes of the piece: the full size, except for the last piece of a span.
    pub bytes: u32,
}

/// Adjacent pieces of a span that go over a bulk lane together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Run {
    /// The message.
    pub post: Seq,
    /// The index of its span.
    pub span: u16,
    /// Bytes from the span's start, a multiple of the size of pieces.
    pub offset: u64,
    /// The bytes of all its pieces.
    pub bytes: u64,
}
