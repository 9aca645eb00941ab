//! Measures the time of an item through a Rust stage, a PyTorch stage and a Rust stage, each with a kernel
//! for it, and with the kernel of only one of them:
//! `peer times INTERPRETER FOLDER DEVICE SHARING [ITEMS [MICROSECONDS]]`. The PyTorch stage is in
//! `tests/gpu_stages.py`, which is in the folder.
//!
//! Prints four lines with microseconds per item, and one with the ratio of all three to the slowest alone.

#![expect(unsafe_code, reason = "launches kernels, whose bounds only their text shows")]

use std::time::{Duration, Instant};

use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use tensorpost::actor::Python;
use tensorpost::node::Sharing;
use tensorpost::prelude::*;
use tensorpost_core::__private::anyhow::{Context as _, Result, bail, ensure};

use crate::WAIT_FOR_ANSWER;

/// The benches' kernels: they keep the GPU busy for a time first.
const PTX: &str = include_str!("../../../../benches/src/bin/gpu_bench/kernels.ptx");
/// Elements of each tensor: 64 KiB, so that the kernels fit on a GPU side by side.
const ELEMENTS: usize = 16 << 10;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(portable)]
struct Frame {
    #[tensor(dtype = f32)]
    data: Tensor,
    /// The value to which the earlier kernels have set the data.
    value: f32,
}

/// When the sink's stream had finished the last item of the warm-up, and the last item.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, GpuMessage)]
struct Times {
    micros: f64,
}

/// The kernels of one process.
enum Kernels {
    Host,
    Cuda { fill: CudaFunction, bump: CudaFunction },
}

