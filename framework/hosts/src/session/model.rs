//! Simulates two sides of a session, and connections between them that break at any moment, are half open,
//! and overtake each other.
//!
//! Each seed draws a run of some hundred steps: messages with and without spans, asks, replies, aborts,
//! pieces over two lanes, acknowledgements, cuts, and gateways of either side that die, of which the next one
//! knows nothing. Then the connection stays up, and everything under way comes to its end. The invariants
//! are:
//!
//! * messages to a mailbox go on in the order in which they were taken, each once, and complete (HOST-3,
//!   HOST-8);
//! * memory is read only while its lease is held (HOST-5), and written only before its message goes on;
//! * a mailbox and the window never hold more than they may (HOST-9), and nobody violates the protocol;
//! * pieces that the other side has acknowledged are not sent to it again;
//! * at the end nothing waits: every message went on or was aborted, every ask has one answer, every lease is
//!   back (HOST-4);
//! * the death of a gateway loses its own state and the messages on their way to it, and nothing else; later
//!   messages keep their order.
//!
//! Then each step is left out in turn, and some seed must break an invariant.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::*;
use crate::frame::Bits;
use crate::ids::{Gateway, HostId, Life};
use crate::testing::Random;

const BOUNDS: Bounds = Bounds { window: 1200, wide: 1200, piece: 16, run: 64 };
const CAPACITY: u32 = 3;
const SEEDS: u64 = 1500;

fn who(side: usize) -> HostLife {
    HostLife { host: HostId(side as u16), life: Life(70 + side as u64) }
}

fn actor(side: usize, number: u64) -> ActorId {
    ActorId::new(who(side).host, number).expect("a small number")
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    control: VecDeque<Frame>,
    lanes: [VecDeque<Piece>; 2],
}

/// A connection. Each side finds out by itself whether it is broken.
struct Connection {
    ways: [Way; 2],
    broken: bool,
    /// Whether it was used after it broke.
    half_open: bool,
    seen: [bool; 2],
    /// With the number of the session, as this model counts them.
    links: [Option<(u64, Link)>; 2],
}

/// The head of a message that was taken, and whether a gateway's death may have lost it.
type Posted = (Bytes, bool);

/// The gateway of a side, and its state.
#[derive(Default)]
struct Side {
    /// The number of the gateway, less one, because the number 0 means that there is none.
    gateway: u32,
    /// Counts its sessions, including those of earlier gateways.
    session: u64,
    leases: HashSet<Seq>,
    places: HashSet<Seq>,
    asks: HashSet<Correlation>,
    /// Arriving messages, and the pieces of each that were written.
    memory: HashMap<Seq, (Post, HashSet<Piece>)>,
    /// Copies that have begun.
    copies: Vec<Piece>,
    /// Messages that went on and are not done, with their asks.
    handled: BTreeMap<Seq, Option<Correlation>>,
    gone_on: HashSet<Seq>,
    /// The pieces that the other side said it has, for the present connection.
    there: HashMap<(Seq, u16), Bits>,
}

struct World {
    random: Random,
    steps: Steps,
    sessions: [Session; 2],
    sides: [Side; 2],
    /// The messages that were taken on each side, by mailbox, in order.
    posted: [HashMap<ActorId, VecDeque<Posted>>; 2],
    connections: Vec<Connection>,
    messages: u64,
    aborts: u64,
    cuts: u64,
    half_open: u64,
    deaths: u64,
    /// Whether nothing breaks any more.
    calm: bool,
}

type Found = Result<(), String>;

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Found {
    if holds { Ok(()) } else { Err(what()) }
}

impl World {
    fn new(seed: u64, steps: Steps) -> Self {
        let session = |side| new_session(side, 0, Gateway::UNKNOWN, steps);
        World {
            random: Random::new(seed),
            steps,
            sessions: [session(0), session(1)],
            sides: Default::default(),
            posted: Default::default(),
            connections: Vec::new(),
            messages: 0,
            aborts: 0,
            cuts: 0,
            half_open: 0,
            deaths: 0,
            calm: false,
        }
    }

