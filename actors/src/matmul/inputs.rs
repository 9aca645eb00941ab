//! The matrices of a chain, which both processes make for themselves, and the results in double precision.

use serde::{Deserialize, Serialize};

/// The description of the matrices, the same in both processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Rows and columns of every matrix.
    pub size: usize,
    /// Products in a chain.
    pub products: u32,
    /// Number of matrices that chains start with, in turn. They differ, so that a stale result in the memory
    /// is a wrong one.
    pub starts: u64,
}

impl Task {
    /// Returns the number of the matrix that a repetition starts with.
    pub(super) fn start_of(&self, repetition: u64) -> usize {
        (repetition % self.starts.max(1)) as usize
    }

    /// Returns the matrix that every product multiplies by. Its entries are scaled so that products neither
    /// grow nor vanish: a random matrix with entries of variance 1/n has a spectral radius near one.
    pub(super) fn factor(&self) -> Vec<f32> {
        let scale = (3.0 / self.size as f32).sqrt();
        Random(0x9e37_79b9_7f4a_7c15).numbers(self.size, scale)
    }

    /// Returns the matrices that chains start with.
    pub(super) fn starts(&self) -> Vec<Vec<f32>> {
        (0..self.starts.max(1)).map(|seed| Random(seed * 0x1234_5677 + 1).numbers(self.size, 1.0)).collect()
    }

    /// Returns the result of `products` products and `more` for each start, in double precision; one thread
    /// computes each.
    pub(super) fn references(&self, more: u32) -> Vec<Vec<f64>> {
        let wide = |narrow: Vec<f32>| -> Vec<f64> { narrow.into_iter().map(f64::from).collect() };
        let factor = wide(self.factor());
        let (size, count) = (self.size, self.products + more);
        std::thread::scope(|scope| {
            let chains: Vec<_> = self
                .starts()
                .into_iter()
                .map(|start| {
                    let factor = &factor;
                    scope.spawn(move || {
                        let mut matrix = wide(start);
                        for _ in 0..count {
                            matrix = product(factor, &matrix, size);
                        }
                        matrix
                    })
                })
                .collect();
            // A thread that only multiplies can only fail by a panic, which is passed on here.
            chains
                .into_iter()
                .map(|chain| chain.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }
}

/// Computes `a · b` of two square matrices in row-major order, in double precision.
fn product(a: &[f64], b: &[f64], size: usize) -> Vec<f64> {
    let mut c = vec![0.0; size * size];
    for (a, c) in a.chunks_exact(size).zip(c.chunks_exact_mut(size)) {
        for (a, b) in a.iter().zip(b.chunks_exact(size)) {
            for (c, b) in c.iter_mut().zip(b) {
                *c += a * b;
            }
        }
    }
    c
}

/// A xorshift generator: the same numbers in every process.
struct Random(u64);

impl Random {
    /// `size * size` numbers in `-scale..scale`.
    fn numbers(mut self, size: usize, scale: f32) -> Vec<f32> {
        (0..size * size).map(|_| self.next() * scale).collect()
    }

    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper 24 bits, which a float holds exactly, as a number in -1..1.
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_is_the_one_of_the_books() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]);
        assert_eq!(product(&a, &b, 2), [19.0, 22.0, 43.0, 50.0]);
    }

    #[test]
    fn chains_neither_grow_nor_vanish_and_differ() {
        let task = Task { size: 48, products: 50, starts: 2 };
        let references = task.references(1);
        for reference in &references {
            let largest = reference.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
            assert!((1e-3..1e3).contains(&largest), "{largest}");
        }
        assert_ne!(references[0], references[1]);
    }
}
