//! One buffer through three processes and back: each adds to it in place, because the process before has let
//! go of it.
//!
//! `--device cuda:0` does the same with a CUDA kernel; needs an NVIDIA GPU with its driver and NVRTC.

#![expect(unsafe_code, reason = "a kernel launch is a call into code that Rust cannot check")]

use std::sync::Arc;

use clap::Parser as _;
use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use tensorpost::prelude::*;
use tensorpost_examples::Place;

const SOURCE: &str = r#"
extern "C" __global__ void add_one(int *values, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) values[i] += 1;
}"#;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Document {
    values: Tensor,
    trail: Vec<String>,
}

/// The stamp's name, and the next receiver of documents.
#[derive(Serialize, Deserialize)]
struct Stamp {
    name: String,
    next: Address<Document>,
}

struct Stamper {
    stream: DeviceStream,
    /// On a GPU.
    kernel: Option<CudaFunction>,
    stamp: Stamp,
}

#[actor]
impl Stamper {
    fn create(stamp: Stamp, env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        let kernel = match stream.kind() {
            DeviceKind::Host => None,
            DeviceKind::Cuda => {
                let module =
                    Arc::clone(stream.cuda_context()?).load_module(cudarc::nvrtc::compile_ptx(SOURCE)?)?;
                Some(module.load_function("add_one")?)
            }
        };
        Ok(Stamper { stream, kernel, stamp })
    }

    #[handler]
    fn pass_on(&self, document: Document) -> ResponseFuture<()> {
        let sending = self.stamp(document).map(|document| self.stamp.next.send(document));
        Box::pin(async move {
            match sending {
                Ok(sending) => sending.await.unwrap_or_else(|error| eprintln!("{error}")),
                Err(error) => eprintln!("{error:#}"),
            }
        })
    }

    fn stamp(&self, Document { values, mut trail }: Document) -> anyhow::Result<Document> {
        // This fails, and gives the tensor back, if another handle on it exists.
        let mut values = values.into_mut(&self.stream)?;
        self.add_one(&mut values)?;
        trail.push(format!("{} added 1 in place: {}", self.stamp.name, whose(values.lease())));
        Ok(Document { values: values.freeze(), trail })
    }

    fn add_one(&self, values: &mut TensorMut) -> anyhow::Result<()> {
        let Some(kernel) = &self.kernel else {
            let add = |(values,): (&mut [i32],)| values.iter_mut().for_each(|value| *value += 1);
            return Ok(self.stream.run((values.of_mut::<i32>(),), add)?);
        };
        let n = values.len() as u32;
        let mut launch = self.stream.launch_builder(kernel)?;
        launch.arg(values).arg(&n);
        // SAFETY: the kernel has these parameters, and stays below `n`, the number of elements.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n))? };
        Ok(())
    }
}

/// Returns a text that is the same for the same memory, in every process.
fn whose(lease: &tensorpost::tensor::Lease) -> String {
    let id = lease.id();
    format!("entry {} of the lease table of {}, use {}", id.entry, lease.owner(), id.generation)
}

fn main() -> anyhow::Result<()> {
    let Place { device, sharing } = Place::parse();
    let node = Node::builder().sharing(sharing).start()?;
    let (back, mut documents) = node.channel::<Document>()?;
    let start = |name: &str, next| {
        node.spawn::<Stamper>(Stamp { name: name.to_owned(), next }).device(device.clone()).name(name).start()
    };
    let c = start("C", back)?;
    let b = start("B", c.address())?;

    let stream = node.stream(&device)?;
    let values = stream.from_slice(&[3], &[10, 20, 30])?.freeze();
    println!("A made {values:?}: {}", whose(values.lease()));
    // The tensor is moved, not cloned: A keeps no handle.
    node.block_on(b.address().send(Document { values, trail: Vec::new() }))?;

    let Document { values, trail } = documents.blocking_recv()?;
    trail.iter().for_each(|entry| println!("{entry}"));
    println!("A has it again, {:?}: {}", stream.download::<i32>(&values)?, whose(values.lease()));
    Ok(())
}
