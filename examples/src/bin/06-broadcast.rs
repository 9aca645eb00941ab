//! One tensor to several workers at once: each gets a lease on the same memory, and none gets a copy.

use clap::Parser as _;
use tensorpost::prelude::*;
use tensorpost_examples::Place;

const WORKERS: usize = 4;

/// Asks for the sum of a share of the rows.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = f64)]
struct Sum {
    #[tensor(dtype = f32, shape = [_, _])]
    table: Tensor,
    share: usize,
}

struct Summer {
    stream: DeviceStream,
}

#[actor]
impl Summer {
    fn create(env: &Env) -> Self {
        Summer { stream: env.stream() }
    }

    #[handler]
    fn sum(&self, Sum { table, share }: Sum) -> f64 {
        let rows = table.shape()[0] / WORKERS;
        let sum = || -> Result<f64, TensorError> {
            let part = table.slice(0, share * rows..(share + 1) * rows)?;
            Ok(self.stream.download::<f32>(&part)?.into_iter().map(f64::from).sum())
        };
        sum().unwrap_or(f64::NAN)
    }
}

fn main() -> anyhow::Result<()> {
    let Place { device, sharing } = Place::parse();
    let node = Node::builder().sharing(sharing).start()?;
    let start =
        |index| node.spawn::<Summer>(()).device(device.clone()).name(format!("worker {index}")).start();
    let workers = (0..WORKERS).map(start).collect::<Result<Vec<_>, _>>()?;

    let elements: Vec<f32> = (0..1024 * 256).map(|index| (index % 1024) as f32).collect();
    let table = node.stream(&device)?.from_slice(&[1024, 256], &elements)?.freeze();
    // Start all asks before waiting for the first reply.
    let asks: Vec<_> = workers
        .iter()
        .enumerate()
        .map(|(share, worker)| worker.address().ask(Sum { table: table.clone(), share }))
        .collect();
    let mut total = 0.0;
    for (share, ask) in asks.into_iter().enumerate() {
        let sum = node.block_on(ask)?;
        println!("worker {share}: {sum}");
        total += sum;
    }
    println!(
        "total: {total}, as one process finds: {}",
        elements.iter().copied().map(f64::from).sum::<f64>()
    );
    println!(
        "handed over without a copy: {} bytes, {WORKERS} times {}",
        node.stats().bytes_not_copied,
        table.bytes()
    );
    Ok(())
}
