//! An ask within one process, with tensors in it, before and after another process has died.

use std::time::{Duration, Instant};

use tensorpost::prelude::*;

use super::{Bound, Row, micros, middle, over};

const TENSORS: usize = 64;
const SAMPLES: usize = 200;
/// Asks of a sample.
const COUNT: u32 = 50;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = usize)]
struct Batch {
    tensors: Vec<Tensor>,
}

/// The reply is the time of each sample's asks, in nanoseconds.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<u64>)]
struct Run;

/// Its process ends. The reply says that the sender knows.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = bool)]
struct Die;

#[derive(RemoteActor)]
#[remote_actor(handles(Run, Die), args = (Address<Batch>, Address<Die>), create = Driver::new)]
struct Driver {
    stream: DeviceStream,
    taker: Address<Batch>,
    victim: Address<Die>,
}

impl Driver {
    fn new((taker, victim): (Address<Batch>, Address<Die>), env: &Env) -> anyhow::Result<Self> {
        Ok(Driver { stream: env.stream(), taker, victim })
    }
}

impl Handler<Run> for Driver {
    type Result = ResponseFuture<Vec<u64>>;

    fn handle(&mut self, _: Run, _: &mut Context<Self>) -> Self::Result {
        let (stream, taker) = (self.stream.clone(), self.taker.clone());
        Box::pin(async move {
            let tensors: Vec<_> = (0..TENSORS)
                .map(|_| stream.zeros(DType::U8, &[512]).expect("room for few").freeze())
                .collect();
            let mut times = Vec::new();
            for _ in 0..SAMPLES {
                let since = Instant::now();
                for _ in 0..COUNT {
                    let batch = Batch { tensors: tensors.clone() };
                    assert_eq!(taker.ask(batch).await.expect("it is in this process"), TENSORS);
                }
                times.push((since.elapsed() / COUNT).as_nanos() as u64);
            }
            times
        })
    }
}

impl Handler<Die> for Driver {
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, die: Die, _: &mut Context<Self>) -> Self::Result {
        let victim = self.victim.clone();
        Box::pin(async move { victim.ask(die).await.is_err() })
    }
}

#[derive(Default, RemoteActor)]
#[remote_actor(handles(Batch))]
struct Taker;

impl Handler<Batch> for Taker {
    type Result = MessageResult<Batch>;

    fn handle(&mut self, batch: Batch, _: &mut Context<Self>) -> Self::Result {
        MessageResult(batch.tensors.len())
    }
}

#[derive(Default, RemoteActor)]
#[remote_actor(handles(Die))]
struct Victim;

impl Handler<Die> for Victim {
    type Result = MessageResult<Die>;

    fn handle(&mut self, _: Die, _: &mut Context<Self>) -> Self::Result {
        std::process::exit(3);
    }
}

pub(super) fn rows(node: &Node) -> anyhow::Result<Vec<Row>> {
    let together = node.worker("cliffs-local")?;
    let taker = node.spawn::<Taker>(()).worker(together).start()?;
    let victim = node.spawn::<Victim>(()).start()?;
    let driver = node.spawn::<Driver>((taker.address(), victim.address())).worker(together).start()?;
    // The better of three medians: on a shared machine, one of them was probably left alone.
    let run = || -> anyhow::Result<Duration> {
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let times = node.block_on(driver.address::<Run>().ask(Run))?;
            best = best.min(middle(&mut times.into_iter().map(Duration::from_nanos).collect::<Vec<_>>()));
        }
        Ok(best)
    };
    run()?;
    let before = run()?;
    anyhow::ensure!(node.block_on(driver.address::<Die>().ask(Die))?, "its process has ended");
    let after = run()?;
    Ok(vec![Row::new(
        format!("an ask in one process with {TENSORS} tensors, after a death over before"),
        format!("{} over {}", micros(after), micros(before)),
        over(after, before),
        Some(Bound::AtMost(1.05)),
    )])
}
