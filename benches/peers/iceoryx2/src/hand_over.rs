//! Hands memory over by iceoryx2, with both sides polling without a pause as in its own benchmarks, and does
//! the work of `hand_over`.
//!
//! A fresh sample is loaned without being initialised, its first and last bytes are written, it is sent, and
//! the other process checks them. A trip is answered with a number; a stream waits only where the receiver's
//! buffer is full. Prints lines of a name and a number: microseconds a trip, messages a second, microseconds
//! of processor time a message of both processes, microseconds a message and receiver where one sample goes
//! to each of several processes.

use std::hint::spin_loop;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::process::Process;

type Service = ipc::Service;

const SIZES: [(&str, usize, u64); 3] =
    [("4KiB", 4 << 10, 100_000), ("1MiB", 1 << 20, 50_000), ("64MiB", 64 << 20, 5_000)];
/// The numbers of receivers of one sample of [`FAN_OUT`] bytes.
const RECEIVERS: [usize; 2] = [1, 8];
const FAN_OUT: (usize, u64) = (1 << 20, 20_000);
const MARK: usize = size_of::<u64>();
/// As many as a mailbox of `hand_over` takes.
const BUFFER: usize = 16;
const WARM: u64 = 1_000;
const WAIT_FOR_START: Duration = Duration::from_secs(30);

/// Returns the cores that this process may use: two that talk need one each.
fn cores() -> anyhow::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    ensure!(cores.len() >= 2, "two processes that look need a core each");
    Ok(cores)
}

/// Pauses between two looks. Where others wait for this core, they must get it: no message comes before that.
fn pause(crowded: bool) {
    if crowded { std::thread::yield_now() } else { spin_loop() }
}

/// Keeps this process, and its children, on this core.
fn pin(core: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32) // below a thousand million
}

/// The two directions of one size, as the sender has them.
struct Near {
    there: Publisher<Service, [u8], ()>,
    back: Subscriber<Service, u64, ()>,
    receivers: usize,
    crowded: bool,
}

/// The two directions, as the receiver has them.
struct Far {
    there: Subscriber<Service, [u8], ()>,
    back: Publisher<Service, u64, ()>,
    crowded: bool,
}

type Directions = (PortFactory<Service, [u8], ()>, PortFactory<Service, u64, ()>);

const STRATEGY: BackpressureStrategy = BackpressureStrategy::RetryUntilDelivered;

fn directions(name: &str, receivers: usize) -> anyhow::Result<Directions> {
    let node =
        NodeBuilder::new().create::<Service>().map_err(|error| anyhow::anyhow!("a node: {error:?}"))?;
    let there = node
        .service_builder(&format!("{name}/there").as_str().try_into()?)
        .publish_subscribe::<[u8]>()
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size(BUFFER)
        .max_subscribers(receivers)
        .open_or_create()?;
    let back = node
        .service_builder(&format!("{name}/back").as_str().try_into()?)
        .publish_subscribe::<u64>()
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size(BUFFER)
        .max_publishers(receivers)
        .open_or_create()?;
    Ok((there, back))
}