fn grid() -> LaunchConfig {
    LaunchConfig { grid_dim: ((ELEMENTS / 256) as u32, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 }
}

fn occupy(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

impl Kernels {
    fn load(stream: &DeviceStream) -> Result<Self> {
        if stream.kind() == DeviceKind::Host {
            return Ok(Kernels::Host);
        }
        let module = stream.cuda_context()?.load_module(Ptx::from_src(PTX))?;
        Ok(Kernels::Cuda { fill: module.load_function("fill")?, bump: module.load_function("bump")? })
    }

    fn fill(&self, stream: &DeviceStream, value: f32, busy: Duration) -> Result<Tensor> {
        let mut out = stream.empty(DType::F32, &[ELEMENTS])?;
        let (n, nanos) = (ELEMENTS as u64, busy.as_nanos() as u64);
        match self {
            Kernels::Host => stream.run((out.of_mut::<f32>(),), move |(out,)| {
                occupy(busy);
                out.fill(value);
            })?,
            Kernels::Cuda { fill, .. } => {
                let mut launch = stream.launch_builder(fill)?;
                launch.arg(&mut out).arg(&value).arg(&n).arg(&nanos);
                // SAFETY: the arguments match the kernel's, in order; it writes `n` floats, and the tensor
                // has as many.
                unsafe { launch.launch(grid()) }?;
            }
        }
        Ok(out.freeze())
    }

    fn bump(&self, stream: &DeviceStream, input: &Tensor, busy: Duration) -> Result<Tensor> {
        ensure!(input.is_contiguous() && input.len() == ELEMENTS, "{input:?}");
        let mut out = stream.empty(DType::F32, &[ELEMENTS])?;
        let (n, nanos) = (ELEMENTS as u64, busy.as_nanos() as u64);
        match self {
            Kernels::Host => stream.run((input.of::<f32>(), out.of_mut::<f32>()), move |(input, out)| {
                occupy(busy);
                for (out, input) in out.iter_mut().zip(input) {
                    *out = input + 1.0;
                }
            })?,
            Kernels::Cuda { bump, .. } => {
                let mut launch = stream.launch_builder(bump)?;
                launch.arg(input).arg(&mut out).arg(&n).arg(&nanos);
                // SAFETY: as above; both are packed and have `n` floats.
                unsafe { launch.launch(grid()) }?;
            }
        }
        Ok(out.freeze())
    }
}

/// The number of items, and how long a kernel is busy before it writes each.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Make {
    count: u64,
    micros: u64,
}

struct Fresh {
    stream: DeviceStream,
    kernels: Kernels,
    make: Make,
    made: u64,
}

impl Source for Fresh {
    type Args = Make;
    type Out = Frame;

    fn create(make: Make, env: &Env) -> Result<Self> {
        let stream = env.stream();
        Ok(Fresh { kernels: Kernels::load(&stream)?, stream, make, made: 0 })
    }

    fn next(&mut self) -> Result<Option<Frame>> {
        if self.made == self.make.count {
            return Ok(None);
        }
        self.made += 1;
        let value = (self.made % 1000) as f32;
        let data = self.kernels.fill(&self.stream, value, Duration::from_micros(self.make.micros))?;
        Ok(Some(Frame { data, value }))
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Measure {
    warmup: u64,
    count: u64,
    micros: Option<u64>,
    to: Address<Times>,
}

struct Last {
    stream: DeviceStream,
    kernels: Kernels,
    measure: Measure,
    seen: u64,
    from: Instant,
}

impl Sink for Last {
    type Args = Measure;
    type In = Frame;

    fn create(measure: Measure, env: &Env) -> Result<Self> {
        let stream = env.stream();
        Ok(Last { kernels: Kernels::load(&stream)?, stream, measure, seen: 0, from: Instant::now() })
    }

    fn consume(&mut self, mut frame: Frame) -> Result<()> {
        if let Some(micros) = self.measure.micros {
            frame.data = self.kernels.bump(&self.stream, &frame.data, Duration::from_micros(micros))?;
            frame.value += 1.0;
        }
        self.seen += 1;
        let Measure { warmup, count, ref to, .. } = self.measure;
        if self.seen != warmup && self.seen != count {
            return Ok(());
        }
        let found = self.stream.download::<f32>(&frame.data)?;
        let value = frame.value;
        ensure!(found.iter().all(|found| *found == value), "item {} is not {value}: {}", self.seen, found[0]);
        if self.seen == warmup {
            self.from = Instant::now();
        } else {
            let micros = self.from.elapsed().as_secs_f64() * 1e6 / (count - warmup) as f64;
            to.try_send(Times { micros }).map_err(|error| error.reason)?;
        }
        Ok(())
    }
}

struct Given {
    interpreter: String,
    folder: String,
    device: Device,
    count: u64,
    micros: u64,
}

impl Given {
    /// Returns the microseconds per item after the first tenth; `works` says which of the three stages have
    /// kernels.
    fn measure(&self, node: &Node, works: [bool; 3]) -> Result<f64> {
        let [source, python, sink] = works.map(|works| works.then_some(self.micros));
        let (to, mut times) = node.channel::<Times>()?;
        let measure = Measure { warmup: (self.count / 10).max(1), count: self.count, micros: sink, to };
        let make = Make { count: self.count, micros: source.unwrap_or_default() };
        let stage = Python::stage("gpu_stages:Bump").interpreter(&self.interpreter).path(&self.folder);
        let flow = Pipeline::new("times").source::<Fresh>(make).on(self.device.clone());
        let flow = flow.python::<Frame>(stage.args((python,))).on(self.device.clone());
        let pipeline = flow.sink::<Last>(measure).on(self.device.clone()).pipeline();
        node.run_pipeline(&pipeline)?.wait()?;
        let told = node.block_on(async { tokio::time::timeout(WAIT_FOR_ANSWER, times.recv()).await });
        Ok(told.context("the sink told no times")??.micros)
    }
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let [interpreter, folder, device, sharing, rest @ ..] = arguments else {
        bail!("peer times INTERPRETER FOLDER DEVICE SHARING [ITEMS [MICROSECONDS]]");
    };
    let sharing = match sharing.as_str() {
        "isolated" => Sharing::Isolated,
        "mps" => Sharing::Mps,
        other => bail!("{other} is neither `isolated` nor `mps`"),
    };
    let node = Node::builder().sharing(sharing).console(false).start()?;
    let number = |at: usize, unless: u64| rest.get(at).map_or(Ok(unless), |text| text.parse());
    let given = Given {
        interpreter: interpreter.clone(),
        folder: folder.clone(),
        device: device.parse()?,
        count: number(0, 5000)?,
        micros: number(1, 100)?,
    };
    let alone =
        [("source", [true, false, false]), ("pytorch", [false, true, false]), ("sink", [false, false, true])];
    let mut slowest = 0.0_f64;
    for (what, works) in alone {
        let micros = given.measure(&node, works)?;
        println!("stages.{what}_alone {micros:.2} us an item");
        slowest = slowest.max(micros);
    }
    let all = given.measure(&node, [true; 3])?;
    println!("stages.all {all:.2} us an item\nstages.all_over_slowest {:.3}", all / slowest);
    node.shutdown(WAIT_FOR_ANSWER)?;
    Ok(())
}
