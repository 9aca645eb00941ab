//! Asking: the reply has a type, can hold tensors and can be a refusal; a message that is not sent comes
//! back.

use clap::Parser as _;
use tensorpost::prelude::*;
use tensorpost_examples::Place;

/// Asks for the elements in order, or for the reason why there is no order.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<Sorted, String>)]
struct Sort {
    #[tensor(dtype = f32, shape = [_])]
    values: Tensor,
}

#[derive(Serialize, Deserialize)]
struct Sorted {
    values: Tensor,
    median: f32,
}

struct Sorter {
    stream: DeviceStream,
}

#[actor]
impl Sorter {
    fn create(env: &Env) -> Self {
        Sorter { stream: env.stream() }
    }

    #[handler]
    fn sort(&self, sort: Sort) -> Result<Sorted, String> {
        self.sorted(&sort.values).map_err(|error| format!("{error:#}"))
    }

    fn sorted(&self, values: &Tensor) -> anyhow::Result<Sorted> {
        let mut values = self.stream.download::<f32>(values)?;
        anyhow::ensure!(!values.is_empty(), "there are no values");
        anyhow::ensure!(values.iter().all(|value| !value.is_nan()), "there is a NaN among the values");
        values.sort_by(f32::total_cmp);
        let median = values[values.len() / 2];
        Ok(Sorted { values: self.stream.from_slice(&[values.len()], &values)?.freeze(), median })
    }
}

fn main() -> anyhow::Result<()> {
    let Place { device, sharing } = Place::parse();
    let node = Node::builder().sharing(sharing).start()?;
    let sorter = node.spawn::<Sorter>(()).device(device.clone()).start()?.address::<Sort>();
    let stream = node.stream(&device)?;
    let ask = |values: &[f32]| -> anyhow::Result<_> {
        let values = stream.from_slice(&[values.len()], values)?.freeze();
        Ok(sorter.ask(Sort { values }))
    };

    // Both messages are sent before either is answered.
    let (first, second) = (ask(&[3.0, 1.0, 2.0])?, ask(&[1.0, f32::NAN])?);
    match node.block_on(first)? {
        Ok(Sorted { values, median }) => println!("{:?}, median {median}", stream.download::<f32>(&values)?),
        Err(why) => println!("refused: {why}"),
    }
    if let Err(why) = node.block_on(second)? {
        println!("refused: {why}");
    }

    let wrong = stream.zeros(DType::I32, &[2, 2])?.freeze();
    if let Err(AskError::NotSent(error)) = node.block_on(sorter.ask(Sort { values: wrong })) {
        println!("{error}; {:?} is back", error.message.values);
    }
    Ok(())
}
