//! Live metrics: what every actor and process has done and has before it.
//!
//! A [`Metrics`] is one look at all processes of a node. Counts only grow, so two looks give a rate
//! ([`rows`]). Asking costs the processes a control packet each and no actor anything; a process that does
//! not answer in time is named in [`Metrics::silent`]. Each process's control thread answers, so an actor
//! that stands in a handler is seen too.
//!
//! A handler is timed with the look at the clock that its turn takes anyway, so metrics are always on. Times
//! are of the call alone, not of the future it returns, and right to an eighth. What others have given back
//! when a process answers counts as given back. Counts begin anew with each life of a process.
//!
//! What user code in workers says with the macros of the `metrics` crate is in `user`; it goes to the node's
//! recorder.
//!
//! [`rows`]: Metrics::rows

mod export;
mod histogram;
mod tally;
pub(crate) mod user;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use export::export;
pub use histogram::Histogram;
pub(crate) use histogram::Meter;
pub(crate) use tally::Tally;

use super::list::at_most;
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::limits::MAX_ACTORS;

/// How long a process has to say its metrics.
pub(crate) const DEADLINE: Duration = Duration::from_secs(1);

/// One actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorMetrics {
    /// Its identity in the node.
    pub actor: ActorId,
    /// Its name.
    pub name: String,
    /// The device that its stream is on.
    pub device: DeviceId,
    /// Messages that its mailbox has room for, from each sending process.
    pub capacity: u32,
    /// Handler calls that have returned.
    pub handled: u64,
    /// What it has made and passed on, as it counts itself
    /// ([`Env::note_emitted`](crate::actor::Env::note_emitted)); sources and stages of pipelines do.
    pub emitted: u64,
    /// What it has dropped because who was to take it had no room
    /// ([`Env::note_dropped`](crate::actor::Env::note_dropped)).
    pub dropped: u64,
    /// Times at which it was to make something and did not, because it was late
    /// ([`Env::note_missed`](crate::actor::Env::note_missed)).
    pub missed: u64,
    /// Messages in its mailbox that no handler was called for yet.
    pub queued: usize,
    /// Time in handlers, all together.
    pub busy: Duration,
    /// The longest handler call.
    pub longest: Duration,
    /// How long its handler calls took. What a handler leaves to a future is not in it.
    pub handler: Histogram,
    /// Waits that were put on its stream, because a tensor was not ready when it was delivered or used.
    pub waits: u64,
    /// How long its stream stood in them. `None` where the device does not tell: a GPU's stream.
    pub waited: Option<Duration>,
    /// Whether it counts what it emits, drops and misses, in this order. What it does count is in the
    /// recorder and on the live page from the start, with a 0.
    #[serde(default)]
    pub counted: [bool; 3],
}

/// One process. Counts are since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMetrics {
    /// Frames sent to other processes.
    pub sent: u64,
    /// Frames taken from other processes.
    pub received: u64,
    /// Frames and notices refused because they were malformed or forged (WIRE-1).
    pub rejected: u64,
    /// Messages that no actor took.
    pub dead_letters: u64,
    /// Bytes of tensors that went along as leases instead of being copied.
    pub bytes_not_copied: u64,
    /// Messages delivered and not done with.
    pub open: usize,
    /// Bytes of its own memory that other processes have leases on: what is in flight or held elsewhere.
    pub bytes_in_flight: u64,
    /// Bytes of its own memory that anybody holds.
    pub bytes_held: u64,
    /// Bytes of its pools, used or not.
    pub pool_bytes: u64,
    /// Bytes of memory that it has in use, on the host: its own, and what it shares and has touched. Of a
    /// process with a GPU most are its driver's.
    #[serde(default)]
    pub resident_bytes: u64,
    /// Its actors.
    #[serde(deserialize_with = "at_most::<{ MAX_ACTORS + 1 }, _, _>")]
    pub actors: Vec<ActorMetrics>,
}

/// How far a process is, or an actor with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ProcessState {
    /// It was started and is not ready.
    Starting,
    /// It runs.
    Running,
    /// It runs, and has not answered in time.
    Silent,
    /// It was told to end, or is being killed.
    Ending,
    /// It has ended and is started again.
    Restarting,
    /// It has ended.
    Ended,
    /// It waits to take the place of one that ends.
    Spare,
}

impl fmt::Display for ProcessState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ProcessState::Starting => "starting",
            ProcessState::Running => "running",
            ProcessState::Silent => "silent",
            ProcessState::Ending => "ending",
            ProcessState::Restarting => "restarting",
            ProcessState::Ended => "ended",
            ProcessState::Spare => "spare",
        })
    }
}

/// One process with its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedProcess {
    /// Its host, where it is another one: its number and name.
    pub host: Option<String>,
    /// The process, as its host numbers them.
    pub process: ProcessId,
    /// The worker's name; `"node"` for the node itself.
    pub name: String,
    /// How far it is.
    pub state: ProcessState,
    /// How often it was restarted, or an actor in it.
    pub restarts: u32,
    /// Its metrics.
    pub metrics: ProcessMetrics,
}

/// One look at all processes of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The processes that answered, the node first; behind those of this host, on the head, those of the
    /// others.
    pub processes: Vec<NamedProcess>,
    /// The processes that did not answer within a second, and other hosts that did not in time.
    pub silent: Vec<String>,
}

