//! No circle of waiting, and no silent loss: a pipeline that can wait for itself works, or is refused before
//! a process starts. A pipeline that does not end says where each stage stands.

use std::path::Path;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserializer, Serializer};
use tempfile::TempDir;
use tensorpost::node::WorkerState;
use tensorpost::pipeline::{Batch, Flow, Many, Pair, Pipeline, PipelineError, Report};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::pipes::{
    Count, CountArgs, Numbered, Obey, Orders, WriteDown, WriteDownArgs, watch, written, written_sorted,
};
use tensorpost_tests::wait::until;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn run(node: &Node, pipeline: &Pipeline) -> Report {
    node.run_pipeline(pipeline).expect("it starts").wait().expect("it ends well")
}

fn refusal(pipeline: &Pipeline) -> String {
    match pipeline.check() {
        Err(error @ PipelineError::Graph { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// The operator that keeps items behind a loop.
#[derive(Clone, Copy, Debug)]
enum Behind {
    Batch,
    Window,
    /// In the worker of a stage between.
    Between,
}

impl Behind {
    const ALL: [Behind; 3] = [Behind::Batch, Behind::Window, Behind::Between];
}

fn writing(folder: &Path) -> WriteDownArgs {
    WriteDownArgs::to(folder.join("out"))
}

/// Each item goes around twice, in a loop with this much room.
fn around<At>(flow: Flow<Numbered, At>, bound: u32) -> Flow<Numbered> {
    let round = |item: Numbered| Ok(Numbered { number: item.number + 1000, ..item });
    flow.iterate(bound, |flow| flow.map("in the loop", round), |item| item.number < 2000)
}

fn looped(folder: &Path, behind: Behind, bound: u32, at_least_once: Option<u32>) -> Pipeline {
    let pipeline = Pipeline::new(format!("looped {behind:?}"));
    let pipeline = match at_least_once {
        Some(most) => pipeline.at_least_once(most),
        None => pipeline,
    };
    let flow = around(pipeline.source::<Count>(CountArgs { elements: 0, ..CountArgs::to(40) }), bound);
    let many = match behind {
        Behind::Batch => flow.batch(Batch::of(3)).map("all", Ok),
        Behind::Window => flow.window(3).map("all", Ok),
        Behind::Between => flow.map("between", Ok).batch(Batch::of(3)).map("all", Ok),
    };
    many.unbatch().sink::<WriteDown>(writing(folder)).pipeline()
}

/// An item has left the loop when the next stage has it, and not when a batch that is never full has passed
/// it on.
fn what_is_kept_behind_a_loop_keeps_nobody_out_of_it(builder: Builder) {
    let node = builder.start().unwrap();
    for behind in Behind::ALL {
        for bound in [8, 2] {
            let folder = folder();
            let report = run(&node, &looped(folder.path(), behind, bound, None));
            assert!(report.is_complete(), "{report}");
            let mut numbers = written_sorted(folder.path().join("out"));
            numbers.dedup();
            assert_eq!(numbers, (2000..2040).collect::<Vec<_>>(), "{behind:?}");
        }
    }
}

/// With at-least-once delivery, it stays in the loop until it is acknowledged.
fn at_least_once_what_is_kept_behind_a_loop_is_refused_with_the_remedy(_: Builder) {
    for behind in Behind::ALL {
        let text = refusal(&looped(Path::new(""), behind, 8, Some(32)));
        assert!(text.contains("loop") && text.contains("within"), "{text}");
    }
    let flow = around(Pipeline::new("timed").at_least_once(32).source::<Count>(CountArgs::to(40)), 8);
    let batch = Batch::of(3).within(Duration::from_millis(10));
    flow.batch(batch).unbatch().sink::<WriteDown>(writing(Path::new(""))).pipeline().check().unwrap();
}

/// Where a fork spreads a pair, the part that is kept keeps the other one unacknowledged too.
fn parts_of_batches_that_a_batch_keeps_count_whole(_: Builder) {
    let flow = |unacknowledged: u32| {
        let pipeline = Pipeline::new("parts").at_least_once(unacknowledged);
        let pairs = pipeline.source::<Count>(CountArgs::to(40)).batch(Batch::of(2)).unbatch();
        let [kept, rest] = pairs.least_loaded();
        kept.batch(Batch::of(5)).unbatch().sink::<WriteDown>(writing(Path::new("")));
        rest.sink::<WriteDown>(writing(Path::new(""))).pipeline()
    };
    // Four of five wait, from four pairs, and one waits for the other half of its pair.
    let text = refusal(&flow(9));
    assert!(text.contains("at_least_once(10)"), "{text}");
    flow(10).check().unwrap();
}

fn bytes_that_a_batch_keeps_are_refused_with_the_remedy(_: Builder) {
    let flow = |at_least_once: bool| {
        let pipeline = Pipeline::new("bytes");
        let pipeline = if at_least_once { pipeline.at_least_once(32) } else { pipeline };
        pipeline.source::<Count>(CountArgs::to(40)).map("few bytes", Ok).max_bytes_in_flight(100)
    };
    let sink =
        |flow: Flow<Many<Numbered>, _>| flow.unbatch().sink::<WriteDown>(writing(Path::new(""))).pipeline();
    for pipeline in [sink(flow(false).batch(Batch::of(8))), sink(flow(false).window(3))] {
        let text = refusal(&pipeline);
        assert!(text.contains("few bytes") && text.contains("max_bytes_in_flight"), "{text}");
    }
    let timed = Batch::of(8).within(Duration::from_millis(10));
    sink(flow(false).batch(timed)).check().unwrap();
    // In another worker, with at-most-once delivery, a batch counts only its own items.
    let apart = |again| sink(flow(again).map("apart", Ok).batch(Batch::of(8)));
    apart(false).check().unwrap();
    assert!(refusal(&apart(true)).contains("few bytes"));
}

/// The items that can be kept are summed over all stages behind a source.
fn more_than_may_be_unacknowledged_is_refused_with_the_number_that_would_do(_: Builder) {
    let chain = |most: u32| {
        let pipeline = Pipeline::new("summed").at_least_once(most);
        let flow = pipeline.source::<Count>(CountArgs::to(40)).batch(Batch::of(4)).unbatch().map("m", Ok);
        flow.window(5)
            .map("first", |mut many: Many<Numbered>| Ok(many.items.remove(0)))
            .sink::<WriteDown>(writing(Path::new("")))
            .pipeline()
    };
    chain(8).check().unwrap();
    let text = refusal(&chain(7));
    assert!(text.contains("`window`") && text.contains("at_least_once(8)"), "{text}");
    // A window of batches keeps all items in them. A fork at the source has as many for each branch; a fork
    // behind the source does not.
    let nested = |most: u32| {
        let flow = Pipeline::new("nested").at_least_once(most).source::<Count>(CountArgs::to(40));
        let flow = flow.batch(Batch::of(4)).map("m", Ok).window(3);
        flow.for_each("end", |_: Many<Many<Numbered>>| Ok(())).pipeline()
    };
    nested(12).check().unwrap();
    assert!(refusal(&nested(11)).contains("at_least_once(12)"));
    let forked = |most: u32, behind: bool| {
        let flow = Pipeline::new("forked").at_least_once(most).source::<Count>(CountArgs::to(40));
        let [one, two] = if behind { flow.map("m", Ok).round_robin() } else { flow.round_robin() };
        let both = one.batch(Batch::of(8)).merge(two.batch(Batch::of(8)));
        both.for_each("end", |_: Many<Numbered>| Ok(())).pipeline()
    };
    // A part that is kept keeps its whole batch, however many more would have been enough; and where some
    // items may be left out, each that is kept may be from another batch.
    let parts = |most: u32, count: u32, drops: bool| {
        let flow = Pipeline::new("parts").at_least_once(most).source::<Count>(CountArgs::to(40));
        let flow = flow.batch(Batch::of(count)).unbatch();
        let flow = if drops { flow.filter("odd", |item| item.number % 2 == 1) } else { flow.map("all", Ok) };
        flow.window(3).for_each("end", |_: Many<Numbered>| Ok(())).pipeline()
    };
    for (count, drops, least) in [(10, false, 20), (2, false, 4), (2, true, 6), (10, true, 30)] {
        parts(least, count, drops).check().unwrap();
        let text = refusal(&parts(least - 1, count, drops));
        assert!(text.contains(&format!("at_least_once({least})")), "{text}");
    }
    forked(8, false).check().unwrap();
    assert!(refusal(&forked(14, true)).contains("at_least_once(15)"));
}

/// Hundreds of items pass by one that is kept, or are fewer than an order is wide.
fn at_least_once_what_is_kept_behind_an_order_keeps_nobody_waiting(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let [few, kept, past, wide] = ["few", "kept", "past", "wide"].map(|name| folder.path().join(name));
    let source = |name: &str, most: u32| {
        let args = CountArgs { elements: 0, ..CountArgs::to(500) };
        Pipeline::new(name).at_least_once(most).source::<Count>(args)
    };
    let ordered = |flow: Flow<Numbered, _>| flow.map("m", Ok).replicas(2).ordered();

    let flow = source("few", 8).filter("few", |item| item.number % 50 == 0).replicas(2).ordered();
    let end = flow.batch(Batch::of(4)).unbatch().sink::<WriteDown>(WriteDownArgs::to(&few));
    run(&node, &end.pipeline());
    assert_eq!(written(&few), (0..10).map(|number| 50 * number).collect::<Vec<_>>());

    let (one, other) = ordered(source("past", 8)).split(|item| item.number % 100 == 0);
    let first = |mut many: Many<Numbered>| Ok(many.items.remove(0));
    one.window(4).map("first", first).sink::<WriteDown>(WriteDownArgs::to(&kept));
    run(&node, &other.sink::<WriteDown>(WriteDownArgs::to(&past)).pipeline());
    assert_eq!(written(&kept), [0, 100]);
    assert_eq!(written(&past), (0..500).filter(|number| number % 100 != 0).collect::<Vec<_>>());

    let flow = ordered(source("wide", 600)).batch(Batch::of(400)).unbatch();
    run(&node, &flow.sink::<WriteDown>(WriteDownArgs::to(&wide)).pipeline());
    assert_eq!(written(&wide), (0..500).collect::<Vec<_>>());
}

fn replicas_that_keep_as_much_as_an_order_is_wide_are_refused_with_the_remedy(_: Builder) {
    let batches = |batch: Batch| {
        let flow = Pipeline::new("batches").source::<Count>(CountArgs::to(40)).map("m", Ok);
        flow.batch(batch).replicas(4).ordered()
    };
    let end = |flow: Flow<Many<Numbered>, _>| flow.for_each("end", |_| Ok(())).pipeline();
    let (enough, too_many) = (Batch::of(64), Batch::of(65));
    end(batches(enough)).check().unwrap();
    let of_a_key = |batch: Batch| end(batches(batch).by_key(|item: &Numbered| item.number));
    for pipeline in [end(batches(too_many)), of_a_key(enough)] {
        let text = refusal(&pipeline);
        assert!(text.contains("`batch`") && text.contains("leave `ordered` out"), "{text}");
    }
    let timed = too_many.within(Duration::from_millis(10));
    of_a_key(timed).check().unwrap();
    // At least once the batches may keep as much as may be unacknowledged.
    of_a_key(too_many).at_least_once(300).check().unwrap();
    assert!(refusal(&of_a_key(too_many).at_least_once(256)).contains("at_least_once(257)"));
}

/// Odd and even numbers never pair, by key; behind a stage or at the source.
fn pairs_of_a_split(folder: &Path, behind: bool, most: u32) -> Pipeline {
    let flow = Pipeline::new(if behind { "split behind" } else { "split at once" }).at_least_once(most);
    let flow = flow.source::<Count>(CountArgs { elements: 0, ..CountArgs::to(20) });
    let (even, odd) = if behind {
        flow.map("between", Ok).split(|item| item.number % 2 == 0)
    } else {
        flow.split(|item| item.number % 2 == 0)
    };
    let first = |pair: Pair<Numbered, Numbered>| Ok(pair.left);
    let pairs = even.join(odd, |even| even.number, |odd| odd.number).map("first", first);
    pairs.sink::<WriteDown>(writing(folder)).pipeline()
}

fn a_join_of_what_never_pairs_stands_still_nowhere(builder: Builder) {
    let node = builder.start().unwrap();
    for behind in [true, false] {
        let folder = folder();
        let report = run(&node, &pairs_of_a_split(folder.path(), behind, 8));
        assert_eq!((report.left_over_count, report.lost_count), (20, 0), "{report}");
        assert!(!report.is_complete() && report.to_string().contains("incomplete"), "{report}");
        assert!(written(folder.path().join("out")).is_empty());
    }
}

/// The branches are a broadcast, and every third item has no left half: only the fork knows.
fn filtered_join(folder: &Path) -> Pipeline {
    let flow = Pipeline::new("filtered").at_least_once(4);
    let flow = flow.source::<Count>(CountArgs { elements: 0, ..CountArgs::to(30) }).map("between", Ok);
    let [left, right] = flow.broadcast();
    let left = left.filter("not all", |item| item.number % 3 != 0);
    let first = |pair: Pair<Numbered, Numbered>| Ok(pair.left);
    let pairs = left.join(right, |left| left.number, |right| right.number).map("first", first);
    pairs.sink::<WriteDown>(writing(folder)).pipeline()
}

fn a_join_whose_partners_are_filtered_out_goes_on(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let report = run(&node, &filtered_join(folder.path()));
    assert_eq!((report.left_over_count, report.lost_count), (10, 0), "{report}");
    let expected: Vec<_> = (0..30).filter(|number| number % 3 != 0).collect();
    assert_eq!(written_sorted(folder.path().join("out")), expected, "every pair came");
}

/// Pairs of a key, in batches, one by one again, and a stage that looks at their ids.
fn apart(folder: &Path) -> Pipeline {
    let flow = Pipeline::new("apart").source::<Count>(CountArgs { elements: 0, ..CountArgs::to(12) });
    let (even, odd) = flow.split(|item| item.number % 2 == 0);
    let pairs = even.join(odd, |even| even.number / 2, |odd| odd.number / 2).batch(Batch::of(4)).unbatch();
    let pairs = pairs.apply("ids", |pair, out, _| {
        let mut numbers: Vec<_> = out.ids().iter().map(|id| id.number).collect();
        numbers.sort_unstable();
        anyhow::ensure!(numbers == [pair.left.number, pair.right.number], "{numbers:?} are not {pair:?}");
        out.emit(pair.left);
        Ok(())
    });
    pairs.sink::<WriteDown>(writing(folder)).pipeline()
}

fn pairs_that_were_batched_have_their_own_ids_again(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    run(&node, &apart(folder.path()));
    assert_eq!(written_sorted(folder.path().join("out")), [0, 2, 4, 6, 8, 10]);
}

/// A message that no reader can read if it is number 7, though its sender can write it.
#[derive(Clone, Debug, GpuMessage)]
struct Fussy {
    number: u64,
}

impl Serialize for Fussy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.number.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Fussy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(deserializer)?;
        if number == 7 { Err(D::Error::custom("nobody reads 7")) } else { Ok(Fussy { number }) }
    }
}

fn fussy(folder: &Path) -> Pipeline {
    let pipeline = Pipeline::new("fussy");
    let flow = pipeline.items("numbers", |_| (0..20).map(|number| Fussy { number }));
    let flow = flow.map("plain", |fussy| Ok(Numbered { number: fussy.number, tensor: None }));
    flow.sink::<WriteDown>(writing(folder)).pipeline()
}

/// Nothing died: an item that was lost all the same makes the run an error, which carries the report.
fn a_loss_that_no_death_explains_is_an_error(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let error = node.run_pipeline(&fussy(folder.path())).unwrap().wait().unwrap_err();
    let PipelineError::Incomplete { report } = &error else { panic!("{error}") };
    assert_eq!((report.lost_count, report.lost_unexplained), (1, 1), "{report}");
    let text = error.to_string();
    assert!(text.contains("#7") && text.contains("nobody reads 7"), "{text}");
    let expected: Vec<_> = (0..20).filter(|number| *number != 7).collect();
    assert_eq!(written(folder.path().join("out")), expected, "the others came");
}

/// Items that a death took under a restart policy are reported; one switch makes that an error.
fn what_a_death_took_is_an_error_where_that_was_asked_for(builder: Builder) {
    let node = builder.start().unwrap();
    for complete in [false, true] {
        let folder = folder();
        let once = Some((20, folder.path().join("mark")));
        let orders = Orders { dies_once: once, ..Orders::default() };
        let pipeline = Pipeline::new("taken");
        let pipeline = if complete { pipeline.require_complete() } else { pipeline };
        let flow = pipeline.source::<Count>(CountArgs { elements: 0, ..CountArgs::to(60) });
        let flow = flow.stage::<Obey>(orders).restart(Restart::on_failure(1));
        let result =
            node.run_pipeline(&flow.sink::<WriteDown>(writing(folder.path())).pipeline()).unwrap().wait();
        let report = match result {
            Ok(report) if !complete => report,
            Err(PipelineError::Incomplete { report }) if complete => *report,
            other => panic!("{other:?}"),
        };
        assert!(report.lost_count > 0 && report.lost_unexplained == 0 && !report.is_complete(), "{report}");
        assert!(report.to_string().contains("incomplete: lost"), "{report}");
    }
}

/// The source is gone for good; then its receiver dies, and comes back. All that the source makes fits into
/// the mailbox of the receiver, which stands at its door.
fn a_later_life_is_told_which_processes_exited(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let mark = |name: &str| folder.path().join(name);
    let args = CountArgs { elements: 0, dies_once: Some((5, mark("source"))), ..CountArgs::to(50) };
    let orders =
        Orders { door: Some((2, gate.door())), dies_once: Some((3, mark("stage"))), ..Orders::default() };
    let flow =
        Pipeline::new("told").source::<Count>(args).stage::<Obey>(orders).restart(Restart::on_failure(3));
    let end = flow.restart(Restart::on_failure(3)).sink::<WriteDown>(writing(folder.path()));
    let running = node.run_pipeline(&end.pipeline()).unwrap();
    let at_the_door = gate.arrival();
    until("the source is gone", || {
        node.workers().iter().all(|worker| worker.name != "Count" || worker.state != WorkerState::Running)
    });
    at_the_door.open();
    let error = running.wait().unwrap_err();
    let PipelineError::Died { stage, report, .. } = &error else { panic!("{error}") };
    assert_eq!((stage.as_str(), report.deaths.len()), ("Count", 2), "{report}");
}

fn branches(folder: &Path) -> Pipeline {
    let file = |name: &str| WriteDownArgs { at_once: true, ..WriteDownArgs::to(folder.join(name)) };
    let flow = Pipeline::new("branches").source::<Count>(CountArgs { elements: 0, ..CountArgs::to(200) });
    let (even, odd) = flow.map("between", Ok).split(|item| item.number % 2 == 0);
    let orders = Orders { dies: Some(20), ..Orders::default() };
    even.stage::<Obey>(orders).sink::<WriteDown>(file("even"));
    odd.sink::<WriteDown>(file("odd")).pipeline()
}

/// The items of one branch of a fork do not go to the other after the branch's stage has died.
fn branches_do_not_stand_in_for_each_other(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let error = node.run_pipeline(&branches(folder.path())).unwrap().wait().unwrap_err();
    let PipelineError::Died { report, .. } = &error else { panic!("{error}") };
    let odd = written(folder.path().join("odd"));
    assert!(odd.iter().all(|number| number % 2 == 1), "{odd:?}");
    let named: Vec<_> = report.lost.iter().map(|lost| lost.id.number).collect();
    assert!(named.contains(&20) && named.iter().all(|number| number % 2 == 0), "{report}");
}

/// Two sources that become one flow; one of them ends.
fn two_ends(folder: &Path, orders: Orders) -> Pipeline {
    let pipeline = Pipeline::new("two ends");
    let short = pipeline.source::<Count>(CountArgs { elements: 0, ..CountArgs::to(1) }).named("short");
    let long = pipeline.source::<Count>(CountArgs { elements: 0, ..CountArgs::endless() }).named("long");
    let long = long.stage::<Obey>(orders).named("slow");
    short.merge(long).sink::<WriteDown>(writing(folder)).named("end").pipeline()
}

/// A pipeline that is killed says where each of its stages stood, by the names in its declaration.
fn a_pipeline_that_is_killed_says_whose_end_is_missing(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let orders = Orders { door: Some((3, gate.door())), ..Orders::default() };
    let (pipeline, items) = watch(two_ends(folder.path(), orders));
    let running = node.run_pipeline(&pipeline).unwrap();
    let at_the_door = gate.arrival();
    // By then the stage that waits in its call has reported nothing for several looks.
    let begin = std::time::Instant::now();
    until("the source is held up", || items("long") >= 8 && begin.elapsed() > Duration::from_millis(500));
    running.kill();
    let error = running.wait().unwrap_err();
    drop(at_the_door);
    let PipelineError::Killed { report } = &error else { panic!("{error}") };
    let what = |stage: &str| {
        let found = report.waiting.iter().find(|waiting| waiting.stage == stage);
        found.map_or_else(|| panic!("nothing of {stage}: {error}"), |waiting| waiting.what.clone())
    };
    assert!(what("long").contains("room at `slow`"), "{error}");
    assert!(what("slow").contains("a call of its own"), "{error}");
    assert!(what("end").contains("the end of `slow`") && !what("end").contains("short"), "{error}");
    // The error blames the stage for which the others wait; the report names all.
    let text = error.to_string();
    assert!(text.contains("`slow` waits for a call of its own to return: `process`"), "{error}");
    assert!(!text.contains("`end` waits for"), "{error}");
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        what_is_kept_behind_a_loop_keeps_nobody_out_of_it,
        at_least_once_what_is_kept_behind_a_loop_is_refused_with_the_remedy,
        parts_of_batches_that_a_batch_keeps_count_whole,
        bytes_that_a_batch_keeps_are_refused_with_the_remedy,
        more_than_may_be_unacknowledged_is_refused_with_the_number_that_would_do,
        at_least_once_what_is_kept_behind_an_order_keeps_nobody_waiting,
        replicas_that_keep_as_much_as_an_order_is_wide_are_refused_with_the_remedy,
        a_join_of_what_never_pairs_stands_still_nowhere,
        a_join_whose_partners_are_filtered_out_goes_on,
        pairs_that_were_batched_have_their_own_ids_again,
        a_loss_that_no_death_explains_is_an_error,
        what_a_death_took_is_an_error_where_that_was_asked_for,
        a_later_life_is_told_which_processes_exited,
        branches_do_not_stand_in_for_each_other,
        a_pipeline_that_is_killed_says_whose_end_is_missing,
    ]
}
