//! The randomness of a loader: of the order of an epoch, and of each sample's transforms. It is documented,
//! so that an order can be computed elsewhere, and it depends on nothing but the words that it is made of:
//! not on workers, nor on where an epoch was gone on from.
//!
//! SplitMix64 (Steele, Lea, Flood 2014; the constants of `java.util.SplittableRandom`).

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What the words of an order begin with, and those of a sample's transforms.
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

    /// Of a sample's transforms in an epoch.
    pub(super) fn of_sample(seed: u64, epoch: u64, index: u64) -> Self {
        Self::of(&[SAMPLE, seed, epoch, index])
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// From 0 to `bound`, which is not among them. What is out of proportion by that is `bound` / 2^64.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// From `low` to `high`.
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        low + (high - low) * unit
    }

    pub(super) fn happens(&mut self, probability: f64) -> bool {
        self.between(0.0, 1.0) < probability
    }
}

/// The order of an epoch: all indices below `count`, shuffled from the end (Fisher, Yates) where it is
/// shuffled.
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
