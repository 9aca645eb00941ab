//! Convolution of an HW image with a small square of weights: blur, sharpen, emboss.
//!
//! # Arithmetic
//! As in image programs, the weights are not flipped (strictly speaking, a correlation). Each operation
//! rounded to `f32`, from the upper left weight to the lower right one, row by row:
//! ```text
//! sum = 0
//! sum = sum + (weight[j][i] * pixel[y + j - reach][x + i - reach])        reach = side / 2
//! ```
//! The border is replicated: a neighbour outside is the nearest pixel inside.

use serde::{Deserialize, Serialize};

use super::{ImageError, ImageSize, expect_len};

/// The longest side of a square of weights.
pub const MAX_WEIGHTS_SIDE: usize = 31;

/// A square of weights with an odd side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<f32>", into = "Vec<f32>")]
pub struct Convolution {
    side: usize,
    weights: Vec<f32>,
}

impl Convolution {
    /// Creates a convolution with `side * side` weights, row by row; the side is odd, and 1 to
    /// [`MAX_WEIGHTS_SIDE`].
    ///
    /// # Errors
    /// [`ImageError::Weights`] for another number of weights, or one that is not finite.
    pub fn new(weights: impl Into<Vec<f32>>) -> Result<Self, ImageError> {
        let weights = weights.into();
        let side = weights.len().isqrt();
        let square = side * side == weights.len() && side % 2 == 1 && side <= MAX_WEIGHTS_SIDE;
        if !square || !weights.iter().all(|weight| weight.is_finite()) {
            return Err(ImageError::Weights { count: weights.len() });
        }
        Ok(Convolution { side, weights })
    }

    /// Creates the mean over a square with this side.
    ///
    /// # Errors
    /// [`ImageError::Weights`] for a side that is even, zero or too long.
    pub fn mean(side: usize) -> Result<Self, ImageError> {
        let count = side.saturating_mul(side);
        if count > MAX_WEIGHTS_SIDE * MAX_WEIGHTS_SIDE {
            return Err(ImageError::Weights { count });
        }
        Self::new(vec![1.0 / count as f32; count])
    }

    /// Weights along each side.
    pub fn side(&self) -> usize {
        self.side
    }

    /// Returns the weights, row by row.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Convolves an HW image into another HW slice.
    ///
    /// # Errors
    /// [`ImageError::Length`] when a slice does not fit `size`; nothing is written then.
    pub fn apply(&self, hw: &[f32], size: ImageSize, out: &mut [f32]) -> Result<(), ImageError> {
        expect_len("the image to convolve (HW)", hw.len(), size.pixels())?;
        expect_len("the buffer for the convolved image (HW)", out.len(), size.pixels())?;
        let (width, height) = (size.width() as usize, size.height() as usize);
        let reach = self.side / 2;
        // A coordinate plus an offset, minus the reach, clamped to the inside.
        let inside = |at: usize, by: usize, end: usize| (at + by).saturating_sub(reach).min(end - 1);
        for (y, out) in out.chunks_exact_mut(width).enumerate() {
            out.fill(0.0);
            // Go weight by weight over a whole row: the order of each pixel's sum is the same, and the loop
            // vectorises.
            for (j, weights) in self.weights.chunks_exact(self.side).enumerate() {
                let row = &hw[inside(y, j, height) * width..][..width];
                for (i, weight) in weights.iter().enumerate() {
                    for (x, sum) in out.iter_mut().enumerate() {
                        *sum += weight * row[inside(x, i, width)];
                    }
                }
            }
        }
        Ok(())
    }
}

impl TryFrom<Vec<f32>> for Convolution {
    type Error = ImageError;

    fn try_from(weights: Vec<f32>) -> Result<Self, ImageError> {
        Self::new(weights)
    }
}

impl From<Convolution> for Vec<f32> {
    fn from(convolution: Convolution) -> Self {
        convolution.weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(width: u32, height: u32) -> ImageSize {
        ImageSize::new(width, height).expect("in bounds")
    }

    fn apply(weights: &[f32], hw: &[f32], size: ImageSize) -> Vec<f32> {
        let mut out = vec![f32::NAN; hw.len()];
        Convolution::new(weights).expect("a square").apply(hw, size, &mut out).expect("lengths");
        out
    }

    #[test]
    fn worked_by_hand() {
        let image = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(apply(&[1.0], &image, size(3, 2)), image);
        // The right neighbour; the last column's is itself.
        let right = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0];
        assert_eq!(apply(&right, &image, size(3, 2)), [2.0, 3.0, 3.0, 5.0, 6.0, 6.0]);
        // The one above: the first row's is itself.
        let above = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(apply(&above, &image, size(3, 2)), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        // Every neighbour of the only pixel is that pixel.
        assert_eq!(apply(&[2.0; 25], &[1.0], size(1, 1)), [50.0]);
    }

    #[test]
    fn a_mean_keeps_what_is_even() {
        let mut out = [0.0; 20];
        let mean = Convolution::mean(3).expect("odd");
        assert_eq!((mean.side(), mean.weights().len()), (3, 9));
        mean.apply(&[7.0; 20], size(5, 4), &mut out).expect("lengths");
        assert!(out.iter().all(|value| (value - 7.0).abs() < 1e-5), "{out:?}");
    }

    #[test]
    fn refuses() {
        for weights in [vec![], vec![1.0; 4], vec![1.0; 8], vec![f32::NAN], vec![0.0; 33 * 33]] {
            let refused = Convolution::new(weights.clone());
            assert!(matches!(refused, Err(ImageError::Weights { .. })), "{}", weights.len());
        }
        assert!(Convolution::mean(0).is_err() && Convolution::mean(2).is_err());
        assert!(Convolution::mean(usize::MAX).is_err());
        let one = Convolution::new([1.0]).expect("a square");
        let mut out = [9.0; 2];
        let refused = one.apply(&[0.0; 3], size(2, 1), &mut out);
        assert!(matches!(refused, Err(ImageError::Length { actual: 3, .. })));
        assert_eq!(out, [9.0; 2]);
    }
}
