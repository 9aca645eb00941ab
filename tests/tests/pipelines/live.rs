//! Pipelines that run until somebody ends them: the end, and the blame if it does not come; sources that
//! cannot wait, their rate, and the time that they will take.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tensorpost::pipeline::{PipelineError, Progress, Report, Snapshot};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::log::{self, Listening};
use tensorpost_tests::pipes::{Count, CountArgs, Numbered, Obey, Orders, WriteDown, WriteDownArgs, written};
use tensorpost_tests::wait::until;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

const SOON: Duration = Duration::from_secs(30);

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
        tracing::info!(picture = self.made, shutter = "open", "looking");
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

/// A source that knows how many items it makes.
struct Film {
    made: u64,
    length: u64,
}

impl Source for Film {
    type Args = u64;
    type Out = Numbered;

    fn create(length: u64, _: &Env) -> anyhow::Result<Self> {
        Ok(Film { made: 0, length })
    }

    fn next(&mut self) -> anyhow::Result<Option<Numbered>> {
        self.made += 1;
        Ok((self.made <= self.length).then_some(Numbered { number: self.made, tensor: None }))
    }

    fn length(&self) -> Option<u64> {
        Some(self.length)
    }
}

/// A source that makes nothing. Its next life is ready when a door opens.
struct Anew(Door);

impl Source for Anew {
    type Args = Door;
    type Out = Numbered;

    fn create(door: Door, _: &Env) -> anyhow::Result<Self> {
        Ok(Anew(door))
    }

    async fn prepare(&mut self, env: &Env) -> anyhow::Result<()> {
        if env.incarnation() > 0 {
            let door = self.0.clone();
            tokio::task::spawn_blocking(move || door.pass()).await??;
        }
        Ok(())
    }

    fn next(&mut self) -> anyhow::Result<Option<Numbered>> {
        Ok(None)
    }
}

/// A sink whose output nobody reads.
fn nowhere() -> WriteDownArgs {
    WriteDownArgs::to("/dev/null")
}

/// A camera, a stage called `shrink`, and a sink.
fn pictures(gate: &Gate, looks: bool) -> Pipeline {
    let flow = Pipeline::new("pictures").source::<Camera>((gate.door(), looks));
    let flow = flow.stage::<Obey>(Orders::default()).named("shrink");
    flow.sink::<WriteDown>(nowhere()).pipeline()
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

/// The camera waits in its driver, and every stage behind it waits for it.
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

/// A pipeline that has ended in time gives the usual report, which does not mention waiting.
fn one_that_ends_in_time_is_whole(builder: Builder) {
    let node = builder.start().unwrap();
    let end = Pipeline::new("endless").source::<Count>(CountArgs::endless()).stage::<Obey>(Orders::default());
    let running = node.run_pipeline(&end.sink::<WriteDown>(nowhere()).pipeline()).unwrap();
    let report = running.finish(SOON).unwrap();
    assert!(report.cancelled && report.is_complete() && report.waiting.is_empty(), "{report}");
}

/// Kills a source that is done: `done` tells when its sink is done, and then the pipeline hears of it.
fn kill_when_done(node: &Node, source: &str, last: &Mutex<Snapshot>, done: impl Fn() -> bool) {
    until("its sink has ended", done);
    let then = last.lock().elapsed;
    until("the pipeline knows", || last.lock().elapsed > then + Duration::from_millis(100));
    let source = node.workers().into_iter().find(|worker| worker.name == source).expect("it was started");
    let pid = Pid::from_raw(source.pid.cast_signed()).expect("a process");
    kill_process(pid, Signal::KILL).expect("it runs");
}

/// A source that is done dies. While nobody can send it anything, all sources are told to stop. The questions
/// to its next life, after everybody else has ended, come behind that order.
fn a_source_that_comes_back_when_all_have_ended_ends_too(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), tempfile::tempdir().unwrap());
    let (back, dies, empty) = (Gate::new(), Gate::new(), folder.path().join("empty"));
    let pipeline = Pipeline::new("anew");
    let flow = pipeline.source::<Anew>(back.door()).restart(Restart::on_failure(1));
    flow.sink::<WriteDown>(WriteDownArgs::to(&empty)).named("of nothing");
    let orders = Orders { door: Some((0, dies.door())), dies: Some(1), ..Orders::default() };
    let flow = pipeline.source::<Count>(CountArgs::to(3)).stage::<Obey>(orders);
    flow.sink::<WriteDown>(WriteDownArgs::to(folder.path().join("out")));
    let (pipeline, last) = told(pipeline);
    let running = node.run_pipeline(&pipeline).unwrap();
    let dying = dies.arrival();
    kill_when_done(&node, "Anew", &last, || empty.exists());
    let at_the_door = back.arrival();
    dying.open();
    // When all have ended, the progress stands still.
    let mut seen = (Duration::ZERO, Instant::now());
    until("all others have ended", || {
        let now = last.lock().elapsed;
        if now != seen.0 {
            seen = (now, Instant::now());
        }
        seen.1.elapsed() > Duration::from_millis(300)
    });
    at_the_door.open();
    let error = running.wait().unwrap_err();
    assert!(matches!(&error, PipelineError::Died { stage, .. } if stage == "Obey"), "{error}");
}

