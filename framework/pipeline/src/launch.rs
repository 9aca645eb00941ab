//! Starts the workers and actors of a plan.
//!
//! All workers start first, at once. Then the actors start, from the sinks to the sources, and each gets the
//! addresses of its receivers. The addresses are arguments, so a stage that is restarted knows its receivers.
//! Only the receiver of an edge that leads back into a loop is looked up by name.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::rc::Rc;
use std::sync::Arc;

use tensorpost_core::api::actor::{Address, Ask, Channel, SendFuture};
use tensorpost_core::api::node::{ActorError, Node, Restart, StartError, Supervisor, WorkerId};

use super::error::PipelineError;
use super::flow::Draft;
use super::hosts::{Home, Hosts, Placed, Where};
use super::pairs::Partner;
use super::plan::{DEAD, Kind, Plan, RESULTS, StagePlan};
use super::settings::Settings;
use super::work::{Door, Site, Started, Starter, Way, WayTo, Work};
use super::worker::args::{Config, Control, Directive, Event, Keys, Pairer, Pairing, PartnerArgs, Run, Side};
use super::worker::branch::overflow::OverflowArgs;

/// A replica that runs.
pub(super) struct Member {
    pub(super) stage: usize,
    pub(super) replica: u16,
    pub(super) source: bool,
    /// The worker that it is in.
    pub(super) worker: WorkerId,
    run: Address<Run>,
    pub(super) control: Address<Control>,
    /// The address of the actor that takes the items.
    pub(super) inlet: Option<Address<Control>>,
    /// Its key for orders.
    key: u64,
    /// Edge and replica, for each edge out of it.
    pub(super) lanes: Vec<u32>,
}

/// The replicas that run, by stage.
type Replicas = HashMap<usize, Vec<Started>>;

/// A started pipeline.
pub(super) struct Launched {
    pub(super) members: Vec<Member>,
    /// How further replicas are started.
    pub(super) further: HashMap<usize, Further>,
    /// The events of its actors.
    pub(super) event_channel: Channel<Event>,
    /// Its workers. All of them were started for it.
    pub(super) workers: Vec<WorkerId>,
}

/// Starts the workers and actors of a checked plan. If that fails, no worker of it stays.
pub(super) fn launch(
    node: &Node,
    plan: &Plan,
    works: &[Rc<dyn Work>],
    settings: &Settings,
) -> Result<Launched, PipelineError> {
    let channel = node.channel::<Event>().map_err(ActorError::from);
    let (events, event_channel) =
        channel.map_err(|source| PipelineError::Start { stage: plan.name.clone(), source })?;
    let hosts = Hosts::find(node, plan)?;
    let workers = start_workers(node, plan, &hosts)?;
    match start_actors(node, plan, works, settings, (&hosts, &workers), &events) {
        Ok((members, further)) => {
            for ((home, replica), worker) in &workers {
                let (count, device) = hosts.spares(plan, (*home, *replica));
                if count > 0 {
                    node.supervisor().keep_spares(*worker, count, device);
                }
            }
            Ok(Launched { members, further, event_channel, workers: workers.into_values().collect() })
        }
        Err(error) => {
            // Nothing else ends the workers that have started.
            workers.into_values().for_each(|worker| node.supervisor().retire(worker));
            Err(error)
        }
    }
}

fn start_actors(
    node: &Node,
    plan: &Plan,
    works: &[Rc<dyn Work>],
    settings: &Settings,
    (hosts, workers): (&Hosts, &HashMap<(usize, u16), WorkerId>),
    events: &Address<Event>,
) -> Result<(Vec<Member>, HashMap<usize, Further>), PipelineError> {
    let (mut started, mut further) = (Replicas::new(), HashMap::new());
    let mut members = Vec::new();
    for stage in plan.sinks_first() {
        let mut replicas = Vec::new();
        let here = &plan.stages[stage];
        let mut starters = Vec::new();
        // Each place gets a starter, also one that has no replica yet: later replicas start on another
        // thread, which does not have the arguments.
        for replica in 0..here.replicas as u16 {
            let site = site(node, plan, settings, (stage, replica), events, &started)?;
            let not_started = |source| not_started(here, source);
            let starter = Draft::work(works, plan, stage).defer(site).map_err(not_started)?;
            if u32::from(replica) < here.begins_with {
                let worker = workers[&(plan.home(stage), if here.beside.is_some() { 0 } else { replica })];
                let home = Home { worker, device: hosts.device((stage, replica)) };
                let replica_started = starter(home).map_err(not_started)?;
                members.push(Member::new(plan, (stage, replica), worker, &replica_started));
                replicas.push(replica_started);
            }
            starters.push(starter);
        }
        // Before the stages in front of this one, whose sites take these addresses.
        started.insert(stage, replicas);
        if here.scales() {
            let starters = starters.into_iter().map(Arc::new).collect();
            let (streams, place) = (streams_of(plan, stage), hosts.further(plan, stage));
            further.insert(stage, Further { starters, streams, place });
        }
    }
    Ok((members, further))
}

