//! One run of each measurement, on a node of its own.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use tensorpost::pipeline::Report;
use tensorpost::pipeline::limits::DEFAULT_MAILBOX;
use tensorpost::prelude::*;

use crate::parts::{Busy, Clock, Frames, Make, Measure, Seen, now};
use crate::wired::{Go, Hop, WiredSink, WiredSource, WiredStage};

/// Longest time that a run may take after its items were made.
const WAIT_FOR_SINK: Duration = Duration::from_secs(60);
const SHUTDOWN: Duration = Duration::from_secs(10);
/// Receivers of a broadcast.
pub(crate) const RECEIVERS: usize = 8;

/// A node, and the receiver of its sinks' reports.
struct Bench {
    node: Node,
    to: Address<Seen>,
    seen: Channel<Seen>,
    count: u64,
}

impl Bench {
    fn start(count: u64) -> anyhow::Result<Self> {
        let node = Node::builder().start()?;
        let (to, seen) = node.channel::<Seen>()?;
        Ok(Bench { node, to, seen, count })
    }

    fn warmup(&self) -> u64 {
        (self.count / 10).max(1)
    }

    fn make(&self, micros: u64) -> Make {
        Make { count: self.count, micros }
    }

    fn measure(&self, micros: u64) -> Measure {
        Measure { micros, warmup: self.warmup(), count: self.count, to: self.to.clone() }
    }

    /// Returns the next sink's report.
    fn seen(&mut self) -> anyhow::Result<Seen> {
        let seen = &mut self.seen;
        let seen = self.node.block_on(async move { tokio::time::timeout(WAIT_FOR_SINK, seen.recv()).await });
        Ok(seen.with_context(|| format!("a sink has not seen all items within {WAIT_FOR_SINK:?}"))??)
    }

    /// Runs a pipeline with this many sinks. Returns the nanoseconds for each item by the sinks' reports, and
    /// the pipeline's report.
    fn run(mut self, pipeline: &Pipeline, sinks: usize) -> anyhow::Result<(f64, Report)> {
        let report = self.node.run_pipeline(pipeline)?.wait()?;
        let seen = (0..sinks).map(|_| self.seen()).collect::<anyhow::Result<Vec<_>>>()?;
        self.end(&seen).map(|nanos| (nanos, report))
    }

    fn end(self, seen: &[Seen]) -> anyhow::Result<f64> {
        let from = seen.iter().map(|seen| seen.from).min().context("no sink")?;
        let to = seen.iter().map(|seen| seen.to).max().context("no sink")?;
        let items = self.count - self.warmup();
        self.node.shutdown(SHUTDOWN)?;
        Ok(to.saturating_sub(from) as f64 / items as f64)
    }
}

/// Runs source, stage and sink by the builder; the stage works this long. Returns the nanoseconds for each
/// item.
pub(crate) fn built(count: u64, micros: u64) -> anyhow::Result<f64> {
    replicated(count, micros, 1)
}

/// Does the same with this many replicas of the stage.
pub(crate) fn replicated(count: u64, micros: u64, replicas: u32) -> anyhow::Result<f64> {
    let bench = Bench::start(count)?;
    let flow = Pipeline::new("line").source::<Frames>(bench.make(0)).stage::<Busy>(micros).replicas(replicas);
    let pipeline = flow.sink::<Clock>(bench.measure(0)).pipeline();
    bench.run(&pipeline, 1).map(|(nanos, _)| nanos)
}

/// Runs a line without work on a node of which this many workers have died. Returns the nanoseconds for each
/// item and hop.
pub(crate) fn beside_deaths(count: u64, deaths: usize) -> anyhow::Result<f64> {
    const HOPS: f64 = 2.0;
    let bench = Bench::start(count)?;
    for number in 0..deaths {
        let worker = bench.node.worker(&format!("dies {number}"))?;
        bench.node.supervisor().kill_worker(worker);
        bench.node.supervisor().await_end(worker);
    }
    let flow = Pipeline::new("line").source::<Frames>(bench.make(0)).stage::<Busy>(0);
    let pipeline = flow.sink::<Clock>(bench.measure(0)).pipeline();
    bench.run(&pipeline, 1).map(|(nanos, _)| nanos / HOPS)
}

