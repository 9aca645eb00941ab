//! The times of one function: many threads count them, and one takes them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Nanoseconds in a step of the fine part, and its number of steps: up to 16 us.
const STEP: u64 = 32;
const FINE: usize = 512;
/// Powers of two above that.
const COARSE: usize = 24;

pub(crate) struct Times {
    sum: AtomicU64,
    counts: [AtomicU64; FINE + COARSE],
}

impl Times {
    pub(crate) const fn new() -> Self {
        Times { sum: AtomicU64::new(0), counts: [const { AtomicU64::new(0) }; FINE + COARSE] }
    }

    pub(crate) fn add(&self, time: Duration) {
        let nanos = time.as_nanos() as u64;
        let step = (nanos / STEP) as usize;
        let at = if step < FINE { step } else { FINE + (step / FINE).ilog2() as usize };
        self.counts[at.min(FINE + COARSE - 1)].fetch_add(1, Relaxed);
        self.sum.fetch_add(nanos, Relaxed);
    }

    /// Returns the counts since the last time, if there are any.
    pub(crate) fn take(&self) -> Option<Taken> {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.swap(0, Relaxed)).collect();
        let calls: u64 = counts.iter().sum();
        (calls > 0).then(|| Taken { calls, mean: self.sum.swap(0, Relaxed) / calls, counts })
    }
}

/// The counts that one look found.
pub(crate) struct Taken {
    calls: u64,
    mean: u64,
    counts: Vec<u64>,
}

impl Taken {
    /// Returns the nanoseconds below which this part of the calls was, to the step.
    fn part(&self, part: f64) -> u64 {
        let wanted = (self.calls as f64 * part).ceil() as u64;
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        match at.unwrap_or(self.counts.len() - 1) {
            at if at < FINE => (at as u64 + 1) * STEP,
            at => (FINE as u64 * STEP) << (at - FINE + 1),
        }
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\t{}", self.calls, self.mean)?;
        for part in [0.5, 0.9, 0.99, 1.0] {
            write!(f, "\t{}", self.part(part))?;
        }
        Ok(())
    }
}