/// A source that is done dies and begins anew when all others have ended. It reports its progress so often
/// that nobody has room for more, and then sends its spans, for the trace.
fn a_source_that_begins_anew_when_all_have_ended_tells_all(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), tempfile::tempdir().unwrap());
    let (last_one, file, trace) = (Gate::new(), folder.path().join("out"), folder.path().join("trace.json"));
    let pipeline = Pipeline::new("told").trace(&trace);
    let flow = pipeline.source::<Count>(CountArgs { elements: 0, ..CountArgs::to(150) }).named("again");
    let flow = flow.every(Duration::from_millis(1)).restart(Restart::on_failure(1));
    flow.sink::<WriteDown>(WriteDownArgs::to(&file));
    // Only after a death is anybody asked again.
    let dies_once = Some((0, folder.path().join("mark")));
    // Items in the mailbox go with it, but not all of these.
    let orders = Orders { dies_once, door: Some((59, last_one.door())), ..Orders::default() };
    let flow = pipeline.source::<Count>(CountArgs::to(60)).stage::<Obey>(orders);
    let flow = flow.restart(Restart::on_failure(1));
    flow.sink::<WriteDown>(nowhere()).named("of others");
    let (pipeline, last) = told(pipeline);
    let running = node.run_pipeline(&pipeline.progress_every(Duration::from_millis(1))).unwrap();
    let at_the_door = last_one.arrival();
    kill_when_done(&node, "again", &last, || file.exists());
    at_the_door.open();
    let report = running.wait().unwrap();
    assert_eq!(report.stage("again").unwrap().items_out, 300, "{report}");
    assert!(std::fs::read_to_string(trace).unwrap().contains("again"));
}

/// A program that has nothing else to do waits for the pipeline, or for Ctrl-C, and then ends the node.
fn the_node_runs_until_the_pipeline_has_ended(builder: Builder) {
    let node = builder.start().unwrap();
    let flow = Pipeline::new("short").source::<Count>(CountArgs::to(20));
    let running = node.run_pipeline(&flow.sink::<WriteDown>(nowhere()).pipeline()).unwrap();
    node.run_until_ctrl_c_or(running.ended(), SOON).unwrap();
    assert_eq!(running.wait().unwrap().stage("Count").unwrap().items_out, 20);
}

/// Has a pipeline report its progress. Also returns the place of the last report.
fn told(pipeline: Pipeline) -> (Pipeline, Arc<Mutex<Snapshot>>) {
    let last = Arc::new(Mutex::new(Snapshot::default()));
    let tell = Arc::clone(&last);
    let progress = Progress::to(move |snapshot| *tell.lock() = snapshot.clone());
    (pipeline.progress(progress).progress_every(Duration::from_millis(10)), last)
}

/// The sink waits at its first item until the source has made all hundred. Nothing delays the source, and the
/// memory of dropped items is free for later ones: all together would not fit into it.
fn a_stage_that_is_slow_gets_the_newest_or_the_oldest(builder: Builder) {
    let (node, folder) = (builder.host_budget(32 << 20).start().unwrap(), tempfile::tempdir().unwrap());
    for (oldest, expected) in [(true, [0, 98, 99]), (false, [0, 1, 2])] {
        let (gate, file) = (Gate::new(), folder.path().join(format!("{oldest}")));
        let source = CountArgs { elements: 256 << 10, ..CountArgs::to(100) };
        let flow = Pipeline::new("live").source::<Count>(source);
        let sink = WriteDownArgs { door: Some((0, gate.door())), ..WriteDownArgs::to(&file) };
        let end = flow.sink::<WriteDown>(sink).named("slow").mailbox(2);
        let end = if oldest { end.drop_oldest() } else { end.drop_newest() };
        let (pipeline, last) = told(end.pipeline());
        let running = node.run_pipeline(&pipeline).unwrap();
        let held = gate.arrival();
        until("all others are dropped", || last.lock().stages.iter().any(|stage| stage.dropped == 97));
        let metrics = node.metrics().unwrap();
        let mut counts = metrics.actors().filter(|(process, _)| *process == "Count");
        let (_, source) = counts.next().expect("the source");
        assert_eq!((source.emitted, source.dropped), (100, 97), "{metrics:?}");
        held.open();
        let report = running.wait().unwrap();
        assert_eq!(written(&file), expected);
        let slow = report.stage("slow").unwrap();
        let made = report.stage("Count").unwrap().items_out;
        assert_eq!((made, slow.items_in, slow.dropped), (100, 3, 97), "{report}");
        assert!(report.is_complete(), "a drop is no loss: {report}");
        assert!(report.to_string().contains("dropped: 97 in front of slow"), "{report}");
    }
}

