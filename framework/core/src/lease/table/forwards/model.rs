//! Forwarded leases in every order of events (LEASE-3, LEASE-4, WIRE-1), with the real lease table.
//!
//! A owns the memory and has lent it to B. B passes it on to C, and C to D. Each releases its lease when the
//! next one has passed the frame. B and C may die at any moment. Then the next process takes the frames that
//! they had sent, A reads everything that they had posted, and their leases are dropped, in the order that
//! the node enforces. A reads ring after ring, in any order, and another of its threads may read between any
//! two of these. In every state, no hold of an honest process was refused, and the memory of no holder was
//! freed. In every final state nothing is left over. Each step is then left out in turn, and the exploration
//! must find a state that breaks this.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault};

use proptest::prelude::*;

use super::*;
use crate::os::thorough;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// The forwarder tells the owner only after the frame is out.
    ForwardBehindFrame,
    /// The owner refuses a hold at once.
    NoPass,
    /// A forward is removed with its forwarder's last lease at once.
    NoPassForForwards,
    /// The owner drops the leases of a dead process before it has read the notices that its frames led to.
    EvictBeforeDrain,
    /// A forward stays after its forwarder has died.
    NothingGoesWithTheDead,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Notice {
    Hold,
    Forward,
    Release,
}

/// B, C or D, which get the memory one after the other.
#[derive(Clone, Debug, Default)]
struct Process {
    alive: bool,
    reclaimed: bool,
    /// Notices that A has not read.
    ring: VecDeque<Notice>,
    step: u8,
    /// It was sent the frame, and has not taken it.
    frame: bool,
    /// The next one has passed its frame.
    passed: bool,
    holds: bool,
}

/// The rings that A still has to read.
pub(super) type Rings = Vec<usize>;

#[derive(Clone, Debug)]
struct World {
    table: LeaseTable<()>,
    processes: [Process; 3],
    pass: Option<(Pass, Rings)>,
    candidates: Vec<Emptied>,
    closing: Option<(Vec<Emptied>, Rings)>,
    reclaiming: Option<(usize, Rings)>,
    closed: bool,
}

struct Model {
    flaw: Flaw,
    mortal: &'static [usize],
    /// C gets a frame that it cannot read, and takes no lease from it.
    rejects: bool,
}

const ENTRY: (u32, u32) = (0, 1);
const ALL: [usize; 3] = [0, 1, 2];

pub(super) fn name(process: usize) -> ProcessId {
    ProcessId::new(1 + process as u16, 0).expect("a small slot")
}

impl Model {
    fn begin(&self) -> World {
        let mut table = LeaseTable::default();
        assert_eq!(table.open((), Uses::new()), ENTRY);
        table.grant(ENTRY.0, ENTRY.1, name(0)).expect("just opened");
        table.release_local(ENTRY.0, ENTRY.1, &[]).expect("just opened");
        let alive = || Process { alive: true, ..Process::default() };
        let mut processes = [alive(), alive(), alive()];
        processes[0].holds = true;
        let (candidates, closed) = (Vec::new(), false);
        World { table, processes, pass: None, candidates, closing: None, reclaiming: None, closed }
    }

    /// Does the next step of `p`; returns false if it can do nothing.
    fn process(&self, world: &mut World, p: usize) -> bool {
        let (this, next) = world.processes.split_at_mut(p + 1);
        let (this, next) = (&mut this[p], next.first_mut());
        if !this.alive {
            // The receiver of its frame can still take it.
            return false;
        }
        let late = self.flaw == Flaw::ForwardBehindFrame;
        match (this.step, next) {
            // Takes the frame; then the forwarder sees the cursor move.
            (0, _) if p > 0 && !this.frame => return false,
            (0, _) if p > 0 => {
                let takes = !(self.rejects && p == 1);
                if takes {
                    this.ring.push_back(Notice::Hold);
                    this.holds = true;
                }
                this.step = if takes { 1 } else { 5 };
                world.processes[p - 1].passed = true;
            }
            (0, _) => this.step = 1,
            (1, Some(_)) => {
                this.ring.extend((!late).then_some(Notice::Forward));
                this.step = 2;
            }
            (2, Some(next)) => {
                next.frame = true;
                this.step = 3;
            }
            (3, Some(_)) => {
                this.ring.extend(late.then_some(Notice::Forward));
                this.step = 4;
            }
            (4, Some(next)) if !this.passed && next.alive => return false,
            (4, Some(_)) | (1, None) => {
                this.ring.push_back(Notice::Release);
                this.holds = false;
                this.step = 5;
            }
            _ => return false,
        }
        true
    }

