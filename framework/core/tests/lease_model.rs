//! Loom on the protocol of a forwarded lease (LEASE-1, LEASE-3), with the real lease table and the real
//! rings.
//!
//! A owns the memory. B holds it, tells A that it forwards it, and sends it to C. C posts its hold to A and
//! then moves its cursor past the frame. B gives its own lease back once it has seen that cursor. A believes
//! C's hold because of B's notice, for which it may have to look once more. A closes the entry when the lease
//! table is empty and is still empty after a second look at all rings. The memory is a cell that C reads, and
//! that A writes once the entry is closed. Loom panics on the first access that is not ordered with the
//! other's.
//!
//! Then each of these steps is left out in turn. The model must find that memory which C still uses is freed,
//! or that C's hold is refused.
//!
//! In a further model C sends the memory back to A. Its hold and its frame come by two rings. A looks at the
//! rings one after the other and has to know of the hold when it takes the frame.
//!
//! In the last two models two threads of A drain at the same time (LEASE-3, ONE-WRITER). One of them closes
//! the entry, or finds that its own lease is the only one and writes. The other has read the last release by
//! then, and not the hold before it.

mod loom_platform;

use loom::sync::{Arc, Mutex};
use loom::thread;
use loom_platform::{Loom, LoomBytes, LoomWord, explore, failure_of};
use tensorpost_core::ids::ProcessId;
use tensorpost_core::lease::table::{Emptied, LeaseTable, Remaining, Settled};
use tensorpost_core::testing::thorough;
use tensorpost_core::transport::ring::entries::ENTRY_BYTES;
use tensorpost_core::transport::ring::{Bytes, Consumer, EntryConsumer, EntryProducer, Producer};

/// Limit of switches away from a runnable thread: three threads are too many to explore without a bound.
const PREEMPTIONS: Option<usize> = Some(5);

/// The step that a model gets wrong.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    /// C moves its cursor before it posts its hold.
    HoldAfterCursor,
    /// A closes an entry as soon as the lease table says that it is empty, without settling anything first.
    NoSecondLook,
    /// B gives its lease back as soon as the frame is sent.
    ReleaseBeforeCursor,
    /// B tells A only after the frame is sent that it forwards the memory.
    ForwardBehindFrame,
    /// A refuses a hold at once if it knows of no forward for it.
    NoLookForForwards,
}

const HOLD: u64 = 1;
const RELEASE: u64 = 2;
const FORWARD: u64 = 3;
const DATA: u64 = 1;
const REUSED: u64 = 2;

fn process(slot: u16) -> ProcessId {
    ProcessId::new(slot, 0).expect("a small slot")
}

/// B's steps, none of which waits.
struct Forwarder {
    frames: Producer<Loom>,
    returns: EntryProducer<Loom>,
    flaw: Flaw,
    sent: Option<u64>,
    released: bool,
}

impl Forwarder {
    fn send(&mut self) {
        if self.flaw != Flaw::ForwardBehindFrame {
            post(&mut self.returns, FORWARD);
        }
        let mut frame = self.frames.reserve(8).expect("an empty ring");
        frame.write(0, &[7; 8]);
        self.sent = Some(frame.commit());
        self.frames.publish();
        if self.flaw == Flaw::ForwardBehindFrame {
            post(&mut self.returns, FORWARD);
        }
    }

    /// Looks at the receiver's cursor once, and gives the lease back if the cursor has passed the frame.
    fn close_emptied(&mut self) {
        let passed = self.flaw == Flaw::ReleaseBeforeCursor
            || self.sent.is_some_and(|end| self.frames.consumed().expect("a sound peer") >= end);
        if passed && !self.released {
            self.released = true;
            post(&mut self.returns, RELEASE);
        }
    }
}

struct Receiver {
    frames: Consumer<Loom>,
    returns: EntryProducer<Loom>,
    memory: LoomBytes,
    flaw: Flaw,
    received: bool,
}

impl Receiver {
    /// Looks for the frame once. If it is there, uses the memory and gives the lease back.
    fn receive(&mut self) {
        let mut frame = Vec::new();
        if self.received || self.frames.peek(&mut frame).expect("a sound peer").is_none() {
            return;
        }
        self.received = true;
        if self.flaw != Flaw::HoldAfterCursor {
            post(&mut self.returns, HOLD);
        }
        self.frames.consume();
        self.frames.publish_head();
        if self.flaw == Flaw::HoldAfterCursor {
            post(&mut self.returns, HOLD);
        }
        assert_eq!(self.memory.read_word(0), DATA, "the memory was used again under its holder");
        post(&mut self.returns, RELEASE);
    }
}

fn post(returns: &mut EntryProducer<Loom>, what: u64) {
    returns.push([what; 8]).expect("room was reserved");
    returns.publish();
}

