//! A few numbers that show whether a tensor has the right contents.

use serde::{Deserialize, Serialize};

/// Summary of a slice of `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Elements.
    pub count: u64,
    /// Elements that are NaN or infinite. They count in `count` and `checksum` and nowhere else.
    pub non_finite: u64,
    /// The smallest finite element; NaN when there is none.
    pub min: f32,
    /// The largest finite element; NaN when there is none.
    pub max: f32,
    /// The mean of the finite elements; NaN when there is none.
    pub mean: f64,
    /// The standard deviation of the finite elements (of the population: divided by their number); NaN when
    /// there is none.
    pub std: f64,
    /// [`checksum`] of all elements.
    pub checksum: u64,
}

/// The largest difference of a mean or deviation that was summed in another order, relative to the largest
/// magnitude.
pub const TOLERANCE: f64 = 1e-12;

/// Partial sums, so that the compiler may add several elements at once without changing the result.
const LANES: usize = 8;

impl Stats {
    /// Summarises `values`, in two passes.
    ///
    /// The sums are `f64`: element `i` is added to lane `i % 8`, and the lanes are added from first to last.
    /// The same slice gives the same bits everywhere. A reduction in another order, such as a GPU's, agrees
    /// to a relative 1e-12 of the mean magnitude in `f64`. `min`, `max` and `checksum` agree exactly in any
    /// order (but `min` and `max` do not tell 0 from -0).
    pub fn of(values: &[f32]) -> Self {
        let (mut min, mut max, mut finite) = (f32::INFINITY, f32::NEG_INFINITY, 0u64);
        for &v in values {
            if v.is_finite() {
                min = min.min(v);
                max = max.max(v);
                finite += 1;
            }
        }
        let count = values.len() as u64;
        let (non_finite, checksum) = (count - finite, checksum(values));
        if finite == 0 {
            return Self {
                count,
                non_finite,
                min: f32::NAN,
                max: f32::NAN,
                mean: f64::NAN,
                std: f64::NAN,
                checksum,
            };
        }
        let mean = sum(values, |v| v) / finite as f64;
        let variance = sum(values, |v| (v - mean) * (v - mean)) / finite as f64;
        Self { count, non_finite, min, max, mean, std: variance.sqrt(), checksum }
    }

    /// Returns the sum of the finite elements; 0 when there is none.
    pub fn sum(&self) -> f64 {
        match self.count - self.non_finite {
            0 => 0.0,
            finite => self.mean * finite as f64,
        }
    }

    /// Returns numbers that a tensor can hold: the count, the number of elements that are not finite, the
    /// bits of smallest, largest, mean and deviation, and the checksum.
    pub fn to_words(&self) -> [u64; 7] {
        let Self { count, non_finite, min, max, mean, std, checksum } = *self;
        let (min, max) = (u64::from(min.to_bits()), u64::from(max.to_bits()));
        [count, non_finite, min, max, mean.to_bits(), std.to_bits(), checksum]
    }

    /// Makes the statistics from the numbers of [`to_words`](Self::to_words).
    pub fn from_words([count, non_finite, min, max, mean, std, checksum]: [u64; 7]) -> Self {
        // The upper halves are zero.
        let (min, max) = (f32::from_bits(min as u32), f32::from_bits(max as u32));
        let (mean, std) = (f64::from_bits(mean), f64::from_bits(std));
        Self { count, non_finite, min, max, mean, std, checksum }
    }

    /// Returns whether both belong to the same elements, computed in any order: they are equal, except that
    /// mean and deviation may differ by [`TOLERANCE`] of the largest magnitude. NaN is equal to NaN here.
    pub fn agrees(&self, other: &Self) -> bool {
        let exact = |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan());
        let scale = f64::from(self.min.abs().max(self.max.abs()));
        let near = |a: f64, b: f64| (a - b).abs() <= TOLERANCE * scale || (a.is_nan() && b.is_nan());
        (self.count, self.non_finite, self.checksum) == (other.count, other.non_finite, other.checksum)
            && exact(self.min, other.min)
            && exact(self.max, other.max)
            && near(self.mean, other.mean)
            && near(self.std, other.std)
    }
}

/// Returns the sum of `f` over the finite elements, in the order that [`Stats::of`] documents.
fn sum(values: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let mut add = |chunk: &[f32]| {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane += if v.is_finite() { f(f64::from(v)) } else { 0.0 };
        }
    };
    let mut chunks = values.chunks_exact(LANES);
    chunks.by_ref().for_each(&mut add);
    add(chunks.remainder());
    lanes.iter().sum()
}

