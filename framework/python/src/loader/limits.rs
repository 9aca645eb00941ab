//! The bounds of a loader.

use std::time::Duration;

/// The most pixels along a side of an image that is decoded.
pub(super) const MAX_SIDE: usize = 1 << 15;

/// The most pixels of an image that is decoded. Each takes three bytes; in a PNG file up to eight.
pub(super) const MAX_PIXELS: usize = 1 << 27;

/// The most bytes of a file that is read.
pub(super) const MAX_FILE: u64 = 1 << 30;

/// Tasks that a worker has at a time: the one it works on, and the next.
pub(super) const TASKS_EACH: usize = 2;

/// The most samples of a task. A sample takes a millisecond, a message ten microseconds.
pub(super) const MAX_TASK: usize = 8;

/// How many workers may die over one sample before the sample is taken as the cause.
pub(super) const MAX_DEATHS: u32 = 3;

/// The most restarts of a worker in a minute; if it ends once more, it is given up.
pub(super) const RESTARTS: u32 = 16;

/// The backoff before the first of these restarts, and the longest one: the program may be waiting for a
/// batch.
pub(super) const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
