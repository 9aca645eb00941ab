//! The program's own ends of a pipeline: results that come to it, and items that it sends.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::poll_immediate;
use tensorpost::node::WorkerState;
use tensorpost::pipeline::PipelineError;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::pipes::{Count, CountArgs, Numbered, Obey, Orders, watch};
use tensorpost_tests::wait::until;

fn numbered(number: u64) -> Numbered {
    Numbered { number, tensor: None }
}

fn doubled(count: u64) -> Flow<Numbered> {
    let flow = Pipeline::new("doubled").with(count).items("numbers", |count, _| (0..count).map(numbered));
    let [flow] = flow.map("double", |item| Ok(numbered(2 * item.number))).broadcast();
    flow
}

fn results_come_to_the_program_in_order(builder: Builder) {
    let expected: Vec<_> = (0..100).map(|number| 2 * number).collect();
    let all = doubled(100).collect().unwrap();
    assert_eq!(all.iter().map(|item| item.number).collect::<Vec<_>>(), expected);

    // A closure of the program may borrow.
    let mut sum = 0;
    let report = doubled(100).for_each_here(|item| {
        sum += item.number;
        Ok(())
    });
    assert_eq!((sum, report.unwrap().is_complete()), (9900, true));
    let error = doubled(100)
        .for_each_here(|item| {
            anyhow::ensure!(item.number < 50, "too much");
            Ok(())
        })
        .unwrap_err();
    assert_eq!(error.to_string(), "too much");

    let node = builder.start().unwrap();
    let mut results = doubled(100).start_here_on(&node).unwrap();
    let streamed = node.block_on(async {
        let mut streamed = Vec::new();
        while let Some(item) = poll_fn(|task| Pin::new(&mut results).poll_next(task)).await {
            streamed.push(item.number);
        }
        streamed
    });
    assert_eq!(streamed, expected);
    assert!(results.wait().unwrap().is_complete());
}

fn a_program_that_takes_nothing_holds_the_source_up(builder: Builder) {
    let node = builder.start().unwrap();
    let (pipeline, made) = watch(Pipeline::new("endless"));
    let flow = pipeline.source::<Count>(CountArgs::endless()).named("source");
    let mut results = flow.start_here_on(&node).unwrap();
    let first: Vec<_> = results.into_iter().take(3).map(|item| item.number).collect();
    assert_eq!(first, [0, 1, 2]);
    // Two mailboxes are full, and items wait for room in them.
    let mut last = 0;
    until("the source stands still", || {
        let before = std::mem::replace(&mut last, made("source"));
        last > 3 && before == last
    });
    assert!(last < 1000, "{last}");
    results.running().cancel();
    let report = results.wait().unwrap();
    assert!(report.cancelled);
    // Dropping the results of a running pipeline ends it.
    let results = doubled(1_000_000).start_here_on(&node).unwrap();
    drop(results);
}

fn an_error_ends_the_results_and_is_told(builder: Builder) {
    let node = builder.start().unwrap();
    let flow = Pipeline::new("fails").source::<Count>(CountArgs::to(100));
    let flow = flow.map("picky", |item: Numbered| {
        anyhow::ensure!(item.number != 20, "not 20");
        Ok(item)
    });
    let mut results = flow.start_here_on(&node).unwrap();
    assert!(results.into_iter().count() <= 20);
    assert!(matches!(results.wait(), Err(PipelineError::Failed { .. })));
}

fn the_program_feeds_a_pipeline(builder: Builder) {
    let node = builder.start().unwrap();
    let (input, flow) = Pipeline::new("fed").input::<Numbered>("input");
    let refused = input.blocking_send(numbered(7)).unwrap_err();
    assert!(refused.message.number == 7 && matches!(refused.reason, SendFailure::NoSuchActor), "{refused}");
    let mut results = flow.stage::<Obey>(Orders::default()).start_here_on(&node).unwrap();
    // The program sends one by one, as a service does.
    for number in 0..5 {
        input.blocking_send(numbered(number)).unwrap();
        assert_eq!(results.into_iter().next().unwrap().number, number);
    }
    // The program sends ahead as far as there is room; the end comes behind all items.
    let sending = std::thread::spawn(move || {
        (5..500).for_each(|number| input.blocking_send(numbered(number)).unwrap());
    });
    let rest: Vec<_> = results.into_iter().map(|item| item.number).collect();
    assert_eq!(rest, (5..500).collect::<Vec<_>>());
    sending.join().unwrap();
    assert!(results.wait().unwrap().is_complete());
}

