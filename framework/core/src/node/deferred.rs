//! An actor that is started later, and perhaps more than once.
//!
//! Used by [`Spawn::start`](super::Spawn::start), and by code that starts actors after the call that
//! described them. A pipeline starts further replicas of a stage from its own thread. There is no
//! [`Node`](super::Node) there, and the arguments are encoded already, because they need not be `Send`.

use std::marker::PhantomData;
use std::sync::Arc;

use super::group::Supervision;
use super::spawn::ActorError;
use super::spawned::Spawned;
use super::supervisor::{Supervisor, WorkerId};
use crate::actor::{NewActor, RemoteActor, takes};
use crate::ids::{ActorId, DeviceId};
use crate::transport::Transport;
use crate::transport::control_channel::Location;

/// See the module. Each start is an actor of its own.
#[doc(hidden)] // for the pipelines, which are another crate
pub struct Deferred<A> {
    pub(super) actor: NewActor,
    pub(super) how: Supervision,
    pub(super) transport: Arc<Transport>,
    supervisor: Arc<Supervisor>,
    kind: PhantomData<fn(A)>,
}

impl<A: RemoteActor> Deferred<A> {
    pub(super) fn new(
        actor: NewActor,
        how: Supervision,
        transport: &Arc<Transport>,
        supervisor: &Arc<Supervisor>,
    ) -> Self {
        let (transport, supervisor) = (Arc::clone(transport), Arc::clone(supervisor));
        Deferred { actor, how, transport, supervisor, kind: PhantomData }
    }

    pub(super) fn supervisor(&self) -> Arc<Supervisor> {
        Arc::clone(&self.supervisor)
    }

    /// Starts it in a worker. Blocks until it takes messages.
    ///
    /// # Errors
    /// [`ActorError`] says what `create` or `prepare` returned, or what is wrong with the worker.
    pub fn start(&self, worker: WorkerId) -> Result<Spawned<A>, ActorError> {
        self.start_with(worker, self.actor.device)
    }

    /// As [`start`](Self::start), on `device` instead of the device that the spawn named, for callers that
    /// know the device only when they know the worker.
    ///
    /// # Errors
    /// As there.
    pub fn start_with(&self, worker: WorkerId, device: DeviceId) -> Result<Spawned<A>, ActorError> {
        if let Some(started) = self.start_in_host_of(worker, device)? {
            return Ok(started);
        }
        let (actor, how) = (self.actor_on(device), self.how.clone());
        let (actor, location) = self.supervisor.start_supervised(worker, actor, how)?;
        Ok(self.spawned(actor, location, worker))
    }

    pub(super) fn actor_on(&self, device: DeviceId) -> NewActor {
        let mut actor = self.actor.clone();
        // If received tensors were meant for the same device, they follow to the new one.
        let named = std::mem::replace(&mut actor.device, device);
        actor.receive_on = actor.receive_on.map(|on| if on == named { device } else { on });
        actor
    }

    pub(super) fn spawned(&self, actor: ActorId, location: Location, worker: WorkerId) -> Spawned<A> {
        let transport = Arc::clone(&self.transport);
        // Wait for the link now, so that the first message goes as all later ones do.
        transport.await_link(actor, location);
        Spawned::new(transport, (actor, location), worker, takes::<A>())
    }
}
