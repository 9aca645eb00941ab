//! A session with its connections: the part that the gateway uses, and the part that the loops of the
//! connections share.

mod nixl;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::clock::{self, Clock, Offset};
use super::lanes;
use super::lanes::nixl::NixlEnds;
use super::lanes::wire::Parts;
use super::logs::{Hearing, Sending};
use crate::frame::{Frame, Hello, Log, Piece};
use crate::ids::{Gateway, HostId, HostLife, Seq};
use crate::limits::{BEAT, MAX_BEATS, MAX_EVENTS, MAX_VIOLATIONS};
use crate::nixl::{Lane, NixlUse};
use crate::refused::{Kind, Refused};
use crate::session::{Claim, Ended, Event, Link, OnDevice, PostError, Posted, Session, To, Violation, Wakes};
use crate::verdict::{Agent, Head, Moment};

/// The source and destination of the bytes of pieces.
pub trait Memory: Send + Sync {
    /// Returns the bytes of a piece to send; `None` if its message was aborted. They are copied before the
    /// lease of the message ends, so this may wait for the work that makes them.
    fn read(&self, piece: Piece) -> BoxFuture<'_, Option<Bytes>>;

    /// Writes a piece to its place, in the parts in which it came. If its message was not reported as
    /// [`Event::Arriving`] yet, this waits for that. Code that uses the memory after this finds the bytes
    /// there (HOST-8).
    fn write(&self, piece: Piece, bytes: Parts) -> BoxFuture<'_, ()>;
}

/// The counter of a connection's beats. Its locks are taken under that of the peer, so code that holds one
/// must use no peer.
#[derive(Debug)]
pub enum Pulse {
    /// No supervision: beats only show that a connection works.
    Link(LinkPulse),
    /// This host is an agent, and the other side is its head.
    Agent(Arc<Mutex<Agent>>),
    /// This host is the head, and the other side is this agent.
    Head(Arc<Mutex<Head>>, HostId),
}

/// The beats between two agents.
#[derive(Debug, Default)]
pub struct LinkPulse {
    sent: AtomicU64,
    last: Mutex<Option<Moment>>,
    /// This host's record of its head.
    agent: Option<Arc<Mutex<Agent>>>,
}

impl LinkPulse {
    /// Makes the pulse for a host that this agent reaches beside its head: when the agent's time is over,
    /// nothing goes there either.
    pub fn of_agent(agent: Arc<Mutex<Agent>>) -> Self {
        LinkPulse { agent: Some(agent), ..LinkPulse::default() }
    }
}

impl Pulse {
    fn beat(&self, now: Moment) -> Option<u64> {
        match self {
            Pulse::Agent(agent) => agent.lock().beat(now),
            // The agent's beats show the head that the connection works, and the answers show it to the
            // agent.
            Pulse::Head(..) => None,
            Pulse::Link(pulse) => {
                let mut last = pulse.last.lock();
                let due = last.is_none_or(|last| now.since(last) >= BEAT);
                due.then(|| {
                    *last = Some(now);
                    pulse.sent.fetch_add(1, Relaxed) + 1
                })
            }
        }
    }

    /// Returns whether this host may send nothing any more, because the head may have given its actors to
    /// others (HOST-10). A machine that wakes may run this before any timer.
    fn is_over(&self, now: Moment) -> bool {
        match self {
            Pulse::Agent(agent) | Pulse::Link(LinkPulse { agent: Some(agent), .. }) => {
                agent.lock().is_over(now)
            }
            Pulse::Head(..) | Pulse::Link(_) => false,
        }
    }

    /// Returns whether a beat that came is to be answered.
    fn heard(&self, now: Moment) -> bool {
        match self {
            Pulse::Head(head, host) => head.lock().heard(*host, now).is_ok(),
            Pulse::Agent(_) | Pulse::Link(_) => true,
        }
    }

