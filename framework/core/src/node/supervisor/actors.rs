//! Starts actors in workers, and handles the ends that workers report.

use std::ops::ControlFlow;

use crate::actor::NewActor;
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::node::control::{ControlError, Down, encode};
use crate::node::group::Supervision;
use crate::node::registry::check_name;
use crate::observe::log::Severity;
use crate::transport::lifecycle::{EndReason, Lifecycle, RestartWhen};

use super::due_restarts::start_of;
use super::error::NodeClosed;
use super::guest::Guest;
use super::neighbours::Start;
use super::node_state::NodeState;
use super::record::{First, Pending, Worker};
use super::reply::{Reply, Started};
use super::run::SupervisorState;
use super::{StartError, WorkerId};

impl SupervisorState {
    pub(super) fn start_actor(&mut self, start: Start) {
        match self.neighbours.hold_start(&self.node, start) {
            ControlFlow::Continue(start) => self.start_as(start, None),
            ControlFlow::Break(effects) => self.carry_out(effects),
        }
    }

    /// As [`start_actor`](Self::start_actor), when no neighbour has the name, or for a life of `guest`, an
    /// actor whose id and names are a neighbour's.
    pub(super) fn start_as(&mut self, start: Start, guest: Option<Guest>) {
        let Start { worker: id, actor: new, how, reply } = start;
        let Some(index) = self.node.workers.slot_of(id) else {
            reply.answer(Err(self.node.no_such_worker(id, new.type_name)));
            return;
        };
        if let Err(error) = self.try_start(index, new, how, guest, &reply) {
            reply.answer(Err(error));
        }
    }

    fn try_start(
        &mut self,
        index: usize,
        new: NewActor,
        how: Supervision,
        guest: Option<Guest>,
        reply: &Reply<Started>,
    ) -> Result<(), StartError> {
        if self.node.stopping.is_some() {
            return Err(NodeClosed::ShuttingDown.into());
        }
        let Some(worker) = self.node.workers.at_mut(index) else { return Ok(()) };
        if !worker.is_running() || worker.end.told_to_exit {
            return Err(StartError::WorkerExited {
                worker: worker.name.to_string(),
                type_name: new.type_name,
                exit: None,
                why: Some(worker.end.why.clone().unwrap_or_else(|| "it is ending".to_owned())),
            });
        }
        let process = worker.process;
        let life = guest.map_or(0, |guest| guest.life);
        let (actor, location) = match guest {
            None => reserve(&mut self.node.broker, process, new.name.as_deref(), new.capacity)?,
            Some(guest) => self.neighbours.take_in(&mut self.node, process, guest, &new)?,
        };
        self.node.broker.roster.name(actor, new.shown_as());
        self.node.broker.roster.takes(actor, new.takes.clone());
        self.neighbours.is_to_start(&mut self.node, actor, &new);
        let type_name = new.type_name.clone();
        let start = start_of(actor, location, &new, life, how.restart);
        // Encoded once to see whether it fits: sending it would kill the worker for a mistake of the caller.
        let start = Down::Start(start);
        if let Err(ControlError::TooLarge(_) | ControlError::Encode(_)) = encode(&start) {
            self.node.broker.actor_ended(actor);
            return Err(StartError::TooLarge { type_name });
        }
        let device = new.device;
        let Some(worker) = self.node.workers.at_mut(index) else { return Ok(()) };
        worker.uses(device);
        let first = Some(First { made_of: new, how, reply: reply.clone(), life });
        worker.pending.insert(actor, Pending { location, type_name, ended: None, first });
        worker.send(&start, Vec::new());
        self.node.dirty = true;
        self.node.note_time_slices(index, device);
        Ok(())
    }

    /// Takes a worker's report that an actor has started, or could not.
    pub(super) fn actor_started(&mut self, index: usize, actor: ActorId, result: Result<(), String>) {
        let Some(worker) = self.node.workers.at_mut(index) else { return };
        let Some(Pending { location, type_name, ended, first }) = worker.pending.remove(&actor) else {
            return self
                .node
                .complain(index, format!("it speaks of {actor}, which it was not asked to start"));
        };
        let (id, name) = (worker.id, worker.name.to_string());
        self.node.dirty = true;
        // `first` is set for a first start, for which a caller waits. A later life is the policy's concern.
        match (first, result) {
            (Some(First { made_of, how, reply, life }), Ok(())) => {
                // Put it under its policy before the caller hears of it, so that the policy handles a failure
                // that follows at once.
                self.node.broker.roster.started(actor);
                if how.restart.when() != RestartWhen::Never || how.group.is_some() {
                    self.node.supervise(actor, id, made_of, how, life);
                }
                self.neighbours.guest_has_started(&mut self.node, actor, life);
                reply.answer(Ok((actor, location)));
            }
            (Some(First { reply, .. }), Err(why)) if actor.roams() => {
                self.neighbours.guest_failed(&mut self.node, actor);
                reply.answer(Err(StartError::Create { worker: name, type_name, why }));
                self.for_actors.leave_if_empty(&mut self.node, index);
            }
            (Some(First { reply, .. }), Err(why)) => {
                // Its `create` may have handed out its address, so its watchers are told.
                self.node.actor_ended(actor, EndReason::CreateFailed(why.clone()));
                reply.answer(Err(StartError::Create { worker: name, type_name, why }));
                self.for_actors.leave_if_empty(&mut self.node, index);
            }
            (None, Ok(())) => self.node.actor_is_back(actor),
            (None, Err(why)) => {
                self.node.actor_failed(index, actor, EndReason::CreateFailed(why));
            }
        }
        // It ended before the worker said that it had started. Its end is handled now that its start is.
        if let Some((why, away)) = ended {
            self.actor_stopped(index, actor, why, away);
        }
    }

