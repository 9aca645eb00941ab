//! A pipeline that cannot go on ends by itself, with the cause; and the failure of a helper is reported to
//! all that wait for it.

use std::time::{Duration, Instant};

use tensorpost::node::Console;
use tensorpost::pipeline::{AfterStage, Many, Pair, PipelineError};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::until;
use tensorpost_watch::console;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Record {
    number: u64,
    round: u32,
    tensors: Vec<Tensor>,
}

/// A source of `items` items, with `tensors` tensors each.
fn records(pipeline: &Pipeline, items: u64, tensors: usize) -> Flow<Record, AfterStage<Record>> {
    let records = pipeline.with((items, tensors)).items("records", |(items, tensors), env| {
        let stream = env.stream();
        (0..items).map_while(move |number| {
            let tensors = (0..tensors).map(|_| Some(stream.zeros(DType::F32, &[4]).ok()?.freeze()));
            Some(Record { number, round: 0, tensors: tensors.collect::<Option<Vec<_>>>()? })
        })
    });
    records.map("map", Ok)
}

/// Its message would have more tensors than a message can hold.
fn windows() -> Pipeline {
    let pipeline = Pipeline::new("windows that fail");
    records(&pipeline, 60, 100).window(8).for_each("drop", |_: Many<Record>| Ok(()));
    pipeline
}

/// The body makes three items of each one.
fn multiplies() -> Pipeline {
    let pipeline = Pipeline::new("rounds that multiply");
    let looped = records(&pipeline, 60, 1).iterate(
        4,
        |flow| {
            let (flow, dead) = flow
                .flat_map("work", |record: Record| {
                    anyhow::ensure!((record.number + u64::from(record.round)) % 7 != 3, "planned");
                    Ok((0..3).map(move |_| Record { round: record.round + 1, ..record.clone() }))
                })
                .on_error(OnError::RetryThenDeadLetter(1))
                .dead_letters();
            dead.for_each("dead", |_| Ok(()));
            flow.map("next", Ok).mailbox(2)
        },
        |record| record.round < 3,
    );
    let [one, other] = looped.round_robin();
    one.for_each("one", |_| Ok(()));
    other.for_each("other", |_| Ok(()));
    pipeline
}

/// One branch of a fork drops every other item, and the halves that the `zip` keeps of the other branch hold
/// their tensors.
fn halves() -> Pipeline {
    let pipeline = Pipeline::new("halves that stay");
    let [left, right] = records(&pipeline, 1_000_000, 200).broadcast();
    let left = left.filter("even", |record| record.number % 2 == 0);
    left.zip(right.map("all", Ok)).for_each("drop", |_: Pair<Record, Record>| Ok(()));
    pipeline
}

fn ends(builder: Builder, pipeline: &Pipeline) -> PipelineError {
    let node = builder.start().unwrap();
    node.run_pipeline(pipeline).unwrap().wait().unwrap_err()
}

fn who_waits_for_a_window_that_fails_is_told(builder: Builder) {
    let error = ends(builder, &windows());
    let PipelineError::Failed { failure, report } = &error else { panic!("{error}") };
    assert!(failure.stage == "window" && failure.why.contains("512"), "{error}");
    assert!(report.waiting.is_empty(), "nobody was cut off: {report}");
    assert!(report.failures.iter().any(|failure| failure.why.contains("the stage kept it")), "{report}");
}

fn a_loop_whose_stages_make_more_than_it_holds_ends_with_that(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("console");
    let node = builder.console(Console::At(path.clone())).start().unwrap();
    // With this limit its actors report five times a second.
    let pipeline = multiplies().hang_limit(Duration::from_millis(400));
    let running = node.run_pipeline(&pipeline).unwrap();
    let (mut console, mut standing) = (console::Console::at(&path).unwrap(), Vec::new());
    until("a watcher sees that it stands, before it is ended", || {
        standing = console.snapshot().unwrap().standing;
        standing.iter().any(|line| line.contains("the stages of a loop wait for each other"))
    });
    assert!(standing.len() == 1 && standing[0].contains("`work`"), "{standing:?}");
    assert!(!standing[0].contains("`records`"), "it is a victim: {standing:?}");
    let error = running.wait().unwrap_err();
    let PipelineError::StandsStill { why, report } = &error else { panic!("{error}") };
    assert!(why.contains("the stages of a loop") && why.contains("`work`"), "{error}");
    assert!(why.contains("several items of one"), "{error}");
    assert!(!report.waiting.is_empty(), "{report}");
}

fn a_zip_that_holds_all_that_a_process_may_hold_ends_with_that(builder: Builder) {
    let error = ends(builder, &halves());
    let PipelineError::StandsStill { why, .. } = &error else { panic!("{error}") };
    assert!(why.contains("`zip` keeps") && why.contains("partners"), "{error}");
    assert!(why.contains("fewer tensors"), "{error}");
}

/// It is in its own code, so nothing says that it does not go on.
fn a_stage_that_is_at_work_is_no_standstill(builder: Builder) {
    let (node, gate) = (builder.start().unwrap(), Gate::new());
    let pipeline = Pipeline::new("slow").hang_limit(Duration::from_secs(1));
    let flow = pipeline.source::<Numbers>(3);
    flow.sink::<Stands>(gate.door());
    let running = node.run_pipeline(&pipeline).unwrap();
    let at_the_door = gate.arrival();
    let since = Instant::now();
    // Longer than any limit.
    let over = tensorpost::pipeline::limits::STANDSTILL + Duration::from_secs(2);
    until("a standstill would have been ended", || since.elapsed() > over);
    assert!(!running.is_finished());
    at_the_door.open();
    [(); 2].iter().for_each(|()| gate.pass_one());
    running.wait().unwrap();
}

/// A source of small records.
struct Numbers(u64, u64);

impl Source for Numbers {
    type Args = u64;
    type Out = Record;

    fn create(count: u64, _: &Env) -> anyhow::Result<Self> {
        Ok(Numbers(0, count))
    }

    fn next(&mut self) -> anyhow::Result<Option<Record>> {
        self.0 += 1;
        Ok((self.0 <= self.1).then(|| Record { number: self.0, round: 0, tensors: Vec::new() }))
    }
}

struct Stands(Door);

impl Sink for Stands {
    type Args = Door;
    type In = Record;

    fn create(door: Door, _: &Env) -> anyhow::Result<Self> {
        Ok(Stands(door))
    }

    fn consume(&mut self, _: Record) -> anyhow::Result<()> {
        Ok(self.0.pass()?)
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let cases = cases![
        who_waits_for_a_window_that_fails_is_told,
        a_loop_whose_stages_make_more_than_it_holds_ends_with_that,
        a_zip_that_holds_all_that_a_process_may_hold_ends_with_that,
        a_stage_that_is_at_work_is_no_standstill,
    ];
    // One makes 80,000 tensors, which takes an unoptimised build most of a minute.
    cases.into_iter().map(|case| case.within(Duration::from_secs(240))).collect()
}
