//! A message of 256 bytes without tensors between actors in two busy processes, beside the bare parts in the
//! same run.
//!
//! Latency is half a round trip, one message at a time. The rate is a stream in one direction with the
//! mailbox's credit as the only brake, from a task that sends as fast as it may. Each of the two processes
//! has a core.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use tensorpost::message;
use tensorpost::prelude::*;
use tensorpost_benches::baseline::actix::Threads;
use tensorpost_benches::baseline::{self, MESSAGE};
use tensorpost_benches::cores::pin;
use tokio::sync::oneshot;

/// The message. Its encoding has 256 bytes, see `text`.
#[derive(Serialize, Deserialize, GpuMessage)]
struct Note {
    number: u64,
    last: bool,
    text: String,
}

impl Note {
    fn new(number: u64, last: bool, text: &str) -> Self {
        Note { number, last, text: text.to_owned() }
    }
}

/// A text that makes the encoding of a [`Note`] have 256 bytes.
fn text() -> anyhow::Result<String> {
    let bytes = |text: String| -> anyhow::Result<usize> {
        Ok(message::bytes_of(&Note { number: u64::MAX, last: false, text })? as usize)
    };
    let empty = bytes("x".repeat(100))? - 100;
    let text = "x".repeat(MESSAGE - empty);
    anyhow::ensure!(bytes(text.clone())? == MESSAGE, "the encoding of a note has {MESSAGE} bytes");
    Ok(text)
}

/// The run to measure; the reply is the time in nanoseconds.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Run {
    stream: bool,
    count: u64,
}

/// Names the receiver of returned notes. The reply comes once sending to it is possible at once.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = bool)]
struct Meet {
    peer: Address<Note>,
    hello: Address<Hello>,
}

/// The first message to a process waits for the link to it.
#[derive(Serialize, Deserialize, GpuMessage)]
struct Hello;

/// Sends notes and counts those that come back.
struct Driver {
    echo: Address<Note>,
    sink: Address<Note>,
    text: String,
    left: u64,
    since: Instant,
    done: Option<oneshot::Sender<u64>>,
}

impl Actor for Driver {
    type Context = Context<Self>;
}

impl RemoteActor for Driver {
    type Args = (Address<Note>, Address<Note>, String);

    fn create((echo, sink, text): Self::Args, _: &Env) -> anyhow::Result<Self> {
        pin(0);
        Ok(Driver { echo, sink, text, left: 0, since: Instant::now(), done: None })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Note>().message::<Run>().message::<Hello>();
    }
}

impl Handler<Run> for Driver {
    type Result = ResponseFuture<u64>;

    fn handle(&mut self, run: Run, _: &mut Context<Self>) -> Self::Result {
        let (done, result) = oneshot::channel();
        self.done = Some(done);
        self.since = Instant::now();
        // A number that takes nine bytes in MessagePack.
        let first = u64::MAX - run.count;
        if run.stream {
            self.left = 1;
            let (sink, text) = (self.sink.clone(), self.text.clone());
            actix::spawn(async move {
                for number in 1..=run.count {
                    let note = Note::new(first + number, number == run.count, &text);
                    sink.send(note).await.expect("the sink runs");
                }
            });
        } else {
            self.left = run.count;
            let (echo, note) = (self.echo.clone(), Note::new(first, false, &self.text));
            actix::spawn(async move { echo.send(note).await.expect("the echo runs") });
        }
        Box::pin(async move { result.await.expect("the driver outlives its runs") })
    }
}

impl Handler<Hello> for Driver {
    type Result = ();

    fn handle(&mut self, _: Hello, _: &mut Context<Self>) {}
}

impl Handler<Note> for Driver {
    type Result = ();

    fn handle(&mut self, mut note: Note, _: &mut Context<Self>) {
        self.left -= 1;
        if self.left > 0 {
            note.number += 1;
            self.echo.try_send(note).expect("one note at a time finds room");
        } else if let Some(done) = self.done.take() {
            // The receiver of this is the reply to the run.
            let _ = done.send(self.since.elapsed().as_nanos() as u64);
        }
    }
}

