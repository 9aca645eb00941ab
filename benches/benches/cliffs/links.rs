//! An ask between two processes that have links to many others, which are silent, over an ask between two
//! without such links.

use std::time::{Duration, Instant};

use tensorpost::node::Spawned;
use tensorpost::prelude::*;

use super::{Bound, Row, micros, middle, over};

/// Together with the two and this process, as many as a node can have.
const SILENT: [usize; 2] = [62, 248];
const ROUNDS: u32 = 2_000;
const SAMPLES: usize = 15;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
struct Hello;

/// Asks the other one this often; the reply is the time that this took.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Duration)]
struct Run {
    other: Address<Hello>,
    rounds: u32,
}

#[derive(Default, RemoteActor)]
#[remote_actor(handles(Hello, Run))]
struct Peer;

impl Handler<Hello> for Peer {
    type Result = ();

    fn handle(&mut self, _: Hello, _: &mut Context<Self>) {}
}

impl Handler<Run> for Peer {
    type Result = ResponseFuture<Duration>;

    fn handle(&mut self, run: Run, _: &mut Context<Self>) -> Self::Result {
        Box::pin(async move {
            let since = Instant::now();
            for _ in 0..run.rounds {
                run.other.ask(Hello).await.expect("the other one runs");
            }
            since.elapsed()
        })
    }
}

pub(super) fn rows(_: &Node) -> anyhow::Result<Vec<Row>> {
    // It has a node of its own, because nearly all processes of a node are taken.
    let node = Node::builder().start()?;
    let run = |from: &Spawned<Peer>, to: &Spawned<Peer>, rounds| {
        anyhow::Ok(node.block_on(from.ask(Run { other: to.address(), rounds }))?)
    };
    let (near, far) = (node.spawn::<Peer>(()).start()?, node.spawn::<Peer>(()).start()?);
    let hop = || -> anyhow::Result<Duration> {
        let samples = (0..SAMPLES).map(|_| Ok(run(&near, &far, ROUNDS)? / ROUNDS / 2));
        Ok(middle(&mut samples.collect::<anyhow::Result<Vec<_>>>()?))
    };
    let alone = hop()?;
    let mut silent = Vec::new();
    let mut rows = Vec::new();
    for count in SILENT {
        while silent.len() < count {
            let one = node.spawn::<Peer>(()).start()?;
            run(&near, &one, 1)?;
            run(&far, &one, 1)?;
            silent.push(one);
        }
        let among = hop()?;
        rows.push(Row::new(
            format!("a hop between two processes with links to {count} silent ones, over one without"),
            format!("{} over {}", micros(among), micros(alone)),
            over(among, alone),
            Some(Bound::AtMost(1.3)),
        ));
    }
    Ok(rows)
}
