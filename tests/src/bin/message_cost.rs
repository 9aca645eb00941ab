//! Measures the processor time of a message on one thread, without a scheduler. It compares two builds of the
//! framework, or one build with and without a trace. Wall time of two processes varies far more than the
//! differences that this program looks for.
//!
//! `cargo run --release -p tensorpost-tests --bin message_cost`, and again with
//! `TENSORPOST_TRACE=/tmp/trace.json`.
//!
//! * `frame`: a message from one transport to another is encoded, written, read, decoded and released.
//! * `lease`: the same with a tensor, whose lease is granted, adopted and returned.
//! * `handler`: an actor's message to itself, through its mailbox and its handler.
//! * `tensors`: the same with 64 tensors in it.
//!
//! Each line gives the best and the median of many short samples, in nanoseconds a message. Then it gives the
//! same where ten other processes have died, and the ratio. The samples of the two cases alternate.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tensorpost::prelude::*;
use tensorpost_core::testing::{Cluster, Target, TestInbox};

const SAMPLES: usize = 2_000;
const BATCH: usize = 32;
const BATCHES: usize = 8;
const TICKS: u32 = 2_000;
const DEATHS: usize = 10;
/// The tensors in a message to oneself, and the number of messages in a sample.
const TENSORS: usize = 64;
const ROUNDS: u32 = 200;

fn main() -> anyhow::Result<()> {
    let builder = || Node::builder().worker_log("off");
    let nodes = [builder().start()?, builder().start()?];
    let pairs = [Pair::new(0)?, Pair::new(DEATHS)?];
    report("frame", sample(&pairs, |pair| Ok(pair.frames(false)))?);
    report("lease", sample(&pairs, |pair| Ok(pair.frames(true)))?);
    let [before, after] = &nodes;
    let tickers = [(before, Ticker::start(before, 0)?), (after, Ticker::start(after, DEATHS)?)];
    let ticks = |(node, ticker): &(&Node, Spawned<Ticker>)| -> anyhow::Result<f64> {
        node.block_on(ticker.ask(Ticks { left: TICKS, began: None }))?;
        let took = node.block_on(ticker.ask(Ticks { left: 0, began: None }))?;
        Ok(took as f64 / f64::from(TICKS))
    };
    report("handler", sample(&tickers, ticks)?);
    let rounds = |(node, ticker): &(&Node, Spawned<Ticker>)| -> anyhow::Result<f64> {
        let tensors = vec![node.host_stream()?.from_slice(&[16], &[0_u32; 16])?.freeze(); TENSORS];
        node.block_on(ticker.ask(Laden { ticks: Ticks { left: ROUNDS, began: None }, tensors }))?;
        let took = node.block_on(ticker.ask(Ticks { left: 0, began: None }))?;
        Ok(took as f64 / f64::from(ROUNDS))
    };
    report("tensors", sample(&tickers, rounds)?);
    nodes.into_iter().try_for_each(|node| node.shutdown(Duration::from_secs(10)).map(drop))?;
    Ok(())
}

fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Returns the nanoseconds a message of each of two cases, sampled in turn.
fn sample<T>(two: &[T; 2], run: impl Fn(&T) -> anyhow::Result<f64>) -> anyhow::Result<[Vec<f64>; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    for turn in 0..=SAMPLES {
        for (of, times) in two.iter().zip(&mut times) {
            let took = run(of)?;
            // The first turn warms up.
            times.extend((turn > 0).then_some(took));
        }
    }
    Ok(times)
}

fn report(what: &str, times: [Vec<f64>; 2]) {
    let [before, after] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        (times[0], times[times.len() / 2])
    });
    println!(
        "{what:8} best {:7.1} ns, median {:7.1} ns; after {DEATHS} deaths {:7.1} and {:7.1}: {:.3} ({:.3})",
        before.0,
        before.1,
        after.0,
        after.1,
        after.1 / before.1,
        after.0 / before.0,
    );
}

/// Two processes that send each other messages, both in this one.
struct Pair {
    cluster: Cluster,
    to: Target<Option<Tensor>>,
    inbox: Arc<TestInbox<Option<Tensor>>>,
    tensor: Tensor,
}

