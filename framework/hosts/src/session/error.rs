//! The ways in which the other side can violate a session, and the reasons why a message is not taken.

use crate::ids::{ActorId, Correlation, Gateway, HostId, HostLife, Seq};

/// A violation of the protocol by the other side. The connection ends; a host with too many violations is
/// given up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The greeting is not for this session.
    #[error("it greets {found} as {from}, and this is {own} in a session with {peer}")]
    OtherSession {
        /// The host that greets.
        from: HostLife,
        /// The host that it greets.
        found: HostLife,
        /// This host.
        own: HostLife,
        /// The host that would have to greet.
        peer: HostLife,
    },
    /// A connection attempt that is over, or was made before.
    #[error(
        "it takes the session up with attempt {found}, and attempt {current} has been made: replayed, or overtaken"
    )]
    Replayed {
        /// The attempt that it names.
        found: u64,
        /// The latest attempt.
        current: u64,
    },
    /// The host has another gateway: the session is over, and the next begins. An honest host does that.
    #[error("it has {found} now, and the session is with {current}")]
    NextGateway {
        /// The gateway that it has.
        found: Gateway,
        /// The gateway of this session.
        current: Gateway,
    },
    /// It speaks to an earlier gateway of this host, because it does not know this one. An honest host does
    /// that.
    #[error("it speaks to {found}, and this is {own}")]
    OtherGateway {
        /// The gateway that it speaks to.
        found: Gateway,
        /// This gateway.
        own: Gateway,
    },
    /// The sender is a gateway that its host has replaced, or the session is over.
    #[error("{found} says it, and the session is with {current}: its host has another, or it is overtaken")]
    EarlierGateway {
        /// The gateway that speaks.
        found: Gateway,
        /// The gateway of this session.
        current: Gateway,
    },
    /// It acknowledges more than was sent, or less than it did before.
    #[error("it says that it received up to frame {found}, which is none of {least} to {most}")]
    Received {
        /// The frame that it acknowledges.
        found: Seq,
        /// The frame that it acknowledged before.
        least: Seq,
        /// The last frame that was sent.
        most: Seq,
    },
    /// Frames of a connection are out of order.
    #[error("it sends frame {found} where {expected} comes next")]
    OutOfOrder {
        /// The number that came.
        found: Seq,
        /// The number that should have come.
        expected: Seq,
    },
    /// It does not acknowledge what it receives.
    #[error("it has acknowledged nothing for {frames} frames")]
    Unacknowledged {
        /// The number of frames that are kept.
        frames: usize,
    },
    /// A message to an actor of another host.
    #[error("it sends to {actor}, which does not live on {own}")]
    OtherHost {
        /// The actor.
        actor: ActorId,
        /// The host on which it should live.
        own: HostId,
    },
    /// A message to a mailbox that was never offered.
    #[error("it sends to {actor}, which was not offered to it")]
    NotServed {
        /// The actor.
        actor: ActorId,
    },
    /// More messages than a mailbox has room for.
    #[error("it sends more to {actor} than the {capacity} messages that it may have there")]
    OverCapacity {
        /// The actor.
        actor: ActorId,
        /// The room of its mailbox.
        capacity: u32,
    },
    /// More bytes than the window has left.
    #[error("it sends {bytes} bytes where the window has {left} left")]
    OverWindow {
        /// The charge of the message.
        bytes: u64,
        /// The room that is left.
        left: u64,
    },
    /// Too many incomplete messages, asks without an answer, mailboxes or notes.
    #[error("it has more than {most} {what}")]
    TooMany {
        /// The kind of thing.
        what: &'static str,
        /// The bound.
        most: usize,
    },
    /// A reply or a refusal to an ask that is not open.
    #[error("it answers ask {correlation}, which waits for no answer")]
    NoSuchAsk {
        /// The ask.
        correlation: Correlation,
    },
    /// An ask with the number of an open one.
    #[error("it asks twice with number {correlation}")]
    AsksTwice {
        /// The ask.
        correlation: Correlation,
    },
    /// A frame about a message that is not on its way.
    #[error("it speaks of message {post}, which is not on its way")]
    NoSuchPost {
        /// The message.
        post: Seq,
    },
    /// A message is reported as complete although some pieces were never sent, or as aborted although it was
    /// not.
    #[error("it says that message {post} has ended in a way that it cannot have")]
    WrongEnd {
        /// The message.
        post: Seq,
    },
    /// More bytes are given back than are taken.
    #[error("it gives back {found} bytes where {most} are taken")]
    GivesTooMuch {
        /// The bytes given back.
        found: u64,
        /// The bytes taken.
        most: u64,
    },
    /// A run that its message does not have, or that does not come next.
    #[error(
        "it makes room for {bytes} bytes at {offset} of span {span} of message {post}, which is no run of it"
    )]
    NoSuchRun {
        /// The message.
        post: Seq,
        /// The span.
        span: u16,
        /// The offset.
        offset: u64,
        /// The bytes.
        bytes: u64,
    },
    /// A piece that its message does not have.
    #[error("it sends {bytes} bytes at {offset} of span {span} of message {post}, which is no piece of it")]
    NoSuchPiece {
        /// The message.
        post: Seq,
        /// The span.
        span: u16,
        /// The offset.
        offset: u64,
        /// The bytes.
        bytes: u32,
    },
}

impl Violation {
    /// Returns whether an honest host can appear to commit it, because connections overtake each other. Such
    /// a violation counts against nobody.
    pub fn is_late(&self) -> bool {
        matches!(self, Violation::Replayed { .. } | Violation::EarlierGateway { .. })
    }
}

/// Why a message is not taken. Its caller still has it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The mailbox has no room; [`Event::Room`](super::Event::Room) reports when it has.
    #[error("the mailbox of {actor} is full")]
    Full {
        /// The actor.
        actor: ActorId,
    },
    /// The window has no room; [`Event::Window`](super::Event::Window) reports when it has.
    #[error("messages to {host} fill the {window} bytes that may be on their way")]
    NoWindow {
        /// The other host.
        host: HostId,
        /// The bytes of the window.
        window: u64,
    },
    /// The other host takes no messages to the actor, either not yet or not any more.
    #[error("{host} takes no messages to {actor}")]
    NotServed {
        /// The actor.
        actor: ActorId,
        /// The other host.
        host: HostId,
    },
    /// The ask has been answered, or never existed.
    #[error("ask {correlation} of {host} waits for no reply")]
    NoSuchAsk {
        /// The ask.
        correlation: Correlation,
        /// The asking host.
        host: HostId,
    },
    /// A message beyond the limits.
    #[error(
        "a message to another host has at most {most} {what}, and this has {found}; send the rest in another message"
    )]
    TooLarge {
        /// The kind of thing.
        what: &'static str,
        /// How many it has.
        found: u64,
        /// How many it may have.
        most: u64,
    },
    /// The verdict on the other host has been given (HOST-4).
    #[error("{host} is lost")]
    Ended {
        /// The other host.
        host: HostId,
    },
}
