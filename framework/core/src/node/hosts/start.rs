//! Starts of actors on other hosts, for a spawn or a worker that names one.

use std::any::type_name;
use std::ops::ControlFlow;

use crate::actor::{Interpreter, RemoteActor};
use crate::ids::DeviceId;
use crate::node::deferred::Deferred;
use crate::node::group::Supervision;
use crate::node::spawn::{self, ActorError, Ready, Spawn};
use crate::node::spawned::Spawned;
use crate::node::supervisor::hosts::{started_on, starts_on};
use crate::node::supervisor::{NodeClosed, WorkerId};
use crate::transport::gateway_messages::Host;

use super::OnHost;
use super::starter::{NewWorker, Roams, StartIn, ToStart, first_life, start_on};

/// The part of a spawn that matters only to a start on another host.
pub(in crate::node) struct Elsewhere {
    /// The host that it named.
    on: Option<OnHost>,
    /// The interpreter of a worker on another host.
    interpreter: Option<Interpreter>,
    receive_on: Option<DeviceId>,
}

impl Elsewhere {
    pub(in crate::node) fn of<A: RemoteActor, By>(spawn: &Spawn<'_, A, By>) -> Self {
        let interpreter = A::interpreter(&spawn.args);
        Elsewhere { on: spawn.on, interpreter, receive_on: spawn.receive_on }
    }
}

impl<A: RemoteActor> Deferred<A> {
    /// Starts it in a worker of another host, if that worker is of one.
    pub(in crate::node) fn start_in_host_of(
        &self,
        worker: WorkerId,
        device: DeviceId,
    ) -> Result<Option<Spawned<A>>, ActorError> {
        let Some((host, number)) = worker.host_and_number() else { return Ok(None) };
        let host = self.supervisor().host_of(host)?;
        self.start_on(&host, StartIn::This(number), device).map(Some)
    }

    /// Returns the host that `on` means, if it is another one.
    fn other_host(&self, on: OnHost) -> Result<Option<Host>, ActorError> {
        self.supervisor().other_host(on, self.transport.directory.host())
    }

    /// Whether it may continue on other hosts.
    fn roams(&self) -> bool {
        self.how.restart.roams()
    }

    /// Starts it on another host.
    fn start_on(&self, host: &Host, worker: StartIn, device: DeviceId) -> Result<Spawned<A>, ActorError> {
        let (actor, Supervision { restart, group }) = (self.actor_on(device), self.how.clone());
        let closed = |closed: NodeClosed| ActorError::Start(closed.into());
        let joins = starts_on(&self.supervisor(), group.as_ref(), host.number).map_err(closed)?;
        let to_start = ToStart { worker, restart, actor, guest: None, group: joins };
        let started = start_on(&self.transport, host, to_start);
        let member = started.as_ref().ok().map(|(actor, ..)| *actor);
        // The group does not miss an actor that would not come back anyway.
        let member = member.filter(|_| restart.when().after(true));
        started_on(&self.supervisor(), group.as_ref(), host.number, member);
        let (actor, location, worker) = started?;
        Ok(self.spawned(actor, location, worker))
    }

    /// Starts it on another host, from which it may continue on a third.
    fn start_roaming(&self, host: &Host, worker: NewWorker, spares: u32) -> Result<Spawned<A>, ActorError> {
        let (actor, Supervision { restart, group }) = (self.actor.clone(), self.how.clone());
        let made_of = Roams { worker, restart, actor, spares, group };
        let started = first_life(&self.supervisor(), &self.transport, host, made_of);
        started.map(|(actor, location, worker)| self.spawned(actor, location, worker))
    }
}

impl<A: RemoteActor> Ready<A> {
    /// Starts it on the host that the spawn named, if that is another one.
    pub(in crate::node) fn start_elsewhere(self) -> Result<ControlFlow<Spawned<A>, Self>, ActorError> {
        let host = self.elsewhere.on.map(|on| self.deferred.other_host(on)).transpose()?.flatten();
        match host {
            Some(host) => self.start_on(&host).map(ControlFlow::Break),
            None => Ok(ControlFlow::Continue(self)),
        }
    }

    fn start_on(self, host: &Host) -> Result<Spawned<A>, ActorError> {
        let Ready { deferred, worker: new, in_worker, spares, device, elsewhere } = self;
        let Elsewhere { interpreter, receive_on, .. } = elsewhere;
        let spawn::NewWorker { name, program, streams, gpu_budget } = new;
        let stays =
            |what| Err(ActorError::StaysHere { actor: type_name::<A>(), host: host.to_string(), what });
        let worker_there = in_worker.filter(|worker| worker.host() == Some(host.number));
        if in_worker.is_some() && worker_there.is_none() {
            return stays("its worker is of another host");
        }
        if program.is_some() && interpreter.is_none() {
            return stays("its worker runs a program of this host");
        }
        let new = NewWorker { name, streams, interpreter, gpu_budget };
        let roams = deferred.roams();
        if let Some(worker) = worker_there.filter(|_| !roams) {
            return deferred.start(worker);
        }
        if roams {
            let on_host = |device| device == DeviceId::HOST;
            let has_device = !on_host(device) || !receive_on.is_none_or(on_host);
            if has_device || worker_there.is_some() {
                return stays(
                    "its device or its worker is of one host, and its policy lets it go on on others",
                );
            }
            return deferred.start_roaming(host, new, spares);
        }
        let started = deferred.start_on(host, StartIn::New(new), device)?;
        if spares > 0 {
            deferred.supervisor().keep_spares(started.worker(), spares, device);
        }
        Ok(started)
    }
}
