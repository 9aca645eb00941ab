//! A bit for each piece of a span.

/// A fixed number of bits, all unset at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    words: Vec<u64>,
    len: u64,
    set: u64,
}

impl Bits {
    /// Makes `len` unset bits.
    pub fn new(len: u64) -> Self {
        Bits { words: vec![0; len.div_ceil(64) as usize], len, set: 0 }
    }

    /// Makes bits from words of another host. `None` if there are too few or too many words, or a bit after
    /// the last is set.
    pub fn from_words(words: Vec<u64>, len: u64) -> Option<Self> {
        let used = len % 64;
        let tail = words.last().copied().unwrap_or(0);
        let fits = words.len() as u64 == len.div_ceil(64) && (used == 0 || tail >> used == 0);
        let set = words.iter().map(|word| u64::from(word.count_ones())).sum();
        fits.then_some(Bits { words, len, set })
    }

    /// Returns the words.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Returns the number of bits.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether there are no bits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether all are set.
    pub fn all(&self) -> bool {
        self.set == self.len
    }

    /// Returns whether this bit is set; `false` beyond the last.
    pub fn get(&self, index: u64) -> bool {
        index < self.len && self.words[(index / 64) as usize] >> (index % 64) & 1 == 1
    }

    /// Sets this bit. Returns whether it was unset.
    ///
    /// # Panics
    /// The index is beyond the last bit.
    pub fn set(&mut self, index: u64) -> bool {
        assert!(index < self.len, "bit {index} of {}", self.len);
        let fresh = !self.get(index);
        self.words[(index / 64) as usize] |= 1 << (index % 64);
        self.set += u64::from(fresh);
        fresh
    }

    /// Unsets this bit.
    pub(crate) fn unset(&mut self, index: u64) {
        if self.get(index) {
            self.words[(index / 64) as usize] &= !(1 << (index % 64));
            self.set -= 1;
        }
    }

    /// Returns the first unset bit from `from` on.
    pub fn first_unset(&self, from: u64) -> Option<u64> {
        let mut at = from;
        while at < self.len {
            let unset = !self.words[(at / 64) as usize] >> (at % 64);
            if unset != 0 {
                let found = at + u64::from(unset.trailing_zeros());
                return (found < self.len).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_set_of_numbers(len in 0_u64..200, set in prop::collection::btree_set(0_u64..200, 0..80)) {
            let set: std::collections::BTreeSet<u64> = set.into_iter().filter(|index| *index < len).collect();
            let mut bits = Bits::new(len);
            for index in &set {
                prop_assert!(bits.set(*index) && !bits.set(*index));
            }
            prop_assert_eq!(bits.all(), set.len() as u64 == len);
            for from in 0..=len {
                let first = (from..len).find(|index| !set.contains(index));
                prop_assert_eq!(bits.first_unset(from), first);
                prop_assert_eq!(bits.get(from), set.contains(&from));
            }
            prop_assert_eq!(Bits::from_words(bits.words().to_vec(), len), Some(bits));
        }
    }

    #[test]
    fn words_of_another_have_to_fit() {
        assert!(Bits::from_words(vec![0b111], 3).is_some_and(|bits| bits.all()));
        assert_eq!(Bits::from_words(vec![0b1000], 3), None, "a bit behind the last");
        assert_eq!(Bits::from_words(vec![0, 0], 64), None);
        assert_eq!(Bits::from_words(vec![], 1), None);
    }
}
