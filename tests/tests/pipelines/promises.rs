//! A pipeline's promises while all goes well: order, the end, cancelling, backpressure, reports.

use std::collections::VecDeque;

use tempfile::TempDir;
use tensorpost::pipeline::HeldItem;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::chrome::Trace;
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::pipes::{
    Count, CountArgs, Numbered, Obey, Orders, WriteDown, WriteDownArgs, watch, written, written_sorted,
};
use tensorpost_tests::wait::until;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Returns all items' numbers, in order.
fn all(count: u64) -> Vec<u64> {
    (0..count).collect()
}

fn a_line_delivers_all_in_order(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let pipeline = Pipeline::new("line");
    let end = pipeline.source::<Count>(CountArgs::to(1000)).stage::<Obey>(Orders::default());
    let end = end.stage::<Obey>(Orders::default()).named("again").sink::<WriteDown>(WriteDownArgs::to(&file));
    let report = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
    assert_eq!(written(&file), all(1000));
    for stage in &report.stages {
        assert_eq!(stage.items_in.max(stage.items_out), 1000, "{report}");
        assert_eq!((stage.errors, stage.skipped), (0, 0), "{report}");
    }
    assert_eq!((report.lost_count, report.cancelled), (0, false));
}

/// Keeps the last few items beyond its calls, or the one with a number, and emits each under its own number.
struct Hoards {
    few: usize,
    only: Option<u64>,
    held: VecDeque<(Numbered, HeldItem)>,
}

impl Stage for Hoards {
    type Args = (usize, Option<u64>);
    type In = Numbered;
    type Out = Numbered;

    fn create((few, only): Self::Args, _: &Env) -> anyhow::Result<Self> {
        Ok(Hoards { few, only, held: VecDeque::new() })
    }

    fn process(&mut self, item: Numbered, out: &mut Out<Numbered>) -> anyhow::Result<()> {
        if self.only.is_some_and(|only| only != item.number) {
            out.emit(item);
            return Ok(());
        }
        self.held.push_back((item, out.hold()));
        if self.held.len() > self.few
            && let Some((item, held)) = self.held.pop_front()
        {
            out.emit_for(item, [held]);
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Out<Numbered>) -> anyhow::Result<()> {
        self.held.drain(..).for_each(|(item, held)| out.emit_for(item, [held]));
        Ok(())
    }
}

/// Each item keeps its place until it is passed on, also where the next stage bounds its bytes.
fn what_replicas_hold_keeps_its_place_in_the_order(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for (few, least, bytes) in [(1, false, false), (30, false, false), (5, true, false), (5, false, true)] {
        let file = folder.path().join(format!("{few}{least}{bytes}"));
        let flow = Pipeline::new("hoards").source::<Count>(CountArgs::to(150));
        let flow = flow.stage::<Hoards>((few, None)).replicas(3).ordered();
        let flow = if least { flow.to_least_loaded() } else { flow };
        let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file));
        let end = if bytes { end.max_bytes_in_flight(32) } else { end };
        node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
        assert_eq!(written(&file), all(150), "{few} {least} {bytes}");
    }
}

/// More items than may wait for a held one: the error says so, and what to change.
fn what_replicas_hold_too_long_ends_with_that(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let flow = Pipeline::new("hoards too long").source::<Count>(CountArgs::to(4000));
    let flow = flow.stage::<Hoards>((1, Some(0))).replicas(2).ordered();
    let pipeline = flow.sink::<WriteDown>(WriteDownArgs::to(folder.path().join("out"))).pipeline();
    let error = node.run_pipeline(&pipeline).unwrap().wait().unwrap_err().to_string();
    assert!(error.contains("stands still") && error.contains("`Hoards` keeps 1 items"), "{error}");
    assert!(error.contains("leave `ordered` out"), "{error}");
}

