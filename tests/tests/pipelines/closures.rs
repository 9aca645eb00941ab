//! Closures and workers: a worker runs the code that the program links, and nothing of `main`; a closure has
//! the values that it is given.

use std::sync::atomic::Ordering;
use std::thread;

use tempfile::TempDir;
use tensorpost::pipeline::Report;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case, MAIN_HAS_BEGUN};
use tensorpost_tests::pipes::{Numbered, WriteDown, WriteDownArgs, written, written_sorted};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn numbers(pipeline: &Pipeline, count: u64) -> Flow<Numbered> {
    let flow = pipeline.with(count).items("numbers", |count, _| (0..count).map(numbered));
    let [flow] = flow.broadcast();
    flow
}

fn numbered(number: u64) -> Numbered {
    Numbered { number, tensor: None }
}

/// Runs `0..3` plus this number, on a node of its own.
fn with_more(more: u64, folder: &TempDir) -> (Report, Vec<u64>) {
    let file = folder.path().join(more.to_string());
    let flow = numbers(&Pipeline::new("more"), 3).with(more);
    let flow = flow.map("add", |more, item| Ok(numbered(item.number + *more)));
    let report = flow.sink::<WriteDown>(WriteDownArgs::to(&file)).run().unwrap();
    (report, written(file))
}

fn a_pipeline_in_a_loop_has_in_each_round_what_it_is_given(_: Builder) {
    let folder = folder();
    for more in [100, 200, 300] {
        assert_eq!(with_more(more, &folder).1, [more, more + 1, more + 2]);
    }
}

fn pipelines_on_threads_and_in_async_code_run_beside_a_node(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    thread::scope(|scope| {
        let folder = &folder;
        let threads = [10, 20].map(|more| (more, scope.spawn(move || with_more(more, folder).1)));
        for (more, thread) in threads {
            assert_eq!(thread.join().unwrap(), [more, more + 1, more + 2]);
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let made = runtime.block_on(async { with_more(30, &folder).1 });
    assert_eq!(made, [30, 31, 32]);
    // The pipeline is declared when the node runs, with an address of one of its actors.
    let (address, mut arriving) = node.channel::<Numbered>().unwrap();
    let pipeline = Pipeline::new("late");
    let flow = numbers(&pipeline, 3).with((address, 7)).for_each("send", |(address, more), item| {
        Ok(address.try_send(numbered(item.number + *more)).map_err(|error| error.reason)?)
    });
    node.run_pipeline(&flow.pipeline()).unwrap().wait().unwrap();
    assert_eq!([(); 3].map(|()| arriving.try_recv().unwrap().number), [7, 8, 9]);
}

fn closures_of_one_function_are_told_apart(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let pipeline = Pipeline::new("three of a kind");
    let flow = numbers(&pipeline, 6);
    let flow = flow.map("twice", |item| Ok(numbered(2 * item.number)));
    let flow = flow.map("and one", |item| Ok(numbered(item.number + 1)));
    let flow =
        flow.filter("not 5", |item| item.number != 5).with(9).filter("nor", |no, item| item.number != *no);
    let (low, high) = flow.with(4).split(|most, item| item.number < *most);
    let [one, other] = high.with(2).spread_by_key(|by, item| item.number % *by);
    let rounds = low.with(6).iterate(
        4,
        |flow| flow.map("round", |item| Ok(numbered(item.number + 3))),
        |least, item| item.number < *least,
    );
    let file = folder.path().join("out");
    one.merge(other).merge(rounds).sink::<WriteDown>(WriteDownArgs::to(&file));
    node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    assert_eq!(written_sorted(file), [6, 7, 7, 11]);
}

fn arguments_are_the_state_of_one_replica(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let (mark, file) = (folder.path().join("mark"), folder.path().join("out"));
    let flow = numbers(&Pipeline::new("sums"), 60).with((100_u64, mark));
    let sums = flow.map("sum", |(sum, mark), item| {
        // The process dies once, in the middle.
        if item.number == 3 && std::fs::OpenOptions::new().write(true).create_new(true).open(&*mark).is_ok() {
            std::process::abort();
        }
        *sum += item.number;
        Ok(numbered(*sum))
    });
    let sums = sums.mailbox(1).restart(Restart::on_failure(1));
    let end = sums.sink::<WriteDown>(WriteDownArgs::to(&file));
    let report = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
    assert_eq!(report.deaths.len(), 1, "{report}");
    // It began again with its given values: the last sum is over the items from one behind the death on.
    let last = written(file).pop().unwrap();
    assert!((4..59).any(|first| last == 100 + (first..60).sum::<u64>()), "{last}");
}

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = bool)]
struct HasMainBegun;

#[derive(Default)]
struct Witness;

#[actor]
impl Witness {
    #[handler]
    fn asked(&mut self, _: HasMainBegun) -> bool {
        MAIN_HAS_BEGUN.load(Ordering::Relaxed)
    }
}

fn nothing_of_main_runs_in_a_worker(builder: Builder) {
    assert!(MAIN_HAS_BEGUN.load(Ordering::Relaxed));
    let node = builder.start().unwrap();
    let witness = node.spawn::<Witness>(()).start().unwrap();
    assert!(!node.block_on(witness.address().ask(HasMainBegun)).unwrap());
    // A restarted worker runs nothing of it either.
    let spawned = node.spawn::<Witness>(()).restart(Restart::on_failure(1)).start().unwrap();
    node.supervisor().kill_worker(spawned.worker());
    node.supervisor().await_end(spawned.worker());
    assert!(!node.block_on(spawned.address().ask(HasMainBegun)).unwrap_or_default());
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_pipeline_in_a_loop_has_in_each_round_what_it_is_given,
        pipelines_on_threads_and_in_async_code_run_beside_a_node,
        closures_of_one_function_are_told_apart,
        arguments_are_the_state_of_one_replica,
        nothing_of_main_runs_in_a_worker,
    ]
}
