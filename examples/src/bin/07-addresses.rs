//! How actors find each other: an address in a message, and a name.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = i64)]
struct Add(Tensor);

/// Holds an address: that of whoever wants to hear of the total.
#[derive(Serialize, Deserialize, GpuMessage)]
struct Order {
    values: Tensor,
    reply_to: Address<Total>,
}

#[derive(Serialize, Deserialize, GpuMessage)]
struct Total(i64);

/// Adds up.
struct Till(i64);

impl Actor for Till {
    type Context = Context<Self>;
}

impl RemoteActor for Till {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Till(0))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Add>();
    }
}

impl Handler<Add> for Till {
    type Result = MessageResult<Add>;

    fn handle(&mut self, Add(values): Add, _: &mut Context<Self>) -> Self::Result {
        self.0 += values.to_vec::<i64>().map_or(0, |values| values.iter().sum());
        MessageResult(self.0)
    }
}

/// Was told no address at all.
struct Clerk(Env);

impl Actor for Clerk {
    type Context = Context<Self>;
}

impl RemoteActor for Clerk {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Clerk(env.clone()))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Order>();
    }
}

impl Handler<Order> for Clerk {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Order { values, reply_to }: Order, _: &mut Context<Self>) -> Self::Result {
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
