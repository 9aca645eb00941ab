//! The state that two gateways share for as long as both live, however often their connections break.
//! Messages arrive in order and at most once (HOST-3), and none is lost with a connection (HOST-4). Leases
//! last until the data has landed (HOST-5), and everything is bounded (HOST-9).
//!
//! It has no I/O, no clock and no lock: a gateway passes it incoming frames and takes outgoing ones. Each
//! side has one session for the other.
//!
//! * **Numbers.** Everything that must not be lost has a number. It is kept until the other side acknowledges
//!   it, and is sent again over the next connection. In one connection nothing comes twice and nothing is
//!   left out, so a frame out of order is a violation.
//! * **Connections.** One side dials, and counts its attempts; the highest is in force at both ends. Frames
//!   that still come over an older connection are ignored. The dialling side has given its old connection up
//!   first, so that its [`Hello`](crate::frame::Hello) stays true.
//! * **Pieces.** The bytes of tensors come over lanes beside the control stream, in any order, named by
//!   message, span and offset. A piece that overtook its message waits; one that came before is dropped. Both
//!   ends list the pieces that have landed in their `Hello`, so that those are not sent twice.
//! * **Complete.** A message goes on when all its pieces are in place and the messages before it to the same
//!   mailbox have gone on (HOST-8). Other mailboxes do not wait for it. The sender's lease ends with
//!   [`Event::Released`].
//! * **Bounds.** A message needs a place in its mailbox, which [`Session::done`] gives back, and room in the
//!   window, which [`Session::passed_on`] gives back. Both ends count both, so a flood is a [`Violation`].
//! * **Asks** have one answer each: a reply, a refusal, or the verdict.
//! * **Gateways.** A gateway's state is lost with it, so a session belongs to two gateways and ends with
//!   either. Each states in its `Hello` which it is, and to which it speaks. If the other side is a later
//!   gateway than the session's, the session is over ([`Violation::NextGateway`], [`Session::renew`]).
//!   Messages that were not acknowledged are answered as by the verdict, because nobody knows whether they
//!   ran, and the next session begins empty. A greeting to an earlier gateway of this host continues nothing:
//!   it is [answered](Session::introduce) with the gateway that is here now. So a pair of gateways has one
//!   session, and frames of another session never count in it.
//!
//! A violation changes nothing: the connection ends, and the session goes on with the next one.
//! [`Session::end`] is the verdict on the other host, and final.
//!
//! The model (`model.rs`) cuts connections at any moment, lets them overtake each other, and has gateways die
//! and be replaced. It also takes out each of the steps of `steps.rs`, and some seed has to fail then.

mod bulk;
mod error;
mod greeting;
mod inbound;
#[cfg(test)]
mod model;
mod numbering;
mod outbound;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::Bytes;

pub use self::bulk::OnDevice;
pub(crate) use self::bulk::Want;
pub use self::error::{PostError, Violation};
use self::inbound::{Follows, Inbound};
use self::numbering::Numbering;
use self::outbound::Outbound;
use self::steps::{Step, Steps};
use crate::frame::{Body, Frame, Piece, Post, Target};
use crate::ids::{ActorId, Correlation, Gateway, HostLife, Seq};
use crate::limits::{
    MAX_CAPACITY, MAX_MAILBOXES, MAX_NOTE, MAX_NOTES, MAX_UNACKED, MAX_WHY, NIXL_SLOT, PIECE_BYTES,
    WIDE_WINDOW, WINDOW,
};

/// The bounds on which both sides have to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes that may be on their way. A larger message goes alone.
    pub window: u64,
    /// The same while a bulk lane carries spans, if the other side accepts that.
    pub wide: u64,
    /// Bytes of a piece.
    pub piece: u64,
    /// Bytes of the largest run.
    pub run: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { window: WINDOW, wide: WIDE_WINDOW, piece: PIECE_BYTES, run: NIXL_SLOT }
    }
}

/// A connection of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link(u64);

