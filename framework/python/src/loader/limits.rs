//! Every bound of a loader.

use std::time::Duration;

/// Pixels along a side of an image that is decoded.
pub(super) const MAX_SIDE: usize = 1 << 15;

/// Pixels of an image that is decoded; three bytes each, and a PNG has up to eight in its file.
pub(super) const MAX_PIXELS: usize = 1 << 27;

/// Bytes of a file that is read.
pub(super) const MAX_FILE: u64 = 1 << 30;

/// Tasks that a worker has at a time: one it works on, and the next.
pub(super) const TASKS_EACH: usize = 2;

/// Samples of a task, at most. A sample takes a millisecond, a message ten microseconds.
pub(super) const MAX_TASK: usize = 8;

/// Workers that may die over one sample before it is taken for the cause.
pub(super) const MAX_DEATHS: u32 = 3;

/// Restarts of a worker in a minute; one that ends once more is given up.
pub(super) const RESTARTS: u32 = 16;

/// How long a worker stays away before the first restart of these, and at most: somebody may be waiting for a
/// batch.
pub(super) const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
