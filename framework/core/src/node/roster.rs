//! The processes and actors that exist, and the location of each actor.

#[cfg(feature = "hosts")]
mod neighbours;

use std::collections::{HashMap, HashSet, VecDeque};

use crate::ids::{ActorId, ProcessId};
use crate::limits::{MAX_ACTORS, MAX_MAILBOX};
use crate::node::limits::MAX_GIVEN_UP;
use crate::node::supervisor::WorkerId;
use crate::transport::control_channel::Location;
use crate::transport::lifecycle::{EndReason, Whereabouts};

/// An actor that exists, or is being created.
#[derive(Clone, Debug)]
pub(crate) struct ActorEntry {
    pub(crate) location: Location,
    pub(crate) name: String,
    /// The keys of the messages that it handles, in order, if they are known.
    pub(crate) takes: Option<Vec<u64>>,
    /// Whether it can take messages, or could in an earlier life; before that nobody finds it by its name.
    pub(crate) started: bool,
    /// Whether its last life has ended and its next one has not started.
    pub(crate) away: bool,
    /// Whether it has left the location where it was started, or is about to.
    moved: bool,
    /// The worker whose actor has started it, and the bytes that the node keeps of it.
    kept_for: Option<(WorkerId, usize)>,
    /// The device that its messages' tensors are brought to, or the GPU that it works on, in each of its
    /// lives.
    #[cfg(feature = "hosts")]
    device: Option<crate::ids::DeviceId>,
}

impl ActorEntry {
    fn at(location: Location) -> Self {
        ActorEntry {
            location,
            name: String::new(),
            takes: None,
            started: false,
            away: false,
            moved: false,
            kept_for: None,
            #[cfg(feature = "hosts")]
            device: None,
        }
    }
}

/// Why there is no room for an actor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LocationError {
    /// The process has as many actors as it can.
    #[error("{0} hosts {MAX_ACTORS} actors already; start another worker for this one")]
    Full(ProcessId),
    /// A mailbox has room for 1 to [`MAX_MAILBOX`] messages.
    #[error(
        "a mailbox has room for 1 to {MAX_MAILBOX} messages per sending process, not {0}; choose a capacity in that range"
    )]
    Capacity(u32),
}

/// The processes and actors of one node.
#[derive(Default)]
pub(crate) struct Roster {
    living: HashSet<ProcessId>,
    actors: HashMap<ActorId, ActorEntry>,
    /// The number of this host, which is part of its actors' ids.
    pub(crate) host: u16,
    last_actor: u64,
    /// The last actors with a restart policy that ended for good, and why.
    given_up: VecDeque<(ActorId, EndReason)>,
    /// The bytes that the node keeps of actors that actors have started, by the worker of the latter.
    kept: HashMap<WorkerId, usize>,
    // By process, the index after the last one used: an index is used again as late as possible.
    next_index: HashMap<ProcessId, u16>,
}

impl Roster {
    pub(crate) fn join(&mut self, process: ProcessId) {
        self.living.insert(process);
    }

    /// Removes a process and its actors, and returns the removed actors. Actors that are away stay: they come
    /// back elsewhere.
    pub(crate) fn leave(&mut self, process: ProcessId) -> Vec<ActorId> {
        self.living.remove(&process);
        self.next_index.remove(&process);
        let removed: Vec<_> = self
            .actors
            .iter()
            .filter(|(_, a)| a.location.process == process && !a.away)
            .map(|(id, _)| *id)
            .collect();
        for actor in &removed {
            self.remove(*actor);
        }
        removed
    }

    pub(crate) fn lifecycle(&self, process: ProcessId) -> bool {
        self.living.contains(&process)
    }

    pub(crate) fn living(&self) -> impl Iterator<Item = ProcessId> {
        self.living.iter().copied()
    }

    pub(crate) fn actor(&self, actor: ActorId) -> Option<&ActorEntry> {
        self.actors.get(&actor)
    }

    /// Returns all actors.
    pub(crate) fn all(&self) -> impl Iterator<Item = (ActorId, &ActorEntry)> {
        self.actors.iter().map(|(actor, entry)| (*actor, entry))
    }

    pub(crate) fn actors_of(&self, process: ProcessId) -> usize {
        self.actors.values().filter(|a| a.location.process == process).count()
    }

    /// Returns a process's actors, also those that are being created, because others may have their
    /// addresses. Actors between two lives are left out.
    pub(crate) fn those_in(&self, process: ProcessId) -> Vec<ActorId> {
        let there = |entry: &ActorEntry| entry.location.process == process && !entry.away;
        self.actors.iter().filter(|(_, entry)| there(entry)).map(|(actor, _)| *actor).collect()
    }

