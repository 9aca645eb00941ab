//! What two gateways have between them for as long as both live, whatever becomes of their connections:
//! messages in order and at most once (HOST-3), none lost with a connection (HOST-4), leases until the data
//! is there (HOST-5), bounds (HOST-9).
//!
//! No I/O, no clock, no lock: a gateway gives it what came and takes what is to be sent. Each side has one
//! for the other.
//!
//! * **Numbers.** All that must not be lost has a number, is kept until the other side says that it received
//!   it, and is sent again over the next connection. In one connection nothing comes twice and nothing is
//!   left out, so whatever is out of order is a lie.
//! * **Connections.** One side dials, and counts its attempts; the highest is in force at both ends. What
//!   still comes over an older one is not taken. Who dials has given its old connection up first, so that
//!   what it says in its [`Hello`](crate::frame::Hello) stays true.
//! * **Pieces.** The bytes of tensors come over lanes beside the control stream, in any order, named by
//!   message, span and offset. One that overtook its message waits; one that came already is dropped. Both
//!   ends say in their `Hello` which are there, so that what landed is not sent twice.
//! * **Whole.** A message goes on when all its pieces are where they belong and the messages before it to the
//!   same mailbox have gone on (HOST-8). Other mailboxes do not wait for it. [`Event::Released`] is when the
//!   sender's lease ends.
//! * **Bounds.** A message needs a place in its mailbox, which [`Session::done`] gives back, and room in the
//!   window, which [`Session::passed_on`] gives back. Both ends count both, so a flood is a [`Violation`].
//! * **Asks** have one answer each: a reply, a refusal, or the verdict.
//! * **Gateways.** What a gateway had is gone with it, so a session is one of two gateways and ends with
//!   either. Each says in its `Hello` which it is, and to which it speaks. Where the other side is a later
//!   one than this session is with, the session is over ([`Violation::NextGateway`], [`Session::renew`]):
//!   what was not acknowledged is answered as by the verdict, because whether it ran nobody knows, and the
//!   next session begins with nothing. A greeting to an earlier gateway of this host takes nothing up: it is
//!   [answered](Session::introduce) with who is here now. So a pair of gateways has one session, and what was
//!   said in another never counts in it.
//!
//! A violation changes nothing: the connection ends, and the session goes on with the next one. The end is
//! [`Session::end`], the verdict on the other host; nothing comes back from that.
//!
//! The model (`model.rs`) cuts connections at any moment, lets them overtake each other, has gateways die and
//! be replaced, and takes out each of the steps of `steps.rs`, which has to be noticed.

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

/// What both sides have to agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes that may be on their way. A message with more goes alone.
    pub window: u64,
    /// As many while a lane for bulk carries spans, if the other side takes them.
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

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// A mailbox.
    Send(ActorId),
    /// A mailbox, whose actor is asked.
    Ask(ActorId),
    /// Who asked this.
    Reply(Correlation),
}

/// A message that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Its number, which names its pieces.
    pub post: Seq,
    /// What its answer will be known by.
    pub correlation: Option<Correlation>,
}

/// What to do with a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Put it where it belongs, and say so with [`Session::landed`].
    Take,
    /// Its message has not come yet: ask again after the next frame.
    Wait,
    /// It is there, or not needed any more.
    Drop,
}

/// What a session tells its gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message whose pieces need memory. [`Event::Message`] or [`Event::Aborted`] follows.
    Arriving {
        /// Its number.
        post: Seq,
        /// What it is.
        message: Post,
    },
    /// A message goes on to its mailbox, or to who asked; it is whole.
    Message {
        /// Its number, for [`Session::passed_on`] and [`Session::done`].
        post: Seq,
        /// What it is.
        message: Post,
    },
    /// A message never becomes whole: its memory can go.
    Aborted {
        /// Its number.
        post: Seq,
        /// Why: host and worker.
        why: Bytes,
    },
    /// The memory behind a message of this side is needed no more (HOST-5).
    Released {
        /// Its number.
        post: Seq,
        /// Whether it went on; otherwise it was aborted here.
        whole: bool,
    },
    /// A message of this side has no place in its mailbox any more: it is done with, or was aborted. Never of
    /// a reply.
    Done {
        /// Its number.
        post: Seq,
    },
    /// There will be no reply.
    Refused {
        /// To which ask.
        correlation: Correlation,
        /// Why.
        why: Bytes,
    },
    /// The other side takes so many messages to this actor at a time; with 0, no more.
    Served {
        /// Whose mailbox.
        actor: ActorId,
        /// How many.
        capacity: u32,
    },
    /// A mailbox that was full has room.
    Room {
        /// Whose.
        actor: ActorId,
    },
    /// The window, which was full, has room.
    Window,
    /// What the other side's node says.
    Note(Bytes),
    /// A note was not taken, and there is room for one.
    NoteRoom,
}

/// What a session had when it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Asks without an answer: whether their handlers ran, nobody knows.
    pub asks: Vec<(Correlation, Option<ActorId>)>,
    /// Messages of this side whose memory is needed no more.
    pub released: Vec<Seq>,
    /// Messages of the other side that never become whole.
    pub aborted: Vec<Seq>,
    /// For whom messages of the other side went on that no mailbox has taken, each as often as there are
    /// such.
    pub open: Vec<ActorId>,
}

/// What there is to do. Pieces that wait for their message look again where `received` has changed.
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
    /// The two gateways; that of the other side, once it is known.
    gateway: Gateway,
    peer_gateway: Gateway,
    steps: Steps,
    numbering: Numbering,
    outbound: Outbound,
    inbound: Inbound,
    events: VecDeque<Event>,
    /// The latest attempt that was made, or taken.
    attempt: u64,
    link: Option<Link>,
    /// A note was not taken.
    waiting_for_notes: bool,
    ended: Option<End>,
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The verdict.
    Lost,
    /// The other side has another gateway, and with it another session.
    Renewed,
}