fn replicas_share_the_work_and_the_order_is_restored(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for (ordered, least) in [(true, false), (true, true), (false, false)] {
        let file = folder.path().join(format!("{ordered}{least}"));
        let flow = Pipeline::new("replicas").source::<Count>(CountArgs::to(600));
        let flow = flow.stage::<Obey>(Orders { dawdles: true, ..Orders::default() }).replicas(3);
        let flow = if ordered { flow.ordered() } else { flow };
        let flow = if least { flow.to_least_loaded() } else { flow };
        let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file));
        let report = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
        assert_eq!(written_sorted(&file), all(600));
        if ordered {
            assert_eq!(written(&file), all(600));
        }
        assert_eq!(report.stage("Obey").unwrap().replicas, 3);
    }
}

/// Behind the replicas are replicas again, so a stage in between restores the order; and items have 0 to 2
/// results.
fn the_order_is_restored_between_replicas_too(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let flow = Pipeline::new("twice").source::<Count>(CountArgs::to(450));
    let flow = flow.stage::<Obey>(Orders { dawdles: true, copies: Some(2), ..Orders::default() });
    let flow = flow.replicas(2).ordered();
    let flow = flow.stage::<Obey>(Orders { dawdles: true, ..Orders::default() }).replicas(2).ordered();
    let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file));
    assert!(end.pipeline().describe().to_string().contains("Obey order"), "{}", end.pipeline().describe());
    node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
    let expected: Vec<_> = (0..450).flat_map(|number| (0..number % 3).map(move |_| number)).collect();
    assert_eq!(written(&file), expected);
}

fn by_key(args: &WriteDownArgs) -> Pipeline {
    let flow = Pipeline::new("by key").source::<Count>(CountArgs::to(600));
    let flow = flow.stage::<Obey>(Orders { dawdles: true, ..Orders::default() });
    let flow = flow.replicas(3).by_key(|item: &Numbered| item.number % 5);
    flow.sink::<WriteDown>(args.clone()).pipeline()
}

fn items_of_one_key_keep_their_order(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    node.run_pipeline(&by_key(&WriteDownArgs::to(&file))).unwrap().wait().unwrap();
    assert_eq!(written_sorted(&file), all(600));
    for key in 0..5 {
        let of_key: Vec<_> = written(&file).into_iter().filter(|number| number % 5 == key).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
}

fn the_end_brings_out_what_a_stage_still_has(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let flow = Pipeline::new("reverse").source::<Count>(CountArgs::to(300));
    let flow = flow.stage::<Obey>(Orders { reverses: true, ..Orders::default() });
    let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file));
    node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
    assert_eq!(written(&file), (0..300).rev().collect::<Vec<_>>());
}

/// The pipeline has its own node, closures, and a source that is an iterator.
fn with_closures(file: &str, factor: u64) -> Pipeline {
    let pipeline = Pipeline::new("closures");
    let flow = pipeline.items("numbers", |_| (0..100).map(|number| Numbered { number, tensor: None }));
    let flow = flow.with(factor);
    let flow = flow.map("times", |factor, item| Ok(Numbered { number: item.number * *factor, ..item }));
    let flow = flow.filter("even", |item| item.number.is_multiple_of(2));
    let flow = flow.flat_map("twice", |item: Numbered| Ok([item.clone(), item]));
    flow.sink::<WriteDown>(WriteDownArgs::to(file)).pipeline()
}

fn closures_run_with_what_they_are_given(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    for factor in 1..=3 {
        let _ = std::fs::remove_file(&file);
        node.run_pipeline(&with_closures(&file.display().to_string(), factor)).unwrap().wait().unwrap();
        let all = (0..100).map(|number| factor * number).filter(|number| number % 2 == 0);
        assert_eq!(written(&file), all.flat_map(|number| [number; 2]).collect::<Vec<_>>());
    }
}

fn cancelling_stops_the_sources_and_finishes_the_rest(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let flow = Pipeline::new("endless").source::<Count>(CountArgs::endless());
    let end = flow.stage::<Obey>(Orders::default()).sink::<WriteDown>(WriteDownArgs::to(&file));
    let (pipeline, items) = watch(end.pipeline());
    let running = node.run_pipeline(&pipeline).unwrap();
    until("100 items reach the sink", || items("WriteDown") > 100);
    running.canceller().cancel();
    let report = running.wait().unwrap();
    let made = report.stage("Count").unwrap().items_out;
    assert!(report.cancelled && made > 100);
    assert_eq!(written(&file), all(made));
}

