//! Times by size, with an error of at most a sixteenth.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Steps per power of two.
const STEPS: u64 = 16;

/// How often each time was seen, in steps of a sixteenth of its power of two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Histogram {
    counts: BTreeMap<u16, u64>,
}

/// The step of a time in nanoseconds.
fn step(nanos: u64) -> u16 {
    if nanos < STEPS {
        return nanos as u16;
    }
    let power = 63 - u64::from(nanos.leading_zeros());
    let within = (nanos >> (power - 4)) - STEPS;
    ((power - 3) * STEPS + within) as u16
}

/// The longest time in a step.
fn longest(step: u16) -> u64 {
    let step = u64::from(step);
    if step < STEPS {
        return step;
    }
    let power = step / STEPS + 3;
    let from = (STEPS + step % STEPS) << (power - 4);
    from + ((1 << (power - 4)) - 1)
}

impl Histogram {
    pub(crate) fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX >> 1);
        *self.counts.entry(step(nanos)).or_default() += 1;
    }

    pub(crate) fn merge(&mut self, other: &Histogram) {
        for (step, count) in &other.counts {
            *self.counts.entry(*step).or_default() += count;
        }
    }

    /// The time that `percent` of all do not exceed, rounded up to its step; zero if there is none.
    pub(crate) fn percentile(&self, percent: u64) -> Duration {
        let total: u64 = self.counts.values().sum();
        let mut rank = (total * percent).div_ceil(100).max(1);
        for (step, count) in &self.counts {
            if rank <= *count {
                return Duration::from_nanos(longest(*step));
            }
            rank -= count;
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_step_that_ends_with_or_above_it() {
        for nanos in (0..5000).chain([1 << 20, (1 << 20) - 1, 123_456_789, 1 << 40]) {
            let above = longest(step(nanos));
            assert!(nanos <= above && above <= nanos + nanos / 16, "{nanos} in a step up to {above}");
        }
    }

    #[test]
    fn percentiles_count_from_below() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(50), Duration::ZERO);
        for micros in 1..=100 {
            histogram.add(Duration::from_micros(micros));
        }
        let mut twice = histogram.clone();
        twice.merge(&histogram);
        for (percent, micros) in [(50, 50), (99, 99), (100, 100)] {
            for histogram in [&histogram, &twice] {
                let found = histogram.percentile(percent).as_secs_f64() * 1e6;
                assert!(
                    (f64::from(micros)..f64::from(micros) * 1.07).contains(&found),
                    "{percent}%: {found} us"
                );
            }
        }
    }
}
