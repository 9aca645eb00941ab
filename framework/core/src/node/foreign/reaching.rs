//! Actors of other hosts that somebody waits for: the gateway is asked for so many of each host at a time,
//! and the others have their turn when one of these has a place, or is known not to be there.
//!
//! **Invariants.** MBX-2: so many of one process wait; of more it is told that they cannot be reached. Nobody
//! is told so because others wait, and the actors of no host hold up those of another; of actors that roam
//! that is their home. Those of one host have their turn in the order in which they were wanted. One that
//! lives nowhere now takes nobody's turn.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::ids::{ActorId, ProcessId};
use crate::node::limits::{MAX_REACHING, MAX_WANTED};

/// See the module.
#[derive(Default)]
pub(super) struct Reaching {
    actors: HashMap<ActorId, Reached>,
    /// By their homes.
    homes: HashMap<u16, OfHome>,
    /// How often each process waits.
    waits: HashMap<ProcessId, usize>,
    came: u64,
}

/// Who waits until an actor is reached, or cannot be.
#[derive(Default)]
pub(super) struct Reached {
    pub(super) senders: HashSet<ProcessId>,
    pub(super) watchers: Vec<(ProcessId, u64)>,
    /// Whether it has a place, which does not take messages yet, or waits for one.
    pub(super) placed: bool,
    turn: Turn,
}

/// How far an actor is that is waited for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    /// Its number among those of its home.
    Waits(u64),
    /// The gateway was asked for it.
    Asked,
    /// It roams, is of this host, and lives nowhere now.
    #[default]
    Away,
}

#[derive(Default)]
struct OfHome {
    asked: usize,
    /// By their turns.
    waiting: BTreeMap<u64, ActorId>,
}

/// A process waits for as many actors as it may.
pub(super) struct TooMany;

impl Reaching {
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn len(&self) -> usize {
        self.actors.len()
    }

