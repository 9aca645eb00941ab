//! Your own CUDA kernel in a worker: compiled at start, launched on tensors in place.
//!
//! It needs an NVIDIA GPU with its driver and NVRTC; without one it says so and does nothing.

#![expect(unsafe_code, reason = "a kernel launch is a call into code that Rust cannot check")]

use std::sync::Arc;

use clap::Parser as _;
use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use tensorpost::prelude::*;
use tensorpost_examples::Place;

const SOURCE: &str = r#"
extern "C" __global__ void scale(float *out, const float *in, float factor, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = factor * in[i];
}"#;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Scaled)]
struct Scale {
    #[tensor(dtype = f32, device = cuda)]
    values: Tensor,
    factor: f32,
}

#[derive(Serialize, Deserialize)]
struct Scaled {
    values: Tensor,
}

struct Scaler {
    stream: DeviceStream,
    kernel: CudaFunction,
}

#[actor]
impl Scaler {
    fn create(env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        let module = Arc::clone(stream.cuda_context()?).load_module(cudarc::nvrtc::compile_ptx(SOURCE)?)?;
        Ok(Scaler { kernel: module.load_function("scale")?, stream })
    }

    #[handler]
    fn scale(&self, message: Scale) -> Scaled {
        Scaled { values: self.scaled(&message).expect("a launch on a tensor of the GPU") }
    }

    fn scaled(&self, message: &Scale) -> anyhow::Result<Tensor> {
        let mut scaled = self.stream.empty(DType::F32, message.values.shape())?;
        let n = message.values.len() as u32;
        let mut launch = self.stream.launch_builder(&self.kernel)?;
        launch.arg(&mut scaled).arg(&message.values).arg(&message.factor).arg(&n);
        // SAFETY: the kernel has these parameters, and stays below `n`, the number of elements of both
        // tensors.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n))? };
        Ok(scaled.freeze()) // the kernel may still run: whoever gets the tensor waits for it on the GPU
    }
}

fn main() -> anyhow::Result<()> {
    let Place { device, sharing } = Place::parse();
    let node = Node::builder().sharing(sharing).start()?;
    // Use the first GPU, unless one was named.
    let device = match device.kind() {
        DeviceKind::Cuda => Ok(device),
        DeviceKind::Host => Device::cuda(0),
    };
    let device = match device {
        Ok(device) => device,
        Err(error) => {
            println!("no kernel was run: {error}");
            return Ok(());
        }
    };
    let stream = node.stream(&device)?;
    let doubler = node.spawn::<Scaler>(()).device(device.clone()).name("doubler").start()?.address::<Scale>();
    let tripler = node.spawn::<Scaler>(()).device(device).name("tripler").start()?.address::<Scale>();
    let mut values = stream.from_slice(&[4], &[1.0_f32, 2.0, 3.0, 4.0])?.freeze();
    for (scaler, factor) in [(&doubler, 2.0), (&tripler, 3.0)] {
        values = node.block_on(scaler.ask(Scale { values, factor }))?.values;
    }
    println!("{:?}", stream.download::<f32>(&values)?);
    Ok(())
}
