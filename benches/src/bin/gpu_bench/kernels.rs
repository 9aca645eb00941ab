//! The two kernels of the benches, on a GPU as PTX and on the host as closures, under one name.

#![expect(unsafe_code, reason = "launches kernels, whose bounds only their text shows")]

use std::time::{Duration, Instant};

use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use tensorpost::prelude::*;
use tensorpost::tensor::LaunchGraph;

pub(crate) const PTX: &str = include_str!("kernels.ptx");

/// Threads of a block, and the most blocks of a launch: enough to fill any GPU.
const BLOCK: u32 = 256;
const MOST_BLOCKS: u32 = 2112;

/// The loaded kernels of one device.
pub(crate) enum Kernels {
    Host,
    Cuda { fill: CudaFunction, bump: CudaFunction },
}

impl Kernels {
    /// Loads them, so that no later launch does.
    pub(crate) fn load(stream: &DeviceStream) -> anyhow::Result<Self> {
        if stream.kind() == DeviceKind::Host {
            return Ok(Kernels::Host);
        }
        let module = stream.cuda_context()?.load_module(Ptx::from_src(PTX))?;
        Ok(Kernels::Cuda { fill: module.load_function("fill")?, bump: module.load_function("bump")? })
    }

    /// Keeps the device busy for `busy`, then writes `value` into every element.
    pub(crate) fn fill(
        &self,
        stream: &DeviceStream,
        out: &mut TensorMut,
        value: f32,
        busy: Duration,
    ) -> anyhow::Result<()> {
        let (n, nanos) = (out.len() as u64, busy.as_nanos() as u64);
        match self {
            Kernels::Host => stream.run((out.of_mut::<f32>(),), move |(out,)| {
                occupy(busy);
                out.fill(value);
            })?,
            Kernels::Cuda { fill, .. } => {
                let mut launch = stream.launch_builder(fill)?;
                launch.arg(out).arg(&value).arg(&n).arg(&nanos);
                // SAFETY: the arguments are the kernel's, in its order; it writes `n` floats from the
                // tensor's first, which is packed and has as many.
                unsafe { launch.launch(grid(n)) }?;
            }
        }
        Ok(())
    }

    /// Writes every element of `input` plus `number`, on the host.
    fn bump_by(
        &self,
        stream: &DeviceStream,
        input: &Tensor,
        out: &mut TensorMut,
        number: f32,
    ) -> anyhow::Result<()> {
        stream.run((input.of::<f32>(), out.of_mut::<f32>()), move |(input, out)| {
            for (out, input) in out.iter_mut().zip(input) {
                *out = input + number;
            }
        })?;
        Ok(())
    }

    /// Keeps the device busy for `busy`, then writes every element of `input` plus one.
    pub(crate) fn bump(
        &self,
        stream: &DeviceStream,
        input: &Tensor,
        out: &mut TensorMut,
        busy: Duration,
    ) -> anyhow::Result<()> {
        let (n, nanos) = (input.len().min(out.len()) as u64, busy.as_nanos() as u64);
        match self {
            Kernels::Host => stream.run((input.of::<f32>(), out.of_mut::<f32>()), move |(input, out)| {
                occupy(busy);
                for (out, input) in out.iter_mut().zip(input) {
                    *out = input + 1.0;
                }
            })?,
            Kernels::Cuda { bump, .. } => {
                let mut launch = stream.launch_builder(bump)?;
                launch.arg(input).arg(out).arg(&n).arg(&nanos);
                // SAFETY: as above; `n` is the shorter of the two, and both are packed.
                unsafe { launch.launch(grid(n)) }?;
            }
        }
        Ok(())
    }
}

/// Kernels in a chain: as many as in a stage that the host launches more slowly than the GPU runs them.
pub(crate) const CHAIN: usize = 20;
const LAST: usize = CHAIN - 1;
const _: () = assert!(LAST % 2 == 1);

/// How the kernels of a chain are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Launches {
    /// One by one.
    Single,
    /// As one graph, with new arguments each time.
    Graph,
}

/// A stage of [`CHAIN`] small kernels, to and fro between two tensors of its own, whose memory it keeps.
pub(crate) struct Chain {
    graph: LaunchGraph,
    between: [TensorMut; 2],
}

impl Chain {
    pub(crate) fn new(stream: &DeviceStream, elements: usize) -> Result<Self, TensorError> {
        let between = || stream.empty(DType::F32, &[elements]);
        Ok(Chain { graph: stream.launch_graph(), between: [between()?, between()?] })
    }

    /// Writes every element of `input` plus [`CHAIN`] to `out`, which has as many elements.
    pub(crate) fn run(
        &mut self,
        kernels: &Kernels,
        stream: &DeviceStream,
        launches: Launches,
        input: &Tensor,
        out: &mut TensorMut,
    ) -> anyhow::Result<()> {
        match (kernels, launches) {
            (Kernels::Cuda { bump, .. }, Launches::Graph) => self.as_graph(bump, input, out),
            _ => self.one_by_one(kernels, stream, input, out),
        }
    }

    fn as_graph(&mut self, bump: &CudaFunction, input: &Tensor, out: &mut TensorMut) -> anyhow::Result<()> {
        let (n, nanos) = (input.len().min(out.len()) as u64, 0_u64);
        let [even, odd] = &mut self.between;
        let mut pass = self.graph.begin();
        let (mut from, between) = (pass.reads(input)?, [pass.writes(even)?, pass.writes(odd)?]);
        let out = pass.writes(out)?;
        for number in 0..CHAIN {
            let to = if number + 1 == CHAIN { out } else { between[number % 2] };
            let mut launch = pass.kernel(bump)?;
            launch.arg(from).arg(to).arg(&n).arg(&nanos);
            // SAFETY: as in `bump`; all tensors have `n` elements.
            unsafe { launch.launch(grid(n))? };
            from = to;
        }
        Ok(pass.finish()?)
    }

    fn one_by_one(
        &mut self,
        kernels: &Kernels,
        stream: &DeviceStream,
        input: &Tensor,
        out: &mut TensorMut,
    ) -> anyhow::Result<()> {
        let Kernels::Cuda { bump, .. } = kernels else {
            return kernels.bump_by(stream, input, out, CHAIN as f32);
        };
        let (n, nanos) = (input.len().min(out.len()) as u64, 0_u64);
        let [even, odd] = &mut self.between;
        for number in 0..CHAIN {
            let mut launch = stream.launch_builder(bump)?;
            // The kernel before the last has an even number, so it wrote `even`.
            match number {
                0 => launch.arg(input).arg(&mut *even),
                LAST => launch.arg(&mut *even).arg(&mut *out),
                number if number % 2 == 1 => launch.arg(&mut *even).arg(&mut *odd),
                _ => launch.arg(&mut *odd).arg(&mut *even),
            };
            launch.arg(&n).arg(&nanos);
            // SAFETY: as above.
            unsafe { launch.launch(grid(n)) }?;
        }
        Ok(())
    }
}

fn grid(n: u64) -> LaunchConfig {
    let blocks = n.div_ceil(u64::from(BLOCK)).clamp(1, u64::from(MOST_BLOCKS)) as u32;
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 }
}

/// Imitates a busy kernel on the host: its stream's thread works.
fn occupy(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}
