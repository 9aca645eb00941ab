//! Sends a million messages with tensors through three processes, and measures the memory that they leave
//! behind. This is a program, not a criterion bench.
//!
//! `cargo bench --bench leak` runs a million; `cargo bench --bench leak -- --messages 50000` another number.
//! The source makes a fresh tensor for each message and sends it with a slice of it. The relay passes both on
//! to the sink, so the leases change hands between processes that do not own the memory (LEASE-3). Exits with
//! 1 when resident memory at the end is more than 5 % above that after the first ten thousand messages.

use std::process::ExitCode;

use serde_json::json;
use tensorpost::prelude::*;
use tensorpost_benches::memory;
use tensorpost_benches::results::Results;

const FIRST: u64 = 10_000;
const ALL: u64 = 1_000_000;
/// The most by which memory may have grown, in per cent.
const LIMIT: f64 = 5.0;
/// The room of each mailbox.
const MAILBOX: u32 = 32;
/// Frames that the sink keeps at the beginning before it lets all of them go. They are more than the
/// mailboxes and the way between can hold, so that the first ten thousand messages find the pool as large as
/// it ever gets. Otherwise the scheduler would decide how much is on its way at once, and so how much of the
/// pool was ever touched.
const KEPT: usize = 256;
/// Sizes of the tensors in bytes, in turn.
const SIZES: [usize; 4] = [512, 4 << 10, 20_000, 64 << 10];

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    number: u64,
    #[tensor(dtype = u8, shape = [_])]
    data: Tensor,
    part: Option<Tensor>,
}

/// Sends that many; the reply comes when the sink has handled them all, and says how many it has seen in its
/// life.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Run {
    count: u64,
}

/// Asks through the relay, behind the frames, so that the reply means that all were handled.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Seen;

struct Source {
    stream: DeviceStream,
    frames: Address<Frame>,
    seen: Address<Seen>,
}

impl Actor for Source {
    type Context = Context<Self>;
}

impl RemoteActor for Source {
    type Args = (Address<Frame>, Address<Seen>);

    fn create((frames, seen): Self::Args, env: &Env) -> anyhow::Result<Self> {
        Ok(Source { stream: env.stream(), frames, seen })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Run>();
    }
}

impl Handler<Run> for Source {
    type Result = ResponseFuture<u64>;

    fn handle(&mut self, run: Run, _: &mut Context<Self>) -> Self::Result {
        let (stream, frames, seen) = (self.stream.clone(), self.frames.clone(), self.seen.clone());
        Box::pin(async move {
            for number in 0..run.count {
                let bytes = SIZES[number as usize % SIZES.len()];
                let mut data =
                    stream.empty_when_free(DType::U8, &[bytes]).await.expect("room for a small tensor");
                data.as_mut_slice::<u8>().expect("an own tensor on the host").fill(number as u8);
                let data = data.freeze();
                let part = (number % 2 == 0).then(|| data.slice(0, bytes / 2..).expect("half of it"));
                frames.send(Frame { number, data, part }).await.expect("the relay runs");
            }
            seen.ask(Seen).await.expect("the relay and the sink run")
        })
    }
}

struct Relay {
    frames: Address<Frame>,
    seen: Address<Seen>,
}

impl Actor for Relay {
    type Context = Context<Self>;
}

impl RemoteActor for Relay {
    type Args = (Address<Frame>, Address<Seen>);

    fn create((frames, seen): Self::Args, _: &Env) -> anyhow::Result<Self> {
        Ok(Relay { frames, seen })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Frame>().message::<Seen>();
    }
}

impl Handler<Frame> for Relay {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, frame: Frame, _: &mut Context<Self>) -> Self::Result {
        let sent = self.frames.send(frame);
        Box::pin(async move { sent.await.expect("the sink runs") })
    }
}

impl Handler<Seen> for Relay {
    type Result = ResponseFuture<u64>;

    fn handle(&mut self, _: Seen, _: &mut Context<Self>) -> Self::Result {
        let seen = self.seen.ask(Seen);
        Box::pin(async move { seen.await.expect("the sink runs") })
    }
}

#[derive(Default)]
struct Sink {
    seen: u64,
    kept: Vec<Frame>,
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
        on.message::<Frame>().message::<Seen>();
    }
}

impl Handler<Frame> for Sink {
    type Result = ();

    fn handle(&mut self, frame: Frame, _: &mut Context<Self>) {
        for tensor in std::iter::once(&frame.data).chain(&frame.part) {
            let data = tensor.as_slice::<u8>().expect("a packed tensor on the host");
            assert!(data.iter().all(|byte| *byte == frame.number as u8), "frame {} is whole", frame.number);
        }
        self.seen += 1;
        match self.seen {
            seen if seen < KEPT as u64 => self.kept.push(frame),
            seen if seen == KEPT as u64 => self.kept = Vec::new(),
            _ => {}
        }
    }
}

impl Handler<Seen> for Sink {
    type Result = MessageResult<Seen>;

    fn handle(&mut self, _: Seen, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.seen)
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let node = Node::builder().start()?;
    let mut arguments = std::env::args().skip_while(|argument| argument != "--messages").skip(1);
    let all = match arguments.next() {
        Some(number) => number.parse::<u64>()?.max(2 * FIRST),
        None => ALL,
    };
    let sink = node.spawn::<Sink>(()).mailbox(MAILBOX).start()?;
    let relay = node.spawn::<Relay>((sink.address(), sink.address())).mailbox(MAILBOX).start()?;
    let source = node.spawn::<Source>((relay.address(), relay.address())).start()?;
    let runs = source.address::<Run>();
    let resident = || -> anyhow::Result<(u64, u64)> {
        let mut sum = (0, 0);
        for pid in node.workers().iter().map(|worker| worker.pid).chain([std::process::id()]) {
            sum.0 += memory::resident(pid)?;
            sum.1 += memory::proportional(pid)?;
        }
        Ok(sum)
    };
    let mut sent = 0;
    let mut first = (0, 0);
    let mut last = (0, 0);
    while sent < all {
        // The first goal is ten thousand, then each tenth of all messages.
        let goal = if sent == 0 { FIRST } else { ((sent * 10 / all) + 1) * all / 10 };
        let count = goal.max(sent + 1) - sent;
        sent += count;
        let seen = node.block_on(runs.ask(Run { count }))?;
        anyhow::ensure!(seen == sent, "{seen} of {sent} messages arrived");
        last = resident()?;
        if first == (0, 0) {
            first = last;
        }
        println!(
            "{sent:>9} messages: resident {:.2} MiB, shared pages counted once {:.2} MiB",
            mib(last.0),
            mib(last.1)
        );
    }
    let grown = (last.0 as f64 / first.0 as f64 - 1.0) * 100.0;
    println!("{:+.2} % after {FIRST} messages and after {sent}; at most {LIMIT} % are allowed", grown);
    let result = json!({ "messages": sent, "first_bytes": first.0, "last_bytes": last.0, "first_pss_bytes": first.1, "last_pss_bytes": last.1 });
    Results::of_last_run().write("leak.json", &result)?;
    Ok(if grown <= LIMIT { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
