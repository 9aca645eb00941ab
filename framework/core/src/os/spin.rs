//! Looking again for a short while before going to sleep.
//!
//! A wake-up costs tens of microseconds on a virtual machine, so a value that comes within a few is worth
//! spinning for; spinning for one that does not come costs a shared core the same time. The budget therefore
//! halves with every miss and doubles with every hit.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest and shortest spin. The shortest keeps the door open for the next hit.
const MOST_NANOS: u32 = 20_000;
const LEAST_NANOS: u32 = 500;

/// How long spinning has paid off lately. One per place that waits.
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
    /// Calls `ready` until it says yes or the budget, at most 20 microseconds, is spent; says which.
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
