//! The parts in the workers: a source, a stage and a sink. The pipeline builder and the actors that are wired
//! by hand call the same ones.

use std::time::{Duration, Instant};

use tensorpost::prelude::*;

/// Bytes of the tensor in each item.
const BYTES: usize = 64 << 10;

/// The items of the flow.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
pub(crate) struct Frame {
    #[tensor(dtype = u8, shape = [_])]
    data: Tensor,
}

/// How many items the source makes, and how long it works on each, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Make {
    pub(crate) count: u64,
    pub(crate) micros: u64,
}

/// The items that the sink measures, how long it works on each, in microseconds, and the receiver of its
/// report.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Measure {
    pub(crate) micros: u64,
    /// Items that come before the time is taken.
    pub(crate) warmup: u64,
    pub(crate) count: u64,
    pub(crate) to: Address<Seen>,
}

/// A sink's observations, by the clock of [`now`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, GpuMessage)]
pub(crate) struct Seen {
    /// When the first item came.
    pub(crate) first: u64,
    /// When the last item of the warm-up was done.
    pub(crate) from: u64,
    /// When the last item was done.
    pub(crate) to: u64,
}

/// Returns the nanoseconds of the clock that all processes of the machine share.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Keeps the core busy.
fn spin(micros: u64) {
    let (since, work) = (Instant::now(), Duration::from_micros(micros));
    while since.elapsed() < work {
        std::hint::spin_loop();
    }
}

pub(crate) struct Frames {
    stream: DeviceStream,
    make: Make,
}

impl Source for Frames {
    type Args = Make;
    type Out = Frame;

    fn create(make: Make, env: &Env) -> anyhow::Result<Self> {
        Ok(Frames { stream: env.stream(), make })
    }

    fn next(&mut self) -> anyhow::Result<Option<Frame>> {
        if self.make.count == 0 {
            return Ok(None);
        }
        self.make.count -= 1;
        spin(self.make.micros);
        Ok(Some(Frame { data: self.stream.empty(DType::U8, &[BYTES])?.freeze() }))
    }
}

pub(crate) struct Busy {
    micros: u64,
}

impl Busy {
    /// Works on one item, and returns it unchanged.
    pub(crate) fn work(&self, frame: Frame) -> Frame {
        spin(self.micros);
        frame
    }
}

impl Stage for Busy {
    type Args = u64;
    type In = Frame;
    type Out = Frame;

    fn create(micros: u64, _: &Env) -> anyhow::Result<Self> {
        Ok(Busy { micros })
    }

    fn process(&mut self, frame: Frame, out: &mut Out<Frame>) -> anyhow::Result<()> {
        out.emit(self.work(frame));
        Ok(())
    }
}

pub(crate) struct Clock {
    measure: Measure,
    seen: u64,
    first: u64,
    from: u64,
}

impl Sink for Clock {
    type Args = Measure;
    type In = Frame;

    fn create(measure: Measure, _: &Env) -> anyhow::Result<Self> {
        Ok(Clock { measure, seen: 0, first: 0, from: 0 })
    }

    fn consume(&mut self, frame: Frame) -> anyhow::Result<()> {
        anyhow::ensure!(frame.data.len() == BYTES, "item {} is not whole", self.seen);
        if self.seen == 0 {
            self.first = now();
        }
        spin(self.measure.micros);
        drop(frame);
        self.seen += 1;
        if self.seen == self.measure.warmup {
            self.from = now();
        }
        if self.seen == self.measure.count {
            let seen = Seen { first: self.first, from: self.from, to: now() };
            self.measure.to.try_send(seen).map_err(|error| error.reason)?;
        }
        Ok(())
    }
}