/// Replicas and their order are as ever; items for which they are too slow are missing.
fn replicas_restore_the_order_of_what_is_left(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), tempfile::tempdir().unwrap());
    let file = folder.path().join("out");
    let flow = Pipeline::new("live").source::<Count>(CountArgs::to(3000));
    let flow = flow.stage::<Obey>(Orders { dawdles: true, ..Orders::default() }).replicas(3).ordered();
    let flow = flow.mailbox(1).drop_oldest();
    let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file)).mailbox(1).drop_oldest();
    let report = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
    let arrived = written(&file);
    assert!(arrived.is_sorted(), "{arrived:?}");
    let (dawdle, sink) = (report.stage("Obey").unwrap(), report.stage("WriteDown").unwrap());
    assert_eq!(dawdle.items_in + dawdle.dropped, 3000, "{report}");
    assert_eq!(sink.items_in + sink.dropped, dawdle.items_out, "{report}");
    assert_eq!(arrived.len() as u64, sink.items_in, "{report}");
    assert!(arrived.last() == Some(&2999) && report.is_complete(), "the newest always arrives: {report}");
}

/// A stage panics and its worker goes on, while it keeps items for a receiver that drops. Its next life sends
/// at once, and the sink waits at its first item meanwhile: none of the kept items comes behind that. They
/// are named, and the items that come are in order.
fn what_a_stage_that_panics_had_kept_comes_behind_nothing(builder: Builder) {
    let (node, folder, [gate, last_one]) =
        (builder.start().unwrap(), tempfile::tempdir().unwrap(), [(); 2].map(|()| Gate::new()));
    let file = folder.path().join("out");
    let flow = Pipeline::new("live").source::<Count>(CountArgs { elements: 0, ..CountArgs::to(60) });
    let flow = flow.stage::<Obey>(Orders::default()).named("first").restart(Restart::on_failure(1));
    let orders = Orders { panics: Some(20), door: Some((59, last_one.door())), ..Orders::default() };
    let flow = flow.stage::<Obey>(orders).named("second").beside().restart(Restart::on_failure(1));
    let sink = WriteDownArgs { door: Some((0, gate.door())), ..WriteDownArgs::to(&file) };
    let end = flow.sink::<WriteDown>(sink).named("slow").mailbox(4).drop_oldest();
    let running = node.run_pipeline(&end.pipeline()).unwrap();
    let at_the_sink = gate.arrival();
    let in_its_second_life = last_one.arrival();
    at_the_sink.open();
    in_its_second_life.open();
    let report = running.wait().unwrap();
    let arrived = written(&file);
    assert!(arrived.is_sorted() && arrived.ends_with(&[59]), "{arrived:?}");
    let mut lost: Vec<_> = report.lost.iter().map(|lost| lost.id.number).collect();
    lost.dedup();
    assert!((16..=20).all(|number| lost.contains(&number)), "{report}");
    // Items that were finished in the last moment may be named too.
    let dropped = report.stage("slow").unwrap().dropped as usize;
    assert!(arrived.len() + dropped + lost.len() >= 60, "{arrived:?}, {report}");
}