    /// Returns whether an answer belongs to a beat that was sent.
    fn answered(&self, number: u64, now: Moment) -> bool {
        match self {
            Pulse::Agent(agent) => agent.lock().answered(number, now).is_ok(),
            Pulse::Head(..) => false,
            Pulse::Link(pulse) => (1..=pulse.sent.load(Relaxed)).contains(&number),
        }
    }
}

/// An event of a peer for its gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants say it of their fields")]
pub enum Happened {
    /// An event of its session.
    Event(Event),
    /// On the head: records of an agent's log. `lost` more were lost since the last report.
    Log { lost: u64, log: Log },
    /// On an agent: the offset of the head's clock from this host's, as it is known now.
    Clock(Offset),
    /// The session is over: by the verdict, or because the other side violated the protocol too often.
    Ended(Ended),
    /// The session is over, because the other side has this gateway now. Its host goes on: the next session
    /// is with that gateway, and belongs to another peer.
    Renewed(Ended, Gateway),
}

/// The other host's gateway.
pub struct Peer {
    state: Mutex<State>,
    wakers: Wakers,
    pulse: Pulse,
    pub(super) memory: Arc<dyn Memory>,
    refused: Arc<Refused>,
    /// In the order in which spans are offered to them.
    lanes: &'static [&'static dyn lanes::Lane],
    /// The parts of the NIXL lane, if this host uses it.
    pub(super) nixl: Option<NixlEnds>,
    /// A handle on this peer itself.
    own: Weak<Peer>,
}

/// The waiting tasks. Each is woken by its own kind of change, so that a message does not wake the lanes.
#[derive(Default)]
struct Wakers {
    /// Tasks that send frames.
    frames: Notify,
    /// Lanes that send pieces.
    pieces: Notify,
    /// Lanes that hold a piece which overtook its message.
    claims: Notify,
    /// Tasks that send on a NIXL lane, or check its deadlines.
    says: Notify,
    /// The gateway.
    events: Notify,
    /// Tasks that read from the other side, while the gateway has too much to take.
    told: Notify,
    /// Tasks that wait for the end of a connection; with it all others are woken, too.
    links: Notify,
}

impl Wakers {
    fn all(&self) {
        let Wakers { frames, pieces, claims, says, events, told, links } = self;
        for waker in [frames, pieces, claims, says, events, told, links] {
            waker.notify_waiters();
        }
    }

    fn wake(&self, before: Wakes, now: Wakes) {
        if before.link != now.link {
            return self.all();
        }
        for (wakes, waker) in [
            (now.frames, &self.frames),
            (now.pieces, &self.pieces),
            (now.wants, &self.says),
            (now.received != before.received, &self.claims),
            (now.events, &self.events),
        ] {
            if wakes {
                waker.notify_waiters();
            }
        }
    }
}

struct State {
    session: Session,
    /// Beats to answer.
    answers: VecDeque<u64>,
    /// This host's log, and the other's.
    sending: Sending,
    hearing: Hearing,
    /// The head's clock, and its new offset that was not reported yet.
    clock: Clock,
    offset: Option<Offset>,
    violations: u32,
    /// The unfinished work of the ended session until it is reported, and the next gateway of the other side
    /// if that ended it.
    ended: Option<(Ended, Option<Gateway>)>,
    over: bool,
    nixl: Option<Lane>,
}

impl Peer {
    /// Makes a peer without a connection.
    pub fn new(session: Session, memory: Arc<dyn Memory>, pulse: Pulse, refused: Arc<Refused>) -> Arc<Self> {
        Self::with_nixl(session, memory, pulse, refused, None)
    }

