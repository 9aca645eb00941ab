//! Lives of roaming actors: the first, for which a spawn waits, and all others.
//!
//! Used by [`Spawn::start`](crate::node::Spawn::start), and by the supervisor's threads for next lives. The
//! supervisor decides when a life may begin (`supervisor/hosts/roaming.rs`).
//!
//! **Invariants.** HOST-10: only an answer proves that an actor was not started; without one, it may run
//! there. So if the gateway of either host ends, the same host is asked again (`repeated_starts.rs`), until
//! it has answered or has left the node. **On a crash** of the host that is asked the actor may run there.
//! **On cancellation** nothing happens: the thread that begins a life blocks.

use std::sync::Arc;

use super::life::{NextLife, Roams};
use super::{Answer, InGroup, NewWorker, Request, StartIn, ToStart, WorkerOrder, not_done, starter};
use crate::actor::AskError;
use crate::ids::ActorId;
use crate::node::group::Supervision;
use crate::node::hosts::wait::wait_for;
use crate::node::limits::MAX_FAILURE_TEXT;
use crate::node::registry::{NameError, check_name};
use crate::node::spawn::ActorError;
use crate::node::supervisor::hosts::{
    Guest, forget_roaming, note_roaming, reserve_roaming, start_guest, started_on, starts_on,
};
use crate::node::supervisor::{Making, NodeClosed, StartError, Supervisor, WorkerId};
use crate::observe::text::shown;
use crate::transport::control_channel::{ControlChannelClosed, Location};
use crate::transport::gateway_messages::Host;
use crate::transport::inbox::Refusal;
use crate::transport::{AskFailure, Transport};

impl Roams {
    fn life(&self, actor: ActorId, life: u32, group: Option<&InGroup>) -> ToStart {
        ToStart {
            worker: StartIn::New(self.worker.clone()),
            restart: self.restart,
            actor: self.actor.clone(),
            guest: Some(Guest { actor, life }),
            group: group.cloned(),
        }
    }
}

/// Starts a roaming actor for the first time, on another host. It gets its name before that.
pub(in crate::node) fn first_life(
    supervisor: &Supervisor,
    transport: &Arc<Transport>,
    host: &Host,
    mut made_of: Roams,
) -> Result<(ActorId, Location, WorkerId), ActorError> {
    let actor = reserve_roaming(supervisor)?;
    let name = made_of.actor.name.take();
    let named = name.as_ref().map_or(Ok(()), |name| give_name(transport, name, actor));
    // People see the name on all hosts.
    made_of.actor.label = made_of.actor.label.take().or(name);
    let started = named.and_then(|()| {
        let failed = |why| ActorError::Elsewhere { host: host.to_string(), why };
        let joins = starts_on(supervisor, made_of.group.as_ref(), host.number);
        let joins = joins.map_err(|closed| ActorError::Start(closed.into()))?;
        match ask_to_begin(transport, host.number, || made_of.life(actor, 0, joins.as_ref())) {
            // WIRE-1: the host must name the actor that it was asked to take in.
            Ok(Answer::Started { actor: started, location, worker }) if started == actor => {
                Ok((actor, location, WorkerId::of_host(host.number, worker)))
            }
            Ok(other) => Err(not_done(host, other)),
            Err(NotBegun::No(why) | NotBegun::Unknown(why)) => Err(failed(why)),
        }
    });
    // The group knows it as a roaming actor, and not as a member on that host.
    started_on(supervisor, made_of.group.as_ref(), host.number, None);
    match started {
        Ok((actor, location, worker)) => {
            if made_of.spares > 0 {
                supervisor.keep_spares(worker, made_of.spares, made_of.actor.device);
            }
            note_roaming(supervisor, actor, host.number, made_of);
            Ok((actor, location, worker))
        }
        Err(error) => {
            forget_roaming(supervisor, actor);
            Err(error)
        }
    }
}

/// Why there is no answer to a request to begin a life.
enum NotBegun {
    /// The host has not heard the request.
    No(String),
    /// The actor may run there.
    Unknown(String),
}