/// A stage has panicked, and its worker went on. A later standstill is noticed: the earlier life does not
/// hide it.
fn what_stands_still_after_a_panic_is_reported(builder: Builder) {
    let Some((events, _listening)) = events() else { return };
    let node = builder.start().unwrap();
    let (outside, _full) = node.channel::<Numbered>().unwrap();
    let flow = Pipeline::new("stands").source::<Count>(CountArgs { elements: 0, ..CountArgs::endless() });
    let flow = flow.stage::<Obey>(Orders::default()).named("first").restart(Restart::on_failure(1));
    let panics = Orders { panics: Some(1), ..Orders::default() };
    let flow = flow.stage::<Obey>(panics).named("second").beside().restart(Restart::on_failure(1));
    // Nobody takes anything out of it.
    let pipeline = flow.sink_to(&outside).pipeline().hang_limit(Duration::from_millis(500));
    let running = node.run_pipeline(&pipeline).unwrap();
    let is_said = |seen: &Seen| seen.message == "nothing moves" && has(seen, "pipeline", "stands");
    until("it is said", || events.0.lock().iter().any(is_said));
    running.kill();
    let error = running.wait().unwrap_err();
    assert!(matches!(error, PipelineError::Killed { .. }), "{error}");
}

fn at_least_once_drops_nothing(_: Builder) {
    let flow = Pipeline::new("wrong").source::<Count>(CountArgs::to(3));
    let end = flow.sink::<WriteDown>(WriteDownArgs::default()).drop_oldest();
    let error = end.pipeline().at_least_once(8).check().unwrap_err().to_string();
    assert!(error.contains("`WriteDown`: it drops items, and at least once means that none is"), "{error}");
}

/// Twenty frames at fifty a second take at least 19 fiftieths; and a source that waits for its next frame can
/// be stopped.
fn a_source_keeps_its_rate(builder: Builder) {
    let node = builder.start().unwrap();
    let flow = Pipeline::new("fifty").source::<Count>(CountArgs::to(20)).every(Duration::from_millis(20));
    let report = node.run_pipeline(&flow.sink::<WriteDown>(nowhere()).pipeline()).unwrap().wait().unwrap();
    assert_eq!(report.stage("Count").unwrap().items_out, 20);
    assert!(report.seconds >= 0.38, "{report}");

    let flow = Pipeline::new("rare").source::<Count>(CountArgs::endless()).every(Duration::from_secs(3600));
    let (pipeline, last) = told(flow.sink::<WriteDown>(nowhere()).pipeline());
    let running = node.run_pipeline(&pipeline).unwrap();
    until("the first has come", || last.lock().stages.get(1).is_some_and(|sink| sink.items == 1));
    let report = running.finish(SOON).unwrap();
    assert_eq!(report.stage("Count").unwrap().items_out, 1, "{report}");
}

/// The sink stands still, so the source cannot keep its rate: it reports how many of its times it has missed.
fn a_source_counts_the_times_that_it_missed(builder: Builder) {
    let (node, gate) = (builder.start().unwrap(), Gate::new());
    let flow = Pipeline::new("late").source::<Count>(CountArgs::to(20)).every(Duration::from_millis(1));
    let sink = WriteDownArgs { door: Some((0, gate.door())), ..nowhere() };
    let (pipeline, last) = told(flow.sink::<WriteDown>(sink).mailbox(2).pipeline());
    let running = node.run_pipeline(&pipeline).unwrap();
    let (held, began) = (gate.arrival(), Instant::now());
    // By then it has made fewer than ten items, and should have made a hundred.
    until("it is late", || began.elapsed() > Duration::from_millis(100));
    held.open();
    let report = running.wait().unwrap();
    let missed = report.stage("Count").unwrap().missed;
    assert!(missed > 0 && report.stage("Count").unwrap().items_out == 20, "{report}");
    assert!(report.to_string().contains(&format!("late: Count missed {missed} of its times")), "{report}");
    assert_eq!(last.lock().stages[0].missed, missed);
}

/// Where the source says how many items it makes, the progress says how far it is and how long it will take.
fn the_progress_knows_the_length(builder: Builder) {
    let node = builder.start().unwrap();
    let flow = Pipeline::new("film").source::<Film>(40).every(Duration::from_millis(5));
    let (pipeline, last) = told(flow.sink::<WriteDown>(nowhere()).pipeline());
    node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    let last = last.lock();
    let film = &last.stages[0];
    assert_eq!((film.items, film.of, last.left), (40, Some(40), Some(Duration::ZERO)), "{last:?}");
    assert_eq!(last.stages[1].of, None);
}

