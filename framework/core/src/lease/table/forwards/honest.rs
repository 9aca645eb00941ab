//! Some honest processes pass one allocation around and back. In every order of events no process is refused
//! (LEASE-3, WIRE-1).

use std::collections::VecDeque;

use proptest::prelude::*;

use super::model::{Notice, Rings, name};
use super::*;
use crate::os::thorough;

/// How many honest processes there are.
const WHO: usize = 3;

/// The owner's rings, and the number of handles that each honest process has.
struct Honest {
    table: LeaseTable<()>,
    entry: (u32, u32),
    rings: [VecDeque<(Notice, usize)>; WHO],
    handles: [u32; WHO],
    /// Frames under way, by sender and receiver.
    frames: [[u32; WHO]; WHO],
    /// Frames that were taken and whose sender has not released its lease yet, by sender.
    passed: [u32; WHO],
    /// Passes under way, with the rings that they still have to read.
    passes: Vec<(Pass, Rings)>,
}

#[derive(Clone, Copy, Debug)]
enum Honestly {
    /// Sends one of its handles on.
    Send(usize, usize),
    /// The second process takes a frame that the first sent.
    Take(usize, usize),
    /// Sees that a frame of its own was taken, and releases the lease.
    LetGo(usize),
    Drop(usize),
    /// The owner grants one more.
    Grant(usize),
    /// The owner reads a ring.
    Read(usize),
    Begin,
    /// A pass reads the rings that it still has to read, beginning with the last one, and ends.
    End(usize),
}

impl Honest {
    fn new() -> Self {
        let mut table = LeaseTable::default();
        let entry = table.open((), Uses::new());
        let (rings, passes) = (Default::default(), Vec::new());
        Honest { table, entry, rings, handles: [0; WHO], frames: [[0; WHO]; WHO], passed: [0; WHO], passes }
    }

    fn act(&mut self, act: Honestly) -> Result<(), LeaseTableError> {
        match act {
            Honestly::Send(by, to) if by != to && self.handles[by] > 0 => {
                self.handles[by] -= 1;
                self.rings[by].push_back((Notice::Forward, to));
                self.frames[by][to] += 1;
            }
            Honestly::Take(by, to) if self.frames[by][to] > 0 => {
                self.frames[by][to] -= 1;
                self.rings[to].push_back((Notice::Hold, by));
                self.handles[to] += 1;
                self.passed[by] += 1;
            }
            Honestly::LetGo(by) if self.passed[by] > 0 => {
                self.passed[by] -= 1;
                self.rings[by].push_back((Notice::Release, by));
            }
            Honestly::Drop(of) if self.handles[of] > 0 => {
                self.handles[of] -= 1;
                self.rings[of].push_back((Notice::Release, of));
            }
            Honestly::Grant(to) => {
                self.table.grant(self.entry.0, self.entry.1, name(to))?;
                self.handles[to] += 1;
            }
            Honestly::Read(ring) => self.read(ring)?,
            Honestly::Begin => {
                self.passes.extend(self.table.begin_pass().map(|pass| (pass, (0..WHO).collect())));
            }
            Honestly::End(which) if !self.passes.is_empty() => {
                let (pass, rings) = self.passes.remove(which % self.passes.len());
                rings.into_iter().rev().try_for_each(|ring| self.read(ring))?;
                self.table.end_pass(pass);
            }
            _ => {}
        }
        self.table.take_settled().into_iter().try_for_each(|settled| match settled {
            Settled::Refused(_, _, error) => Err(error),
            Settled::GivenBack(..) | Settled::Emptied(_) => Ok(()),
        })
    }

    fn read(&mut self, ring: usize) -> Result<(), LeaseTableError> {
        let (entry, life) = self.entry;
        while let Some((notice, other)) = self.rings[ring].pop_front() {
            match notice {
                Notice::Hold => drop(self.table.hold(entry, life, name(ring), name(other))?),
                Notice::Forward => self.table.forward(entry, life, name(ring), name(other))?,
                Notice::Release => drop(self.table.give_back(entry, life, name(ring), &[])?),
            }
        }
        self.passes.iter_mut().for_each(|(_, rings)| rings.retain(|known| *known != ring));
        Ok(())
    }
}

fn honestly() -> impl Strategy<Value = Honestly> {
    let who = || 0..WHO;
    prop_oneof![
        6 => (who(), who()).prop_map(|(by, to)| Honestly::Send(by, to)),
        6 => (who(), who()).prop_map(|(by, to)| Honestly::Take(by, to)),
        4 => who().prop_map(Honestly::LetGo),
        1 => who().prop_map(Honestly::Drop),
        1 => who().prop_map(Honestly::Grant),
        3 => who().prop_map(Honestly::Read),
        1 => Just(Honestly::Begin),
        1 => who().prop_map(Honestly::End),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else if thorough() { 16_384 } else { 1024 }))]

    /// No honest process is refused, in whatever order the processes pass an allocation around and the owner
    /// reads its rings.
    #[test]
    fn no_honest_process_is_refused(acts in prop::collection::vec(honestly(), 1..200)) {
        let mut world = Honest::new();
        for (step, act) in acts.iter().enumerate() {
            let done = world.act(*act);
            prop_assert!(done.is_ok(), "{done:?} at step {step}, {act:?}");
        }
        // Every frame under way arrives, and every handle is released.
        for by in 0..WHO {
            for to in 0..WHO {
                (0..world.frames[by][to]).for_each(|_| world.act(Honestly::Take(by, to)).expect("nobody lies"));
            }
        }
        for who in 0..WHO {
            (0..world.passed[who]).for_each(|_| world.act(Honestly::LetGo(who)).expect("nobody lies"));
            (0..world.handles[who]).for_each(|_| world.act(Honestly::Drop(who)).expect("nobody lies"));
        }
        for act in (0..world.passes.len()).map(|_| Honestly::End(0)).chain((0..WHO).map(Honestly::Read)) {
            world.act(act).expect("nobody lies");
        }
        while let Some(pass) = world.table.begin_pass() {
            world.table.end_pass(pass);
        }
        let left = world.table.shares(world.entry.0, world.entry.1);
        prop_assert_eq!(left, Some((1, Vec::new())));
        prop_assert_eq!(world.table.forwards(world.entry.0, world.entry.1), (0, 0));
    }
}