    /// Makes an id and a location for a new actor of `process`.
    pub(crate) fn reserve(
        &mut self,
        process: ProcessId,
        capacity: u32,
    ) -> Result<(ActorId, Location), LocationError> {
        let actor = ActorId::numbered(self.host, self.last_actor + 1);
        let location = self.insert(actor, process, capacity, false)?;
        self.last_actor += 1;
        Ok((actor, location))
    }

    /// Makes a location in `process` for an actor that is not in the roster. If it is `away`, a life of it
    /// begins there with [`started`](Self::started).
    pub(crate) fn insert(
        &mut self,
        actor: ActorId,
        process: ProcessId,
        capacity: u32,
        away: bool,
    ) -> Result<Location, LocationError> {
        if !(1..=MAX_MAILBOX).contains(&capacity) {
            return Err(LocationError::Capacity(capacity));
        }
        let location = Location { process, index: self.free_index(process)?, capacity };
        self.actors.insert(actor, ActorEntry { away, ..ActorEntry::at(location) });
        Ok(location)
    }

    /// Ends the present life of an actor that will have another, and returns its location.
    pub(crate) fn detach(&mut self, actor: ActorId) -> Option<Location> {
        let entry = self.actors.get_mut(&actor)?;
        (entry.away, entry.moved) = (true, true);
        Some(entry.location)
    }

    /// Makes a location in `process` for the next life of an actor. [`started`](Self::started) begins the
    /// life.
    pub(crate) fn move_to(
        &mut self,
        actor: ActorId,
        process: ProcessId,
    ) -> Result<Option<Location>, LocationError> {
        let index = self.free_index(process)?;
        let Some(entry) = self.actors.get_mut(&actor) else { return Ok(None) };
        entry.away = true;
        entry.location = Location { process, index, ..entry.location };
        Ok(Some(entry.location))
    }

    /// Removes an actor with a restart policy that has ended for good, and remembers why.
    pub(crate) fn give_up(&mut self, actor: ActorId, reason: EndReason) {
        self.remove(actor);
        if self.given_up.len() >= MAX_GIVEN_UP {
            self.given_up.pop_front();
        }
        self.given_up.push_back((actor, reason));
    }

    /// Returns where an actor is.
    pub(crate) fn whereabouts(&self, actor: ActorId) -> Whereabouts {
        match self.actors.get(&actor) {
            Some(entry) if entry.away => Whereabouts::Restarting(entry.location),
            Some(entry) => Whereabouts::At(entry.location),
            None => match self.given_up.iter().find(|(known, _)| *known == actor) {
                Some((_, reason)) => Whereabouts::GaveUp(reason.clone()),
                None => Whereabouts::Nowhere,
            },
        }
    }

    /// Returns the actors that have left the location where they were started, and where they are.
    pub(crate) fn moved(&self) -> impl Iterator<Item = (ActorId, Whereabouts)> {
        let moved = self.actors.iter().filter(|(_, entry)| entry.moved);
        moved.map(|(actor, _)| (*actor, self.whereabouts(*actor)))
    }

    /// Returns an index that no actor of `process` has; it reuses an index as late as possible.
    fn free_index(&mut self, process: ProcessId) -> Result<u16, LocationError> {
        let used: HashSet<u16> = self
            .actors
            .values()
            .filter(|a| a.location.process == process)
            .map(|a| a.location.index)
            .collect();
        let limit = MAX_ACTORS as u16;
        let first = self.next_index.get(&process).copied().unwrap_or(0);
        let index = (0..limit)
            .map(|step| (first + step) % limit)
            .find(|index| !used.contains(index))
            .ok_or(LocationError::Full(process))?;
        self.next_index.insert(process, (index + 1) % limit);
        Ok(index)
    }

    pub(crate) fn name(&mut self, actor: ActorId, name: &str) {
        if let Some(entry) = self.actors.get_mut(&actor) {
            name.clone_into(&mut entry.name);
        }
    }

    /// Sets the keys of the messages that an actor handles, in order, if they are known.
    pub(crate) fn takes(&mut self, actor: ActorId, keys: Option<Vec<u64>>) {
        if let Some(entry) = self.actors.get_mut(&actor) {
            entry.takes = keys;
        }
    }

    pub(crate) fn started(&mut self, actor: ActorId) {
        if let Some(entry) = self.actors.get_mut(&actor) {
            entry.started = true;
            entry.away = false;
        }
    }

