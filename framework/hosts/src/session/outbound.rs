//! Messages to the other side: credits of mailboxes, the window, pieces, asks.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::steps::{Step, Steps};
use super::{Bounds, Event, PostError, Violation, Want};
use crate::frame::{Bits, Partial, Piece, Post, Resume, Run, Target};
use crate::ids::{ActorId, Correlation, HostId, Seq};
use crate::limits::{
    MAX_ARRIVING, MAX_HEAD, MAX_MAILBOXES, MAX_PARTIAL_BYTES, MAX_SPAN_BYTES, MAX_SPANS, POST_BASE,
};

#[derive(Debug)]
pub(super) struct Outbound {
    steps: Steps,
    bounds: Bounds,
    peer: HostId,
    mailboxes: HashMap<ActorId, Mailbox>,
    /// Messages that have a place in a mailbox, and its actor.
    places: HashMap<Seq, ActorId>,
    /// Bytes of the window that are taken.
    taken: u64,
    /// Messages with spans whose end the other side has not reported.
    under_way: BTreeMap<Seq, UnderWay>,
    /// Bytes of a [`Resume`] in which all of them are incomplete.
    partial: usize,
    /// Those that have pieces to send.
    to_send: VecDeque<Seq>,
    asks: HashMap<Correlation, ActorId>,
    last_ask: Correlation,
    waiting_for_window: bool,
    /// Whether the connection has a bulk lane.
    has_bulk: bool,
    /// Whether the bulk lane carries spans, so that this side has the wide window.
    is_wide: bool,
    /// Devices whose spans do not go over it.
    stopped: Vec<u8>,
    /// Spans that are to go over it, and of which the other side was not told yet.
    wants: VecDeque<Want>,
}

#[derive(Debug, Default)]
struct Mailbox {
    capacity: u32,
    /// Messages that were sent to it and are not done.
    open: u32,
    waited_for: bool,
}

#[derive(Debug)]
struct UnderWay {
    actor: Option<ActorId>,
    charge: u64,
    /// Bytes that it takes in a [`Resume`].
    partial: usize,
    spans: Vec<Span>,
    /// Spans before this index have no piece left to send.
    at: usize,
    /// The number of pieces that were never sent, over any connection.
    fresh: u64,
    aborted: bool,
}

#[derive(Debug)]
struct Span {
    bytes: u64,
    /// Pieces that have landed, or were sent over the present connection.
    sent: Bits,
    /// No piece before this one is left to send.
    next: u64,
    /// Pieces that were sent over any connection.
    ever: Bits,
    /// Set if it goes over the bulk lane, in runs; otherwise it goes piece by piece.
    bulk: Option<Bulk>,
}

#[derive(Debug)]
struct Bulk {
    device: u8,
    /// Bytes for which the other side has made room.
    taken: u64,
}

