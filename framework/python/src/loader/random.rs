//! The random numbers of a loader: for the order of an epoch, and for each sample's transforms. The method is
//! documented, so that an order can be computed elsewhere. The numbers depend only on the words that seed
//! them: not on workers, nor on the position from which an epoch was resumed.
//!
//! SplitMix64 (Steele, Lea, Flood 2014; the constants of `java.util.SplittableRandom`).

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The first word of an order's seed, and that of a sample's transforms.
const ORDER: u64 = 0;
const SAMPLE: u64 = 1;

/// A stream of numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Random(u64);

fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Random {
    fn of(words: &[u64]) -> Self {
        Random(words.iter().fold(0, |state, word| mix((state ^ word).wrapping_add(STEP))))
    }

    /// Makes the numbers for a sample's transforms in an epoch.
    pub(super) fn of_sample(seed: u64, epoch: u64, index: u64) -> Self {
        Self::of(&[SAMPLE, seed, epoch, index])
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number from 0 to `bound`, exclusive. The bias is `bound` / 2^64.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`.
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        low + (high - low) * unit
    }

    pub(super) fn happens(&mut self, probability: f64) -> bool {
        self.between(0.0, 1.0) < probability
    }
}

/// Returns the order of an epoch: all indices below `count`, if wanted shuffled from the end (Fisher, Yates).
pub(super) fn order(count: u32, shuffled: Option<(u64, u64)>) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    if let Some((seed, epoch)) = shuffled {
        let mut random = Random::of(&[ORDER, seed, epoch]);
        for last in (1..order.len()).rev() {
            let with = random.below(last as u64 + 1) as usize;
            order.swap(last, with);
        }
    }
    order
}
