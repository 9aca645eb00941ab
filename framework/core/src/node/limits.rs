//! The bounds of the control protocol and of the node's tables (MBX-2).

use std::time::Duration;

use crate::limits::{
    MAX_ACTORS, MAX_LOG_RECORD, MAX_METRIC_SERIES, MAX_METRIC_TEXT, MAX_PACKET, MAX_PACKET_FDS,
    MAX_POOL_CHUNKS, MAX_PROCESSES, MAX_STREAMS, MAX_WORKER_METRIC_VALUES,
};
pub(crate) use crate::observe::text::cut;

#[cfg(feature = "hosts")]
mod hosts;
#[cfg(feature = "hosts")]
pub use self::hosts::*;

/// Largest encoded control message in bytes. A message that is larger than a packet travels in several.
pub const MAX_CONTROL_MESSAGE: usize = 8 << 20;

/// Most descriptors that travel with one control message.
pub const MAX_DESCRIPTORS: usize = 8;

/// Bytes that may wait for one process that does not read its control socket.
pub const MAX_QUEUED_BYTES: usize = 2 * MAX_CONTROL_MESSAGE;

/// Packets that may wait for one process that does not read its control socket.
pub const MAX_QUEUED_PACKETS: usize = 1 << 13;

/// Descriptors that may wait for one process: each waiting one is an open file of the sender.
pub const MAX_QUEUED_DESCRIPTORS: usize = 512;

/// Packets above which log events are dropped, and counted, rather than queued behind the others.
pub const MAX_QUEUED_LOGS: usize = 1 << 10;

/// Log events that may wait in the node for a slow subscriber.
pub const JOURNAL_EVENTS: usize = 1 << 12;

/// Bytes of these events that may wait.
pub const JOURNAL_BYTES: usize = 16 << 20;

/// Workers' events leave 1/`JOURNAL_RESERVE` of both bounds for the node's own events: a worker that floods
/// its log hides none of the node's.
pub const JOURNAL_RESERVE: usize = 4;

/// Longest name of a worker, of an actor or in the registry, in bytes.
pub const MAX_NAME: usize = 255;

/// Most names in the registry.
pub const MAX_NAMES: usize = 1 << 16;

/// Names that one worker may register.
pub const MAX_NAMES_EACH: usize = MAX_NAMES / 16;

/// Forbidden messages that a worker may send before the node kills it. A worker of the framework sends none.
pub const MAX_COMPLAINTS: u64 = 256;

/// Most chunks of one process that the node keeps descriptors of: two open files each.
pub const MAX_CHUNKS: usize = 1 << 12;

// A process that keeps to the bound of its pools is never refused: one pool on the host, and one for each of
// 63 GPUs.
// Starts under way leave most of the line to other messages.
const _: () = assert!(MAX_STARTS_OF_PROCESS * MAX_START_REQUEST <= MAX_QUEUED_BYTES / 4);
const _: () = assert!(64 * MAX_POOL_CHUNKS <= MAX_CHUNKS);

/// Questions of one process for chunks that their owners have not published (yet): every chunk of an owner,
/// for both kinds of access.
pub const MAX_PARKED: usize = 2 * MAX_CHUNKS;

/// Actors for which the node remembers why it gave them up; of earlier ones it only says that they are gone.
pub const MAX_GIVEN_UP: usize = 1 << 10;

/// Starts under way that one process's actors have asked for.
pub const MAX_STARTS_OF_PROCESS: usize = 64;

/// Types of messages that an actor started by an actor lists: far more than a program has.
pub const MAX_TAKEN: usize = 4096;

/// Workers that run at a time for the actors of one worker, at their request: half of a node's processes.
pub const MAX_WORKERS_OF_WORKER: usize = MAX_PROCESSES / 2;

/// Bytes of an actor's request to start another, the arguments included. The node keeps those of an actor
/// that comes back.
pub const MAX_START_REQUEST: usize = 64 << 10;

/// Bytes that the node keeps of the actors that one worker's actors have started, until these end for good.
pub const MAX_KEPT_FOR_WORKER: usize = 8 << 20;
// All starts that may be under way fit, whatever their arguments.
const _: () = assert!(MAX_STARTS_OF_PROCESS * MAX_START_REQUEST <= MAX_KEPT_FOR_WORKER / 2);

/// Actors that may continue on other hosts, for each host that has started them.
pub const MAX_ROAMING: usize = 1 << 14;

/// How long an old snapshot is shown again instead of a new one (CON-1).
pub const SNAPSHOT_LASTS: Duration = Duration::from_millis(100);

/// How long the thread of a watcher waits for the supervisor. A snapshot takes 90 ms at most, unless
/// the supervisor has no processor.
pub const WAIT_FOR_SUPERVISOR: Duration = Duration::from_secs(2);

/// Ends of a worker's lives that reports list, the last ones.
pub const MAX_ENDS: usize = 32;

/// Most spare workers that wait for one worker.
pub const MAX_SPARES: u32 = 8;

/// The shortest time between the end of a spare worker and the start of the next, even if the restart policy
/// allows less. Nobody waits for a spare, and spares that cannot start must not take the machine's time.
pub const SPARE_BACKOFF: Duration = Duration::from_millis(10);

/// How long after a restart the next spare worker is started. Its start takes a core for some milliseconds,
/// and on a GPU the driver, and the new life needs both more. (On two cores it made the first answer 7 ms
/// later.)
pub const SPARE_PAUSE: Duration = Duration::from_millis(200);

