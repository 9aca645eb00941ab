//! Actors of other hosts that processes wait for. The gateway is asked for a bounded number of each host's
//! actors at a time. The others have their turn when one of these has a place, or is known not to be there.
//!
//! **Invariants.** MBX-2: a process waits for at most [`MAX_WANTED`] actors; it is told that further ones
//! cannot be reached. No process is told so because others wait. The actors of one host do not hold up those
//! of another; an actor that roams counts for its home. The actors of one host have their turn in the order
//! in which they were wanted. An actor that lives nowhere now takes no turn.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::ids::{ActorId, ProcessId};
use crate::node::limits::{MAX_REACHING, MAX_WANTED};

/// See the module.
#[derive(Default)]
pub(super) struct Reaching {
    actors: HashMap<ActorId, Reached>,
    /// By their homes.
    homes: HashMap<u16, OfHome>,
    /// How many actors each process waits for.
    waits: HashMap<ProcessId, usize>,
    came: u64,
}

/// The processes that wait until an actor is reached, or cannot be.
#[derive(Default)]
pub(super) struct Reached {
    pub(super) senders: HashSet<ProcessId>,
    pub(super) watchers: Vec<(ProcessId, u64)>,
    /// Whether it has a place that does not take messages yet, or waits for one.
    pub(super) placed: bool,
    turn: Turn,
}

/// The progress of an actor that processes wait for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    /// It waits for its turn, by its number among those of its home.
    Waits(u64),
    /// The gateway was asked for it.
    Asked,
    /// It roams, its home is this host, and it lives nowhere now.
    #[default]
    Away,
}

#[derive(Default)]
struct OfHome {
    asked: usize,
    /// Waiting actors by their turns.
    waiting: BTreeMap<u64, ActorId>,
}

/// The error of a process that already waits for as many actors as it may.
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

    /// Returns the actors that the gateway was asked for.
    pub(super) fn asked(&self) -> impl Iterator<Item = ActorId> {
        self.actors.iter().filter(|(_, of)| of.turn == Turn::Asked).map(|(actor, _)| *actor)
    }

    pub(super) fn senders(&self) -> impl Iterator<Item = ProcessId> {
        self.actors.values().flat_map(|of| of.senders.iter().copied())
    }

    pub(super) fn get_mut(&mut self, actor: ActorId) -> Option<&mut Reached> {
        self.actors.get_mut(&actor)
    }

    /// Whether the gateway was asked for an actor that has no place yet.
    pub(super) fn is_asked(&self, actor: ActorId) -> bool {
        self.actors.get(&actor).is_some_and(|of| of.turn == Turn::Asked && !of.placed)
    }

    /// Notes that a process waits for an actor: to send to it, or, with a ticket, to watch it.
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

    /// Returns the next actor of a host to ask the gateway for.
    pub(super) fn next(&mut self, home: u16) -> Option<ActorId> {
        let of_home = self.homes.get_mut(&home).filter(|of| of.asked < MAX_REACHING)?;
        let (_, actor) = of_home.waiting.pop_first()?;
        of_home.asked += 1;
        if let Some(of) = self.actors.get_mut(&actor) {
            of.turn = Turn::Asked;
        }
        Some(actor)
    }

    /// Gives the turn of an actor that lives nowhere now to another one.
    pub(super) fn is_away(&mut self, actor: ActorId) {
        if let Some(of) = self.actors.get_mut(&actor) {
            let turn = std::mem::take(&mut of.turn);
            self.no_turn(actor, turn);
        }
    }

    /// Puts an actor that lived nowhere and lives again back in line.
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

    /// Removes an actor, for which nobody waits any more.
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

    /// Drops the waits of a process that has ended. The actors are still reached.
    pub(super) fn leaves(&mut self, process: ProcessId) {
        if self.waits.remove(&process).is_some() {
            for of in self.actors.values_mut() {
                of.senders.remove(&process);
                of.watchers.retain(|(watcher, _)| *watcher != process);
            }
        }
    }

    /// Takes all places away, because the gateway has ended.
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
        // An actor that is away already, or waits for its turn, gives up no turn.
        [7, MAX_REACHING + 1].into_iter().for_each(|number| reaching.is_away(actor(number)));
        assert_eq!(reaching.next(5), None);
        // They live again, and have their turns in the order in which they came back.
        [MAX_REACHING + 1, 7, 7].into_iter().for_each(|number| reaching.is_back(actor(number)));
        assert_eq!(reaching.next(5), None);
        (0..2).for_each(|number| assert!(reaching.remove(actor(number)).is_some()));
        assert_eq!([(); 3].map(|()| reaching.next(5)), [Some(actor(MAX_REACHING + 1)), Some(actor(7)), None]);
        (2..MAX_REACHING + 2).for_each(|number| assert!(reaching.remove(actor(number)).is_some()));
        assert!(reaching.homes.is_empty() && reaching.waits.is_empty() && reaching.len() == 0);
    }
}
