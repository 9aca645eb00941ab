//! Messages that come from the other side: those that are incomplete, those that wait behind them, and those
//! that are not done.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;

use super::outbound::charge;
use super::steps::{Step, Steps};
use super::{Bounds, Claim, Event, Violation};
use crate::frame::{Bits, Body, Partial, Piece, Post, Run, Target};
use crate::ids::{ActorId, Correlation, HostId, Seq};
use crate::limits::{MAX_ARRIVING, MAX_DONE};

#[derive(Debug)]
pub(super) struct Inbound {
    steps: Steps,
    bounds: Bounds,
    own: HostId,
    mailboxes: HashMap<ActorId, Mailbox>,
    /// Mailboxes that take nothing more, with the frame that says so.
    withdrawn: Vec<(Seq, ActorId)>,
    /// Messages with pieces that have not landed.
    arriving: BTreeMap<Seq, Arriving>,
    /// Complete messages that wait behind incomplete ones.
    behind: HashMap<Seq, Post>,
    /// Messages that went on and are not done.
    open: HashMap<Seq, Open>,
    /// Bytes of the window that are taken.
    taken: u64,
    /// The size of the window.
    window: u64,
    /// Asks of the other side that wait for an answer.
    asks: HashSet<Correlation>,
    /// Places and bytes to give back, together, with the next frames.
    places: Vec<Seq>,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Mailbox {
    /// The highest capacity ever offered: a message may have crossed the withdrawal of an offer.
    capacity: u32,
    open: u32,
    /// Messages that have not gone on, in order.
    queue: VecDeque<Seq>,
}

#[derive(Debug)]
struct Arriving {
    post: Post,
    spans: Vec<Span>,
    missing: u64,
}

#[derive(Debug)]
struct Span {
    bytes: u64,
    claimed: Bits,
    landed: Bits,
}

#[derive(Debug)]
struct Open {
    target: Target,
    charge: u64,
    passed_on: bool,
}

/// The consequences of a frame or a piece: frames to send and events to report.
#[derive(Debug, Default)]
pub(super) struct Follows {
    pub(super) bodies: Vec<Body>,
    pub(super) events: Vec<Event>,
}

impl Inbound {
    pub(super) fn new(steps: Steps, bounds: Bounds, own: HostId) -> Self {
        Inbound {
            steps,
            bounds,
            own,
            mailboxes: HashMap::new(),
            withdrawn: Vec::new(),
            arriving: BTreeMap::new(),
            behind: HashMap::new(),
            open: HashMap::new(),
            taken: 0,
            window: bounds.window,
            asks: HashSet::new(),
            places: Vec::new(),
            bytes: 0,
        }
    }

    /// Sets how many bytes the other side may have on their way.
    pub(super) fn takes_window(&mut self, bytes: u64) {
        self.window = bytes;
    }

    /// Returns the number of mailboxes that are offered, or were and may still look so to the other side.
    pub(super) fn mailboxes(&self) -> usize {
        self.mailboxes.len()
    }

    pub(super) fn offers(&self, actor: ActorId) -> bool {
        self.mailboxes.contains_key(&actor)
    }

    /// Offers a mailbox in frame number `seq`, or takes the offer back.
    pub(super) fn serve(&mut self, actor: ActorId, capacity: u32, seq: Seq) {
        let mailbox = self.mailboxes.entry(actor).or_default();
        mailbox.capacity = mailbox.capacity.max(capacity);
        self.withdrawn.retain(|(_, other)| *other != actor);
        if capacity == 0 {
            self.withdrawn.push((seq, actor));
        }
    }

    /// Forgets withdrawn mailboxes. The other side has acknowledged `received` after everything that it had
    /// sent before. So no message comes any more to mailboxes that were withdrawn by then, and those with no
    /// open message are forgotten.
    pub(super) fn heard(&mut self, received: Seq) {
        let mailboxes = &mut self.mailboxes;
        self.withdrawn.retain(|(seq, actor)| {
            let is_over = *seq <= received && mailboxes.get(actor).is_none_or(|mailbox| mailbox.open == 0);
            if is_over {
                mailboxes.remove(actor);
            }
            !is_over
        });
    }