    fn run(&mut self) -> Found {
        for _ in 0..self.random.below(600) {
            self.step()?;
        }
        self.calm = true;
        // Far more steps than the work under way takes.
        for _ in 0..20_000 {
            self.step()?;
            let copied = self.sides.iter().all(|side| side.copies.is_empty());
            if copied && self.sessions.iter().all(Session::is_at_rest) {
                break;
            }
        }
        let at_rest = |side: usize| {
            let Side { leases, places, asks, copies, handled, .. } = &self.sides[side];
            let nothing = leases.is_empty()
                && places.is_empty()
                && asks.is_empty()
                && copies.is_empty()
                && handled.is_empty();
            let lost = self.posted[side].values().flatten().all(|(_, may_be_lost)| *may_be_lost);
            nothing && lost && self.sessions[side].is_at_rest()
        };
        ensure(at_rest(0) && at_rest(1), || {
            let of = |side: usize| {
                let Side { leases, asks, .. } = &self.sides[side];
                format!("{leases:?} {asks:?} {:?} {:?}", self.posted[side], self.sessions[side])
            };
            format!("something waits for ever: {}\n{}", of(0), of(1))
        })
    }

    fn step(&mut self) -> Found {
        let side = self.random.below(2) as usize;
        match self.random.below(20) {
            0 | 1 if !self.calm => self.post(side),
            2 if !self.calm => self.abort(side),
            3 if !self.calm && self.random.below(4) == 0 => {
                if let Some(connection) = self.random.of(&mut self.connections) {
                    self.cuts += u64::from(!connection.broken);
                    connection.broken = true;
                }
                Ok(())
            }
            3 if !self.calm && self.random.below(12) == 0 => {
                self.dies(side);
                Ok(())
            }
            // Side 1 dials, even while it has a connection, which it then takes for broken.
            3 | 4 => {
                let needed = self.sessions[1].link().is_none() && self.random.below(4) == 0;
                if needed || (!self.calm && self.random.below(40) == 0) {
                    self.dial();
                }
                Ok(())
            }
            5 | 6 => self.send(side),
            7..=10 => self.hear(side),
            11 | 12 => self.hear_lane(side),
            13 | 14 => self.copied(side),
            15 | 16 => self.handle(side),
            _ => {
                self.notice(side);
                Ok(())
            }
        }?;
        self.events(0)?;
        self.events(1)
    }

    fn post(&mut self, side: usize) -> Found {
        let to = actor(1 - side, 1 + self.random.below(2));
        let spans = match self.random.below(3) {
            0 => Vec::new(),
            many => (0..many).map(|_| 1 + self.random.below(100)).collect(),
        };
        self.messages += 1;
        let head = Bytes::from(self.messages.to_string());
        let asks = self.random.below(3) == 0;
        let whom = if asks { To::Ask(to) } else { To::Send(to) };
        let Ok(posted) = self.sessions[side].post(whom, head.clone(), spans.clone()) else { return Ok(()) };
        self.posted[side].entry(to).or_default().push_back((head, false));
        let own = &mut self.sides[side];
        own.places.insert(posted.post);
        if !spans.is_empty() {
            own.leases.insert(posted.post);
        }
        own.asks.extend(posted.correlation);
        Ok(())
    }

    fn abort(&mut self, side: usize) -> Found {
        let mut leases: Vec<Seq> = self.sides[side].leases.iter().copied().collect();
        leases.sort_unstable();
        if let Some(post) = self.random.of(&mut leases) {
            self.sessions[side].abort(*post, Bytes::from_static(b"tainted"));
        }
        Ok(())
    }

    /// Kills the gateway of a side and begins the next. Frames of the dead one may still be read.
    fn dies(&mut self, side: usize) {
        self.deaths += 1;
        let Side { gateway, session, .. } = self.sides[side];
        let (gateway, session) = (gateway + 1, session + 1);
        self.sides[side] = Side { gateway, session, ..Side::default() };
        self.sessions[side] = new_session(side, gateway, Gateway::UNKNOWN, self.steps);
        self.may_be_lost(side);
        for connection in &mut self.connections {
            // The listening socket outlives its gateway, and the next one takes the connections that wait
            // there.
            let waits = side == 0 && connection.links[0].is_none() && !connection.ways[0].control.is_empty();
            if !waits {
                (connection.broken, connection.seen[side]) = (true, true);
            }
        }
        self.connections.retain(|connection| connection.seen != [true; 2]);
    }

    fn may_be_lost(&mut self, side: usize) {
        let posted = self.posted[side].values_mut().flatten();
        posted.for_each(|(_, may_be_lost)| *may_be_lost = true);
    }