    /// Makes A read a ring.
    fn drain(&self, world: &mut World, p: usize) -> Result<bool, String> {
        let (entry, generation) = ENTRY;
        let any = !world.processes[p].ring.is_empty();
        while let Some(notice) = world.processes[p].ring.pop_front() {
            let refused = |error: LeaseTableError| format!("{p} was refused: {error}");
            match notice {
                Notice::Hold => {
                    let proven =
                        world.table.hold(entry, generation, name(p), name(p - 1)).map_err(refused)?;
                    if !proven && self.flaw == Flaw::NoPass {
                        self.pass_at_once(world)?;
                    }
                }
                Notice::Forward if world.processes[p + 1].reclaimed => {}
                Notice::Forward => {
                    world.table.forward(entry, generation, name(p), name(p + 1)).map_err(refused)?;
                }
                Notice::Release => {
                    let (left, _) =
                        world.table.give_back(entry, generation, name(p), &[]).map_err(refused)?;
                    if let Remaining::Empty(emptied) = left {
                        world.candidates.push(emptied);
                    }
                    if self.flaw == Flaw::NoPassForForwards {
                        self.pass_at_once(world)?;
                    }
                }
            }
            self.settled(world)?;
        }
        for rings in [
            world.pass.as_mut().map(|(_, rings)| rings),
            world.closing.as_mut().map(|(_, rings)| rings),
            world.reclaiming.as_mut().map(|(_, rings)| rings),
        ] {
            rings.into_iter().for_each(|rings| rings.retain(|ring| *ring != p));
        }
        Ok(any)
    }

    fn pass_at_once(&self, world: &mut World) -> Result<(), String> {
        if let Some(pass) = world.table.begin_pass() {
            world.table.end_pass(pass);
        }
        self.settled(world)
    }

    fn settled(&self, world: &mut World) -> Result<(), String> {
        for settled in world.table.take_settled() {
            match settled {
                Settled::Refused(process, _, error) => return Err(format!("{process} was refused: {error}")),
                Settled::Emptied(emptied) => world.candidates.push(emptied),
                Settled::GivenBack(..) => {}
            }
        }
        Ok(())
    }

    /// Returns every state that one step of A leads to: A begins a task, or goes on with one.
    fn owner(&self, world: &World) -> Result<Vec<World>, String> {
        let mut next = Vec::new();
        let mut step = |act: &dyn Fn(&mut World) -> Result<bool, String>| -> Result<(), String> {
            let mut world = world.clone();
            if act(&mut world)? {
                next.push(world);
            }
            Ok(())
        };
        for ring in ALL {
            step(&|world| {
                let waits = |rings: Option<&Rings>| rings.is_some_and(|rings| rings.contains(&ring));
                let waited = waits(world.pass.as_ref().map(|(_, rings)| rings))
                    || waits(world.closing.as_ref().map(|(_, rings)| rings))
                    || waits(world.reclaiming.as_ref().map(|(_, rings)| rings));
                Ok(self.drain(world, ring)? || waited)
            })?;
        }
        step(&|world| match world.pass.take() {
            None => {
                world.pass = world.table.begin_pass().map(|pass| (pass, ALL.to_vec()));
                Ok(world.pass.is_some())
            }
            Some((pass, rings)) if rings.is_empty() => {
                world.table.end_pass(pass);
                self.settled(world).map(|()| true)
            }
            Some(_) => Ok(false),
        })?;
        step(&|world| match world.closing.take() {
            None if world.candidates.is_empty() => Ok(false),
            None => {
                world.closing = Some((std::mem::take(&mut world.candidates), ALL.to_vec()));
                Ok(true)
            }
            Some((candidates, rings)) if rings.is_empty() => {
                for emptied in candidates {
                    world.closed |= world.table.close(emptied).is_some();
                }
                Ok(true)
            }
            Some(_) => Ok(false),
        })?;
        step(&|world| match world.reclaiming.take() {
            Some((dead, rings)) if rings.is_empty() || self.flaw == Flaw::EvictBeforeDrain => {
                // Holds that the drain left open are settled first (`drain_returns`).
                if world.pass.is_some() || !world.table.unproven.is_empty() {
                    return Ok(false);
                }
                if self.flaw != Flaw::NothingGoesWithTheDead {
                    let emptied = world.table.evict(name(dead));
                    world.candidates.extend(emptied);
                }
                world.processes[dead].reclaimed = true;
                world.processes[dead].holds = false;
                Ok(true)
            }
            Some(_) => Ok(false),
            None => {
                let read = |p: usize| {
                    let sent = world.processes[p].step >= 3;
                    let next = world.processes.get(p + 1);
                    !sent || next.is_none_or(|next| !next.alive || next.step > 0)
                };
                let dead = ALL.into_iter().find(|p| {
                    let process = &world.processes[*p];
                    !process.alive && !process.reclaimed && process.ring.is_empty() && read(*p)
                });
                world.reclaiming = dead.map(|dead| (dead, ALL.to_vec()));
                Ok(dead.is_some())
            }
        })?;
        Ok(next)
    }

