//! The clocks that all processes of a machine share.

use std::time::Duration;

use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns the nanoseconds of `CLOCK_MONOTONIC`. Every process of the machine reads the same number at the
/// same moment. So the age of another process's value is a difference of two readings, even if somebody sets
/// the clock of the day. [`Metrics::at`] is a reading of this clock. It takes no system call where the kernel
/// offers the clock in user space.
///
/// [`Metrics::at`]: crate::observe::metrics::Metrics::at
#[inline]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is ever negative, and the sum lasts for 584 years of uptime.
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

/// Returns the time since the machine was started, by `CLOCK_BOOTTIME`, which goes on while the machine is
/// suspended.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    // Neither is ever negative.
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned() as u32)
}

/// Sleeps until the time `at` after the machine's start. A signal ends the sleep early. If the machine is
/// suspended past `at`, the sleep ends when the machine wakes.
pub fn sleep_until_since_boot(at: Duration) {
    // A time that no clock reaches becomes the longest that the kernel knows.
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
