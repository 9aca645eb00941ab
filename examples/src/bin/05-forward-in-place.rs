//! One buffer through three processes and back: each adds to it in place, because the one before has let go of it.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Parcel {
    values: Tensor,
    trail: Vec<String>,
}

/// Who stamps, and where parcels go then.
#[derive(Serialize, Deserialize)]
struct Stamp {
    name: String,
    next: Address<Parcel>,
}

struct Stamper {
    gpu: Gpu,
    stamp: Stamp,
}

impl Actor for Stamper {
    type Context = Context<Self>;
}

impl RemoteActor for Stamper {
    type Args = Stamp;

    fn create(stamp: Stamp, env: &Env) -> anyhow::Result<Self> {
        Ok(Stamper { gpu: env.gpu(), stamp })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Parcel>();
    }
}

impl Handler<Parcel> for Stamper {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, parcel: Parcel, _: &mut Context<Self>) -> Self::Result {
        let sending = self.stamp(parcel).map(|parcel| self.stamp.next.send(parcel));
        Box::pin(async move {
            match sending {
                Ok(sending) => sending.await.unwrap_or_else(|error| eprintln!("{error}")),
                Err(error) => eprintln!("{error:#}"),
            }
        })
    }
}

impl Stamper {
    fn stamp(&self, Parcel { values, mut trail }: Parcel) -> anyhow::Result<Parcel> {
        // Fails, and gives the tensor back, if anybody else still holds it.
        let mut values = values.into_mut(&self.gpu)?;
        self.gpu
            .run((values.of_mut::<i32>(),), |(values,)| values.iter_mut().for_each(|value| *value += 1))?;
        trail.push(format!("{} added 1 in place: {}", self.stamp.name, whose(values.lease())));
        Ok(Parcel { values: values.freeze(), trail })
    }
}

/// The same for the same memory, in every process.
fn whose(lease: &tensorpost::lease::Lease) -> String {
    let id = lease.id();
    format!("line {} of the book of {}, use {}", id.line, lease.owner(), id.generation)
}

fn main() -> anyhow::Result<()> {
    let node = Node::builder().actor::<Stamper>().start()?;
    let (back, mut parcels) = node.channel::<Parcel>()?;
    let c = node.spawn::<Stamper>(Stamp { name: "C".to_owned(), next: back }).name("C").start()?;
    let b = node.spawn::<Stamper>(Stamp { name: "B".to_owned(), next: c.address() }).name("B").start()?;

    let values = node.host()?.from_slice(&[3], &[10, 20, 30])?.freeze();
    println!("A made {values:?}: {}", whose(values.lease()));
    // Moved, not cloned: A keeps no handle.
    node.block_on(b.address().send(Parcel { values, trail: Vec::new() }))?;

    let Parcel { values, trail } = parcels.blocking_recv()?;
    trail.iter().for_each(|line| println!("{line}"));
    println!("A has it again, {:?}: {}", values.to_vec::<i32>()?, whose(values.lease()));
    Ok(())
}
