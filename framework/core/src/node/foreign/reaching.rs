//! Actors of other hosts that somebody waits for: the gateway is asked for so many of each host at a time, and the others have their turn
//! when one of these has a place, or is known not to be there.
//!
//! **Invariants.** MBX-2: so many of one process wait; of more it is told that they cannot be reached. Nobody is told so because others
//! wait, and no host that does not answer holds up another. Those of one host have their turn in the order in which they were wanted.

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
    /// Its turn, while the gateway was not asked for it.
    turn: Option<u64>,
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
        self.actors.iter().filter(|(_, of)| of.turn.is_none()).map(|(actor, _)| *actor)
    }

    pub(super) fn senders(&self) -> impl Iterator<Item = ProcessId> {
        self.actors.values().flat_map(|of| of.senders.iter().copied())
    }

    pub(super) fn get_mut(&mut self, actor: ActorId) -> Option<&mut Reached> {
        self.actors.get_mut(&actor)
    }

    /// Whether the gateway was asked for it, and it has no place yet.
    pub(super) fn is_asked(&self, actor: ActorId) -> bool {
        self.actors.get(&actor).is_some_and(|of| of.turn.is_none() && !of.placed)
    }

    /// A process waits for an actor: to send to it, or with a ticket to watch it.
    pub(super) fn wait(
        &mut self,
        from: ProcessId,
        actor: ActorId,
        watches: Option<u64>,
    ) -> Result<(), TooMany> {
        let waits = self.waits.entry(from).or_default();
        if *waits >= MAX_WANTED {
            return Err(TooMany);
        }
        let of = self.actors.entry(actor).or_insert_with(|| {
            self.came += 1;
            self.homes.entry(actor.host()).or_default().waiting.insert(self.came, actor);
            Reached { turn: Some(self.came), ..Reached::default() }
        });
        let is_new = match watches {
            None => of.senders.insert(from),
            Some(ticket) => {
                of.watchers.push((from, ticket));
                true
            }
        };
        *waits += usize::from(is_new);
        Ok(())
    }

    /// The next of a host whom the gateway is to be asked for.
    pub(super) fn next(&mut self, home: u16) -> Option<ActorId> {
        let of_home = self.homes.get_mut(&home).filter(|of| of.asked < MAX_REACHING)?;
        let (_, actor) = of_home.waiting.pop_first()?;
        of_home.asked += 1;
        if let Some(of) = self.actors.get_mut(&actor) {
            of.turn = None;
        }
        Some(actor)
    }

    /// Nobody waits for it any more.
    pub(super) fn remove(&mut self, actor: ActorId) -> Option<Reached> {
        let of = self.actors.remove(&actor)?;
        if let Some(of_home) = self.homes.get_mut(&actor.host()) {
            match of.turn {
                Some(turn) => drop(of_home.waiting.remove(&turn)),
                None => of_home.asked = of_home.asked.saturating_sub(1),
            }
            if of_home.asked == 0 && of_home.waiting.is_empty() {
                self.homes.remove(&actor.host());
            }
        }
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