/// The destination of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// A mailbox.
    Send(ActorId),
    /// A mailbox whose actor is asked.
    Ask(ActorId),
    /// The asker of this ask.
    Reply(Correlation),
}

/// A message that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Its number, which names its pieces.
    pub post: Seq,
    /// The number by which its answer will be known.
    pub correlation: Option<Correlation>,
}

/// The caller's next step with a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Write it to its place, and then call [`Session::landed`].
    Take,
    /// Its message has not come yet: ask again after the next frame.
    Wait,
    /// It has landed before, or is not needed any more.
    Drop,
}

/// An event that a session reports to its gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message whose pieces need memory. [`Event::Message`] or [`Event::Aborted`] follows.
    Arriving {
        /// Its number.
        post: Seq,
        /// The message.
        message: Post,
    },
    /// A complete message goes on to its mailbox, or to its asker.
    Message {
        /// Its number, for [`Session::passed_on`] and [`Session::done`].
        post: Seq,
        /// The message.
        message: Post,
    },
    /// A message will never be complete: its memory can go.
    Aborted {
        /// Its number.
        post: Seq,
        /// The reason: host and worker.
        why: Bytes,
    },
    /// The memory behind a message of this side is not needed any more (HOST-5).
    Released {
        /// Its number.
        post: Seq,
        /// Whether the message went on; otherwise it was aborted here.
        whole: bool,
    },
    /// A message of this side has no place in its mailbox any more: it is done, or was aborted. Never
    /// reported for a reply.
    Done {
        /// Its number.
        post: Seq,
    },
    /// There will be no reply.
    Refused {
        /// The ask.
        correlation: Correlation,
        /// The reason.
        why: Bytes,
    },
    /// The other side takes messages to this actor, at most `capacity` at a time; 0 takes the offer back.
    Served {
        /// The actor.
        actor: ActorId,
        /// The number of messages.
        capacity: u32,
    },
    /// A mailbox that was full has room.
    Room {
        /// The actor.
        actor: ActorId,
    },
    /// The window was full, and has room again.
    Window,
    /// A note of the other side's node.
    Note(Bytes),
    /// A note was refused for lack of room, and there is room now.
    NoteRoom,
}

/// The unfinished work of a session that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Asks without an answer. Nobody knows whether their handlers ran.
    pub asks: Vec<(Correlation, Option<ActorId>)>,
    /// Messages of this side whose memory is not needed any more.
    pub released: Vec<Seq>,
    /// Messages of the other side that will never be complete.
    pub aborted: Vec<Seq>,
    /// Actors for which messages of the other side went on that no mailbox has taken, once for each message.
    pub open: Vec<ActorId>,
}

/// Tells which tasks have work. Pieces that wait for their message look again when `received` has changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wakes {
    pub(crate) link: Option<Link>,
    pub(crate) received: Seq,
    pub(crate) frames: bool,
    pub(crate) pieces: bool,
    pub(crate) wants: bool,
    pub(crate) events: bool,
}

/// One side of a session.
#[derive(Debug)]
pub struct Session {
    own: HostLife,
    peer: HostLife,
    /// This side's gateway, and the other's once it is known.
    gateway: Gateway,
    peer_gateway: Gateway,
    steps: Steps,
    numbering: Numbering,
    outbound: Outbound,
    inbound: Inbound,
    events: VecDeque<Event>,
    /// The latest attempt that was made or accepted.
    attempt: u64,
    link: Option<Link>,
    /// Whether a note was refused for lack of room.
    waiting_for_notes: bool,
    ended: Option<End>,
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The verdict on the other host.
    Lost,
    /// The other side has a new gateway, and with it a new session.
    Renewed,
}

impl Session {
    /// Makes a session of the first gateway of `own` with `peer`, without a connection yet.
    pub fn new(own: HostLife, peer: HostLife, bounds: Bounds) -> Self {
        Self::of_gateways((own, Gateway::FIRST), (peer, Gateway::UNKNOWN), bounds)
    }

