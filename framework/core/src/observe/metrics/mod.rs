//! Live metrics: the work that every actor and process has done, and the work that waits for it.
//!
//! A [`Metrics`] is a snapshot of all processes of a node. Counts only grow, so two snapshots give a rate
//! ([`rows`]). Asking costs each process a control packet and no actor anything. [`Metrics::silent`] names
//! the processes that do not answer in time. Each process's control thread answers, so an actor that is busy
//! in a handler is seen too.
//!
//! A handler is timed with the clock read that its turn takes anyway, so metrics are always on. Times cover
//! the call alone, not the future that it returns, and are right to an eighth. Leases that other processes
//! have given back when a process answers count as given back. Counts begin anew with each life of a process.
//!
//! Metrics that user code in workers records with the macros of the `metrics` crate are in `user`; they go to
//! the node's recorder.
//!
//! [`rows`]: Metrics::rows

mod histogram;
mod tally;
pub(crate) mod user;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use histogram::Histogram;
pub(crate) use histogram::Meter;
pub(crate) use tally::Tally;

use super::list::at_most;
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::limits::MAX_ACTORS;

/// How long a process has to answer with its metrics.
pub(crate) const DEADLINE: Duration = Duration::from_secs(1);

/// An actor's metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ActorMetrics {
    /// The actor's identity in the node.
    pub actor: ActorId,
    /// The actor's name.
    pub name: String,
    /// The device of the actor's stream.
    pub device: DeviceId,
    /// Messages that the mailbox has room for, from each sending process.
    pub capacity: u32,
    /// Handler calls that have returned.
    pub handled: u64,
    /// Items that the actor has made and passed on, by its own count
    /// ([`Env::note_emitted`](crate::actor::Env::note_emitted)). Sources and stages of pipelines count them.
    pub emitted: u64,
    /// Items that the actor has dropped because the receiver had no room
    /// ([`Env::note_dropped`](crate::actor::Env::note_dropped)).
    pub dropped: u64,
    /// Times at which the actor was to make an item and did not, because it was late
    /// ([`Env::note_missed`](crate::actor::Env::note_missed)).
    pub missed: u64,
    /// Messages in the mailbox that no handler was called for yet.
    pub queued: usize,
    /// Total time in handlers.
    pub busy: Duration,
    /// The longest handler call.
    pub longest: Duration,
    /// How long the handler calls took, without the futures that handlers return.
    pub handler: Histogram,
    /// Waits that were put on the actor's stream, because a tensor was not ready when it was delivered or
    /// used.
    pub waits: u64,
    /// How long the stream stood in those waits. `None` if the device does not tell, as for a GPU's stream.
    pub waited: Option<Duration>,
    /// Whether the actor counts its emitted, dropped and missed items, in this order. A count that it keeps
    /// is in the recorder and on the live page from the start, with a 0.
    #[serde(default)]
    pub counted: [bool; 3],
    /// Whether its messages may [wait for a rare event](crate::actor::Handles::waits): that they stay open is
    /// no hang.
    #[serde(default)]
    pub may_wait: bool,
}

/// A process. Counts are since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
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
    /// Messages delivered and not handled yet.
    pub open: usize,
    /// Bytes of the process's own memory that other processes have leases on, in flight or held elsewhere.
    pub bytes_in_flight: u64,
    /// Bytes of the process's own memory that any process holds.
    pub bytes_held: u64,
    /// Bytes of the process's pools, used or not.
    pub pool_bytes: u64,
    /// Bytes of host memory that the process has in use: its own, and the shared memory that it has touched.
    /// In a process with a GPU most of them are the driver's.
    #[serde(default)]
    pub resident_bytes: u64,
    /// Its actors.
    #[serde(deserialize_with = "at_most::<{ MAX_ACTORS + 1 }, _, _>")]
    pub actors: Vec<ActorMetrics>,
}

/// The state of a process, or of an actor in it.
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
#[non_exhaustive]
pub struct NamedProcess {
    /// The number and name of the process's host, if that is another one.
    pub host: Option<String>,
    /// The process, as its host numbers them.
    pub process: ProcessId,
    /// The worker's name; `"node"` for the node itself.
    pub name: String,
    /// The state of the process.
    pub state: ProcessState,
    /// How often the process, or an actor in it, was restarted.
    pub restarts: u32,
    /// Its metrics.
    pub metrics: ProcessMetrics,
}

/// A snapshot of all processes of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Metrics {
    /// When it was taken, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The processes that answered, the node first. On the head, those of other hosts follow those of this
    /// host.
    pub processes: Vec<NamedProcess>,
    /// The processes that did not answer within a second, and other hosts that did not answer in time.
    pub silent: Vec<String>,
}

