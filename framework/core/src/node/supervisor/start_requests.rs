//! Starts of actors that actors ask for ([`Env::spawn`](crate::actor::Env::spawn)).
//!
//! The request comes as bytes that the transport does not read ([`ToNode::StartActor`]). A start has up to
//! three steps: a worker, the actor in it, the answer. The end of each step is a command in the supervisor's
//! own queue, so the thread waits for none of them.
//!
//! [`ToNode::StartActor`]: crate::transport::control_channel::ToNode::StartActor
//!
//! **Invariants.** WIRE-1: all of a request is a worker's word. It starts actors only in new workers, in its
//! own, and in those that were started for it; it names no program, no host and no group. A new worker runs
//! the program of the worker that asks. MBX-2: one process has at most [`MAX_STARTS_OF_PROCESS`] starts under
//! way, each with at most [`MAX_START_REQUEST`] bytes, and one worker at most [`MAX_WORKERS_OF_WORKER`]
//! workers. The node keeps at most [`MAX_KEPT_FOR_WORKER`] bytes of the actors that were started for one
//! worker; the roster counts them until the actors end for good.
//!
//! **On a crash** of the asking process its starts go on, as those of a program that drops its handle: the
//! actor may be known by its name. **On cancellation** the same.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::actor::NewActor;
use crate::ids::{DeviceId, ProcessId};
use crate::lease::GpuBudget;
use crate::limits::MAX_MAILBOX;
use crate::node::broker::Delivery;
use crate::node::control::decode;
use crate::node::group::Supervision;
use crate::node::limits::{
    MAX_FAILURE_TEXT, MAX_KEPT_FOR_WORKER, MAX_NAME, MAX_SPARES, MAX_START_REQUEST, MAX_STARTS_OF_PROCESS,
    MAX_TAKEN, MAX_WORKERS_OF_WORKER, cut,
};
use crate::node::restart::Restart;
use crate::observe::text::shown;
use crate::transport::control_channel::{FromNode, StartedActor};
use crate::transport::lifecycle::RestartWhen;

use super::neighbours::{Effect, Start};
use super::node_state::NodeState;
use super::part::Part;
use super::reply::{Reply, Started};
use super::shared::Command;
use super::spares::Spares;
use super::{Making, SpawnError, WorkerId};

/// An actor's request to start another.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::node) struct StartRequest {
    pub(in crate::node) place: StartPlace,
    pub(in crate::node) actor: NewActor,
    pub(in crate::node) restart: Restart,
    /// Spare processes for a new worker.
    pub(in crate::node) spares: u32,
}

/// Where the actor starts.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::node) enum StartPlace {
    /// In a worker of its own, with this name, this number of streams and this budget on each GPU.
    New { name: String, streams: usize, gpu_budget: Option<GpuBudget> },
    /// In the worker of the actor that asks.
    Here,
    /// In a worker that was started for the worker that asks.
    In(WorkerId),
}

/// The process that waits for an answer, and its ticket.
#[derive(Clone, Copy)]
pub(in crate::node) struct Asker {
    from: ProcessId,
    worker: WorkerId,
    ticket: u64,
    /// Bytes that the node will keep of the actor.
    kept: usize,
}

/// The end of a step.
pub(super) enum ForActor {
    Worker(Asker, Box<StartRequest>, Result<WorkerId, SpawnError>),
    Actor { asker: Asker, worker: WorkerId, spares: Option<(u32, DeviceId)>, is_new: bool, started: Started },
}

/// The starts that actors have asked for.
#[derive(Default)]
pub(super) struct ForActors {
    under_way: HashMap<ProcessId, usize>,
    /// The bytes that will be kept of actors that are being started, by the worker that asked.
    to_keep: HashMap<WorkerId, usize>,
    /// Workers that were started for actors, each with the worker that asked and with the number of its
    /// processes, spares included.
    made_for: HashMap<WorkerId, (WorkerId, usize)>,
    /// Processes that are being started, by the worker that asked.
    making: HashMap<WorkerId, usize>,
}

impl Part for ForActors {
    fn left(&mut self, process: ProcessId) {
        self.under_way.remove(&process);
    }
}

impl ForActors {
    /// Returns how many processes were started for a worker, or are being started, as far as they are known
    /// to live.
    fn count_of(&self, worker: WorkerId) -> usize {
        let made =
            self.made_for.values().filter(|(asked, _)| *asked == worker).map(|(_, processes)| processes);
        made.sum::<usize>() + self.making.get(&worker).copied().unwrap_or(0)
    }

    /// Whether a worker was started for an actor.
    pub(super) fn has_made(&self, worker: WorkerId) -> bool {
        self.made_for.contains_key(&worker)
    }

    fn made(&mut self, asked: WorkerId, processes: usize, made: Option<WorkerId>) {
        if let Some(count) = self.making.get_mut(&asked) {
            *count = count.saturating_sub(processes);
            if *count == 0 {
                self.making.remove(&asked);
            }
        }
        if let Some(made) = made {
            self.made_for.insert(made, (asked, processes));
        }
    }

