//! Hands a fresh host tensor to an actor in another process, beside the same struct by value through a Unix
//! socket.
//!
//! One iteration takes memory from the pool, marks its first and last bytes, asks the receiver, which checks
//! the marks, and waits for the reply; then the memory goes back. Filling a tensor is measured on its own
//! (`tensor-fill`): it is the producer's work, grows with the size, and has nothing to do with the hand-over.
//! The bytes that go by value exist before the clock starts, too.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use tensorpost::prelude::*;
use tensorpost_benches::baseline;
use tensorpost_benches::cores::pin;

const SIZES: [(&str, usize); 3] = [("4KiB", 4 << 10), ("1MiB", 1 << 20), ("64MiB", 64 << 20)];
/// The size of each mark, in bytes.
const MARK: usize = size_of::<u64>();

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = bool)]
struct Frame {
    number: u64,
    #[tensor(dtype = u8, shape = [_])]
    data: Tensor,
}

/// The run to measure; the reply is the time in nanoseconds.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Run {
    /// Only fills, and sends nothing.
    fill: bool,
    bytes: usize,
    count: u64,
}

struct Producer {
    stream: DeviceStream,
    consumer: Address<Frame>,
}

impl Actor for Producer {
    type Context = Context<Self>;
}

impl RemoteActor for Producer {
    type Args = Address<Frame>;

    fn create(consumer: Address<Frame>, env: &Env) -> anyhow::Result<Self> {
        pin(0);
        Ok(Producer { stream: env.stream(), consumer })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Run>();
    }
}

/// Makes a fresh tensor with its marks.
fn fresh(stream: &DeviceStream, number: u64, bytes: usize) -> Result<Tensor, TensorError> {
    let mut tensor = stream.empty(DType::U8, &[bytes])?;
    let data = tensor.as_mut_slice::<u8>()?;
    data[..MARK].copy_from_slice(&number.to_le_bytes());
    data[bytes - MARK..].copy_from_slice(&number.to_le_bytes());
    Ok(tensor.freeze())
}

fn fill(stream: &DeviceStream, number: u64, bytes: usize) -> Result<(), TensorError> {
    stream.empty(DType::U8, &[bytes])?.as_mut_slice::<u8>()?.fill(number as u8);
    Ok(())
}

impl Handler<Run> for Producer {
    type Result = ResponseFuture<u64>;

    fn handle(&mut self, run: Run, _: &mut Context<Self>) -> Self::Result {
        let (stream, consumer) = (self.stream.clone(), self.consumer.clone());
        Box::pin(async move {
            let since = Instant::now();
            for number in 0..run.count {
                if run.fill {
                    fill(&stream, number, run.bytes).expect("the pool has room for one tensor");
                } else {
                    let data = fresh(&stream, number, run.bytes).expect("the pool has room for one tensor");
                    let right = consumer.ask(Frame { number, data }).await.expect("the consumer runs");
                    assert!(right, "the marks arrive");
                }
            }
            since.elapsed().as_nanos() as u64
        })
    }
}

struct Consumer;

impl Actor for Consumer {
    type Context = Context<Self>;
}

impl RemoteActor for Consumer {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        pin(1);
        Ok(Consumer)
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Frame>();
    }
}

impl Handler<Frame> for Consumer {
    type Result = MessageResult<Frame>;

    fn handle(&mut self, frame: Frame, _: &mut Context<Self>) -> Self::Result {
        let mark = frame.number.to_le_bytes();
        let right =
            frame.data.as_slice::<u8>().is_ok_and(|data| data.starts_with(&mark) && data.ends_with(&mark));
        MessageResult(right)
    }
}

fn main() -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    let consumer = node.spawn::<Consumer>(()).start()?;
    let producer = node.spawn::<Producer>(consumer.address()).start()?;
    let runs = producer.address::<Run>();
    let run = |fill: bool, bytes: usize, count: u64| -> Duration {
        Duration::from_nanos(node.block_on(runs.ask(Run { fill, bytes, count })).expect("the producer runs"))
    };

    // There are many short samples: on a shared machine some of them are left alone.
    let mut criterion = Criterion::default()
        .sample_size(200)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
        .configure_from_args();
    // Every size has its chunk, mapped on both sides, before any is measured.
    for (_, bytes) in SIZES {
        run(false, bytes, 100);
    }
    let mut group = criterion.benchmark_group("tensor-hand-over");
    for (name, bytes) in SIZES {
        group.bench_function(BenchmarkId::from_parameter(name), |b| b.iter_custom(|n| run(false, bytes, n)));
    }
    group.finish();
    let mut group = criterion.benchmark_group("tensor-fill");
    for (name, bytes) in SIZES {
        group.bench_function(BenchmarkId::from_parameter(name), |b| b.iter_custom(|n| run(true, bytes, n)));
    }
    group.finish();
    let mut group = criterion.benchmark_group("tensor-by-value");
    group.sample_size(10);
    for (name, bytes) in SIZES {
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_custom(|n| baseline::socket::round_trips(n, bytes).expect("a socket pair"));
        });
    }
    group.finish();
    criterion.final_summary();
    Ok(())
}
