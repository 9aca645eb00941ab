//! The clocks that all processes of a machine share.

use std::time::Duration;

use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`: the same number in every process of the machine at the same moment, so
/// the age of what another process has made is a difference, whoever sets the clock of the day.
/// [`Metrics::at`] is of this clock. No system call where the kernel offers the clock in user space.
///
/// [`Metrics::at`]: crate::observe::metrics::Metrics::at
#[inline]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Both are never negative, and the sum lasts for 584 years of uptime.
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

/// Time since the machine was started, by `CLOCK_BOOTTIME`, which goes on while it is suspended.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    // Neither is ever negative.
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned() as u32)
}

/// Sleeps until so long after the machine's start, or a little shorter: a signal ends it. A machine that was
/// suspended meanwhile ends it as it wakes.
pub fn sleep_until_since_boot(at: Duration) {
    // What no clock comes to is the longest that the kernel knows.
    let at = Timespec::try_from(at).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    let _ = clock_nanosleep_absolute(ClockId::Boottime, &at);
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

    #[test]
    fn a_sleep_by_the_boot_clock_ends_when_it_should() {
        let at = since_boot() + Duration::from_millis(3);
        while since_boot() < at {
            sleep_until_since_boot(at);
        }
        let before = Instant::now();
        sleep_until_since_boot(at);
        assert!(before.elapsed() < Duration::from_secs(1), "it had passed");
    }
}
