//! Simulates two hosts with lanes between them, and a fabric that loses and delays writes, and never ends
//! some.
//!
//! Each seed draws a run of some hundred steps: messages of which some spans are to go by NIXL, and cuts that
//! each side notices by itself. Some writes fail, some are in progress for ever, and the bytes of some arrive
//! after their route has broken. The fabric is a fake NIXL. Late bytes land as long as the *reader's* agent
//! exists (a network card, or UCX over TCP), or as long as the *writer's* does (a copy of a GPU). Then
//! nothing breaks any more, and everything under way comes to its end. The invariants are:
//!
//! * no byte is written to an arena that is not, or not any more, the one of its epoch (HOST-11);
//! * the bytes copied out of a slot are those of its run (HOST-8), and each run is copied once;
//! * nobody violates the protocol, and at the end every message went on, by whatever way;
//! * when the session ends, all memory is given back.
//!
//! Then each step is left out in turn, and some seed must break an invariant.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use super::lane::Sizes;
use super::steps::{Step, Steps};
use super::wire::At;
use super::*;
use crate::frame::{Frame, Piece, Run};
use crate::ids::{ActorId, HostId, HostLife, Life, Seq};
use crate::session::{Bounds, Claim, Event, Link, Session, To};
use crate::testing::Random;

const BOUNDS: Bounds = Bounds { window: 4096, wide: 8192, piece: 16, run: 32 };
const SIZES: Sizes = Sizes { slot: 32, slots: 2, ballast: 16, lanes: 1 };
const SEEDS: u64 = 300;
const STEPS: u64 = 4000;

fn who(side: usize) -> HostLife {
    HostLife { host: HostId(side as u16), life: Life(70 + side as u64) }
}

/// Returns a byte of a span.
fn byte(side: usize, post: Seq, span: u16, at: u64) -> u8 {
    (side as u64 * 101 + post * 31 + u64::from(span) * 7 + at * 3 + 1) as u8
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    frames: VecDeque<Frame>,
    pieces: VecDeque<Piece>,
    says: VecDeque<Say>,
}

struct Connection {
    ways: [Way; 2],
    links: [Link; 2],
    broken: bool,
    seen: [bool; 2],
}

/// Memory of an arena, which is reused after it was given back.
struct Arena {
    bytes: Vec<u8>,
    /// The arena that it belongs to.
    owner: Option<At>,
    /// While this is set, others can write to it by NIXL of its own side.
    agent: bool,
}

/// A write on its way.
struct Write {
    at: At,
    slot: u8,
    to: u64,
    data: Vec<u8>,
    arena: usize,
    /// It is never reported as done.
    stuck: bool,
    /// Its bytes have not arrived yet.
    pending: bool,
    /// Its bytes need the reader's agent to arrive; otherwise the writer's.
    by_reader: bool,
}

struct Side {
    session: Session,
    lane: Lane,
    dos: Vec<Do>,
    arenas: Vec<Arena>,
    /// The arenas that this side reads, by route and epoch.
    reads: HashMap<At, usize>,
    /// The arenas that were offered to this side, and whether its own agent exists.
    writes_to: HashMap<At, (usize, bool)>,
    filled: HashMap<(At, u8), Vec<u8>>,
    writes: Vec<Write>,
    /// Copies out of slots that have not completed.
    copies: Vec<(At, u8, Run)>,
    copied: BTreeMap<(Seq, u16, u64), ()>,
    gone_on: u64,
    posted: u64,
    by_nixl: u64,
}

struct World {
    random: Random,
    now: Duration,
    sides: [Side; 2],
    connections: Vec<Connection>,
    calm: bool,
}

type Found = Result<(), String>;

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Found {
    if holds { Ok(()) } else { Err(what()) }
}