    /// Counts a start, unless the process has too many under way, or the node would keep too much for the
    /// worker. It keeps `kept` bytes already.
    fn begins(&mut self, asker: Asker, kept: usize) -> Result<(), String> {
        let count = self.under_way.entry(asker.from).or_default();
        if *count >= MAX_STARTS_OF_PROCESS {
            return Err(too_many_under_way());
        }
        let to_keep = self.to_keep.get(&asker.worker).copied().unwrap_or(0) + asker.kept;
        if kept + to_keep > MAX_KEPT_FOR_WORKER {
            return Err(too_much_kept());
        }
        *count += 1;
        self.to_keep.insert(asker.worker, to_keep);
        Ok(())
    }

    fn answered(&mut self, asker: Asker) {
        if let Some(count) = self.under_way.get_mut(&asker.from) {
            *count = count.saturating_sub(1);
        }
        if let Some(to_keep) = self.to_keep.get_mut(&asker.worker) {
            *to_keep = to_keep.saturating_sub(asker.kept);
            if *to_keep == 0 {
                self.to_keep.remove(&asker.worker);
            }
        }
    }
}

impl ForActors {
    /// Starts an actor for an actor of the process `from`.
    pub(super) fn begin(
        &mut self,
        node: &mut NodeState,
        from: ProcessId,
        ticket: u64,
        request: &[u8],
    ) -> Option<Effect> {
        let worker = node.workers.of(from).map(|worker| worker.id)?;
        let asker = Asker { from, worker, ticket, kept: 0 };
        if request.len() > MAX_START_REQUEST {
            ForActors::answer_start(node, asker, Err(too_long(request.len())));
            return None;
        }
        let request = match read(request) {
            Ok(request) => request,
            Err(lie) => {
                node.complain(from.slot(), lie);
                return None;
            }
        };
        let asker = Asker { kept: kept(&request), ..asker };
        if let Err(why) = self.begins(asker, node.broker.roster.kept_for(worker)) {
            ForActors::answer_start(node, asker, Err(why));
            return None;
        }
        self.forget_made_for(node);
        let own = match request.place {
            StartPlace::New { .. } => None,
            StartPlace::Here => Some(worker),
            StartPlace::In(other) => Some(other),
        };
        match own {
            None if self.count_of(worker) + processes(&request) > MAX_WORKERS_OF_WORKER => {
                self.end_start(node, asker, Err(too_many_workers()));
            }
            None => {
                *self.making.entry(worker).or_default() += processes(&request);
                ForActors::make_worker_for(node, asker, request);
            }
            Some(other)
                if other == worker
                    || self.made_for.get(&other).is_some_and(|(asked, _)| *asked == worker) =>
            {
                return Some(start_in(node, asker, request, other, false));
            }
            Some(other) => {
                let why = format!(
                    "{other} was not started for an actor of this worker; start the actor with `here()`, in a worker \
                     of a handle that `Env::spawn` returned, or in a worker of its own"
                );
                self.end_start(node, asker, Err(why));
            }
        }
        None
    }

    fn make_worker_for(node: &mut NodeState, asker: Asker, request: StartRequest) {
        let StartPlace::New { ref name, streams, gpu_budget } = request.place else { return };
        let like = Some(asker.worker);
        let (name, making) = (name.clone(), Making { like, gpu_budget, ..Making::of(None, streams) });
        let shared = Arc::clone(&node.shared);
        let reply = Reply::to(move |made| {
            // After the node's end nobody waits.
            let _ = shared.push(Command::ForActor(ForActor::Worker(asker, Box::new(request), made)));
        });
        node.spawn(&name, making, reply);
    }

    /// Goes on with a start.
    pub(super) fn go_on(
        &mut self,
        node: &mut NodeState,
        spares: &mut Spares,
        step: ForActor,
    ) -> Option<Effect> {
        match step {
            ForActor::Worker(asker, request, Ok(worker)) => {
                self.made(asker.worker, processes(&request), Some(worker));
                return Some(start_in(node, asker, *request, worker, true));
            }
            ForActor::Worker(asker, request, Err(error)) => {
                self.made(asker.worker, processes(&request), None);
                self.end_start(node, asker, Err(error.to_string()));
            }
            ForActor::Actor { asker, worker, spares: wanted, started: Ok((actor, location)), .. } => {
                if let Some((count, device)) = wanted {
                    spares.want(node, worker, count, device);
                }
                let worker = worker.0;
                self.end_start(node, asker, Ok(StartedActor { actor, location, worker }));
            }
            ForActor::Actor { asker, worker, is_new, started: Err(error), .. } => {
                if is_new {
                    // Nobody else knows of the worker.
                    node.retire(worker);
                }
                self.end_start(node, asker, Err(error.to_string()));
            }
        }
        None
    }

