//! Plays the events of a seed, and checks how the graph copes.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tensorpost::device::Device;
use tensorpost::node::{WorkerId, WorkerState, WorkerStatus};
use tensorpost::prelude::{Address, Channel, Node, Restart};
use tensorpost::testing::{Usage, leaks};

use super::graph::{Emit, Measure, Ping, Seen, Sink, Source, Stage, Verdict};
use super::plan::{Event, Plan};
use crate::harness::Builder;

/// Restarts at once and without limit, because the run decides which workers die.
const RESTART: Restart = Restart::always(u32::MAX)
    .within(Duration::from_millis(200))
    .backoff(Duration::from_millis(1), Duration::from_millis(20));

/// How long the graph may take to serve again after a fault.
const RECOVERY: Duration = Duration::from_secs(30);

/// How long the last resources of dead workers may take to go.
const SETTLING: Duration = Duration::from_secs(30);

/// Threads that a process may have by the end. Each has its own, the control thread and its streams'; the
/// node also has those of the supervisor, the reader and the run.
const MOST_THREADS: usize = 10;

/// The name under which a shared mapping without a descriptor is listed. The framework makes none. With CUDA
/// there are 14 from the start, and once there was one more, so they are taken for the driver's.
const OF_THE_DRIVER: &str = "/dev/zero (deleted)";
/// Up to this many of them do not count as a leak.
const MOST_OF_THE_DRIVER: usize = 24;

/// How long the run waits for an armed fault to strike.
const STRIKES_IN: Duration = Duration::from_millis(400);

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed of the events.
    pub seed: u64,
    /// The number of events.
    pub faults: u64,
    /// When to end, even before all events were played.
    pub time: Option<Duration>,
    /// The device of the tensors.
    pub device: Device,
    /// After how many events everything is counted; the end counts too.
    pub count_every: u64,
    /// Prints each event.
    pub verbose: bool,
    /// After a failure, leaves everything as it is, for ever.
    pub hold: bool,
}

/// The findings of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Events played.
    pub faults: u64,
    /// How many processes these events ended.
    pub deaths: u64,
    /// Items that arrived as they had to be.
    pub right: u64,
    /// Items that could not be read at the sink because of a death.
    pub lost: u64,
    /// Items that the source was asked to make.
    pub emitted: u64,
    /// How often everything was counted.
    pub counted: u64,
    /// How long the graph took to serve again after each event that ended a process.
    pub recoveries: Recoveries,
}

/// How long the graph took to serve again, which means that 24 items that were made afterwards had arrived.
#[derive(Clone, Default)]
pub struct Recoveries(Vec<Duration>);

impl fmt::Debug for Recoveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let (Some(median), Some(longest)) = (sorted.get(sorted.len() / 2), sorted.last()) else {
            return f.write_str("none");
        };
        write!(f, "{} with median {median:.1?} and longest {longest:.1?}", sorted.len())
    }
}

/// A violated expectation.
#[derive(Debug)]
pub struct Failure {
    /// The violation.
    pub what: String,
    /// The event before it.
    pub after: String,
    /// The findings until then.
    pub report: Report,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, after event {} ({}); {:?}", self.what, self.report.faults, self.after, self.report)
    }
}

/// The sink's reports so far.
#[derive(Default)]
struct Arrivals {
    right: AtomicU64,
    lost: AtomicU64,
    wrong: Mutex<Option<String>>,
}

/// A worker of the graph.
struct Part {
    name: &'static str,
    worker: WorkerId,
    measure: Address<Measure>,
    ping: Address<Ping>,
}

struct Graph {
    node: Node,
    parts: Vec<Part>,
    emit: Address<Emit>,
    arrivals: Arc<Arrivals>,
    emitted: AtomicU64,
    paused: AtomicBool,
    ended: AtomicBool,
}