/// Returns the number of streams of a worker: those of all stages in it.
fn streams_of(plan: &Plan, home: usize) -> usize {
    let inside = plan.stages.iter().enumerate().filter(|(stage, _)| plan.home(*stage) == home);
    inside.fold(0, |sum: usize, (_, stage)| sum.saturating_add(stage.streams.max(1)))
}

/// Makes the error of a stage that did not start. It names the stage's type, which the author of the pipeline
/// knows, and not the type of the actor around it.
fn not_started(stage: &StagePlan, mut source: ActorError) -> PipelineError {
    let (name, label) = (stage.name.clone(), stage.label.clone());
    match &mut source {
        ActorError::Args { actor, .. } | ActorError::TensorInArgs(actor) => *actor = in_words(actor),
        ActorError::Start(
            StartError::Create { type_name, .. }
            | StartError::WorkerExited { type_name, .. }
            | StartError::TooLarge { type_name },
        ) => *type_name = label,
        _ => {}
    }
    PipelineError::Start { stage: name, source }
}

/// Returns the last part of the path of the type inside a pipeline's actor.
fn in_words(actor: &'static str) -> &'static str {
    let end = actor.find('<').unwrap_or(actor.len());
    let name = actor[..end].rsplit("::").next().unwrap_or(actor);
    match actor.get(end + 1..) {
        Some(inner) if ["SourceActor", "StageActor", "AsSink"].contains(&name) => {
            in_words(inner.strip_suffix('>').unwrap_or(inner))
        }
        _ => name,
    }
}

/// Returns the name of the worker of a replica.
fn worker_name(stage: &StagePlan, replica: u16) -> String {
    let name = &stage.name;
    if stage.replicas == 1 { name.clone() } else { format!("{name}.{replica}") }
}

/// How further replicas of a stage are started.
pub(super) struct Further {
    /// By place.
    starters: Vec<Arc<Starter>>,
    /// Streams of its workers.
    streams: usize,
    /// Where these start.
    place: Where,
}

impl Further {
    /// Returns a function that starts a worker for a place; it blocks.
    pub(super) fn worker(
        &self,
        supervisor: &Arc<Supervisor>,
        plan: &Plan,
        (stage, place): (usize, u16),
    ) -> impl FnOnce() -> Result<Placed, ActorError> + Send + use<> {
        let name = worker_name(&plan.stages[stage], place);
        let (streams, python) = (self.streams, plan.interpreter_of(stage).cloned());
        let (supervisor, place) = (Arc::clone(supervisor), self.place.clone());
        move || place.start(&supervisor, (&name, streams, python.as_ref()))
    }

    /// Returns a function that starts the replica in its worker; it blocks.
    pub(super) fn replica(
        &self,
        place: u16,
        placed: Placed,
    ) -> impl FnOnce() -> Result<Started, ActorError> + Send + use<> {
        let starter = Arc::clone(&self.starters[usize::from(place)]);
        // `placed` is kept until the replica has started: it counts the replica on its host.
        move || starter(placed.home)
    }
}

impl Member {
    pub(super) fn new(
        plan: &Plan,
        (stage, replica): (usize, u16),
        worker: WorkerId,
        started: &Started,
    ) -> Self {
        let source = plan.stages[stage].kind == Kind::Source;
        let (run, control, inlet) = (started.run.clone(), started.control.clone(), started.inlet.clone());
        Member {
            stage,
            replica,
            source,
            worker,
            run,
            control,
            inlet,
            key: started.keys.order,
            lanes: lanes_from(plan, stage, replica),
        }
    }

    /// Returns the key of an order that goes straight to it; none on this host, where it knows the node.
    fn key(&self) -> Option<u64> {
        self.worker.is_of_another_host().then_some(self.key)
    }

    /// Returns an order as it goes to the member.
    pub(super) fn order(&self, directive: Directive) -> Control {
        Control::Order { key: self.key(), directive }
    }

    /// Asks it to run.
    pub(super) fn run(&self) -> Ask<Run> {
        self.run.ask(Run { key: self.key() })
    }

    /// Sends it an order.
    pub(super) fn send(&self, directive: Directive) -> SendFuture<Control> {
        self.control.send(self.order(directive))
    }

    /// Sends it an order, if there is room now. An order for which there is none is dropped.
    pub(super) fn try_send(&self, directive: Directive) {
        let _ = self.control.try_send(self.order(directive));
    }

    /// Sends it an order, and resolves when it has followed it.
    pub(super) fn ask(&self, directive: Directive) -> Ask<Control> {
        self.control.ask(self.order(directive))
    }

    /// Returns an order as it goes to the member by way of another host, wherever the member is.
    #[cfg(feature = "hosts")]
    pub(super) fn order_by_way_of_a_host(&self, directive: Directive) -> Control {
        Control::Order { key: Some(self.key), directive }
    }
}

impl Keys {
    /// Returns keys that nobody can guess: each state of the hash is new, and keyed by the system.
    fn new() -> Self {
        let key = || RandomState::new().hash_one(0);
        Keys { order: key(), notice: key() }
    }
}

fn start_workers(
    node: &Node,
    plan: &Plan,
    hosts: &Hosts,
) -> Result<HashMap<(usize, u16), WorkerId>, PipelineError> {
    let homes = plan.stages.iter().enumerate().filter(|(_, stage)| stage.beside.is_none());
    let wanted: Vec<(usize, u16, String)> = homes
        .flat_map(|(index, stage)| {
            (0..stage.begins_with as u16).map(move |replica| (index, replica, worker_name(stage, replica)))
        })
        .collect();
    let supervisor = node.supervisor();
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = wanted
            .iter()
            .map(|(stage, replica, name)| {
                let (at, streams) = ((*stage, *replica), streams_of(plan, *stage));
                let python = plan.interpreter_of(*stage);
                (at, scope.spawn(move || hosts.start_worker(supervisor, plan, at, (name, streams, python))))
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(|(at, thread)| (at, join(thread))).collect()
    });
    // Only after all threads have ended, so that a failure ends every worker that has started.
    let (mut workers, mut failure) = (HashMap::new(), None);
    for (at, result) in results {
        match result {
            Ok(worker) => drop(workers.insert(at, worker)),
            Err(error) => drop(failure.get_or_insert(error)),
        }
    }
    match failure {
        None => Ok(workers),
        Some(failure) => {
            workers.into_values().for_each(|worker| supervisor.retire(worker));
            Err(failure)
        }
    }
}

fn site<'s>(
    node: &'s Node,
    plan: &'s Plan,
    settings: &Settings,
    (stage, replica): (usize, u16),
    events: &Address<Event>,
    started: &'s Replicas,
) -> Result<Site<'s>, PipelineError> {
    let here = &plan.stages[stage];
    // The device was found when the plan was checked; it can only have gone since.
    let device = here.on.find().map_err(|error| PipelineError::Start {
        stage: here.name.clone(),
        source: ActorError::from(StartError::Create {
            worker: here.name.clone(),
            type_name: here.label.clone(),
            why: error.to_string(),
        }),
    })?;
    let config = Config {
        stage: here.name.clone(),
        index: stage as u16,
        replica,
        source: source_number(plan, stage, replica),
        on_error: here.on_error,
        lanes: lanes_to(plan, stage),
        restore: plan.restores_order(stage),
        chain: here.depth > 0 || plan.at_least_once.is_some(),
        round: here.window.map(|_| here.depth.saturating_sub(1)),
        holds: plan.holds(stage),
        places: plan.loses_order(stage) && plan.may_hold(stage),
        resend: plan.at_least_once.is_some(),
        trace: settings.trace.is_some(),
        pairing: pairing(plan, stage),
        pace: here.pace,
        every: plan.told_every(settings).as_millis() as u64,
        events: events.clone(),
        keys: Keys::new(),
    };
    let looked_up = plan.edges_to(stage).any(|(_, edge)| edge.feedback);
    Ok(Site {
        node,
        device,
        mailbox: plan.mailbox(stage),
        own_thread: here.own_thread,
        restart: plan.restart(stage),
        name: looked_up.then(|| name_of(plan, stage, replica)),
        config,
        results: way(plan, stage, replica, RESULTS, started),
        dead: way(plan, stage, replica, DEAD, started),
    })
}

