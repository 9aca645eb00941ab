//! The workers of a pipeline on a node that goes on: they end with the pipeline, and its results stay.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpost::node::{WorkerState, WorkerStatus};
use tensorpost::pipeline::{PipelineError, Progress};
use tensorpost::prelude::*;
use tensorpost::tensor::TensorStatus;
use tensorpost::testing::fault::{Action, Fault};
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::log;
use tensorpost_tests::pipes::{Count, CountArgs, Numbered, Obey, Orders};
use tensorpost_tests::wait::until;
use tracing::Event;
use tracing::field::{Field, Visit};

const SOON: Duration = Duration::from_secs(20);

/// Sends each item to the program, as a copy that its stream makes when a door was opened.
struct Show {
    stream: DeviceStream,
    args: ShowArgs,
}

#[derive(Clone, Serialize, Deserialize)]
struct ShowArgs {
    to: Address<Numbered>,
    door: Option<Door>,
}

impl Sink for Show {
    type Args = ShowArgs;
    type In = Numbered;

    fn create(args: ShowArgs, env: &Env) -> anyhow::Result<Self> {
        Ok(Show { stream: env.stream(), args })
    }

    fn consume(&mut self, item: Numbered) -> anyhow::Result<()> {
        let tensor = item.tensor.ok_or_else(|| anyhow::anyhow!("no tensor"))?;
        let mut copy = self.stream.empty(DType::U32, tensor.shape())?;
        let door = self.args.door.clone();
        self.stream.run((tensor.of::<u32>(), copy.of_mut::<u32>()), move |(from, to)| {
            if let Some(door) = &door {
                door.pass().expect("the gate is there");
            }
            to.copy_from_slice(from);
        })?;
        let shown = Numbered { number: item.number, tensor: Some(copy.freeze()) };
        self.args.to.try_send(shown).map_err(|error| error.reason)?;
        Ok(())
    }
}

/// A stage that cannot be created.
struct Refuse;

impl Source for Refuse {
    type Args = ();
    type Out = Numbered;

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        anyhow::bail!("it will not")
    }

    fn next(&mut self) -> anyhow::Result<Option<Numbered>> {
        Ok(None)
    }
}

fn line(args: ShowArgs) -> Pipeline {
    let flow = Pipeline::new("line").source::<Count>(CountArgs::to(3));
    flow.stage::<Obey>(Orders::default()).sink::<Show>(args).pipeline()
}

fn called(node: &Node, name: &str) -> WorkerStatus {
    node.workers().into_iter().find(|worker| worker.name == name).unwrap()
}

/// Returns how the workers have ended, or the last lives of workers that have to come back.
fn ended(node: &Node) -> Vec<WorkerState> {
    let await_end = |worker: WorkerStatus| node.supervisor().await_end(worker.worker).unwrap();
    node.workers().into_iter().map(await_end).collect()
}

fn is_in_order(state: &WorkerState) -> bool {
    matches!(state, WorkerState::Exited { exit: Some(exit), .. } if exit.success())
}

fn they_end_with_it_and_its_tensors_stay(builder: Builder) {
    let node = builder.start().unwrap();
    let (to, mut shown) = node.channel::<Numbered>().unwrap();
    for _ in 0..3 {
        node.run_pipeline(&line(ShowArgs { to: to.clone(), door: None })).unwrap().wait().unwrap();
        let ends = ended(&node);
        assert!(ends.iter().all(is_in_order), "{ends:?}");
        for number in 0..3 {
            let item = node.block_on(shown.recv()).unwrap();
            assert_eq!(item.number, number);
            let found = node.host_stream().unwrap().download::<u32>(item.tensor.as_ref().unwrap()).unwrap();
            assert_eq!(found, (number as u32..).take(4).collect::<Vec<_>>());
        }
    }
}