impl World {
    fn new(seed: u64, steps: Steps) -> Self {
        let side = |own: usize| {
            let mut session = Session::new(who(own), who(1 - own), BOUNDS);
            let actor = ActorId::new(HostId(own as u16), 1).expect("a small number");
            session.serve(actor, 20).expect("a mailbox");
            session.takes_window(BOUNDS.wide);
            Side {
                session,
                lane: Lane::with_steps(SIZES, steps),
                dos: Vec::new(),
                arenas: Vec::new(),
                reads: HashMap::new(),
                writes_to: HashMap::new(),
                filled: HashMap::new(),
                writes: Vec::new(),
                copies: Vec::new(),
                copied: BTreeMap::new(),
                gone_on: 0,
                posted: 0,
                by_nixl: 0,
            }
        };
        let (sides, connections) = ([side(0), side(1)], Vec::new());
        World { random: Random::new(seed), now: Duration::ZERO, sides, connections, calm: false }
    }

    /// Runs the model. Returns how many runs went by NIXL.
    fn run(&mut self) -> Result<u64, String> {
        for _ in 0..self.random.below(STEPS) + 100 {
            self.step()?;
        }
        self.calm = true;
        let mut is_over = false;
        for _ in 0..30_000 {
            self.step()?;
            let done = |side: &Side, other: &Side| {
                side.copies.is_empty()
                    && side.dos.is_empty()
                    && side.lane.is_at_rest()
                    && side.gone_on == other.posted
            };
            is_over = done(&self.sides[0], &self.sides[1]) && done(&self.sides[1], &self.sides[0]);
            if is_over {
                break;
            }
        }
        let left = |side: usize| {
            let Side { lane, dos, copies, gone_on, .. } = &self.sides[side];
            format!(
                "side {side}: {gone_on} of {} went on, {copies:?} {dos:?} {lane:?}",
                self.sides[1 - side].posted
            )
        };
        ensure(is_over, || format!("it does not end: {}\n{}", left(0), left(1)))?;
        self.end()?;
        Ok(self.sides.iter().map(|side| side.by_nixl).sum())
    }

    /// Ends the session, and checks that all memory is given back.
    fn end(&mut self) -> Found {
        for side in &mut self.sides {
            let dos = side.lane.end(&mut side.session, self.now);
            side.dos.extend(dos);
            side.session.end();
        }
        self.connections.clear();
        for _ in 0..200 {
            self.act(0)?;
            self.act(1)?;
        }
        let all = self.sides.iter().flat_map(|side| &side.arenas);
        ensure(all.clone().all(|arena| arena.owner.is_none() && !arena.agent), || {
            "memory was kept".to_owned()
        })
    }

    fn step(&mut self) -> Found {
        self.now += Duration::from_millis(1 + self.random.below(9));
        let side = self.random.below(2) as usize;
        match self.random.below(12) {
            0 => self.post(side),
            1 => self.connect(),
            2 => {
                if !self.calm && self.random.below(80) == 0 {
                    self.cut();
                }
                self.notice(side);
            }
            3..=5 => self.deliver(side)?,
            6..=8 => self.act(side)?,
            9 => self.land(side)?,
            _ => {
                let Side { session, lane, dos, .. } = &mut self.sides[side];
                dos.extend(lane.tick(session, self.now));
                self.send(side);
            }
        }
        self.events(side)
    }

    fn post(&mut self, side: usize) {
        if self.calm {
            return;
        }
        let spans: Vec<u64> = (0..=self.random.below(2)).map(|_| 1 + self.random.below(150)).collect();
        let to = To::Send(ActorId::new(HostId(1 - side as u16), 1).expect("a small number"));
        let session = &mut self.sides[side].session;
        let Ok(posted) = session.post(to, Bytes::new(), spans.clone()) else { return };
        self.sides[side].posted += 1;
        for span in 0..spans.len() as u16 {
            if self.random.below(5) > 0 {
                let device = self.random.below(2) as u8;
                self.sides[side].session.widen(posted.post, span, device);
            }
        }
    }