    /// Takes a message that has come.
    pub(super) fn take(&mut self, seq: Seq, post: Post) -> Result<Follows, Violation> {
        // All checks come before the first change: a violation changes nothing.
        let charge = charge(self.bounds, &post);
        if self.taken > 0 && self.taken + charge > self.window {
            return Err(Violation::OverWindow {
                bytes: charge,
                left: self.window.saturating_sub(self.taken),
            });
        }
        if !post.spans.is_empty() && self.arriving.len() >= MAX_ARRIVING {
            return Err(Violation::TooMany { what: "messages that are not whole", most: MAX_ARRIVING });
        }
        if let Target::Ask(_, correlation) = post.target
            && self.asks.contains(&correlation)
        {
            return Err(Violation::AsksTwice { correlation });
        }
        if let Some(actor) = post.target.actor() {
            if !actor.may_live_on(self.own) {
                return Err(Violation::OtherHost { actor, own: self.own });
            }
            let mailbox = self.mailboxes.get_mut(&actor).ok_or(Violation::NotServed { actor })?;
            if mailbox.open >= mailbox.capacity {
                return Err(Violation::OverCapacity { actor, capacity: mailbox.capacity });
            }
            mailbox.open += 1;
            mailbox.queue.push_back(seq);
        }
        if let Target::Ask(_, correlation) = post.target {
            self.asks.insert(correlation);
        }
        self.taken += charge;
        let target = post.target;
        let mut follows = Follows::default();
        if post.spans.is_empty() {
            self.behind.insert(seq, post);
        } else {
            let span = |bytes: &u64| {
                let none = Bits::new(bytes.div_ceil(self.bounds.piece));
                Span { bytes: *bytes, claimed: none.clone(), landed: none }
            };
            let spans: Vec<_> = post.spans.iter().map(span).collect();
            let missing = spans.iter().map(|span| span.landed.len()).sum();
            follows.events.push(Event::Arriving { post: seq, message: post.clone() });
            self.arriving.insert(seq, Arriving { post, spans, missing });
        }
        self.advance(seq, target, &mut follows.events);
        Ok(follows)
    }

    /// Lets messages of this one's mailbox go on, after the message or a part of it has come, or was aborted.
    fn advance(&mut self, seq: Seq, target: Target, events: &mut Vec<Event>) {
        let Some(actor) = target.actor().filter(|_| self.steps.does(Step::InOrder)) else {
            if let Some(mailbox) = target.actor().and_then(|actor| self.mailboxes.get_mut(&actor)) {
                mailbox.queue.retain(|other| *other != seq || self.arriving.contains_key(&seq));
            }
            events.extend(self.go_on(seq));
            return;
        };
        while let Some(&front) = self.mailboxes.get(&actor).and_then(|mailbox| mailbox.queue.front()) {
            let Some(event) = self.go_on(front) else { break };
            events.push(event);
            if let Some(mailbox) = self.mailboxes.get_mut(&actor) {
                mailbox.queue.pop_front();
            }
        }
    }

    /// Returns the message as an event if it is complete.
    fn go_on(&mut self, seq: Seq) -> Option<Event> {
        let early = || self.arriving.get(&seq).map(|arriving| arriving.post.clone());
        let post = match self.behind.remove(&seq) {
            None if !self.steps.does(Step::WholeFirst) => early(),
            post => post,
        }?;
        let charge = charge(self.bounds, &post);
        self.open.insert(seq, Open { target: post.target, charge, passed_on: false });
        Some(Event::Message { post: seq, message: post })
    }

