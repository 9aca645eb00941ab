//! Starts the workers and actors of a plan.
//!
//! All workers start first, at once. Then the actors start, from the sinks to the sources, and each gets the
//! addresses of its receivers. The addresses are arguments, so a stage that is restarted knows its receivers.
//! Only the receiver of an edge that leads back into a loop is looked up by name.
//!
//! A pipeline stays on the thread that has written it down: the arguments of its stages need not be `Send`.
//! So a start that is awaited runs each step that blocks on a thread of its own ([`Steps`]), and encodes the
//! arguments between them. **On cancellation** the workers end ([`Workers`]), also those that a step was just
//! starting.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::rc::Rc;
use std::sync::Arc;

use tensorpost_core::api::actor::{Address, Ask, Channel, SendFuture};
use tensorpost_core::api::node::{
    ActorError, Node, Restart, StartError, Supervisor, WorkerId, on_own_thread,
};

use super::error::PipelineError;
use super::flow::Draft;
use super::hosts::{Home, Placed, Where, WorkerHosts};
use super::pairs::Partner;
use super::plan::{DEAD, Kind, Plan, RESULTS, StagePlan};
use super::settings::Settings;
use super::work::{Site, Started, Starter, Work};
use super::worker::args::{
    BranchArgs, Config, Control, Directive, Event, Keys, OutletArgs, OverflowArgs, PairSide, Pairer, Pairing,
    PartnerArgs, Receiver, Run,
};

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
    pub(super) workers: Workers,
}

/// Where the steps of a start that block run.
#[derive(Clone, Copy)]
pub(super) enum Steps {
    /// On the caller's thread.
    Here,
    /// Each on a thread of its own, so that the caller's thread goes on.
    Aside,
}

impl Steps {
    /// Runs a step.
    pub(super) async fn run<T: Send + 'static>(
        self,
        step: impl FnOnce() -> T + Send + 'static,
    ) -> std::io::Result<T> {
        match self {
            Steps::Here => Ok(step()),
            Steps::Aside => on_own_thread("tp-start", step).await,
        }
    }
}

/// Workers that were started for a pipeline, by stage and replica. They end with this value, because nothing
/// else would end them.
pub(super) struct Workers {
    of: HashMap<(usize, u16), WorkerId>,
    supervisor: Arc<Supervisor>,
}

impl Workers {
    /// Returns the workers, which the caller ends.
    pub(super) fn keep(mut self) -> Vec<WorkerId> {
        std::mem::take(&mut self.of).into_values().collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.of.values().for_each(|worker| self.supervisor.retire(*worker));
    }
}

/// Starts the workers and actors of a checked plan. If that fails, no worker of it stays.
pub(super) async fn launch(
    node: &Node,
    plan: &Plan,
    works: &[Rc<dyn Work>],
    settings: &Settings,
    steps: Steps,
) -> Result<Launched, PipelineError> {
    let channel = node.channel::<Event>().map_err(ActorError::from);
    let (events, event_channel) =
        channel.map_err(|source| PipelineError::Start { stage: plan.name.clone(), source })?;
    let (supervisor, same_plan) = (Arc::clone(node.supervisor()), plan.clone());
    let (hosts, workers) = steps.run(move || start_workers(&supervisor, &same_plan)).await??;
    let (members, further) =
        start_actors(node, plan, works, settings, (&hosts, &workers), &events, steps).await?;
    for ((home, replica), worker) in &workers.of {
        let (count, device) = hosts.spares(plan, (*home, *replica));
        if count > 0 {
            node.supervisor().keep_spares(*worker, count, device);
        }
    }
    Ok(Launched { members, further, event_channel, workers })
}