/// One actor, as a line of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its host, where it is another one: its number and name.
    pub host: Option<String>,
    /// Its process's name.
    pub process: String,
    /// Its name.
    pub name: String,
    /// The device that its stream is on.
    pub device: DeviceId,
    /// How far its process is.
    pub state: ProcessState,
    /// How often its process was restarted, or an actor in it.
    pub restarts: u32,
    /// Handler calls, all of them.
    pub handled: u64,
    /// What it made and passed on, all of it.
    pub emitted: u64,
    /// What it dropped, all of it.
    pub dropped: u64,
    /// Handler calls per second since the earlier look.
    pub rate: f64,
    /// Messages in its mailbox.
    pub queued: usize,
    /// Messages that its mailbox has room for, from each sending process.
    pub capacity: u32,
    /// Half of its handler calls since the earlier look took no longer than this.
    pub p50: Option<Duration>,
    /// 99 of 100 did.
    pub p99: Option<Duration>,
    /// The share of the time since the earlier look that it spent in handlers, 0 to 1.
    pub busy: f64,
    /// How long its stream stood in waits since the earlier look, where the device tells.
    pub waited: Option<Duration>,
}

impl Metrics {
    /// Bytes that processes have lent to each other at this moment.
    pub fn bytes_in_flight(&self) -> u64 {
        let bytes = self.processes.iter().map(|process| process.metrics.bytes_in_flight);
        bytes.fold(0, u64::saturating_add)
    }

    /// One actor, in whatever process it is.
    pub fn actor(&self, actor: ActorId) -> Option<&ActorMetrics> {
        self.actors().map(|(_, of)| of).find(|of| of.actor == actor)
    }

    /// All actors, with their processes' names.
    pub fn actors(&self) -> impl Iterator<Item = (&str, &ActorMetrics)> {
        self.processes.iter().flat_map(|of| of.metrics.actors.iter().map(|actor| (of.name.as_str(), actor)))
    }

    /// A row for each actor, with what changed since `earlier`; an actor that was not there then, or was
    /// started again since, is counted from its beginning.
    pub fn rows(&self, earlier: &Metrics) -> Vec<Row> {
        let seconds = self.at.saturating_sub(earlier.at) as f64 / 1e9;
        let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let row = &|(process, now): (&NamedProcess, &ActorMetrics)| {
            let before = earlier.actor(now.actor).filter(|before| before.handled <= now.handled);
            let handler =
                before.map_or_else(|| now.handler.clone(), |before| now.handler.since(&before.handler));
            let handled = now.handled - before.map_or(0, |before| before.handled);
            let busy = now.busy.saturating_sub(before.map_or(Duration::ZERO, |before| before.busy));
            let waited = |of: &ActorMetrics| of.waited;
            Row {
                host: process.host.clone(),
                process: process.name.clone(),
                name: now.name.clone(),
                device: now.device,
                state: process.state,
                restarts: process.restarts,
                handled: now.handled,
                emitted: now.emitted,
                dropped: now.dropped,
                rate: per_second(handled as f64),
                queued: now.queued,
                capacity: now.capacity,
                p50: handler.quantile(0.5),
                p99: handler.quantile(0.99),
                busy: per_second(busy.as_secs_f64()).min(1.0),
                waited: now.waited.map(|now| now.saturating_sub(before.and_then(waited).unwrap_or_default())),
            }
        };
        let of = |process| move |actor| row((process, actor));
        self.processes.iter().flat_map(|process| process.metrics.actors.iter().map(of(process))).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn metrics(at: u64, handled: u64) -> Metrics {
        let meter = Meter::default();
        (0..handled).for_each(|_| meter.note(100_000));
        let actor = ActorMetrics {
            actor: ActorId(1),
            name: "blur".into(),
            device: DeviceId::HOST,
            capacity: 16,
            handled,
            emitted: 2 * handled,
            dropped: 0,
            missed: 4,
            queued: 3,
            busy: Duration::from_micros(100 * handled),
            longest: Duration::from_micros(100),
            handler: meter.histogram(),
            waits: 0,
            waited: Some(Duration::from_millis(handled)),
            counted: [true, false, true],
        };
        let metrics =
            ProcessMetrics { bytes_in_flight: 4096, actors: vec![actor], ..ProcessMetrics::default() };
        let process = ProcessId::new(1, 0).unwrap();
        Metrics {
            at,
            processes: vec![NamedProcess {
                host: None,
                process,
                name: "w".into(),
                state: ProcessState::Running,
                restarts: 2,
                metrics,
            }],
            silent: Vec::new(),
        }
    }

    #[test]
    fn a_row_says_what_changed_since_the_earlier_look() {
        let (before, now) = (metrics(0, 100), metrics(2_000_000_000, 1100));
        let rows = now.rows(&before);
        assert_eq!((rows[0].handled, rows[0].rate, rows[0].queued), (1100, 500.0, 3));
        assert_eq!((rows[0].capacity, rows[0].restarts), (16, 2));
        assert_eq!(format!("{:>8}|{}", rows[0].state, rows[0].device), " running|host");
        assert!((rows[0].busy - 0.05).abs() < 1e-9, "{}", rows[0].busy);
        assert!(rows[0].p50.unwrap().as_micros().abs_diff(100) < 13);
        assert_eq!(rows[0].waited, Some(Duration::from_secs(1)));
        assert_eq!(now.bytes_in_flight(), 4096);
        // Started again: its counts began anew.
        assert_eq!(before.rows(&now)[0].handled, 100);
        assert_eq!(now.rows(&now)[0].rate, 0.0);
    }
}
