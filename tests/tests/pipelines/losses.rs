//! Losses of pipelines: each item comes out or is named, and nobody waits for an item that will not come.

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tensorpost::node::{Restart, WorkerState, WorkerStatus};
use tensorpost::pipeline::{Batch, ItemId, LostItem, Many, PipelineError, Report};
use tensorpost::prelude::*;
use tensorpost::testing::fault::{Action, Fault};
use tensorpost_core::testing::thorough;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::pipes::{
    Count, CountArgs, Late, LateArgs, Numbered, Obey, Orders, WriteDown, WriteDownArgs, watch, written,
    written_sorted,
};
use tensorpost_tests::wait::until;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn numbers(lost: &[LostItem]) -> Vec<u64> {
    let mut numbers: Vec<_> = lost.iter().map(|lost| lost.id.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Every one of the items came out, or is named as lost.
fn assert_accounted(report: &Report, count: u64, file: &Path) {
    let mut all = written(file);
    all.extend(numbers(&report.lost));
    all.sort_unstable();
    all.dedup();
    assert_eq!(all, (0..count).collect::<Vec<_>>(), "{report}");
}

fn late(at: u64, door: Door, folder: &Path) -> LateArgs {
    LateArgs { at: Some((at, door, folder.join("late"))) }
}

/// Waits until the stage stands with this many items, and its stream at the door, and kills it.
fn kill_when(node: &Node, worker: &str, gate: &Gate, items: impl Fn() -> bool) {
    let at_the_door = gate.arrival();
    until("all that has room is under way", items);
    kill(node, worker);
    drop(at_the_door);
}

fn kill(node: &Node, worker: &str) {
    let workers = node.workers();
    let lives =
        |status: &&WorkerStatus| status.name == worker && matches!(status.state, WorkerState::Running);
    let worker = workers.iter().find(lives).expect("it runs");
    let pid = Pid::from_raw(worker.pid.cast_signed()).expect("a process");
    kill_process(pid, Signal::KILL).expect("it runs");
}

/// DEATH-3: the stage dies while the sink has its results, whose data was not ready yet. The sink works on
/// the first of them, and has the others in its mailbox.
fn results_that_came_to_nothing_are_named_and_hold_up_nobody(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let file = folder.path().join("out");
    let flow = Pipeline::new("late").source::<Count>(CountArgs::to(120));
    let flow = flow.stage::<Late>(late(20, gate.door(), folder.path())).restart(Restart::on_failure(1));
    let (pipeline, items) = watch(flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline());
    let running = node.run_pipeline(&pipeline).unwrap();
    // The sink has eight of them, and the stage one that finds no room.
    kill_when(&node, "Late", &gate, || items("Late") == 29);
    let report = running.wait().unwrap();
    assert!(matches!(&report.deaths[..], [death] if death.restarted), "{report}");
    assert_accounted(&report, 120, &file);
    let at_the_sink: Vec<_> = report.lost.iter().filter(|lost| lost.stage == "WriteDown").cloned().collect();
    assert_eq!(numbers(&at_the_sink), (20..28).collect::<Vec<_>>(), "{report}");
    assert!(at_the_sink.iter().all(|lost| lost.why.contains("when it died")), "{report}");
    assert_eq!((report.failures.len(), report.stage("WriteDown").unwrap().errors), (0, 0), "{report}");
    assert!(written(&file).contains(&119), "what came later is fine");
}

/// The same with two replicas, whose order the sink restores: it must not wait for lost results.
fn an_order_is_not_held_up_by_results_that_came_to_nothing(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let file = folder.path().join("out");
    let flow = Pipeline::new("late order").source::<Count>(CountArgs::to(400));
    let flow = flow.stage::<Late>(late(20, gate.door(), folder.path())).replicas(2).ordered();
    let flow = flow.restart(Restart::on_failure(1));
    let (pipeline, items) = watch(flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline());
    let running = node.run_pipeline(&pipeline).unwrap();
    kill_when(&node, "Late.0", &gate, || items("Late") >= 36);
    let report = running.wait().unwrap();
    assert_accounted(&report, 400, &file);
    assert!(report.lost.iter().any(|lost| lost.id.number == 20 && lost.stage == "WriteDown"), "{report}");
    assert!(report.lost.iter().any(|lost| lost.id.number == 22 && lost.stage == "WriteDown"), "{report}");
    assert!(written(&file).is_sorted(), "{:?}", written(&file));
    assert_eq!(report.failures, []);
}

/// It is killed between the moment at which one neighbour sees its message and the moment at which the other
/// does. If an answer came before the item that it is for, nobody would have the item.
fn what_a_stage_was_passing_on_when_it_died_came_or_is_named(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    // The fault strikes in each of its lives, which begins with links and the first messages.
    node.supervisor().arm_starts("Obey", Fault::new("transport.send.publish", Action::Kill).at(50));
    let flow = Pipeline::new("passing on").source::<Count>(CountArgs::to(300));
    let again = Restart::on_failure(100).backoff(Duration::from_millis(1), Duration::from_millis(1));
    let flow = flow.stage::<Obey>(Orders::default()).restart(again);
    let pipeline = flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline();
    let report = node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    assert!(report.deaths.len() > 5, "{report}");
    assert_accounted(&report, 300, &file);
}

/// With at-least-once delivery, any stage that still has something good sends it again. The loss passes
/// through a stage that lives.
fn at_least_once_makes_again_what_came_to_nothing(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let file = folder.path().join("out");
    let flow = Pipeline::new("late again").source::<Count>(CountArgs::to(120));
    let flow = flow.stage::<Late>(late(20, gate.door(), folder.path())).restart(Restart::on_failure(1));
    let flow = flow.stage::<Late>(LateArgs::default()).named("behind");
    let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file));
    let (pipeline, items) = watch(end.pipeline().at_least_once(16));
    let running = node.run_pipeline(&pipeline).unwrap();
    kill_when(&node, "Late", &gate, || items("behind") == 36);
    let report = running.wait().unwrap();
    assert_eq!((report.lost_count, report.failures.len(), report.deaths.len()), (0, 0, 1), "{report}");
    let mut distinct = written_sorted(&file);
    distinct.dedup();
    assert_eq!(distinct, (0..120).collect::<Vec<_>>());
}