/// Does the same as [`built`], wired by hand.
pub(crate) fn wired(count: u64, micros: u64, hop: Hop) -> anyhow::Result<f64> {
    let mut bench = Bench::start(count)?;
    let node = &bench.node;
    let workers = (node.worker("source")?, node.worker("stage")?, node.worker("sink")?);
    let sink =
        node.spawn::<WiredSink>(bench.measure(0)).worker(workers.2).mailbox(DEFAULT_MAILBOX).start()?;
    let stage = node.spawn::<WiredStage>((micros, sink.address(), hop)).worker(workers.1);
    let stage = stage.mailbox(DEFAULT_MAILBOX).start()?;
    let source =
        node.spawn::<WiredSource>((bench.make(0), stage.address(), hop)).worker(workers.0).start()?;
    let made = node.block_on(source.address().ask(Go)).map_err(|error| anyhow::anyhow!("{error}"))?;
    made.map_err(anyhow::Error::msg)?;
    let seen = bench.seen()?;
    bench.end(&[seen])
}

/// Runs four processes that each work this long on each item. Returns the nanoseconds for each item, and
/// those of the slowest of the four alone.
pub(crate) fn four(count: u64, micros: u64) -> anyhow::Result<(f64, f64)> {
    let bench = Bench::start(count)?;
    let flow = Pipeline::new("four").source::<Frames>(bench.make(micros));
    let flow = flow.stage::<Busy>(micros).named("second").stage::<Busy>(micros).named("third");
    let pipeline = flow.sink::<Clock>(bench.measure(micros)).pipeline();
    let (nanos, report) = bench.run(&pipeline, 1)?;
    let each = report.stages.iter().map(|stage| {
        stage.busy * 1e9 / stage.items_in.max(stage.items_out).max(1) as f64 // never 0: all items came through
    });
    Ok((nanos, each.fold(0.0, f64::max)))
}

/// Sends every item to one sink, or to [`RECEIVERS`]. Returns the nanoseconds for each item and receiver.
pub(crate) fn broadcast(count: u64, all: bool) -> anyhow::Result<f64> {
    let bench = Bench::start(count)?;
    let flow = Pipeline::new("broadcast").source::<Frames>(bench.make(0));
    let pipeline = flow.pipeline();
    if !all {
        flow.sink::<Clock>(bench.measure(0));
        return bench.run(&pipeline, 1).map(|(nanos, _)| nanos);
    }
    for (number, flow) in flow.broadcast::<RECEIVERS>().into_iter().enumerate() {
        flow.sink::<Clock>(bench.measure(0)).named(format!("sink {number}"));
    }
    bench.run(&pipeline, RECEIVERS).map(|(nanos, _)| nanos / RECEIVERS as f64)
}

/// Starts this program as one with a pipeline of four processes. Returns the nanoseconds until the first item
/// was at the sink.
pub(crate) fn cold() -> anyhow::Result<f64> {
    let program = std::env::current_exe().context("this program is not known")?;
    let mut command = Command::new(program);
    command.args(["--cold", &now().to_string()]).stderr(Stdio::inherit());
    let output = command.output().context("this program does not start")?;
    anyhow::ensure!(output.status.success(), "the program that starts a pipeline failed: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// Runs that program: prints the time since `from`, when its start was ordered.
pub(crate) fn start_cold(from: u64) -> anyhow::Result<()> {
    let mut bench = Bench::start(10)?;
    let flow = Pipeline::new("cold").source::<Frames>(bench.make(0));
    let flow = flow.stage::<Busy>(0).named("second").stage::<Busy>(0).named("third");
    let pipeline = flow.sink::<Clock>(bench.measure(0)).pipeline();
    bench.node.run_pipeline(&pipeline)?.wait()?;
    let seen = bench.seen()?;
    bench.node.shutdown(SHUTDOWN)?;
    println!("{}", seen.first.saturating_sub(from));
    Ok(())
}