/// Sends every note back.
#[derive(Default)]
struct Echo {
    peer: Option<Address<Note>>,
}

impl Actor for Echo {
    type Context = Context<Self>;
}

impl RemoteActor for Echo {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        pin(1);
        Ok(Echo::default())
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Note>().message::<Meet>();
    }
}

impl Handler<Meet> for Echo {
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, meet: Meet, _: &mut Context<Self>) -> Self::Result {
        self.peer = Some(meet.peer);
        Box::pin(async move { meet.hello.send(Hello).await.is_ok() })
    }
}

impl Handler<Note> for Echo {
    type Result = ();

    fn handle(&mut self, note: Note, _: &mut Context<Self>) {
        if let Some(peer) = &self.peer {
            peer.try_send(note).expect("one note at a time finds room");
        }
    }
}

/// Takes notes, and sends the last one back.
#[derive(Default)]
struct Sink {
    peer: Option<Address<Note>>,
    seen: u64,
}

impl Actor for Sink {
    type Context = Context<Self>;
}

impl RemoteActor for Sink {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Sink::default())
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Note>().message::<Meet>();
    }
}

impl Handler<Meet> for Sink {
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, meet: Meet, _: &mut Context<Self>) -> Self::Result {
        self.peer = Some(meet.peer);
        Box::pin(async move { meet.hello.send(Hello).await.is_ok() })
    }
}

impl Handler<Note> for Sink {
    type Result = ();

    fn handle(&mut self, note: Note, _: &mut Context<Self>) {
        assert!(self.seen == 0 || note.number == self.seen + 1, "notes arrive in order (MBX-1)");
        self.seen = if note.last { 0 } else { note.number };
        if let (true, Some(peer)) = (note.last, &self.peer) {
            peer.try_send(note).expect("one note at a time finds room");
        }
    }
}

fn main() -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    // Their process runs both echo and sink, the driver's process only the driver.
    let there = node.worker("there")?;
    let echo = node.spawn::<Echo>(()).worker(there).start()?;
    let sink = node.spawn::<Sink>(()).worker(there).mailbox(1024).start()?;
    let driver = node.spawn::<Driver>((echo.address(), sink.address(), text()?)).start()?;
    let peer = driver.address::<Note>();
    let hello = driver.address::<Hello>();
    anyhow::ensure!(node.block_on(echo.address().ask(Meet { peer: peer.clone(), hello: hello.clone() }))?);
    anyhow::ensure!(node.block_on(sink.address().ask(Meet { peer, hello }))?);
    let runs = driver.address::<Run>();
    let run = |stream: bool, count: u64| -> Duration {
        Duration::from_nanos(node.block_on(runs.ask(Run { stream, count })).expect("the driver runs"))
    };
    run(true, 1000);

    // There are many short samples: on a shared machine some of them are left alone.
    let mut criterion = Criterion::default()
        .sample_size(200)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
        .configure_from_args();
    let mut latency = criterion.benchmark_group("message-latency");
    latency.bench_function("tensorpost", |b| b.iter_custom(|n| run(false, n) / 2));
    latency.bench_function("ring", |b| b.iter_custom(|n| baseline::ring::round_trips(n) / 2));
    latency.bench_function("ring-actix", |b| b.iter_custom(|n| baseline::ring_actix::round_trips(n) / 2));
    for (name, threads) in [
        ("actix-one-thread", Threads::One),
        ("actix-two-busy", Threads::TwoBusy),
        ("actix-two", Threads::Two),
    ] {
        latency.bench_function(name, |b| b.iter_custom(|n| baseline::actix::round_trips(n, threads) / 2));
    }
    latency.finish();

    let mut rate = criterion.benchmark_group("message-rate");
    rate.throughput(Throughput::Elements(1));
    rate.bench_function("tensorpost", |b| b.iter_custom(|n| run(true, n)));
    rate.bench_function("ring", |b| b.iter_custom(baseline::ring::one_way));
    rate.bench_function("ring-actix", |b| b.iter_custom(baseline::ring_actix::one_way));
    rate.bench_function("actix-two", |b| b.iter_custom(baseline::actix::one_way));
    rate.finish();
    criterion.final_summary();
    Ok(())
}