struct Owner {
    table: LeaseTable<()>,
    entry: (u32, u32),
    /// The return rings of B and C.
    returns: [(ProcessId, EntryConsumer<Loom>); 2],
    memory: LoomBytes,
    flaw: Flaw,
    closed: u32,
}

impl Owner {
    /// Models `Transport::drain_returns`: handles the entries of all rings, once more if a hold was left
    /// open. Returns the entry's state if the entry is empty now.
    fn drain(&mut self) -> Option<Emptied> {
        let mut empty = self.drain_rings();
        if self.flaw != Flaw::NoSecondLook
            && let Some(pass) = self.table.begin_pass()
        {
            empty = self.drain_rings().or(empty);
            self.table.end_pass(pass);
        }
        for settled in self.table.take_settled() {
            match settled {
                Settled::Refused(..) => panic!("C's hold was refused"),
                Settled::Emptied(emptied) => empty = Some(emptied),
                Settled::GivenBack(..) => {}
            }
        }
        empty
    }

    fn drain_rings(&mut self) -> Option<Emptied> {
        let (entry, generation) = self.entry;
        let mut empty = None;
        // C's ring comes first: so C's hold may be posted after this look, and B's release before the next.
        for (holder, ring) in self.returns.iter_mut().rev() {
            while let Some(notice) = ring.pop().expect("a sound peer") {
                match notice[0] {
                    HOLD => {
                        self.table.hold(entry, generation, *holder, process(1)).expect("the entry is open");
                        empty = None;
                        if self.flaw == Flaw::NoLookForForwards
                            && let Some(pass) = self.table.begin_pass()
                        {
                            self.table.end_pass(pass);
                        }
                    }
                    FORWARD => {
                        let forwarded = self.table.forward(entry, generation, *holder, process(2));
                        forwarded.expect("it holds one");
                    }
                    _ => {
                        let left = self.table.release(entry, generation, *holder, &[]);
                        if let Remaining::Empty(emptied) = left.expect("it holds one") {
                            empty = Some(emptied);
                        }
                    }
                }
            }
            ring.publish_head();
        }
        empty
    }

    /// Models `Pool::close_emptied`.
    fn close_emptied(&mut self) {
        let Some(mut emptied) = self.drain() else { return };
        while self.flaw != Flaw::NoSecondLook {
            let Some(again) = self.drain() else { break };
            emptied = again;
        }
        if self.table.close(emptied).is_some() {
            self.closed += 1;
            self.memory.write_word(0, REUSED);
        }
    }
}

fn entry_ring() -> (EntryProducer<Loom>, EntryConsumer<Loom>) {
    let [tail, head, front] = [(); 3].map(|()| LoomWord::zero());
    let bytes = LoomBytes::zeroed(2 * ENTRY_BYTES);
    let producer =
        EntryProducer::new(tail.clone(), head.clone(), front.clone(), bytes.clone()).expect("a power of two");
    (producer, EntryConsumer::new(tail, head, front, bytes).expect("a power of two"))
}

fn model(flaw: Flaw) {
    let (tail, head, bytes) = (LoomWord::zero(), LoomWord::zero(), LoomBytes::zeroed(32));
    let frames_out = Producer::new(tail.clone(), head.clone(), bytes.clone()).expect("a power of two");
    let frames_in = Consumer::new(tail, head, bytes).expect("a power of two");
    let (b_returns, from_b) = entry_ring();
    let (c_returns, from_c) = entry_ring();
    let memory = LoomBytes::zeroed(8);
    memory.write_word(0, DATA);

    let mut table = LeaseTable::default();
    let entry = table.open((), Default::default());
    table.grant(entry.0, entry.1, process(1)).expect("just opened");
    table.release_local(entry.0, entry.1, &[]).expect("just opened");
    let returns = [(process(1), from_b), (process(2), from_c)];
    let mut owner = Owner { table, entry, returns, memory: memory.clone(), flaw, closed: 0 };

    let mut b = Forwarder { frames: frames_out, returns: b_returns, flaw, sent: None, released: false };
    let mut c = Receiver { frames: frames_in, returns: c_returns, memory, flaw, received: false };
    let b = thread::spawn(move || {
        b.send();
        b.close_emptied();
        b
    });
    let c = thread::spawn(move || {
        c.receive();
        c
    });
    owner.close_emptied();
    owner.close_emptied();
    let (mut b, mut c) = (b.join().expect("B ends"), c.join().expect("C ends"));
    // The threads may not have got to every step. LEASE-2: the entry is closed in the end, and once.
    c.receive();
    b.close_emptied();
    owner.close_emptied();
    assert_eq!((owner.closed, owner.table.is_empty()), (1, true), "closed {} times", owner.closed);
}

