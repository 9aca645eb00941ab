//! Every measurement of one mode, on one node.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tensorpost::node::WorkerId;
use tensorpost::prelude::*;

use crate::WAIT_FOR_ANSWER;
use crate::again::{Again, End, STEPS};
use crate::fanout::{CastTo, Caster, Hold, Holder};
use crate::four;
use crate::kernels::Launches;
use crate::launcher::{Launch, Launcher};
use crate::options::{Mode, Options, name};
use crate::outcome::{Outcome, now};
use crate::peers::{How, Read, Reader};
use crate::report::{Results, median};
use crate::roundtrip::{Ball, Meet, Play, Player};
use crate::sink::{Arm, Finish, Item, Sink};
use crate::source::{Produce, Produced, Source, Work};

/// Bytes that the pool of one process may take.
pub(crate) const BUDGET: u64 = 4 << 30;
/// Most unhandled messages in the sink's mailbox.
const MAILBOX: u32 = 1024;
/// How long and how often a stream is measured.
const STREAM: Duration = Duration::from_millis(300);
const RUNS: usize = 5;

/// Elements of the tensors, by the name of their size.
const SIZES: [(&str, usize); 3] = [("4KiB", 1 << 10), ("64MiB", 16 << 20), ("1GiB", 256 << 20)];
const SMALL: usize = SIZES[0].1;
const LARGE: usize = SIZES[1].1;
const LARGEST: usize = SIZES[2].1;

fn node(mode: Mode) -> anyhow::Result<Node> {
    let builder = Node::builder().sharing(mode.sharing()).gpu_budget(BUDGET).host_budget(BUDGET);
    builder.start().with_context(|| format!("no node that is {}", mode.name()))
}

/// A node with two workers, and the measurements on it.
pub(crate) struct Suite<'o> {
    options: &'o Options,
    device: Device,
    mode: Mode,
    node: Node,
    near: WorkerId,
    far: WorkerId,
}

impl<'o> Suite<'o> {
    pub(crate) fn start(options: &'o Options, device: Device, mode: Mode) -> anyhow::Result<Self> {
        let node = node(mode)?;
        let (near, far) = (node.worker("near")?, node.worker("far")?);
        Ok(Suite { options, device, mode, node, near, far })
    }

    /// Runs the requested measurements.
    pub(crate) fn run(&self, results: &mut Results) {
        self.one("floor", results, Self::floor);
        self.one("trip", results, Self::trips);
        self.one("stream", results, Self::streams);
        self.one("chain", results, Self::chain);
        self.one("stages", results, Self::stages);
        self.one("four", results, Self::four);
        self.one("fanout", results, Self::fanout);
        self.one("again", results, Self::again);
        if self.mode == Mode::Isolated {
            self.one("peer", results, Self::peers);
        }
    }

    fn one(&self, what: &str, results: &mut Results, measure: fn(&Self, &mut Results) -> anyhow::Result<()>) {
        if !self.options.only.is_empty() && !self.options.only.iter().any(|only| what.contains(only.as_str()))
        {
            return;
        }
        let start = Instant::now();
        if let Err(error) = measure(self, results) {
            results.fail(&self.named("post", what), &error);
        }
        eprintln!("# {} {what}: {:.1} s", self.mode.name(), start.elapsed().as_secs_f64());
    }

    fn named(&self, who: &str, what: &str) -> String {
        format!("{who}.{}.{what}", self.mode.name())
    }

    fn times(&self, count: usize) -> usize {
        if self.options.quick { (count / 10).max(1) } else { count }
    }

    /// Waits for an answer, but not for ever.
    fn get<T>(
        &self,
        answer: impl Future<Output = Result<Outcome<T>, AskError<impl GpuMessage>>>,
    ) -> anyhow::Result<T> {
        let answer = async { tokio::time::timeout(WAIT_FOR_ANSWER, answer).await };
        let answer =
            self.node.block_on(answer).with_context(|| format!("no answer within {WAIT_FOR_ANSWER:?}"))?;
        match answer {
            Ok(answer) => answer.map_err(anyhow::Error::msg),
            Err(error) => Err(anyhow::anyhow!("{error}")),
        }
    }

    fn floor(&self, results: &mut Results) -> anyhow::Result<()> {
        let launcher = self.node.spawn::<Launcher>(()).start()?.address::<Launch>();
        let device = name(self.options.device.0);
        let rounds = self.times(2000).to_string();
        let args = ["--role", "floor", "--device", &device, "--rounds", &rounds].map(str::to_owned).to_vec();
        let (_, lines) = self.get(launcher.ask(Launch { args }))?;
        for line in lines {
            let (name, value) = line.split_once(' ').context("the floor wrote something else")?;
            results.set(self.named("floor", name), value.parse()?);
        }
        Ok(())
    }