/// The last work of a worker may still be going on when the pipeline has ended.
fn what_is_on_a_stream_is_done_before_they_end(builder: Builder) {
    let (node, gate) = (builder.start().unwrap(), Gate::new());
    let (to, mut shown) = node.channel::<Numbered>().unwrap();
    node.run_pipeline(&line(ShowArgs { to, door: Some(gate.door()) })).unwrap().wait().unwrap();
    let item = node.block_on(shown.recv()).unwrap();
    let tensor = item.tensor.unwrap();
    // All others have ended; this one has been told to end.
    until("it is told", || called(&node, "Show").state == WorkerState::Ending);
    assert!(matches!(tensor.wait(Some(Instant::now())), Err(TensorError::TimedOut)));
    for _ in 0..3 {
        gate.pass_one();
    }
    tensor.wait(Some(Instant::now() + SOON)).unwrap();
    assert_eq!(node.host_stream().unwrap().download::<u32>(&tensor).unwrap(), [0, 1, 2, 3]);
    let ends = ended(&node);
    assert!(ends.iter().all(is_in_order), "{ends:?}");
}

/// Until it has ended it answers like any other: a death meanwhile does not make its data suspect.
fn a_death_meanwhile_is_not_theirs(builder: Builder) {
    let (node, gates) = (builder.start().unwrap(), [Gate::new(), Gate::new()]);
    let (to, mut shown) = node.channel::<Numbered>().unwrap();
    let mut made = |name: &str, gate: &Gate| {
        let flow = Pipeline::new("one").source::<Count>(CountArgs::to(1));
        let args = ShowArgs { to: to.clone(), door: Some(gate.door()) };
        node.run_pipeline(&flow.sink::<Show>(args).named(name).pipeline()).unwrap().wait().unwrap();
        until("it is told", || called(&node, name).state == WorkerState::Ending);
        node.block_on(shown.recv()).unwrap().tensor.unwrap()
    };
    let (theirs, lost) = (made("one that ends", &gates[0]), made("one that dies", &gates[1]));
    node.supervisor().kill_worker(called(&node, "one that dies").worker);
    let lost = lost.wait(Some(Instant::now() + SOON));
    assert!(matches!(lost, Err(TensorError::Tainted { .. })), "{lost:?}");
    assert_eq!(theirs.status(), TensorStatus::Pending);
    gates[0].pass_one();
    theirs.wait(Some(Instant::now() + SOON)).unwrap();
    assert_eq!(node.host_stream().unwrap().download::<u32>(&theirs).unwrap(), [0, 1, 2, 3]);
}

/// A worker that always comes back does not when its pipeline has ended.
fn a_restart_policy_does_not_keep_them(builder: Builder) {
    let node = builder.start().unwrap();
    let (to, _shown) = node.channel::<Numbered>().unwrap();
    let flow = Pipeline::new("line").source::<Count>(CountArgs::to(3));
    let flow = flow.stage::<Obey>(Orders::default()).restart(Restart::always(3));
    let pipeline = flow.sink::<Show>(ShowArgs { to, door: None }).pipeline();
    node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    let ends = ended(&node);
    assert!(ends.len() == 3 && ends.iter().all(is_in_order), "{ends:?}");
}

/// Its process dies when all is counted, and the next one has begun.
fn one_that_is_coming_back_ends_too(builder: Builder) {
    let node = builder.start().unwrap();
    let (to, _shown) = node.channel::<Numbered>().unwrap();
    let flow = Pipeline::new("line").source::<Count>(CountArgs::to(3));
    let flow = flow.stage::<Obey>(Orders::default()).restart(Restart::always(3));
    let pipeline = flow.sink::<Show>(ShowArgs { to, door: None }).pipeline();
    let supervisor = Arc::clone(node.supervisor());
    let state = move || supervisor.workers().into_iter().find(|worker| worker.name == "Obey");
    let supervisor = Arc::clone(node.supervisor());
    // This is called once, at the end, before any worker is let go.
    let progress = Progress::to(move |_| {
        supervisor.arm_starts("Obey", Fault::new("worker.open", Action::Delay(Duration::from_millis(300))));
        supervisor.kill_worker(state().unwrap().worker);
        until("it comes back", || state().unwrap().state == WorkerState::Starting);
    });
    let pipeline = pipeline.progress(progress).progress_every(Duration::from_secs(3600));
    node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    let ends = ended(&node);
    assert!(ends.len() == 3 && ends.iter().all(is_in_order), "{ends:?}");
}