    /// Forgets workers that neither run nor come back (MBX-2).
    fn forget_made_for(&mut self, node: &NodeState) {
        let between = node.restarts.between.iter().map(|next| next.worker);
        let known: HashSet<_> = node.workers.iter().map(|worker| worker.id).chain(between).collect();
        self.made_for.retain(|worker, _| known.contains(worker));
    }

    fn end_start(&mut self, node: &mut NodeState, asker: Asker, result: Result<StartedActor, String>) {
        self.answered(asker);
        if let Ok(StartedActor { actor, .. }) = &result {
            node.broker.roster.keep_for(asker.worker, *actor, asker.kept);
        }
        ForActors::answer_start(node, asker, result);
    }

    fn answer_start(
        node: &mut NodeState,
        Asker { from, ticket, .. }: Asker,
        result: Result<StartedActor, String>,
    ) {
        let result = result.map_err(|why| shown(why, MAX_FAILURE_TEXT));
        let message = FromNode::ActorStarted { ticket, result };
        node.deliver(vec![Delivery { to: from, message, descriptors: Vec::new() }]);
    }
}

/// Starts the actor in a worker.
fn start_in(node: &NodeState, asker: Asker, request: StartRequest, worker: WorkerId, is_new: bool) -> Effect {
    let StartRequest { actor, restart, spares, .. } = request;
    let spares = (is_new && spares > 0).then_some((spares, actor.device));
    let shared = Arc::clone(&node.shared);
    let reply = Reply::to(move |started| {
        let step = ForActor::Actor { asker, worker, spares, is_new, started };
        let _ = shared.push(Command::ForActor(step));
    });
    let how = Supervision { restart, group: None };
    Effect::Start(Box::new(Start { worker, actor, how, reply }))
}

/// Returns how many processes a request starts: a worker and its spares.
fn processes(request: &StartRequest) -> usize {
    1 + request.spares as usize
}

/// Returns the bytes that the node keeps of an actor as long as it lives. It keeps the arguments only of an
/// actor that comes back.
fn kept(request: &StartRequest) -> usize {
    let NewActor { name, label, type_name, args, takes, .. } = &request.actor;
    let texts = [name.as_deref(), label.as_deref(), Some(type_name)].into_iter().flatten().map(str::len);
    let args = if request.restart.when() == RestartWhen::Never { 0 } else { args.len() };
    let takes = takes.as_ref().map_or(0, |keys| size_of_val(keys.as_slice()));
    size_of::<NewActor>() + texts.sum::<usize>() + args + takes
}

pub(in crate::node) fn too_many_under_way() -> String {
    format!(
        "this process has {MAX_STARTS_OF_PROCESS} starts of actors under way, and no more are taken; await some of them \
         first"
    )
}

pub(in crate::node) fn too_many_workers() -> String {
    format!(
        "at most {MAX_WORKERS_OF_WORKER} workers and spares run for the actors of one worker; put several actors into one \
         worker, with `.worker(..)` or `here()`, or have some end"
    )
}

pub(in crate::node) fn too_much_kept() -> String {
    format!(
        "the node keeps at most {MAX_KEPT_FOR_WORKER} bytes of the actors that one worker's actors have started, with the \
         arguments of those that come back; have some end, or send large data in messages, as tensors"
    )
}

pub(in crate::node) fn too_long(bytes: usize) -> String {
    format!(
        "the request to start an actor has {bytes} bytes, and an actor's request may have {MAX_START_REQUEST}; send large \
         data in a message, as a tensor"
    )
}

/// Reads a request. The asking process has checked all that is checked here, so an error is a lie (WIRE-1).
fn read(bytes: &[u8]) -> Result<StartRequest, String> {
    let mut request: StartRequest =
        decode(bytes).map_err(|error| format!("a request to start an actor: {error}"))?;
    let NewActor { capacity, ref takes, .. } = request.actor;
    if takes.as_ref().is_some_and(|keys| keys.len() > MAX_TAKEN || !keys.is_sorted_by(|a, b| a < b)) {
        return Err("it asks for an actor that takes messages which no actor lists".to_owned());
    }
    if !(1..=MAX_MAILBOX).contains(&capacity) || request.spares > MAX_SPARES {
        return Err(format!(
            "it asks for an actor with a mailbox for {capacity} messages and {} spare workers",
            request.spares
        ));
    }
    if request.restart.roams() {
        return Err("it asks for an actor that continues on other hosts".to_owned());
    }
    request.actor.label = request.actor.label.map(|label| cut(label, MAX_NAME));
    request.actor.type_name = cut(request.actor.type_name, MAX_FAILURE_TEXT);
    request.restart = request.restart.bounded();
    Ok(request)
}

/// Reads a request, for the fuzz target `control`. Returns the capacity of its mailbox and its number of
/// spare workers, or `None` if the worker is told that it lies.
#[cfg(feature = "testing")]
pub(crate) fn testing_read(bytes: &[u8]) -> Option<(u32, u32)> {
    read(bytes).ok().map(|request| (request.actor.capacity, request.spares))
}