impl Session {
    /// A session of the first gateway of `own` with `peer`, without a connection yet.
    pub fn new(own: HostLife, peer: HostLife, bounds: Bounds) -> Self {
        Self::of_gateways((own, Gateway::FIRST), (peer, Gateway::UNKNOWN), bounds)
    }

    /// As [`new`](Self::new), of this gateway, with one that may be known.
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

    /// What both sides have to agree on.
    pub(crate) fn bounds(&self) -> Bounds {
        self.outbound.bounds()
    }

    /// This side, and its gateway.
    pub(crate) fn own(&self) -> (HostLife, Gateway) {
        (self.own, self.gateway)
    }

    /// The other side.
    pub fn peer(&self) -> HostLife {
        self.peer
    }

    /// The connection in force.
    pub fn link(&self) -> Option<Link> {
        self.link
    }

    /// A connection broke.
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
    /// It is not taken.
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

    /// There will be no reply to an ask of the other side.
    pub fn refuse(&mut self, correlation: Correlation, mut why: Bytes) {
        if self.inbound.answer(correlation) {
            why.truncate(MAX_WHY);
            self.push(Body::Refusal { correlation, why });
        }
    }

    /// The data of a message is tainted (HOST-6): what was not sent of it never is. [`Event::Released`] says
    /// what became of it.
    pub fn abort(&mut self, post: Seq, mut why: Bytes) {
        if self.outbound.abort(post) {
            why.truncate(MAX_WHY);
            self.push(Body::Abort { post, why });
        }
    }

    /// Tells the other side's node something. Whether it was taken: a few are on their way at a time, and
    /// [`Event::NoteRoom`] says when there are fewer. One that is too long is never taken.
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

    /// The next frame to send over this connection.
    pub fn next_frame(&mut self, link: Link) -> Option<Frame> {
        if self.link != Some(link) {
            return None;
        }
        if let Some((seq, body)) = self.numbering.next_frame() {
            return Some(Frame::Numbered { seq, body });
        }
        // Last, so that what was done with meanwhile is said in few frames.
        for body in self.inbound.give_back() {
            self.numbering.push(body);
        }
        match self.numbering.next_frame() {
            Some((seq, body)) => Some(Frame::Numbered { seq, body }),
            None => self.numbering.next_ack().map(|received| Frame::Ack { received }),
        }
    }

    /// The next piece to send, over any lane of this connection.
    pub fn next_piece(&mut self, link: Link) -> Option<Piece> {
        if self.link != Some(link) {
            return None;
        }
        let (piece, event) = self.outbound.next_piece()?;
        self.events.extend(event);
        Some(piece)
    }

    /// The other side has received up to here.
    ///
    /// # Errors
    /// It must not say that.
    pub fn acked(&mut self, link: Link, received: Seq) -> Result<(), Violation> {
        if self.is_up(link) {
            self.numbering.acked(received)?;
            // Not where a greeting says it: what was sent before may come again behind that.
            self.inbound.heard(received);
            self.tell_note_room();
            if self.numbering.kept() < MAX_UNACKED / 2 {
                self.events.extend(self.outbound.window_event());
            }
        }
        Ok(())
    }

    /// A numbered frame came over a connection.
    ///
    /// # Errors
    /// The other side must not say that.
    pub fn take(&mut self, link: Link, seq: Seq, body: Body) -> Result<(), Violation> {
        if !self.is_up(link) || self.ended.is_some() {
            return Ok(());
        }
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

    /// A piece came over a lane of a connection.
    ///
    /// # Errors
    /// Its message has no such piece.
    pub fn claim(&mut self, link: Link, piece: &Piece) -> Result<Claim, Violation> {
        if !self.is_up(link) || self.ended.is_some() {
            return Ok(Claim::Drop);
        }
        self.inbound.claim(piece, self.numbering.received())
    }

    /// A claimed piece is where it belongs, whatever became of its connection: whoever uses the memory behind
    /// this call finds it there (HOST-8).
    pub fn landed(&mut self, piece: &Piece) {
        let follows = self.inbound.landed(piece);
        self.follow(follows);
    }

    /// A message was passed on to its actor: its bytes are no longer on their way.
    pub fn passed_on(&mut self, post: Seq) {
        self.inbound.passed_on(post);
    }

    /// A message is done with: its place in the mailbox is free. An ask that nobody has answered is refused.
    pub fn done(&mut self, post: Seq) {
        if let Some(correlation) = self.inbound.done(post) {
            let why = Bytes::from_static(b"the actor is done with the message, and did not reply");
            self.push(Body::Refusal { correlation, why });
        }
    }

    /// Who has something to do: for whoever wakes them.
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

    /// How much there is to tell the gateway.
    pub(crate) fn untold(&self) -> usize {
        self.events.len()
    }

    /// The next thing to tell the gateway.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The verdict on the other host: final (HOST-10).
    pub fn end(&mut self) -> Ended {
        self.end_for(End::Lost)
    }

    /// The other side has another gateway: this session is over, and not its host. The next one is another
    /// [`Session`].
    pub fn renew(&mut self) -> Ended {
        self.end_for(End::Renewed)
    }

    /// Whether it is over.
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

    /// Whether nothing is on its way in either direction.
    #[cfg(test)]
    fn is_at_rest(&self) -> bool {
        self.outbound.is_at_rest() && self.inbound.is_at_rest()
    }
}
