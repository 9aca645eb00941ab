//! Runs four processes in a row by the pipeline builder, each with a kernel for every item, and each of them
//! alone.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tensorpost::prelude::*;

use crate::WAIT_FOR_ANSWER;
use crate::kernels::Kernels;
use crate::outcome::now;

/// Elements of the tensor in each item: 64 KiB, so that four kernels fit on a GPU side by side.
const ELEMENTS: usize = 16 << 10;
/// Processes.
pub(crate) const PLACES: usize = 4;

/// The items of the flow.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
pub(crate) struct Frame {
    #[tensor(dtype = f32, shape = [_])]
    data: Tensor,
    /// The value that the kernels before have written.
    value: f32,
}

/// When the sink's stream had finished the last item of the warm-up, and the last of all; see [`now`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, GpuMessage)]
pub(crate) struct Times {
    from: u64,
    to: u64,
}

/// The kernels of one process: one that takes this long on each item, or none.
struct Work {
    stream: DeviceStream,
    kernels: Kernels,
    busy: Option<Duration>,
}

impl Work {
    fn new(micros: Option<u64>, env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        Ok(Work { kernels: Kernels::load(&stream)?, stream, busy: micros.map(Duration::from_micros) })
    }

    /// Makes a fresh item from this one, by the kernel; without a kernel, returns the item itself.
    fn on(&self, frame: Frame) -> anyhow::Result<Frame> {
        let Some(busy) = self.busy else { return Ok(frame) };
        let mut out = self.stream.empty(DType::F32, frame.data.shape())?;
        self.kernels.bump(&self.stream, &frame.data, &mut out, busy)?;
        Ok(Frame { data: out.freeze(), value: frame.value + 1.0 })
    }
}

/// How many items, and for how many microseconds a kernel is busy before it writes each.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Make {
    count: u64,
    micros: u64,
}

pub(crate) struct Fresh {
    work: Work,
    left: u64,
}

impl Source for Fresh {
    type Args = Make;
    type Out = Frame;

    fn create(make: Make, env: &Env) -> anyhow::Result<Self> {
        Ok(Fresh { work: Work::new(Some(make.micros), env)?, left: make.count })
    }

    fn next(&mut self) -> anyhow::Result<Option<Frame>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let Work { stream, kernels, busy } = &self.work;
        let mut data = stream.empty(DType::F32, &[ELEMENTS])?;
        let value = (self.left % 1000) as f32;
        kernels.fill(stream, &mut data, value, busy.unwrap_or_default())?;
        Ok(Some(Frame { data: data.freeze(), value }))
    }
}

pub(crate) struct Bump {
    work: Work,
}

impl Stage for Bump {
    type Args = Option<u64>;
    type In = Frame;
    type Out = Frame;

    fn create(micros: Option<u64>, env: &Env) -> anyhow::Result<Self> {
        Ok(Bump { work: Work::new(micros, env)? })
    }

    fn process(&mut self, frame: Frame, out: &mut Out<Frame>) -> anyhow::Result<()> {
        out.emit(self.work.on(frame)?);
        Ok(())
    }
}

/// The items that the sink measures, its own work, and the receiver of its report.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Measure {
    warmup: u64,
    count: u64,
    micros: Option<u64>,
    to: Address<Times>,
}

pub(crate) struct Last {
    work: Work,
    measure: Measure,
    seen: u64,
    from: u64,
}

impl Sink for Last {
    type Args = Measure;
    type In = Frame;

    fn create(measure: Measure, env: &Env) -> anyhow::Result<Self> {
        Ok(Last { work: Work::new(measure.micros, env)?, measure, seen: 0, from: 0 })
    }

    fn consume(&mut self, frame: Frame) -> anyhow::Result<()> {
        let frame = self.work.on(frame)?;
        self.seen += 1;
        if self.seen != self.measure.warmup && self.seen != self.measure.count {
            return Ok(());
        }
        self.work.stream.synchronize()?;
        frame.data.wait(None)?;
        let time = now();
        let found = self.work.stream.download::<f32>(&frame.data)?;
        let value = frame.value;
        anyhow::ensure!(found.iter().all(|found| *found == value), "item {} is not {value}", self.seen);
        if self.seen == self.measure.warmup {
            self.from = time;
        } else {
            self.measure.to.try_send(Times { from: self.from, to: time }).map_err(|error| error.reason)?;
        }
        Ok(())
    }
}

/// Sends `count` items through four processes; `works` says which of them work on each. Returns the
/// microseconds for each item after the first tenth.
pub(crate) fn run(
    node: &Node,
    device: &Device,
    count: u64,
    micros: u64,
    works: [bool; PLACES],
) -> anyhow::Result<f64> {
    let [source, second, third, sink] = works.map(|works| works.then_some(micros));
    let (to, mut times) = node.channel::<Times>()?;
    let warmup = (count / 10).max(1);
    let measure = Measure { warmup, count, micros: sink, to };
    let make = Make { count, micros: source.unwrap_or_default() };
    let flow = Pipeline::new("four").source::<Fresh>(make).on(device.clone());
    let flow = flow.stage::<Bump>(second).named("second").on(device.clone());
    let flow = flow.stage::<Bump>(third).named("third").on(device.clone());
    let pipeline = flow.sink::<Last>(measure).on(device.clone()).pipeline();
    let start = Instant::now();
    node.run_pipeline(&pipeline)?.wait()?;
    let told = node.block_on(async move { tokio::time::timeout(WAIT_FOR_ANSWER, times.recv()).await });
    let times = told.with_context(|| format!("no times within {WAIT_FOR_ANSWER:?}"))??;
    let item = times.to.saturating_sub(times.from) as f64 / 1e3 / (count - warmup).max(1) as f64;
    eprintln!(
        "# {works:?}: {item:.2} us, {:.1} s with the start of its workers",
        start.elapsed().as_secs_f64()
    );
    Ok(item)
}
