//! What a message costs in processor time, on one thread and without a scheduler in it: to compare two builds of the
//! framework, or one with and without a trace. Wall time of two processes moves by far more than what is looked for.
//!
//! `ack_guard run --release -p tensorpost-tests --bin message_cost`, and again with `TENSORPOST_TRACE=/tmp/trace.json`.
//!
//! * `frame`: a message from one transport to another, encoded, written, read, decoded and done with.
//! * `lease`: the same with a tensor: granted, adopted and returned.
//! * `handler`: an actor's message to itself, through its mailbox and its handler.
//!
//! Each line is the best and the median of many short samples, in nanoseconds a message.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tensorpost::prelude::*;
use tensorpost::testing::{Cluster, Target, TestInbox};

const SAMPLES: usize = 2_000;
const BATCH: usize = 32;
const BATCHES: usize = 8;
const TICKS: u32 = 2_000;

type Mailbox = (Target<Option<Tensor>>, Arc<TestInbox<Option<Tensor>>>);

thread_local! {
    static INBOX: OnceCell<Mailbox> = const { OnceCell::new() };
}

fn main() -> anyhow::Result<()> {
    // First of all: in a worker this does not return.
    let node = Node::builder().actor::<Ticker>().start()?;
    let cluster = Cluster::new(2);
    cluster.connect();
    report("frame", sample(|| frames(&cluster, None)));
    let tensor = cluster.stream(0).from_slice(&[16], &[0_u32; 16])?.freeze();
    // The first one has its chunk mapped.
    INBOX.with(|inbox| cluster.send(0, &inbox.get().expect("made above").0, Some(tensor.clone())));
    cluster.run_until_idle();
    INBOX.with(|inbox| drop(inbox.get().map(|(_, inbox)| inbox.take())));
    cluster.run_until_idle();
    report("lease", sample(|| frames(&cluster, Some(&tensor))));
    let ticker = node.spawn::<Ticker>(()).start()?.address::<Ticks>();
    let ask = || node.block_on(ticker.ask(Ticks { left: TICKS, began: None }));
    let mut times = Vec::new();
    for _ in 0..SAMPLES {
        ask()?;
        let took = node.block_on(ticker.ask(Ticks { left: 0, began: None }))?;
        times.push(took as f64 / f64::from(TICKS));
    }
    report("handler", times);
    node.shutdown(Duration::from_secs(10))?;
    Ok(())
}

fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn sample(mut run: impl FnMut()) -> Vec<f64> {
    run();
    let time = |_| {
        let began = cpu_ns();
        run();
        (cpu_ns() - began) as f64 / (BATCH * BATCHES) as f64
    };
    (0..SAMPLES).map(time).collect()
}

fn frames(cluster: &Cluster, tensor: Option<&Tensor>) {
    INBOX.with(|inbox| {
        let (to, inbox) = inbox.get_or_init(|| cluster.inbox(1, BATCH as u32));
        for _ in 0..BATCHES {
            for _ in 0..BATCH {
                cluster.send(0, to, tensor.cloned());
            }
            cluster.poll(1);
            assert_eq!(inbox.take().len(), BATCH);
            cluster.poll(0);
        }
    });
}

fn report(what: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    println!("{what:8} best {:7.1} ns, median {:7.1} ns", times[0], times[times.len() / 2]);
}

/// Sends itself messages, one after the other.
struct Ticker {
    itself: Address<Ticks>,
    took: u64,
}

/// How many more. The reply is what the last row of them took, in nanoseconds of the thread.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Ticks {
    left: u32,
    began: Option<u64>,
}

impl Actor for Ticker {
    type Context = Context<Self>;
}

impl RemoteActor for Ticker {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Ticker { itself: env.address(), took: 0 })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Ticks>();
    }
}

impl Handler<Ticks> for Ticker {
    type Result = MessageResult<Ticks>;

    fn handle(&mut self, ticks: Ticks, _: &mut Context<Self>) -> Self::Result {
        if ticks.left > 0 {
            let began = Some(ticks.began.unwrap_or_else(cpu_ns));
            self.itself.try_send(Ticks { left: ticks.left - 1, began }).expect("one at a time has room");
        } else if let Some(began) = ticks.began {
            self.took = cpu_ns() - began;
        }
        MessageResult(self.took)
    }
}
