//! Spinning for a short while before going to sleep.
//!
//! A wake-up costs tens of microseconds on a virtual machine, so it is worth spinning for a value that comes
//! within a few microseconds. Spinning for a value that does not come wastes the same time of a shared core.
//! The budget therefore halves with every miss and doubles with every hit.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The longest and the shortest spin. The shortest is not zero, so that a later hit can raise the budget
/// again.
const MOST_NANOS: u32 = 20_000;
const LEAST_NANOS: u32 = 500;

/// The time that spinning has been worth lately. Each place that waits has one.
#[derive(Debug)]
pub struct AdaptiveSpin {
    budget_nanos: AtomicU32,
}

impl Default for AdaptiveSpin {
    fn default() -> Self {
        AdaptiveSpin { budget_nanos: AtomicU32::new(MOST_NANOS) }
    }
}

impl AdaptiveSpin {
    /// Calls `ready` until it returns true or the budget, at most 20 microseconds, is spent. Returns whether
    /// it returned true.
    pub fn until(&self, mut ready: impl FnMut() -> bool) -> bool {
        let nanos = self.budget_nanos.load(Ordering::Relaxed);
        let end = Instant::now() + Duration::from_nanos(u64::from(nanos));
        loop {
            for _ in 0..16 {
                if ready() {
                    self.budget_nanos.store(nanos.saturating_mul(2).min(MOST_NANOS), Ordering::Relaxed);
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= end {
                self.budget_nanos.store((nanos / 2).max(LEAST_NANOS), Ordering::Relaxed);
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_shorten_it_and_hits_bring_it_back() {
        let spin = AdaptiveSpin::default();
        for _ in 0..20 {
            assert!(!spin.until(|| false));
        }
        assert_eq!(spin.budget_nanos.load(Ordering::Relaxed), LEAST_NANOS);
        for _ in 0..20 {
            assert!(spin.until(|| true));
        }
        assert_eq!(spin.budget_nanos.load(Ordering::Relaxed), MOST_NANOS);
    }
}
