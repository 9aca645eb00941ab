//! Several actors in one worker: on its main thread, or with a thread of their own so that a long handler
//! holds no other actor up.

use std::sync::Barrier;

use tensorpost::prelude::*;

/// Two handlers of one process meet here, if both run at the same time.
static MEETING: Barrier = Barrier::new(2);

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Place)]
struct WhereAreYou;

/// Blocks the thread until another actor in the process does the same.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = bool)]
struct Meet;

#[derive(Serialize, Deserialize, PartialEq)]
struct Place {
    process: u32,
    thread: String,
}

#[derive(Default)]
struct Guest;

#[actor]
impl Guest {
    #[handler]
    fn place(&self, _: WhereAreYou) -> Place {
        let thread = format!("{:?}", std::thread::current().id());
        Place { process: std::process::id(), thread }
    }

    #[handler]
    fn meet(&self, _: Meet) -> bool {
        MEETING.wait();
        true
    }
}

fn main() -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    let house = node.worker("house")?;
    let ann = node.spawn::<Guest>(()).worker(house).name("ann").start()?;
    let bob = node.spawn::<Guest>(()).worker(house).name("bob").start()?;
    let cleo = node.spawn::<Guest>(()).worker(house).name("cleo").own_thread().start()?;

    let place = |actor: &tensorpost::node::Spawned<Guest>| node.block_on(actor.address().ask(WhereAreYou));
    let (a, b, c) = (place(&ann)?, place(&bob)?, place(&cleo)?);
    println!(
        "one process: {}, and not this one: {}",
        a.process == b.process && b.process == c.process,
        a.process != std::process::id()
    );
    println!("ann and bob share a thread: {}", a.thread == b.thread);
    println!("cleo has her own: {}", c.thread != a.thread);

    // On one thread the first handler would wait for ever.
    let (first, second) = (cleo.address().ask(Meet), ann.address().ask(Meet));
    println!("cleo and ann met: {}", node.block_on(first)? && node.block_on(second)?);
    Ok(())
}