/// Pairs of two branches of one source; the stages of the left and of the right branch follow their orders.
fn zipped(folder: &Path, left: Orders, right: Orders, count: u64) -> Pipeline {
    let pipeline = Pipeline::new("zipped");
    let [one, other] = pipeline.source::<Count>(CountArgs::to(count)).broadcast();
    let one = one.stage::<Obey>(left).named("left").on_error(OnError::Skip).restart(Restart::on_failure(1));
    let other = other.stage::<Obey>(right).named("right").on_error(OnError::Skip);
    let both = one.zip(other).restart(Restart::on_failure(1)).map("one of both", |pair| Ok(pair.left));
    both.sink::<WriteDown>(WriteDownArgs::to(folder.join("out"))).pipeline()
}

fn halves_whose_partners_were_dropped_are_named(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let fails = |numbers: &[u64]| Orders {
        fails: numbers.iter().map(|number| (*number, 1)).collect(),
        ..Orders::default()
    };
    let pipeline = zipped(folder.path(), fails(&[3, 7]), fails(&[50]), 100);
    let report = node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    assert_eq!(numbers(&report.left_over), [3, 7, 50], "{report}");
    assert_eq!(report.left_over_count, 3);
    assert!(report.left_over.iter().all(|left| left.stage == "zip"), "{report}");
    assert!(report.to_string().contains("left over: #7 at zip: no partner came for it"), "{report}");
    let expected: Vec<_> = (0..100).filter(|number| ![3, 7, 50].contains(number)).collect();
    assert_eq!(written_sorted(folder.path().join("out")), expected);
    assert_eq!(report.lost_count, 0);
}

/// Orders to fail on the numbers that `keep` selects.
fn fails_on(keep: fn(u64) -> bool, count: u64) -> Orders {
    let fails = (0..count).filter(|number| keep(*number)).map(|number| (number, 1));
    Orders { fails: fails.collect(), ..Orders::default() }
}