    fn connect(&mut self) {
        if self.connections.last().is_some_and(|last| !last.broken || last.seen != [true; 2]) {
            return;
        }
        let [zero, one] = &mut self.sides;
        let hello = zero.session.dial();
        let (link, answer) = one.session.accept(&hello).expect("an honest greeting");
        let links = [zero.session.answered(&answer).expect("an honest answer"), link];
        for (side, link) in [(&mut *zero, links[0]), (one, links[1])] {
            let dos = side.lane.up(link, &mut side.session, self.now);
            side.dos.extend(dos);
        }
        self.connections.push(Connection {
            ways: Default::default(),
            links,
            broken: false,
            seen: [false; 2],
        });
    }

    fn cut(&mut self) {
        if let Some(last) = self.connections.last_mut() {
            last.broken = true;
        }
    }

    fn notice(&mut self, side: usize) {
        let Some(last) = self.connections.last_mut().filter(|last| last.broken && !last.seen[side]) else {
            return;
        };
        last.seen[side] = true;
        let link = last.links[side];
        let Side { session, lane, dos, .. } = &mut self.sides[side];
        dos.extend(lane.cut(link, session, self.now));
        session.cut(link);
    }

    fn send(&mut self, side: usize) {
        let Some(last) = self.connections.last_mut().filter(|last| !last.broken) else { return };
        let (way, link) = (&mut last.ways[side], last.links[side]);
        let Side { session, lane, .. } = &mut self.sides[side];
        match self.random.below(3) {
            0 => way.frames.extend(session.next_frame(link)),
            1 => way.pieces.extend(session.next_piece(link)),
            _ => way.says.extend(lane.next_say(link, session)),
        }
    }

    /// Delivers a frame or a piece to this side, over the last connection or an older one.
    fn deliver(&mut self, side: usize) -> Found {
        let old = self.random.below(4) == 0;
        let connection =
            if old { self.random.of(&mut self.connections) } else { self.connections.last_mut() };
        let Some(connection) = connection else { return Ok(()) };
        let (way, link) = (&mut connection.ways[1 - side], connection.links[side]);
        let Side { session, lane, dos, .. } = &mut self.sides[side];
        match self.random.below(3) {
            0 => match way.frames.pop_front() {
                Some(Frame::Numbered { seq, body }) => {
                    session.take(link, seq, body).map_err(|lie| format!("an honest frame is {lie}"))?;
                }
                Some(Frame::Ack { received }) => {
                    session.acked(link, received).map_err(|lie| format!("an honest frame is {lie}"))?;
                }
                _ => {}
            },
            1 => {
                let Some(piece) = way.pieces.front().copied() else { return Ok(()) };
                match session.claim(link, &piece).map_err(|lie| format!("an honest piece is {lie}"))? {
                    Claim::Wait => return Ok(()),
                    Claim::Take => session.landed(&piece),
                    Claim::Drop => {}
                }
                way.pieces.pop_front();
            }
            _ => {
                let Some(say) = way.says.pop_front() else { return Ok(()) };
                let shown = format!("{say:?}");
                let taken = lane.take(link, say, session, self.now);
                dos.extend(taken.map_err(|lie| format!("{shown}: {lie}"))?);
            }
        }
        Ok(())
    }

    fn hear(&mut self, side: usize, heard: Heard) {
        let Side { session, lane, dos, .. } = &mut self.sides[side];
        dos.extend(lane.heard(heard, session, self.now));
    }

    /// Does some of the ordered work; work for one agent is done in order.
    fn act(&mut self, side: usize) -> Found {
        let dos = &self.sides[side].dos;
        if dos.is_empty() {
            return Ok(());
        }
        let mut index = self.random.below(dos.len() as u64) as usize;
        let engine = |todo: &Do| match todo {
            Do::Make { at, .. } | Do::CloseIn { at } => Some((true, at.route)),
            Do::Connect { at, .. } | Do::Write { at, .. } | Do::CloseOut { at } => Some((false, at.route)),
            _ => None,
        };
        if let Some(of) = engine(&dos[index]) {
            index = dos.iter().position(|todo| engine(todo) == Some(of)).unwrap_or(index);
        }
        let todo = self.sides[side].dos.remove(index);
        self.carry_out(side, todo)
    }

