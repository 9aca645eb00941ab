//! The consuming end of a stream.

use futures_util::FutureExt;
use tensorpost::prelude::*;
use tokio::sync::oneshot;

use crate::kernels::{CHAIN, Chain, Kernels};
use crate::outcome::{Outcome, now};
use crate::source::Work;

/// A tensor of a stream.
#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct Item {
    pub(crate) number: u64,
    pub(crate) tensor: Tensor,
}

impl Item {
    /// Returns the value that a kernel writes into the item with this number; floats hold these exactly.
    pub(crate) fn value(number: u64) -> f32 {
        (number % (1 << 20)) as f32
    }
}

/// Says how to handle the next items.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Outcome<()>)]
pub(crate) struct Arm {
    pub(crate) count: u64,
    pub(crate) work: Work,
    /// Whether items hold [`Item::value`], which is then checked in the last.
    pub(crate) written: bool,
}

/// Resolves when all items were handled and the GPU has finished them; the reply is the time of that, see
/// [`now`].
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Outcome<u64>)]
pub(crate) struct Finish;

pub(crate) struct Sink {
    stream: DeviceStream,
    kernels: Kernels,
    arm: Arm,
    seen: u64,
    /// The memory that kernels write.
    scratch: Option<TensorMut>,
    chain: Option<Chain>,
    ended: Option<Outcome<u64>>,
    waiting: Option<oneshot::Sender<Outcome<u64>>>,
}

impl Actor for Sink {
    type Context = Context<Self>;
}

impl RemoteActor for Sink {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        let kernels = Kernels::load(&stream)?;
        let arm = Arm { count: 0, work: Work::Nothing, written: false };
        Ok(Sink { stream, kernels, arm, seen: 0, scratch: None, chain: None, ended: None, waiting: None })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Item>().message::<Arm>().message::<Finish>();
    }
}

impl Handler<Arm> for Sink {
    type Result = Outcome<()>;

    fn handle(&mut self, arm: Arm, _: &mut Context<Self>) -> Self::Result {
        self.arm = arm;
        self.seen = 0;
        self.ended = None;
        self.scratch = None;
        self.chain = None;
        Ok(())
    }
}

impl Handler<Finish> for Sink {
    type Result = ResponseFuture<Outcome<u64>>;

    fn handle(&mut self, _: Finish, _: &mut Context<Self>) -> Self::Result {
        if let Some(ended) = self.ended.take() {
            return std::future::ready(ended).boxed_local();
        }
        let (done, result) = oneshot::channel();
        self.waiting = Some(done);
        async { result.await.unwrap_or_else(|_| Err("the stream was given up".to_owned())) }.boxed_local()
    }
}

impl Handler<Item> for Sink {
    type Result = ();

    fn handle(&mut self, item: Item, _: &mut Context<Self>) {
        match self.take(&item) {
            Ok(None) => {}
            Ok(Some(end)) => self.end(Ok(end)),
            Err(error) => self.end(Err(format!("{error:#}"))),
        }
    }
}

impl Sink {
    fn take(&mut self, item: &Item) -> anyhow::Result<Option<u64>> {
        anyhow::ensure!(item.number == self.seen, "item {} came where {} was due", item.number, self.seen);
        self.seen += 1;
        if let Some(busy) = self.arm.work.busy() {
            if self.scratch.is_none() {
                self.scratch = Some(self.stream.empty(DType::F32, item.tensor.shape())?);
            }
            if let Some(scratch) = &mut self.scratch {
                self.kernels.bump(&self.stream, &item.tensor, scratch, busy)?;
            }
        }
        if let Work::Chain(launches) = self.arm.work {
            let shape = item.tensor.shape();
            let chain = match &mut self.chain {
                Some(chain) => chain,
                none => none.insert(Chain::new(&self.stream, item.tensor.len())?),
            };
            // It is fresh for each item, like the item that a stage hands on.
            let mut out = self.stream.empty(DType::F32, shape)?;
            chain.run(&self.kernels, &self.stream, launches, &item.tensor, &mut out)?;
            self.check_chain(item, &out.freeze())?;
        }
        if self.seen < self.arm.count {
            return Ok(None);
        }
        self.stream.synchronize()?;
        let end = now();
        if self.arm.written {
            let some = item.tensor.slice(0, 0..item.tensor.len().min(1024))?;
            let (found, wanted) = (self.stream.download::<f32>(&some)?, Item::value(item.number));
            anyhow::ensure!(
                found.iter().all(|value| *value == wanted),
                "item {} does not hold {wanted}",
                item.number
            );
        }
        Ok(Some(end))
    }

    /// Checks the chain's result for the last item.
    fn check_chain(&self, item: &Item, out: &Tensor) -> anyhow::Result<()> {
        if self.seen < self.arm.count || !self.arm.written {
            return Ok(());
        }
        let (found, wanted) = (self.stream.download::<f32>(out)?, Item::value(item.number) + CHAIN as f32);
        anyhow::ensure!(found.iter().all(|value| *value == wanted), "the chain made no {wanted} of an item");
        Ok(())
    }

    fn end(&mut self, result: Outcome<u64>) {
        match self.waiting.take() {
            // The asker may have given up.
            Some(waiting) => drop(waiting.send(result)),
            None => self.ended = Some(result),
        }
    }
}
