//! Order: the messages of one sender to one mailbox arrive in the order of its calls, all of them, once
//! (MBX-1). It must not matter where the actor is, or in which way each message was sent.

use futures_util::future::{join, join_all};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, numbers, until_free};

const SENDERS: usize = 3;
const EACH: u32 = 34_000;

#[derive(Debug, Serialize, Deserialize, GpuMessage)]
struct Numbered {
    sender: usize,
    number: u32,
    /// Holds the number, where there is one.
    tensor: Option<Tensor>,
}

/// "Send this many, numbered from 0, in every way there is." The reply comes when all were accepted.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
struct Go {
    to: Address<Numbered>,
    sender: usize,
    count: u32,
}

/// The counter's findings.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
struct Verdict {
    next: Vec<u32>,
    wrong: Vec<String>,
}

struct Counter {
    report: Address<Verdict>,
    verdict: Verdict,
    each: u32,
}

impl Actor for Counter {
    type Context = Context<Self>;
}

impl RemoteActor for Counter {
    type Args = (Address<Verdict>, u32);

    fn create((report, each): Self::Args, _: &Env) -> anyhow::Result<Self> {
        Ok(Counter { report, verdict: Verdict { next: vec![0; SENDERS], wrong: vec![] }, each })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Numbered>();
    }
}

impl Handler<Numbered> for Counter {
    type Result = ();

    fn handle(&mut self, message: Numbered, ctx: &mut Context<Self>) {
        let Verdict { next, wrong } = &mut self.verdict;
        let expected = &mut next[message.sender];
        let inside = message.tensor.map_or(message.number, |tensor| tensor.item().unwrap());
        if (message.number, inside) != (*expected, *expected) && wrong.len() < 10 {
            wrong.push(format!("{}: {} with {inside} instead of {expected}", message.sender, message.number));
        }
        *expected += 1;
        if next.iter().all(|next| *next == self.each) || wrong.len() == 10 {
            let verdict = Verdict { next: next.clone(), wrong: std::mem::take(wrong) };
            let sent = self.report.send(verdict);
            ctx.spawn(actix::fut::wrap_future(async move { sent.await.unwrap() }));
        }
    }
}

struct Source {
    stream: DeviceStream,
}

impl Actor for Source {
    type Context = Context<Self>;
}

impl RemoteActor for Source {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Source { stream: env.stream() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Go>();
    }
}

impl Handler<Go> for Source {
    type Result = ResponseFuture<u32>;

    fn handle(&mut self, Go { to, sender, count }: Go, _: &mut Context<Self>) -> Self::Result {
        let stream = self.stream.clone();
        Box::pin(send_all(stream, to, sender, count))
    }
}

/// Sends `count` messages, one of 50 with a tensor, in rounds of each way of sending.
async fn send_all(stream: DeviceStream, to: Address<Numbered>, sender: usize, count: u32) -> u32 {
    let mut made = (0..count).map(|number| {
        let tensor = number.is_multiple_of(50).then(|| numbers(&stream, number, 1));
        Numbered { sender, number, tensor }
    });
    let mut sent = 0;
    while sent < count {
        // Twenty are sent one after the other.
        for message in made.by_ref().take(20) {
            to.send(message).await.unwrap();
            sent += 1;
        }
        // Many at once, more than the mailbox holds; they are polled from the last to the first.
        let mut waiting: Vec<_> = made.by_ref().take(200).map(|message| to.send(message)).collect();
        waiting.reverse();
        sent += join_all(waiting).await.into_iter().map(Result::unwrap).count() as u32;
        // As long as there is room; a message that finds none goes first in the next way.
        for message in made.by_ref().take(40) {
            if let Err(error) = to.try_send(message) {
                assert!(matches!(error.reason, SendFailure::Full), "{error}");
                to.send(error.message).await.unwrap();
            }
            sent += 1;
        }
        // As asks, whose replies come later.
        let asked: Vec<_> = made.by_ref().take(40).map(|message| to.ask(message)).collect();
        sent += join_all(asked).await.into_iter().map(Result::unwrap).count() as u32;
    }
    sent
}

fn check(node: &Node, verdicts: &mut Channel<Verdict>, each: u32) {
    let verdict = verdicts.blocking_recv().unwrap();
    assert_eq!(verdict.wrong, Vec::<String>::new());
    assert_eq!(verdict.next, [each; SENDERS]);
    assert!(verdicts.try_recv().is_none(), "none arrived twice");
    assert_eq!(node.stats().rejected, 0);
    until_free(node);
}

/// Three senders are in three processes other than the actor's; one of the processes is the node.
fn a_hundred_thousand_messages_of_three_processes_arrive_in_order(builder: Builder) {
    let node = builder.start().unwrap();
    let (report, mut verdicts) = node.channel().unwrap();
    let counter = node.spawn::<Counter>((report, EACH)).start().unwrap();
    let to = counter.address::<Numbered>();
    let sources: Vec<Address<Go>> =
        (1..SENDERS).map(|_| node.spawn::<Source>(()).start().unwrap().address()).collect();
    let stream = node.host_stream().unwrap();
    node.block_on(async {
        let others: Vec<_> = (1..)
            .zip(&sources)
            .map(|(sender, source)| source.ask(Go { to: to.clone(), sender, count: EACH }))
            .collect();
        let (mine, others) = join(send_all(stream, to.clone(), 0, EACH), join_all(others)).await;
        assert_eq!(mine, EACH);
        others.into_iter().for_each(|sent| assert_eq!(sent.unwrap(), EACH));
    });
    check(&node, &mut verdicts, EACH);
}

/// The same to an actor in the senders' own process; one of them is on another thread.
fn the_short_way_means_the_same(builder: Builder) {
    let each = EACH / 2;
    let node = builder.start().unwrap();
    let (report, mut verdicts) = node.channel().unwrap();
    let worker = node.worker("all").unwrap();
    let counter = node.spawn::<Counter>((report, each)).worker(worker).start().unwrap();
    let to = counter.address::<Numbered>();
    let sources: Vec<Address<Go>> = (0..SENDERS)
        .map(|sender| {
            let spawn = node.spawn::<Source>(()).worker(worker);
            let spawn = if sender == 0 { spawn.own_thread() } else { spawn };
            spawn.start().unwrap().address()
        })
        .collect();
    node.block_on(async {
        let asked: Vec<_> = (0..)
            .zip(&sources)
            .map(|(sender, source)| source.ask(Go { to: to.clone(), sender, count: each }))
            .collect();
        join_all(asked).await.into_iter().for_each(|sent| assert_eq!(sent.unwrap(), each));
    });
    check(&node, &mut verdicts, each);
}

/// A mailbox of one message is the tightest ping-pong of credits.
fn a_mailbox_of_one_message_keeps_the_order_too(builder: Builder) {
    let each = 3000;
    let node = builder.start().unwrap();
    let (report, mut verdicts) = node.channel().unwrap();
    let counter = node.spawn::<Counter>((report, each)).mailbox(1).start().unwrap();
    let sources: Vec<Address<Go>> =
        (0..SENDERS).map(|_| node.spawn::<Source>(()).start().unwrap().address()).collect();
    for (sender, source) in sources.iter().enumerate() {
        assert_eq!(ask(&node, source, Go { to: counter.address(), sender, count: each }), each);
    }
    check(&node, &mut verdicts, each);
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_hundred_thousand_messages_of_three_processes_arrive_in_order,
        the_short_way_means_the_same,
        a_mailbox_of_one_message_keeps_the_order_too,
    ]
}