/// With at-least-once delivery a source may have only so many items unacknowledged, and far more halves find
/// no partner. Their partners were skipped on either branch, in stages and in filters, before another fork
/// and behind it.
fn halves_whose_partners_were_dropped_do_not_stop_the_source(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let (left, right) = (fails_on(|n| n % 3 == 0, 200), fails_on(|n| n % 5 == 1, 200));
    let pipeline = zipped(folder.path(), left, right, 200).at_least_once(4);
    let report = node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    let expected: Vec<_> = (0..200).filter(|n| n % 3 != 0 && n % 5 != 1).collect();
    assert_eq!(written_sorted(folder.path().join("out")), expected, "{report}");
    // Numbers that fail on both branches leave nothing over.
    let alone: Vec<_> = (0..200).filter(|n| (n % 3 == 0) != (n % 5 == 1)).collect();
    assert_eq!(numbers(&report.left_over), alone, "{report}");
    assert_eq!((report.lost_count, report.left_over_count), (0, alone.len() as u64), "{report}");
}

/// A branch that forks again, and three that become one: each pair of branches loses other items.
fn forked_again(folder: &Path, first: Orders, second: Orders, third: Orders, count: u64) -> Pipeline {
    let pipeline = Pipeline::new("forked again");
    let [one, other] = pipeline.source::<Count>(CountArgs::to(count)).broadcast();
    let [first_one, first_other] = one.broadcast();
    let [second_one, second_other] = other.broadcast();
    let skips = |flow: Flow<Numbered>, name: &str, orders| {
        flow.stage::<Obey>(orders).named(name).on_error(OnError::Skip)
    };
    // The first stage loses items of one pair, the second items of the other.
    let a = skips(first_one, "a", first).zip(skips(second_one, "b", Orders::default()));
    let b = skips(first_other, "c", Orders::default()).zip(skips(second_other, "d", second));
    let a = a.map("left of a", |pair| Ok(pair.left)).stage::<Obey>(third).named("e").on_error(OnError::Skip);
    let both = a.zip(b.map("left of b", |pair| Ok(pair.left))).map("one of all", |pair| Ok(pair.left));
    both.sink::<WriteDown>(WriteDownArgs::to(folder.join("out"))).pipeline()
}

fn halves_behind_several_forks_and_zips_do_not_stop_the_source(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let first = fails_on(|n| n % 3 == 0, 120);
    let second = fails_on(|n| n % 3 == 0 || n % 4 == 0, 120);
    let pipeline = forked_again(folder.path(), first, second, fails_on(|n| n % 5 == 0, 120), 120);
    let report = node.run_pipeline(&pipeline.at_least_once(4)).unwrap().wait().unwrap();
    let expected: Vec<_> = (0..120).filter(|n| n % 3 != 0 && n % 4 != 0 && n % 5 != 0).collect();
    assert_eq!(written_sorted(folder.path().join("out")), expected, "{report}");
    let alone: Vec<_> = (0..120).filter(|n| n % 3 == 0 || n % 4 == 0 || n % 5 == 0).collect();
    assert_eq!(numbers(&report.left_over), alone, "{report}");
    assert_eq!(report.lost_count, 0, "{report}");
}