    fn carry_out(&mut self, side: usize, todo: Do) -> Found {
        match todo {
            // A want may overtake its message.
            Do::Locate { post, .. } if self.sides[side].session.wakes().received < post => {
                self.sides[side].dos.push(todo);
            }
            Do::Locate { link, post, span, from, asked } => {
                let to = (self.random.below(8) > 0).then(|| self.random.below(2) as u8);
                self.hear(side, Heard::Located { link, post, span, from, asked, to });
            }
            Do::Make { at, .. } => self.make(side, at),
            Do::Check { at } => self.hear(side, Heard::Checked { at, sound: true }),
            Do::Import { at, slot, run } => {
                self.sides[side].copies.push((at, slot, run));
                self.sides[side].by_nixl += 1;
                self.hear(side, Heard::Imported { run });
            }
            Do::CloseIn { at } => {
                if let Some(arena) = self.sides[side].reads.get(&at).copied() {
                    self.sides[side].arenas[arena].agent = false;
                }
                self.hear(side, Heard::ClosedIn { at });
            }
            Do::Release { at } => {
                if let Some(arena) = self.sides[side].reads.get(&at).copied() {
                    self.sides[side].arenas[arena].owner = None;
                }
            }
            Do::Connect { at, offer, .. } => {
                let arena = offer.memory.address as usize;
                self.sides[side].writes_to.insert(at, (arena, true));
                let took = match self.random.below(10) {
                    0 => Duration::from_secs(1000),
                    _ => Duration::ZERO,
                };
                let took =
                    if !self.calm && self.random.below(10) == 0 { Err("no".to_owned()) } else { Ok(took) };
                self.hear(side, Heard::Connected { at, took });
            }
            Do::Export { at, slot, run } => {
                let data = (run.offset..run.offset + run.bytes).map(|of| byte(side, run.post, run.span, of));
                let data = data.collect();
                self.sides[side].filled.insert((at, slot), data);
                self.hear(side, Heard::Exported { at, slot, filled: true });
            }
            Do::Write { at, slot, to, bytes } => {
                let data = self.sides[side].filled.remove(&(at, slot)).unwrap_or_default();
                ensure(data.len() as u64 == bytes, || "a slot that was not filled is written".to_owned())?;
                let Some((arena, _)) = self.sides[side].writes_to.get(&at).copied() else { return Ok(()) };
                let stuck = !self.calm && self.random.below(20) == 0;
                let by_reader = self.random.below(2) == 0;
                let write = Write { at, slot, to, data, arena, stuck, pending: true, by_reader };
                self.sides[side].writes.push(write);
            }
            Do::CloseOut { at } => {
                let own = &mut self.sides[side];
                if let Some((_, agent)) = own.writes_to.get_mut(&at) {
                    *agent = false;
                }
                // Writes that need no agent of this side are still on their way.
                own.writes.retain(|write| write.at != at || (write.pending && write.by_reader));
                self.hear(side, Heard::ClosedOut { at });
            }
        }
        Ok(())
    }

    fn make(&mut self, side: usize, at: At) {
        let arenas = &mut self.sides[side].arenas;
        let again = arenas.iter().position(|arena| arena.owner.is_none());
        let index = again.unwrap_or_else(|| {
            let bytes = vec![0; SIZES.arena() as usize];
            arenas.push(Arena { bytes, owner: None, agent: false });
            arenas.len() - 1
        });
        arenas[index].owner = Some(at);
        arenas[index].agent = true;
        self.sides[side].reads.insert(at, index);
        let memory = Region { place: MemoryPlace::Host, address: index as u64, bytes: SIZES.arena() };
        let offer = Offer { memory, name: "agent".to_owned(), metadata: Bytes::from_static(b"keys") };
        self.hear(side, Heard::Made { at, made: Ok(offer) });
    }

