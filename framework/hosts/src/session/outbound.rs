//! What this side has on its way: credits of mailboxes, the window, pieces, asks.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::steps::{Step, Steps};
use super::{Bounds, Event, PostError, Violation};
use crate::frame::{Bits, Piece, Post, Resume, Target};
use crate::ids::{ActorId, Correlation, HostId, Seq};
use crate::limits::{MAX_ARRIVING, MAX_HEAD, MAX_MAILBOXES, MAX_SPAN_BYTES, MAX_SPANS, POST_BASE};

#[derive(Debug)]
pub(super) struct Outbound {
    steps: Steps,
    bounds: Bounds,
    peer: HostId,
    mailboxes: HashMap<ActorId, Mailbox>,
    /// Messages that have a place in a mailbox, and in whose.
    places: HashMap<Seq, ActorId>,
    /// Bytes of the window that are taken.
    taken: u64,
    /// Messages with spans whose end the other side has not told.
    under_way: BTreeMap<Seq, UnderWay>,
    /// Of them, those with pieces to send.
    to_send: VecDeque<Seq>,
    asks: HashMap<Correlation, ActorId>,
    last_ask: Correlation,
    waiting_for_window: bool,
}

#[derive(Debug, Default)]
struct Mailbox {
    capacity: u32,
    /// Messages that were sent to it and are not done with.
    open: u32,
    waited_for: bool,
}

#[derive(Debug)]
struct UnderWay {
    actor: Option<ActorId>,
    charge: u64,
    spans: Vec<Span>,
    /// Spans before this one have no piece left to send.
    at: usize,
    /// Pieces that were never sent, over any connection.
    fresh: u64,
    aborted: bool,
}

#[derive(Debug)]
struct Span {
    bytes: u64,
    /// Pieces that are there, or were sent over the present connection.
    sent: Bits,
    /// None before this one is left to send.
    next: u64,
    /// Pieces that were sent over any.
    ever: Bits,
}

/// What a message counts of the window.
pub(super) fn charge(bounds: Bounds, post: &Post) -> u64 {
    let spans: u64 = post.spans.iter().sum();
    // A message that is larger than the window takes all of it, and so goes alone.
    (POST_BASE + post.head.len() as u64 + 8 * post.spans.len() as u64 + spans).min(bounds.window)
}

impl Outbound {
    pub(super) fn new(steps: Steps, bounds: Bounds, peer: HostId) -> Self {
        Outbound {
            steps,
            bounds,
            peer,
            mailboxes: HashMap::new(),
            places: HashMap::new(),
            taken: 0,
            under_way: BTreeMap::new(),
            to_send: VecDeque::new(),
            asks: HashMap::new(),
            last_ask: 0,
            waiting_for_window: false,
        }
    }

    /// The other side offers a mailbox, or takes the offer back.
    pub(super) fn served(&mut self, actor: ActorId, capacity: u32) -> Result<Event, Violation> {
        if !actor.may_live_on(self.peer) {
            return Err(Violation::OtherHost { actor, own: self.peer });
        }
        // A mailbox that nothing is on its way to is forgotten with its offer.
        let idle = self.mailboxes.get(&actor).is_none_or(|mailbox| mailbox.open == 0);
        if capacity == 0 && idle {
            self.mailboxes.remove(&actor);
        } else if self.mailboxes.len() >= MAX_MAILBOXES && !self.mailboxes.contains_key(&actor) {
            return Err(Violation::TooMany { what: "mailboxes", most: MAX_MAILBOXES });
        } else {
            self.mailboxes.entry(actor).or_default().capacity = capacity;
        }
        Ok(Event::Served { actor, capacity })
    }

    /// Number for an ask that is to be made.
    pub(super) fn next_ask(&mut self) -> Correlation {
        self.last_ask += 1;
        self.last_ask
    }