impl Near {
    fn open(name: &str, bytes: usize, receivers: usize, crowded: bool) -> anyhow::Result<Self> {
        let (there, back) = directions(name, receivers)?;
        Ok(Near {
            there: there
                .publisher_builder()
                .initial_max_slice_len(bytes)
                .backpressure_strategy(STRATEGY)
                .create()?,
            back: back.subscriber_builder().create()?,
            receivers,
            crowded,
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

    fn reply(&self) -> anyhow::Result<u64> {
        loop {
            if let Some(sample) = self.back.receive()? {
                return Ok(*sample);
            }
            pause(self.crowded);
        }
    }

    /// Returns each receiver's next reply.
    fn replies(&self) -> anyhow::Result<Vec<u64>> {
        (0..self.receivers).map(|_| self.reply()).collect()
    }
}

impl Far {
    fn open(name: &str, receivers: usize, crowded: bool) -> anyhow::Result<Self> {
        let (there, back) = directions(name, receivers)?;
        Ok(Far {
            there: there.subscriber_builder().create()?,
            back: back.publisher_builder().backpressure_strategy(STRATEGY).create()?,
            crowded,
        })
    }

    /// Returns the number of the next message, if its marks are right.
    fn take(&self) -> anyhow::Result<u64> {
        let sample = loop {
            if let Some(sample) = self.there.receive()? {
                break sample;
            }
            pause(self.crowded);
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

/// A measurement: trips first, those of [`WARM`] among them, then a stream.
struct Plan {
    name: String,
    bytes: usize,
    trips: u64,
    count: u64,
    receivers: usize,
    /// Whether there are fewer cores than processes.
    crowded: bool,
}

/// The other process: answers all trips, then the last message of the stream with its processor time in
/// nanoseconds.
fn answer(plan: &Plan, core: usize) -> anyhow::Result<()> {
    pin(core)?;
    let ends = Far::open(&plan.name, plan.receivers, plan.crowded)?;
    ends.reply(0)?;
    for _ in 0..plan.trips {
        ends.reply(ends.take()?)?;
    }
    let before = cpu();
    for number in 0..plan.count {
        ensure!(ends.take()? == number, "out of order");
    }
    ends.reply((cpu() - before).as_nanos() as u64)
}

fn start(plan: &Plan, core: usize) -> anyhow::Result<Process> {
    let Plan { name, trips, count, receivers, crowded, .. } = plan;
    let numbers = [*trips, *count, *receivers as u64, u64::from(*crowded), core as u64];
    let numbers = numbers.map(|number| number.to_string());
    Process::start(Command::new(std::env::current_exe()?).args(["answer", name]).args(numbers))
}

/// The results.
struct Figures {
    trips: Vec<Duration>,
    took: Duration,
    cpu: Duration,
}

fn measure(plan: &Plan, cores: &[usize]) -> anyhow::Result<Figures> {
    let ends = Near::open(&plan.name, plan.bytes, plan.receivers, plan.crowded)?;
    let core = |number: usize| cores[1 + number % (cores.len() - 1)];
    let mut others: Vec<Process> =
        (0..plan.receivers).map(|number| start(plan, core(number))).collect::<Result<_, _>>()?;
    let (start, mut ready) = (Instant::now(), 0);
    while ready < others.len() {
        ready += usize::from(ends.back.receive()?.is_some());
        for other in &mut others {
            ensure!(
                other.ended()?.is_none() && start.elapsed() < WAIT_FOR_START,
                "another process did not start"
            );
        }
        pause(plan.crowded);
    }
    let mut trips = Vec::with_capacity(plan.trips as usize);
    for number in 0..plan.trips {
        let start = Instant::now();
        ends.send(number, plan.bytes)?;
        ensure!(ends.replies()?.iter().all(|reply| *reply == number), "another one's answer");
        if number >= WARM {
            trips.push(start.elapsed());
        }
    }
    trips.sort_unstable();
    let (start, before) = (Instant::now(), cpu());
    for number in 0..plan.count {
        ends.send(number, plan.bytes)?;
    }
    let own = cpu() - before;
    let others = Duration::from_nanos(ends.replies()?.iter().sum());
    Ok(Figures { trips, took: start.elapsed(), cpu: own + others })
}

fn hand_over(size: &str, bytes: usize, count: u64, cores: &[usize]) -> anyhow::Result<()> {
    let name = format!("tensorpost/peer/{}/{size}", std::process::id());
    let plan = Plan { name, bytes, trips: WARM + count, count, receivers: 1, crowded: false };
    let Figures { trips, took, cpu } = measure(&plan, cores)?;
    println!("iceoryx2.trip.{size} {:.3}", trips[trips.len() / 2].as_secs_f64() * 1e6);
    println!("iceoryx2.rate.{size} {:.0}", count as f64 / took.as_secs_f64());
    println!("iceoryx2.cpu.{size} {:.3}", cpu.as_secs_f64() * 1e6 / count as f64);
    Ok(())
}

fn fan_out(receivers: usize, cores: &[usize]) -> anyhow::Result<()> {
    let name = format!("tensorpost/peer/{}/to-{receivers}", std::process::id());
    let ((bytes, count), crowded) = (FAN_OUT, cores.len() <= receivers);
    let took = measure(&Plan { name, bytes, trips: WARM, count, receivers, crowded }, cores)?.took;
    println!(
        "iceoryx2.fanout.{receivers} {:.3}",
        took.as_secs_f64() * 1e6 / (count * receivers as u64) as f64
    );
    Ok(())
}

/// Runs the other process, with these arguments.
pub(crate) fn other(words: &[&str]) -> anyhow::Result<()> {
    let [name, trips, count, receivers, crowded, core] = words else { bail!("an answer has six words") };
    let plan = Plan {
        name: (*name).to_owned(),
        bytes: 0, // it has what comes
        trips: trips.parse()?,
        count: count.parse()?,
        receivers: receivers.parse()?,
        crowded: *crowded != "0",
    };
    answer(&plan, core.parse()?)
}

/// Runs all measurements.
pub(crate) fn run() -> anyhow::Result<()> {
    let cores = cores()?;
    pin(cores[0])?;
    for (size, bytes, count) in SIZES {
        hand_over(size, bytes, count, &cores).with_context(|| size.to_owned())?;
    }
    for receivers in RECEIVERS {
        fan_out(receivers, &cores).with_context(|| format!("to {receivers} receivers"))?;
    }
    Ok(())
}
