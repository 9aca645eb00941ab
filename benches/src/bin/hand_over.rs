//! Hands fresh host tensors to an actor in another process, and prints the numbers that `benches/peers` has
//! of its peers too.
//!
//! A tensor comes from the pool, its first and last bytes are written, it is sent, and the receiver checks
//! them. A trip is an ask, a stream waits only where the receiver's mailbox is full. Each of the two
//! processes has a core. Prints lines of a name and a number: microseconds a trip, messages a second,
//! microseconds of processor time a message of both processes, microseconds a message and receiver where one
//! tensor goes to several processes. It prints the same for threads of one process that hand buffers round
//! over channels.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::time::{ClockId, clock_gettime};
use tensorpost::prelude::*;
use tensorpost_benches::cores::{pin, pin_beside};

const SIZES: [(&str, usize, u64); 3] =
    [("4KiB", 4 << 10, 100_000), ("1MiB", 1 << 20, 50_000), ("64MiB", 64 << 20, 5_000)];
/// The numbers of receivers of one tensor of [`FAN_OUT`] bytes.
const RECEIVERS: [usize; 2] = [1, 8];
const FAN_OUT: (usize, u64) = (1 << 20, 20_000);
/// The size of each mark, in bytes.
const MARK: usize = size_of::<u64>();
const MAILBOX: u32 = 16;
/// The buffers of two threads.
const BUFFERS: usize = MAILBOX as usize;
const WARM: u64 = 1_000;

/// Returns the processor time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32) // below a thousand million
}

fn mark(data: &mut [u8], number: u64) {
    let end = data.len() - MARK;
    data[..MARK].copy_from_slice(&number.to_le_bytes());
    data[end..].copy_from_slice(&number.to_le_bytes());
}

fn is_marked(data: &[u8], number: u64) -> bool {
    data.starts_with(&number.to_le_bytes()) && data.ends_with(&number.to_le_bytes())
}

/// "Are the marks right?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = bool)]
struct Frame {
    number: u64,
    #[tensor(dtype = u8, shape = [_])]
    data: Tensor,
}

/// "How much processor time have you used?" The reply is in nanoseconds; a wrong frame is an error.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<u64, String>)]
struct Used;

struct Consumer {
    wrong: Option<u64>,
}

#[actor]
impl Consumer {
    fn create(number: usize, _: &Env) -> anyhow::Result<Self> {
        pin_beside(number);
        Ok(Consumer { wrong: None })
    }

    #[handler]
    fn frame(&mut self, frame: Frame) -> bool {
        let right = frame.data.as_slice::<u8>().is_ok_and(|data| is_marked(data, frame.number));
        if !right {
            self.wrong.get_or_insert(frame.number);
        }
        right
    }

    #[handler]
    fn used(&self, _: Used) -> Result<u64, String> {
        match self.wrong {
            None => Ok(cpu().as_nanos() as u64),
            Some(number) => Err(format!("the marks of frame {number} were wrong")),
        }
    }
}

/// The results for one size.
#[derive(Serialize, Deserialize)]
struct Figures {
    /// Microseconds.
    trip: f64,
    /// Messages a second.
    rate: f64,
    /// Microseconds a message.
    cpu: f64,
}

/// "Measure."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<Figures, String>)]
struct Run {
    bytes: usize,
    count: u64,
    frames: Address<Frame>,
    used: Address<Used>,
}

/// "One tensor to each of these." Microseconds a message and receiver.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<f64, String>)]
struct FanOut {
    bytes: usize,
    count: u64,
    frames: Vec<Address<Frame>>,
    used: Vec<Address<Used>>,
}

struct Producer {
    stream: DeviceStream,
}

#[actor]
impl Producer {
    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        pin(0);
        Ok(Producer { stream: env.stream() })
    }

    #[handler]
    fn run(&self, run: Run) -> ResponseFuture<Result<Figures, String>> {
        let stream = self.stream.clone();
        Box::pin(async move { measure(&stream, &run).await.map_err(|error| format!("{error:#}")) })
    }

    #[handler]
    fn fan_out(&self, run: FanOut) -> ResponseFuture<Result<f64, String>> {
        let stream = self.stream.clone();
        Box::pin(async move { fan_out(&stream, &run).await.map_err(|error| format!("{error:#}")) })
    }
}