    /// Begins a new session because the other side has a new gateway, as a gateway does it.
    fn begins_anew(&mut self, side: usize, found: Gateway) -> Found {
        // Messages that have come in the old session go on first.
        let ended = self.sessions[side].renew();
        self.events(side)?;
        self.may_be_lost(side);
        let own = &mut self.sides[side];
        for post in ended.aborted {
            ensure(own.memory.remove(&post).is_some(), || format!("{post} is aborted, and does not come"))?;
        }
        // Complete messages that wait behind incomplete ones go with them.
        own.memory.clear();
        if self.steps.does(Step::AnswerAtRenewal) {
            for (correlation, _) in ended.asks {
                ensure(own.asks.remove(&correlation), || "a second answer".to_owned())?;
            }
            for post in ended.released {
                ensure(own.leases.remove(&post), || format!("lease {post} ends twice"))?;
            }
            own.places.clear();
        }
        // The work of its actors is for nobody now, and copies under way write to memory that nobody uses.
        own.copies.clear();
        own.handled.clear();
        own.gone_on.clear();
        own.there.clear();
        own.session += 1;
        self.sessions[side] = new_session(side, own.gateway, found, self.steps);
        Ok(())
    }

    /// Returns the link of a connection, if that is of the present session.
    fn link(&self, side: usize, at: usize) -> Option<Link> {
        let (session, link) = self.connections[at].links[side]?;
        (session == self.sides[side].session).then_some(link)
    }

    fn dial(&mut self) {
        let hello = self.sessions[1].dial();
        // Side 1 has given up earlier connections. The other side does not know that, and reads on.
        for connection in &mut self.connections {
            (connection.broken, connection.seen[1]) = (true, true);
        }
        let mut ways: [Way; 2] = Default::default();
        ways[0].control.push_back(Frame::Hello(hello));
        self.connections.push(Connection {
            ways,
            broken: false,
            half_open: false,
            seen: [false; 2],
            links: [None; 2],
        });
    }

    /// Lets a side notice that a connection is broken.
    fn notice(&mut self, side: usize) {
        // The listening side reads each greeting, even if its connection has broken.
        let greets = |connection: &Connection| {
            side == 0 && connection.links[0].is_none() && !connection.ways[0].control.is_empty()
        };
        let broken =
            |connection: &&mut Connection| connection.broken && !connection.seen[side] && !greets(connection);
        if let Some(connection) = self.connections.iter_mut().find(broken) {
            connection.seen[side] = true;
            if let Some((session, link)) = connection.links[side] {
                if session == self.sides[side].session {
                    self.sessions[side].cut(link);
                }
            } else if side == 1 {
                // The greeting of side 1 was never answered.
                self.dial();
            }
        }
        self.connections.retain(|connection| connection.seen != [true; 2]);
    }

    /// Sends a frame and a piece over the connection that this side believes to be in force.
    fn send(&mut self, side: usize) -> Found {
        let Some(link) = self.sessions[side].link() else { return Ok(()) };
        let at = (0..self.connections.len()).find(|at| self.link(side, *at) == Some(link));
        let Some(at) = at else { return Ok(()) };
        let lane = self.random.below(2) as usize;
        let frame = self.sessions[side].next_frame(link);
        // Lanes are sometimes slower.
        let piece = match self.random.below(3) {
            0 => None,
            _ => self.sessions[side].next_piece(link),
        };
        if let Some(piece) = piece {
            let Side { leases, there, .. } = &self.sides[side];
            ensure(leases.contains(&piece.post), || format!("{piece:?} is read without a lease"))?;
            let has = there.get(&(piece.post, piece.span));
            ensure(!has.is_some_and(|bits| bits.get(piece.offset / BOUNDS.piece)), || {
                format!("{piece:?} is sent to who has it")
            })?;
        }
        let connection = &mut self.connections[at];
        if !connection.broken {
            let way = &mut connection.ways[1 - side];
            way.control.extend(frame);
            way.lanes[lane].extend(piece);
        } else if (frame.is_some() || piece.is_some()) && !connection.half_open {
            connection.half_open = true;
            self.half_open += 1;
        }
        Ok(())
    }