fn name_of(plan: &Plan, stage: usize, replica: u16) -> String {
    format!("{}/{}/{replica}", plan.name, plan.stages[stage].name)
}

/// Returns the first part of the ids of a source's items: sources and their replicas, counted.
pub(super) fn source_number(plan: &Plan, stage: usize, replica: u16) -> u16 {
    let before = plan.stages[..stage].iter().filter(|stage| stage.kind == Kind::Source);
    before.map(|stage| stage.replicas as u16).sum::<u16>() + replica
}

fn lane(edge: usize, replica: u16) -> u32 {
    (edge as u32) << 16 | u32::from(replica)
}

pub(super) fn lanes_from(plan: &Plan, stage: usize, replica: u16) -> Vec<u32> {
    let edges = plan.edges.iter().enumerate().filter(|(_, edge)| edge.from.stage == stage);
    edges.map(|(edge, _)| lane(edge, replica)).collect()
}

/// Returns all senders whose end the stage waits for. The edge back into a loop has no end of its own.
fn lanes_to(plan: &Plan, stage: usize) -> Vec<u32> {
    let edges = plan.edges_to(stage).filter(|(_, edge)| !edge.feedback);
    let lanes = edges.flat_map(|(index, edge)| {
        (0..plan.stages[edge.from.stage].replicas as u16).map(move |replica| lane(index, replica))
    });
    lanes.collect()
}

