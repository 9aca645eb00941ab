//! The actors of a fault run.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::join_all;
use tensorpost::prelude::*;
use tensorpost::testing::{Usage, leaks};

use super::plan::mix;

/// How long each send in the graph may wait.
const WAIT_FOR_NEXT: Duration = Duration::from_secs(5);

/// An item that passes through the graph.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
pub struct Item {
    /// Its number, which determines the content.
    pub id: u64,
    /// Made by the source, and forwarded.
    pub made: Tensor,
    /// Made by the last stage.
    pub work: Tensor,
    /// How often [`step`] was applied to `work`.
    pub steps: u32,
}

/// "Make items with these numbers." The reply is how many were accepted.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = usize)]
pub struct Emit {
    /// The first number.
    pub from: u64,
    /// How many.
    pub count: u64,
}

/// An item's fate at the sink.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
pub struct Seen {
    /// Its number.
    pub id: u64,
    /// The sink's finding.
    pub verdict: Verdict,
}

/// The state of an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// As it has to be.
    Right,
    /// Different from what it has to be.
    Wrong(String),
    /// It could not be read, for this reason, which names the dead worker.
    Lost(String),
}

/// "Let go of everything that you keep, and say what your process uses." The actor asks `others` first, so
/// that there is a link to each; the reply also names those that did not answer, with the reason.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (Usage, Vec<String>))]
pub struct Measure {
    /// The other actors.
    pub others: Vec<Address<Ping>>,
}

/// "Are you there?"
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
pub struct Ping;

/// Elements of an item's tensors.
pub fn length(id: u64) -> usize {
    match id % 32 {
        // Several pages, and a message body with its own kind of block.
        0 => 50_000,
        1 => 1,
        _ => 1 + (mix(id) % 3000) as usize,
    }
}

/// Returns element `index` of an item as it is made.
pub fn element(id: u64, index: usize) -> u32 {
    mix(id.wrapping_mul(0x1_0000_0001).wrapping_add(index as u64)) as u32
}

/// Returns an element as a stage changes it.
pub fn step(element: u32) -> u32 {
    element.rotate_left(5).wrapping_add(0x9e37_79b9)
}

fn is_host(stream: &DeviceStream) -> bool {
    stream.pool().device_id() == tensorpost::device::DeviceId::HOST
}

async fn measure(others: Vec<Address<Ping>>) -> (Usage, Vec<String>) {
    // Actors that are just being restarted are linked to at the next look.
    let answers = join_all(others.iter().map(|other| other.ask(Ping).timeout(WAIT_FOR_NEXT))).await;
    let silent = answers.into_iter().filter_map(Result::err).map(|error| error.to_string());
    (leaks(), silent.collect())
}

/// Makes items.
#[derive(Debug)]
pub struct Source {
    stream: DeviceStream,
    nexts: Vec<Address<Item>>,
}

impl Source {
    fn make(&self, id: u64) -> Result<Item, tensorpost::tensor::TensorError> {
        let elements = length(id);
        let made = if is_host(&self.stream) {
            let mut made = self.stream.empty(DType::U32, &[elements])?;
            let write = move |(to,): (&mut [u32],)| {
                if id.is_multiple_of(7) {
                    // Other workers wait for it, and may see its maker die.
                    std::thread::sleep(Duration::from_micros(300));
                }
                to.iter_mut().enumerate().for_each(|(index, to)| *to = element(id, index));
            };
            self.stream.run((made.of_mut::<u32>(),), write)?;
            made.freeze()
        } else {
            let content: Vec<_> = (0..elements).map(|index| element(id, index)).collect();
            self.stream.from_slice(&[elements], &content)?.freeze()
        };
        let work = self.stream.copy(&made)?.freeze();
        Ok(Item { id, made, work, steps: 0 })
    }
}

impl Actor for Source {
    type Context = Context<Self>;
}

impl RemoteActor for Source {
    type Args = Vec<Address<Item>>;

    fn create(nexts: Self::Args, env: &Env) -> anyhow::Result<Self> {
        Ok(Source { stream: env.stream(), nexts })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Emit>().message::<Measure>().message::<Ping>();
    }
}

impl Handler<Emit> for Source {
    type Result = ResponseFuture<usize>;

    fn handle(&mut self, Emit { from, count }: Emit, _: &mut Context<Self>) -> Self::Result {
        let sends: Vec<_> = (from..from + count)
            .filter_map(|id| {
                let item = self.make(id).ok()?;
                let next = &self.nexts[(id % self.nexts.len() as u64) as usize];
                Some(next.send(item).timeout(WAIT_FOR_NEXT))
            })
            .collect();
        Box::pin(async move { join_all(sends).await.into_iter().filter(Result::is_ok).count() })
    }
}

impl Handler<Measure> for Source {
    type Result = ResponseFuture<(Usage, Vec<String>)>;

    fn handle(&mut self, Measure { others }: Measure, _: &mut Context<Self>) -> Self::Result {
        Box::pin(measure(others))
    }
}

impl Handler<Ping> for Source {
    type Result = ();

    fn handle(&mut self, _: Ping, _: &mut Context<Self>) {}
}