    /// Takes a worker's report that an actor has ended. If `away`, the worker has told its senders to wait
    /// for its next life.
    pub(super) fn actor_stopped(&mut self, index: usize, actor: ActorId, why: Option<EndReason>, away: bool) {
        let is_missed = self.is_missed_by_other_hosts(actor);
        let Some(worker) = self.node.workers.at_mut(index) else { return };
        if let Some(pending) = worker.pending.get_mut(&actor) {
            pending.ended = Some((why, away));
            return;
        }
        let Some(entry) = self.node.broker.roster.actor(actor) else { return };
        if entry.location.process != worker.process {
            return self
                .node
                .complain(index, format!("it says that {actor} has stopped, which is not its own"));
        }
        if let Some(why) = &why {
            let text = format!("{actor} `{}` in worker `{}` ended: {why}", entry.name, worker.name);
            self.node.journal.node(Severity::Error, Some(&worker.name), text);
        }
        let reason = match why {
            // An actor that roams continues elsewhere when this host leaves, unless it has ended by itself.
            why if is_missed
                && self.node.stopping.is_some()
                && (why.is_some() || worker.actors_stop.is_told) =>
            {
                EndReason::NodeStopped
            }
            None => EndReason::Normal,
            Some(reason @ (EndReason::HandlerPanic(_) | EndReason::Linked(_))) => reason,
            // WIRE-1: an actor cannot report other ends.
            Some(other) => EndReason::HandlerPanic(other.to_string()),
        };
        match self.node.actor_failed(index, actor, reason.clone()) {
            true => {}
            // The worker did not know that the end is final, so the node tells the waiting senders.
            false if away => self.node.actor_given_up(actor, reason),
            false => self.node.actor_ended(actor, reason),
        }
        self.for_actors.leave_if_empty(&mut self.node, index);
        self.node.dirty = true;
    }

    /// Whether another host must know that an actor ends because this host does: the actor roams, or is in a
    /// group of that host.
    pub(super) fn is_missed_by_other_hosts(&self, actor: ActorId) -> bool {
        actor.roams() || self.neighbours.is_missed(actor)
    }
}

impl NodeState {
    /// Logs once, for all GPUs, that two workers on one GPU take turns, and what that costs.
    fn note_time_slices(&mut self, index: usize, device: DeviceId) {
        let Some(why) = self.settings.time_slices.as_ref().filter(|_| device != DeviceId::HOST) else {
            return;
        };
        let Some(worker) = self.workers.at(index).filter(|_| !self.noted_time_slices) else { return };
        let shares = |other: &&Worker| {
            other.process != worker.process
                && other.is_running()
                && other.spare.is_none()
                && other.gpus.contains(&device)
        };
        let Some(other) = self.workers.iter().find(shares) else { return };
        let text = format!(
            "workers `{}` and `{}` are both on {device}, in time slices ({why}): where both launch kernels, every turn costs \
             some 145 us; with `Sharing::Mps` kernels overlap, and a worker that dies in one takes the other with it",
            other.name, worker.name
        );
        self.noted_time_slices = true;
        self.journal.node(Severity::Info, None, text);
    }

    fn no_such_worker(&self, id: WorkerId, type_name: String) -> StartError {
        match self.workers.last_of(id).map(|last| (&last.name, &last.state)) {
            Some((name, super::WorkerState::Restarting { reason })) => StartError::WorkerExited {
                worker: name.clone(),
                type_name,
                exit: None,
                why: Some(format!("it is being restarted, try again later; {reason}")),
            },
            Some((name, super::WorkerState::Exited { exit, why })) => {
                StartError::WorkerExited { worker: name.clone(), type_name, exit: *exit, why: why.clone() }
            }
            _ => StartError::UnknownWorker(id),
        }
    }

    pub(super) fn adopt_actor(
        &mut self,
        name: Option<String>,
        capacity: u32,
        takes: Option<u64>,
        reply: &Reply<Started>,
    ) {
        let result = if self.stopping.is_some() {
            Err(NodeClosed::ShuttingDown.into())
        } else {
            reserve(&mut self.broker, ProcessId::NODE, name.as_deref(), capacity)
        };
        if let Ok((actor, _)) = result {
            self.broker.roster.takes(actor, takes.map(|key| vec![key]));
            self.broker.roster.started(actor);
        }
        reply.answer(result);
    }

    /// Handles the end of an actor that no policy restarts.
    pub(super) fn actor_ended(&mut self, actor: ActorId, reason: EndReason) {
        self.broker.actor_ended(actor);
        let event = Lifecycle::Down { actor, reason, will_restart: false };
        self.with_broker(|broker, told| broker.tell(&event, told));
    }
}

/// Reserves a location and a name for an actor, or neither.
fn reserve(
    broker: &mut crate::node::broker::Broker,
    process: ProcessId,
    name: Option<&str>,
    capacity: u32,
) -> Started {
    if let Some(name) = name {
        check_name(name)?;
    }
    let (actor, location) = broker.roster.reserve(process, capacity)?;
    if let Some(name) = name {
        if let Err(error) = broker.give_name(ProcessId::NODE, name.to_owned(), actor) {
            broker.roster.remove(actor);
            return Err(error.into());
        }
        broker.roster.name(actor, name);
    }
    Ok((actor, location))
}