/// Holds up the thread that logs that a run of this name is incomplete: its conductor, when it has told all
/// actors to end.
struct HoldsUp(&'static str, Door);

impl HoldsUp {
    fn hears(&self, event: &Event<'_>) {
        let mut found = Named { pipeline: self.0, is_that: false, is_incomplete: false };
        event.record(&mut found);
        if found.is_that && found.is_incomplete {
            self.1.pass().expect("the gate is there");
        }
    }
}

struct Named {
    pipeline: &'static str,
    is_that: bool,
    is_incomplete: bool,
}

impl Visit for Named {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.is_incomplete |= field.name() == "message" && format!("{value:?}") == "a run is incomplete";
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.is_that |= field.name() == "pipeline" && value == self.pipeline;
    }
}

/// Its stage would come back after each end. It has none but the one that is reported, however long the
/// program takes to hear of the run: all workers are let go before their actors are told to end.
fn one_that_always_comes_back_is_let_go_first(builder: Builder) {
    let gate = Gate::new();
    let holds_up = HoldsUp("held up", gate.door());
    let Some(_listening) = log::listen(move |event| holds_up.hears(event)) else { return };
    let node = builder.start().unwrap();
    let (to, _shown) = node.channel::<Numbered>().unwrap();
    let flow = Pipeline::new("held up").source::<Count>(CountArgs::to(3));
    let flow = flow.stage::<Obey>(Orders { panics: Some(1), ..Orders::default() });
    let flow = flow.restart(Restart::always(100).backoff(Duration::from_millis(1), Duration::from_millis(1)));
    let running = node.run_pipeline(&flow.sink::<Show>(ShowArgs { to, door: None }).pipeline()).unwrap();
    let conductor = gate.arrival();
    let is_over = |worker: &WorkerStatus| matches!(worker.state, WorkerState::Exited { .. });
    until("all have ended for good", || node.workers().iter().all(is_over));
    let ends = ended(&node);
    assert!(ends.len() == 3 && ends.iter().all(is_in_order), "{ends:?}");
    conductor.open();
    let report = running.wait().unwrap();
    assert!(!report.is_complete() && report.deaths.len() == 1, "{report}");
}

/// No policy brings a killed worker back.
fn killed_they_end_at_once(builder: Builder) {
    let (node, gate) = (builder.start().unwrap(), Gate::new());
    let flow = Pipeline::new("held").source::<Count>(CountArgs::endless());
    let flow = flow.stage::<Obey>(Orders { door: Some((0, gate.door())), ..Orders::default() });
    let flow = flow.restart(Restart::always(3));
    let (to, _shown) = node.channel::<Numbered>().unwrap();
    let running = node.run_pipeline(&flow.sink::<Show>(ShowArgs { to, door: None }).pipeline()).unwrap();
    let _held = gate.arrival();
    running.kill();
    assert!(matches!(running.wait(), Err(PipelineError::Killed { .. })));
    let ends = ended(&node);
    assert!(ends.len() == 3 && !ends.iter().any(is_in_order), "{ends:?}");
    let is_over = |worker: &WorkerStatus| matches!(worker.state, WorkerState::Exited { .. });
    assert!(node.workers().iter().all(is_over), "{:?}", node.workers());
}

/// The source is started last: the others live already, and one of them would always come back.
fn one_that_does_not_start_leaves_nothing(builder: Builder) {
    let node = builder.start().unwrap();
    let (to, _shown) = node.channel::<Numbered>().unwrap();
    let flow = Pipeline::new("refused").source::<Refuse>(());
    let flow = flow.stage::<Obey>(Orders::default()).restart(Restart::always(3));
    let error = node.run_pipeline(&flow.sink::<Show>(ShowArgs { to, door: None }).pipeline()).unwrap_err();
    assert!(error.to_string().contains("it will not"), "{error}");
    let ends = ended(&node);
    assert!(ends.len() == 3 && ends.iter().all(is_in_order), "{ends:?}");
    let is_over = |worker: &WorkerStatus| matches!(worker.state, WorkerState::Exited { .. });
    assert!(node.workers().iter().all(is_over), "{:?}", node.workers());
}

