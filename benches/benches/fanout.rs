//! One tensor to 1, 2, 4, 8 and 16 receivers. The times have to be divided by the number of receivers, as
//! `report` does.
//!
//! | group | receivers | measured |
//! |---|---|---|
//! | `fanout-streaming` | each in a process of its own | the long run: fresh tensors one after the other, each to all receivers, with the mailboxes' credit as the only brake, up to the last one handled |
//! | `fanout-together` | all in one process | the same |
//! | `fanout-send` | each in a process of its own | the sender's share, as time of its core: making one tensor and sending it to all, who sleep |
//!
//! The sender has a core of its own; the receivers share the others. Where there are fewer cores than
//! receivers, the first group measures how the kernel shares them, too.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use tensorpost::node::Spawned;
use tensorpost::prelude::*;
use tensorpost_benches::cores::{pin, pin_beside, thread_time};

const RECEIVERS: [usize; 5] = [1, 2, 4, 8, 16];
const BYTES: usize = 4 << 10;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    number: u64,
    #[tensor(dtype = u8, shape = [_])]
    data: Tensor,
}

/// Asks a receiver how many frames it has seen: when the reply is there, it has handled all that were sent
/// before.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Seen;

/// The run to measure; the reply is the time in nanoseconds.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Run {
    /// Whether it is the long run; otherwise the sender's share.
    streaming: bool,
    /// Whether it takes the receivers in one process.
    together: bool,
    receivers: usize,
    count: u64,
}

type Receivers = Vec<(Address<Frame>, Address<Seen>)>;

struct Producer {
    stream: DeviceStream,
    /// The receivers with a process each.
    apart: Receivers,
    /// The receivers that share a process.
    together: Receivers,
}

impl Actor for Producer {
    type Context = Context<Self>;
}

impl RemoteActor for Producer {
    type Args = (Receivers, Receivers);

    fn create((apart, together): Self::Args, env: &Env) -> anyhow::Result<Self> {
        pin(0);
        Ok(Producer { stream: env.stream(), apart, together })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Run>();
    }
}

/// Sends one tensor to all.
async fn fan_out(stream: &DeviceStream, receivers: &Receivers, number: u64) {
    let data = stream.empty(DType::U8, &[BYTES]).expect("the pool has room").freeze();
    for (frames, _) in receivers {
        frames.send(Frame { number, data: data.clone() }).await.expect("the receivers run");
    }
}

/// Waits until all messages are handled.
async fn all_seen(receivers: &Receivers) {
    let asks: Vec<_> = receivers.iter().map(|(_, seen)| seen.ask(Seen)).collect();
    for ask in asks {
        ask.await.expect("the receivers run");
    }
}

impl Handler<Run> for Producer {
    type Result = ResponseFuture<u64>;

    fn handle(&mut self, run: Run, _: &mut Context<Self>) -> Self::Result {
        let stream = self.stream.clone();
        let receivers = if run.together { &self.together } else { &self.apart };
        let receivers: Receivers = receivers.iter().take(run.receivers).cloned().collect();
        Box::pin(async move {
            let mut spent = Duration::ZERO;
            let since = Instant::now();
            for number in 0..run.count {
                let used = thread_time();
                fan_out(&stream, &receivers, number).await;
                if !run.streaming {
                    spent += thread_time().saturating_sub(used);
                    all_seen(&receivers).await;
                }
            }
            if run.streaming {
                all_seen(&receivers).await;
                spent = since.elapsed();
            }
            spent.as_nanos() as u64
        })
    }
}

#[derive(Default)]
struct Receiver {
    seen: u64,
}

impl Actor for Receiver {
    type Context = Context<Self>;
}

impl RemoteActor for Receiver {
    type Args = usize;

    fn create(number: usize, _: &Env) -> anyhow::Result<Self> {
        pin_beside(number);
        Ok(Receiver::default())
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Frame>().message::<Seen>();
    }
}

impl Handler<Frame> for Receiver {
    type Result = ();

    fn handle(&mut self, frame: Frame, _: &mut Context<Self>) {
        assert_eq!(frame.data.len(), BYTES, "frame {} is whole", frame.number);
        self.seen += 1;
    }
}

impl Handler<Seen> for Receiver {
    type Result = MessageResult<Seen>;

    fn handle(&mut self, _: Seen, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.seen)
    }
}

fn main() -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    let most = RECEIVERS[RECEIVERS.len() - 1];
    let apart: Vec<_> =
        (0..most).map(|number| node.spawn::<Receiver>(number).start()).collect::<Result<_, _>>()?;
    let one = node.worker("together")?;
    let together: Vec<_> =
        (0..most).map(|_| node.spawn::<Receiver>(0).worker(one).start()).collect::<Result<_, _>>()?;
    let addresses = |receivers: &[Spawned<Receiver>]| -> Receivers {
        receivers.iter().map(|receiver| (receiver.address(), receiver.address())).collect()
    };
    let producer = node.spawn::<Producer>((addresses(&apart), addresses(&together))).start()?;
    let runs = producer.address::<Run>();
    let run = |streaming: bool, together: bool, receivers: usize, count: u64| -> Duration {
        let run = Run { streaming, together, receivers, count };
        Duration::from_nanos(node.block_on(runs.ask(run)).expect("the producer runs"))
    };
    run(true, false, most, 1000);
    run(true, true, most, 1000);

    // There are many short samples: on a shared machine some of them are left alone.
    let mut criterion = Criterion::default()
        .sample_size(200)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
        .configure_from_args();
    let groups =
        [("fanout-stream", true, false), ("fanout-together", true, true), ("fanout-send", false, false)];
    for (name, streaming, together) in groups {
        let mut group = criterion.benchmark_group(name);
        if !streaming {
            // Most of the time that passes is not part of the measurement.
            group
                .sample_size(20)
                .warm_up_time(Duration::from_millis(20))
                .measurement_time(Duration::from_millis(100));
        }
        for receivers in RECEIVERS {
            group.throughput(Throughput::Elements(receivers as u64));
            group.bench_function(BenchmarkId::from_parameter(receivers), |b| {
                b.iter_custom(|n| run(streaming, together, receivers, n));
            });
        }
        group.finish();
    }
    criterion.final_summary();
    Ok(())
}