    pub(super) fn has(&self, actor: ActorId) -> bool {
        self.actors.contains_key(&actor)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = ActorId> {
        self.actors.keys().copied()
    }

    /// Those that the gateway was asked for.
    pub(super) fn asked(&self) -> impl Iterator<Item = ActorId> {
        self.actors.iter().filter(|(_, of)| of.turn == Turn::Asked).map(|(actor, _)| *actor)
    }

    pub(super) fn senders(&self) -> impl Iterator<Item = ProcessId> {
        self.actors.values().flat_map(|of| of.senders.iter().copied())
    }

    pub(super) fn get_mut(&mut self, actor: ActorId) -> Option<&mut Reached> {
        self.actors.get_mut(&actor)
    }

    /// Whether the gateway was asked for it, and it has no place yet.
    pub(super) fn is_asked(&self, actor: ActorId) -> bool {
        self.actors.get(&actor).is_some_and(|of| of.turn == Turn::Asked && !of.placed)
    }

    /// A process waits for an actor: to send to it, or with a ticket to watch it.
    pub(super) fn wait(
        &mut self,
        from: ProcessId,
        actor: ActorId,
        watches: Option<u64>,
    ) -> Result<(), TooMany> {
        let sends = |of: &Reached| of.senders.contains(&from);
        if watches.is_none() && self.actors.get(&actor).is_some_and(sends) {
            return Ok(());
        }
        let waits = self.waits.entry(from).or_default();
        if *waits >= MAX_WANTED {
            return Err(TooMany);
        }
        *waits += 1;
        if !self.has(actor) {
            self.actors.insert(actor, Reached::default());
            self.has_turn(actor);
        }
        if let Some(of) = self.actors.get_mut(&actor) {
            match watches {
                None => drop(of.senders.insert(from)),
                Some(ticket) => of.watchers.push((from, ticket)),
            }
        }
        Ok(())
    }

    /// The next of a host whom the gateway is to be asked for.
    pub(super) fn next(&mut self, home: u16) -> Option<ActorId> {
        let of_home = self.homes.get_mut(&home).filter(|of| of.asked < MAX_REACHING)?;
        let (_, actor) = of_home.waiting.pop_first()?;
        of_home.asked += 1;
        if let Some(of) = self.actors.get_mut(&actor) {
            of.turn = Turn::Asked;
        }
        Some(actor)
    }

    /// An actor lives nowhere now: it is not asked for, and its turn is another's.
    pub(super) fn is_away(&mut self, actor: ActorId) {
        if let Some(of) = self.actors.get_mut(&actor) {
            let turn = std::mem::take(&mut of.turn);
            self.no_turn(actor, turn);
        }
    }

    /// One that lived nowhere lives again, and has its turn.
    pub(super) fn is_back(&mut self, actor: ActorId) {
        if self.actors.get(&actor).is_some_and(|of| of.turn == Turn::Away) {
            self.has_turn(actor);
        }
    }

    fn has_turn(&mut self, actor: ActorId) {
        let Some(of) = self.actors.get_mut(&actor) else { return };
        self.came += 1;
        of.turn = Turn::Waits(self.came);
        self.homes.entry(actor.host()).or_default().waiting.insert(self.came, actor);
    }

    fn no_turn(&mut self, actor: ActorId, turn: Turn) {
        let Some(of_home) = self.homes.get_mut(&actor.host()) else { return };
        match turn {
            Turn::Waits(number) => drop(of_home.waiting.remove(&number)),
            Turn::Asked => of_home.asked = of_home.asked.saturating_sub(1),
            Turn::Away => {}
        }
        if of_home.asked == 0 && of_home.waiting.is_empty() {
            self.homes.remove(&actor.host());
        }
    }

    /// Nobody waits for it any more.
    pub(super) fn remove(&mut self, actor: ActorId) -> Option<Reached> {
        let of = self.actors.remove(&actor)?;
        self.no_turn(actor, of.turn);
        for process in of.senders.iter().chain(of.watchers.iter().map(|(process, _)| process)) {
            if let Some(waits) = self.waits.get_mut(process) {
                *waits = waits.saturating_sub(1);
                if *waits == 0 {
                    self.waits.remove(process);
                }
            }
        }
        Some(of)
    }

    /// A process has ended. What it has waited for is reached nevertheless.
    pub(super) fn leaves(&mut self, process: ProcessId) {
        if self.waits.remove(&process).is_some() {
            for of in self.actors.values_mut() {
                of.senders.remove(&process);
                of.watchers.retain(|(watcher, _)| *watcher != process);
            }
        }
    }

    /// The gateway has ended: none has a place.
    pub(super) fn no_places(&mut self) {
        self.actors.values_mut().for_each(|of| of.placed = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_lives_nowhere_takes_nobodys_turn() {
        let process = ProcessId::new(2, 0).expect("a process");
        let actor = |number: usize| ActorId::numbered(5, 2 + number as u64);
        let mut reaching = Reaching::default();
        for number in 0..MAX_REACHING + 2 {
            assert!(reaching.wait(process, actor(number), None).is_ok());
        }
        let asked: Vec<_> = std::iter::from_fn(|| reaching.next(5)).collect();
        assert_eq!(asked, (0..MAX_REACHING).map(actor).collect::<Vec<_>>());
        reaching.is_away(actor(7));
        assert!(!reaching.is_asked(actor(7)));
        assert_eq!(reaching.next(5), Some(actor(MAX_REACHING)), "another has its turn");
        // Whoever is away twice, or waits for its turn, gives up none.
        [7, MAX_REACHING + 1].into_iter().for_each(|number| reaching.is_away(actor(number)));
        assert_eq!(reaching.next(5), None);
        // They live again, and have theirs in the order in which they came back.
        [MAX_REACHING + 1, 7, 7].into_iter().for_each(|number| reaching.is_back(actor(number)));
        assert_eq!(reaching.next(5), None);
        (0..2).for_each(|number| assert!(reaching.remove(actor(number)).is_some()));
        assert_eq!([(); 3].map(|()| reaching.next(5)), [Some(actor(MAX_REACHING + 1)), Some(actor(7)), None]);
        (2..MAX_REACHING + 2).for_each(|number| assert!(reaching.remove(actor(number)).is_some()));
        assert!(reaching.homes.is_empty() && reaching.waits.is_empty() && reaching.len() == 0);
    }
}