    /// Makes a peer without a connection, with a [NIXL lane](crate::nixl) if the other side has one too.
    pub fn with_nixl(
        mut session: Session,
        memory: Arc<dyn Memory>,
        pulse: Pulse,
        refused: Arc<Refused>,
        nixl: Option<NixlUse>,
    ) -> Arc<Self> {
        let (lanes, bounds) = (lanes::all(nixl.is_some()), session.bounds());
        session.takes_window(lanes.iter().map(|lane| lane.window(bounds)).max().unwrap_or(bounds.window));
        let nixl = nixl.map(|using| NixlEnds::new(using, bounds));
        let state = State {
            session,
            answers: VecDeque::new(),
            sending: Sending::default(),
            hearing: Hearing::default(),
            clock: Clock::default(),
            offset: None,
            violations: 0,
            ended: None,
            over: false,
            nixl: nixl.as_ref().map(|ends| Lane::new(ends.sizes)),
        };
        let (state, wakers) = (Mutex::new(state), Wakers::default());
        Arc::new_cyclic(|own| Peer { state, wakers, pulse, memory, refused, lanes, nixl, own: own.clone() })
    }

    /// Returns this side and its gateway.
    pub(super) fn own(&self) -> (HostLife, Gateway) {
        self.state.lock().session.own()
    }