/// The stage dies once and comes back. Its counts are those of both lives, and are marked as possibly too
/// low; with the items that are named as lost they account for all.
fn a_restart_looks_like_no_loss(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), tempfile::tempdir().unwrap());
    let orders = Orders { dies_once: Some((60, folder.path().join("died"))), ..Orders::default() };
    let flow = Pipeline::new("again").source::<Count>(CountArgs::to(100));
    let flow = flow.stage::<Obey>(orders).restart(Restart::on_failure(3));
    let file = folder.path().join("out");
    let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file));
    let report = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
    let (obey, sink) = (report.stage("Obey").unwrap(), report.stage("WriteDown").unwrap());
    assert!(obey.at_least && !sink.at_least, "{report}");
    assert!(obey.items_in + report.lost_count >= 100, "{report}");
    assert!(obey.items_out >= sink.items_in && sink.items_in == written(&file).len() as u64, "{report}");
    let row = report.to_string();
    let row = row.lines().find(|line| line.starts_with("Obey")).unwrap();
    assert!(row.contains(&format!("{}+", obey.items_in)), "{row}");
}

/// The events of a node, each with its level, its message and its other fields.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<Seen>>>);

#[derive(Clone, Debug)]
struct Seen {
    level: Level,
    message: String,
    fields: HashMap<&'static str, String>,
}

impl Events {
    fn hears(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        self.0.lock().push(Seen { level: *event.metadata().level(), message, fields: fields.0 });
    }
}

#[derive(Default)]
struct Fields(HashMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

/// Collects all events that this process logs from now on, as long as the second value is kept. Returns
/// `None` where another subscriber has the log.
fn events() -> Option<(Events, Listening)> {
    let events = Events::default();
    let hears = events.clone();
    Some((events, log::listen(move |event| hears.hears(event))?))
}

fn has(seen: &Seen, name: &str, value: &str) -> bool {
    seen.fields.get(name).is_some_and(|is| is == value)
}

/// Fields of a worker's record are fields in the node's log, and a restart that was asked for is one warning.
fn the_log_has_the_workers_fields_and_one_line_on_a_restart(builder: Builder) {
    let Some((events, _listening)) = events() else { return };
    let gate = Gate::new();
    let node = builder.start().unwrap();
    let flow = Pipeline::new("looked at").source::<Camera>((gate.door(), true)).named("eye");
    let running = node.run_pipeline(&flow.sink::<WriteDown>(nowhere()).pipeline()).unwrap();
    gate.arrival().open();
    let seen = |wanted: &dyn Fn(&Seen) -> bool| events.0.lock().iter().any(wanted);
    until("the camera's fields are in the log", || {
        seen(&|seen| has(seen, "worker", "eye") && has(seen, "picture", "2") && has(seen, "shutter", "open"))
    });
    running.finish(SOON).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let orders = Orders { dies_once: Some((5, folder.path().join("died"))), ..Orders::default() };
    let flow = Pipeline::new("again").source::<Count>(CountArgs::to(20));
    let flow = flow.stage::<Obey>(orders).restart(Restart::on_failure(3)).named("dies");
    let end = flow.sink::<WriteDown>(WriteDownArgs::to(folder.path().join("out")));
    node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
    // This is its last record: earlier ones are in the log by then.
    until("it is back", || seen(&|seen| seen.message.starts_with("worker `dies` is back")));
    let events = events.0.lock();
    let about = |seen: &&Seen| has(seen, "worker", "dies") || has(seen, "stage", "dies");
    let bad: Vec<_> = events.iter().filter(about).filter(|seen| seen.level <= Level::WARN).collect();
    assert_eq!(bad.len(), 1, "{bad:?}");
    assert!(
        bad[0].level == Level::WARN && bad[0].message.starts_with("worker `dies` is restarted"),
        "{bad:?}"
    );
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        after_the_deadline_the_one_that_did_not_stop_is_blamed,
        after_the_nodes_deadline_it_is_blamed_too,
        a_source_in_its_own_code_learns_that_it_is_to_end,
        one_that_ends_in_time_is_whole,
        a_source_that_comes_back_when_all_have_ended_ends_too,
        a_source_that_begins_anew_when_all_have_ended_tells_all,
        the_node_runs_until_the_pipeline_has_ended,
        a_stage_that_is_slow_gets_the_newest_or_the_oldest,
        replicas_restore_the_order_of_what_is_left,
        what_a_stage_that_panics_had_kept_comes_behind_nothing,
        what_stands_still_after_a_panic_is_reported,
        at_least_once_drops_nothing,
        a_source_keeps_its_rate,
        a_source_counts_the_times_that_it_missed,
        the_progress_knows_the_length,
        a_restart_looks_like_no_loss,
        the_log_has_the_workers_fields_and_one_line_on_a_restart,
    ]
}