/// Asks a host to begin a life, and waits. Asks again if a gateway has ended meanwhile.
fn ask_to_begin(
    transport: &Arc<Transport>,
    host: u16,
    life: impl Fn() -> ToStart,
) -> Result<Answer, NotBegun> {
    let mut may_run = false;
    let not_asked = |may_run, why| if may_run { NotBegun::Unknown(why) } else { NotBegun::No(why) };
    loop {
        let asked = wait_for(starter(transport, host).ask(Request::Start(Box::new(life()))));
        let Ok(asked) = asked else {
            let why = "the node has no runtime to ask another host with".to_owned();
            return Err(not_asked(may_run, why));
        };
        let error = match asked {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let why = error.to_string();
        match error {
            AskError::NotSent(_)
            | AskError::NoReply(AskFailure::Refused(
                Refusal::NoSuchActor | Refusal::Undelivered(_) | Refusal::NotPassedOn(_),
            )) => return Err(not_asked(may_run, why)),
            // HOST-10: the request may have come there, and that host knows.
            AskError::NoReply(AskFailure::Refused(Refusal::GatewayEnded(_))) => may_run = true,
            AskError::NoReply(_) | AskError::TimedOut | AskError::LeasesOut(_) => {
                return Err(NotBegun::Unknown(why));
            }
        }
    }
}

/// Gives an actor a name, which is unique in the whole node.
fn give_name(transport: &Arc<Transport>, name: &str, actor: ActorId) -> Result<(), ActorError> {
    let closed = || StartError::from(NodeClosed::Ended);
    check_name(name).map_err(StartError::from)?;
    let registered = wait_for(transport.directory.register(name.to_owned(), actor, &*transport.control))
        .map_err(|_| closed())?;
    let registered = registered.map_err(|ControlChannelClosed| closed())?;
    let refused = registered.err().map(|holder| match holder {
        // No actor holds the name: it was refused for another reason.
        ActorId(0) => NameError::Busy,
        holder if holder.host() != transport.directory.host() => {
            NameError::Elsewhere { name: name.to_owned(), host: holder.host() }
        }
        holder => NameError::Taken { name: name.to_owned(), holder },
    });
    refused.map_or(Ok(()), |error| Err(StartError::from(error).into()))
}

/// Begins the next life of a roaming actor, on the host with the fewest actors.
pub(in crate::node) fn next_life(
    supervisor: &Supervisor,
    actor: ActorId,
    life: u32,
    made_of: &Roams,
) -> NextLife {
    let failed = |why: &dyn std::fmt::Display| NextLife::Failed(shown(why.to_string(), MAX_FAILURE_TEXT));
    let Some(transport) = supervisor.transport_to_hosts() else { return failed(&NodeClosed::Ended) };
    let own = transport.directory.host();
    let host = match supervisor.least_loaded(own) {
        Ok(host) if host == own => {
            return match here(supervisor, made_of, Guest { actor, life }) {
                Ok(()) => NextLife::Here,
                Err(error) => failed(&error),
            };
        }
        Ok(number) => supervisor.host_of(number),
        Err(closed) => return failed(&closed),
    };
    let host = match host {
        Ok(host) => host,
        Err(error) => return failed(&error),
    };
    let group = made_of.group.as_ref();
    let joins = match starts_on(supervisor, group, host.number) {
        Ok(joins) => joins,
        Err(closed) => return failed(&closed),
    };
    let asked = ask_to_begin(&transport, host.number, || made_of.life(actor, life, joins.as_ref()));
    started_on(supervisor, group, host.number, None);
    match asked {
        Ok(Answer::Started { actor: started, worker, .. }) if started == actor => {
            let worker = WorkerId::of_host(host.number, worker);
            if made_of.spares > 0 {
                supervisor
                    .tell_host_of(worker, WorkerOrder::KeepSpares(made_of.spares, made_of.actor.device));
            }
            NextLife::On(host.number)
        }
        Ok(Answer::No(why)) => failed(&not_done(&host, Answer::No(why))),
        Err(NotBegun::No(why)) => failed(&why),
        // HOST-10: it may have started.
        Ok(_) | Err(NotBegun::Unknown(_)) => NextLife::Unknown(host.number),
    }
}

/// Begins a life on this host.
fn here(supervisor: &Supervisor, made_of: &Roams, guest: Guest) -> Result<(), ActorError> {
    let NewWorker { name, streams, interpreter, gpu_budget } = &made_of.worker;
    let program = interpreter.as_ref().map(crate::actor::Interpreter::program);
    let making = Making { gpu_budget: *gpu_budget, ..Making::of(program, *streams) };
    let worker = supervisor.spawn_worker_of(name, making)?;
    let how = Supervision { restart: made_of.restart, group: made_of.group.clone() };
    let started = start_guest(supervisor, worker, made_of.actor.clone(), how, guest);
    match started {
        Ok(_) if made_of.spares > 0 => supervisor.keep_spares(worker, made_of.spares, made_of.actor.device),
        Ok(_) => {}
        Err(error) => {
            // Nobody else knows of the worker.
            supervisor.retire(worker);
            return Err(error.into());
        }
    }
    Ok(())
}