/// Plays a seed.
///
/// # Errors
/// [`Failure`] names the violated expectation, and the event before it.
pub fn run(builder: Builder, options: &Options) -> Result<Report, Failure> {
    let fail = |what: String| Failure { what, after: "the start".into(), report: Report::default() };
    let graph =
        Graph::start(builder, &options.device).map_err(|error| fail(format!("no graph: {error:#}")))?;
    let outcome = thread::scope(|scope| {
        scope.spawn(|| graph.feed());
        let outcome = graph.play(options);
        graph.ended.store(true, Ordering::SeqCst);
        outcome
    });
    if let Err(failure) = &outcome
        && options.hold
    {
        println!("held: {failure}");
        loop {
            thread::park();
        }
    }
    if outcome.is_ok() {
        drop(graph);
        let left = leaks().children;
        if !left.is_empty() {
            return Err(fail(format!("processes are left behind: {left:?}")));
        }
    }
    outcome
}

impl Graph {
    fn start(builder: Builder, device: &Device) -> anyhow::Result<Graph> {
        let node = builder.start()?;
        let (to, channel) = node.channel::<Seen>()?;
        let arrivals = Arc::new(Arrivals::default());
        let watched = Arc::clone(&arrivals);
        thread::Builder::new().name("arrivals".into()).spawn(move || watch(channel, &watched))?;
        let mut parts = Vec::new();
        macro_rules! start {
            ($name:literal, $actor:ty, $args:expr) => {{
                let spawned = node
                    .spawn::<$actor>($args)
                    .name($name)
                    .device(device.clone())
                    .restart(RESTART)
                    .start()?;
                let (measure, ping) = (spawned.address(), spawned.address());
                parts.push(Part { name: $name, worker: spawned.worker(), measure, ping });
                spawned
            }};
        }
        // From the sink to the source: each actor gets the addresses of its receivers as arguments.
        let sink = start!("sink", Sink, to);
        let forwarder = start!("forwarder", Stage, (vec![sink.address()], false));
        let seconds = [
            start!("second-0", Stage, (vec![forwarder.address()], true)).address(),
            start!("second-1", Stage, (vec![forwarder.address()], true)).address(),
        ];
        let firsts = [
            start!("first-0", Stage, (seconds.to_vec(), true)).address(),
            start!("first-1", Stage, (seconds.to_vec(), true)).address(),
        ];
        let source = start!("source", Source, firsts.to_vec());
        let emit = source.address();
        Ok(Graph {
            node,
            parts,
            emit,
            arrivals,
            emitted: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        })
    }