/// Makes a fresh tensor with its marks. Where all memory is under way, it waits for some.
async fn fresh(stream: &DeviceStream, number: u64, bytes: usize) -> anyhow::Result<Frame> {
    let mut tensor = stream.empty_when_free(DType::U8, &[bytes]).await?;
    mark(tensor.as_mut_slice::<u8>()?, number);
    Ok(Frame { number, data: tensor.freeze() })
}

async fn measure(stream: &DeviceStream, run: &Run) -> anyhow::Result<Figures> {
    let mut times = Vec::with_capacity(run.count as usize);
    for number in 0..WARM + run.count {
        let start = Instant::now();
        let right = run.frames.ask(fresh(stream, number, run.bytes).await?).await?;
        ensure!(right, "the marks of frame {number} were wrong");
        if number >= WARM {
            times.push(start.elapsed());
        }
    }
    let used = async || run.used.ask(Used).await?.map_err(anyhow::Error::msg);
    let (others, own, start) = (used().await?, cpu(), Instant::now());
    for number in 0..run.count {
        run.frames.send(fresh(stream, number, run.bytes).await?).await?;
    }
    // Its answer comes behind the last of them.
    let others = used().await? - others;
    let took = start.elapsed();
    let cpu = cpu() - own + Duration::from_nanos(others);
    Ok(figures(times, run.count, took, cpu))
}

async fn fan_out(stream: &DeviceStream, run: &FanOut) -> anyhow::Result<f64> {
    let mut start = Instant::now();
    for number in 0..WARM + run.count {
        if number == WARM {
            handled(&run.used).await?;
            start = Instant::now();
        }
        let frame = fresh(stream, number, run.bytes).await?;
        for receiver in &run.frames {
            receiver.send(Frame { number, data: frame.data.clone() }).await?;
        }
    }
    handled(&run.used).await?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / run.count as f64 / run.frames.len() as f64)
}

/// Waits until all tensors that were sent are handled: the answers come behind them.
async fn handled(receivers: &[Address<Used>]) -> anyhow::Result<()> {
    for ask in receivers.iter().map(|receiver| receiver.ask(Used)).collect::<Vec<_>>() {
        ask.await?.map_err(anyhow::Error::msg)?;
    }
    Ok(())
}

fn figures(mut trips: Vec<Duration>, count: u64, took: Duration, cpu: Duration) -> Figures {
    trips.sort_unstable();
    Figures {
        trip: trips[trips.len() / 2].as_secs_f64() * 1e6,
        rate: count as f64 / took.as_secs_f64(),
        cpu: cpu.as_secs_f64() * 1e6 / count as f64,
    }
}

fn print(who: &str, size: &str, figures: &Figures) {
    println!("{who}.trip.{size} {:.3}", figures.trip);
    println!("{who}.rate.{size} {:.0}", figures.rate);
    println!("{who}.cpu.{size} {:.3}", figures.cpu);
}

/// A message between the two threads. A buffer that was checked goes back.
type Buffer = (u64, Vec<u8>);

fn next(buffers: &Receiver<Buffer>) -> anyhow::Result<Buffer> {
    loop {
        match buffers.try_recv() {
            Ok(buffer) => return Ok(buffer),
            Err(TryRecvError::Empty) => spin_loop(),
            Err(TryRecvError::Disconnected) => anyhow::bail!("the other thread has ended"),
        }
    }
}

