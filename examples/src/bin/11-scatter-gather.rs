//! One result, four writers: each worker adds to columns of its own, in place, and the table is whole again
//! without a copy.
//!
//! `--device cuda:0` does the same with a CUDA kernel; needs an NVIDIA GPU with its driver and NVRTC.

#![expect(unsafe_code, reason = "a kernel launch is a call into code that Rust cannot check")]

use std::sync::Arc;

use clap::Parser as _;
use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use tensorpost::prelude::*;
use tensorpost_examples::Place;

const WORKERS: usize = 4;
const ROWS: usize = 512;
const COLUMNS: usize = 301;

/// "Add row times column to every element of your part." The part comes back.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<TensorPart, String>)]
struct Add {
    #[tensor(dtype = u32, shape = [_, _])]
    part: TensorPart,
}

const SOURCE: &str = r#"
extern "C" __global__ void add(unsigned *part, unsigned rows, unsigned columns, unsigned stride, unsigned first) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned row = i / columns, column = i % columns;
    if (row < rows) part[row * stride + column] += row * (first + column);
}"#;

struct Adder {
    stream: DeviceStream,
    /// On a GPU.
    kernel: Option<CudaFunction>,
}

#[actor]
impl Adder {
    fn create(env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        let kernel = match stream.kind() {
            DeviceKind::Host => None,
            DeviceKind::Cuda => {
                let module =
                    Arc::clone(stream.cuda_context()?).load_module(cudarc::nvrtc::compile_ptx(SOURCE)?)?;
                Some(module.load_function("add")?)
            }
        };
        Ok(Adder { stream, kernel })
    }

    #[handler]
    fn add(&self, Add { mut part }: Add) -> Result<TensorPart, String> {
        self.add_to(&mut part).map_err(|error| format!("{error:#}"))?;
        Ok(part)
    }

    fn add_to(&self, part: &mut TensorPart) -> anyhow::Result<()> {
        let first = part.start()[1];
        let Some(kernel) = &self.kernel else {
            self.stream.run((part.of_mut::<u32>(),), move |(mut part,)| {
                // A run is the part's share of one row; the columns of the other parts lie between two runs.
                for (row, run) in part.runs_mut().enumerate() {
                    for (column, element) in run.iter_mut().enumerate() {
                        *element += (row * (first + column)) as u32;
                    }
                }
            })?;
            return Ok(());
        };
        let (rows, columns) = (part.shape()[0] as u32, part.shape()[1] as u32);
        let (stride, first) = (part.strides()[0] as u32, first as u32);
        let mut launch = self.stream.launch_builder(kernel)?;
        launch.arg(&mut *part).arg(&rows).arg(&columns).arg(&stride).arg(&first);
        // SAFETY: the kernel has these parameters, and writes the elements of the part: `columns` of each of
        // the `rows`, which are `stride` elements apart.
        unsafe { launch.launch(LaunchConfig::for_num_elems(rows * columns))? };
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    let Place { device, sharing } = Place::parse();
    let node = Node::builder().sharing(sharing).start()?;
    let start =
        |worker| node.spawn::<Adder>(()).device(device.clone()).name(format!("worker {worker}")).start();
    let workers = (0..WORKERS).map(start).collect::<Result<Vec<_>, _>>()?;

    let stream = node.stream(&device)?;
    let start: Vec<u32> = (0..(ROWS * COLUMNS) as u32).collect();
    let table = stream.from_slice(&[ROWS, COLUMNS], &start)?;
    let memory = table.lease().id();

    let parts = table.split_evenly(1, WORKERS)?;
    // Start all asks before the first part comes back.
    let mut asks = Vec::new();
    for (number, (worker, part)) in workers.iter().zip(parts).enumerate() {
        println!("to worker {number}: {part:?}");
        asks.push(worker.address().ask(Add { part }));
    }
    let mut parts = Vec::new();
    for ask in asks {
        parts.push(node.block_on(ask)?.map_err(anyhow::Error::msg)?);
    }
    let table = TensorMut::join(parts, &stream)?.freeze();

    let same = table.lease().id() == memory;
    let elements = stream.download::<u32>(&table)?;
    let expected = start.iter().map(|at| {
        let (row, column) = (at / COLUMNS as u32, at % COLUMNS as u32);
        at + row * column
    });
    let right = elements.iter().zip(expected).filter(|(found, expected)| *found == expected).count();
    println!("whole again, in the same memory: {same}; {right} of {} elements are right", table.len());
    anyhow::ensure!(same && right == table.len(), "the table is wrong");
    Ok(())
}