    pub(crate) fn remove(&mut self, actor: ActorId) -> Option<ActorEntry> {
        let removed = self.actors.remove(&actor)?;
        if let Some((worker, bytes)) = removed.kept_for
            && let Some(kept) = self.kept.get_mut(&worker)
        {
            *kept = kept.saturating_sub(bytes);
            if *kept == 0 {
                self.kept.remove(&worker);
            }
        }
        Some(removed)
    }

    /// Counts the bytes that the node keeps of an actor, which an actor of `worker` has started, until it
    /// ends for good (MBX-2). It may have ended since.
    pub(crate) fn keep_for(&mut self, worker: WorkerId, actor: ActorId, bytes: usize) {
        if let Some(entry) = self.actors.get_mut(&actor) {
            entry.kept_for = Some((worker, bytes));
            *self.kept.entry(worker).or_default() += bytes;
        }
    }

    /// Returns the bytes that the node keeps of the actors that a worker's actors have started.
    pub(crate) fn kept_for(&self, worker: WorkerId) -> usize {
        self.kept.get(&worker).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_unique_bounded_and_used_again_late() {
        let process = ProcessId::new(1, 0).unwrap();
        let mut roster = Roster::default();
        roster.join(process);
        let locations: Vec<_> = (0..MAX_ACTORS).map(|_| roster.reserve(process, 8).unwrap()).collect();
        let indexes: HashSet<_> = locations.iter().map(|(_, location)| location.index).collect();
        assert_eq!(indexes.len(), MAX_ACTORS);
        assert_eq!(roster.reserve(process, 8).unwrap_err(), LocationError::Full(process));
        assert_eq!(roster.reserve(process, 0).unwrap_err(), LocationError::Capacity(0));

        roster.remove(locations[9].0);
        let (actor, location) = roster.reserve(process, 8).unwrap();
        assert_eq!(location.index, 9);
        assert!(locations.iter().all(|(other, _)| *other != actor), "an actor's id is never used again");
        assert_eq!(roster.leave(process).len(), MAX_ACTORS);
        assert!(!roster.lifecycle(process));

        let (_, first) = roster.reserve(process, 8).unwrap();
        roster.remove(actor);
        assert_eq!((first.index, roster.reserve(process, 8).unwrap().1.index), (0, 1));
    }

    // MBX-2.
    #[test]
    fn bytes_are_kept_for_a_worker_until_its_actors_actors_end_for_good() {
        let (process, worker) = (ProcessId::new(1, 0).unwrap(), WorkerId(7));
        let mut roster = Roster::default();
        roster.join(process);
        let actors: Vec<_> = (0..3).map(|_| roster.reserve(process, 8).unwrap().0).collect();
        actors.iter().for_each(|actor| roster.keep_for(worker, *actor, 10));
        roster.keep_for(worker, ActorId(999), 10);
        assert_eq!((roster.kept_for(worker), roster.kept_for(WorkerId(8))), (30, 0), "one has ended since");
        roster.remove(actors[0]);
        assert_eq!(roster.kept_for(worker), 20);
        roster.detach(actors[1]);
        assert_eq!(roster.leave(process), [actors[2]]);
        assert_eq!(roster.kept_for(worker), 10, "it comes back");
        roster.give_up(actors[1], EndReason::Exit(3));
        assert!(roster.kept.is_empty());
    }

    // DEATH-2.
    #[test]
    fn an_actor_that_comes_back_keeps_its_id_and_gets_another_location() {
        let (old, new) = (ProcessId::new(1, 0).unwrap(), ProcessId::new(1, 1).unwrap());
        let mut roster = Roster::default();
        roster.join(old);
        let (lost, _) = roster.reserve(old, 8).unwrap();
        let (kept, was) = roster.reserve(old, 8).unwrap();
        roster.started(kept);
        assert_eq!(roster.detach(kept), Some(was));
        assert_eq!(roster.leave(old), [lost]);
        assert_eq!(roster.whereabouts(kept), Whereabouts::Restarting(was));
        roster.join(new);
        let location = roster.move_to(kept, new).unwrap().unwrap();
        assert_eq!((location.process, location.capacity), (new, 8));
        assert_eq!(roster.whereabouts(kept), Whereabouts::Restarting(location), "it has not started");
        roster.started(kept);
        assert_eq!(roster.whereabouts(kept), Whereabouts::At(location));

        roster.give_up(kept, EndReason::Exit(3));
        assert_eq!(roster.whereabouts(kept), Whereabouts::GaveUp(EndReason::Exit(3)));
        for other in 0..MAX_GIVEN_UP as u64 {
            roster.give_up(ActorId(1000 + other), EndReason::Exit(4));
        }
        assert_eq!(roster.whereabouts(kept), Whereabouts::Nowhere, "the last ones are remembered");
    }
}