/// DEATH-2: the zip dies while it has halves, and so does a branch; dropped items stop nobody all the same.
fn halves_stop_nobody_after_a_death_either(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let dies_once = Some((60, folder.path().join("mark")));
    let left = Orders { dies_once, ..fails_on(|n| n % 3 == 0, 150) };
    let pipeline = zipped(folder.path(), left, fails_on(|n| n % 5 == 1, 150), 150).at_least_once(6);
    let (pipeline, items) = watch(pipeline);
    let running = node.run_pipeline(&pipeline).unwrap();
    until("the zip has had halves", || items("zip") > 40);
    let workers = node.workers();
    let zip = workers.iter().find(|status| status.name == "zip").expect("it was started");
    kill_process(Pid::from_raw(zip.pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let report = running.wait().unwrap();
    let mut distinct = written_sorted(folder.path().join("out"));
    distinct.dedup();
    assert_eq!(distinct, (0..150).filter(|n| n % 3 != 0 && n % 5 != 1).collect::<Vec<_>>(), "{report}");
    assert_eq!(report.lost_count, 0, "{report}");
}

/// Two sources by key: the right one makes `right` items, and the keys below 4 are in both.
fn two_sources(folder: &Path, left: CountArgs, right: u64) -> Pipeline {
    let pipeline = Pipeline::new("two sources");
    let one = pipeline.source::<Count>(left).named("one");
    let other = pipeline.source::<Count>(CountArgs::to(right)).named("other");
    let key = |item: &Numbered| if item.number < 4 { item.number } else { item.number + 1000 };
    let both = one.join(other, |item| item.number, key).map("left half", |pair| Ok(pair.left));
    both.sink::<WriteDown>(WriteDownArgs::to(folder.join("out"))).pipeline()
}

/// Nobody knows whether an item of a key will still come. But when both sources wait for acknowledgements, or
/// have ended, none will.
fn a_join_in_which_both_sides_stand_still_goes_on(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for right in [60, 5] {
        let pipeline = two_sources(folder.path(), CountArgs::to(60), right).at_least_once(4);
        let report = node.run_pipeline(&pipeline).unwrap().wait().unwrap();
        assert_eq!(written_sorted(folder.path().join("out")), [0, 1, 2, 3], "{report}");
        assert_eq!(report.left_over_count, 56 + right - 4, "{report}");
        std::fs::remove_file(folder.path().join("out")).unwrap();
    }
}

/// An endless source, and one of a single item that takes its time, and has another key.
fn waits(folder: &Path, endless: CountArgs, orders: Orders) -> Pipeline {
    let pipeline = Pipeline::new("waits");
    let one = pipeline.source::<Count>(endless).named("one");
    let other = pipeline.source::<Count>(CountArgs::to(1)).named("other").stage::<Obey>(orders);
    let both = one.join(other, |item| item.number + 1, |item| item.number).map("left", |pair| Ok(pair.left));
    both.sink::<WriteDown>(WriteDownArgs::to(folder.join("out"))).pipeline()
}

/// One side cannot go on, but the other can, so the join keeps its halves; and a cancel ends it all the same.
fn a_cancel_ends_a_run_whose_halves_wait(builder: Builder) {
    let (node, folder, gate, fifth) = (builder.start().unwrap(), folder(), Gate::new(), Gate::new());
    let orders = Orders { door: Some((0, gate.door())), ..Orders::default() };
    let endless = CountArgs { door: Some((4, fifth.door())), ..CountArgs::endless() };
    let (pipeline, items) = watch(waits(folder.path(), endless, orders).at_least_once(4));
    let running = node.run_pipeline(&pipeline).unwrap();
    let arrival = gate.arrival();
    // A source that is stopped before it makes its fifth item sends only four.
    fifth.pass_one();
    until("the window is full", || items("zip") == 4);
    running.cancel();
    until("the source has ended", || items("zip") == 5);
    arrival.open();
    let report = running.wait().unwrap();
    assert!(report.cancelled);
    assert_eq!(report.left_over_count, 6, "{report}");
}

/// DEATH-2: one branch loses items with its process; their partners are named too, and the rest is paired.
fn halves_whose_partners_died_are_named(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let dies = Orders { dies_once: Some((40, folder.path().join("mark"))), ..Orders::default() };
    let pipeline = zipped(folder.path(), dies, Orders::default(), 100);
    let report = node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    let left_over = numbers(&report.left_over);
    assert!(left_over.contains(&40), "{report}");
    let lost = numbers(&report.lost);
    assert!(left_over.iter().all(|number| lost.contains(number)), "{report}");
    let expected: Vec<_> = (0..100).filter(|number| !left_over.contains(number)).collect();
    assert_eq!(written_sorted(folder.path().join("out")), expected);
}

/// Batches, made in the worker of the stage before, on which the next stage fails.
fn batched(folder: &Path, orders: Orders, on_error: OnError) -> Pipeline {
    let flow =
        Pipeline::new("batched").source::<Count>(CountArgs::to(60)).stage::<Obey>(orders).named("before");
    let flow = flow.stage::<Obey>(Orders::default());
    let flow = flow.batch(Batch::of(16)).map("no third batch", |many: Many<Numbered>| {
        anyhow::ensure!(many.items[0].number != 32, "this is the third");
        Ok(many)
    });
    flow.on_error(on_error).unbatch().sink::<WriteDown>(WriteDownArgs::to(folder.join("out"))).pipeline()
}

fn all_items_of_a_batch_that_was_skipped_are_named(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let pipeline = batched(folder.path(), Orders::default(), OnError::Skip);
    let report = node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    let mut failed: Vec<_> = report.failures.iter().filter_map(|failure| failure.id).collect();
    failed.sort_unstable();
    let expected: Vec<_> = (32..48).map(|number| ItemId { source: 0, number }).collect();
    assert_eq!(failed, expected, "{report}");
    assert_eq!(report.stage("no third batch").unwrap().errors, 1);
}

/// The worker that dies keeps the batch, and its stage had passed its items on already.
fn a_batch_that_died_with_its_worker_is_named(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let (pipeline, items) = watch(batched(folder.path(), at_a_door(&gate), OnError::Skip));
    let running = node.run_pipeline(&pipeline).unwrap();
    kill_when(&node, "Obey", &gate, || items("WriteDown") == 16 && items("batch") == 25);
    let error = running.wait().unwrap_err();
    let PipelineError::Died { report, .. } = &error else { panic!("{error}") };
    let lost = numbers(&report.lost);
    assert!((16..25).all(|number| lost.contains(&number)) && !lost.contains(&15), "{report}");
    assert_eq!(written(folder.path().join("out")), (0..16).collect::<Vec<_>>());
}

/// Orders to wait at the gate with item 25: all stages behind have nothing to do then.
fn at_a_door(gate: &Gate) -> Orders {
    Orders { door: Some((25, gate.door())), ..Orders::default() }
}

fn windowed(folder: &Path, orders: Orders) -> Pipeline {
    let flow =
        Pipeline::new("windowed").source::<Count>(CountArgs::to(60)).stage::<Obey>(orders).named("before");
    let flow = flow.stage::<Obey>(Orders::default());
    let flow = flow.window(4).map("last", |mut many: Many<Numbered>| Ok(many.items.remove(3)));
    flow.sink::<WriteDown>(WriteDownArgs::to(folder.join("out"))).pipeline()
}

/// Their own windows came out, but the windows that they would have been in did not.
fn what_a_window_kept_when_its_worker_died_is_named(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let (pipeline, items) = watch(windowed(folder.path(), at_a_door(&gate)));
    let running = node.run_pipeline(&pipeline).unwrap();
    kill_when(&node, "Obey", &gate, || items("WriteDown") == 22);
    let error = running.wait().unwrap_err();
    let PipelineError::Died { report, .. } = &error else { panic!("{error}") };
    assert_eq!(written(folder.path().join("out")), (3..25).collect::<Vec<_>>());
    let lost = numbers(&report.lost);
    assert!((22..25).all(|number| lost.contains(&number)) && !lost.contains(&21), "{report}");
}

/// A stage that dies on one item, and whose later lives wait at a door before they begin.
struct Hesitates(Fate);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Fate {
    dies_on: u64,
    door: Door,
}

impl Stage for Hesitates {
    type Args = Fate;
    type In = Numbered;
    type Out = Numbered;

    fn create(fate: Fate, env: &Env) -> anyhow::Result<Self> {
        if env.incarnation() > 0 {
            fate.door.pass()?;
        }
        Ok(Hesitates(fate))
    }

    fn process(&mut self, item: Numbered, out: &mut Out<Numbered>) -> anyhow::Result<()> {
        if item.number == self.0.dies_on {
            std::process::abort();
        }
        out.emit(item);
        Ok(())
    }
}

/// While one replica is between two lives, the other has all the work, and nobody waits.
fn replicas_stand_in_for_one_that_is_restarted(builder: Builder) {
    const COUNT: u64 = 200;
    let (node, folder) = (builder.start().unwrap(), folder());
    for (least, ordered, unacknowledged) in [
        (false, false, None),
        (true, false, None),
        (false, true, None),
        (true, true, None),
        (false, true, Some(16)),
    ] {
        let (gate, file) = (Gate::new(), folder.path().join(format!("{least} {ordered} {unacknowledged:?}")));
        // Only with at-most-once delivery: with at-least-once delivery it would die on the item again.
        let dies_on = if unacknowledged.is_some() { COUNT } else { 20 };
        let fate = Fate { dies_on, door: gate.door() };
        let flow = Pipeline::new("stand in").source::<Count>(CountArgs::to(COUNT));
        let flow = flow.stage::<Hesitates>(fate).named("worker").replicas(2).mailbox(2);
        let flow = if least { flow.to_least_loaded() } else { flow };
        let flow = if ordered { flow.ordered() } else { flow };
        let flow = flow.restart(Restart::on_failure(1));
        let at_the_sink = Gate::new();
        // The item comes from the replica that lives, or it would come again.
        let door = unacknowledged.map(|_| (11, at_the_sink.door()));
        let sink = WriteDownArgs { at_once: true, door, ..WriteDownArgs::to(&file) };
        let pipeline = flow.sink::<WriteDown>(sink).pipeline();
        let pipeline = match unacknowledged {
            Some(most) => pipeline.at_least_once(most),
            None => pipeline,
        };
        let running = node.run_pipeline(&pipeline).unwrap();
        if unacknowledged.is_some() {
            let arrival = at_the_sink.arrival();
            kill(&node, "worker.0");
            arrival.open();
        }
        let in_its_second_life = gate.arrival();
        until("the other replica has done everything", || written(&file).contains(&(COUNT - 1)));
        in_its_second_life.open();
        let report = running.wait().unwrap();
        assert_accounted(&report, COUNT, &file);
        let written = written(&file);
        assert!(!ordered || unacknowledged.is_some() || written.is_sorted(), "{written:?}");
    }
}

/// The item on which a replica panicked leaves a gap in the order, and the process that would report the gap
/// is the replica that ends. Nothing else can let the order go on: the pipeline never stands still.
fn an_order_goes_on_after_a_panic_while_other_things_move(builder: Builder) {
    const COUNT: u64 = 40;
    let (node, folder) = (builder.start().unwrap(), folder());
    for round in 0..if thorough() { 6 } else { 2 } {
        let [file, beside] = ["out", "beside"].map(|name| folder.path().join(format!("{name} {round}")));
        let pipeline = Pipeline::new("moves");
        let moves =
            pipeline.source::<Count>(CountArgs::endless()).named("clock").every(Duration::from_millis(20));
        let _ = moves.sink::<WriteDown>(WriteDownArgs { at_once: true, ..WriteDownArgs::to(&beside) });
        let orders = Orders { panics: Some(20), ..Orders::default() };
        let slow = pipeline.source::<Count>(CountArgs::to(COUNT)).every(Duration::from_millis(33));
        let flow =
            slow.stage::<Obey>(orders).replicas(2).mailbox(2).ordered().restart(Restart::on_failure(1));
        let sink = WriteDownArgs { at_once: true, ..WriteDownArgs::to(&file) };
        let pipeline = flow.sink::<WriteDown>(sink).pipeline();
        let running = node.run_pipeline(&pipeline).unwrap();
        until("the last item comes", || written(&file).contains(&(COUNT - 1)));
        running.cancel();
        let report = running.wait().unwrap();
        assert_accounted(&report, COUNT, &file);
        let said = matches!(&report.deaths[..], [death] if death.why.contains("told to panic on 20"));
        assert!(said, "{report}");
    }
}

/// A source that is restarted begins anew; the items that its first life had sent arrive too.
fn a_source_with_a_policy_begins_anew(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for replicas in [1, 2] {
        let [file, mark] = ["out", "mark"].map(|name| folder.path().join(format!("{name} {replicas}")));
        let args = CountArgs { dies_once: Some((30, mark)), ..CountArgs::to(90) };
        let flow = Pipeline::new("anew").source::<Count>(args).restart(Restart::on_failure(1));
        let flow = flow.stage::<Obey>(Orders::default()).replicas(replicas).ordered();
        let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file));
        let report = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
        assert!(
            matches!(&report.deaths[..], [death] if death.restarted && death.stage == "Count"),
            "{report}"
        );
        let written = written(&file);
        let mut distinct = written.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct, (0..90).collect::<Vec<_>>(), "every item comes");
        assert!(
            written.len() > 90 && written.len() <= 120,
            "{}: what had been sent comes twice",
            written.len()
        );
        // MBX-1, and for replicas the restored order: the second life is whole and in order.
        let second: Vec<_> = written[written.len() - 60..].to_vec();
        assert_eq!(second, (30..90).collect::<Vec<_>>());
        assert_eq!(report.lost_count, 0, "{report}");
    }
}

