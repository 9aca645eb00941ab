//! The bounds of a pipeline (MBX-2): what it takes unless the program says otherwise, and the most that it
//! can be told.
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
/// ready and some against jitter. More would only keep more memory in use.
pub const DEFAULT_MAILBOX: u32 = 8;

/// How far replicas whose order is restored may get ahead of the oldest item, at most: so many wait for it.
pub const ORDER_WINDOW: u32 = 256;

/// Most places in front of a restorer of an order for items that wait until others are passed on that
/// replicas hold.
pub(super) const MOST_EARLY: u32 = 16_384;

/// Items of one source replica that may be unacknowledged under at-least-once delivery, unless the pipeline
/// says otherwise.
pub const DEFAULT_UNACKNOWLEDGED: u32 = 256;

/// Failures, and lost items, that one actor of a pipeline remembers by id; further ones are counted.
pub const MAX_NAMED: usize = 1024;

/// Bytes of a text in which one of them says why.
pub(super) const MAX_WHY: usize = 16 << 10;

/// The longest time that an actor of a pipeline can tell of: a year.
pub(super) const MOST_TIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// Lives of one actor of a pipeline whose counts are kept each by itself; those of earlier ones are added up.
pub(super) const MAX_LIVES: usize = 64;

/// Events of one actor that a trace has.
pub(super) const MAX_TRACED_OF_ONE: usize = 8 * MAX_TRACED;

/// Most replicas of one stage: each is a process, unless several share one.
pub const MAX_REPLICAS: u32 = 128;

/// Most items in a batch or a window: they keep their places in the mailbox in front of it. (A message holds
/// at most [`MAX_TENSORS`](tensorpost_core::api::message::MAX_TENSORS) tensors.)
pub const MAX_BATCH: u32 = 32_768;

/// Most items that wait for their partners in a join. Past that it fails: one flow drops what the other waits
/// for.
pub const MAX_WAITING: usize = 65_536;

/// How long nothing may move in a pipeline in which nobody is at work, before it [ends by
/// itself](super::Pipeline::hang_limit). Long enough for the reminders that begin after 2 s; the conductor
/// looks about every second.
pub const STANDSTILL: Duration = Duration::from_secs(6);

/// Events that one actor of a pipeline remembers for a trace; later ones are left out.
pub const MAX_TRACED: usize = 200_000;

/// How long a pipeline that starts waits for hosts that it names and that have not joined its node: as long
/// as they try to.
#[cfg(feature = "hosts")]
pub const HOST_DEADLINE: Duration = Duration::from_secs(120);

/// Where the number of a stage's replicas changes by itself: the time between two looks at its backlog.
pub(super) const SCALE_LOOK: Duration = Duration::from_millis(100);

/// Looks in a row at which all its replicas are at work and more waits for each, before there are more of
/// them. A burst that is over before that changes nothing.
pub(super) const LOOKS_TO_GROW: u32 = 3;

/// Looks over which one replica less would have been enough, before there is one less. More than to grow: a
/// replica that is missing holds items up, and one that is idle costs its memory.
pub(super) const LOOKS_TO_SHRINK: usize = 10;

/// Of 100: how busy the replicas that stay may be when one leaves, so that the next look does not bring it
/// back.
pub(super) const BUSY_WHEN_SHRUNK: u32 = 70;

// A sender that waits for an older number never waits for credit that newer ones hold.
const _: () = assert!(
    ORDER_WINDOW < MAX_MAILBOX && DEFAULT_UNACKNOWLEDGED < MAX_MAILBOX && 2 * MAX_BATCH <= MAX_MAILBOX
);

/// How long the node may take to hear that a host is lost after the asks to it were refused: its gateway says
/// so next.
#[cfg(feature = "hosts")]
pub(super) const VERDICT_IS_TOLD: Duration = Duration::from_millis(100);