    /// Has the source make items until the end.
    fn feed(&self) {
        while !self.ended.load(Ordering::SeqCst) {
            if self.paused.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            let count = 8;
            let from = self.emitted.fetch_add(count, Ordering::SeqCst);
            let asked = self.emit.ask(Emit { from, count }).timeout(Duration::from_secs(2));
            if self.node.block_on(asked).is_err() {
                // The source may be restarting.
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn play(&self, options: &Options) -> Result<Report, Failure> {
        let begin = Instant::now();
        let mut plan = Plan::new(options.seed, self.parts.len());
        let mut report = Report::default();
        let mut after = "the start".to_owned();
        let fail = |what: String, after: &str, report: &Report| Failure {
            what,
            after: after.to_owned(),
            report: report.clone(),
        };
        // The baseline comes after the first items: links, chunks and streams are made by then.
        self.recover().map_err(|what| fail(what, &after, &report))?;
        let before = self.count(None).map_err(|what| fail(what, &after, &report))?;
        while report.faults < options.faults && options.time.is_none_or(|time| begin.elapsed() < time) {
            thread::sleep(plan.pause());
            let event = plan.event();
            after = event.to_string();
            if options.verbose {
                eprintln!("event {}: {after} (at {:?})", report.faults + 1, begin.elapsed());
            }
            report.faults += 1;
            let deaths = self.happen(&event);
            report.deaths += deaths;
            let recovered = self.recover();
            if let (Ok(took), 1..) = (&recovered, deaths) {
                report.recoveries.0.push(*took);
            }
            // The figures are taken before the check, so that a failure reports them too.
            report.right = self.arrivals.right.load(Ordering::SeqCst);
            report.lost = self.arrivals.lost.load(Ordering::SeqCst);
            report.emitted = self.emitted.load(Ordering::SeqCst);
            recovered.map_err(|what| fail(what, &after, &report))?;
            if report.faults.is_multiple_of(options.count_every) {
                self.count(Some(&before)).map_err(|what| fail(what, &after, &report))?;
                report.counted += 1;
            }
        }
        self.count(Some(&before)).map_err(|what| fail(what, &after, &report))?;
        report.counted += 1;
        Ok(report)
    }

    fn status(&self, part: &Part) -> Option<WorkerStatus> {
        self.node.supervisor().worker(part.worker)
    }

    /// Plays the event; returns how many processes it ended.
    fn happen(&self, event: &Event) -> u64 {
        match event {
            Event::Kill(victims) => {
                let victims = victims.iter().map(|victim| &self.parts[*victim]);
                victims.filter(|part| self.signal(part, Signal::KILL)).count() as u64
            }
            Event::Stop(victim, time) => {
                let part = &self.parts[*victim];
                if self.signal(part, Signal::STOP) {
                    thread::sleep(*time);
                    self.signal(part, Signal::CONT);
                }
                0
            }
            Event::Arm(victim, fault) => {
                let part = &self.parts[*victim];
                let Some(before) = self.status(part) else { return 0 };
                self.node.supervisor().arm(part.worker, fault.clone());
                let deadline = Instant::now() + STRIKES_IN;
                while Instant::now() < deadline {
                    let now = self.status(part);
                    if now.is_none_or(|now| now.process != before.process) {
                        return 1;
                    }
                    if is_stopped(before.pid) {
                        break;
                    }
                    thread::sleep(Duration::from_micros(500));
                }
                0
            }
        }
    }

    fn signal(&self, part: &Part, signal: Signal) -> bool {
        let status = self.status(part).filter(|status| matches!(status.state, WorkerState::Running));
        let pid = status.and_then(|status| Pid::from_raw(status.pid.cast_signed()));
        // A moment later the number may belong to another process. The node has not reaped a process that it
        // lists as running.
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// Continues the workers that an armed fault has stopped.
    fn continue_all(&self) {
        for part in &self.parts {
            if let Some(status) = self.status(part)
                && is_stopped(status.pid)
            {
                self.signal(part, Signal::CONT);
            }
        }
    }

    fn wrong(&self) -> Result<(), String> {
        let wrong = self.arrivals.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.clone().map_or(Ok(()), Err)
    }

    /// Waits until the graph serves again, so that items made from now on arrive.
    fn recover(&self) -> Result<Duration, String> {
        let begin = Instant::now();
        let before = self.arrivals.right.load(Ordering::SeqCst);
        while self.arrivals.right.load(Ordering::SeqCst) < before + 24 {
            self.wrong()?;
            if begin.elapsed() > RECOVERY {
                return Err(format!("the graph does not serve again: {}", self.describe()));
            }
            self.continue_all();
            thread::sleep(Duration::from_micros(500));
        }
        let took = begin.elapsed();
        self.wrong().map(|()| took)
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for part in &self.parts {
            let state = self.status(part).map(|s| format!("{:?} {} pid {}", s.state, s.process, s.pid));
            text += &format!("{}: {}; ", part.name, state.unwrap_or_else(|| "not listed".into()));
        }
        text + &format!("{:?}", self.node.transport())
    }

    /// Counts what every process uses while nothing is under way, and compares it with the count `before`.
    fn count(&self, before: Option<&Counted>) -> Result<Counted, String> {
        self.paused.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + SETTLING;
        let mut last: Option<Counted> = None;
        let counted = loop {
            self.continue_all();
            let late = Instant::now() > deadline;
            match self.measure() {
                Ok(now) => {
                    let open = match before {
                        Some(before) => before.growth(&now),
                        // Nothing moves any more.
                        None => last.as_ref().map_or(vec!["one look".into()], |last| last.growth(&now)),
                    };
                    let held = now.held();
                    if open.is_empty() && held.is_empty() {
                        break Ok(now);
                    }
                    if late {
                        break Err(format!("something is left: {open:?} {held:?}"));
                    }
                    last = Some(now);
                }
                Err(error) if late => break Err(error),
                Err(_) => {}
            }
            thread::sleep(Duration::from_millis(2));
        };
        self.paused.store(false, Ordering::SeqCst);
        self.wrong()?;
        counted
    }

    fn measure(&self) -> Result<Counted, String> {
        let mut usages = BTreeMap::new();
        for part in &self.parts {
            let others = self.parts.iter().filter(|other| other.name != part.name);
            let others = others.map(|other| other.ping.clone()).collect();
            let asked = part.measure.ask(Measure { others }).timeout(Duration::from_secs(10));
            let (usage, silent) =
                self.node.block_on(asked).map_err(|error| format!("{}: {error}", part.name))?;
            if !silent.is_empty() {
                return Err(format!("{} has no answer from others: {silent:?}", part.name));
            }
            usages.insert(part.name, usage);
        }
        // The node's own usage is read last, when the node has read everything.
        usages.insert("node", leaks());
        Ok(Counted(usages))
    }
}

/// The usage of every process.
struct Counted(BTreeMap<&'static str, Usage>);

impl Counted {
    /// Returns the counts that have grown.
    fn growth(&self, later: &Counted) -> Vec<String> {
        let mut grown = Vec::new();
        for (name, now) in &later.0 {
            let Some(before) = self.0.get(name) else { continue };
            // A stream's thread starts when it first has something to wait for.
            let mut before = Usage { threads: before.threads.max(MOST_THREADS), ..before.clone() };
            if let Some(count) = before.mappings.get_mut(OF_THE_DRIVER) {
                *count = (*count).max(MOST_OF_THE_DRIVER);
            }
            // A pool keeps chunks that it once needed.
            let now = Usage {
                chunk_bytes: before.chunk_bytes.clone(),
                descriptors: without_chunks(&now.descriptors),
                mappings: without_chunks(&now.mappings),
                held: without_chunks(&now.held),
                ..now.clone()
            };
            grown.extend(before.growth(&now).into_iter().map(|grown| format!("{name}: {grown}")));
        }
        grown
    }

    /// Returns what is held though nothing is under way.
    fn held(&self) -> Vec<String> {
        let mut held = Vec::new();
        for (name, usage) in &self.0 {
            for (what, count) in &usage.held {
                // The question itself is one message, and one ask of the node's.
                let own = what == "messages not done with" && *name != "node";
                let kept = what == "links" || what == "mapped chunks of others";
                if *count > usize::from(own) && !kept {
                    held.push(format!("{name}: {count} {what}"));
                }
            }
        }
        held
    }
}

/// Pools grow by chunks when several deaths keep memory at once, and every process that reads a chunk maps
/// it.
fn without_chunks(counts: &BTreeMap<String, usize>) -> BTreeMap<String, usize> {
    counts
        .iter()
        .filter(|(what, _)| !["memfd:tensorpost-chunk", "mapped chunks of others"].contains(&what.as_str()))
        .map(|(k, n)| (k.clone(), *n))
        .collect()
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Takes the sink's reports until the node ends.
fn watch(mut channel: Channel<Seen>, arrivals: &Arrivals) {
    let mut seen = HashSet::new();
    while let Ok(Seen { id, verdict }) = channel.blocking_recv() {
        let twice = !seen.insert(id);
        let wrong = match verdict {
            _ if twice => Some(format!("item {id} arrived twice")),
            Verdict::Right => None,
            Verdict::Wrong(what) => Some(format!("item {id} is wrong: {what}")),
            Verdict::Lost(_) => {
                arrivals.lost.fetch_add(1, Ordering::SeqCst);
                continue;
            }
        };
        match wrong {
            None => {
                arrivals.right.fetch_add(1, Ordering::SeqCst);
            }
            Some(wrong) => {
                arrivals.wrong.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(wrong);
            }
        }
    }
}