    /// Makes a session of this gateway of `own`, with a gateway of `peer` that may be known.
    pub fn of_gateways(own: (HostLife, Gateway), peer: (HostLife, Gateway), bounds: Bounds) -> Self {
        Self::with_steps(own, peer, bounds, Steps::default())
    }

    fn with_steps(
        (own, gateway): (HostLife, Gateway),
        (peer, peer_gateway): (HostLife, Gateway),
        bounds: Bounds,
        steps: Steps,
    ) -> Self {
        Session {
            own,
            peer,
            gateway,
            peer_gateway,
            steps,
            numbering: Numbering::new(steps),
            outbound: Outbound::new(steps, bounds, peer.host),
            inbound: Inbound::new(steps, bounds, own.host),
            events: VecDeque::new(),
            attempt: 0,
            link: None,
            waiting_for_notes: false,
            ended: None,
        }
    }

    /// Returns the bounds on which both sides have to agree.
    pub(crate) fn bounds(&self) -> Bounds {
        self.outbound.bounds()
    }

    /// Returns this side and its gateway.
    pub(crate) fn own(&self) -> (HostLife, Gateway) {
        (self.own, self.gateway)
    }

    /// Returns the other side.
    pub fn peer(&self) -> HostLife {
        self.peer
    }

    /// Returns the connection in force.
    pub fn link(&self) -> Option<Link> {
        self.link
    }

    /// Records that a connection broke.
    pub fn cut(&mut self, link: Link) {
        if self.link == Some(link) {
            self.link = None;
        }
    }

    fn is_up(&self, link: Link) -> bool {
        self.link == Some(link) || (self.link.is_some() && !self.steps.does(Step::OldLinkIsOver))
    }

    /// Offers `capacity` places in the mailbox of an actor of this host, or with 0 takes the offer back.
    ///
    /// # Errors
    /// Too many mailboxes are offered.
    pub fn serve(&mut self, actor: ActorId, capacity: u32) -> Result<(), PostError> {
        let large = |what, found, most| Err(PostError::TooLarge { what, found, most });
        if capacity > MAX_CAPACITY {
            return large("places in a mailbox", capacity.into(), MAX_CAPACITY.into());
        }
        if !self.inbound.offers(actor) && self.inbound.mailboxes() >= MAX_MAILBOXES {
            return large("mailboxes", MAX_MAILBOXES as u64 + 1, MAX_MAILBOXES as u64);
        }
        self.inbound.serve(actor, capacity, self.numbering.next_seq());
        self.push(Body::Serve { actor, capacity });
        Ok(())
    }

    /// Takes a message. Its spans are sent piece by piece, and their memory is kept until
    /// [`Event::Released`].
    ///
    /// # Errors
    /// The message is not taken.
    pub fn post(&mut self, to: To, head: Bytes, spans: Vec<u64>) -> Result<Posted, PostError> {
        let host = self.peer.host;
        if self.ended.is_some() {
            return Err(PostError::Ended { host });
        }
        if let To::Reply(correlation) = to
            && !self.inbound.waits_for_answer(correlation)
        {
            return Err(PostError::NoSuchAsk { correlation, host });
        }
        let (target, correlation) = match to {
            To::Send(actor) => (Target::Send(actor), None),
            To::Ask(actor) => {
                let correlation = self.outbound.next_ask();
                (Target::Ask(actor, correlation), Some(correlation))
            }
            To::Reply(correlation) => (Target::Reply(correlation), None),
        };
        let seq = self.numbering.next_seq();
        let message = Post { target, head, spans };
        let full = self.numbering.kept() >= MAX_UNACKED / 2;
        self.outbound.claim(seq, &message, full)?;
        if let To::Reply(correlation) = to {
            self.inbound.answer(correlation);
        }
        self.push(Body::Post(message));
        Ok(Posted { post: seq, correlation })
    }