/// A stage that keeps all items until the end, and windows behind it.
fn reversed(folder: &Path, door: Door) -> Pipeline {
    let args = CountArgs { elements: 0, ..CountArgs::to(30) };
    let flow = Pipeline::new("reversed").source::<Count>(args).restart(Restart::on_failure(1));
    let flow = flow.stage::<Obey>(Orders { reverses: true, ..Orders::default() });
    let flow = flow.window(4).map("newest", |mut many: Many<Numbered>| Ok(many.items.remove(3)));
    let args = WriteDownArgs { door: Some((26, door)), ..WriteDownArgs::to(folder.join("out")) };
    flow.sink::<WriteDown>(args).pipeline()
}

/// The source has reported its end when it dies. So all stages behind it have had the end, and take the
/// repeated items: each window too. The run ends when all of these are through.
fn a_source_that_dies_behind_its_end_begins_anew(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let running = node.run_pipeline(&reversed(folder.path(), gate.door())).unwrap();
    let at_the_door = gate.arrival();
    kill(&node, "Count");
    at_the_door.open();
    // The same number comes again.
    std::thread::spawn(move || gate.pass_one());
    let report = running.wait().unwrap();
    let expected: Vec<_> = (0..=26).rev().chain(0..30).collect();
    assert_eq!(written(folder.path().join("out")), expected, "{report}");
    assert_eq!(report.stage("WriteDown").unwrap().items_in, 57, "{report}");
    assert!(matches!(&report.deaths[..], [death] if death.restarted), "{report}");
    assert_eq!((report.lost_count, report.left_over_count), (0, 0), "{report}");
}

