//! A mailbox is bounded: `try_send` gives the message back, `send` waits, with a deadline if it has one.

use std::time::Duration;

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Work {
    number: u32,
    values: Tensor,
}

/// Is done with a piece of work when the program has taken the result, so it is as slow as its consumer.
struct Worker {
    results: Address<Work>,
}

#[actor]
impl Worker {
    fn create(results: Address<Work>) -> Self {
        Worker { results }
    }

    /// Does a piece of work. The sender has its credit back when this resolves.
    #[handler]
    fn work(&self, work: Work) -> ResponseFuture<()> {
        let taken = self.results.ask(work);
        Box::pin(async move {
            // A channel gives no replies, but it reports when the message is taken out.
            let _no_reply = taken.await;
        })
    }
}

fn main() -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    let (results, mut taken) = node.channel::<Work>()?;
    let worker = node.spawn::<Worker>(results).mailbox(2).start()?.address::<Work>();
    let stream = node.host_stream()?;
    let work =
        |number| Ok::<_, TensorError>(Work { number, values: stream.zeros(DType::U8, &[1024])?.freeze() });

    for number in 1..=2 {
        node.block_on(worker.send(work(number)?))?;
        println!("{number} was accepted");
    }
    if let Err(error) = worker.try_send(work(3)?) {
        println!("{error}; {} is back, with its tensor {:?}", error.message.number, error.message.values);
    }
    if let Err(error) = node.block_on(worker.send(work(4)?).timeout(Duration::from_millis(20))) {
        println!("{error}; {} is back", error.message.number);
    }
    let waiting = worker.send(work(5)?);
    println!("{} is done", taken.blocking_recv()?.number);
    node.block_on(waiting)?;
    println!("5 was accepted: there was room again");
    println!("{} is done, {} is done", taken.blocking_recv()?.number, taken.blocking_recv()?.number);
    Ok(())
}