    fn trips(&self, results: &mut Results) -> anyhow::Result<()> {
        let near = self.node.spawn::<Player>(()).worker(self.near).device(self.device.clone()).start()?;
        let far = self.node.spawn::<Player>(()).worker(self.far).device(self.device.clone()).start()?;
        self.get(near.address().ask(Meet { partner: far.address::<Ball>() }))?;
        self.get(far.address().ask(Meet { partner: near.address::<Ball>() }))?;
        let rounds = self.times(600);
        let play = |elements, kernels, watched| {
            self.get(near.address().ask(Play { elements, rounds, warmup: rounds / 5, kernels, watched }))
        };
        // The sizes take turns, so that other work of the machine affects all alike.
        let mut times = SIZES.map(|_| Vec::new());
        for _ in 0..RUNS {
            for ((_, elements), times) in SIZES.iter().zip(&mut times) {
                times.extend(play(*elements, false, false)?);
            }
        }
        for ((size, _), mut times) in SIZES.iter().zip(times) {
            results.set(self.named("post", &format!("trip.{size}")), median(&mut times));
        }
        for (what, watched) in [("trip.kernels.4KiB", false), ("trip.watched.4KiB", true)] {
            let mut times = Vec::new();
            for _ in 0..RUNS {
                times.extend(play(SMALL, true, watched)?);
            }
            results.set(self.named("post", what), median(&mut times));
        }
        Ok(())
    }

    fn ends(&self) -> anyhow::Result<Ends> {
        let source = self.node.spawn::<Source>(()).worker(self.near).device(self.device.clone()).start()?;
        let sink = self.node.spawn::<Sink>(()).worker(self.far).device(self.device.clone());
        let sink = sink.mailbox(MAILBOX).start()?;
        Ok(Ends {
            source: source.address(),
            arm: sink.address(),
            finish: sink.address(),
            items: sink.address(),
        })
    }

    /// Returns the messages per second, and the bytes by which the source's pool grew.
    fn stream(
        &self,
        ends: &Ends,
        count: u64,
        elements: usize,
        works: (Work, Work),
    ) -> anyhow::Result<(f64, u64)> {
        let (work, sink_work) = works;
        let written = work != Work::Nothing;
        self.get(ends.arm.ask(Arm { count, work: sink_work, written }))?;
        let produce = Produce { to: Some(ends.items.clone()), count, elements, work };
        let finish = ends.finish.ask(Finish);
        let produced = self.get(ends.source.ask(produce))?;
        let end = self.get(finish)?;
        Ok((rate(count, Produced { end, ..produced }), produced.grown))
    }

    fn alone(&self, ends: &Ends, count: u64, elements: usize, work: Work) -> anyhow::Result<f64> {
        let produced = self.get(ends.source.ask(Produce { to: None, count, elements, work }))?;
        Ok(rate(count, produced))
    }

    /// Returns the median rate of several runs of about [`STREAM`] each.
    fn rate(&self, first: u64, mut run: impl FnMut(u64) -> anyhow::Result<f64>) -> anyhow::Result<f64> {
        let rate = run(first)?;
        let count = ((rate * STREAM.as_secs_f64()) as usize).clamp(first as usize, 400_000);
        let count = self.times(count).max(first as usize) as u64;
        let mut rates = Vec::new();
        for _ in 0..RUNS {
            rates.push(run(count)?);
        }
        Ok(median(&mut rates))
    }

    fn streams(&self, results: &mut Results) -> anyhow::Result<()> {
        let ends = self.ends()?;
        let mut memory = 0;
        let nothing = (Work::Nothing, Work::Nothing);
        for (what, works) in [("stream.4KiB", nothing), ("stream.kernels.4KiB", (Work::Kernel, Work::Kernel))]
        {
            let rate = self.rate(1000, |count| {
                let (rate, bytes) = self.stream(&ends, count, SMALL, works)?;
                memory += bytes;
                Ok(rate)
            })?;
            results.set(self.named("post", what), rate);
        }
        results.set(self.named("post", "stream.memory"), memory as f64);
        self.launches(results, &ends)?;
        let alone = self.rate(100, |count| self.alone(&ends, count, LARGE, Work::Kernel))?;
        results.set(self.named("alone", "stream.64MiB"), alone);
        let filled = (Work::Kernel, Work::Nothing);
        let rate = self.rate(100, |count| Ok(self.stream(&ends, count, LARGE, filled)?.0))?;
        results.set(self.named("post", "stream.64MiB"), rate);
        Ok(())
    }

