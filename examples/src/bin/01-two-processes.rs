//! Two processes: this program, and a worker that doubles a tensor.

use tensorpost::prelude::*;

/// A tensor to double; the reply is a tensor too.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Tensor)]
struct Double {
    #[tensor(dtype = f32)]
    values: Tensor,
}

struct Doubler {
    gpu: Gpu,
}

impl Actor for Doubler {
    type Context = Context<Self>;
}

impl RemoteActor for Doubler {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Doubler { gpu: env.gpu() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Double>();
    }
}

impl Handler<Double> for Doubler {
    type Result = MessageResult<Double>;

    fn handle(&mut self, message: Double, _: &mut Context<Self>) -> Self::Result {
        let double = || -> Result<Tensor, TensorError> {
            let mut doubled = self.gpu.empty(DType::F32, message.values.shape())?;
            let arguments = (message.values.of::<f32>(), doubled.of_mut::<f32>());
            self.gpu.run(arguments, |(values, doubled)| {
                for (doubled, value) in doubled.iter_mut().zip(values) {
                    *doubled = 2.0 * value;
                }
            })?;
            Ok(doubled.freeze())
        };
        MessageResult(double().expect("room for a tensor as large as the one that came"))
    }
}

fn main() -> anyhow::Result<()> {
    let node = Node::builder().actor::<Doubler>().start()?;
    let doubler = node.spawn::<Doubler>(()).start()?;
    let values = node.host()?.from_slice(&[2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?.freeze();
    let doubled = node.block_on(doubler.address::<Double>().ask(Double { values }))?;
    println!("{doubled:?} came back: {:?}", doubled.to_vec::<f32>()?);
    Ok(())
}