fn the_death_of_a_source_without_a_policy_names_it(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let args = CountArgs { dies_once: Some((30, folder.path().join("mark"))), ..CountArgs::to(90) };
    let end = Pipeline::new("no policy").source::<Count>(args).sink::<WriteDown>(WriteDownArgs::to(&file));
    let error = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap_err();
    assert!(matches!(&error, PipelineError::Died { stage, .. } if stage == "Count"), "{error}");
    let text = error.to_string();
    assert!(text.contains("source `Count`") && text.contains(".restart("), "{text}");
    let written = written(&file);
    assert_eq!(written, (0..written.len() as u64).collect::<Vec<_>>());
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        results_that_came_to_nothing_are_named_and_hold_up_nobody,
        an_order_is_not_held_up_by_results_that_came_to_nothing,
        what_a_stage_was_passing_on_when_it_died_came_or_is_named,
        at_least_once_makes_again_what_came_to_nothing,
        halves_whose_partners_were_dropped_are_named,
        halves_whose_partners_died_are_named,
        halves_whose_partners_were_dropped_do_not_stop_the_source,
        halves_behind_several_forks_and_zips_do_not_stop_the_source,
        halves_stop_nobody_after_a_death_either,
        a_join_in_which_both_sides_stand_still_goes_on,
        a_cancel_ends_a_run_whose_halves_wait,
        all_items_of_a_batch_that_was_skipped_are_named,
        a_batch_that_died_with_its_worker_is_named,
        what_a_window_kept_when_its_worker_died_is_named,
        replicas_stand_in_for_one_that_is_restarted,
        an_order_goes_on_after_a_panic_while_other_things_move,
        a_source_with_a_policy_begins_anew,
        a_source_that_dies_behind_its_end_begins_anew,
        the_death_of_a_source_without_a_policy_names_it,
    ]
}
