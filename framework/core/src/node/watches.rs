//! The processes that watch each actor, and how actors that are down went down.
//!
//! Processes watch actors here; each process knows which of its own actors watches. Watching goes through the
//! node, also within one process: only the node knows whether another life follows, and all watchers see one
//! order of events.
//!
//! Bounded (MBX-2): the node remembers the last [`MAX_GIVEN_UP`] actors that are gone, with the reason of
//! their end.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::ids::{ActorId, ProcessId};
use crate::node::limits::MAX_GIVEN_UP;
use crate::transport::lifecycle::{EndReason, Lifecycle};

#[derive(Default)]
pub(crate) struct Watches {
    by_actor: HashMap<ActorId, HashSet<ProcessId>>,
    /// The last event of actors that are between two lives; there are no more than actors.
    down: HashMap<ActorId, Lifecycle>,
    /// The last event of actors that are gone.
    final_events: VecDeque<Lifecycle>,
}

impl Watches {
    /// Notes that `process` watches `actor`, if it `exists`. Returns how it went down, if it is down.
    pub(crate) fn watch(&mut self, process: ProcessId, actor: ActorId, exists: bool) -> Option<Lifecycle> {
        if exists {
            self.by_actor.entry(actor).or_default().insert(process);
            return self.down.get(&actor).cloned();
        }
        let last = self.final_events.iter().find(|event| event.actor() == actor).cloned();
        Some(last.unwrap_or(Lifecycle::Down { actor, reason: EndReason::Forgotten, will_restart: false }))
    }

    /// Notes that nobody in `process` watches `actor` any more.
    pub(crate) fn unwatch(&mut self, process: ProcessId, actor: ActorId) {
        if let Some(watching) = self.by_actor.get_mut(&actor) {
            watching.remove(&process);
            if watching.is_empty() {
                self.by_actor.remove(&actor);
            }
        }
    }

    /// Drops the watches of a process that has ended.
    pub(crate) fn left(&mut self, process: ProcessId) {
        self.by_actor.retain(|_, watching| {
            watching.remove(&process);
            !watching.is_empty()
        });
    }

    /// Returns how many actors are watched or between two lives.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.by_actor.len() + self.down.len()
    }

    /// Notes an event. Returns the processes that watch the actor.
    pub(crate) fn note(&mut self, event: &Lifecycle) -> Vec<ProcessId> {
        let actor = event.actor();
        if event.is_final() {
            self.down.remove(&actor);
            if self.final_events.len() >= MAX_GIVEN_UP {
                self.final_events.pop_front();
            }
            self.final_events.push_back(event.clone());
            return self.by_actor.remove(&actor).into_iter().flatten().collect();
        }
        match event {
            Lifecycle::Up { .. } => self.down.remove(&actor),
            _ => self.down.insert(actor, event.clone()),
        };
        self.by_actor.get(&actor).into_iter().flatten().copied().collect()
    }
}

/// Watches of actors of other hosts.
#[cfg(feature = "hosts")]
impl Watches {
    /// Whether anybody watches `actor`.
    pub(crate) fn is_watched(&self, actor: ActorId) -> bool {
        self.by_actor.contains_key(&actor)
    }

    /// Returns the actors that are watched.
    pub(crate) fn watched(&self) -> impl Iterator<Item = ActorId> {
        self.by_actor.keys().copied()
    }

    /// Forgets that `actor` is down, because nobody will say when it is up again.
    pub(crate) fn forget_down(&mut self, actor: ActorId) {
        self.down.remove(&actor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTOR: ActorId = ActorId(7);

    fn down(actor: ActorId, will_restart: bool) -> Lifecycle {
        Lifecycle::Down { actor, reason: EndReason::Signal(9), will_restart }
    }

    #[test]
    fn who_begins_to_watch_hears_how_it_is_and_then_each_event_once() {
        let (one, other) = (ProcessId::new(1, 0).unwrap(), ProcessId::new(2, 0).unwrap());
        let mut watches = Watches::default();
        assert_eq!(watches.watch(one, ACTOR, true), None, "it is up");
        watches.watch(one, ACTOR, true);
        assert_eq!(watches.note(&down(ACTOR, true)), [one]);
        assert_eq!(watches.watch(other, ACTOR, true), Some(down(ACTOR, true)), "it is down");
        let up = Lifecycle::Up { actor: ACTOR, incarnation: 1 };
        assert_eq!(watches.note(&up).len(), 2);
        watches.unwatch(one, ACTOR);
        let last = Lifecycle::GaveUp { actor: ACTOR, reason: EndReason::Exit(3) };
        assert_eq!(watches.note(&last), [other]);
        assert_eq!(watches.watch(one, ACTOR, false), Some(last));
        assert!(watches.by_actor.is_empty() && watches.down.is_empty(), "nothing is kept of it but its end");
    }

    // MBX-2.
    #[test]
    fn what_is_remembered_is_bounded_and_the_dead_watch_nobody() {
        let process = ProcessId::new(1, 0).unwrap();
        let mut watches = Watches::default();
        watches.note(&down(ACTOR, false));
        (0..MAX_GIVEN_UP as u64).for_each(|other| drop(watches.note(&down(ActorId(1000 + other), false))));
        assert_eq!(watches.final_events.len(), MAX_GIVEN_UP);
        let Some(Lifecycle::Down { reason, will_restart: false, .. }) = watches.watch(process, ACTOR, false)
        else {
            panic!("it is gone");
        };
        assert_eq!(reason, EndReason::Forgotten);
        watches.watch(process, ActorId(8), true);
        watches.left(process);
        assert!(watches.note(&down(ActorId(8), true)).is_empty());
    }
}