    /// Decides whether a piece has to be written to its place. Frames up to `received` have come.
    pub(super) fn claim(&mut self, piece: &Piece, received: Seq) -> Result<Claim, Violation> {
        let Piece { post, span, offset, bytes } = *piece;
        if post > received {
            return Ok(if self.steps.does(Step::WaitForPost) { Claim::Wait } else { Claim::Drop });
        }
        // Otherwise its message is complete, or was aborted.
        let Some(arriving) = self.arriving.get_mut(&post) else { return Ok(Claim::Drop) };
        let whole_piece = |span: &Span| {
            offset % self.bounds.piece == 0
                && offset < span.bytes
                && u64::from(bytes) == (span.bytes - offset).min(self.bounds.piece)
        };
        let Some(span) = arriving.spans.get_mut(usize::from(span)).filter(|span| whole_piece(span)) else {
            return Err(Violation::NoSuchPiece { post, span, offset, bytes });
        };
        let fresh = span.claimed.set(offset / self.bounds.piece) || !self.steps.does(Step::ClaimOnce);
        Ok(if fresh { Claim::Take } else { Claim::Drop })
    }

    /// Returns the bytes of a span of an incomplete message.
    pub(super) fn span(&self, post: Seq, span: u16) -> Option<u64> {
        Some(self.arriving.get(&post)?.spans.get(usize::from(span))?.bytes)
    }

    /// Claims a run. Returns whether it has to be written to its place.
    pub(super) fn claim_run(&mut self, run: &Run) -> bool {
        let piece = self.bounds.piece;
        let arriving = self.arriving.get_mut(&run.post);
        let span = arriving.and_then(|arriving| arriving.spans.get_mut(usize::from(run.span)));
        let fits = |span: &&mut Span| {
            let end = run.offset.checked_add(run.bytes);
            run.offset.is_multiple_of(piece) && end.is_some_and(|end| end <= span.bytes)
        };
        let Some(span) = span.filter(fits) else { return false };
        if run.pieces(piece).any(|index| span.claimed.get(index)) {
            return false;
        }
        for index in run.pieces(piece) {
            span.claimed.set(index);
        }
        true
    }

    /// Records that a claimed piece is in its place.
    pub(super) fn landed(&mut self, piece: &Piece) -> Follows {
        let index = piece.offset / self.bounds.piece;
        self.land(piece.post, piece.span, index..index + 1)
    }

    /// Records that a claimed run is in its place.
    pub(super) fn landed_run(&mut self, run: &Run) -> Follows {
        self.land(run.post, run.span, run.pieces(self.bounds.piece))
    }

    fn land(&mut self, post: Seq, span: u16, pieces: Range<u64>) -> Follows {
        let mut follows = Follows::default();
        let Some(arriving) = self.arriving.get_mut(&post) else { return follows };
        let Some(span) = arriving.spans.get_mut(usize::from(span)) else { return follows };
        for index in pieces.filter(|index| span.claimed.get(*index)) {
            arriving.missing -= u64::from(span.landed.set(index));
        }
        if arriving.missing == 0 {
            follows.bodies.push(Body::Landed { post, whole: true });
            let Some(Arriving { post: message, .. }) = self.arriving.remove(&post) else { return follows };
            let target = message.target;
            if !self.open.contains_key(&post) {
                self.behind.insert(post, message);
            }
            self.advance(post, target, &mut follows.events);
        }
        follows
    }

    /// Handles frame number `frame`, which says that the data of message `seq` is tainted. A message that is
    /// complete was good when its last piece was sent, and goes on.
    pub(super) fn abort(&mut self, seq: Seq, why: &Bytes, frame: Seq) -> Result<Follows, Violation> {
        let mut follows = Follows::default();
        if seq >= frame {
            return Err(Violation::NoSuchPost { post: seq });
        }
        if !self.arriving.contains_key(&seq) || !self.steps.does(Step::AbortDrops) {
            return Ok(follows);
        }
        let Some(Arriving { post, .. }) = self.arriving.remove(&seq) else { return Ok(follows) };
        self.taken -= charge(self.bounds, &post);
        follows.bodies.push(Body::Landed { post: seq, whole: false });
        follows.events.push(Event::Aborted { post: seq, why: why.clone() });
        match post.target {
            Target::Send(actor) | Target::Ask(actor, _) => {
                if let Some(mailbox) = self.mailboxes.get_mut(&actor) {
                    mailbox.open -= 1;
                    mailbox.queue.retain(|other| *other != seq);
                }
                if let Target::Ask(_, correlation) = post.target
                    && self.asks.remove(&correlation)
                {
                    follows.bodies.push(Body::Refusal { correlation, why: why.clone() });
                }
            }
            Target::Reply(correlation) => {
                follows.events.push(Event::Refused { correlation, why: why.clone() });
            }
        }
        // Messages that waited behind it go on.
        self.advance(seq, post.target, &mut follows.events);
        Ok(follows)
    }