    /// Takes a place and room for a message, all or nothing. `seq` is the number that it will have; `full`: too much was not
    /// acknowledged.
    pub(super) fn claim(&mut self, seq: Seq, post: &Post, full: bool) -> Result<(), PostError> {
        let large = |what, found: usize, most: usize| match found > most {
            true => Err(PostError::TooLarge { what, found: found as u64, most: most as u64 }),
            false => Ok(()),
        };
        large("bytes of body and layouts", post.head.len(), MAX_HEAD)?;
        large("tensors", post.spans.len(), MAX_SPANS)?;
        let total = post.spans.iter().fold(0_u64, |total, bytes| total.saturating_add(*bytes));
        if total > MAX_SPAN_BYTES {
            let what = "bytes of tensors";
            return Err(PostError::TooLarge { what, found: total, most: MAX_SPAN_BYTES });
        }
        if let Some(actor) = post.target.actor() {
            let served = self.mailboxes.get_mut(&actor).filter(|mailbox| mailbox.capacity > 0);
            let Some(mailbox) = served else { return Err(PostError::NotServed { actor, host: self.peer }) };
            if mailbox.open >= mailbox.capacity && self.steps.does(Step::Credit) {
                mailbox.waited_for = true;
                return Err(PostError::Full { actor });
            }
        }
        let charge = charge(self.bounds, post);
        let no_room = self.taken + charge > self.bounds.window && self.steps.does(Step::Window);
        if full || no_room || self.under_way.len() >= MAX_ARRIVING {
            self.waiting_for_window = true;
            return Err(PostError::NoWindow { host: self.peer, window: self.bounds.window });
        }
        self.taken += charge;
        if let Some(actor) = post.target.actor()
            && let Some(mailbox) = self.mailboxes.get_mut(&actor)
        {
            mailbox.open += 1;
            self.places.insert(seq, actor);
        }
        if let Target::Ask(actor, correlation) = post.target {
            self.asks.insert(correlation, actor);
        }
        if !post.spans.is_empty() {
            let pieces = |bytes: &u64| bytes.div_ceil(self.bounds.piece);
            let span = |bytes: &u64| {
                let none = Bits::new(pieces(bytes));
                Span { bytes: *bytes, sent: none.clone(), next: 0, ever: none }
            };
            let fresh = post.spans.iter().map(pieces).sum();
            let spans = post.spans.iter().map(span).collect();
            let actor = post.target.actor();
            self.under_way.insert(seq, UnderWay { actor, charge, spans, at: 0, fresh, aborted: false });
            self.to_send.push_back(seq);
        }
        Ok(())
    }

    /// A new connection: what has to be sent of the messages that are under way.
    pub(super) fn resume(&mut self, resume: &Resume) -> Result<(), Violation> {
        for partial in &resume.partial {
            let known = self.under_way.get(&partial.post);
            let fits = |under_way: &UnderWay| {
                let pairs = || under_way.spans.iter().zip(&partial.spans);
                under_way.spans.len() == partial.spans.len()
                    && pairs().all(|(span, there)| span.sent.len() == there.len())
            };
            if !known.is_some_and(fits) {
                return Err(Violation::NoSuchPost { post: partial.post });
            }
        }
        let mut partial: HashMap<Seq, &Vec<Bits>> = HashMap::new();
        partial.extend(resume.partial.iter().map(|partial| (partial.post, &partial.spans)));
        self.to_send.clear();
        for (seq, under_way) in &mut self.under_way {
            // What it has received and does not name is whole there, and its `Landed` is on its way.
            let whole = *seq <= resume.received && !partial.contains_key(seq);
            if under_way.aborted || whole {
                continue;
            }
            if self.steps.does(Step::PiecesAgain) {
                under_way.at = 0;
                for (index, span) in under_way.spans.iter_mut().enumerate() {
                    let none = || Bits::new(span.sent.len());
                    let there = partial.get(seq).filter(|_| self.steps.does(Step::SkipLanded));
                    span.sent = there.map_or_else(none, |spans| spans[index].clone());
                    span.next = 0;
                }
            }
            self.to_send.push_back(*seq);
        }
        Ok(())
    }

    /// The next piece to send; its bytes are the caller's to get. Of a message whose last is taken here it may say so.
    pub(super) fn next_piece(&mut self) -> Option<(Piece, Option<Event>)> {
        while let Some(&post) = self.to_send.front() {
            if let Some(piece) =
                self.under_way.get_mut(&post).and_then(|under_way| under_way.next(self.bounds.piece, post))
            {
                let last = self.under_way.get(&post).is_some_and(|under_way| under_way.fresh == 0);
                let early = last && !self.steps.does(Step::LeaseUntilLanded);
                return Some((piece, early.then_some(Event::Released { post, whole: true })));
            }
            self.to_send.pop_front();
        }
        None
    }

    /// Whether a piece may be there to send.
    pub(super) fn has_pieces(&self) -> bool {
        !self.to_send.is_empty()
    }

    /// Nothing more of a message is sent. Whether the other side has to be told: it may have all.
    pub(super) fn abort(&mut self, post: Seq) -> bool {
        let Some(under_way) = self.under_way.get_mut(&post) else { return false };
        self.to_send.retain(|other| *other != post);
        !std::mem::replace(&mut under_way.aborted, true)
    }

