//! A worker whose handler panics, and that is then killed: the asker gets an error, the worker is restarted,
//! and the address stays the same. Work goes on until the restarts that the policy allows are used up.

use clap::Parser as _;
use rustix::process::{Signal, getpid, kill_process};
use tensorpost::prelude::*;
use tensorpost_examples::Place;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Tensor)]
struct Divide {
    #[tensor(dtype = i32)]
    values: Tensor,
    by: i32,
}

/// "Die as if somebody had killed you."
#[derive(Serialize, Deserialize, GpuMessage)]
struct Die;

struct Divider {
    stream: DeviceStream,
}

#[actor]
impl Divider {
    fn create(env: &Env) -> Self {
        Divider { stream: env.stream() }
    }

    #[handler]
    fn divide(&self, Divide { values, by }: Divide) -> Tensor {
        let divide = || -> Result<Tensor, TensorError> {
            let elements: Vec<i32> =
                self.stream.download(&values)?.into_iter().map(|value: i32| value / by).collect();
            Ok(self.stream.from_slice(values.shape(), &elements)?.freeze())
        };
        divide().expect("room for a tensor as large as the one that came")
    }

    #[handler]
    fn die(&self, _: Die) {
        kill_process(getpid(), Signal::KILL).expect("every process may kill itself");
    }
}

fn main() -> anyhow::Result<()> {
    let Place { device, sharing } = Place::parse();
    let node = Node::builder().sharing(sharing).start()?;
    let policy = Restart::on_failure(2);
    let divider = node.spawn::<Divider>(()).device(device.clone()).name("divider").restart(policy).start()?;
    // Addresses stay valid across crashes and restarts.
    let (address, to_kill) = (divider.address::<Divide>(), divider.address::<Die>());
    let mut watch = node.watch(&address);
    let mut event = || watch.blocking_recv().iter().for_each(|event| println!("event: {event}"));

    let stream = node.stream(&device)?;
    let values = stream.from_slice(&[3], &[10, 20, 30])?.freeze();
    let divide = |by| -> anyhow::Result<()> {
        match node.block_on(address.ask(Divide { values: values.clone(), by })) {
            Ok(divided) => println!("by {by}: {:?}", stream.download::<i32>(&divided)?),
            Err(error) => println!("by {by}: {error}"),
        }
        Ok(())
    };
    let kill = || node.block_on(to_kill.ask(Die)).unwrap_or_else(|error| println!("{error}"));

    divide(5)?;
    divide(0)?; // panics
    event();
    divide(2)?; // waits until the next life has begun
    event();

    kill();
    event();
    divide(10)?;
    event();

    kill();
    event(); // the last one
    divide(1)
}