    /// Returns the lanes in the order in which spans are offered to them.
    pub(super) fn lanes(&self) -> &'static [&'static dyn lanes::Lane] {
        self.lanes
    }

    /// Takes a message, as [`Session::post`] does. If it has spans, `lend` gets its number before a lane can
    /// ask for their bytes, and offers those that lie in memory of a device. Each of them goes by the first
    /// lane that takes it, and the rest by gRPC.
    ///
    /// # Errors
    /// See [`Session::post`].
    pub fn post(
        &self,
        to: To,
        head: Bytes,
        spans: Vec<u64>,
        lend: impl FnOnce(Seq, &mut dyn FnMut(OnDevice)),
    ) -> Result<Posted, PostError> {
        self.with(|session| {
            let has_spans = !spans.is_empty();
            let posted = session.post(to, head, spans)?;
            if has_spans {
                lend(posted.post, &mut |span| {
                    let _taken = self.lanes.iter().any(|lane| lane.put(session, posted.post, &span));
                });
            }
            Ok(posted)
        })
    }

    /// Makes the peer for the session that follows this one, because the other side has another gateway. The
    /// record of its log continues. A NIXL lane begins anew, with arenas of its own: those of this peer were
    /// closed when its session ended.
    pub fn followed_by(
        &self,
        session: Session,
        memory: Arc<dyn Memory>,
        pulse: Pulse,
        nixl: Option<NixlUse>,
    ) -> Arc<Self> {
        let next = Self::with_nixl(session, memory, pulse, Arc::clone(&self.refused), nixl);
        next.state.lock().hearing = std::mem::take(&mut self.state.lock().hearing);
        next
    }

    /// Records that an earlier gateway of this host has received the other side's log before.
    pub fn resumes_log(&self) {
        self.state.lock().hearing = Hearing::resuming();
    }

    /// Calls `work` with the session, under its lock, so `work` must not block.
    pub fn with<T>(&self, work: impl FnOnce(&mut Session) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.session.wakes();
        let done = work(&mut state.session);
        let now = state.session.wakes();
        drop(state);
        self.wakers.wake(before, now);
        done
    }

    /// Returns the next event; `None` after the end was reported. One task may wait here.
    ///
    /// # Cancel safety
    /// Nothing is lost if the future is dropped.
    pub async fn next(&self) -> Option<Happened> {
        self.until(&self.wakers.events, |state| match state.session.next_event() {
            Some(event) => {
                if state.session.untold() + 1 == MAX_EVENTS {
                    self.wakers.told.notify_waiters();
                }
                Some(Some(Happened::Event(event)))
            }
            None => match state.hearing.next() {
                Some((lost, log)) => Some(Some(Happened::Log { lost, log })),
                None if state.offset.is_some() => Some(state.offset.take().map(Happened::Clock)),
                None if state.over => Some(state.ended.take().map(|(ended, next)| match next {
                    None => Happened::Ended(ended),
                    Some(gateway) => Happened::Renewed(ended, gateway),
                })),
                None => None,
            },
        })
        .await
    }

    /// Sends some of this host's log to the other side, which is its head. The log may be lost: it goes after
    /// everything else, and is dropped if too much waits.
    pub fn tell_log(&self, log: Log) {
        self.state.lock().sending.put(log);
        self.wakers.frames.notify_waiters();
    }

    /// Waits until the gateway has taken most of the events. The other side's frames are not read meanwhile,
    /// so a host that sends much waits, and this host's memory does not fill (HOST-9).
    pub(super) async fn until_told(&self) {
        let told = |state: &mut State| (state.session.untold() < MAX_EVENTS || state.over).then_some(());
        self.until(&self.wakers.told, told).await;
    }

    /// Ends the session by the verdict on the other host, which is final.
    pub fn end(&self) {
        self.nixl(|lane, session, now| lane.end(session, now));
        self.state.lock().end();
        self.wakers.all();
    }

    /// Returns whether the session is over.
    pub fn is_over(&self) -> bool {
        self.state.lock().over
    }

    /// Returns the connection in force.
    pub fn link(&self) -> Option<Link> {
        self.state.lock().session.link()
    }

    /// Waits until this connection is not in force any more.
    pub async fn cut_of(&self, link: Link) {
        let over = |state: &mut State| (state.session.link() != Some(link)).then_some(());
        self.until(&self.wakers.links, over).await;
    }

    async fn until<T>(&self, waker: &Notify, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(waker.notified());
            // Registered before the look, so that no change is missed.
            changed.as_mut().enable();
            if let Some(found) = look(&mut self.state.lock()) {
                return found;
            }
            changed.await;
        }
    }

    pub(super) fn dial(&self) -> Hello {
        self.with(Session::dial)
    }

    pub(super) fn accept(&self, hello: &Hello) -> Result<(Link, Hello), Violation> {
        self.or_renew(|session| session.accept(hello))
    }

    /// Returns this host's answer to a greeting that was meant for an earlier gateway.
    pub(super) fn introduce(&self, hello: &Hello) -> Hello {
        self.with(|session| session.introduce(hello))
    }

    /// Returns the greeting for a lane of the connection in force.
    pub(super) fn lane_hello(&self) -> Hello {
        self.with(|session| session.lane_hello())
    }

    /// Handles a greeting. If the other side has another gateway, this session is over.
    fn or_renew<T>(
        &self,
        greeting: impl FnOnce(&mut Session) -> Result<T, Violation>,
    ) -> Result<T, Violation> {
        let result = self.with(greeting);
        if let Err(Violation::NextGateway { found, .. }) = result {
            let mut state = self.state.lock();
            if !state.over {
                state.over = true;
                state.ended = Some((state.session.renew(), Some(found)));
            }
            drop(state);
            // HOST-11: the process of the old gateway has ended, or there would be no next one. So its agents
            // have ended, too.
            self.nixl(|lane, session, now| lane.end(session, now));
            self.wakers.all();
        }
        result
    }

    pub(super) fn answered(&self, hello: &Hello) -> Result<Link, Violation> {
        self.or_renew(|session| session.answered(hello))
    }

    /// Records that a connection broke.
    pub(super) fn cut(&self, link: Link) {
        self.with(|session| session.cut(link));
    }

    /// Handles a violation of the protocol by the other side.
    pub(super) fn violated(&self, link: Link, kind: Kind, from: SocketAddr, why: &dyn std::fmt::Display) {
        self.refused.note(kind, from, why);
        let mut state = self.state.lock();
        state.violations += 1;
        state.session.cut(link);
        let is_over = state.violations >= MAX_VIOLATIONS && !state.over;
        if is_over {
            let peer = state.session.peer();
            tracing::error!(target: "tensorpost::hosts", %from, "{peer} is given up: {MAX_VIOLATIONS} times it said what it must not");
            state.end();
        }
        drop(state);
        if is_over {
            self.nixl(|lane, session, now| lane.end(session, now));
        }
        self.wakers.all();
    }

    /// Returns the next frame to send over a connection; `None` once that is over. Waits while this host may
    /// send nothing.
    pub(super) async fn next_frame(&self, link: Link) -> Option<Frame> {
        loop {
            let look = self.until(&self.wakers.frames, |state| {
                if state.session.link() != Some(link) {
                    return Some(None);
                }
                let now = Moment::now();
                if self.pulse.is_over(now) {
                    return None;
                }
                let answer =
                    || state.answers.pop_front().map(|number| Frame::Answer { number, at: clock::now() });
                let beat = self.pulse.beat(now).map(|number| {
                    state.clock.beat(number, clock::now());
                    Frame::Beat { number }
                });
                let frame = beat.or_else(answer).or_else(|| state.sending.due(now).map(Frame::Log));
                let frame = frame.or_else(|| state.session.next_frame(link));
                frame.or_else(|| state.sending.next(now).map(Frame::Log)).map(Some)
            });
            // A beat becomes due without any change.
            if let Ok(found) = tokio::time::timeout(BEAT / 4, look).await {
                return found;
            }
        }
    }

    /// Returns the next piece to send over a connection, as [`next_frame`](Self::next_frame) does.
    pub(super) async fn next_piece(&self, link: Link) -> Option<Piece> {
        self.until(&self.wakers.pieces, |state| {
            if state.session.link() != Some(link) {
                return Some(None);
            }
            if self.pulse.is_over(Moment::now()) {
                return None;
            }
            state.session.next_piece(link).map(Some)
        })
        .await
    }

    /// Returns whether this host may send nothing any more (HOST-10).
    pub(super) fn may_say_nothing(&self) -> bool {
        self.pulse.is_over(Moment::now())
    }

    /// Takes a frame that came over a connection.
    pub(super) fn take(&self, link: Link, frame: Frame) -> Result<(), String> {
        let lie = |violation: Violation| violation.to_string();
        match frame {
            Frame::Numbered { seq, body } => self.with(|session| session.take(link, seq, body)).map_err(lie),
            Frame::Ack { received } => self.with(|session| session.acked(link, received)).map_err(lie),
            Frame::Beat { number } => {
                // The pulse decides first: after the verdict on a host its beats get no answer (HOST-10).
                if self.pulse.heard(Moment::now()) {
                    let mut state = self.state.lock();
                    state.answers.push_back(number);
                    if state.answers.len() > MAX_BEATS {
                        state.answers.pop_front();
                    }
                    drop(state);
                    self.wakers.frames.notify_waiters();
                }
                Ok(())
            }
            Frame::Answer { number, at } if self.pulse.answered(number, Moment::now()) => {
                if matches!(self.pulse, Pulse::Agent(_)) {
                    let mut state = self.state.lock();
                    if let Some(offset) = state.clock.answered(number, at, clock::now()) {
                        state.offset = Some(offset);
                    }
                    drop(state);
                    self.wakers.events.notify_waiters();
                }
                Ok(())
            }
            Frame::Answer { number, .. } => Err(format!("it answers beat {number}, which was not sent")),
            Frame::Log(log) if matches!(self.pulse, Pulse::Head(..)) => {
                self.state.lock().hearing.take(log, Moment::now())?;
                self.wakers.events.notify_waiters();
                Ok(())
            }
            Frame::Log(_) => Err("it tells its log to a host that is not its head".to_owned()),
            Frame::Hello(_) => Err("it greets a second time".to_owned()),
        }
    }

    /// Returns whether a piece has to be written; waits for its message.
    pub(super) async fn claim(&self, link: Link, piece: &Piece) -> Result<bool, Violation> {
        self.until(&self.wakers.claims, |state| match state.session.claim(link, piece) {
            Ok(Claim::Wait) if state.session.link() == Some(link) => None,
            Ok(claim) => Some(Ok(claim == Claim::Take)),
            Err(violation) => Some(Err(violation)),
        })
        .await
    }
}

impl State {
    fn end(&mut self) {
        if !self.over {
            self.over = true;
            self.ended = Some((self.session.end(), None));
        }
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Peer").field(&self.state.lock().session.peer()).finish()
    }
}