/// An actor, as a line of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// The number and name of the actor's host, if that is another one.
    pub host: Option<String>,
    /// The name of the actor's process.
    pub process: String,
    /// The actor's name.
    pub name: String,
    /// The device of the actor's stream.
    pub device: DeviceId,
    /// The state of the actor's process.
    pub state: ProcessState,
    /// How often the actor's process, or an actor in it, was restarted.
    pub restarts: u32,
    /// All handler calls.
    pub handled: u64,
    /// All items that the actor made and passed on.
    pub emitted: u64,
    /// All items that it dropped.
    pub dropped: u64,
    /// Handler calls per second since the earlier snapshot.
    pub rate: f64,
    /// Messages in the mailbox.
    pub queued: usize,
    /// Messages that the mailbox has room for, from each sending process.
    pub capacity: u32,
    /// Half of the handler calls since the earlier snapshot took no longer than this.
    pub p50: Option<Duration>,
    /// 99 of 100 of them took no longer than this.
    pub p99: Option<Duration>,
    /// The share of the time since the earlier snapshot that the actor spent in handlers, 0 to 1.
    pub busy: f64,
    /// How long the stream stood in waits since the earlier snapshot, if the device tells.
    pub waited: Option<Duration>,
}

/// An actor's work in an interval.
pub struct Change {
    /// Handler calls per second.
    pub rate: f64,
    /// The median time of the calls.
    pub p50: Option<Duration>,
    /// 99 of 100 calls took no longer than this.
    pub p99: Option<Duration>,
    /// The share of the interval in handlers, 0 to 1.
    pub busy: f64,
    /// How long the stream stood in waits, if the device tells.
    pub waited: Option<Duration>,
}

/// Returns a count per second; 0 for an interval without length.
pub fn per_second(count: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { count / seconds } else { 0.0 }
}

impl ActorMetrics {
    /// Returns the work since `before`, in an interval of this length. An actor that was not there then, or
    /// was restarted since, is counted from its beginning.
    #[doc(hidden)] // for `tensorpost-watch`
    pub fn since(&self, before: Option<&ActorMetrics>, seconds: f64) -> Change {
        let before = before.filter(|before| before.handled <= self.handled);
        let handler =
            before.map_or_else(|| self.handler.clone(), |before| self.handler.since(&before.handler));
        let handled = self.handled - before.map_or(0, |before| before.handled);
        let busy = self.busy.saturating_sub(before.map_or(Duration::ZERO, |before| before.busy));
        let waited = before.and_then(|before| before.waited).unwrap_or_default();
        Change {
            rate: per_second(handled as f64, seconds),
            p50: handler.quantile(0.5),
            p99: handler.quantile(0.99),
            busy: per_second(busy.as_secs_f64(), seconds).min(1.0),
            waited: self.waited.map(|now| now.saturating_sub(waited)),
        }
    }
}

impl Metrics {
    /// Returns the bytes that processes have lent to each other at this moment.
    pub fn bytes_in_flight(&self) -> u64 {
        let bytes = self.processes.iter().map(|process| process.metrics.bytes_in_flight);
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns an actor's metrics, whichever process it is in.
    pub fn actor(&self, actor: ActorId) -> Option<&ActorMetrics> {
        self.actors().map(|(_, of)| of).find(|of| of.actor == actor)
    }

    /// Returns all actors, with their processes' names.
    pub fn actors(&self) -> impl Iterator<Item = (&str, &ActorMetrics)> {
        self.processes.iter().flat_map(|of| of.metrics.actors.iter().map(|actor| (of.name.as_str(), actor)))
    }

    /// Returns a row for each actor, with the changes since `earlier`. An actor that was not there then, or
    /// was restarted since, is counted from its beginning.
    pub fn rows(&self, earlier: &Metrics) -> Vec<Row> {
        let seconds = self.at.saturating_sub(earlier.at) as f64 / 1e9;
        let row = &|(process, now): (&NamedProcess, &ActorMetrics)| {
            let Change { rate, p50, p99, busy, waited } = now.since(earlier.actor(now.actor), seconds);
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
                rate,
                queued: now.queued,
                capacity: now.capacity,
                p50,
                p99,
                busy,
                waited,
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
            may_wait: false,
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
        // The actor was restarted, so its counts began anew.
        assert_eq!(before.rows(&now)[0].handled, 100);
        assert_eq!(now.rows(&now)[0].rate, 0.0);
    }
}
