//! Actors in the roster that other hosts know, and actors of other hosts with a place in the gateway.

use super::{ActorEntry, LocationError, Roster};
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::limits::MAX_MAILBOX;
use crate::transport::control_channel::Location;

impl Roster {
    /// Returns how many actors are in workers of this host other than its gateway, or between two lives
    /// there.
    pub(crate) fn load(&self, gateway: Option<ProcessId>) -> usize {
        let in_worker = |process| process != ProcessId::NODE && Some(process) != gateway;
        self.all().filter(|(_, entry)| in_worker(entry.location.process)).count()
    }

    /// Makes an id for an actor that may live on any host.
    pub(crate) fn roaming(&mut self) -> ActorId {
        self.last_actor += 1;
        ActorId::roaming(self.host, self.last_actor)
    }

    /// Makes a location in `process` for a life of an actor that roams and is not in the roster.
    /// [`started`](Self::started) begins the life.
    pub(crate) fn take_in(
        &mut self,
        actor: ActorId,
        process: ProcessId,
        capacity: u32,
    ) -> Result<Location, LocationError> {
        if !(1..=MAX_MAILBOX).contains(&capacity) {
            return Err(LocationError::Capacity(capacity));
        }
        let location = Location { process, index: self.free_index(process)?, capacity };
        self.actors.insert(actor, ActorEntry { away: true, ..ActorEntry::at(location) });
        Ok(location)
    }

    /// Makes a location in the gateway for an actor of another host. [`started`](Self::started) opens it.
    pub(crate) fn place(
        &mut self,
        actor: ActorId,
        gateway: ProcessId,
        capacity: u32,
    ) -> Result<Location, LocationError> {
        let location = Location { process: gateway, index: self.free_index(gateway)?, capacity };
        self.actors.insert(actor, ActorEntry::at(location));
        Ok(location)
    }

    /// Sets the device for the tensors of an actor's messages: the device that it asked for, or the GPU that
    /// it works on.
    pub(crate) fn works_on(&mut self, actor: ActorId, receive_on: Option<DeviceId>, device: DeviceId) {
        if let Some(entry) = self.actors.get_mut(&actor) {
            entry.device = receive_on.or((device != DeviceId::HOST).then_some(device));
        }
    }

    /// Returns the device for the tensors of an actor's messages, if it has one.
    pub(crate) fn device_of(&self, actor: ActorId) -> Option<DeviceId> {
        self.actors.get(&actor)?.device
    }

    /// Returns a GPU that an actor of a process works on.
    pub(crate) fn gpu_of(&self, process: ProcessId) -> Option<DeviceId> {
        let there = self.actors.values().filter(|entry| entry.location.process == process);
        there.filter_map(|entry| entry.device).find(|device| *device != DeviceId::HOST)
    }
}
