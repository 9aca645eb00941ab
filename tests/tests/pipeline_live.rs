//! Pipelines that run until somebody ends them: the end, and who is to blame if it does not come.

use std::time::Duration;

use tensorpost::pipeline::{PipelineError, Report};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{self, Builder};
use tensorpost_tests::pipes::{Count, CountArgs, Numbered, Obey, Orders, WriteDown, WriteDownArgs};

const SOON: Duration = Duration::from_secs(30);

fn program(builder: Builder) -> Builder {
    builder.source::<Camera>().source::<Count>().stage::<Obey>().sink::<WriteDown>()
}

/// A camera: its `next` waits for pictures that do not come, at a door or until it is asked to end.
struct Camera {
    env: Env,
    door: Door,
    /// Whether it looks at the flag.
    looks: bool,
    made: u64,
}

impl Source for Camera {
    type Args = (Door, bool);
    type Out = Numbered;

    fn create((door, looks): (Door, bool), env: &Env) -> anyhow::Result<Self> {
        Ok(Camera { env: env.clone(), door, looks, made: 0 })
    }

    fn next(&mut self) -> anyhow::Result<Option<Numbered>> {
        self.made += 1;
        if self.made <= 3 {
            return Ok(Some(Numbered { number: self.made, tensor: None }));
        }
        self.door.pass()?;
        while self.looks && !self.env.is_stopping() {
            std::thread::yield_now();
        }
        Ok(None)
    }
}

/// A camera, a stage called `shrink`, and a sink.
fn pictures(gate: &Gate, looks: bool) -> Pipeline {
    let flow = Pipeline::new("pictures").source::<Camera>((gate.door(), looks));
    let flow = flow.stage::<Obey>(Orders::default()).named("shrink");
    flow.sink::<WriteDown>(WriteDownArgs { file: "/dev/null".into(), ..WriteDownArgs::default() }).pipeline()
}

fn blames_the_camera(ended: Result<Report, PipelineError>) {
    let error = ended.expect_err("the camera does not stop");
    let text = error.to_string();
    assert!(matches!(error, PipelineError::Killed { .. }), "{text}");
    assert!(text.contains("`Camera` waits for a call of its own to return: `next`"), "{text}");
    assert!(!text.contains("shrink"), "{text}");
    let first = &error.report().expect("a report").waiting[0];
    assert!(first.stage == "Camera" && first.in_call, "{first:?}");
}

/// The camera stands in its driver, and everybody behind it waits for it.
fn after_the_deadline_the_one_that_did_not_stop_is_blamed(builder: Builder) {
    let (node, gate) = (builder.start().unwrap(), Gate::new());
    let running = node.run_pipeline(&pictures(&gate, false)).unwrap();
    let _held = gate.arrival();
    blames_the_camera(running.finish(Duration::from_millis(300)));
}

/// The same where the whole node ends: the workers die in any order.
fn after_the_nodes_deadline_it_is_blamed_too(builder: Builder) {
    let (node, gate) = (builder.start().unwrap(), Gate::new());
    let running = node.run_pipeline(&pictures(&gate, false)).unwrap();
    let _held = gate.arrival();
    assert!(!node.shutdown(Duration::from_millis(500)).unwrap().is_clean());
    blames_the_camera(running.wait());
}

/// The order to stop cannot be read while the source's code runs; the flag is set all the same.
fn a_source_in_its_own_code_learns_that_it_is_to_end(builder: Builder) {
    let (node, gate) = (builder.start().unwrap(), Gate::new());
    let running = node.run_pipeline(&pictures(&gate, true)).unwrap();
    gate.arrival().open();
    let report = running.finish(SOON).unwrap();
    assert!(report.cancelled, "{report}");
    assert_eq!(report.stage("shrink").unwrap().items_in, 3, "{report}");
}

/// What has ended in time is a report as usual, and says nothing of waiting.
fn one_that_ends_in_time_is_whole(builder: Builder) {
    let node = builder.start().unwrap();
    let end = Pipeline::new("endless").source::<Count>(CountArgs::endless()).stage::<Obey>(Orders::default());
    let sink = WriteDownArgs { file: "/dev/null".into(), ..WriteDownArgs::default() };
    let running = node.run_pipeline(&end.sink::<WriteDown>(sink).pipeline()).unwrap();
    let report = running.finish(SOON).unwrap();
    assert!(report.cancelled && report.is_complete() && report.waiting.is_empty(), "{report}");
}

/// A program that has nothing else to do waits for the pipeline, or for Ctrl-C, and then ends the node.
fn the_node_runs_until_the_pipeline_has_ended(builder: Builder) {
    let node = builder.start().unwrap();
    let flow = Pipeline::new("short").source::<Count>(CountArgs::to(20));
    let sink = WriteDownArgs { file: "/dev/null".into(), ..WriteDownArgs::default() };
    let running = node.run_pipeline(&flow.sink::<WriteDown>(sink).pipeline()).unwrap();
    node.run_until_ctrl_c_or(running.ended(), SOON).unwrap();
    assert_eq!(running.wait().unwrap().stage("Count").unwrap().items_out, 20);
}

fn main() {
    harness::run(
        program,
        cases![
            after_the_deadline_the_one_that_did_not_stop_is_blamed,
            after_the_nodes_deadline_it_is_blamed_too,
            a_source_in_its_own_code_learns_that_it_is_to_end,
            one_that_ends_in_time_is_whole,
            the_node_runs_until_the_pipeline_has_ended,
        ],
    )
}