/// C holds memory that B sent it, and sends it back to A.
fn returned(looks_behind_the_frame: bool) {
    let (tail, head, bytes) = (LoomWord::zero(), LoomWord::zero(), LoomBytes::zeroed(32));
    let mut frames_out: Producer<Loom> =
        Producer::new(tail.clone(), head.clone(), bytes.clone()).expect("a power of two");
    let mut frames_in: Consumer<Loom> = Consumer::new(tail, head, bytes).expect("a power of two");
    let (mut returns, mut from_c) = entry_ring();
    let mut table = LeaseTable::default();
    let (entry, generation) = table.open((), Default::default());
    table.grant(entry, generation, process(1)).expect("just opened");
    table.forward(entry, generation, process(1), process(2)).expect("it holds one");
    table.release_local(entry, generation, &[]).expect("just opened");

    let c = thread::spawn(move || {
        post(&mut returns, HOLD);
        let mut frame = frames_out.reserve(8).expect("an empty ring");
        frame.write(0, &[7; 8]);
        frame.commit();
        frames_out.publish();
    });
    let drain = |table: &mut LeaseTable<()>, from_c: &mut EntryConsumer<Loom>| {
        while let Some(notice) = from_c.pop().expect("a sound peer") {
            assert_eq!(notice[0], HOLD);
            assert_eq!(table.hold(entry, generation, process(2), process(1)), Ok(true));
        }
    };
    // As in `Transport::poll_link`: first the returns, then the frames.
    drain(&mut table, &mut from_c);
    if frames_in.peek(&mut Vec::new()).expect("a sound peer").is_some() {
        let mut adopted = table.adopt(entry, generation, process(2));
        if adopted.is_err() && looks_behind_the_frame {
            drain(&mut table, &mut from_c);
            adopted = table.adopt(entry, generation, process(2));
        }
        adopted.expect("C holds what it sends");
    }
    c.join().expect("C ends");
}

/// The rule by which a draining thread of A decides to believe the lease table, although another thread
/// drains too.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// The entry has not changed since before the drain.
    StoodStill,
    /// No candidate waits for the entry now. For the last lease, the thread drains twice.
    NoneWaits,
}

/// A's pool, with two threads that drain it. H has forwarded to G.
struct Shared {
    state: Mutex<(LeaseTable<()>, Vec<Emptied>)>,
    entry: (u32, u32),
    /// The return rings of G and H, in the order in which A looks at them.
    rings: [(ProcessId, Mutex<EntryConsumer<Loom>>); 2],
    memory: LoomBytes,
    rule: Rule,
}

impl Shared {
    /// Models `Transport::drain_returns`.
    fn drain(&self) {
        let (entry, generation) = self.entry;
        for (holder, ring) in &self.rings {
            let mut ring = ring.lock().expect("no panic");
            while let Some(notice) = ring.pop().expect("a sound peer") {
                let (table, candidates) = &mut *self.state.lock().expect("no panic");
                if notice[0] == HOLD {
                    // This model does not ask whether the hold is proven.
                    table.grant(entry, generation, *holder).expect("the entry is open");
                } else if let Remaining::Empty(emptied) =
                    table.release(entry, generation, *holder, &[]).expect("it holds one")
                {
                    candidates.push(emptied);
                }
            }
            ring.publish_head();
        }
    }

    /// Models `Pool::close_emptied`.
    fn close_emptied(&self) {
        loop {
            let taken = std::mem::take(&mut self.state.lock().expect("no panic").1);
            if taken.is_empty() {
                return;
            }
            self.drain();
            let (table, candidates) = &mut *self.state.lock().expect("no panic");
            for mut emptied in taken {
                if self.rule == Rule::NoneWaits {
                    if !candidates.is_empty() {
                        continue;
                    }
                    emptied.changes = table.changes(self.entry.0, self.entry.1).unwrap_or(0);
                }
                if table.close(emptied).is_some() {
                    self.memory.write_word(0, REUSED);
                }
            }
        }
    }

    /// Models `Pool::is_sole`.
    fn is_sole(&self) -> bool {
        let (entry, generation) = self.entry;
        let look = || {
            let (table, _) = &*self.state.lock().expect("no panic");
            (table.is_sole(entry, generation, None), table.changes(entry, generation))
        };
        if self.rule == Rule::NoneWaits {
            self.drain();
            self.drain();
            return look().0;
        }
        let (_, mut before) = look();
        loop {
            self.drain();
            let (sole, now) = look();
            if !sole || now == before {
                return sole;
            }
            before = now;
        }
    }
}

