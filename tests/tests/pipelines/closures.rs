//! Closures and workers: a worker runs the code that the program links, and nothing of `main`; a closure has
//! the values that it is given.

use std::sync::atomic::Ordering;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tensorpost::node::WorkerState;
use tensorpost::pipeline::Report;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case, MAIN_HAS_BEGUN};
use tensorpost_tests::pipes::{
    Numbered, WriteDown, WriteDownArgs, map_numbers, plus_a_million, written, written_sorted,
};
use tensorpost_tests::wait::until;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn numbers(pipeline: &Pipeline, count: u64) -> Flow<Numbered> {
    plain(pipeline.with(count).items("numbers", |count, _| (0..count).map(numbered)))
}

fn plain<At>(flow: Flow<Numbered, At>) -> Flow<Numbered> {
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

/// Adds the number that it is named for.
struct Plus<const N: u64>;

impl<const N: u64> Plus<N> {
    fn to<At>(flow: Flow<Numbered, At>, name: &str) -> Flow<Numbered> {
        plain(flow.map(name, |item| Ok(numbered(item.number + N))))
    }
}

macro_rules! plus {
    ($more:expr) => {
        |item: Numbered| Ok(numbered(item.number + $more))
    };
}

/// A value without bytes.
#[derive(Clone, Copy)]
struct Seven;

impl Seven {
    fn get(self) -> u64 {
        7
    }
}

static TABLE: [u64; 2] = [10_000, 20_000];

fn doubled(item: Numbered) -> anyhow::Result<Numbered> {
    Ok(numbered(2 * item.number))
}

fn tripled() -> impl Fn(Numbered) -> anyhow::Result<Numbered> + Copy {
    |item| Ok(numbered(3 * item.number))
}

fn a_closure_may_come_from_anywhere(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let pipeline = Pipeline::new("origins");
    let mut flow = Plus::<20>::to(Plus::<1>::to(numbers(&pipeline, 3), "one"), "twenty");
    let seven = Seven;
    for round in 0..2 {
        flow = plain(map_numbers(flow, &format!("round {round}"), move |number| number + seven.get()));
    }
    let same = |item: Numbered| Ok(numbered(item.number + 1));
    let flow = flow.map("same", same).map("the same", same);
    let flow = flow.map("alike", |item| Ok(numbered(item.number + 1)));
    let flow = flow.map("and alike", |item| Ok(numbered(item.number + 1)));
    let flow = flow.map("macro", plus!(300)).map("macro again", plus!(4_000));
    let flow = flow.map("function", doubled).map("returned", tripled());
    let flow = flow.map("static", |item| Ok(numbered(item.number + TABLE[1])));
    let file = folder.path().join("out");
    plus_a_million(flow).sink::<WriteDown>(WriteDownArgs::to(&file));
    node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    let expected = |number: u64| 6 * (number + 1 + 20 + 2 * 7 + 2 + 2 + 300 + 4_000) + TABLE[1] + 1_000_000;
    assert_eq!(written(file), [0, 1, 2].map(expected));
}

fn each_replica_has_the_arguments_for_itself(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let flow = numbers(&Pipeline::new("replicas"), 30).with((100_u64, vec!["more".to_owned()]));
    let counted = flow.map("count", |(count, seen), item| {
        seen.push(item.number.to_string());
        *count += 1;
        anyhow::ensure!(*count == 99 + seen.len() as u64, "{seen:?}");
        Ok(numbered(*count))
    });
    let end = counted.replicas(3).sink::<WriteDown>(WriteDownArgs::to(&file));
    node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
    let counts = written_sorted(file);
    // Each of the three began with 100.
    assert_eq!((counts.len(), counts.iter().filter(|count| **count == 101).count()), (30, 3), "{counts:?}");
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

/// "Has `main` begun where you are, which process is that, and how was it called?"
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (bool, u32, Vec<String>))]
struct HasMainBegun;

#[derive(Default)]
struct Witness;

#[actor]
impl Witness {
    #[handler]
    fn asked(&mut self, _: HasMainBegun) -> (bool, u32, Vec<String>) {
        (MAIN_HAS_BEGUN.load(Ordering::Relaxed), std::process::id(), std::env::args().collect())
    }
}

fn nothing_of_main_runs_in_a_worker(builder: Builder) {
    assert!(MAIN_HAS_BEGUN.load(Ordering::Relaxed));
    let node = builder.start().unwrap();
    // Nor in its next life, in a new process or in a spare.
    for spares in [0, 1] {
        let witness =
            node.spawn::<Witness>(()).restart(Restart::on_failure(1)).spares(spares).start().unwrap();
        let ask = || node.block_on(witness.address().ask(HasMainBegun));
        let (has_begun, first, called) = ask().unwrap();
        assert_eq!(called, std::env::args().collect::<Vec<_>>(), "as the user has called it");
        let shown = std::fs::read_to_string(format!("/proc/{first}/comm")).unwrap();
        assert!(shown.starts_with("tp:Witness"), "{shown}");
        let is_ready = |state: &WorkerState| matches!(state, WorkerState::Spare { ready: true, .. });
        until("the spare waits", || {
            node.workers().iter().filter(|worker| is_ready(&worker.state)).count() == spares as usize
        });
        kill_process(Pid::from_raw(first.cast_signed()).unwrap(), Signal::KILL).unwrap();
        let mut next = None;
        until("its next life answers", || {
            next = ask().ok().filter(|(_, process, _)| *process != first);
            next.is_some()
        });
        assert!(!has_begun && next.is_some_and(|(has_begun, ..)| !has_begun));
    }
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_pipeline_in_a_loop_has_in_each_round_what_it_is_given,
        pipelines_on_threads_and_in_async_code_run_beside_a_node,
        closures_of_one_function_are_told_apart,
        a_closure_may_come_from_anywhere,
        each_replica_has_the_arguments_for_itself,
        arguments_are_the_state_of_one_replica,
        nothing_of_main_runs_in_a_worker,
    ]
}