    /// Reads a frame of some connection. A broken one may still have frames in its buffers.
    fn hear(&mut self, side: usize) -> Found {
        let mut some: Vec<usize> = (0..self.connections.len()).collect();
        let Some(&mut at) = self.random.of(&mut some) else { return Ok(()) };
        let link = self.link(side, at);
        let connection = &mut self.connections[at];
        if connection.seen[side] {
            return Ok(());
        }
        let Some(frame) = connection.ways[side].control.pop_front() else { return Ok(()) };
        if connection.links[side].is_some() && link.is_none() {
            return Ok(()); // of a session that is over
        }
        let session = &mut self.sessions[side];
        let said = match (frame, link) {
            (Frame::Hello(hello), _) => {
                let up = match side {
                    0 => session.accept(&hello).map(|(link, answer)| {
                        connection.ways[1].control.push_back(Frame::Hello(answer));
                        link
                    }),
                    _ => session.answered(&hello),
                };
                match up {
                    Ok(link) => {
                        connection.links[side] = Some((self.sides[side].session, link));
                        let spans = hello.resume.partial.into_iter().flat_map(|partial| {
                            (0..).zip(partial.spans).map(move |(span, bits)| ((partial.post, span), bits))
                        });
                        self.sides[side].there = spans.collect();
                        Ok(())
                    }
                    Err(Violation::OtherGateway { .. }) => {
                        let who = session.introduce(&hello);
                        connection.ways[1].control.push_back(Frame::Hello(who));
                        connection.broken = true;
                        Ok(())
                    }
                    Err(Violation::NextGateway { found, .. }) => {
                        connection.broken = true;
                        return self.begins_anew(side, found);
                    }
                    Err(late) if late.is_late() => {
                        connection.broken = true;
                        Ok(())
                    }
                    Err(violation) => Err(violation),
                }
            }
            (Frame::Numbered { seq, body }, Some(link)) => session.take(link, seq, body),
            (Frame::Ack { received }, Some(link)) => session.acked(link, received),
            (other, _) => return Err(format!("{other:?} before the greeting")),
        };
        said.map_err(|violation| format!("side {side}: {violation}"))
    }

    fn hear_lane(&mut self, side: usize) -> Found {
        let lane = self.random.below(2) as usize;
        let mut some: Vec<usize> = (0..self.connections.len()).collect();
        let Some(&mut at) = self.random.of(&mut some) else { return Ok(()) };
        let (Some(link), false) = (self.link(side, at), self.connections[at].seen[side]) else {
            return Ok(());
        };
        let queue = &mut self.connections[at].ways[side].lanes[lane];
        let Some(&piece) = queue.front() else { return Ok(()) };
        let claim = self.sessions[side].claim(link, &piece).map_err(|violation| violation.to_string())?;
        match claim {
            Claim::Wait => return Ok(()),
            Claim::Take => self.sides[side].copies.push(piece),
            Claim::Drop => {}
        }
        queue.pop_front();
        Ok(())
    }

    /// Submits a copy into memory.
    fn copied(&mut self, side: usize) -> Found {
        // Copies are sometimes slower than connections come and go.
        let own = &mut self.sides[side];
        if own.copies.is_empty() || self.random.below(3) != 0 {
            return Ok(());
        }
        let at = self.random.below(own.copies.len() as u64) as usize;
        let piece = own.copies.swap_remove(at);
        ensure(!own.gone_on.contains(&piece.post), || format!("{piece:?} is written after it went on"))?;
        if let Some((_, written)) = own.memory.get_mut(&piece.post) {
            written.insert(piece);
        }
        self.sessions[side].landed(&piece);
        Ok(())
    }

    /// Lets an actor handle a message: it replies, refuses, or says nothing, and finishes it.
    fn handle(&mut self, side: usize) -> Found {
        let mut all: Vec<Seq> = self.sides[side].handled.keys().copied().collect();
        let Some(&mut post) = self.random.of(&mut all) else { return Ok(()) };
        let session = &mut self.sessions[side];
        session.passed_on(post);
        if let Some(correlation) = self.sides[side].handled[&post] {
            match self.random.below(3) {
                0 => session.refuse(correlation, Bytes::from_static(b"no")),
                1 => {
                    let spans = if self.random.below(2) == 0 { vec![] } else { vec![40] };
                    let leased = !spans.is_empty();
                    // Without room the message keeps its place, and this is tried again.
                    let Ok(posted) = session.post(To::Reply(correlation), Bytes::new(), spans) else {
                        return Ok(());
                    };
                    if leased {
                        self.sides[side].leases.insert(posted.post);
                    }
                }
                _ => {}
            }
        }
        session.done(post);
        self.sides[side].handled.remove(&post);
        Ok(())
    }

