//! Pipelines that are no line: forks, joins, batches, windows and loops.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tensorpost::pipeline::{Batch, Many, Pair};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::pipes::{
    Count, CountArgs, Numbered, Obey, Orders, Rows, WriteDown, WriteDownArgs, watch, written, written_sorted,
};
use tensorpost_tests::wait::{until, until_free};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn sink(flow: Flow<Numbered, impl Sized>, folder: &Path, name: &str) {
    flow.sink::<WriteDown>(WriteDownArgs::to(folder.join(name))).named(name);
}

/// All ways to fork.
fn forks(folder: &Path) -> Pipeline {
    let pipeline = Pipeline::new("forks");
    let [every, all, rest] = pipeline.source::<Count>(CountArgs::to(120)).broadcast();
    sink(every, folder, "every");
    let (low, high) = all.split(|item| item.number < 30);
    sink(low, folder, "low");
    let [even, odd] = high.spread_by_key(|item| item.number % 2);
    sink(even, folder, "one key");
    sink(odd, folder, "other key");
    let [first, second, third] = rest.round_robin();
    sink(first, folder, "first");
    let [left, right] = second.merge(third).least_loaded();
    sink(left.merge(right), folder, "merged");
    pipeline
}

fn forks_and_merges_send_each_item_where_it_belongs(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let report = node.run_pipeline(&forks(folder.path())).unwrap().wait().unwrap();
    let get = |name: &str| written(folder.path().join(name));
    let where_is = |keep: fn(&u64) -> bool| (0..120).filter(keep).collect::<Vec<u64>>();
    assert_eq!(get("every"), where_is(|_| true));
    assert_eq!(get("low"), where_is(|number| *number < 30));
    let mut keys = [get("one key"), get("other key")];
    keys.sort_by_key(|key| key.first().map_or(2, |number| number % 2));
    let (even, odd) =
        (where_is(|number| *number >= 30 && number % 2 == 0), where_is(|n| *n >= 30 && n % 2 == 1));
    // The hash may send both keys the same way.
    assert!(keys == [even, odd] || keys.concat().len() == 90 && keys.iter().any(Vec::is_empty), "{keys:?}");
    assert_eq!(get("first"), where_is(|number| number % 3 == 0));
    assert_eq!(written_sorted(folder.path().join("merged")), where_is(|number| number % 3 != 0));
    assert_eq!(report.lost_count, 0);
    until_free(&node);
}

/// Both branches hold the same tensor; one changes the number, the other takes its time.
fn diamond(folder: &Path) -> Pipeline {
    let pipeline = Pipeline::new("diamond");
    let [left, right] = pipeline.source::<Count>(CountArgs::to(300)).broadcast();
    let left = left.stage::<Obey>(Orders { dawdles: true, ..Orders::default() }).named("slow").replicas(2);
    let right = right.map("thousand", |item: Numbered| Ok(Numbered { number: item.number + 1000, ..item }));
    let both = left.zip(right).map("together", |pair: Pair<Numbered, Numbered>| {
        anyhow::ensure!(pair.left.number + 1000 == pair.right.number, "{pair:?}");
        anyhow::ensure!(
            pair.left.tensor.map(|t| t.to_vec::<u32>()).transpose()?
                == pair.right.tensor.map(|t| t.to_vec::<u32>()).transpose()?
        );
        Ok(Numbered { number: pair.left.number, tensor: None })
    });
    sink(both, folder, "out");
    pipeline
}

fn two_branches_of_one_item_are_joined_by_its_id(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for at_least_once in [false, true] {
        let pipeline = diamond(folder.path());
        let pipeline = if at_least_once { pipeline.at_least_once(32) } else { pipeline };
        node.run_pipeline(&pipeline).unwrap().wait().unwrap();
        assert_eq!(written_sorted(folder.path().join("out")), (0..300).collect::<Vec<_>>());
        std::fs::remove_file(folder.path().join("out")).unwrap();
    }
}

/// Two sources, one of which has only every third number.
fn joined(folder: &Path) -> Pipeline {
    let pipeline = Pipeline::new("joined");
    let left = pipeline.source::<Count>(CountArgs::to(90)).named("left source");
    let right = pipeline.items("right source", |_| (0..30).map(|n| Numbered { number: 3 * n, tensor: None }));
    let both = left.join(right, |item| item.number, |item| item.number);
    sink(both.map("left half", |pair| Ok(pair.left)), folder, "out");
    pipeline
}

fn two_sources_are_joined_by_key(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    node.run_pipeline(&joined(folder.path())).unwrap().wait().unwrap();
    let expected: Vec<_> = (0..90).filter(|number| number % 3 == 0).collect();
    assert_eq!(written_sorted(folder.path().join("out")), expected);
}

/// 70 items in batches of 16, and one by one again, joined with items that did not go that way: so they have
/// their ids back.
fn batches(folder: &Path) -> Pipeline {
    let pipeline = Pipeline::new("batches");
    let [through, past] = pipeline.source::<Count>(CountArgs::to(70)).broadcast();
    let batches = through.batch(Batch::of(16)).map("sizes", |many: Many<Numbered>| {
        let expected = if many.items[0].number < 64 { 16 } else { 6 };
        anyhow::ensure!(many.items.len() == expected, "{}", many.items.len());
        Ok(many)
    });
    let both = batches.unbatch().zip(past.batch(Batch::of(1)).unbatch());
    let both = both.map("compare", |pair| {
        anyhow::ensure!(pair.left.number == pair.right.number, "{pair:?}");
        Ok(pair.left)
    });
    sink(both, folder, "out");
    pipeline
}

