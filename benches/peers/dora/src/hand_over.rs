//! Hands fresh memory to another process, and to eight.
//!
//! A sample is allocated in the node's shared memory, its first and last bytes are written, it is sent, and
//! the sinks check them. A trip is answered. The shared-memory path has no brake, and may lose messages: they
//! are dropped where a queue is full, or where zenoh's threads do not get on for a millisecond. So the sinks
//! report now and then how far they are, and which messages they miss. The source has no more under way than
//! a mailbox of `hand_over` holds, and sends again from the first that is missed. All arrive, in order.
//! Prints lines of a name and a number: microseconds a trip, messages a second, microseconds of processor
//! time a message of the nodes and the daemon, and microseconds a message and receiver. The last is how many
//! of a million messages were sent again.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use dora_node_api::dora_core::config::DataId;
use dora_node_api::{DoraArray, DoraNode, Event, EventStream, IntoArrow as _};

use crate::cpu;
use crate::dataflow::{self, Node};

const SIZES: [(&str, usize, u64); 3] =
    [("4KiB", 4 << 10, 20_000), ("1MiB", 1 << 20, 10_000), ("64MiB", 64 << 20, 1_000)];
/// The numbers of receivers of one tensor of [`FAN_OUT`] bytes.
const RECEIVERS: [usize; 2] = [1, 8];
const FAN_OUT: (usize, u64) = (1 << 20, 5_000);
const FAN_OUT_NAME: &str = "fanout";
const MARK: usize = size_of::<u64>();
const WARM: u64 = 500;
/// As many as a mailbox of `hand_over` takes.
const WINDOW: u64 = 16;
/// A sink reports after this many.
const HALF: u64 = WINDOW / 2;
/// More samples, for messages that are on their way or just checked, and for headers and alignment.
const MORE: usize = 8;
const FRAMES: &str = "frames";
/// Without a report for this long, all messages under way are sent again.
const RESEND: Duration = Duration::from_millis(100);
/// After this many attempts the source gives up.
const ATTEMPTS: u32 = 200;

/// The work of a dataflow.
pub(crate) struct Plan {
    bytes: usize,
    /// The number of trips, and then of messages in the stream.
    count: u64,
    receivers: usize,
    /// The name of the figures.
    name: String,
}

impl Plan {
    pub(crate) fn parse(words: &[&str]) -> anyhow::Result<Self> {
        let [bytes, count, receivers, name] = words else { bail!("a plan has four words") };
        Ok(Plan {
            bytes: bytes.parse()?,
            count: count.parse()?,
            receivers: receivers.parse()?,
            name: (*name).to_owned(),
        })
    }

    /// Trips come first; in a fan-out they only warm up.
    fn trips(&self) -> u64 {
        if self.name == FAN_OUT_NAME { WARM } else { WARM + self.count }
    }

    fn words(&self) -> String {
        format!("{} {} {} {}", self.bytes, self.count, self.receivers, self.name)
    }

    fn nodes(&self) -> Vec<Node> {
        let sinks = 0..self.receivers;
        let source = Node {
            id: "source".to_owned(),
            arguments: format!("source {}", self.words()),
            inputs: sinks
                .clone()
                .map(|sink| (format!("taken-{sink}"), format!("sink-{sink}/taken")))
                .collect(),
            outputs: vec![FRAMES.to_owned()],
            queue: 4 * WINDOW as usize,
            pool: (self.bytes + (64 << 10)) * (WINDOW as usize + MORE),
        };
        let sinks = sinks.map(|sink| Node {
            id: format!("sink-{sink}"),
            arguments: format!("sink {sink} {}", self.words()),
            inputs: vec![(FRAMES.to_owned(), format!("source/{FRAMES}"))],
            outputs: vec!["taken".to_owned()],
            queue: 4 * WINDOW as usize,
            pool: 1 << 20,
        });
        std::iter::once(source).chain(sinks).collect()
    }
}

