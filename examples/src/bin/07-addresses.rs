//! How actors find each other: an address in a message, and a name.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = i64)]
struct Add(Tensor);

/// Holds an address: that of the actor that wants the total.
#[derive(Serialize, Deserialize, GpuMessage)]
struct Order {
    values: Tensor,
    reply_to: Address<Total>,
}

#[derive(Serialize, Deserialize, GpuMessage)]
struct Total(i64);

/// Adds up the values of all orders.
#[derive(Default)]
struct Till(i64);

#[actor]
impl Till {
    #[handler]
    fn add(&mut self, Add(values): Add) -> i64 {
        self.0 += values.to_vec::<i64>().map_or(0, |values| values.iter().sum());
        self.0
    }
}

/// Gets no address, and finds the till by its name.
struct Clerk(Env);

#[actor]
impl Clerk {
    fn create(env: &Env) -> Self {
        Clerk(env.clone())
    }

    #[handler]
    fn order(&self, Order { values, reply_to }: Order) -> ResponseFuture<()> {
        let env = self.0.clone();
        let work = async move {
            let till = env.lookup::<Add>("till").await?;
            reply_to.send(Total(till.ask(Add(values)).await?)).await?;
            anyhow::Ok(())
        };
        Box::pin(async move { work.await.unwrap_or_else(|error| eprintln!("{error:#}")) })
    }
}

fn main() -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    node.spawn::<Till>(()).name("till").start()?;
    let clerk = node.spawn::<Clerk>(()).start()?;
    let (reply_to, mut totals) = node.channel::<Total>()?;

    let stream = node.host_stream()?;
    let values = stream.from_slice(&[3], &[1_i64, 2, 39])?.freeze();
    node.block_on(clerk.address().send(Order { values, reply_to }))?;
    println!("the clerk found the till, and told: {}", totals.blocking_recv()?.0);

    let till = node.lookup::<Add>("till")?;
    println!(
        "so did the program: {}",
        node.block_on(till.ask(Add(stream.from_slice(&[1], &[58_i64])?.freeze())))?
    );
    if let Err(error) = node.lookup::<Add>("tilt") {
        println!("{error}");
    }
    Ok(())
}