/// Passes items on. It computes, or it only forwards items and keeps some for a while.
#[derive(Debug)]
pub struct Stage {
    stream: DeviceStream,
    nexts: Vec<Address<Item>>,
    computes: bool,
    kept: VecDeque<Tensor>,
}

impl Actor for Stage {
    type Context = Context<Self>;
}

impl RemoteActor for Stage {
    /// The receivers, and whether the actor computes.
    type Args = (Vec<Address<Item>>, bool);

    fn create((nexts, computes): Self::Args, env: &Env) -> anyhow::Result<Self> {
        Ok(Stage { stream: env.stream(), nexts, computes, kept: VecDeque::new() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Item>().message::<Measure>().message::<Ping>();
    }
}

impl Stage {
    fn compute(&self, item: Item) -> Result<Item, tensorpost::tensor::TensorError> {
        let Item { id, made, work, steps } = item;
        if !is_host(&self.stream) {
            let work = self.stream.copy(&work)?.freeze();
            return Ok(Item { id, made, work, steps });
        }
        let steps = steps + 1;
        let work = match work.into_mut(&self.stream) {
            Ok(mut work) if id.is_multiple_of(2) => {
                let all = |(to,): (&mut [u32],)| to.iter_mut().for_each(|to| *to = step(*to));
                self.stream.run((work.of_mut::<u32>(),), all)?;
                work.freeze()
            }
            other => {
                let work = other.map_or_else(|refused| refused.tensor, TensorMut::freeze);
                let mut next = self.stream.empty(DType::U32, work.shape())?;
                let all = |(from, to): (&[u32], &mut [u32])| {
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = step(*from));
                };
                self.stream.run((work.of::<u32>(), next.of_mut::<u32>()), all)?;
                next.freeze()
            }
        };
        Ok(Item { id, made, work, steps })
    }
}

impl Handler<Item> for Stage {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, item: Item, _: &mut Context<Self>) -> Self::Result {
        let id = item.id;
        if !self.computes {
            self.kept.push_back(item.made.clone());
            if self.kept.len() > 4 {
                self.kept.pop_front();
            }
        }
        let item = if self.computes { self.compute(item) } else { Ok(item) };
        // A stage cannot compute with data that depends on the dead.
        let Ok(item) = item else { return Box::pin(async {}) };
        let next = &self.nexts[(id / 2 % self.nexts.len() as u64) as usize];
        let sent = next.send(item).timeout(WAIT_FOR_NEXT);
        Box::pin(async move { drop(sent.await) })
    }
}

impl Handler<Measure> for Stage {
    type Result = ResponseFuture<(Usage, Vec<String>)>;

    fn handle(&mut self, Measure { others }: Measure, _: &mut Context<Self>) -> Self::Result {
        self.kept.clear();
        Box::pin(measure(others))
    }
}

impl Handler<Ping> for Stage {
    type Result = ();

    fn handle(&mut self, _: Ping, _: &mut Context<Self>) {}
}

/// Looks at every element of every item.
#[derive(Debug)]
pub struct Sink {
    stream: DeviceStream,
    to: Address<Seen>,
}

impl Actor for Sink {
    type Context = Context<Self>;
}

impl RemoteActor for Sink {
    type Args = Address<Seen>;

    fn create(to: Self::Args, env: &Env) -> anyhow::Result<Self> {
        Ok(Sink { stream: env.stream(), to })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Item>().message::<Measure>().message::<Ping>();
    }
}

impl Sink {
    fn look(&self, item: &Item) -> Verdict {
        let read = |tensor: &Tensor| {
            if is_host(&self.stream) { tensor.to_vec::<u32>() } else { self.stream.download::<u32>(tensor) }
        };
        let contents = [("made", &item.made, 0), ("work", &item.work, item.steps)];
        for (name, tensor, steps) in contents {
            let found = match read(tensor) {
                Ok(found) => found,
                Err(error) => return Verdict::Lost(error.to_string()),
            };
            if found.len() != length(item.id) {
                return Verdict::Wrong(format!("{name}: {} elements", found.len()));
            }
            for (index, found) in found.into_iter().enumerate() {
                let wanted = (0..steps).fold(element(item.id, index), |element, _| step(element));
                if found != wanted {
                    let owner = tensor.lease().owner();
                    return Verdict::Wrong(format!(
                        "{name}, of {owner}, {steps} steps: element {index} is {found:#x} and has to be {wanted:#x}"
                    ));
                }
            }
        }
        Verdict::Right
    }
}

impl Handler<Item> for Sink {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, item: Item, _: &mut Context<Self>) -> Self::Result {
        let sent = self.to.send(Seen { id: item.id, verdict: self.look(&item) }).timeout(WAIT_FOR_NEXT);
        Box::pin(async move { drop(sent.await) })
    }
}

impl Handler<Measure> for Sink {
    type Result = ResponseFuture<(Usage, Vec<String>)>;

    fn handle(&mut self, Measure { others }: Measure, _: &mut Context<Self>) -> Self::Result {
        Box::pin(measure(others))
    }
}

impl Handler<Ping> for Sink {
    type Result = ();

    fn handle(&mut self, _: Ping, _: &mut Context<Self>) {}
}