/// The driver's part.
pub(crate) fn run(dora: &Path) -> anyhow::Result<()> {
    let sizes = SIZES.iter().map(|(size, bytes, count)| Plan {
        bytes: *bytes,
        count: *count,
        receivers: 1,
        name: (*size).to_owned(),
    });
    let fan_out = RECEIVERS.iter().map(|receivers| Plan {
        bytes: FAN_OUT.0,
        count: FAN_OUT.1,
        receivers: *receivers,
        name: FAN_OUT_NAME.to_owned(),
    });
    for plan in sizes.chain(fan_out) {
        let lines = dataflow::run(dora, &plan.nodes(), &[])
            .with_context(|| format!("{} to {} receivers", plan.name, plan.receivers))?;
        print!("{lines}");
    }
    Ok(())
}

/// Returns the processor time of the daemon, which started this node. It is in ticks of the clock, of which a
/// stream takes many.
fn daemon_cpu() -> anyhow::Result<Duration> {
    let daemon = rustix::process::getppid().context("the daemon has ended")?;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.as_raw_nonzero()))?;
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    let ticks: Vec<u64> =
        fields.split_whitespace().skip(11).take(2).map_while(|field| field.parse().ok()).collect();
    ensure!(ticks.len() == 2, "the daemon's processor time is not in its /proc file");
    Ok(Duration::from_secs(ticks.iter().sum()) / rustix::param::clock_ticks_per_second() as u32)
}

/// The node that sends, with the progress and the processor time of each sink.
struct Source {
    node: DoraNode,
    events: EventStream,
    frames: DataId,
    bytes: usize,
    taken: HashMap<DataId, (u64, Duration)>,
    /// Messages that were sent more than once.
    again: u64,
}

impl Source {
    fn open(plan: &Plan) -> anyhow::Result<Self> {
        let (node, events) = DoraNode::init_from_env()?;
        let sinks =
            (0..plan.receivers).map(|sink| (DataId::from(format!("taken-{sink}")), Default::default()));
        Ok(Source {
            node,
            events,
            frames: DataId::from(FRAMES.to_owned()),
            bytes: plan.bytes,
            taken: sinks.collect(),
            again: 0,
        })
    }

    /// Returns the number of messages that all sinks have.
    fn slowest(&self) -> u64 {
        self.taken.values().map(|(taken, _)| *taken).min().unwrap_or(0)
    }

    fn sinks_cpu(&self) -> Duration {
        self.taken.values().map(|(_, cpu)| *cpu).sum()
    }

    fn send(&mut self, number: u64) -> anyhow::Result<()> {
        let end = self.bytes - MARK;
        self.node.send_output_raw(self.frames.clone(), Default::default(), self.bytes, |data| {
            data[..MARK].copy_from_slice(&number.to_le_bytes());
            data[end..].copy_from_slice(&number.to_le_bytes());
        })?;
        Ok(())
    }

    /// Waits for a sink's next report, and returns whether the sink misses a message. Returns none where no
    /// report comes in time.
    fn hear(&mut self) -> anyhow::Result<Option<bool>> {
        loop {
            match self.events.recv_timeout(RESEND) {
                Some(Event::Input { id, data, .. }) => {
                    let said: &[u64] = (&data).try_into().map_err(|error| anyhow::anyhow!("{error}"))?;
                    let [taken, misses, nanoseconds] = said else {
                        bail!("a sink said {} numbers", said.len())
                    };
                    self.taken.insert(id, (*taken, Duration::from_nanos(*nanoseconds)));
                    return Ok(Some(*misses != 0));
                }
                Some(Event::Error(_)) => return Ok(None), // dora's event for a time that is up
                Some(Event::Stop(_)) | None => bail!("stopped; the sinks have {:?}", self.taken),
                Some(_) => {}
            }
        }
    }

    /// Sends these, no more than `window` ahead of the slowest sink, until all have them.
    fn deliver(&mut self, numbers: Range<u64>, window: u64) -> anyhow::Result<()> {
        let (mut next, mut silent) = (numbers.start, 0);
        while self.slowest() < numbers.end {
            if next < numbers.end.min(self.slowest() + window) {
                self.send(next)?;
                next += 1;
                continue;
            }
            let heard = self.hear()?;
            silent = if heard.is_some() { 0 } else { silent + 1 };
            ensure!(silent < ATTEMPTS, "message {next} is not answered; the sinks have {:?}", self.taken);
            if heard != Some(false) {
                // A sink that has more messages does not mind.
                self.again += next.saturating_sub(self.slowest());
                next = next.min(self.slowest());
            }
        }
        Ok(())
    }
}

