//! The bounds of a pipeline (MBX-2): the defaults, and the largest values that a program can set.
//!
//! ```
//! use tensorpost::pipeline::limits::MAX_REPLICAS;
//! use tensorpost::prelude::*;
//!
//! #[derive(Clone, Serialize, Deserialize, GpuMessage)]
//! struct Number(u64);
//!
//! let wide = Pipeline::new("numbers")
//!     .items("count", |_| (0..9).map(Number))
//!     .replicas(MAX_REPLICAS + 1)
//!     .for_each("print", |Number(n)| Ok(println!("{n}")));
//! let refused = wide.run().unwrap_err(); // before a process is started
//! assert!(refused.to_string().contains("replicas"), "{refused}");
//! ```

use std::time::Duration;

use tensorpost_core::api::actor::MAX_MAILBOX;

/// Items that wait in front of a stage, per sending process, unless the stage says otherwise: one that is
/// ready, and some against jitter. More would only keep more memory in use.
pub const DEFAULT_MAILBOX: u32 = 8;

/// The most numbers by which replicas whose order is restored may get ahead of the oldest item: at most so
/// many items wait for it, or as many as may be unacknowledged if those are more.
pub const ORDER_WINDOW: u32 = 256;

/// The most places in front of a stage that restores an order, for items that wait until replicas pass on the
/// items that they hold.
pub(super) const MOST_EARLY: u32 = 16_384;

/// Items of one source replica that may be unacknowledged under at-least-once delivery, unless the pipeline
/// says otherwise.
pub const DEFAULT_UNACKNOWLEDGED: u32 = 256;

/// Failures, and lost items, that one actor of a pipeline remembers by id; it only counts further ones.
pub const MAX_NAMED: usize = 1024;

/// Bytes of the text that gives the reason of one of them.
pub(super) const MAX_WHY: usize = 16 << 10;

/// The longest time that an actor of a pipeline can report: a year.
pub(super) const MOST_TIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// Lives of one actor of a pipeline whose counts are kept separately; the counts of earlier lives are added
/// up.
pub(super) const MAX_LIVES: usize = 64;

/// Events of one actor that a trace holds.
pub(super) const MAX_TRACED_OF_ONE: usize = 8 * MAX_TRACED;

/// The most replicas of one stage: each is a process, unless several share one.
pub const MAX_REPLICAS: u32 = 128;

/// The most items in a batch or a window: they keep their places in the mailbox in front of it. (A message
/// holds at most [`MAX_TENSORS`](tensorpost_core::api::message::MAX_TENSORS) tensors.)
pub const MAX_BATCH: u32 = 32_768;

/// The most items that wait for their partners in a join. Past that the join fails: one flow drops the items
/// that the other waits for.
pub const MAX_WAITING: usize = 65_536;

/// How long nothing may move in a pipeline in which no stage is at work, before it [ends by
/// itself](super::Pipeline::hang_limit). It is long enough for the reminders that begin after 2 s; the
/// conductor looks about every second.
pub const STANDSTILL: Duration = Duration::from_secs(6);

/// How long an item may be on its way to another host, or to a replica that starts, while nothing else moves
/// in the pipeline. A host whose link is cut for 15 s is lost, and then its members are known to be dead.
pub(super) const ON_THE_WAY: Duration = Duration::from_secs(20);

/// Events that one actor of a pipeline remembers for a trace; later ones are left out.
pub const MAX_TRACED: usize = 200_000;

/// How long a pipeline that starts waits for hosts that it names and that have not joined its node. Hosts try
/// to join for as long.
#[cfg(feature = "hosts")]
pub const HOST_DEADLINE: Duration = Duration::from_secs(120);

/// The time between two looks at the backlog of a stage whose number of replicas changes by itself.
pub(super) const SCALE_LOOK: Duration = Duration::from_millis(100);

/// A stage gets another replica after so many looks in a row at which all its replicas are at work and more
/// items wait for each. A burst that is over before that changes nothing.
pub(super) const SAMPLES_TO_GROW: u32 = 3;

/// A stage loses a replica after so many looks over which one replica less would have been enough. The number
/// is larger than the one to grow: a missing replica holds items up, and an idle one only costs memory.
pub(super) const SAMPLES_TO_SHRINK: usize = 10;

/// How busy, in percent, the replicas that stay may be when one leaves, so that the next look does not bring
/// it back.
pub(super) const BUSY_WHEN_SHRUNK: u32 = 70;

// A sender that waits for an older number never waits for credit that newer numbers hold.
const _: () = assert!(
    ORDER_WINDOW < MAX_MAILBOX && DEFAULT_UNACKNOWLEDGED < MAX_MAILBOX && 2 * MAX_BATCH <= MAX_MAILBOX
);

/// How long the node may take to hear that a host is lost, after asks to that host were refused: its gateway
/// says so next.
#[cfg(feature = "hosts")]
pub(super) const VERDICT_IS_TOLD: Duration = Duration::from_millis(100);