    /// Measures the rate that the kernels of a stream allow without sending: launched by one process, and by
    /// both at once.
    fn launches(&self, results: &mut Results, ends: &Ends) -> anyhow::Result<()> {
        let made = self.rate(1000, |count| self.alone(ends, count, SMALL, Work::Kernel))?;
        results.set(self.named("alone", "stream.kernels.4KiB"), made);
        let far = self.node.spawn::<Source>(()).worker(self.far).device(self.device.clone()).start()?;
        let far = far.address::<Produce>();
        let slower = self.rate(1000, |count| {
            let produce = || Produce { to: None, count, elements: SMALL, work: Work::Kernel };
            let asked = [ends.source.ask(produce()), far.ask(produce())];
            let mut slower = f64::INFINITY;
            for ask in asked {
                slower = slower.min(rate(count, self.get(ask)?));
            }
            Ok(slower)
        })?;
        results.set(self.named("both", "stream.kernels.4KiB"), slower);
        Ok(())
    }

    /// Measures a stage of many small kernels, launched one by one and as a graph, in turns; microseconds an
    /// item.
    fn chain(&self, results: &mut Results) -> anyhow::Result<()> {
        let ends = self.ends()?;
        // Each runs once with data that is checked.
        for launches in [Launches::Single, Launches::Graph] {
            self.stream(&ends, 100, SMALL, (Work::Kernel, Work::Chain(launches)))?;
        }
        let ways = [("chain.single", Launches::Single), ("chain.graph", Launches::Graph)];
        let mut times = ways.map(|_| Vec::new());
        for _ in 0..RUNS {
            for ((_, launches), times) in ways.iter().zip(&mut times) {
                let count = self.times(10_000) as u64;
                let works = (Work::Nothing, Work::Chain(*launches));
                times.push(1e6 / self.stream(&ends, count, SMALL, works)?.0);
            }
        }
        for ((what, _), mut times) in ways.into_iter().zip(times) {
            results.set(self.named("post", what), median(&mut times));
        }
        Ok(())
    }

    fn stages(&self, results: &mut Results) -> anyhow::Result<()> {
        let ends = self.ends()?;
        let busy = Work::Busy(100);
        let micros = |rate: f64| 1e6 / rate;
        let first = micros(self.rate(300, |count| self.alone(&ends, count, SMALL, busy))?);
        results.set(self.named("post", "stages.first"), first);
        let only_second = (Work::Nothing, busy);
        let second = micros(self.rate(300, |count| Ok(self.stream(&ends, count, SMALL, only_second)?.0))?);
        results.set(self.named("post", "stages.second"), second);
        results.set(self.named("post", "stages.slower"), first.max(second));
        let both = micros(self.rate(300, |count| Ok(self.stream(&ends, count, SMALL, (busy, busy))?.0))?);
        results.set(self.named("post", "stages.both"), both);
        Ok(())
    }

    /// Measures four processes by the pipeline builder, and the slowest of them: each with the others only
    /// handing on.
    fn four(&self, results: &mut Results) -> anyhow::Result<()> {
        let count = self.times(5000) as u64;
        let run = |works| -> anyhow::Result<f64> {
            let node = node(self.mode)?;
            let item = four::run(&node, &self.device, count, 100, works)?;
            node.shutdown(WAIT_FOR_ANSWER)?;
            Ok(item)
        };
        let mut slowest: f64 = 0.0;
        for place in 0..four::PLACES {
            let alone = run(std::array::from_fn(|at| at == place))?;
            slowest = slowest.max(alone);
        }
        results.set(self.named("post", "four.slowest"), slowest);
        let mut all = Vec::new();
        for _ in 0..RUNS {
            all.push(run([true; four::PLACES])?);
        }
        results.set(self.named("post", "four.all"), median(&mut all));
        Ok(())
    }

    /// Measures a stage that dies, with a spare worker and without, in turns.
    fn again(&self, results: &mut Results) -> anyhow::Result<()> {
        for (what, end) in [("killed", End::Killed), ("panicked", End::Panics)] {
            let begin = |spares| Again::start(node(self.mode)?, &self.device, spares);
            let mut stages = [("again", begin(0)?), ("again.spare", begin(1)?)];
            for _ in 0..self.times(10).max(3) {
                for (_, stage) in &mut stages {
                    stage.measure(end)?;
                }
            }
            for (name, stage) in &mut stages {
                for (step, median) in STEPS.iter().zip(stage.medians()) {
                    results.set(self.named("post", &format!("{name}.{what}{step}")), median);
                }
            }
        }
        Ok(())
    }