/// A spare worker that has lived this long had started well: its end is not added to earlier failures in a
/// row.
pub const SPARE_LASTED: Duration = Duration::from_secs(10);

/// Most restarts that a policy counts at a time.
pub const MAX_RESTARTS: u32 = 1 << 16;

/// Requests that may wait for a worker's main thread: one for every actor, two of a shutdown, and one to
/// leave.
pub const MAX_MAIN_TASKS: usize = MAX_ACTORS + 3;

/// Most pages of dead processes that the node checks again: each is a descriptor and a mapping of the node. A
/// late write of the driver can only reach the pages of the last deaths.
pub const MAX_RELEASED_PAGES: usize = 4;

/// Most ranges that one process can report between two releases: some for each of its streams. A process that
/// reports more lies, and would keep the dead from ever being released (WIRE-1).
pub const MAX_REPORTED_RANGES: usize = 8 * MAX_STREAMS;

/// Watchers of the console that are answered at a time (CON-3).
pub const MAX_WATCHERS: usize = 4;

/// Longest question of a watcher, in bytes.
pub const MAX_QUESTION: usize = 4 << 10;

/// Actors in one snapshot of the console: each takes up to 6 KiB of it.
pub const MAX_SHOWN_ACTORS: usize = 2 << 10;

/// Longest answer to a watcher, in bytes.
pub const MAX_CONSOLE_ANSWER: usize = 32 << 20;

/// Records of all processes together in an interval that a watcher traces: 64 MiB of memory while it lasts.
pub const MAX_TRACED_RECORDS: usize = 1 << 20;

/// Longest interval that a watcher may trace.
pub const MAX_TRACED_TIME: Duration = Duration::from_secs(600);

/// Records of the log that the console keeps.
pub const MAX_LOG_LINES: usize = 1 << 10;

/// Bytes of these records.
pub const MAX_LOG_BYTES: usize = 1 << 20;

/// Longest text of such a record, in bytes.
pub const MAX_LOG_LINE: usize = 4 << 10;

/// Records in one answer.
pub const MAX_LOG_ANSWER: usize = 256;

/// Hangs that reports list, the last ones.
pub const MAX_HANGS: usize = 64;

/// Longest text of a failure that a worker reports, in bytes; the rest is cut off. It goes on to all other
/// workers.
pub const MAX_FAILURE_TEXT: usize = 16 << 10;

/// Packets handled from one worker before the others get their turn.
pub const TURN_MESSAGES: usize = 64;

/// Stands for a time without end: no clock gets that far, and an instant plus this does not overflow.
pub const ENDLESS: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long a worker may take from its start until it is ready, unless the builder sets another time.
pub const START_DEADLINE: Duration = Duration::from_secs(30);

/// How long a dropped node lets its workers finish.
pub const DROP_DEADLINE: Duration = Duration::from_secs(10);

/// How long a worker whose control socket has closed may take to end before it is killed.
pub const END_GRACE: Duration = Duration::from_secs(2);

/// How long workers may take to say whether they have lost a GPU, after another worker on it was killed. They
/// answer in a few milliseconds.
pub const GPU_LOOK_PATIENCE: Duration = Duration::from_secs(1);

/// How long a worker that ends tries to send replies for which there was no room yet. Its next life waits for
/// its end, and not for a peer that does not read.
pub const LAST_REPLIES: Duration = Duration::from_secs(1);

/// How long a worker that is not needed any more may take to finish the work on its streams before it is
/// killed.
pub const LEAVE_GRACE: Duration = Duration::from_secs(30);

// Otherwise a worker would be killed while it sends its last replies.
const _: () = assert!(LAST_REPLIES.as_millis() < END_GRACE.as_millis());
// The largest message fits the queue, so no message is refused for ever.
const _: () = assert!(MAX_QUEUED_BYTES >= MAX_CONTROL_MESSAGE + MAX_CONTROL_MESSAGE / 64);
const _: () = assert!(MAX_QUEUED_PACKETS > MAX_CONTROL_MESSAGE / (MAX_PACKET / 2) + MAX_QUEUED_LOGS);
const _: () = assert!(MAX_QUEUED_DESCRIPTORS >= MAX_DESCRIPTORS && MAX_DESCRIPTORS <= MAX_PACKET_FDS);
// Slots and indexes are 16 bits wide.
const _: () = assert!(MAX_ACTORS <= u16::MAX as usize && MAX_PROCESSES <= u16::MAX as usize);

// All metrics of a worker's user code fit a message: a series with its texts and its place, and a histogram's
// values and counts, in 9 bytes each.
const _: () = assert!(
    2 * MAX_METRIC_SERIES * (2 * MAX_METRIC_TEXT + 512) + MAX_WORKER_METRIC_VALUES * 18 < MAX_CONTROL_MESSAGE
);

// A worker's report of its end fits a message to all others, with room to spare.
const _: () = assert!(MAX_FAILURE_TEXT * 16 < MAX_CONTROL_MESSAGE);
const _: () = assert!(JOURNAL_BYTES / JOURNAL_RESERVE > 2 * MAX_LOG_RECORD);
// The longest record fits the console's log.
const _: () = assert!(MAX_LOG_LINE * 4 < MAX_LOG_BYTES);