fn an_input_of_a_pipeline_that_was_cancelled_gives_its_items_back(builder: Builder) {
    let node = builder.start().unwrap();
    let (input, flow) = Pipeline::new("cancelled").input::<Numbered>("input");
    let results = flow.start_here_on(&node).unwrap();
    results.running().cancel();
    results.wait().unwrap();
    let refused = || node.block_on(input.send(numbered(3))).is_err_and(|refused| refused.message.number == 3);
    until("nobody takes its items", refused);
}

fn an_input_has_one_source_and_one_life(_: Builder) {
    for restarts in [false, true] {
        let (_input, flow) = Pipeline::new("twice").input::<Numbered>("input");
        let flow = if restarts { flow.restart(Restart::on_failure(1)) } else { flow.replicas(2) };
        let error = flow.for_each("end", |_| Ok(())).pipeline().check().unwrap_err().to_string();
        assert!(error.contains("leave `replicas` and `restart` out"), "{error}");
    }
}

/// The last [`Input`](tensorpost::pipeline::Input) may drop before the pipeline starts.
fn an_input_that_nobody_holds_has_ended(builder: Builder) {
    let node = builder.start().unwrap();
    let (input, flow) = Pipeline::new("nobody").input::<Numbered>("input");
    drop(input);
    let report = flow.start_here_on(&node).unwrap().wait().unwrap();
    assert!(report.is_complete(), "{report}");
}

/// "I am about to be ready."
#[derive(Serialize, Deserialize, GpuMessage)]
struct Knock;

/// A sink that is ready when the program has heard of it.
struct Knocks(Address<Knock>);

impl Sink for Knocks {
    type Args = Address<Knock>;
    type In = Numbered;

    fn create(to: Address<Knock>, _: &Env) -> anyhow::Result<Self> {
        Ok(Knocks(to))
    }

    async fn prepare(&mut self, _: &Env) -> anyhow::Result<()> {
        self.0.ask(Knock).await?;
        Ok(())
    }

    fn consume(&mut self, _: Numbered) -> anyhow::Result<()> {
        Ok(())
    }
}

fn knocking(knock: Address<Knock>) -> Pipeline {
    let pipeline = Pipeline::new("knocking");
    pipeline.source::<Count>(CountArgs::to(10)).sink::<Knocks>(knock);
    pipeline
}

/// A start that blocked the runtime's one thread would never end: the program hears of its sink there.
fn a_pipeline_is_started_and_awaited_in_async_code(builder: Builder) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut start = builder.into_future();
        assert!(poll_immediate(&mut start).await.is_none(), "the node's start goes on on another thread");
        let node = start.await.unwrap();
        let (knock, mut knocks) = node.channel::<Knock>().unwrap();
        let pipeline = knocking(knock);
        let (running, heard) = tokio::join!(node.run_pipeline_async(&pipeline), knocks.recv());
        heard.unwrap();
        assert!(running.unwrap().await.unwrap().is_complete());

        let endless = Pipeline::new("endless");
        endless.source::<Count>(CountArgs::endless()).for_each("drop", |_| Ok(()));
        let running = node.run_pipeline_async(&endless).await.unwrap();
        assert!(running.finishing(Duration::from_secs(20)).await.unwrap().cancelled);

        // The program takes none of these, and they are dropped.
        let results = doubled(100).start_here_on_async(&node).await.unwrap();
        assert!(results.await.unwrap().is_complete());

        let own = doubled(10).for_each("drop", |_| Ok(())).pipeline();
        let running = own.await.unwrap();
        assert!(running.node().is_some());
        assert!(running.await.unwrap().is_complete());
    });
}

fn a_start_that_nobody_awaits_any_more_leaves_no_worker(builder: Builder) {
    let node = builder.start().unwrap();
    let (knock, mut knocks) = node.channel::<Knock>().unwrap();
    let pipeline = knocking(knock);
    node.block_on(async {
        let start = node.run_pipeline_async(&pipeline);
        tokio::select! {
            running = start => panic!("it is not ready before it was heard of: {running:?}"),
            heard = knocks.recv() => drop(heard.unwrap()),
        }
    });
    assert_eq!(node.workers().len(), 2);
    let has_ended = |state: &WorkerState| matches!(state, WorkerState::Exited { .. });
    until("its workers have ended", || node.workers().iter().all(|worker| has_ended(&worker.state)));
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        results_come_to_the_program_in_order,
        a_program_that_takes_nothing_holds_the_source_up,
        an_error_ends_the_results_and_is_told,
        the_program_feeds_a_pipeline,
        an_input_of_a_pipeline_that_was_cancelled_gives_its_items_back,
        an_input_has_one_source_and_one_life,
        an_input_that_nobody_holds_has_ended,
        a_pipeline_is_started_and_awaited_in_async_code,
        a_start_that_nobody_awaits_any_more_leaves_no_worker,
    ]
}