/// A sink that stands still holds up everything before it: the items in its mailbox, in the hands of the
/// stage, and in the stage's mailbox. The source makes one more, which waits.
fn a_slow_sink_bounds_what_the_source_makes(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let file = folder.path().join("out");
    let flow = Pipeline::new("slow").source::<Count>(CountArgs::to(500));
    let flow = flow.stage::<Obey>(Orders::default()).mailbox(3);
    let sink = WriteDownArgs { door: Some((0, gate.door())), ..WriteDownArgs::to(&file) };
    let (pipeline, items) = watch(flow.sink::<WriteDown>(sink).mailbox(4).pipeline());
    let running = node.run_pipeline(&pipeline).unwrap();
    let held = gate.arrival();
    // The sink's mailbox has 4, the one at the door among them; of the stage's 3 one waits to be passed on.
    until("the source is held up", || (items("Count"), items("Obey")) == (4 + 3, 4 + 1));
    held.open();
    let report = running.wait().unwrap();
    assert_eq!(written(&file), all(500));
    assert!(report.stage("Obey").unwrap().waiting > 0.0, "{report}");
}

fn bytes_in_flight_are_bounded(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let file = folder.path().join("out");
    // A kilobyte each, and a body of some bytes.
    let flow = Pipeline::new("bytes").source::<Count>(CountArgs { elements: 256, ..CountArgs::to(200) });
    let sink = WriteDownArgs { door: Some((0, gate.door())), ..WriteDownArgs::to(&file) };
    let end = flow.sink::<WriteDown>(sink).mailbox(100).max_bytes_in_flight(4 << 10);
    let (pipeline, items) = watch(end.pipeline());
    let running = node.run_pipeline(&pipeline).unwrap();
    let held = gate.arrival();
    until("the source is held up", || items("Count") == 3);
    held.open();
    running.wait().unwrap();
    assert_eq!(written(&file), all(200));
}

fn a_pipeline_has_a_report_a_trace_and_no_actors_after_it(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let (file, trace) = (folder.path().join("out"), folder.path().join("trace.json"));
    let flow = Pipeline::new("seen").source::<Count>(CountArgs::to(50));
    let end = flow.stage::<Obey>(Orders::default()).replicas(2).sink::<WriteDown>(WriteDownArgs::to(&file));
    let report = node.run_pipeline(&end.pipeline().trace(&trace)).unwrap().wait().unwrap();
    let table = report.to_string();
    assert!(table.lines().count() >= 5 && table.contains("WriteDown"), "{table}");
    let json = report.to_json();
    assert!(json.contains("\"items_in\":50"), "{json}");
    // The host device reports how long its streams waited.
    assert!(report.stages.iter().all(|stage| stage.stream_waited.is_some()), "{report}");
    assert!(json.contains("\"stream_waited\":0") && table.contains("stream waits s"), "{json} {table}");
    // It is checked as Perfetto reads it.
    let trace = Trace::read(&trace);
    assert_eq!(trace.slices("call").count(), 50 + 50 + 50 + 3, "the calls with items, and the ends");
    assert_eq!(trace.phase("b").count(), 50 + 50);
    let arrows = trace.flows().len();
    assert!((1..=100).contains(&arrows), "{arrows} arrows");
    until("the actors have ended", || node.workers().iter().all(|worker| worker.actors == 0));
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_line_delivers_all_in_order,
        what_replicas_hold_keeps_its_place_in_the_order,
        what_replicas_hold_too_long_ends_with_that,
        replicas_share_the_work_and_the_order_is_restored,
        the_order_is_restored_between_replicas_too,
        items_of_one_key_keep_their_order,
        the_end_brings_out_what_a_stage_still_has,
        closures_run_with_what_they_are_given,
        cancelling_stops_the_sources_and_finishes_the_rest,
        a_slow_sink_bounds_what_the_source_makes,
        bytes_in_flight_are_bounded,
        a_pipeline_has_a_report_a_trace_and_no_actors_after_it,
    ]
}