    fn steps(&self, world: &World) -> Result<Vec<World>, String> {
        let mut next = self.owner(world)?;
        for p in ALL {
            let mut world = world.clone();
            if self.process(&mut world, p) {
                next.push(world);
            }
        }
        for p in self.mortal {
            let mut world = world.clone();
            if std::mem::take(&mut world.processes[*p].alive) {
                next.push(world);
            }
        }
        Ok(next)
    }

    fn explore(&self) -> Result<usize, String> {
        let begin = self.begin();
        // Only a hash of each seen state is kept.
        let key =
            |world: &World| BuildHasherDefault::<DefaultHasher>::default().hash_one(format!("{world:?}"));
        let mut seen = HashSet::from([key(&begin)]);
        let mut open = vec![begin];
        while let Some(world) = open.pop() {
            let used = world.processes.iter().any(|process| process.alive && process.holds);
            if world.closed && used {
                return Err("the memory of a holder was freed".to_owned());
            }
            let next = self.steps(&world)?;
            if next.is_empty() && !(world.table.is_empty() && world.table.is_settled()) {
                return Err(format!("something is left: {:?}", world.table));
            }
            open.extend(next.into_iter().filter(|world| seen.insert(key(world))));
        }
        Ok(seen.len())
    }
}

#[track_caller]
fn holds(mortal: &'static [usize], rejects: bool) {
    let states =
        Model { flaw: Flaw::None, mortal, rejects }.explore().unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(states > 90, "a model of nothing: {states}");
}

#[track_caller]
fn breaks(flaw: Flaw, mortal: &'static [usize], how: &str) {
    let wrong = Model { flaw, mortal, rejects: false }.explore().expect_err("the model does not notice");
    assert!(wrong.contains(how), "another failure: {wrong}");
}

#[test]
fn whoever_was_forwarded_a_lease_is_believed() {
    holds(&[], false);
}

#[test]
fn deaths_refuse_nobody_and_leave_nothing() {
    holds(if thorough() { &[0, 1] } else { &[0] }, false);
}

#[test]
fn what_nobody_takes_goes_with_its_forwarder() {
    holds(&[], true);
    holds(&[0, 1], true);
}

#[test]
fn the_owner_is_told_before_the_frame() {
    breaks(Flaw::ForwardBehindFrame, &[], "refused");
}

#[test]
fn the_owner_reads_every_ring_once_more() {
    breaks(Flaw::NoPass, &[], "refused");
    breaks(Flaw::NoPassForForwards, &[], "refused");
}

#[test]
fn the_leases_of_the_dead_go_behind_what_came_of_their_frames() {
    breaks(Flaw::EvictBeforeDrain, &[0], "refused");
    breaks(Flaw::NothingGoesWithTheDead, &[0], "left");
}

/// Two processes forward to a third, which takes the frame of the second first. The second releases its lease
/// before the frame of the first is taken.
#[test]
fn a_hold_takes_the_forward_of_whom_it_names() {
    let mut table = LeaseTable::default();
    let (entry, life) = table.open((), Uses::new());
    for by in [0, 1] {
        table.grant(entry, life, name(by)).expect("just opened");
        table.forward(entry, life, name(by), name(2)).expect("it holds one");
    }
    assert_eq!(table.hold(entry, life, name(2), name(1)), Ok(true));
    table.give_back(entry, life, name(1), &[]).expect("it holds one");
    while let Some(pass) = table.begin_pass() {
        table.end_pass(pass);
    }
    assert_eq!(table.hold(entry, life, name(2), name(0)), Ok(true));
    assert_eq!(table.forwards(entry, life), (0, 0));
}

