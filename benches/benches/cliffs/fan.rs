//! Many senders to one receiver, all as fast as they can: the slowest sender's count over the fastest
//! sender's.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tensorpost::prelude::*;

use super::{Bound, Row};

const SENDERS: [usize; 2] = [8, 64];
/// How long all of them send.
const TIME: Duration = Duration::from_secs(2);

#[derive(Serialize, Deserialize, GpuMessage)]
struct Note {
    number: u64,
}

/// Sends for this long; the reply is how many messages it has sent.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Run {
    time: Duration,
}

#[derive(RemoteActor)]
#[remote_actor(handles(Run), args = Address<Note>, create = Sender::new)]
struct Sender {
    sink: Address<Note>,
}

impl Sender {
    fn new(sink: Address<Note>, _: &Env) -> anyhow::Result<Self> {
        Ok(Sender { sink })
    }
}

impl Handler<Run> for Sender {
    type Result = ResponseFuture<u64>;

    fn handle(&mut self, run: Run, _: &mut Context<Self>) -> Self::Result {
        let sink = self.sink.clone();
        Box::pin(async move {
            let since = Instant::now();
            let mut number = 0;
            while since.elapsed() < run.time {
                sink.send(Note { number }).await.expect("the sink runs");
                number += 1;
            }
            number
        })
    }
}

#[derive(Default, RemoteActor)]
#[remote_actor(handles(Note))]
struct Sink {
    sum: u64,
}

impl Handler<Note> for Sink {
    type Result = ();

    fn handle(&mut self, note: Note, _: &mut Context<Self>) {
        self.sum = self.sum.wrapping_add(note.number);
    }
}

pub(super) fn rows(node: &Node) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let sink = node.spawn::<Sink>(()).start()?;
    let mut senders = Vec::new();
    for count in SENDERS {
        while senders.len() < count {
            senders.push(node.spawn::<Sender>(sink.address()).start()?);
        }
        let all = |time: Duration| {
            let asks =
                senders.iter().map(|sender| sender.address::<Run>().ask(Run { time })).collect::<Vec<_>>();
            node.block_on(join_all(asks)).into_iter().collect::<Result<Vec<_>, _>>()
        };
        // This makes the links, and the first wake-ups.
        all(TIME / 10)?;
        let sent = all(TIME)?;
        eprintln!("# {count} senders, in the order of their start, sent {sent:?}");
        let (least, most) = (sent.iter().min().copied(), sent.iter().max().copied());
        let (least, most) = (least.unwrap_or_default(), most.unwrap_or_default());
        rows.push(Row::new(
            format!("{count} senders to one receiver, the slowest over the fastest"),
            format!("{least} over {most} messages in {} s", TIME.as_secs()),
            least as f64 / most.max(1) as f64,
            Some(Bound::AtLeast(0.8)),
        ));
    }
    Ok(rows)
}
