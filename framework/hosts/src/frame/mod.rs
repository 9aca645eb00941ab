//! What two gateways say to each other, once each knows who the other is: the frames of the control stream
//! and the pieces of the lanes. [`encode`] and [`decode`] make bytes of them, and frames of bytes.
//!
//! All that must not be lost has a number and is sent again after a broken connection: [`Body`]. What is only
//! of the moment has none: [`Frame::Ack`] and the beats. Nor has what may be lost: a host's
//! [log](Frame::Log).

mod bits;
mod wire;

use bytes::Bytes;

pub use self::bits::Bits;
pub use self::wire::{WireError, decode, decode_piece, encode, encode_piece};
use crate::ids::{ActorId, Correlation, Gateway, HostLife, Seq};

/// A frame of the control stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The first of each side.
    Hello(Hello),
    /// One that arrives, in order and once.
    Numbered {
        /// Its number.
        seq: Seq,
        /// What it says.
        body: Body,
    },
    /// All up to this one have arrived.
    Ack {
        /// The last.
        received: Seq,
    },
    /// Are you there?
    Beat {
        /// Counts them.
        number: u64,
    },
    /// The answer to the beat of that number.
    Answer {
        /// Of which beat.
        number: u64,
        /// When it was answered, in nanoseconds of the answering host's `CLOCK_MONOTONIC`.
        at: u64,
    },
    /// Some of the log of an agent, for its head.
    Log(Log),
}

/// Records of a host's log, one behind the other. They are numbered, so that the other side sees how many did
/// not come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The number of the first, from 1; without any, that of the next that there will be.
    pub first: u64,
    /// How many.
    pub count: u16,
    /// What only the two gateways read.
    pub records: Bytes,
}

/// How a connection takes a session up, or begins it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who says it.
    pub from: HostLife,
    /// To whom.
    pub to: HostLife,
    /// Which gateway says it.
    pub gateway: Gateway,
    /// To which gateway; [`Gateway::UNKNOWN`] before the other side has said which it is.
    pub to_gateway: Gateway,
    /// Counts the connections that the dialling host has tried; the other says the same number. The highest
    /// is in force.
    pub attempt: u64,
    /// What it has of the session.
    pub resume: Resume,
}

/// What one side of a session has received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// All frames up to this one.
    pub received: Seq,
    /// Of the messages among them that are not whole yet, in order, the pieces that are there.
    pub partial: Vec<Partial>,
}

/// The pieces of one message that are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// The message.
    pub post: Seq,
    /// For each of its spans, a bit for each piece.
    pub spans: Vec<Bits>,
}

impl Partial {
    /// Bytes that a message takes of a [`Resume`], whose spans have so many pieces each: its number and how
    /// many spans, and for each of them its length and its words ([`Bits`]).
    pub fn bytes_of(pieces: impl Iterator<Item = u64>) -> usize {
        pieces.fold(10, |bytes, pieces| bytes + 8 + 8 * pieces.div_ceil(64) as usize)
    }
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To a mailbox.
    Send(ActorId),
    /// To a mailbox, and the sender waits for the reply.
    Ask(ActorId, Correlation),
    /// The reply to an ask.
    Reply(Correlation),
}

impl Target {
    /// The actor whose mailbox it goes to.
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
    /// Where it goes.
    pub target: Target,
    /// What only the two gateways read: its key, its body, the layouts of its tensors.
    pub head: Bytes,
    /// The bytes of each of its spans, which travel in pieces: the memory that its tensors see, and a large
    /// body.
    pub spans: Vec<u64>,
}

/// What a numbered frame says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A message. Its pieces come on the lanes.
    Post(Post),
    /// The memory behind the pieces of a message is needed no more.
    Landed {
        /// The message.
        post: Seq,
        /// Whether it is whole; otherwise it was aborted.
        whole: bool,
    },
    /// These messages are done with: their places in their mailboxes are free.
    Done {
        /// Which.
        posts: Vec<Seq>,
    },
    /// So many bytes of the window are free again.
    Grant {
        /// How many.
        bytes: u64,
    },
    /// There will be no reply.
    Refusal {
        /// To which ask.
        correlation: Correlation,
        /// Why, as the two nodes say it.
        why: Bytes,
    },
    /// A message that is not whole yet never will be: its data turned out to be tainted.
    Abort {
        /// Which.
        post: Seq,
        /// Why: host and worker (HOST-6).
        why: Bytes,
    },
    /// Messages to this actor are taken, so many at a time; with 0 no more are.
    Serve {
        /// Whose mailbox.
        actor: ActorId,
        /// How many may be open.
        capacity: u32,
    },
    /// What one node tells the other: names, watches, beginnings and ends.
    Note(Bytes),
}

/// The name of a piece: its message, span, and offset in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The message.
    pub post: Seq,
    /// Index of its span.
    pub span: u16,
    /// Bytes from the span's start, a multiple of the size of pieces.
    pub offset: u64,
    /// Bytes of the piece: all of that size but the last of a span.
    pub bytes: u32,
}

/// Pieces of a span that lie one behind the other, and go over a lane for bulk together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The message.
    pub post: Seq,
    /// Index of its span.
    pub span: u16,
    /// Bytes from the span's start, a multiple of the size of pieces.
    pub offset: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}
