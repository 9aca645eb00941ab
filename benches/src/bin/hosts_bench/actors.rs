//! The actors on the two hosts, beside the notes: tensors that are poured from one to the other, a consumer
//! that stands still, and asks that nobody answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tensorpost::prelude::*;

/// A tensor whose first and last byte give its number.
#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct Block {
    pub(crate) number: u64,
    #[tensor(dtype = u8, shape = [_])]
    pub(crate) data: Tensor,
}

/// "Send this many tensors of this many bytes, as fast as you may, or until a [`Stop`]."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<Poured, String>)]
pub(crate) struct Pour {
    pub(crate) to: Address<Block>,
    pub(crate) came: Address<Came>,
    pub(crate) count: u64,
    pub(crate) bytes: usize,
}

/// The result of a [`Pour`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Poured {
    /// How many were sent, and have been handled.
    pub(crate) count: u64,
    /// Nanoseconds until all were.
    pub(crate) nanos: u64,
    /// The longest that a send waited for room, in nanoseconds.
    pub(crate) longest: u64,
}

/// "Pour no more."
#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct Stop;

/// "How many blocks have come, and how many of them not in order, or not whole?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (u64, u64))]
pub(crate) struct Came;

/// "Stand still for this many milliseconds at the next block."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
pub(crate) struct Stall(pub(crate) u64);

/// Never answered.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
pub(crate) struct Never {
    pub(crate) data: Tensor,
}

pub(crate) struct Source {
    stream: DeviceStream,
    stopped: Arc<AtomicBool>,
}

#[actor]
impl Source {
    fn create(env: &Env) -> Self {
        Source { stream: env.stream(), stopped: Arc::default() }
    }

    #[handler]
    fn pour(&mut self, pour: Pour) -> ResponseFuture<Result<Poured, String>> {
        let stream = self.stream.clone();
        self.stopped = Arc::default();
        let stopped = Arc::clone(&self.stopped);
        Box::pin(async move {
            let make = async |number: u64| {
                let mut data = stream.empty_when_free(DType::U8, &[pour.bytes]).await?;
                let bytes = data.as_mut_slice::<u8>()?;
                for at in [0, pour.bytes - 1] {
                    bytes[at] = number as u8;
                }
                anyhow::Ok(data.freeze())
            };
            let poured = pour_all(&pour, &stopped, make).await;
            poured.map_err(|error| format!("a stream of tensors: {error:#}"))
        })
    }

    #[handler]
    fn stop(&self, _: Stop) {
        self.stopped.store(true, Relaxed);
    }
}

/// Sends the tensor that `make` returns for each number.
pub(crate) async fn pour_all(
    pour: &Pour,
    stopped: &AtomicBool,
    make: impl AsyncFn(u64) -> anyhow::Result<Tensor>,
) -> anyhow::Result<Poured> {
    let came = async || pour.came.ask(Came).await.map_err(|error| anyhow::anyhow!("{error}"));
    let (before, wrong_before) = came().await?;
    let (since, mut longest, mut sent) = (Instant::now(), Duration::ZERO, 0);
    while sent < pour.count && !stopped.load(Relaxed) {
        let number = before + sent;
        let block = Block { number, data: make(number).await? };
        let asked = Instant::now();
        pour.to.send(block).await.map_err(|error| error.reason)?;
        longest = longest.max(asked.elapsed());
        sent += 1;
    }
    // This ask is behind them, so its answer means that all were handled.
    let (after, wrong) = came().await?;
    let nanos = since.elapsed().as_nanos() as u64;
    anyhow::ensure!(after - before == sent, "{} of {sent} came", after - before);
    anyhow::ensure!(
        wrong == wrong_before,
        "{} of {sent} were out of order, or not whole",
        wrong - wrong_before
    );
    Ok(Poured { count: sent, nanos, longest: longest.as_nanos() as u64 })
}

#[derive(Default)]
pub(crate) struct Sink {
    came: u64,
    wrong: u64,
    stall: Option<Duration>,
}

#[actor]
impl Sink {
    fn create(_: &Env) -> Self {
        Sink::default()
    }

    #[handler]
    fn block(&mut self, Block { number, data }: Block) {
        if let Some(stall) = self.stall.take() {
            // This is the load that is measured: a consumer whose thread stands still.
            std::thread::sleep(stall);
        }
        let value = Some(&(number as u8));
        let whole = data.as_slice::<u8>().is_ok_and(|bytes| bytes.first() == value && bytes.last() == value);
        self.wrong += u64::from(number != self.came || !whole);
        self.came += 1;
    }

    #[handler]
    fn came(&self, _: Came) -> (u64, u64) {
        (self.came, self.wrong)
    }

    #[handler]
    fn stall(&mut self, Stall(millis): Stall) {
        self.stall = Some(Duration::from_millis(millis));
    }

    #[handler]
    fn never(&self, never: Never) -> ResponseFuture<u32> {
        Box::pin(async move {
            let _kept = never;
            std::future::pending().await
        })
    }
}