/// Returns a checksum of the bits of `values` that depends on each element's position and not on the order of
/// computing, so that a GPU can compute the same one. It is a sum over threads:
/// ```text
/// sum over i, modulo 2^64, of mix((i << 32 | bits of element i) + 0x9E3779B97F4A7C15)
/// ```
/// There `mix` is the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
/// generators", 2014). It finds accidents, not attacks. 0 and -0 differ, and so do two NaNs of different
/// bits. The empty slice gives 0.
pub fn checksum(values: &[f32]) -> u64 {
    values.iter().zip(0u64..).fold(0, |sum, (v, i)| sum.wrapping_add(mix((i << 32) | u64::from(v.to_bits()))))
}

#[inline]
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn worked_by_hand() {
        // Deviations from the mean 5: -3 -1 -1 -1 0 0 2 4, squares sum to 32, variance 4.
        let stats = Stats::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!((stats.count, stats.non_finite, stats.min, stats.max), (8, 0, 2.0, 9.0));
        assert_eq!((stats.mean, stats.std), (5.0, 2.0));
    }

    #[test]
    fn what_is_not_finite_is_counted_and_left_out() {
        let stats = Stats::of(&[f32::NAN, 1.0, f32::INFINITY, 3.0, f32::NEG_INFINITY]);
        assert_eq!((stats.count, stats.non_finite, stats.min, stats.max), (5, 3, 1.0, 3.0));
        assert_eq!((stats.mean, stats.std), (2.0, 1.0));
        for nothing in [&[][..], &[f32::NAN]] {
            let stats = Stats::of(nothing);
            assert_eq!(stats.non_finite, nothing.len() as u64);
            assert!(stats.min.is_nan() && stats.max.is_nan() && stats.mean.is_nan() && stats.std.is_nan());
        }
    }

    #[test]
    fn words_come_back_and_agreement_is_narrow() {
        let stats = Stats::of(&[1.0, 2.5, f32::NAN, -7.0]);
        assert_eq!(Stats::from_words(stats.to_words()), stats);
        assert!(stats.agrees(&Stats { mean: stats.mean + 1e-13, std: stats.std - 1e-13, ..stats }));
        assert!(!stats.agrees(&Stats { mean: stats.mean + 1e-9, ..stats }));
        assert!(!stats.agrees(&Stats { max: 2.500_000_2, ..stats }));
        assert!(!stats.agrees(&Stats { checksum: 0, ..stats }));
        let nothing = Stats::of(&[f32::NAN]);
        assert!(nothing.agrees(&nothing) && !nothing.agrees(&stats));
        assert_eq!(Stats::from_words(nothing.to_words()).to_words(), nothing.to_words());
    }

    #[test]
    fn the_checksum_is_the_published_generator() {
        // The first output of SplitMix64 with seed 0 is widely published; element 0 with no bits set is that
        // seed.
        assert_eq!(checksum(&[0.0]), 0xE220_A839_7B1D_CDAF);
        assert_eq!(checksum(&[]), 0);
        assert_ne!(checksum(&[0.0]), checksum(&[-0.0]));
        assert_ne!(checksum(&[0.0]), checksum(&[0.0, 0.0]));
        assert_ne!(checksum(&[1.0, 2.0]), checksum(&[2.0, 1.0]));
    }

    proptest! {
        #[test]
        fn agrees_with_a_naive_one(values in prop::collection::vec(-1e3f32..1e3, 1..100)) {
            let stats = Stats::of(&values);
            let n = values.len() as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
            let mean_square = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / n;
            prop_assert!((stats.mean - mean).abs() < 1e-9);
            prop_assert!((stats.std * stats.std - (mean_square - mean * mean)).abs() < 1e-6);
            let mut sorted = values.clone();
            sorted.sort_by(f32::total_cmp);
            prop_assert_eq!((stats.min, stats.max), (sorted[0], sorted[values.len() - 1]));
        }

        #[test]
        fn a_changed_bit_changes_the_checksum(mut values in prop::collection::vec(any::<f32>(), 1..100), at: prop::sample::Index, bit in 0u32..32) {
            let before = checksum(&values);
            let at = at.index(values.len());
            let v = &mut values[at];
            *v = f32::from_bits(v.to_bits() ^ (1 << bit));
            prop_assert_ne!(checksum(&values), before);
        }
    }
}
