//! From a plan to running actors.
//!
//! All workers start first, at once. Then the actors start, from the sinks to the sources, and each is told the
//! addresses of those it sends to. The addresses are arguments, so a stage that is restarted knows its receivers. Only
//! an edge that leads back into a loop is looked up by name.

use std::collections::HashMap;
use std::rc::Rc;

use tensorpost_core::api::actor::{Address, Channel};
use tensorpost_core::api::node::{ActorError, Node, Restart, StartError, WorkerId};

use super::error::PipelineError;
use super::flow::Draft;
use super::pairs::Partner;
use super::plan::{DEAD, Kind, Plan, RESULTS, StagePlan};
use super::settings::Settings;
use super::work::{Door, Site, Started, Way, WayTo, Work};
use super::worker::args::{Config, Control, Event, Pairing, PartnerArgs, Run, Side};
use super::worker::branch::overflow::OverflowArgs;

/// A replica that runs.
pub(super) struct Member {
    pub(super) stage: usize,
    pub(super) replica: u16,
    pub(super) source: bool,
    /// The worker that it is in.
    pub(super) worker: WorkerId,
    pub(super) run: Address<Run>,
    pub(super) control: Address<Control>,
    /// The name under which others find it.
    pub(super) lanes: Vec<u32>,
}

/// A started pipeline.
pub(super) struct Launched {
    pub(super) members: Vec<Member>,
    /// The events of its actors.
    pub(super) event_channel: Channel<Event>,
    /// Its workers. All of them were started for it.
    pub(super) workers: Vec<WorkerId>,
}