    /// The other side needs the memory of a message no more (HOST-5).
    pub(super) fn landed(&mut self, post: Seq, whole: bool) -> Result<Vec<Event>, Violation> {
        let Some(under_way) = self.under_way.get(&post) else { return Err(Violation::NoSuchPost { post }) };
        if (whole && under_way.fresh > 0) || (!whole && !under_way.aborted) {
            return Err(Violation::WrongEnd { post });
        }
        let (actor, charge) = (under_way.actor, under_way.charge);
        let has_place = actor.is_none() || self.places.contains_key(&post);
        if !whole && (!has_place || self.taken < charge) {
            // It has given back what this one takes.
            return Err(Violation::WrongEnd { post });
        }
        self.under_way.remove(&post);
        let mut events = Vec::new();
        if self.steps.does(Step::LeaseUntilLanded) {
            events.push(Event::Released { post, whole });
        }
        if !whole {
            // It takes no place any more, in no mailbox and not in the window.
            if actor.is_some() {
                self.done(&[post], &mut events)?;
            }
            events.extend(self.granted(charge)?);
        } else {
            events.extend(self.window_event());
        }
        Ok(events)
    }

    /// Messages are done with. The events, where somebody waits for the places.
    pub(super) fn done(&mut self, posts: &[Seq], events: &mut Vec<Event>) -> Result<(), Violation> {
        // All are looked at before anything changes.
        let mut known = HashSet::with_capacity(posts.len());
        if let Some(post) = posts.iter().find(|post| !self.places.contains_key(post) || !known.insert(**post))
        {
            return Err(Violation::NoSuchPost { post: *post });
        }
        for post in posts {
            let Some(actor) = self.places.remove(post) else { continue };
            events.push(Event::Done { post: *post });
            let Some(mailbox) = self.mailboxes.get_mut(&actor) else { continue };
            mailbox.open -= 1;
            if mailbox.open == 0 && mailbox.capacity == 0 {
                self.mailboxes.remove(&actor);
            } else if std::mem::take(&mut mailbox.waited_for) {
                events.push(Event::Room { actor });
            }
        }
        Ok(())
    }

    /// Bytes of the window are free again. The event, if somebody waits for them.
    pub(super) fn granted(&mut self, bytes: u64) -> Result<Option<Event>, Violation> {
        if bytes > self.taken {
            return Err(Violation::GivesTooMuch { found: bytes, most: self.taken });
        }
        self.taken -= bytes;
        Ok(self.window_event())
    }

    pub(super) fn window_event(&mut self) -> Option<Event> {
        std::mem::take(&mut self.waiting_for_window).then_some(Event::Window)
    }

    /// Whether an ask waits for its answer.
    pub(super) fn asks(&self, correlation: Correlation) -> Result<(), Violation> {
        self.asks.get(&correlation).map(drop).ok_or(Violation::NoSuchAsk { correlation })
    }

    /// It has it.
    pub(super) fn answered(&mut self, correlation: Correlation) {
        self.asks.remove(&correlation);
    }

    /// The verdict: who waits for an answer, and whose memory was kept.
    pub(super) fn end(&mut self) -> (Vec<(Correlation, ActorId)>, Vec<Seq>) {
        self.to_send.clear();
        self.mailboxes.clear();
        self.places.clear();
        let mut asks: Vec<_> = self.asks.drain().collect();
        asks.sort_unstable();
        (asks, std::mem::take(&mut self.under_way).into_keys().collect())
    }

    #[cfg(test)]
    pub(super) fn is_at_rest(&self) -> bool {
        let open = self.mailboxes.values().any(|mailbox| mailbox.open > 0);
        !open
            && self.places.is_empty()
            && self.taken == 0
            && self.under_way.is_empty()
            && self.asks.is_empty()
    }
}

impl UnderWay {
    fn next(&mut self, piece: u64, post: Seq) -> Option<Piece> {
        while let Some(span) = self.spans.get_mut(self.at) {
            if let Some(index) = span.sent.first_unset(span.next) {
                span.sent.set(index);
                span.next = index + 1;
                self.fresh -= u64::from(span.ever.set(index));
                let offset = index * piece;
                let bytes = (span.bytes - offset).min(piece) as u32;
                return Some(Piece { post, span: self.at as u16, offset, bytes });
            }
            self.at += 1;
        }
        None
    }
}
