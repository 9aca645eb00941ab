//! The launches of a stage of many small kernels, each item with a satisfied wait and a clock write. They go
//! one by one, and as one graph whose arguments are all set anew for each item. It measures the driver alone.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::time::Instant;

use cudarc::driver::sys;

use super::raw::{self, Gpu};
use crate::kernels::CHAIN;
use crate::report::median;

/// The items of a measurement, and the number of measurements of each kind.
const ITEMS: u64 = 2_000;
const RUNS: usize = 5;

/// Prints the microseconds an item until the GPU has finished, as lines of a name and a number. Nobody else
/// uses `clock`.
pub(super) fn run(gpu: &Gpu, ordinal: usize, clock: u64) -> anyhow::Result<()> {
    let mut chain = Chain::new(gpu, ordinal, clock)?;
    let mut times = [Vec::new(), Vec::new()];
    let mut value = 0;
    for _ in 0..=RUNS {
        for (is_graph, times) in [false, true].into_iter().zip(&mut times) {
            let start = Instant::now();
            for _ in 0..ITEMS {
                value += 1;
                if is_graph { chain.launch(value)? } else { chain.one_by_one(value)? }
            }
            gpu.synchronize()?;
            times.push(start.elapsed().as_secs_f64() * 1e6 / ITEMS as f64);
        }
    }
    for (name, times) in ["chain.single", "chain.graph"].into_iter().zip(&mut times) {
        // The first measurement warms up.
        println!("{name} {}", median(&mut times[1..]));
    }
    Ok(())
}

struct Chain<'g> {
    gpu: &'g Gpu,
    clock: u64,
    context: sys::CUcontext,
    exec: sys::CUgraphExec,
    kernels: Vec<sys::CUgraphNode>,
    wait: sys::CUgraphNode,
    write: sys::CUgraphNode,
    memory: [u64; 2],
}

/// Adds a node behind the last.
fn behind(
    last: &mut Option<sys::CUgraphNode>,
    add: impl FnOnce(*mut sys::CUgraphNode, *const sys::CUgraphNode, usize) -> sys::CUresult,
) -> anyhow::Result<sys::CUgraphNode> {
    let mut node = null_mut();
    let before = last.as_ref().map_or((null(), 0), |node| (std::ptr::from_ref(node), 1));
    add(&mut node, before.0, before.1).result()?;
    *last = Some(node);
    Ok(node)
}

impl<'g> Chain<'g> {
    fn new(gpu: &'g Gpu, ordinal: usize, clock: u64) -> anyhow::Result<Self> {
        let context = raw::context(ordinal)?;
        let memory = [gpu.more_memory()?, gpu.more_memory()?];
        let mut chain = Chain {
            gpu,
            clock,
            context,
            exec: null_mut(),
            kernels: Vec::new(),
            wait: null_mut(),
            write: null_mut(),
            memory,
        };
        let mut graph = null_mut();
        // SAFETY: the out-pointer is live; there are no flags.
        unsafe { sys::cuGraphCreate(&mut graph, 0).result()? };
        let mut last = None;
        let mut op = wait_op(gpu.clock_address(clock), 0);
        let wait = chain.batch(&mut op);
        // SAFETY: graph and context live; the operation is copied.
        chain.wait = behind(&mut last, |out, nodes, count| unsafe {
            sys::cuGraphAddBatchMemOpNode(out, graph, nodes, count, &wait)
        })?;
        for _ in 0..CHAIN {
            let node = gpu.with_arguments(memory[0], |arguments| {
                let kernel = chain.kernel(arguments);
                // SAFETY: the arguments are the kernel's, and copied.
                behind(&mut last, |out, nodes, count| unsafe {
                    sys::cuGraphAddKernelNode_v2(out, graph, nodes, count, &kernel)
                })
            })?;
            chain.kernels.push(node);
        }
        let mut op = write_op(gpu.clock_address(clock), 0);
        let write = chain.batch(&mut op);
        // SAFETY: as above.
        chain.write = behind(&mut last, |out, nodes, count| unsafe {
            sys::cuGraphAddBatchMemOpNode(out, graph, nodes, count, &write)
        })?;
        // SAFETY: as above.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut chain.exec, graph, 0).result()? };
        Ok(chain)
    }

    fn batch(&self, op: &mut sys::CUstreamBatchMemOpParams) -> sys::CUDA_BATCH_MEM_OP_NODE_PARAMS {
        sys::CUDA_BATCH_MEM_OP_NODE_PARAMS { ctx: self.context, count: 1, paramArray: op, flags: 0 }
    }

    fn kernel(&self, arguments: &mut [*mut c_void; 4]) -> sys::CUDA_KERNEL_NODE_PARAMS {
        sys::CUDA_KERNEL_NODE_PARAMS {
            func: self.gpu.kernel(),
            gridDimX: 4,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 256,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: arguments.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: self.context,
        }
    }

    /// Returns the memory that each item's kernels write: a different place than for the item before.
    fn memory(&self, value: u64) -> u64 {
        self.memory[(value % 2) as usize]
    }

    fn one_by_one(&self, value: u64) -> anyhow::Result<()> {
        self.gpu.wait(self.clock, value - 1)?;
        for _ in 0..CHAIN {
            self.gpu.launch_at(self.memory(value))?;
        }
        self.gpu.write(self.clock, value)
    }

    fn launch(&mut self, value: u64) -> anyhow::Result<()> {
        let mut op = wait_op(self.gpu.clock_address(self.clock), value - 1);
        let wait = self.batch(&mut op);
        // SAFETY: the handles live, and the operation is copied.
        unsafe { sys::cuGraphExecBatchMemOpNodeSetParams(self.exec, self.wait, &wait).result()? };
        self.gpu.with_arguments(self.memory(value), |arguments| {
            for &node in &self.kernels {
                let kernel = self.kernel(arguments);
                // SAFETY: the arguments are the kernel's, and copied.
                unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.exec, node, &kernel).result()? };
            }
            anyhow::Ok(())
        })?;
        let mut op = write_op(self.gpu.clock_address(self.clock), value);
        let write = self.batch(&mut op);
        // SAFETY: as above; the memory that the kernels write is never freed.
        unsafe {
            sys::cuGraphExecBatchMemOpNodeSetParams(self.exec, self.write, &write).result()?;
            sys::cuGraphLaunch(self.exec, self.gpu.stream()).result()?;
        }
        Ok(())
    }
}

/// Returns the driver's union as its six words: operation, address, value, flags.
fn op(kind: sys::CUstreamBatchMemOpType, address: u64, value: u64) -> sys::CUstreamBatchMemOpParams {
    sys::CUstreamBatchMemOpParams { pad: [kind as u64, address, value, 0, 0, 0] }
}

fn wait_op(address: u64, value: u64) -> sys::CUstreamBatchMemOpParams {
    // Flags 0 mean that it waits until the value is greater or equal.
    op(sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value)
}

fn write_op(address: u64, value: u64) -> sys::CUstreamBatchMemOpParams {
    op(sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value)
}