/// A liar passes memory on and does not announce it. Its receiver also has the memory from the owner and
/// passes that on, and its forward is believed.
#[test]
fn a_silent_forwarder_takes_nothing_from_who_was_granted_a_lease() {
    let mut table = LeaseTable::default();
    let (entry, life) = table.open((), Uses::new());
    table.grant(entry, life, name(0)).expect("just opened");
    assert_eq!(table.hold(entry, life, name(1), name(0)), Ok(false));
    table.forward(entry, life, name(1), name(2)).expect("it may hold one");
    table.grant(entry, life, name(1)).expect("just opened");
    table.forward(entry, life, name(1), name(2)).expect("it holds one");
    assert_eq!(table.hold(entry, life, name(2), name(1)), Ok(true));
}

/// Two processes each forward to the same third, which forwards both leases on. It handles the second lease
/// after it has released the first, and after the processes before it have released theirs.
#[test]
fn the_oldest_forward_is_taken_first() {
    let mut table = LeaseTable::default();
    let (entry, life) = table.open((), Uses::new());
    let (first, second, third, last) = (name(0), name(1), name(2), ProcessId::new(4, 0).expect("small"));
    table.grant(entry, life, first).expect("just opened");
    table.forward(entry, life, first, second).expect("it holds one");
    table.forward(entry, life, first, third).expect("it holds one");
    assert_eq!(table.hold(entry, life, third, first), Ok(true));
    table.forward(entry, life, third, last).expect("it holds one");
    table.give_back(entry, life, third, &[]).expect("it holds one");
    assert_eq!(table.hold(entry, life, third, second), Ok(false));
    table.forward(entry, life, third, last).expect("it may hold one");
    assert_eq!(table.hold(entry, life, second, first), Ok(true));
    table.forward(entry, life, second, third).expect("it holds one");
    assert_eq!(table.hold(entry, life, last, third), Ok(true));
    while let Some(pass) = table.begin_pass() {
        table.end_pass(pass);
    }
    assert_eq!(table.hold(entry, life, last, third), Ok(true), "it was forwarded twice");
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Hold(u16, u16),
    Forward(u16, u16),
    Release(u16),
    Begin,
    End,
}

fn act() -> impl Strategy<Value = Act> {
    let liar = || 1_u16..5;
    prop_oneof![
        3 => (liar(), liar()).prop_map(|(who, by)| Act::Hold(who, by)),
        3 => (liar(), liar()).prop_map(|(by, to)| Act::Forward(by, to)),
        2 => liar().prop_map(Act::Release),
        1 => Just(Act::Begin),
        1 => Just(Act::End),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else if thorough() { 16_384 } else { 2048 }))]

    /// One of four liars was lent the memory. Every other holder was forwarded the memory by a holder, at
    /// least as often as it holds it, regardless of the lies.
    #[test]
    fn nobody_holds_what_no_holder_forwarded(acts in prop::collection::vec(act(), 1..60)) {
        let (mut table, id) = (LeaseTable::default(), |slot| ProcessId::new(slot, 0).expect("small"));
        let (entry, life) = table.open((), Uses::new());
        table.grant(entry, life, id(1)).expect("just opened");
        let mut passes = Vec::new();
        // Every forward that a process ever announced, whether or not it had the memory.
        let mut said = [[0_u32; 5]; 5];
        for act in acts {
            match act {
                Act::Hold(who, by) => drop(table.hold(entry, life, id(who), id(by))),
                Act::Forward(by, to) => {
                    said[usize::from(by)][usize::from(to)] += u32::from(by != to);
                    if by != to {
                        let _ = table.forward(entry, life, id(by), id(to));
                    }
                }
                Act::Release(who) => drop(table.give_back(entry, life, id(who), &[])),
                Act::Begin => passes.extend(table.begin_pass()),
                Act::End => passes.pop().into_iter().for_each(|pass| table.end_pass(pass)),
            }
            let (_, holders) = table.shares(entry, life).expect("the owner has it");
            let mut reached = vec![1_usize];
            while let Some(new) = (1..5).find(|to| {
                !reached.contains(to) && reached.iter().any(|by| said[*by][*to] > 0)
            }) {
                reached.push(new);
            }
            for (holder, count) in holders {
                let slot = holder.slot();
                prop_assert!(reached.contains(&slot), "{holder} was forwarded nothing");
                let most: u32 = (1..5).map(|by| said[by][slot]).sum::<u32>() + u32::from(slot == 1);
                prop_assert!(count <= most, "{holder} holds {count} of {most}");
            }
        }
        // No hold stays unproven for ever, and an unproven hold only keeps the entry open.
        while let Some(pass) = table.begin_pass() {
            table.end_pass(pass);
        }
        prop_assert_eq!(table.forwards(entry, life).1, 0);
    }
}