async fn start_actors(
    node: &Node,
    plan: &Plan,
    works: &[Rc<dyn Work>],
    settings: &Settings,
    (hosts, workers): (&WorkerHosts, &Workers),
    events: &Address<Event>,
    steps: Steps,
) -> Result<(Vec<Member>, HashMap<usize, Further>), PipelineError> {
    let (mut started, mut further) = (Replicas::new(), HashMap::new());
    let mut members = Vec::new();
    // The stages' keys for items. A loop's end needs that of its beginning, which is not started yet.
    let items: Vec<_> = plan.stages.iter().map(|_| new_key()).collect();
    for stage in plan.sinks_first() {
        let mut replicas = Vec::new();
        let here = &plan.stages[stage];
        let mut starters = Vec::new();
        // Each place gets a starter, also one that has no replica yet: later replicas start on another
        // thread, which does not have the arguments.
        for replica in 0..here.replicas as u16 {
            let site = site(node, plan, settings, (stage, replica), events, (&started, &items))?;
            let not_started = |source| not_started(here, source);
            let starter = Arc::new(Draft::work(works, plan, stage).defer(site).map_err(not_started)?);
            if u32::from(replica) < here.begins_with {
                let worker = workers.of[&(plan.home(stage), if here.beside.is_some() { 0 } else { replica })];
                let home = Home { worker, device: hosts.device((stage, replica)) };
                let start = Arc::clone(&starter);
                let replica_started = steps.run(move || start(home)).await?.map_err(not_started)?;
                members.push(Member::new(plan, (stage, replica), worker, &replica_started));
                replicas.push(replica_started);
            }
            starters.push(starter);
        }
        // Before the stages in front of this one, whose sites take these addresses.
        started.insert(stage, replicas);
        if here.scales() {
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

/// The worker of a further replica that takes no items yet. The worker ends when this is dropped, by a
/// conductor that has not waited for it for example.
pub(super) struct Unopened {
    placed: Placed,
    supervisor: Arc<Supervisor>,
    opens: bool,
}

impl Unopened {
    pub(super) fn worker(&self) -> WorkerId {
        self.placed.home.worker
    }

    /// Keeps the worker, because its replica begins to take items.
    pub(super) fn open(mut self) -> Home {
        self.opens = true;
        self.placed.home
    }
}

impl Drop for Unopened {
    fn drop(&mut self) {
        if !self.opens {
            self.supervisor.retire(self.worker());
        }
    }
}

/// A further replica that has started, and its worker.
pub(super) type StartedReplica = Box<(Started, Unopened)>;

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
    ) -> impl FnOnce() -> Result<Unopened, ActorError> + Send + use<> {
        let name = worker_name(&plan.stages[stage], place);
        let (streams, python) = (self.streams, plan.interpreter_of(stage).cloned());
        let (supervisor, place) = (Arc::clone(supervisor), self.place.clone());
        move || {
            let placed = place.start(&supervisor, (&name, streams, python.as_ref()))?;
            Ok(Unopened { placed, supervisor, opens: false })
        }
    }

    /// Returns a function that starts the replica in its worker; it blocks.
    pub(super) fn replica(
        &self,
        place: u16,
        unopened: Unopened,
    ) -> impl FnOnce() -> Result<StartedReplica, ActorError> + Send + use<> {
        let starter = Arc::clone(&self.starters[usize::from(place)]);
        // `unopened` is kept until the replica has started: it counts the replica on its host.
        move || Ok(Box::new((starter(unopened.placed.home)?, unopened)))
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

/// Returns a key that nobody can guess: each state of the hash is new, and keyed by the system.
fn new_key() -> u64 {
    RandomState::new().hash_one(0)
}

/// Chooses the hosts of the workers, and starts all workers at once.
fn start_workers(supervisor: &Arc<Supervisor>, plan: &Plan) -> Result<(WorkerHosts, Workers), PipelineError> {
    let hosts = WorkerHosts::find(supervisor, plan)?;
    let homes = plan.stages.iter().enumerate().filter(|(_, stage)| stage.beside.is_none());
    let wanted: Vec<(usize, u16, String)> = homes
        .flat_map(|(index, stage)| {
            (0..stage.begins_with as u16).map(move |replica| (index, replica, worker_name(stage, replica)))
        })
        .collect();
    let results: Vec<_> = std::thread::scope(|scope| {
        let hosts = &hosts;
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
    let mut workers = Workers { of: HashMap::new(), supervisor: Arc::clone(supervisor) };
    let mut failure = None;
    for (at, result) in results {
        match result {
            Ok(worker) => drop(workers.of.insert(at, worker)),
            Err(error) => drop(failure.get_or_insert(error)),
        }
    }
    match failure {
        None => Ok((hosts, workers)),
        Some(failure) => Err(failure),
    }
}

fn site<'s>(
    node: &'s Node,
    plan: &Plan,
    settings: &Settings,
    (stage, replica): (usize, u16),
    events: &Address<Event>,
    (started, items): (&Replicas, &[u64]),
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
        may_hold: plan.may_hold(stage),
        is_joined: plan.is_joined(stage),
        resend: plan.at_least_once.is_some(),
        trace: settings.trace.is_some(),
        pairing: pairing(plan, stage),
        pace: here.pace,
        every: plan.told_every(settings).as_millis() as u64,
        events: events.clone(),
        keys: Keys { order: new_key(), notice: new_key(), items: items[stage] },
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
        results: outlet(plan, (stage, replica), RESULTS, started, items),
        dead: outlet(plan, (stage, replica), DEAD, started, items),
        untyped: here.python.is_some(),
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
        let several_ways = plan.comes_several_ways(side);
        PairSide { lanes: lanes.collect(), room, several_ways, sources: sources.collect() }
    });
    Some(Pairing { sides })
}

fn pairer(pair: &Started) -> Pairer {
    Pairer { at: pair.control.clone(), key: pair.keys.notice }
}

fn outlet(
    plan: &Plan,
    (stage, replica): (usize, u16),
    output: u8,
    started: &Replicas,
    items: &[u64],
) -> OutletArgs {
    let branches = plan.edges_from(stage, output).into_iter().map(|(index, edge)| {
        let to = &plan.stages[edge.to];
        // Flows are typed, so these receivers take the items of the flow.
        let at = |to: &Started| to.inlet.clone().map(Receiver::At);
        let receivers = match started.get(&edge.to) {
            // If replicas come and go, only the first is there for good. The conductor tells each new life of
            // the sender about the others.
            Some(replicas) if to.scales() => {
                let others = (1..to.replicas).map(|_| Receiver::Nobody);
                replicas.iter().take(1).filter_map(at).chain(others).collect()
            }
            Some(replicas) => replicas.iter().filter_map(at).collect(),
            None => (0..to.replicas as u16).map(|to| Receiver::Named(name_of(plan, edge.to, to))).collect(),
        };
        let source = plan.stages[stage].kind == Kind::Source;
        BranchArgs {
            stage: to.name.clone(),
            index: edge.to as u16,
            lane: lane(index, replica),
            key: None,
            items: items[edge.to],
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
            to: receivers,
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
    OutletArgs {
        select: plan.stages[stage].outputs[usize::from(output)].select.clone(),
        branches: branches.collect(),
        tell,
        tell_still,
        source: source_number(plan, stage, replica),
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