/// Returns the charge of a message in the window.
pub(super) fn charge(bounds: Bounds, post: &Post) -> u64 {
    let spans: u64 = post.spans.iter().sum();
    // Both sides compute the same charge, whatever window each has at the time.
    (POST_BASE + post.head.len() as u64 + 8 * post.spans.len() as u64 + spans).min(bounds.wide)
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
            partial: 0,
            to_send: VecDeque::new(),
            asks: HashMap::new(),
            last_ask: 0,
            waiting_for_window: false,
            has_bulk: false,
            is_wide: false,
            stopped: Vec::new(),
            wants: VecDeque::new(),
        }
    }

    /// Handles the other side's offer of a mailbox, or its withdrawal.
    pub(super) fn served(&mut self, actor: ActorId, capacity: u32) -> Result<Event, Violation> {
        if !actor.may_live_on(self.peer) {
            return Err(Violation::OtherHost { actor, own: self.peer });
        }
        // A mailbox with no message on its way is forgotten with its offer.
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

    /// Returns the number of the next ask.
    pub(super) fn next_ask(&mut self) -> Correlation {
        self.last_ask += 1;
        self.last_ask
    }

    /// Takes a place and room for a message, all or nothing. `seq` is the number that it will have. `full`
    /// says that too much was not acknowledged.
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
        let window = self.window();
        // A message that is larger than the window goes alone.
        let no_room = self.taken > 0 && self.taken + charge > window && self.steps.does(Step::Window);
        let pieces = |bytes: &u64| bytes.div_ceil(self.bounds.piece);
        let partial = Partial::bytes_of(post.spans.iter().map(pieces));
        // HOST-4: after a reconnect the other side lists the landed pieces of all of them in one frame.
        let has_spans = !post.spans.is_empty();
        let no_list = has_spans && self.partial > 0 && self.partial + partial > MAX_PARTIAL_BYTES;
        if full || no_room || no_list || self.under_way.len() >= MAX_ARRIVING {
            self.waiting_for_window = true;
            return Err(PostError::NoWindow { host: self.peer, window });
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
        if has_spans {
            let span = |bytes: &u64| {
                let none = Bits::new(pieces(bytes));
                Span { bytes: *bytes, sent: none.clone(), next: 0, ever: none, bulk: None }
            };
            let fresh = post.spans.iter().map(pieces).sum();
            let spans = post.spans.iter().map(span).collect();
            let actor = post.target.actor();
            self.partial += partial;
            self.under_way
                .insert(seq, UnderWay { actor, charge, partial, spans, at: 0, fresh, aborted: false });
            self.to_send.push_back(seq);
        }
        Ok(())
    }

    /// Continues over a new connection: finds out which pieces have to be sent again.
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
        // A bulk lane begins anew with its connection, so everything under way goes as pieces.
        (self.has_bulk, self.is_wide) = (false, false);
        self.wants.clear();
        for (seq, under_way) in &mut self.under_way {
            under_way.spans.iter_mut().for_each(|span| span.bulk = None);
            // A message that the other side has received and does not list is complete there, and its
            // `Landed` is on its way.
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

    /// Returns the next piece to send, whose bytes the caller fetches. With the last piece of a message it
    /// may return an event (a step that the model leaves out).
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

    /// Returns whether there may be pieces to send.
    pub(super) fn has_pieces(&self) -> bool {
        !self.to_send.is_empty()
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Sets whether the connection has a bulk lane.
    pub(super) fn bulk(&mut self, there: bool) {
        (self.has_bulk, self.is_wide) = (there, false);
        self.stopped.clear();
        if !there {
            self.narrow_all(None);
        }
    }

    /// Returns the bytes that may be on their way.
    pub(super) fn window(&self) -> u64 {
        if self.is_wide { self.bounds.wide } else { self.bounds.window }
    }

    /// Sets whether the bulk lane of this connection carries spans. Returns an event if there is more room
    /// now.
    pub(super) fn widen_window(&mut self, carries: bool) -> Option<Event> {
        let is_wide = carries && self.has_bulk;
        let grows = is_wide && !self.is_wide;
        self.is_wide = is_wide;
        if grows { self.window_event() } else { None }
    }

    /// Has a span go over the bulk lane, from this device. Returns whether there is one.
    pub(super) fn widen(&mut self, post: Seq, span: u16, device: u8) -> bool {
        let goes = self.has_bulk && !self.stopped.contains(&device);
        let under_way = self.under_way.get_mut(&post).filter(|_| goes);
        let Some(found) = under_way.and_then(|under_way| under_way.spans.get_mut(usize::from(span))) else {
            return false;
        };
        // A span of which some pieces have been sent goes as pieces to its end.
        if found.next > 0 || found.bulk.is_some() {
            return false;
        }
        found.bulk = Some(Bulk { device, taken: 0 });
        self.wants.push_back(Want { post, span, device });
        true
    }

    pub(super) fn has_wants(&self) -> bool {
        !self.wants.is_empty()
    }

    /// Returns the next span to ask for room for.
    pub(super) fn next_want(&mut self) -> Option<Want> {
        while let Some(want) = self.wants.pop_front() {
            // The span may go as pieces again.
            let wants = |under_way: &UnderWay| under_way.bulk(want.span).is_some() && !under_way.aborted;
            if self.under_way.get(&want.post).is_some_and(wants) {
                return Some(want);
            }
        }
        None
    }

    /// Handles the other side's room for a run of a span from that device. Returns whether the run goes
    /// there: its message may be aborted, or go as pieces.
    pub(super) fn take_run(&mut self, run: &Run, device: u8) -> Result<bool, Violation> {
        let (piece, most) = (self.bounds.piece, self.bounds.run);
        let Some(under_way) = self.under_way.get_mut(&run.post).filter(|under_way| !under_way.aborted) else {
            return Ok(false);
        };
        let none =
            Violation::NoSuchRun { post: run.post, span: run.span, offset: run.offset, bytes: run.bytes };
        let Some(span) = under_way.spans.get_mut(usize::from(run.span)) else { return Err(none) };
        let Some(bulk) = &mut span.bulk else { return Ok(false) };
        let next = (span.bytes - bulk.taken).min(most);
        if bulk.device != device || run.offset != bulk.taken || run.bytes != next || next == 0 {
            return Err(none);
        }
        bulk.taken += run.bytes;
        for index in run.pieces(piece) {
            span.sent.set(index);
            under_way.fresh -= u64::from(span.ever.set(index));
        }
        Ok(true)
    }

    /// Takes back a run that did not arrive. Its pieces are sent, and so is the rest of its span.
    pub(super) fn unsend(&mut self, run: &Run) {
        let piece = self.bounds.piece;
        let under_way = self.under_way.get_mut(&run.post);
        let Some(span) = under_way.and_then(|under_way| under_way.spans.get_mut(usize::from(run.span)))
        else {
            return;
        };
        run.pieces(piece).for_each(|index| span.sent.unset(index));
        self.narrow(run.post, run.span);
    }

    /// Sends the rest of a span as pieces. Returns the device from which it was to go.
    pub(super) fn narrow(&mut self, post: Seq, span: u16) -> Option<u8> {
        let under_way = self.under_way.get_mut(&post)?;
        let found = under_way.spans.get_mut(usize::from(span))?;
        let bulk = found.bulk.take();
        found.next = 0;
        under_way.at = under_way.at.min(usize::from(span));
        if !under_way.aborted && !self.to_send.contains(&post) {
            self.to_send.push_back(post);
        }
        bulk.map(|bulk| bulk.device)
    }

    /// Stops using the bulk lane of this connection for spans from this device.
    pub(super) fn widen_no_more(&mut self, device: u8) {
        self.narrow_all(Some(device));
        self.stopped.push(device);
    }

    /// Sends all spans from this device, or from any, as pieces.
    pub(super) fn narrow_all(&mut self, device: Option<u8>) {
        let mut spans = Vec::new();
        for (post, under_way) in &self.under_way {
            for (index, span) in under_way.spans.iter().enumerate() {
                let is_bulk = |bulk: &Bulk| device.is_none_or(|device| device == bulk.device);
                if span.bulk.as_ref().is_some_and(is_bulk) {
                    spans.push((*post, index as u16)); // there are MAX_SPANS at most
                }
            }
        }
        for (post, span) in spans {
            self.narrow(post, span);
        }
    }

    /// Stops sending a message. Returns whether the other side has to be told.
    pub(super) fn abort(&mut self, post: Seq) -> bool {
        let Some(under_way) = self.under_way.get_mut(&post) else { return false };
        self.to_send.retain(|other| *other != post);
        !std::mem::replace(&mut under_way.aborted, true)
    }

    /// Ends the loan of a message's memory, which the other side does not need any more (HOST-5).
    pub(super) fn landed(&mut self, post: Seq, whole: bool) -> Result<Vec<Event>, Violation> {
        let Some(under_way) = self.under_way.get(&post) else { return Err(Violation::NoSuchPost { post }) };
        if (whole && under_way.fresh > 0) || (!whole && !under_way.aborted) {
            return Err(Violation::WrongEnd { post });
        }
        let (actor, charge) = (under_way.actor, under_way.charge);
        let has_place = actor.is_none() || self.places.contains_key(&post);
        if !whole && (!has_place || self.taken < charge) {
            // The other side has already given back what this message takes.
            return Err(Violation::WrongEnd { post });
        }
        self.partial -= under_way.partial;
        self.under_way.remove(&post);
        let mut events = Vec::new();
        if self.steps.does(Step::LeaseUntilLanded) {
            events.push(Event::Released { post, whole });
        }
        if !whole {
            // An aborted message takes no place any more, in no mailbox and not in the window.
            if actor.is_some() {
                self.done(&[post], &mut events)?;
            }
            events.extend(self.granted(charge)?);
        } else {
            events.extend(self.window_event());
        }
        Ok(events)
    }

    /// Finishes messages. Adds events for senders that wait for the places.
    pub(super) fn done(&mut self, posts: &[Seq], events: &mut Vec<Event>) -> Result<(), Violation> {
        // All are checked before anything changes.
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

    /// Frees bytes of the window. Returns an event if somebody waits for them.
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

    /// Checks that an ask waits for its answer.
    pub(super) fn asks(&self, correlation: Correlation) -> Result<(), Violation> {
        self.asks.get(&correlation).map(drop).ok_or(Violation::NoSuchAsk { correlation })
    }

    /// Records that the ask has its answer.
    pub(super) fn answered(&mut self, correlation: Correlation) {
        self.asks.remove(&correlation);
    }

    /// Ends the session. Returns the asks without an answer, and the messages whose memory was kept.
    pub(super) fn end(&mut self) -> (Vec<(Correlation, ActorId)>, Vec<Seq>) {
        self.to_send.clear();
        self.wants.clear();
        self.mailboxes.clear();
        self.places.clear();
        let mut asks: Vec<_> = self.asks.drain().collect();
        asks.sort_unstable();
        self.partial = 0;
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
    fn bulk(&self, span: u16) -> Option<&Bulk> {
        self.spans.get(usize::from(span))?.bulk.as_ref()
    }

    fn next(&mut self, piece: u64, post: Seq) -> Option<Piece> {
        while let Some(span) = self.spans.get_mut(self.at) {
            if span.bulk.is_none()
                && let Some(index) = span.sent.first_unset(span.next)
            {
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