    /// Frees the window of a message that went on.
    pub(super) fn passed_on(&mut self, post: Seq) {
        if let Some(open) = self.open.get_mut(&post)
            && !std::mem::replace(&mut open.passed_on, true)
        {
            self.taken -= open.charge;
            self.bytes += open.charge;
            if open.target.actor().is_none() {
                self.open.remove(&post);
            }
        }
    }

    /// Finishes a message. Returns its ask, if nobody has answered it.
    pub(super) fn done(&mut self, post: Seq) -> Option<Correlation> {
        self.passed_on(post);
        let open = self.open.remove(&post)?;
        let actor = open.target.actor()?;
        if let Some(mailbox) = self.mailboxes.get_mut(&actor) {
            mailbox.open -= 1;
        }
        self.places.push(post);
        match open.target {
            Target::Ask(_, correlation) if self.steps.does(Step::RefuseAtDone) => {
                self.asks.remove(&correlation).then_some(correlation)
            }
            _ => None,
        }
    }

    /// Takes the right to answer an ask, which exists once. Returns whether it was still there.
    pub(super) fn answer(&mut self, correlation: Correlation) -> bool {
        self.asks.remove(&correlation)
    }

    pub(super) fn waits_for_answer(&self, correlation: Correlation) -> bool {
        self.asks.contains(&correlation)
    }

    /// Returns whether there is something to give back.
    pub(super) fn gives_back(&self) -> bool {
        self.bytes > 0 || !self.places.is_empty()
    }

    /// Takes the frames that give places and bytes back.
    pub(super) fn give_back(&mut self) -> impl Iterator<Item = Body> + use<> {
        let places = std::mem::take(&mut self.places);
        let done: Vec<Body> =
            places.chunks(MAX_DONE).map(|posts| Body::Done { posts: posts.to_vec() }).collect();
        let bytes = Some(std::mem::take(&mut self.bytes)).filter(|bytes| *bytes > 0);
        done.into_iter().chain(bytes.map(|bytes| Body::Grant { bytes }))
    }

    /// Returns the landed pieces of the incomplete messages.
    pub(super) fn partial(&self) -> Vec<Partial> {
        let landed = |arriving: &Arriving| arriving.spans.iter().map(|span| span.landed.clone()).collect();
        let partial = |(post, arriving): (&Seq, &Arriving)| Partial { post: *post, spans: landed(arriving) };
        self.arriving.iter().map(partial).collect()
    }

    /// Ends the session. Returns the asks whose replies never become complete, the messages whose memory can
    /// go, and for each message that no mailbox has taken its actor.
    pub(super) fn end(&mut self) -> (Vec<Correlation>, Vec<Seq>, Vec<ActorId>) {
        self.behind.clear();
        self.asks.clear();
        self.mailboxes.clear();
        self.withdrawn.clear();
        let arriving = std::mem::take(&mut self.arriving);
        let replies = arriving.values().filter_map(|arriving| match arriving.post.target {
            Target::Reply(correlation) => Some(correlation),
            _ => None,
        });
        let waiting = self.open.values().filter(|open| !open.passed_on);
        let open = waiting.filter_map(|open| open.target.actor()).collect();
        (replies.collect(), arriving.keys().copied().collect(), open)
    }

    #[cfg(test)]
    pub(super) fn is_at_rest(&self) -> bool {
        let waiting = self.arriving.len() + self.behind.len() + self.open.len() + self.asks.len();
        let open = self.mailboxes.values().any(|mailbox| mailbox.open > 0 || !mailbox.queue.is_empty());
        waiting == 0 && !open && self.taken == 0 && self.places.is_empty() && self.bytes == 0
    }
}