    /// Lets some bytes of this side arrive, a write of it end, or a copy out of one of its slots complete.
    fn land(&mut self, side: usize) -> Found {
        if self.random.below(2) == 0 {
            return self.pass(side);
        }
        let count = self.sides[side].writes.len() as u64;
        if count == 0 {
            return Ok(());
        }
        let index = self.random.below(count) as usize;
        let (own, other) = match &mut self.sides {
            [zero, one] if side == 0 => (zero, one),
            [zero, one] => (one, zero),
        };
        let write = &mut own.writes[index];
        let (at, slot) = (write.at, write.slot);
        let is_there = own.writes_to.get(&at).is_some_and(|(_, agent)| *agent);
        // The bytes of a write that is never done arrive after its route has ended, or not at all.
        if write.pending && (!write.stuck || !is_there || self.random.below(30) == 0) {
            write.pending = false;
            let arena = &mut other.arenas[write.arena];
            // The keys of an arena that was made anew are different.
            let key = other.reads.get(&at) == Some(&write.arena) && arena.agent;
            if if write.by_reader { key } else { is_there } {
                ensure(arena.owner == Some(at), || {
                    format!("bytes for {at:?} landed in memory of {:?}", arena.owner)
                })?;
                let start = write.to as usize;
                arena.bytes[start..start + write.data.len()].copy_from_slice(&write.data);
            }
        }
        if write.pending || (write.stuck && is_there) {
            return Ok(());
        }
        own.writes.remove(index);
        if is_there {
            let written = if !self.calm && self.random.below(60) == 0 {
                Err("broken".to_owned())
            } else {
                Ok(Wrote::default())
            };
            self.hear(side, Heard::Written { at, slot, written });
        }
        Ok(())
    }

    /// Completes a copy out of a slot.
    fn pass(&mut self, side: usize) -> Found {
        let own = &mut self.sides[side];
        if own.copies.is_empty() {
            return Ok(());
        }
        let (at, slot, run) = own.copies.remove(0);
        let arena = own.reads.get(&at).map(|arena| &own.arenas[*arena]);
        let start = u64::from(slot) * SIZES.slot;
        let is_right = |arena: &Arena| {
            let all = (0..run.bytes).zip(&arena.bytes[start as usize..]);
            arena.owner == Some(at)
                && all
                    .into_iter()
                    .all(|(of, found)| *found == byte(1 - side, run.post, run.span, run.offset + of))
        };
        ensure(arena.is_some_and(is_right), || format!("{run:?} was not in slot {slot} of {at:?}"))?;
        let first = own.copied.insert((run.post, run.span, run.offset), ()).is_none();
        ensure(first, || format!("{run:?} was copied twice"))?;
        self.hear(side, Heard::Freed { at, slot });
        Ok(())
    }

    fn events(&mut self, side: usize) -> Found {
        while let Some(event) = self.sides[side].session.next_event() {
            if let Event::Message { post, .. } = event {
                self.sides[side].gone_on += 1;
                self.sides[side].session.done(post);
            }
        }
        Ok(())
    }
}

fn first_fault(steps: Steps, seeds: u64) -> Result<u64, (u64, String)> {
    let mut by_nixl = 0;
    for seed in 0..seeds {
        by_nixl += World::new(seed, steps).run().map_err(|found| (seed, found))?;
    }
    Ok(by_nixl)
}

#[test]
fn the_model_of_a_nixl_lane_holds() {
    match first_fault(Steps::default(), SEEDS) {
        Ok(by_nixl) => assert!(by_nixl > 2 * SEEDS, "{by_nixl} runs went by NIXL"),
        Err((seed, found)) => panic!("seed {seed}: {found}"),
    }
}

#[test]
fn the_model_of_a_nixl_lane_needs_each_of_its_steps() {
    for step in [
        Step::Deadline,
        Step::CloseFirst,
        Step::WaitForWriter,
        Step::SayOpen,
        Step::Unsend,
        Step::FreeWhenCopied,
        Step::OldLinkIsOver,
    ] {
        let found = first_fault(Steps { left_out: Some(step) }, SEEDS);
        assert!(found.is_err(), "nothing broke without {step:?}");
    }
}
