//! A message that each process of a chain passes on to the next: the cost of a hop in a longer chain over the
//! cost in a chain of four.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tensorpost::prelude::*;
use tokio::sync::oneshot;

use super::{Bound, Row, micros, middle, over};

/// The first is the one with which the others are compared.
const LENGTHS: [(usize, f64); 3] = [(4, 1.0), (16, 2.0), (64, 3.0)];
const HOPS: u32 = 4_096;
const SAMPLES: usize = 15;

/// Names the next one as its neighbour; the reply comes when there is a link to it.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
struct Join {
    next: Address<Pass>,
    greeted: Address<Hello>,
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
struct Hello;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Pass {
    left: u32,
}

/// Passes one on, and waits until it is back for the last time; the reply is the time that this took.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Duration)]
struct Run {
    hops: u32,
}

#[derive(Default, RemoteActor)]
#[remote_actor(handles(Join, Hello, Pass, Run))]
struct Member {
    next: Option<Address<Pass>>,
    arrived: Option<oneshot::Sender<()>>,
}

impl Member {
    fn pass(&mut self, left: u32) {
        match (&self.next, left) {
            (Some(next), 1..) => next.try_send(Pass { left: left - 1 }).expect("there is room for one"),
            _ => drop(self.arrived.take().map(|arrived| arrived.send(()))),
        }
    }
}

impl Handler<Join> for Member {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, join: Join, _: &mut Context<Self>) -> Self::Result {
        self.next = Some(join.next);
        Box::pin(async move { join.greeted.ask(Hello).await.expect("it runs") })
    }
}

impl Handler<Hello> for Member {
    type Result = ();

    fn handle(&mut self, _: Hello, _: &mut Context<Self>) {}
}

impl Handler<Pass> for Member {
    type Result = ();

    fn handle(&mut self, pass: Pass, _: &mut Context<Self>) {
        self.pass(pass.left);
    }
}

impl Handler<Run> for Member {
    type Result = ResponseFuture<Duration>;

    fn handle(&mut self, run: Run, _: &mut Context<Self>) -> Self::Result {
        let (arrived, is_back) = oneshot::channel();
        self.arrived = Some(arrived);
        let since = Instant::now();
        self.pass(run.hops);
        Box::pin(async move {
            is_back.await.expect("it goes round");
            since.elapsed()
        })
    }
}

pub(super) fn rows(_: &Node) -> anyhow::Result<Vec<Row>> {
    let node = Node::builder().start()?;
    let (mut members, mut rows, mut shortest) = (Vec::new(), Vec::new(), None);
    for (length, bound) in LENGTHS {
        while members.len() < length {
            members.push(node.spawn::<Member>(()).start()?);
        }
        // A ring, so that one clock times it.
        let joins = (0..length).map(|at| {
            let next = &members[(at + 1) % length];
            members[at].ask(Join { next: next.address(), greeted: next.address() })
        });
        node.block_on(join_all(joins)).into_iter().collect::<Result<Vec<_>, _>>()?;
        let hop = || anyhow::Ok(node.block_on(members[0].ask(Run { hops: HOPS }))? / HOPS);
        hop()?;
        let among = middle(&mut (0..SAMPLES).map(|_| hop()).collect::<anyhow::Result<Vec<_>>>()?);
        let Some(alone) = shortest else {
            shortest = Some(among);
            continue;
        };
        rows.push(Row::new(
            format!("a hop in a chain of {length} processes, over one in a chain of {}", LENGTHS[0].0),
            format!("{} over {}", micros(among), micros(alone)),
            over(among, alone),
            Some(Bound::AtMost(bound)),
        ));
    }
    Ok(rows)
}
