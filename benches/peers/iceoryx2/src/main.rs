//! Handing memory over by iceoryx2, both sides looking without a pause: what its own benchmarks do, with the work of `hand_over`.
//!
//! A fresh sample is loaned without being initialised, its first and last bytes are written, it is sent, and the other process
//! checks them. A trip is answered with a number; a stream waits only where the receiver's buffer is full. Prints lines of a name
//! and a number: microseconds a trip, messages a second, microseconds of processor time a message of both processes.

use std::hint::spin_loop;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

type Service = ipc::Service;

const SIZES: [(&str, usize, u64); 3] =
    [("4KiB", 4 << 10, 100_000), ("1MiB", 1 << 20, 50_000), ("64MiB", 64 << 20, 5_000)];
const MARK: usize = size_of::<u64>();
/// As many as a mailbox of `hand_over` takes.
const BUFFER: usize = 16;
const WARM: u64 = 1_000;
const PATIENCE: Duration = Duration::from_secs(30);

/// Two of the cores that this process may use: those that talk need one each.
fn two_cores() -> anyhow::Result<[usize; 2]> {
    let allowed = sched_getaffinity(None)?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    match (cores.next(), cores.next()) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => anyhow::bail!("two processes that look need a core each"),
    }
}

/// Keeps this process, and those that it starts, on this core.
fn pin(core: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32) // below a thousand million
}

/// The two directions of one size, as the one who sends has them.
struct Near {
    there: Publisher<Service, [u8], ()>,
    back: Subscriber<Service, u64, ()>,
}

/// As the one who answers has them.
struct Far {
    there: Subscriber<Service, [u8], ()>,
    back: Publisher<Service, u64, ()>,
}

type Directions = (PortFactory<Service, [u8], ()>, PortFactory<Service, u64, ()>);

const STRATEGY: BackpressureStrategy = BackpressureStrategy::RetryUntilDelivered;

fn directions(name: &str) -> anyhow::Result<Directions> {
    let node =
        NodeBuilder::new().create::<Service>().map_err(|error| anyhow::anyhow!("a node: {error:?}"))?;
    let there = node
        .service_builder(&format!("{name}/there").as_str().try_into()?)
        .publish_subscribe::<[u8]>()
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size(BUFFER)
        .open_or_create()?;
    let back = node
        .service_builder(&format!("{name}/back").as_str().try_into()?)
        .publish_subscribe::<u64>()
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size(BUFFER)
        .open_or_create()?;
    Ok((there, back))
}

impl Near {
    fn open(name: &str, bytes: usize) -> anyhow::Result<Self> {
        let (there, back) = directions(name)?;
        Ok(Near {
            there: there
                .publisher_builder()
                .initial_max_slice_len(bytes)
                .backpressure_strategy(STRATEGY)
                .create()?,
            back: back.subscriber_builder().create()?,
        })
    }

    fn send(&self, number: u64, bytes: usize) -> anyhow::Result<()> {
        let mut sample = self.there.loan_slice_uninit(bytes)?;
        let payload = sample.payload_mut();
        for (at, byte) in number.to_le_bytes().into_iter().enumerate() {
            payload[at].write(byte);
            payload[bytes - MARK + at].write(byte);
        }
        // SAFETY: any bits are bytes, and this memory has some.
        unsafe { sample.assume_init() }.send()?;
        Ok(())
    }

    fn replied(&self) -> anyhow::Result<u64> {
        loop {
            if let Some(sample) = self.back.receive()? {
                return Ok(*sample);
            }
            spin_loop();
        }
    }
}

impl Far {
    fn open(name: &str) -> anyhow::Result<Self> {
        let (there, back) = directions(name)?;
        Ok(Far {
            there: there.subscriber_builder().create()?,
            back: back.publisher_builder().backpressure_strategy(STRATEGY).create()?,
        })
    }

    /// The number of the next one that came, if its marks are right.
    fn take(&self) -> anyhow::Result<u64> {
        let sample = loop {
            if let Some(sample) = self.there.receive()? {
                break sample;
            }
            spin_loop();
        };
        let (first, last) = (&sample[..MARK], &sample[sample.len() - MARK..]);
        ensure!(first == last, "the marks differ");
        Ok(u64::from_le_bytes(first.try_into()?))
    }

    fn reply(&self, number: u64) -> anyhow::Result<()> {
        self.back.send_copy(number)?;
        Ok(())
    }
}

/// The other process: answers all trips, then the last of the stream with its processor time in nanoseconds.
fn answer(name: &str, count: u64, core: usize) -> anyhow::Result<()> {
    pin(core)?;
    let ends = Far::open(name)?;
    ends.reply(0)?;
    for _ in 0..WARM + count {
        ends.reply(ends.take()?)?;
    }
    let before = cpu();
    for number in 0..count {
        ensure!(ends.take()? == number, "out of order");
    }
    ends.reply((cpu() - before).as_nanos() as u64)
}

struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure(size: &str, bytes: usize, count: u64, other_core: usize) -> anyhow::Result<()> {
    let name = format!("tensorpost/peer/{}/{size}", std::process::id());
    let ends = Near::open(&name, bytes)?;
    let arguments = ["answer", &name, &count.to_string(), &other_core.to_string()];
    let mut other = Other(Command::new(std::env::current_exe()?).args(arguments).spawn()?);
    let start = Instant::now();
    while ends.back.receive()?.is_none() {
        ensure!(
            other.0.try_wait()?.is_none() && start.elapsed() < PATIENCE,
            "the other process did not start"
        );
    }
    let mut times = Vec::with_capacity(count as usize);
    for number in 0..WARM + count {
        let start = Instant::now();
        ends.send(number, bytes)?;
        ensure!(ends.replied()? == number, "another one's answer");
        if number >= WARM {
            times.push(start.elapsed());
        }
    }
    times.sort_unstable();
    println!("iceoryx2.trip.{size} {:.3}", times[times.len() / 2].as_secs_f64() * 1e6);
    let (start, before) = (Instant::now(), cpu());
    for number in 0..count {
        ends.send(number, bytes)?;
    }
    let own = cpu() - before;
    let others = Duration::from_nanos(ends.replied()?);
    println!("iceoryx2.rate.{size} {:.0}", count as f64 / start.elapsed().as_secs_f64());
    println!("iceoryx2.cpu.{size} {:.3}", (own + others).as_secs_f64() * 1e6 / count as f64);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, name, count, core] = &arguments[..]
        && role == "answer"
    {
        return answer(name, count.parse()?, core.parse()?);
    }
    ensure!(arguments.is_empty(), "it takes no arguments");
    let [first, second] = two_cores()?;
    pin(first)?;
    for (size, bytes, count) in SIZES {
        measure(size, bytes, count, second).with_context(|| size.to_owned())?;
    }
    Ok(())
}
