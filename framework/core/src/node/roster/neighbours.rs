//! Actors as neighbours know them: by ids that roam, and by the devices for their messages' tensors.

use super::Roster;
use crate::ids::{ActorId, DeviceId, ProcessId};

impl Roster {
    /// Makes an id for an actor that may live on any host.
    pub(crate) fn roaming(&mut self) -> ActorId {
        self.last_actor += 1;
        ActorId::roaming(self.host, self.last_actor)
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
