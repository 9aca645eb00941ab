//! Numbers drawn from the bytes of an input, so that the same bytes always lead to the same calls. A fuzzer
//! changes the bytes; an ordinary test takes them [from a seed](of_seed).

/// The rest of an input. When it is over, every number is 0.
#[derive(Clone, Copy, Debug)]
pub struct Draws<'a>(&'a [u8]);

/// Numbers at which arithmetic ends, or nearly.
const ENDS: [u64; 8] =
    [u64::MAX, u64::MAX - 1, u64::MAX >> 1, 1 << 63, 1 << 62, u32::MAX as u64, 1 << 32, u16::MAX as u64];

impl<'a> Draws<'a> {
    /// Draws from these bytes.
    pub fn new(input: &'a [u8]) -> Self {
        Draws(input)
    }

    /// Returns whether nothing is left.
    pub fn are_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Draws a byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Draws a number below `count`, which is at most 256, or 0 where `count` is.
    pub fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count.max(1)
    }

    /// Draws a number of 16 bits.
    pub fn pair(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Draws any number: mostly a small one, so that it meets others, or one at an end.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            0..192 => self.byte().into(),
            192..240 => ENDS[self.below(ENDS.len())],
            240.. => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// Draws whether.
    pub fn whether(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Draws up to `most` bytes.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let wanted = usize::from(self.pair()) % (most + 1);
        let (bytes, rest) = self.0.split_at(wanted.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// Returns this many bytes, the same for each seed each time: SplitMix64 (Steele, Lea and Flood, 2014).
pub fn of_seed(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    });
    words.flat_map(u64::to_le_bytes).take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_drawn_once_and_then_all_is_zero() {
        let mut draws = Draws::new(&[7, 1, 2, 3, 0, 9, 9]);
        assert_eq!((draws.below(4), draws.pair()), (3, 0x201));
        assert_eq!(draws.bytes(10), [9, 9], "three were drawn, and two are left");
        assert!(draws.are_over());
        assert_eq!((draws.byte(), draws.number(), draws.below(0), draws.whether()), (0, 0, 0, false));
    }

    #[test]
    fn a_seed_leads_to_the_same_bytes_each_time() {
        assert_eq!(of_seed(1, 100), of_seed(1, 100));
        assert_ne!(of_seed(1, 100), of_seed(2, 100));
        // The first word of <https://prng.di.unimi.it/splitmix64.c> for the seed 0.
        assert_eq!(of_seed(0, 8), 0xe220_a839_7b1d_cdaf_u64.to_le_bytes());
        assert_eq!(of_seed(0, 3).len(), 3);
    }
}
