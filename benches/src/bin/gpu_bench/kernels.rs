//! The two kernels of the benches, on a GPU as PTX and on the host as closures, under one name.

#![expect(unsafe_code, reason = "launches kernels, whose bounds only their text shows")]

use std::time::{Duration, Instant};

use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use tensorpost::prelude::*;

pub(crate) const PTX: &str = include_str!("kernels.ptx");

/// Threads of a block, and most blocks of a launch: enough to fill any GPU.
const BLOCK: u32 = 256;
const MOST_BLOCKS: u32 = 2112;

/// The kernels of one device, loaded.
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
                // SAFETY: the arguments are the kernel's, in its order; it writes `n` floats from the tensor's first,
                // which is packed and has as many.
                unsafe { launch.launch(grid(n)) }?;
            }
        }
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

fn grid(n: u64) -> LaunchConfig {
    let blocks = n.div_ceil(u64::from(BLOCK)).clamp(1, u64::from(MOST_BLOCKS)) as u32;
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 }
}

/// What a busy kernel is on the host: its stream's thread at work.
fn occupy(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}
