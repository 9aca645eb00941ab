//! The bounds of a node of several hosts.

use std::time::Duration;

use super::*;
use crate::limits::{MAX_HOST_QUESTIONS, MAX_LATE, MAX_WAITING_NOTES};

/// Names of one other host that the head knows.
pub const MAX_NAMES_OF_HOST: usize = MAX_NAMES / 4;

/// Bytes of names that an agent tells its head at a time.
pub const MAX_NAMES_TOLD: usize = 32 << 10;

/// Names of an agent that the head has not answered yet, and claimants that wait for one of them.
pub const MAX_CLAIMS: usize = 1 << 10;

/// Actors of another host that are being reached at a time; more wait.
pub const MAX_REACHING: usize = 1 << 10;

// So a host never exceeds its bound of questions with its own actors that have a place at another host, had
// one, or get one.
const _: () = assert!(MAX_REACHING + MAX_LATE <= MAX_HOST_QUESTIONS && MAX_LOOKUPS <= MAX_HOST_QUESTIONS);

// All of these together leave room for other notes.
const _: () = assert!(MAX_REACHING + MAX_LATE + MAX_LOOKUPS <= MAX_WAITING_NOTES / 2);

const _: () = assert!(MAX_REACHING + MAX_LATE + MAX_ACTORS <= tensorpost_hosts::limits::MAX_MAILBOXES);

/// Actors of other hosts for which one process may wait, to send to them or to watch them.
pub const MAX_WANTED: usize = 1 << 12;

// When there is no gateway any more, a process hears of all actors that it waits for at once.
const _: () = assert!(MAX_WANTED <= MAX_QUEUED_PACKETS / 2);

/// Names that are looked up on other hosts at a time.
pub const MAX_LOOKUPS: usize = 1 << 12;

/// Actors that a node starts for other hosts at a time; more wait.
pub const MAX_STARTS: usize = 8;

/// Next lives of actors that roam, begun at a time; more wait.
pub const MAX_MOVES: usize = 8;

/// The longest backoff that a host may ask for, for a group whose actors are on several.
pub const MAX_GROUP_DELAY: Duration = Duration::from_secs(3600);

/// How long another host may take to say how many actors it has, when a node looks for the host with the
/// fewest.
pub const LOAD_DEADLINE: Duration = Duration::from_secs(1);

/// Snapshots, figures and reports that a host makes for others at a time; more wait.
pub const MAX_HOST_SHOWS: usize = 2;

/// How long a host waits for its own supervisor when another host asks.
pub const HOST_WAITS_FOR_SUPERVISOR: Duration = Duration::from_secs(1);

/// How long another host may take for a snapshot or a report: its processes have 90 ms.
pub const HOST_LOOK_DEADLINE: Duration = Duration::from_millis(500);

/// How long another host may take for its figures: its processes have a second.
pub const HOST_METRICS_DEADLINE: Duration = Duration::from_millis(1500);

/// How long a host that gave no snapshot is not asked again, so that a watcher waits for it only once.
pub const SILENT_HOST: Duration = Duration::from_secs(1);

/// How long another host may take to hand over its trace.
pub const HOST_TRACE_DEADLINE: Duration = Duration::from_secs(5);

/// Bytes of the traces of all other hosts together; the head leaves out traces beyond it.
pub const MAX_ALL_HOSTS_TRACES: usize = 64 << 20;

/// Bytes of a host's figures, as JSON.
pub const MAX_HOST_FIGURES: usize = 4 << 20;

/// Bytes of the figures of all other hosts together.
pub const MAX_ALL_HOSTS_FIGURES: usize = MAX_CONSOLE_ANSWER / 2;

/// Bytes of the log that an agent sends its head at once; a record that is longer goes alone.
pub const MAX_LOG_BATCH: usize = 16 << 10;

// The encoding of a record adds little to its texts.
const _: () = assert!(
    MAX_LOG_RECORD + MAX_NAME + 4096 <= tensorpost_hosts::limits::MAX_LOG
        && 2 * MAX_LOG_BATCH < MAX_LOG_RECORD
);