/// The node that sends and measures.
pub(crate) fn source(plan: &Plan) -> anyhow::Result<()> {
    let mut source = Source::open(plan)?;
    let trips = plan.trips();
    let mut times = Vec::with_capacity(plan.count as usize);
    for number in 0..trips {
        let start = Instant::now();
        source.deliver(number..number + 1, 1)?;
        if number >= WARM {
            times.push(start.elapsed());
        }
    }
    let (others, daemon, own, start) = (source.sinks_cpu(), daemon_cpu()?, cpu(), Instant::now());
    source.deliver(trips..trips + plan.count, WINDOW)?;
    let took = start.elapsed();
    let used = cpu() - own + (source.sinks_cpu() - others) + daemon_cpu()?.saturating_sub(daemon);
    let Plan { name, receivers, count, .. } = plan;
    let results = std::env::var_os(dataflow::RESULTS).context("a node of this program's own dataflow")?;
    let count = *count as f64;
    let lines = if name == FAN_OUT_NAME {
        format!(
            "dora.{FAN_OUT_NAME}.{receivers} {:.3}\n",
            took.as_secs_f64() * 1e6 / count / *receivers as f64
        )
    } else {
        times.sort_unstable();
        let trip = times[times.len() / 2].as_secs_f64() * 1e6;
        let (rate, cpu) = (count / took.as_secs_f64(), used.as_secs_f64() * 1e6 / count);
        let again = source.again as f64 * 1e6 / (trips as f64 + count);
        format!(
            "dora.trip.{name} {trip:.3}\ndora.rate.{name} {rate:.0}\ndora.cpu.{name} {cpu:.3}\ndora.again.{name} {again:.0}\n"
        )
    };
    std::fs::write(results, lines)?;
    Ok(())
}

/// The node that checks. It reports its progress after each trip, then after each half window, and where it
/// misses a message.
pub(crate) fn sink(number: &str, plan: &Plan) -> anyhow::Result<()> {
    let (mut node, mut events) = DoraNode::init_from_env()?;
    let taken = DataId::from("taken".to_owned());
    let (trips, all) = (plan.trips(), plan.trips() + plan.count);
    let (mut seen, mut misses) = (0, false);
    while let Some(event) = events.recv() {
        let data = match event {
            Event::Input { data, .. } => data,
            Event::Stop(_) => break,
            Event::Error(error) => bail!("sink {number}: {error}"),
            _ => continue,
        };
        let came = marks(&data, plan.bytes).with_context(|| format!("sink {number}, message {seen}"))?;
        drop(data);
        let says = if came == seen {
            seen += 1;
            misses = false;
            seen <= trips || seen.is_multiple_of(HALF) || seen == all
        } else {
            // A message that comes twice is answered again: the answer may have been lost. A message that
            // comes too early is reported once.
            let first = !misses;
            misses = came > seen;
            first || !misses
        };
        if says {
            let said = vec![seen, u64::from(misses), cpu().as_nanos() as u64];
            node.send_output(taken.clone(), Default::default(), said.into_arrow())?;
        }
    }
    ensure!(seen == all, "sink {number} has {seen} of {all} messages");
    Ok(())
}

/// Returns the number that is at both ends of a message.
fn marks(data: &DoraArray, bytes: usize) -> anyhow::Result<u64> {
    let data: &[u8] = data.try_into().map_err(|error| anyhow::anyhow!("{error}"))?;
    ensure!(data.len() == bytes, "{} bytes came, must be {bytes}", data.len());
    let (first, last) = (&data[..MARK], &data[bytes - MARK..]);
    ensure!(first == last, "the marks differ");
    Ok(u64::from_le_bytes(first.try_into()?))
}
