//! One sender to many receivers: the sender's processor time a message, to 64 receivers over to 8. Also many
//! workers that all send to all.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tensorpost::prelude::*;
use tensorpost_benches::cores::thread_time;

use super::{Bound, Row, micros, middle, over};

const RECEIVERS: [usize; 2] = [8, 64];
const MESSAGES: u32 = 20_000;
const SAMPLES: usize = 7;
/// With the node nearly as many processes as there can be.
const ALL: usize = 250;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
struct Note {
    number: u64,
}

/// Sends this many messages in turn to all; the reply is the time that the thread took for them.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Duration)]
struct SendTo {
    all: Vec<Address<Note>>,
    messages: u32,
}

/// Asks each once; the reply comes when all have answered.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
struct AskAll {
    all: Vec<Address<Note>>,
}

#[derive(Default, RemoteActor)]
#[remote_actor(handles(Note, SendTo, AskAll))]
struct Member {
    sum: u64,
}

impl Handler<Note> for Member {
    type Result = ();

    fn handle(&mut self, note: Note, _: &mut Context<Self>) {
        self.sum = self.sum.wrapping_add(note.number);
    }
}

impl Handler<SendTo> for Member {
    type Result = ResponseFuture<Duration>;

    fn handle(&mut self, SendTo { all, messages }: SendTo, _: &mut Context<Self>) -> Self::Result {
        Box::pin(async move {
            let since = thread_time();
            for number in 0..messages {
                let to = &all[number as usize % all.len()];
                to.send(Note { number: number.into() }).await.expect("it runs");
            }
            thread_time().saturating_sub(since)
        })
    }
}

impl Handler<AskAll> for Member {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, AskAll { all }: AskAll, _: &mut Context<Self>) -> Self::Result {
        Box::pin(async move {
            let asks = all.iter().map(|to| to.ask(Note { number: 1 }));
            join_all(asks).await.into_iter().for_each(|answer| answer.expect("it runs"));
        })
    }
}

pub(super) fn rows(_: &Node) -> anyhow::Result<Vec<Row>> {
    let node = Node::builder().start()?;
    let sender = node.spawn::<Member>(()).start()?;
    let mut members = Vec::new();
    let mut costs = Vec::new();
    for count in RECEIVERS {
        while members.len() < count {
            members.push(node.spawn::<Member>(()).start()?);
        }
        let all: Vec<Address<Note>> = members.iter().map(|member| member.address()).collect();
        let cost = |messages: u32| {
            let used = node.block_on(sender.ask(SendTo { all: all.clone(), messages }))?;
            anyhow::Ok(used / messages)
        };
        cost(MESSAGES / 10)?;
        costs.push(middle(&mut (0..SAMPLES).map(|_| cost(MESSAGES)).collect::<anyhow::Result<Vec<_>>>()?));
    }
    let (few, many) = (costs[0], costs[1]);
    let mut rows = vec![Row::new(
        format!(
            "the sender's processor time for a message to {} in turn, over to {}",
            RECEIVERS[1], RECEIVERS[0]
        ),
        format!("{} over {}", micros(many), micros(few)),
        over(many, few),
        Some(Bound::AtMost(1.3)),
    )];
    drop((sender, members, node));
    // It has a node of its own, in which nobody is linked.
    let node = Node::builder().start()?;
    let members =
        (0..ALL).map(|_| Ok(node.spawn::<Member>(()).start()?)).collect::<anyhow::Result<Vec<_>>>()?;
    let addresses: Vec<Address<Note>> = members.iter().map(|member| member.address()).collect();
    let since = Instant::now();
    let asked = members.iter().enumerate().map(|(own, member)| {
        let others = addresses.iter().enumerate().filter(|(at, _)| *at != own);
        member.ask(AskAll { all: others.map(|(_, address)| address.clone()).collect() })
    });
    node.block_on(join_all(asked)).into_iter().collect::<Result<Vec<_>, _>>()?;
    let took = since.elapsed();
    rows.push(Row::new(
        format!("{ALL} workers, each asks each other once, links included: seconds"),
        format!("{:.0} ms", took.as_secs_f64() * 1e3),
        took.as_secs_f64(),
        Some(Bound::AtMost(0.6)),
    ));
    Ok(rows)
}