    /// Refuses an ask of the other side, to which there will be no reply.
    pub fn refuse(&mut self, correlation: Correlation, mut why: Bytes) {
        if self.inbound.answer(correlation) {
            why.truncate(MAX_WHY);
            self.push(Body::Refusal { correlation, why });
        }
    }

    /// Aborts a message whose data is tainted (HOST-6): the rest of it is never sent. [`Event::Released`]
    /// reports how it ended.
    pub fn abort(&mut self, post: Seq, mut why: Bytes) {
        if self.outbound.abort(post) {
            why.truncate(MAX_WHY);
            self.push(Body::Abort { post, why });
        }
    }

    /// Sends a note to the other side's node. Returns whether it was taken. Few notes are on their way at a
    /// time, and [`Event::NoteRoom`] reports when there is room again. A note that is too long is never
    /// taken.
    pub fn note(&mut self, note: Bytes) -> bool {
        if note.len() > MAX_NOTE || self.ended.is_some() {
            return false;
        }
        let room = self.numbering.notes() < MAX_NOTES;
        if room {
            self.push(Body::Note(note));
        }
        self.waiting_for_notes |= !room;
        room
    }

    fn tell_note_room(&mut self) {
        if self.numbering.notes() < MAX_NOTES && std::mem::take(&mut self.waiting_for_notes) {
            self.events.push_back(Event::NoteRoom);
        }
    }

    fn push(&mut self, body: Body) {
        if self.ended.is_none() {
            self.numbering.push(body);
        }
    }

    /// Returns the next frame to send over this connection.
    pub fn next_frame(&mut self, link: Link) -> Option<Frame> {
        if self.link != Some(link) {
            return None;
        }
        if let Some((seq, body)) = self.numbering.next_frame() {
            return Some(Frame::Numbered { seq, body });
        }
        // Given back last, so that messages which finished meanwhile share few frames.
        for body in self.inbound.give_back() {
            self.numbering.push(body);
        }
        match self.numbering.next_frame() {
            Some((seq, body)) => Some(Frame::Numbered { seq, body }),
            None => self.numbering.next_ack().map(|received| Frame::Ack { received }),
        }
    }

    /// Returns the next piece to send, over any lane of this connection.
    pub fn next_piece(&mut self, link: Link) -> Option<Piece> {
        if self.link != Some(link) {
            return None;
        }
        let (piece, event) = self.outbound.next_piece()?;
        self.events.extend(event);
        Some(piece)
    }

    /// Handles an acknowledgement.
    ///
    /// # Errors
    /// The acknowledgement is a violation.
    pub fn acked(&mut self, link: Link, received: Seq) -> Result<(), Violation> {
        if self.is_up(link) {
            self.numbering.acked(received)?;
            // A greeting's acknowledgement does not count here: frames sent before it may come again after
            // it.
            self.inbound.heard(received);
            self.tell_note_room();
            if self.numbering.kept() < MAX_UNACKED / 2 {
                self.events.extend(self.outbound.window_event());
            }
        }
        Ok(())
    }

    /// Takes a numbered frame that came over a connection.
    ///
    /// # Errors
    /// The frame is a violation.
    pub fn take(&mut self, link: Link, seq: Seq, body: Body) -> Result<(), Violation> {
        if !self.is_up(link) || self.ended.is_some() {
            return Ok(());
        }
        // Only `taken` counts the frame as received. Each arm checks before it changes, so a violation
        // changes nothing, and the next connection gets the frame again.
        self.numbering.expect(seq)?;
        let mut follows = Follows::default();
        match body {
            Body::Post(post) => {
                let Target::Reply(correlation) = post.target else {
                    follows = self.inbound.take(seq, post)?;
                    return self.taken(seq, follows);
                };
                self.outbound.asks(correlation)?;
                follows = self.inbound.take(seq, post)?;
                // Answered last: `inbound` may still refuse the reply.
                self.outbound.answered(correlation);
            }
            Body::Landed { post, whole } => follows.events = self.outbound.landed(post, whole)?,
            Body::Done { posts } => self.outbound.done(&posts, &mut follows.events)?,
            Body::Grant { bytes } => follows.events.extend(self.outbound.granted(bytes)?),
            Body::Refusal { correlation, why } => {
                self.outbound.asks(correlation)?;
                self.outbound.answered(correlation);
                follows.events.push(Event::Refused { correlation, why });
            }
            Body::Abort { post, why } => follows = self.inbound.abort(post, &why, seq)?,
            Body::Serve { actor, capacity } => {
                follows.events.push(self.outbound.served(actor, capacity)?);
            }
            Body::Note(note) => follows.events.push(Event::Note(note)),
        }
        self.taken(seq, follows)
    }