fn batches_are_full_but_for_the_last_and_come_apart_again(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    node.run_pipeline(&batches(folder.path()).at_least_once(40)).unwrap().wait().unwrap();
    assert_eq!(written(folder.path().join("out")), (0..70).collect::<Vec<_>>());
}

/// The third batch is not full: it goes on because its time is up, while the source waits at a door.
fn gathered_behind(folder: &Path, orders: Orders) -> Pipeline {
    let pipeline = Pipeline::new("gathered");
    let flow = pipeline.source::<Count>(CountArgs::to(30)).stage::<Obey>(orders);
    let rows = flow.map("pass", Ok).gather(Batch::of(8).within(Duration::from_millis(30)));
    let items = rows.flat_map("rows", |rows: Rows| {
        let shape = (rows.rows.shape()[0], rows.numbers.len());
        anyhow::ensure!(shape.0 == shape.1, "{shape:?}");
        let row = |(at, number): (usize, u64)| Ok(Numbered { number, tensor: Some(rows.rows.index(0, at)?) });
        rows.numbers.into_iter().enumerate().map(row).collect::<anyhow::Result<Vec<_>>>()
    });
    sink(items, folder, "out");
    pipeline
}

fn tensors_are_gathered_into_one_by_count_and_by_time(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let orders = Orders { door: Some((20, gate.door())), ..Orders::default() };
    let (pipeline, items) = watch(gathered_behind(folder.path(), orders));
    let running = node.run_pipeline(&pipeline).unwrap();
    let held = gate.arrival();
    until("what is there goes on without the rest", || items("out") == 20);
    held.open();
    running.wait().unwrap();
    assert_eq!(written(folder.path().join("out")), (0..30).collect::<Vec<_>>());
}

fn windows(folder: &Path) -> Pipeline {
    let pipeline = Pipeline::new("windows");
    let flow = pipeline.source::<Count>(CountArgs::to(20)).window(3).map("sum", |many: Many<Numbered>| {
        Ok(Numbered { number: many.items.iter().map(|item| item.number).sum(), tensor: None })
    });
    sink(flow, folder, "out");
    pipeline
}

fn windows_overlap(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    node.run_pipeline(&windows(folder.path())).unwrap().wait().unwrap();
    assert_eq!(written(folder.path().join("out")), (0..18).map(|from| 3 * from + 3).collect::<Vec<_>>());
}

/// Every item goes around until its number is a multiple of 10. Some are dropped on the way.
fn rounds(folder: &Path, orders: Option<Orders>) -> Pipeline {
    let pipeline = Pipeline::new("rounds");
    let flow = pipeline.source::<Count>(CountArgs { elements: 0, ..CountArgs::to(200) });
    let flow = flow.iterate(
        4,
        |flow| {
            let flow = flow.map("add one", |item: Numbered| Ok(Numbered { number: item.number + 1, ..item }));
            flow.stage::<Obey>(orders.unwrap_or_default()).on_error(OnError::Skip).replicas(2)
        },
        |item| !item.number.is_multiple_of(10),
    );
    sink(flow, folder, "out");
    pipeline
}

fn a_loop_is_bounded_and_ends(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let fails = [(55, 9), (107, 9)].into_iter().collect();
    let orders = Orders { fails, ..Orders::default() };
    let pipeline = rounds(folder.path(), Some(orders));
    assert!(pipeline.describe().to_string().contains("again, at most 4 items"), "{}", pipeline.describe());
    let report = node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    // Each number n comes out as the next multiple of 10 above it; numbers that pass 55 or 107 do not.
    let expected: Vec<u64> = (0..200_u64)
        .filter(|number| !(50..55).contains(number) && !(100..107).contains(number))
        .map(|number| (number / 10 + 1) * 10)
        .collect();
    assert_eq!(written_sorted(folder.path().join("out")), expected, "{report}");
    assert_eq!(report.stage("Obey").unwrap().skipped, 12);
}

fn the_diagrams_name_every_stage(_: Builder) {
    let pipeline = rounds(Path::new("out"), None);
    let about = pipeline.describe();
    for name in ["Count", "add one", "Obey", "out"] {
        for text in [about.to_string(), about.mermaid(), about.dot()] {
            assert!(text.contains(name), "{name} in {text}");
        }
    }
    assert_eq!(about.mermaid().matches("-->").count(), about.dot().matches("->").count());
    assert!(about.to_string().contains("stage Obey (2 replicas)"), "{about}");

    let live = Pipeline::new("live").source::<Count>(CountArgs::to(3)).every(Duration::from_millis(40));
    let live =
        live.sink::<WriteDown>(WriteDownArgs::to("out")).mailbox(3).drop_oldest().pipeline().describe();
    for text in [live.to_string(), live.mermaid(), live.dot()] {
        assert!(text.contains("one every 40ms"), "{text}");
        assert!(text.contains("keeps 3 per sender, drops the oldest"), "{text}");
    }
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        forks_and_merges_send_each_item_where_it_belongs,
        two_branches_of_one_item_are_joined_by_its_id,
        two_sources_are_joined_by_key,
        batches_are_full_but_for_the_last_and_come_apart_again,
        tensors_are_gathered_into_one_by_count_and_by_time,
        windows_overlap,
        a_loop_is_bounded_and_ends,
        the_diagrams_name_every_stage,
    ]
}
