//! Two processes: this program, and a worker that doubles a tensor.

use clap::Parser as _;
use tensorpost::prelude::*;
use tensorpost_examples::Place;

/// A tensor to double; the reply is a tensor too.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Tensor)]
struct Double {
    #[tensor(dtype = f32)]
    values: Tensor,
}

struct Doubler {
    stream: DeviceStream,
}

#[actor]
impl Doubler {
    fn create(env: &Env) -> Self {
        Doubler { stream: env.stream() }
    }

    #[handler]
    fn double(&self, message: Double) -> Tensor {
        let double = || -> Result<Tensor, TensorError> {
            // Compute on the CPU: that is short and the same on every device; 05, 09 and 11 launch kernels.
            let mut values = self.stream.download::<f32>(&message.values)?;
            values.iter_mut().for_each(|value| *value *= 2.0);
            Ok(self.stream.from_slice(message.values.shape(), &values)?.freeze())
        };
        double().expect("room for a tensor as large as the one that came")
    }
}

fn main() -> anyhow::Result<()> {
    let Place { device, sharing } = Place::parse();
    let node = Node::builder().sharing(sharing).start()?;
    let doubler = node.spawn::<Doubler>(()).device(device.clone()).start()?;
    let stream = node.stream(&device)?;
    let values = stream.from_slice(&[2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?.freeze();
    let doubled = node.block_on(doubler.address::<Double>().ask(Double { values }))?;
    println!("{doubled:?} came back: {:?}", stream.download::<f32>(&doubled)?);
    Ok(())
}