/// Returns the spares of these workers that are ready.
fn spares(node: &Node, of: &WorkerStatus) -> Vec<WorkerStatus> {
    let mut all = node.workers();
    all.retain(|worker| worker.state == WorkerState::Spare { of: of.worker, ready: true });
    all
}

/// Each replica has its own spare, and the pipeline's end ends the spares too.
fn a_replica_goes_on_in_its_spare(builder: Builder) {
    const COUNT: u64 = 20;
    let (node, gate) = (builder.start().unwrap(), Gate::new());
    let (to, mut shown) = node.channel::<Numbered>().unwrap();
    let flow = Pipeline::new("spare").source::<Count>(CountArgs::to(COUNT));
    let flow = flow.stage::<Obey>(Orders { door: Some((6, gate.door())), ..Orders::default() });
    let flow = flow.replicas(2).ordered().restart(Restart::on_failure(1)).spares(1);
    let pipeline = flow.sink::<Show>(ShowArgs { to, door: None }).pipeline().at_least_once(8);
    let running = node.run_pipeline(&pipeline).unwrap();
    let held = gate.arrival();
    // The two replicas take turns; this is the one with the even numbers.
    let replicas = ["Obey.0", "Obey.1"].map(|name| called(&node, name));
    let mut found = [Vec::new(), Vec::new()];
    until("each has a spare", || {
        found = [spares(&node, &replicas[0]), spares(&node, &replicas[1])];
        found.iter().all(|found| found.len() == 1)
    });
    node.supervisor().kill_worker(replicas[0].worker);
    // The item comes again, to one or the other.
    drop((held, gate.arrival()));
    // An item that was under way may come twice.
    let mut missing: HashSet<_> = (0..COUNT).collect();
    while !missing.is_empty() {
        missing.remove(&node.block_on(shown.recv()).unwrap().number);
    }
    let report = running.wait().unwrap();
    assert!(matches!(&report.deaths[..], [death] if death.restarted), "{report}");
    let now = ["Obey.0", "Obey.1"].map(|name| called(&node, name));
    assert_eq!((now[0].worker, now[0].pid), (replicas[0].worker, found[0][0].pid));
    assert_eq!((now[1].worker, now[1].pid), (replicas[1].worker, replicas[1].pid));
    let is_over = |worker: &WorkerStatus| matches!(worker.state, WorkerState::Exited { .. });
    until("all have ended, the spares too", || node.workers().iter().all(is_over));
}

/// No worker comes back without a policy, so none would use them.
fn spares_without_a_policy_are_a_mistake(builder: Builder) {
    let node = builder.start().unwrap();
    let (to, _shown) = node.channel::<Numbered>().unwrap();
    for (policy, count, says) in [
        (Restart::never(), 1, "nothing comes back without a policy"),
        (Restart::on_failure(1), Node::MAX_SPARES + 1, "spares"),
    ] {
        let flow = Pipeline::new("never").source::<Count>(CountArgs::to(1));
        let flow = flow.stage::<Obey>(Orders::default()).restart(policy).spares(count);
        let pipeline = flow.sink::<Show>(ShowArgs { to: to.clone(), door: None }).pipeline();
        let error = node.run_pipeline(&pipeline).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("Obey"), "{error}");
    }
    assert!(node.workers().is_empty());
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        they_end_with_it_and_its_tensors_stay,
        what_is_on_a_stream_is_done_before_they_end,
        a_death_meanwhile_is_not_theirs,
        a_restart_policy_does_not_keep_them,
        one_that_is_coming_back_ends_too,
        one_that_always_comes_back_is_let_go_first,
        killed_they_end_at_once,
        one_that_does_not_start_leaves_nothing,
        a_replica_goes_on_in_its_spare,
        spares_without_a_policy_are_a_mistake,
    ]
}