/// Starts the workers and actors of a checked plan. If that fails, nothing of it stays.
pub(super) fn launch(
    node: &Node,
    plan: &Plan,
    works: &[Rc<dyn Work>],
    settings: &Settings,
) -> Result<Launched, PipelineError> {
    let channel = node.channel::<Event>().map_err(ActorError::from);
    let (events, event_channel) =
        channel.map_err(|source| PipelineError::Start { stage: plan.name.clone(), source })?;
    let workers = start_workers(node, plan)?;
    match start_actors(node, plan, works, settings, &workers, &events) {
        Ok(members) => {
            for ((home, _), worker) in &workers {
                let (count, device) = plan.spares(*home);
                node.supervisor().keep_spares(*worker, count, device);
            }
            Ok(Launched { members, event_channel, workers: workers.into_values().collect() })
        }
        Err(error) => {
            // Nobody else closes those that have started.
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
    workers: &HashMap<(usize, u16), WorkerId>,
    events: &Address<Event>,
) -> Result<Vec<Member>, PipelineError> {
    let mut started: HashMap<usize, Vec<Started>> = HashMap::new();
    let mut members = Vec::new();
    for stage in plan.sinks_first() {
        let mut replicas = Vec::new();
        for replica in 0..plan.stages[stage].replicas as u16 {
            let worker =
                workers[&(plan.home(stage), if plan.stages[stage].beside.is_some() { 0 } else { replica })];
            let site = site(node, plan, settings, (stage, replica), worker, events, &started)?;
            let replica_started = Draft::work(works, plan, stage)
                .start(site)
                .map_err(|source| not_started(&plan.stages[stage], source))?;
            members.push(Member {
                stage,
                replica,
                source: plan.stages[stage].kind == Kind::Source,
                worker,
                run: replica_started.run.clone(),
                control: replica_started.control.clone(),
                lanes: lanes_from(plan, stage, replica),
            });
            replicas.push(replica_started);
        }
        started.insert(stage, replicas);
    }
    Ok(members)
}

/// Why a stage did not start, in the words of who wrote the pipeline down: with the stage's type, and not the actor's around
/// it.
fn not_started(stage: &StagePlan, mut source: ActorError) -> PipelineError {
    let (name, label) = (stage.name.clone(), stage.label.clone());
    match &mut source {
        ActorError::UnknownType(_) => return PipelineError::UnknownStage { stage: name, label },
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

/// The last part of the path of what a pipeline's actor is around.
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

fn start_workers(node: &Node, plan: &Plan) -> Result<HashMap<(usize, u16), WorkerId>, PipelineError> {
    let homes = plan.stages.iter().enumerate().filter(|(_, stage)| stage.beside.is_none());
    // By the stage in whose worker they are.
    let mut streams: HashMap<usize, usize> = HashMap::new();
    for (index, stage) in plan.stages.iter().enumerate() {
        let sum = streams.entry(plan.home(index)).or_default();
        *sum = sum.saturating_add(stage.streams.max(1));
    }
    let wanted: Vec<(usize, u16, String)> = homes
        .flat_map(|(index, stage)| {
            (0..stage.replicas as u16).map(move |replica| {
                let name = &stage.name;
                (index, replica, if stage.replicas == 1 { name.clone() } else { format!("{name}.{replica}") })
            })
        })
        .collect();
    let supervisor = node.supervisor();
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = wanted
            .iter()
            .map(|(stage, replica, name)| {
                let (streams, python) = (streams[stage], plan.interpreter_of(*stage));
                ((*stage, *replica), scope.spawn(move || supervisor.spawn_worker_for(name, streams, python)))
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(|(at, thread)| (at, join(thread))).collect()
    });
    let (mut workers, mut failure) = (HashMap::new(), None);
    for (at, result) in results {
        match result {
            Ok(worker) => drop(workers.insert(at, worker)),
            Err(source) => {
                let stage = plan.stages[at.0].name.clone();
                failure.get_or_insert(PipelineError::Worker { stage, source });
            }
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
    worker: WorkerId,
    events: &Address<Event>,
    started: &'s HashMap<usize, Vec<Started>>,
) -> Result<Site<'s>, PipelineError> {
    let here = &plan.stages[stage];
    // It was found when the plan was checked; it can only have gone since.
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
        resend: plan.at_least_once.is_some(),
        trace: settings.trace.is_some(),
        pairing: pairing(plan, stage),
        pace: here.pace,
        every: settings.told_every().as_millis() as u64,
        events: events.clone(),
    };
    let looked_up = plan.edges_to(stage).any(|(_, edge)| edge.feedback);
    Ok(Site {
        node,
        worker,
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

/// The first part of the ids of a source's items: sources and their replicas, counted.
pub(super) fn source_number(plan: &Plan, stage: usize, replica: u16) -> u16 {
    let before = plan.stages[..stage].iter().filter(|stage| stage.kind == Kind::Source);
    before.map(|stage| stage.replicas as u16).sum::<u16>() + replica
}

fn lane(edge: usize, replica: u16) -> u32 {
    (edge as u32) << 16 | u32::from(replica)
}

fn lanes_from(plan: &Plan, stage: usize, replica: u16) -> Vec<u32> {
    let edges = plan.edges.iter().enumerate().filter(|(_, edge)| edge.from.stage == stage);
    edges.map(|(edge, _)| lane(edge, replica)).collect()
}

/// All senders whose end the stage waits for. The way back of a loop has no end of its own.
fn lanes_to(plan: &Plan, stage: usize) -> Vec<u32> {
    let edges = plan.edges_to(stage).filter(|(_, edge)| !edge.feedback);
    let lanes = edges.flat_map(|(index, edge)| {
        (0..plan.stages[edge.from.stage].replicas as u16).map(move |replica| lane(index, replica))
    });
    lanes.collect()
}

/// What a `zip` or `join` needs to know to see that nobody can send it anything more.
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

fn way<'s>(
    plan: &'s Plan,
    stage: usize,
    replica: u16,
    output: u8,
    started: &'s HashMap<usize, Vec<Started>>,
) -> Way<'s> {
    let branches = plan.edges_from(stage, output).into_iter().map(|(index, edge)| {
        let to = &plan.stages[edge.to];
        let doors = match started.get(&edge.to) {
            Some(replicas) => replicas.iter().filter_map(|to| to.inlet.as_deref().map(Door::At)).collect(),
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
    // A stage that is not started yet is behind this one by a way back into a loop only.
    let tell = plan.partners(stage, output).into_iter().filter_map(|Partner { stage, left, branches }| {
        let to = started.get(&stage)?.iter().map(|pair| pair.control.clone()).collect();
        Some(PartnerArgs { to, left, branches })
    });
    let tell = tell.collect();
    let is_source = plan.stages[stage].kind == Kind::Source;
    let pairing = if is_source { plan.pairing(stage) } else { Vec::new() };
    let pairing = pairing.iter().filter_map(|stage| started.get(stage)).flatten();
    let tell_still = pairing.map(|pair| pair.control.clone()).collect();
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