    fn events(&mut self, side: usize) -> Found {
        while let Some(event) = self.sessions[side].next_event() {
            let (own, posted) = (&mut self.sides[side], &mut self.posted[1 - side]);
            match event {
                Event::Arriving { post, message } => {
                    own.memory.insert(post, (message, HashSet::new()));
                }
                Event::Message { post, message } => {
                    ensure(own.gone_on.insert(post), || format!("message {post} went on twice"))?;
                    let written = own.memory.remove(&post).map(|(_, written)| written).unwrap_or_default();
                    let bytes: u64 = written.iter().map(|piece| u64::from(piece.bytes)).sum();
                    ensure(bytes == message.spans.iter().sum::<u64>(), || {
                        format!("message {post} is not whole")
                    })?;
                    match message.target {
                        Target::Send(actor) | Target::Ask(actor, _) => {
                            let queue = posted.entry(actor).or_default();
                            let at = queue.iter().position(|(head, _)| *head == message.head);
                            let before = queue.drain(..at.map_or(0, |at| at + 1));
                            let in_order = before.rev().skip(1).all(|(_, may_be_lost)| may_be_lost);
                            ensure(at.is_some() && in_order, || {
                                format!("{actor} got {:?} where others come next: {queue:?}", message.head)
                            })?;
                            let correlation = match message.target {
                                Target::Ask(_, correlation) => Some(correlation),
                                _ => None,
                            };
                            own.handled.insert(post, correlation);
                            let to_it = own.handled.len();
                            ensure(to_it <= 2 * CAPACITY as usize, || format!("{to_it} messages are open"))?;
                        }
                        Target::Reply(correlation) => {
                            ensure(own.asks.remove(&correlation), || "a second answer".to_owned())?;
                            self.sessions[side].passed_on(post);
                        }
                    }
                }
                Event::Aborted { post, .. } => {
                    self.aborts += 1;
                    let (message, _) = own.memory.remove(&post).ok_or("aborted, and was not on its way")?;
                    let mailbox = message.target.actor().and_then(|actor| posted.get_mut(&actor));
                    if let Some(mailbox) = mailbox {
                        mailbox.retain(|(head, _)| *head != message.head);
                    }
                }
                Event::Released { post, .. } => {
                    ensure(own.leases.remove(&post), || format!("lease {post} ends twice"))?;
                }
                Event::Refused { correlation, .. } => {
                    ensure(own.asks.remove(&correlation), || "a second answer".to_owned())?;
                }
                Event::Done { post } => {
                    ensure(own.places.remove(&post), || format!("place {post} is given back twice"))?;
                }
                Event::Served { .. }
                | Event::Room { .. }
                | Event::Window
                | Event::Note(_)
                | Event::NoteRoom => {}
            }
        }
        Ok(())
    }
}

fn new_session(side: usize, gateway: u32, peer: Gateway, steps: Steps) -> Session {
    let own = (who(side), Gateway(gateway + 1));
    let mut session = Session::with_steps(own, (who(1 - side), peer), BOUNDS, steps);
    for number in [1, 2] {
        session.serve(actor(side, number), CAPACITY).expect("two mailboxes");
    }
    session
}

fn run(seed: u64, steps: Steps) -> Found {
    World::new(seed, steps).run()
}

#[test]
fn nothing_is_lost_doubled_or_reordered() {
    let (mut cuts, mut half_open, mut attempts) = (0, 0, 0);
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Steps::default());
        world.run().unwrap_or_else(|found| panic!("seed {seed}: {found}"));
        cuts += world.cuts;
        half_open += world.half_open;
        attempts += world.sessions[1].attempt;
    }
    println!(
        "{SEEDS} seeds: {cuts} cuts, {half_open} connections used when they were broken, {attempts} attempts"
    );
    assert!(cuts > 1_000 && half_open > 1_000 && attempts > 1_000, "{cuts} {half_open} {attempts}");
}

#[test]
fn each_step_is_needed() {
    use Step::*;
    let all = [
        KeepUntilAcked,
        SendAgain,
        OldLinkIsOver,
        LatestAttempt,
        PiecesAgain,
        SkipLanded,
        ClaimOnce,
        WaitForPost,
        WholeFirst,
        InOrder,
        LeaseUntilLanded,
        Credit,
        Window,
        AbortDrops,
        RefuseAtDone,
        NextGateway,
        LatestGateway,
        ForThisGateway,
        AnswerAtRenewal,
    ];
    for step in all {
        let steps = Steps { left_out: Some(step) };
        let noticed = (0..SEEDS).any(|seed| run(seed, steps).is_err());
        assert!(noticed, "without {step:?} nothing is wrong in {SEEDS} runs");
    }
}

/// Checks that the runs above contain what they are meant to test.
#[test]
fn the_runs_reach_what_they_are_about() {
    let (mut posted, mut attempts, mut aborted, mut deaths) = (0, 0, 0, 0);
    for seed in 0..200 {
        let mut world = World::new(seed, Steps::default());
        world.run().expect("as above");
        posted += world.messages;
        attempts += world.sessions[1].attempt;
        aborted += u64::from(world.aborts > 0);
        deaths += world.deaths;
    }
    let reached = posted > 4_000 && attempts > 400 && aborted > 20 && deaths > 100;
    assert!(reached, "{posted} {attempts} {aborted} {deaths}");
}