    fn fanout(&self, results: &mut Results) -> anyhow::Result<()> {
        /// Workers that are started beside one with more streams.
        const PAIRS: usize = 4;
        let caster = self.node.spawn::<Caster>(()).worker(self.near).device(self.device.clone()).start()?;
        let mut holders: Vec<Address<Hold>> = Vec::new();
        let launcher = self.node.spawn::<Launcher>(()).start()?.address::<Launch>();
        let device = name(self.options.device.0);
        let (mut ready, mut wide, mut bare) = (Vec::new(), Vec::new(), Vec::new());
        for others in 0..8 {
            // They take turns: a context takes longer the more there are.
            let args = ["--role", "context", "--device", &device].map(str::to_owned).to_vec();
            let context = self.get(launcher.ask(Launch { args }));
            bare.push(context.with_context(|| format!("{others} others were there"))?.0);
            let spawn = |streams: usize, took: &mut Vec<f64>| {
                let start = Instant::now();
                let holder =
                    self.node.spawn::<Holder>(()).device(self.device.clone()).streams(streams).start();
                let holder = holder.with_context(|| format!("{others} others were there"))?;
                took.push(start.elapsed().as_secs_f64() * 1e6);
                anyhow::Ok(holder.address())
            };
            // The first of a pair finds one context less.
            let in_pairs = others < PAIRS;
            if in_pairs && others % 2 == 0 {
                spawn(6, &mut wide)?;
            }
            holders.push(spawn(1, &mut ready)?);
            if in_pairs && others % 2 == 1 {
                spawn(6, &mut wide)?;
            }
        }
        eprintln!(
            "# ready after {ready:.0?} us, with six streams {wide:.0?} us, bare contexts after {bare:.0?} us"
        );
        results.set(self.named("post", "ready.one"), median(&mut ready[..PAIRS]));
        results.set(self.named("post", "ready"), median(&mut ready));
        results.set(self.named("post", "ready.six"), median(&mut wide));
        results.set(self.named("bare", "context"), median(&mut bare));
        let mut copied = 0;
        for receivers in [1, 2, 4, 8] {
            let to = holders[..receivers].to_vec();
            let cast = CastTo { to, elements: LARGE, rounds: self.times(1000) };
            let mut cast = self.get(caster.address().ask(cast))?;
            copied = copied.max(cast.copied);
            let each = median(&mut cast.times) / receivers as f64;
            results.set(self.named("post", &format!("fanout.{receivers}")), each);
        }
        results.set(self.named("post", "fanout.copied"), copied as f64);
        Ok(())
    }
}

impl Suite<'_> {
    /// Measures 1 GiB of this GPU for an actor on another, in gigabytes a second.
    fn peers(&self, results: &mut Results) -> anyhow::Result<()> {
        let other = Device::all().into_iter().find(|other| {
            other.kind() == DeviceKind::Cuda
                && self.device.kind() == DeviceKind::Cuda
                && *other != self.device
        });
        let Some(other) = other else {
            eprintln!("# one GPU has no peer");
            return Ok(());
        };
        let launcher = self.node.spawn::<Launcher>(()).start()?.address::<Launch>();
        let device = name(self.options.device.0);
        let rounds = RUNS.to_string();
        let args = ["--role", "peer-copy", "--device", &device, "--rounds", &rounds].map(str::to_owned);
        let (_, lines) = self.get(launcher.ask(Launch { args: args.to_vec() }))?;
        for line in lines {
            let (name, value) = line.split_once(' ').context("the floor wrote something else")?;
            results.set(self.named("floor", name), value.parse()?);
        }
        let stream = self.node.stream(&self.device)?;
        let value = 3.0_f32;
        let tensor = stream.from_slice(&[LARGEST], &vec![value; LARGEST])?.freeze();
        tensor.wait(None)?;
        for (what, how, bring) in [
            ("peer.copy", How::Copy, false),
            ("peer.kernel", How::Kernel, false),
            ("peer.receive_on", How::Nothing, true),
        ] {
            let reader = self.node.spawn::<Reader>(()).device(other.clone());
            let reader = if bring { reader.receive_on(other.clone()) } else { reader };
            let reader = reader.start()?.address::<Read>();
            let rate = |count: usize| -> anyhow::Result<f64> {
                let read = |is_last| Read { tensor: tensor.clone(), how, is_last, value };
                let start = now();
                for _ in 1..count {
                    self.node
                        .block_on(reader.send(read(false)))
                        .map_err(|error| anyhow::anyhow!("{error}"))?;
                }
                let end = self.get(reader.ask(read(true)))?;
                Ok((count * 4 * LARGEST) as f64 / end.saturating_sub(start).max(1) as f64)
            };
            rate(2)?;
            let mut rates = (0..RUNS).map(|_| rate(20)).collect::<anyhow::Result<Vec<f64>>>()?;
            results.set(self.named("post", what), median(&mut rates));
        }
        Ok(())
    }
}

/// The ends of a stream.
struct Ends {
    source: Address<Produce>,
    arm: Address<Arm>,
    finish: Address<Finish>,
    items: Address<Item>,
}

fn rate(count: u64, produced: Produced) -> f64 {
    let nanos = produced.end.saturating_sub(produced.start).max(1);
    count as f64 * 1e9 / nanos as f64
}
