//! Edges: the magnitude of the Sobel gradient of the luma.
//!
//! # Arithmetic
//! Each operation rounded to `f32`, in this order:
//! ```text
//! luma = ((0.299 * r) + (0.587 * g)) + (0.114 * b)                    ITU-R BT.601
//! gx   = ((ne - nw) + (2 * (e - w))) + (se - sw)                      nw n ne
//! gy   = ((sw - nw) + (2 * (s - n))) + (se - ne)                      w     e
//! edge = sqrt((gx * gx) + (gy * gy))                                  sw s se
//! ```
//! The border is replicated: a neighbour outside is the nearest pixel inside. The result is not scaled: a
//! vertical step from 0 to 255 gives 1020.

use super::normalise::Normalisation;
use super::{ImageError, ImageSize, expect_len};

/// The largest difference to the exact result, and to a GPU that contracts products and sums, for values of
/// the 0..=255 range; for 0..=1, a 255th of it. (The luma is off by up to four half units in the last place
/// of 255, 3e-5; eight of them enter each gradient by weight.)
pub const TOLERANCE: f32 = 1e-3;

/// The gain for [`quantise::to_gray8`](super::quantise::to_gray8) that makes the strongest straight edge of a
/// 0..=255 image (1020) white. Stronger corners are clamped.
pub const SOBEL_GAIN: f32 = 0.25;

/// Returns the gain for an image that was normalised: there a step from black to white in channel `c` is
/// `1 / std[c]`.
pub fn gain(normalisation: &Normalisation) -> f32 {
    let [red, green, blue] = normalisation.std();
    255.0 / (4.0 * weigh(1.0 / red, 1.0 / green, 1.0 / blue))
}

/// Computes the luma of a CHW image into an HW slice, in the same range.
///
/// # Errors
/// [`ImageError::Length`] when a slice does not fit `size`; nothing is written then.
pub fn luma(chw: &[f32], size: ImageSize, hw: &mut [f32]) -> Result<(), ImageError> {
    expect_len("the image to take the luma of (CHW)", chw.len(), size.rgb_len())?;
    expect_len("the buffer for the luma (HW)", hw.len(), size.pixels())?;
    let (red, rest) = chw.split_at(size.pixels());
    let (green, blue) = rest.split_at(size.pixels());
    for (((y, r), g), b) in hw.iter_mut().zip(red).zip(green).zip(blue) {
        *y = weigh(*r, *g, *b);
    }
    Ok(())
}

/// Computes the Sobel magnitude of an HW image into another HW slice.
///
/// # Errors
/// [`ImageError::Length`] when a slice does not fit `size`; nothing is written then.
pub fn sobel(luma: &[f32], size: ImageSize, hw: &mut [f32]) -> Result<(), ImageError> {
    expect_len("the luma to find edges in (HW)", luma.len(), size.pixels())?;
    expect_len("the buffer for the edges (HW)", hw.len(), size.pixels())?;
    let (width, height) = (size.width() as usize, size.height() as usize);
    let row = |y: usize| &luma[y * width..][..width];
    for (y, out) in hw.chunks_exact_mut(width).enumerate() {
        let rows =
            Rows { above: row(y.saturating_sub(1)), here: row(y), below: row((y + 1).min(height - 1)) };
        rows.interior(out);
        out[0] = rows.at(0);
        out[width - 1] = rows.at(width - 1);
    }
    Ok(())
}

/// Computes the edges of a CHW image into an HW slice: [`luma`], then [`sobel`]. `scratch` is an HW slice for
/// the luma, which stays in it.
///
/// # Errors
/// [`ImageError::Length`] when a slice does not fit `size`; nothing is written then.
pub fn edges(chw: &[f32], size: ImageSize, scratch: &mut [f32], hw: &mut [f32]) -> Result<(), ImageError> {
    expect_len("the buffer for the edges (HW)", hw.len(), size.pixels())?;
    luma(chw, size, scratch)?;
    sobel(scratch, size, hw)
}

/// The plane of the image in which [`edges_in_place`] leaves the edges.
pub const EDGES_PLANE: usize = 1;

/// Computes [`edges`] within the image's own memory: the luma replaces the red plane, the edges replace the
/// green one ([`EDGES_PLANE`]), and the blue one stays. The values are those of [`edges`], bit for bit.
///
/// # Errors
/// [`ImageError::Length`] when `chw` does not fit `size`; nothing is changed then.
pub fn edges_in_place(chw: &mut [f32], size: ImageSize) -> Result<(), ImageError> {
    expect_len("the image to find edges in (CHW)", chw.len(), size.rgb_len())?;
    let (red, rest) = chw.split_at_mut(size.pixels());
    let (green, blue) = rest.split_at_mut(size.pixels());
    for ((r, g), b) in red.iter_mut().zip(&*green).zip(&*blue) {
        *r = weigh(*r, *g, *b);
    }
    sobel(red, size, green)
}

#[inline]
fn weigh(r: f32, g: f32, b: f32) -> f32 {
    0.299 * r + 0.587 * g + 0.114 * b
}

/// A row with its neighbours; all three are equally long.
struct Rows<'a> {
    above: &'a [f32],
    here: &'a [f32],
    below: &'a [f32],
}

impl Rows<'_> {
    /// Computes the magnitudes of all columns but the first and the last, without a branch or a bounds check
    /// in the loop, so that it vectorises.
    fn interior(&self, out: &mut [f32]) {
        let Some(n) = out.len().checked_sub(2) else { return };
        let out = &mut out[1..][..n];
        let (nw, n_, ne) = (&self.above[..n], &self.above[1..][..n], &self.above[2..][..n]);
        let (w, e) = (&self.here[..n], &self.here[2..][..n]);
        let (sw, s, se) = (&self.below[..n], &self.below[1..][..n], &self.below[2..][..n]);
        for i in 0..n {
            out[i] = magnitude([nw[i], n_[i], ne[i]], [w[i], e[i]], [sw[i], s[i], se[i]]);
        }
    }

    /// Returns the magnitude at a column of the border.
    fn at(&self, x: usize) -> f32 {
        let (l, r) = (x.saturating_sub(1), (x + 1).min(self.here.len() - 1));
        magnitude(
            [self.above[l], self.above[x], self.above[r]],
            [self.here[l], self.here[r]],
            [self.below[l], self.below[x], self.below[r]],
        )
    }
}

#[inline]
fn magnitude([nw, n, ne]: [f32; 3], [w, e]: [f32; 2], [sw, s, se]: [f32; 3]) -> f32 {
    let gx = (ne - nw) + 2.0 * (e - w) + (se - sw);
    let gy = (sw - nw) + 2.0 * (s - n) + (se - ne);
    (gx * gx + gy * gy).sqrt()
}

#[cfg(test)]
mod tests;