/// Two threads of A drain while G takes H's last frame. The first thread runs `does`; `own` says whether A
/// has a lease of its own.
fn two_drain(rule: Rule, own: bool, does: fn(&Shared)) {
    let (mut from_g, mut from_h) = (entry_ring(), entry_ring());
    let memory = LoomBytes::zeroed(8);
    memory.write_word(0, DATA);
    let mut table = LeaseTable::default();
    let entry @ (number, generation) = table.open((), Default::default());
    let mut candidates = Vec::new();
    if own {
        table.grant(number, generation, process(2)).expect("just opened");
    } else {
        // F had forwarded to H and let go. A has drained F's release, but not H's hold.
        table.grant(number, generation, process(3)).expect("just opened");
        table.release_local(number, generation, &[]).expect("just opened");
        let left = table.release(number, generation, process(3), &[]).expect("it holds one");
        candidates.extend(match left {
            Remaining::Empty(emptied) => Some(emptied),
            Remaining::Held => None,
        });
        post(&mut from_h.0, HOLD);
    }
    let rings = [(process(1), Mutex::new(from_g.1)), (process(2), Mutex::new(from_h.1))];
    let pool = Shared { state: Mutex::new((table, candidates)), entry, rings, memory: memory.clone(), rule };
    let pool = Arc::new(pool);
    let peers = thread::spawn(move || {
        // G takes the frame and posts its hold. Then H sees the cursor and lets go.
        post(&mut from_g.0, HOLD);
        post(&mut from_h.0, RELEASE);
        assert_eq!(memory.read_word(0), DATA, "the memory was used again under its holder");
    });
    let other = {
        let pool = Arc::clone(&pool);
        thread::spawn(move || {
            pool.drain();
            pool.close_emptied();
        })
    };
    does(&pool);
    other.join().expect("no panic");
    peers.join().expect("no panic");
    pool.drain();
    pool.close_emptied();
    let changes = pool.state.lock().expect("no panic").0.changes(number, generation);
    assert!(changes.is_some(), "G holds it");
}

fn closes_emptied(pool: &Shared) {
    pool.close_emptied();
}

fn writes_if_sole(pool: &Shared) {
    if pool.is_sole() {
        pool.memory.write_word(0, REUSED);
    }
}

/// The failures need three switches between A's two threads and the peers' one.
const SWITCHES: Option<usize> = Some(3);

#[test]
fn two_threads_that_close_free_nothing_under_a_holder() {
    explore(SWITCHES, || two_drain(Rule::StoodStill, false, closes_emptied));
}

#[test]
fn that_no_candidate_waits_is_not_enough() {
    assert_freed_too_early(&failure_of(SWITCHES, || two_drain(Rule::NoneWaits, false, closes_emptied)));
}

#[test]
fn who_is_sole_is_not_fooled_by_another_thread() {
    explore(SWITCHES, || two_drain(Rule::StoodStill, true, writes_if_sole));
}

#[test]
fn two_drains_are_not_enough_to_be_sole() {
    assert_freed_too_early(&failure_of(SWITCHES, || two_drain(Rule::NoneWaits, true, writes_if_sole)));
}

#[test]
fn what_comes_back_is_known_when_its_frame_is_taken() {
    explore(PREEMPTIONS, || returned(true));
}

#[test]
fn the_owner_has_to_look_at_returns_behind_the_frame_again() {
    let failure = failure_of(PREEMPTIONS, || returned(false));
    assert!(failure.contains("NotHeld"), "another failure: {failure}");
}

/// Checks that the failure is that of memory freed under C, and not another breakdown of the model.
fn assert_freed_too_early(failure: &str) {
    let freed = ["Causality violation", "used again under its holder", "Unknown"];
    assert!(freed.iter().any(|what| failure.contains(what)), "another failure: {failure}");
}

#[test]
fn a_forwarded_lease_is_never_freed_under_its_holder() {
    let preemptions = if thorough() { PREEMPTIONS } else { Some(3) };
    explore(preemptions, || model(Flaw::None));
}

#[test]
fn the_hold_has_to_be_posted_before_the_cursor_moves() {
    assert_freed_too_early(&failure_of(PREEMPTIONS, || model(Flaw::HoldAfterCursor)));
}

#[test]
fn the_owner_has_to_look_twice() {
    assert_freed_too_early(&failure_of(PREEMPTIONS, || model(Flaw::NoSecondLook)));
}

#[test]
fn the_owner_has_to_be_told_before_the_frame() {
    assert_refused(&failure_of(PREEMPTIONS, || model(Flaw::ForwardBehindFrame)));
}

#[test]
fn the_owner_has_to_look_for_the_forward() {
    assert_refused(&failure_of(PREEMPTIONS, || model(Flaw::NoLookForForwards)));
}

fn assert_refused(failure: &str) {
    assert!(failure.contains("C's hold was refused"), "another failure: {failure}");
}

#[test]
fn the_forwarder_has_to_wait_for_the_cursor() {
    assert_freed_too_early(&failure_of(PREEMPTIONS, || model(Flaw::ReleaseBeforeCursor)));
}