fn threads(bytes: usize, count: u64) -> anyhow::Result<Figures> {
    let (there, come): (SyncSender<Buffer>, _) = sync_channel(BUFFERS);
    let (back, free) = sync_channel(BUFFERS + 2);
    let consumer = std::thread::spawn(move || -> anyhow::Result<()> {
        pin(1);
        for _ in 0..WARM + 2 * count {
            let (number, data) = next(&come)?;
            ensure!(is_marked(&data, number), "the marks of frame {number} were wrong");
            // At the end nobody takes it.
            let _ = back.send((number, data));
        }
        Ok(())
    });
    let mut buffers: Vec<Vec<u8>> = (0..=BUFFERS).map(|_| vec![0; bytes]).collect();
    let send = |number: u64, mut data: Vec<u8>| -> anyhow::Result<()> {
        mark(&mut data, number);
        Ok(there.send((number, data))?)
    };
    let mut times = Vec::with_capacity(count as usize);
    for number in 0..WARM + count {
        let start = Instant::now();
        let data = buffers.pop().unwrap_or_default();
        send(number, data)?;
        buffers.push(next(&free)?.1);
        if number >= WARM {
            times.push(start.elapsed());
        }
    }
    let (start, before) = (Instant::now(), cpu());
    for number in 0..count {
        let data = match buffers.pop() {
            Some(data) => data,
            None => next(&free)?.1,
        };
        send(number, data)?;
    }
    // All are back when the last is.
    while buffers.len() <= BUFFERS {
        buffers.push(next(&free)?.1);
    }
    let (took, used) = (start.elapsed(), cpu() - before);
    drop(free);
    consumer.join().map_err(|_| anyhow::anyhow!("the other thread panicked"))??;
    Ok(figures(times, count, took, used))
}

/// Sends one buffer to each of several threads. They sleep while nothing comes: there may be more of them
/// than cores.
fn threads_fan_out(receivers: usize) -> anyhow::Result<f64> {
    let (bytes, count) = FAN_OUT;
    let mut senders: Vec<SyncSender<(u64, Arc<Vec<u8>>)>> = Vec::new();
    let mut threads = Vec::new();
    for receiver in 0..receivers {
        let (sender, come) = sync_channel(BUFFERS);
        senders.push(sender);
        threads.push(std::thread::spawn(move || -> anyhow::Result<()> {
            pin_beside(receiver);
            // This runs until the sender is dropped.
            for (number, data) in come {
                ensure!(is_marked(&data, number), "the marks of frame {number} were wrong");
            }
            Ok(())
        }));
    }
    // One buffer more than the channels hold, and one that each thread has taken out.
    let mut buffers: Vec<Arc<Vec<u8>>> = (0..BUFFERS + 2).map(|_| Arc::new(vec![0; bytes])).collect();
    let mut start = Instant::now();
    for number in 0..WARM + count {
        if number == WARM {
            start = Instant::now();
        }
        let at = number as usize % buffers.len();
        let buffer = loop {
            match Arc::get_mut(&mut buffers[at]) {
                Some(buffer) => break buffer,
                None => std::thread::yield_now(),
            }
        };
        mark(buffer, number);
        for sender in &senders {
            sender.send((number, buffers[at].clone()))?;
        }
    }
    drop(senders);
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a receiving thread panicked"))??;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / count as f64 / receivers as f64)
}

fn main() -> anyhow::Result<()> {
    let node = Node::builder().start()?;
    for (size, bytes, count) in SIZES {
        let consumer = node.spawn::<Consumer>(0).mailbox(MAILBOX).start()?;
        let producer = node.spawn::<Producer>(()).start()?;
        let run = Run { bytes, count, frames: consumer.address(), used: consumer.address() };
        let figures = node.block_on(producer.ask(run))?.map_err(anyhow::Error::msg)?;
        print("tensorpost", size, &figures);
    }
    for receivers in RECEIVERS {
        let consumers: Vec<_> = (0..receivers)
            .map(|number| node.spawn::<Consumer>(number).mailbox(MAILBOX).start())
            .collect::<Result<_, _>>()?;
        let producer = node.spawn::<Producer>(()).start()?;
        let (bytes, count) = FAN_OUT;
        let run = FanOut {
            bytes,
            count,
            frames: consumers.iter().map(|consumer| consumer.address()).collect(),
            used: consumers.iter().map(|consumer| consumer.address()).collect(),
        };
        let took = node.block_on(producer.ask(run))?.map_err(anyhow::Error::msg)?;
        println!("tensorpost.fanout.{receivers} {took:.3}");
    }
    pin(0);
    for (size, bytes, count) in SIZES {
        print("threads", size, &threads(bytes, count)?);
    }
    for receivers in RECEIVERS {
        println!("threads.fanout.{receivers} {:.3}", threads_fan_out(receivers)?);
    }
    Ok(())
}
