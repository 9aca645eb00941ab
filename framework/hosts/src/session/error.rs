//! What one side of a session must not say, and why a message is not taken.

use crate::ids::{ActorId, Correlation, Gateway, HostId, HostLife, Seq};

/// What the other side said and must not say. The connection ends; whoever says too much of it is given up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Not to this session.
    #[error("it greets {found} as {from}, and this is {own} in a session with {peer}")]
    OtherSession {
        /// Who says it.
        from: HostLife,
        /// To whom.
        found: HostLife,
        /// Who was asked.
        own: HostLife,
        /// Who it would have to be.
        peer: HostLife,
    },
    /// An attempt that is over, or was made before.
    #[error(
        "it takes the session up with attempt {found}, and attempt {current} has been made: replayed, or overtaken"
    )]
    Replayed {
        /// Which it says.
        found: u64,
        /// Which is the latest.
        current: u64,
    },
    /// The host has another gateway: the session is over, and the next begins. No lie.
    #[error("it has {found} now, and the session is with {current}")]
    NextGateway {
        /// Which it has.
        found: Gateway,
        /// With which the session is.
        current: Gateway,
    },
    /// It speaks to an earlier gateway of this host, and does not know this one. No lie.
    #[error("it speaks to {found}, and this is {own}")]
    OtherGateway {
        /// To which.
        found: Gateway,
        /// Which this is.
        own: Gateway,
    },
    /// What a gateway said that its host has no more, or in a session that is over.
    #[error("{found} says it, and the session is with {current}: its host has another, or it is overtaken")]
    EarlierGateway {
        /// Which says it.
        found: Gateway,
        /// With which the session is.
        current: Gateway,
    },
    /// More received than was sent, or less than it has said before.
    #[error("it says that it received up to frame {found}, which is none of {least} to {most}")]
    Received {
        /// What it says.
        found: Seq,
        /// What it has said before.
        least: Seq,
        /// What was sent.
        most: Seq,
    },
    /// Frames of a connection out of order.
    #[error("it sends frame {found} where {expected} comes next")]
    OutOfOrder {
        /// Which came.
        found: Seq,
        /// Which should.
        expected: Seq,
    },
    /// It does not say what it has received.
    #[error("it has acknowledged nothing for {frames} frames")]
    Unacknowledged {
        /// How many are kept.
        frames: usize,
    },
    /// A message to an actor of another host.
    #[error("it sends to {actor}, which does not live on {own}")]
    OtherHost {
        /// To whom.
        actor: ActorId,
        /// Where it came.
        own: HostId,
    },
    /// A message to a mailbox that was never offered.
    #[error("it sends to {actor}, which was not offered to it")]
    NotServed {
        /// To whom.
        actor: ActorId,
    },
    /// More messages than a mailbox has room for.
    #[error("it sends more to {actor} than the {capacity} messages that it may have there")]
    OverCapacity {
        /// To whom.
        actor: ActorId,
        /// Its room.
        capacity: u32,
    },
    /// More bytes than the window has.
    #[error("it sends {bytes} bytes where the window has {left} left")]
    OverWindow {
        /// That the message counts.
        bytes: u64,
        /// Left.
        left: u64,
    },
    /// Too many messages that are not whole, asks without an answer, mailboxes or notes.
    #[error("it has more than {most} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many it may have.
        most: usize,
    },
    /// A reply, or a refusal, to nothing.
    #[error("it answers ask {correlation}, which waits for no answer")]
    NoSuchAsk {
        /// Which.
        correlation: Correlation,
    },
    /// An ask that it has asked already.
    #[error("it asks twice with number {correlation}")]
    AsksTwice {
        /// Which.
        correlation: Correlation,
    },
    /// Something of a message that is not on its way.
    #[error("it speaks of message {post}, which is not on its way")]
    NoSuchPost {
        /// Which.
        post: Seq,
    },
    /// A message is said to be whole of which pieces were never sent, or to be aborted that was not.
    #[error("it says that message {post} has ended in a way that it cannot have")]
    WrongEnd {
        /// Which.
        post: Seq,
    },
    /// More of the window than is taken.
    #[error("it gives back {found} bytes where {most} are taken")]
    GivesTooMuch {
        /// How much.
        found: u64,
        /// How much is taken.
        most: u64,
    },
    /// A run that its message does not have, or that does not come next.
    #[error(
        "it makes room for {bytes} bytes at {offset} of span {span} of message {post}, which is no run of it"
    )]
    NoSuchRun {
        /// Of which message.
        post: Seq,
        /// Of which span.
        span: u16,
        /// Where.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// A piece that its message does not have.
    #[error("it sends {bytes} bytes at {offset} of span {span} of message {post}, which is no piece of it")]
    NoSuchPiece {
        /// Of which message.
        post: Seq,
        /// Of which span.
        span: u16,
        /// Where.
        offset: u64,
        /// How many.
        bytes: u32,
    },
}

impl Violation {
    /// Whether an honest host can seem to have said it: connections overtake each other. Then it counts
    /// against nobody.
    pub fn is_late(&self) -> bool {
        matches!(self, Violation::Replayed { .. } | Violation::EarlierGateway { .. })
    }
}

/// Why a message is not taken. Its caller has it still.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The mailbox has no room; [`Event::Room`](super::Event::Room) says when it has.
    #[error("the mailbox of {actor} is full")]
    Full {
        /// Whose.
        actor: ActorId,
    },
    /// The window has no room; [`Event::Window`](super::Event::Window) says when it has.
    #[error("messages to {host} fill the {window} bytes that may be on their way")]
    NoWindow {
        /// The other host.
        host: HostId,
        /// Its bytes.
        window: u64,
    },
    /// The other host does not take messages to it, not yet or no more.
    #[error("{host} takes no messages to {actor}")]
    NotServed {
        /// To whom.
        actor: ActorId,
        /// The other host.
        host: HostId,
    },
    /// The ask has had its answer, or never was.
    #[error("ask {correlation} of {host} waits for no reply")]
    NoSuchAsk {
        /// Which.
        correlation: Correlation,
        /// Who asked.
        host: HostId,
    },
    /// A message beyond the limits.
    #[error("a message to another host has at most {most} {what}, and this has {found}")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// How much.
        found: u64,
        /// How much it may have.
        most: u64,
    },
    /// The verdict on the other host has been spoken (HOST-4).
    #[error("{host} is lost")]
    Ended {
        /// The other host.
        host: HostId,
    },
}