impl Pair {
    /// Beside them, this many others, which have died.
    fn new(deaths: usize) -> anyhow::Result<Self> {
        let cluster = Cluster::new(2 + deaths);
        cluster.connect();
        for other in 2..2 + deaths {
            // Each has sent a tensor before its death, so the survivors remember it by name.
            let (to, inbox) = cluster.inbox(1, 1);
            cluster.send(other, &to, Some(cluster.stream(other).from_slice(&[16], &[0_u32; 16])?.freeze()));
            cluster.run_until_idle();
            drop(inbox.take());
            cluster.run_until_idle();
            cluster.end(other);
            cluster.run_until_idle();
        }
        let (to, inbox) = cluster.inbox(1, BATCH as u32);
        let tensor = cluster.stream(0).from_slice(&[16], &[0_u32; 16])?.freeze();
        // The first message has its chunk mapped.
        cluster.send(0, &to, Some(tensor.clone()));
        cluster.run_until_idle();
        drop(inbox.take());
        cluster.run_until_idle();
        Ok(Pair { cluster, to, inbox, tensor })
    }

    /// Nanoseconds of this thread for each of several messages.
    fn frames(&self, with_tensor: bool) -> f64 {
        let began = cpu_ns();
        for _ in 0..BATCHES {
            for _ in 0..BATCH {
                self.cluster.send(0, &self.to, with_tensor.then(|| self.tensor.clone()));
            }
            self.cluster.poll(1);
            assert_eq!(self.inbox.take().len(), BATCH);
            self.cluster.poll(0);
        }
        (cpu_ns() - began) as f64 / (BATCH * BATCHES) as f64
    }
}

struct Ticker {
    itself: Address<Ticks>,
    laden: Address<Laden>,
    took: u64,
}

/// How many more messages follow. The reply is the time that the last row of them took, in nanoseconds of the
/// thread.
#[derive(Clone, Copy, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Ticks {
    left: u32,
    began: Option<u64>,
}

/// The same, with tensors. This is a type of its own because a message that can hold no tensor is never
/// searched for lost ones.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Laden {
    ticks: Ticks,
    tensors: Vec<Tensor>,
}

impl Ticker {
    /// Starts an actor of a node in which this many other workers have died.
    fn start(node: &Node, deaths: usize) -> anyhow::Result<Spawned<Ticker>> {
        for _ in 0..deaths {
            let other = node.spawn::<Ticker>(()).start()?;
            node.supervisor().kill_worker(other.worker());
            node.supervisor().await_end(other.worker());
        }
        Ok(node.spawn::<Ticker>(()).start()?)
    }

    /// Returns the next message of a row, or none after the last.
    fn tick(&mut self, ticks: Ticks) -> Option<Ticks> {
        if let (0, Some(began)) = (ticks.left, ticks.began) {
            self.took = cpu_ns() - began;
        }
        let left = ticks.left.checked_sub(1)?;
        Some(Ticks { left, began: Some(ticks.began.unwrap_or_else(cpu_ns)) })
    }
}

impl Actor for Ticker {
    type Context = Context<Self>;
}

impl RemoteActor for Ticker {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Ticker { itself: env.address(), laden: env.address(), took: 0 })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Ticks>().message::<Laden>();
    }
}

impl Handler<Ticks> for Ticker {
    type Result = MessageResult<Ticks>;

    fn handle(&mut self, ticks: Ticks, _: &mut Context<Self>) -> Self::Result {
        if let Some(next) = self.tick(ticks) {
            self.itself.try_send(next).expect("one at a time has room");
        }
        MessageResult(self.took)
    }
}

impl Handler<Laden> for Ticker {
    type Result = MessageResult<Laden>;

    fn handle(&mut self, laden: Laden, _: &mut Context<Self>) -> Self::Result {
        if let Some(ticks) = self.tick(laden.ticks) {
            self.laden.try_send(Laden { ticks, ..laden }).expect("one at a time has room");
        }
        MessageResult(self.took)
    }
}