    fn taken(&mut self, seq: Seq, follows: Follows) -> Result<(), Violation> {
        self.numbering.took(seq);
        self.follow(follows);
        Ok(())
    }

    fn follow(&mut self, follows: Follows) {
        follows.bodies.into_iter().for_each(|body| self.push(body));
        self.events.extend(follows.events);
    }

    /// Claims a piece that came over a lane of a connection.
    ///
    /// # Errors
    /// Its message has no such piece.
    pub fn claim(&mut self, link: Link, piece: &Piece) -> Result<Claim, Violation> {
        if !self.is_up(link) || self.ended.is_some() {
            return Ok(Claim::Drop);
        }
        self.inbound.claim(piece, self.numbering.received())
    }

    /// Records that a claimed piece is in its place, even if its connection has ended. Memory is complete for
    /// code that uses it after this call (HOST-8).
    pub fn landed(&mut self, piece: &Piece) {
        let follows = self.inbound.landed(piece);
        self.follow(follows);
    }

    /// Records that a message was passed on to its actor: its bytes free the window.
    pub fn passed_on(&mut self, post: Seq) {
        self.inbound.passed_on(post);
    }

    /// Finishes a message: its place in the mailbox is free. Refuses its ask, if nobody has answered it.
    pub fn done(&mut self, post: Seq) {
        if let Some(correlation) = self.inbound.done(post) {
            let why = Bytes::from_static(b"the actor is done with the message, and did not reply");
            self.push(Body::Refusal { correlation, why });
        }
    }

    /// Returns which tasks have work, for the code that wakes them.
    pub(crate) fn wakes(&self) -> Wakes {
        let up = self.link.is_some();
        Wakes {
            link: self.link,
            received: self.numbering.received(),
            frames: up && (self.numbering.has_frames() || self.inbound.gives_back()),
            pieces: up && self.outbound.has_pieces(),
            wants: up && self.outbound.has_wants(),
            events: !self.events.is_empty(),
        }
    }

    /// Returns how many events wait for the gateway.
    pub(crate) fn untold(&self) -> usize {
        self.events.len()
    }

    /// Returns the next event for the gateway.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Ends the session by the verdict on the other host, which is final (HOST-10).
    pub fn end(&mut self) -> Ended {
        self.end_for(End::Lost)
    }

    /// Ends the session because the other side has a new gateway. The host is not lost; its next session is
    /// another [`Session`].
    pub fn renew(&mut self) -> Ended {
        self.end_for(End::Renewed)
    }

    /// Returns whether the session is over.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    fn end_for(&mut self, why: End) -> Ended {
        self.link = None;
        self.ended = Some(why);
        self.numbering = Numbering::new(self.steps);
        let (asks, released) = self.outbound.end();
        let (replies, aborted, open) = self.inbound.end();
        let asks = asks.into_iter().map(|(correlation, actor)| (correlation, Some(actor)));
        let replies = replies.into_iter().map(|correlation| (correlation, None));
        Ended { asks: asks.chain(replies).collect(), released, aborted, open }
    }

    /// Returns whether nothing is on its way in either direction.
    #[cfg(test)]
    fn is_at_rest(&self) -> bool {
        self.outbound.is_at_rest() && self.inbound.is_at_rest()
    }
}
