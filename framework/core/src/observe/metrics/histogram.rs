//! Durations in buckets: four for each power of two nanoseconds, so a quantile is right to an eighth.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

const BUCKETS: usize = 252;

/// Counts that one thread adds to and other threads read.
#[derive(Debug)]
pub(crate) struct Meter {
    buckets: Box<[AtomicU64; BUCKETS]>,
    total: AtomicU64,
    longest: AtomicU64,
}

/// Measured times, by length. Two histograms can be added, and an earlier one can be subtracted from a later
/// one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Bucket and count, in the order of the buckets; none is zero.
    counts: Vec<(u8, u64)>,
}

fn bucket(nanos: u64) -> usize {
    if nanos < 4 {
        return nanos as usize;
    }
    let exponent = nanos.ilog2();
    4 * (exponent as usize - 1) + (nanos >> (exponent - 2)) as usize % 4
}

/// Returns the middle of a bucket.
fn middle(bucket: u8) -> u64 {
    if bucket < 4 {
        return u64::from(bucket);
    }
    let shift = u32::from(bucket) / 4 - 1;
    let low = (4 + u64::from(bucket) % 4) << shift;
    low + (1 << shift) / 2
}

impl Default for Meter {
    fn default() -> Self {
        let buckets = Box::new([const { AtomicU64::new(0) }; BUCKETS]);
        Meter { buckets, total: AtomicU64::new(0), longest: AtomicU64::new(0) }
    }
}

impl Meter {
    /// Counts a measurement of this many nanoseconds. Only one thread may call this at a time; a second one
    /// would lose a count, no more.
    #[inline]
    pub(crate) fn note(&self, nanos: u64) {
        // Loads and stores suffice, without exchanges: there is one writer.
        let add = |word: &AtomicU64, more: u64| {
            word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(&self.buckets[bucket(nanos)], 1);
        add(&self.total, nanos);
        if nanos > self.longest.load(Ordering::Relaxed) {
            self.longest.store(nanos, Ordering::Relaxed);
        }
    }

    /// Returns the sum of all times, and the longest.
    pub(crate) fn total_and_longest(&self) -> (Duration, Duration) {
        let nanos = |word: &AtomicU64| Duration::from_nanos(word.load(Ordering::Relaxed));
        (nanos(&self.total), nanos(&self.longest))
    }

    pub(crate) fn histogram(&self) -> Histogram {
        let counts = self.buckets.iter().enumerate();
        let counts = counts.map(|(bucket, count)| (bucket as u8, count.load(Ordering::Relaxed)));
        Histogram { counts: counts.filter(|(_, count)| *count > 0).collect() }
    }
}

impl Histogram {
    /// Counts one more measurement.
    pub fn note(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.add(bucket(nanos) as u8, 1);
    }

    fn add(&mut self, bucket: u8, count: u64) {
        match self.counts.binary_search_by_key(&bucket, |(of, _)| *of) {
            Ok(at) => self.counts[at].1 = self.counts[at].1.saturating_add(count),
            Err(at) => self.counts.insert(at, (bucket, count)),
        }
    }

    /// Returns how many times were measured.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Returns how many took less than this power of two nanoseconds.
    #[doc(hidden)] // for `tensorpost-watch`
    pub fn below(&self, power: u32) -> u64 {
        let end = bucket(1 << power);
        let below = self.counts.iter().take_while(|(of, _)| usize::from(*of) < end);
        below.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Returns the time that a share `q` of all times (0 to 1) does not exceed; `None` if nothing was
    /// measured.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        let rank = ((count as f64 * q.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen: u64 = 0;
        for (bucket, count) in &self.counts {
            seen = seen.saturating_add(*count);
            if seen >= rank {
                return Some(Duration::from_nanos(middle(*bucket)));
            }
        }
        None
    }

    /// Returns the measurements since `earlier`, a histogram of the same thing.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let before =
            |bucket| earlier.counts.iter().find(|(of, _)| *of == bucket).map_or(0, |(_, count)| *count);
        let counts = self.counts.iter().map(|(of, count)| (*of, count.saturating_sub(before(*of))));
        Histogram { counts: counts.filter(|(_, count)| *count > 0).collect() }
    }

    /// Adds the measurements of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (bucket, count) in &other.counts {
            self.add(*bucket, *count);
        }
    }

    /// WIRE-1: returns whether a [`Meter`] can have made this histogram.
    pub(crate) fn is_sound(&self) -> bool {
        self.counts.is_sorted_by(|(a, _), (b, _)| a < b)
            && self.counts.last().is_none_or(|(bucket, _)| usize::from(*bucket) < BUCKETS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_within_an_eighth_of_its_buckets_middle() {
        let mut last = 0;
        for exponent in 0..64 {
            for nanos in [
                1u64 << exponent,
                (1u64 << exponent) + (1u64 << exponent) / 3,
                (1u64 << exponent) - 1 + (1u64 << exponent),
            ] {
                let at = bucket(nanos);
                assert!(at < BUCKETS && at >= last, "{nanos}");
                last = at;
                let middle = middle(at as u8);
                assert!(middle.abs_diff(nanos) <= nanos / 8 + 1, "{nanos} is counted as {middle}");
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_where_they_should_be() {
        let meter = Meter::default();
        assert_eq!(meter.histogram().quantile(0.5), None);
        (1..=1000).for_each(|micros| meter.note(micros * 1000));
        let histogram = meter.histogram();
        assert_eq!(histogram.count(), 1000);
        for (q, micros) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0), (0.0, 1.0)] {
            let seen = histogram.quantile(q).unwrap().as_secs_f64() * 1e6;
            assert!((seen / micros - 1.0).abs() < 0.13, "{q}: {seen}");
        }
        let mut noted = Histogram::default();
        (1..=1000).rev().for_each(|micros| noted.note(Duration::from_micros(micros)));
        assert_eq!(noted, histogram, "counted without a meter, in any order");
        assert_eq!(meter.total_and_longest(), (Duration::from_micros(500_500), Duration::from_millis(1)));
    }

    #[test]
    fn an_earlier_one_comes_out_of_a_later_one_and_two_add_up() {
        let meter = Meter::default();
        meter.note(5_000);
        let before = meter.histogram();
        (0..10).for_each(|_| meter.note(5_000_000));
        let mut since = meter.histogram().since(&before);
        assert_eq!(since.count(), 10);
        since.merge(&before);
        assert_eq!(since, meter.histogram());
        assert!(since.is_sound());
        assert!(
            !Histogram { counts: vec![(255, 1)] }.is_sound()
                && !Histogram { counts: vec![(3, 1), (3, 1)] }.is_sound()
        );
    }
}