/// Returns the facts by which a `zip` or `join` can tell that no sender can send it anything more.
fn pairing(plan: &Plan, stage: usize) -> Option<Pairing> {
    let pairs = plan.stages[stage].pairs.filter(|_| plan.at_least_once.is_some())?;
    let sides = pairs.sides.map(|side| {
        let edges = plan.edges_to(stage).filter(|(_, edge)| edge.from.stage == side);
        let replicas = plan.stages[side].replicas as u16;
        let lanes = edges.flat_map(|(index, _)| (0..replicas).map(move |replica| lane(index, replica)));
        let sources = plan.sources_of(side).flat_map(|source| {
            let replicas = plan.stages[source].replicas as u16;
            (0..replicas).map(move |replica| source_number(plan, source, replica))
        });
        let room =
            plan.mailbox(side).saturating_mul(plan.processes_before(side)).saturating_mul(replicas.into());
        Side { lanes: lanes.collect(), room, sources: sources.collect() }
    });
    Some(Pairing { sides })
}

fn pairer(pair: &Started) -> Pairer {
    Pairer { at: pair.control.clone(), key: pair.keys.notice }
}

fn way<'s>(plan: &'s Plan, stage: usize, replica: u16, output: u8, started: &'s Replicas) -> Way<'s> {
    let branches = plan.edges_from(stage, output).into_iter().map(|(index, edge)| {
        let to = &plan.stages[edge.to];
        let doors = match started.get(&edge.to) {
            // If replicas come and go, only the first is there for good. The conductor tells each new life of
            // the sender about the others.
            Some(replicas) if to.scales() => {
                let first = replicas.iter().take(1).filter_map(|to| to.inlet.as_ref().map(Door::At));
                let others = (1..to.replicas).map(|_| Door::Nobody);
                first.chain(others).collect()
            }
            Some(replicas) => replicas.iter().filter_map(|to| to.inlet.as_ref().map(Door::At)).collect(),
            None => (0..to.replicas as u16).map(|to| Door::Named(name_of(plan, edge.to, to))).collect(),
        };
        let source = plan.stages[stage].kind == Kind::Source;
        WayTo {
            stage: to.name.clone(),
            index: edge.to as u16,
            lane: lane(index, replica),
            select: to.select.clone(),
            number: plan.loses_order(edge.to).then(|| plan.ahead(edge.to)),
            window: to
                .window
                .filter(|_| !edge.feedback)
                .or(plan.at_least_once.filter(|_| source))
                .or(to.drops.map(|_| plan.under_way(edge.to))),
            overflow: to.drops.map(|drops| OverflowArgs { drops, room: plan.waits_for(edge.to) }),
            max_bytes: to.max_bytes,
            depth: to.depth,
            feedback: edge.feedback,
            restarts: plan.restart(edge.to) != Restart::never(),
            settle_first: plan.settles_first(stage, &edge),
            restarts_together: plan.restarts_together(&edge),
            to: doors,
        }
    });
    // A stage that is not started yet is behind this one only by an edge back into a loop.
    let tell = plan.partners(stage, output).into_iter().filter_map(|Partner { stage, left, branches }| {
        let to = started.get(&stage)?.iter().map(pairer).collect();
        Some(PartnerArgs { to, left, branches })
    });
    let tell = tell.collect();
    let is_source = plan.stages[stage].kind == Kind::Source;
    let pairing = if is_source { plan.pairing(stage) } else { Vec::new() };
    let pairing = pairing.iter().filter_map(|stage| started.get(stage)).flatten();
    let tell_still = pairing.map(pairer).collect();
    Way {
        select: plan.stages[stage].outputs[usize::from(output)].select.clone(),
        branches: branches.collect(),
        tell,
        tell_still,
        source: source_number(plan, stage, replica),
        untyped: plan.stages[stage].python.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::in_words;

    #[test]
    fn an_actor_is_called_by_the_stage_that_it_is_around() {
        for (actor, stage) in [
            ("tensorpost::pipeline::worker::stage::StageActor<my::image::Blur>", "Blur"),
            ("a::StageActor<b::sink::AsSink<my::Save<my::Rgb>>>", "Save"),
            ("a::SourceActor<my::Camera>", "Camera"),
            ("my::Actor<my::Kind>", "Actor"),
            ("Plain", "Plain"),
        ] {
            assert_eq!(in_words(actor), stage);
        }
    }
}
