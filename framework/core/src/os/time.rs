//! The clock that all processes of a machine share.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`: the same number in every process of the machine at the same moment, so the age of what
/// another process has made is a difference, whoever sets the clock of the day. [`Metrics::at`] is of this clock. No system
/// call where the kernel offers the clock in user space.
///
/// [`Metrics::at`]: crate::observe::metrics::Metrics::at
#[inline]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Both are never negative, and the sum lasts for 584 years of uptime.
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn it_advances_as_the_standard_library_says() {
        let (before, start) = (monotonic_ns(), Instant::now());
        while start.elapsed() < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        let took = monotonic_ns() - before;
        assert!(took >= 5_000_000, "{took}");
    }
}
