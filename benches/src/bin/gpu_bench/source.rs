//! The producing end of a stream: fresh tensors, as fast as memory and the other end's mailbox allow.

use std::time::Duration;

use actix::fut::wrap_future;
use futures_util::FutureExt;
use tensorpost::prelude::*;
use tensorpost::tensor::PoolError;
use tokio::sync::oneshot;

use crate::kernels::{Kernels, Launches};
use crate::outcome::{Outcome, Text, now};
use crate::sink::Item;

/// Tensors that one handler call makes; their clock writes and frames are published together, so that a
/// receiver waits for the last of them. If each tensor kept the GPU busy, the result would be a pipeline that
/// fills and drains in such steps.
const AT_ONCE: usize = 64;

/// The work on each tensor of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    Nothing,
    /// A kernel that walks over the tensor.
    Kernel,
    /// The same, after keeping the GPU busy for this many microseconds.
    Busy(u64),
    /// A stage of many small kernels, which the receiver of the tensor runs.
    Chain(Launches),
}

impl Work {
    /// Returns how long the kernel is busy, if there is one.
    pub(crate) fn busy(self) -> Option<Duration> {
        match self {
            Work::Nothing | Work::Chain(_) => None,
            Work::Kernel => Some(Duration::ZERO),
            Work::Busy(micros) => Some(Duration::from_micros(micros)),
        }
    }
}

/// Makes `count` tensors; they are dropped where there is no receiver.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Outcome<Produced>)]
pub(crate) struct Produce {
    pub(crate) to: Option<Address<Item>>,
    pub(crate) count: u64,
    pub(crate) elements: usize,
    pub(crate) work: Work,
}

/// A stream, as its source saw it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Produced {
    /// When it began and ended, see [`now`].
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Bytes by which the source's pool grew.
    pub(crate) grown: u64,
}

/// A message to itself: continue.
#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct Tick;

pub(crate) struct Source {
    stream: DeviceStream,
    kernels: Kernels,
    me: Address<Tick>,
    run: Option<Run>,
}

struct Run {
    produce: Produce,
    made: u64,
    /// Memory for which it has waited.
    spare: Option<TensorMut>,
    start: u64,
    /// Bytes of the pool at the start.
    pool_bytes: u64,
    done: oneshot::Sender<Outcome<Produced>>,
}

/// The outcome of a step.
enum Step {
    Again,
    Finished,
    NoMemory,
    NoRoom(Box<Item>),
}

impl Actor for Source {
    type Context = Context<Self>;
}

impl RemoteActor for Source {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        Ok(Source { kernels: Kernels::load(&stream)?, stream, me: env.address(), run: None })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Produce>().message::<Tick>();
    }
}

impl Handler<Produce> for Source {
    type Result = ResponseFuture<Outcome<Produced>>;

    fn handle(&mut self, produce: Produce, ctx: &mut Context<Self>) -> Self::Result {
        let (done, result) = oneshot::channel();
        let pool_bytes = self.stream.memory().chunk_bytes;
        self.run = Some(Run { produce, made: 0, spare: None, start: now(), pool_bytes, done });
        self.go_on(ctx);
        async { result.await.unwrap_or_else(|_| Err("the stream was given up".to_owned())) }.boxed_local()
    }
}

impl Handler<Tick> for Source {
    type Result = ();

    fn handle(&mut self, _: Tick, ctx: &mut Context<Self>) {
        self.go_on(ctx);
    }
}

impl Source {
    fn go_on(&mut self, ctx: &mut Context<Self>) {
        let next = match self.step() {
            Ok(Step::Again) => self.tick(),
            Ok(Step::Finished) => self.finish(),
            Ok(Step::NoMemory) => self.await_memory(ctx),
            Ok(Step::NoRoom(item)) => self.await_room(*item, ctx),
            Err(error) => Err(error),
        };
        if let Err(error) = next {
            self.fail(&error);
        }
    }

    /// Makes up to [`AT_ONCE`] tensors.
    fn step(&mut self) -> anyhow::Result<Step> {
        let run = self.run.as_mut().text("no stream to go on with")?;
        let at_once = if matches!(run.produce.work, Work::Busy(_)) { 1 } else { AT_ONCE };
        for _ in 0..at_once {
            if run.made == run.produce.count {
                return Ok(Step::Finished);
            }
            let mut tensor = match run.spare.take() {
                Some(tensor) => tensor,
                None => match self.stream.empty(DType::F32, &[run.produce.elements]) {
                    Err(TensorError::Pool(PoolError::Full { .. })) => return Ok(Step::NoMemory),
                    made => made?,
                },
            };
            if let Some(busy) = run.produce.work.busy() {
                self.kernels.fill(&self.stream, &mut tensor, Item::value(run.made), busy)?;
            }
            let number = run.made;
            run.made += 1;
            let Some(to) = &run.produce.to else { continue };
            if let Err(error) = to.try_send(Item { number, tensor: tensor.freeze() }) {
                return Ok(Step::NoRoom(Box::new(error.message)));
            }
        }
        Ok(Step::Again)
    }

    /// Runs the next step in a turn of its own.
    fn tick(&self) -> anyhow::Result<()> {
        Ok(self.me.try_send(Tick).map_err(|error| error.reason)?)
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        let run = self.run.as_ref().text("no stream to finish")?;
        if run.produce.to.is_none() {
            self.stream.synchronize()?;
        }
        let end = now();
        let grown = self.stream.memory().chunk_bytes.saturating_sub(run.pool_bytes);
        let produced = Produced { start: run.start, end, grown };
        if let Some(run) = self.run.take() {
            // The asker may have given up.
            let _ = run.done.send(Ok(produced));
        }
        Ok(())
    }

    fn fail(&mut self, error: &anyhow::Error) {
        if let Some(run) = self.run.take() {
            let _ = run.done.send(Err(format!("{error:#}")));
        }
    }

    fn await_memory(&mut self, ctx: &mut Context<Self>) -> anyhow::Result<()> {
        let elements = self.run.as_ref().text("no stream")?.produce.elements;
        let stream = self.stream.clone();
        let memory = async move { stream.empty_when_free(DType::F32, &[elements]).await };
        ctx.spawn(actix::fut::ActorFutureExt::map(
            wrap_future(memory),
            |tensor, source: &mut Source, _: &mut Context<Source>| {
                let next = match (tensor, source.run.as_mut()) {
                    (Ok(tensor), Some(run)) => {
                        run.spare = Some(tensor);
                        source.tick()
                    }
                    (Err(error), _) => Err(error.into()),
                    (_, None) => Ok(()),
                };
                if let Err(error) = next {
                    source.fail(&error);
                }
            },
        ));
        Ok(())
    }

    fn await_room(&mut self, item: Item, ctx: &mut Context<Self>) -> anyhow::Result<()> {
        let to = self.run.as_ref().and_then(|run| run.produce.to.clone()).text("nobody to send to")?;
        let room = async move { to.send(item).await.map_err(|error| error.reason) };
        ctx.spawn(actix::fut::ActorFutureExt::map(
            wrap_future(room),
            |sent, source: &mut Source, _: &mut Context<Source>| {
                let next = sent.map_err(anyhow::Error::from).and_then(|()| source.tick());
                if let Err(error) = next {
                    source.fail(&error);
                }
            },
        ));
        Ok(())
    }
}
