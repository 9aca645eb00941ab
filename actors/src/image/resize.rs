//! Bilinear resize from HWC bytes to CHW floats.
//!
//! Pixels are squares and a coordinate names a centre (half-pixel centres), as with PyTorch's
//! `interpolate(mode="bilinear", align_corners=False, antialias=False)` and OpenCV's `INTER_LINEAR`.
//! Shrinking does not average: four source pixels make one, no matter how far apart the samples lie.
//!
//! # Arithmetic
//! A target coordinate `x` of `dst` samples a source of `src` pixels at `(x + 0.5) * src / dst - 0.5`.
//! Computed with integers, so that the neighbour and the weight do not depend on how a compiler contracts a
//! product and a sum:
//! ```text
//! num = max(0, (2x + 1) * src - dst)           exact in 32 bits, see MAX_SIDE; left of the first centre: the edge
//! lo  = num / (2 * dst)                         integer division
//! hi  = min(lo + 1, src - 1)                    right of the last centre: the edge again
//! w1  = f32(num % (2 * dst)) / f32(2 * dst)     one rounding
//! w0  = 1 - w1
//! ```
//! The same for rows, with `h0`, `h1`. Then, each operation rounded to `f32`:
//! ```text
//! top    = (w0 * p[lo_y][lo_x]) + (w1 * p[lo_y][hi_x])
//! bottom = (w0 * p[hi_y][lo_x]) + (w1 * p[hi_y][hi_x])
//! value  = (h0 * top) + (h1 * bottom)           0..=255; divided by 255 for Range::Unit
//! ```
//! OpenCV 4's `f32` path gave the same to 3.1e-5 on this repository's photographs at three target sizes; its
//! 8-bit path uses fixed-point weights and differs by up to 1. PyTorch computes the coordinate in `f32`, so
//! the difference to it can grow with the side, to about `255 * side * 2^-23` (0.02 at 640 pixels).

use serde::{Deserialize, Serialize};

use super::{ImageError, ImageSize, expect_len};

/// The largest difference to the exact result, and to a GPU that contracts products and sums, in the units of
/// the 0..=255 range. (Two levels of interpolation, each with two rounded weights, two products and a sum, at
/// half a unit in the last place of 255, which is 7.6e-6, each.)
pub const TOLERANCE: f32 = 1e-4;

/// The range that pixel values come out in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Range {
    /// 0..=255, as in the file.
    #[default]
    Bytes,
    /// 0..=1.
    Unit,
}

/// The two neighbours of one sample and the weight of the second, in `0..1`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tap {
    lo: u32,
    hi: u32,
    w1: f32,
}

/// Returns the samples along one axis. Both sides lie within `1..=MAX_SIDE`.
fn taps(src: u32, dst: u32) -> Vec<Tap> {
    (0..dst)
        .map(|x| {
            let num = ((2 * x + 1) * src).saturating_sub(dst);
            let lo = num / (2 * dst);
            Tap { lo, hi: (lo + 1).min(src - 1), w1: (num % (2 * dst)) as f32 / (2 * dst) as f32 }
        })
        .collect()
}

/// A resize between two fixed sizes, with its tables and scratch memory. Make it once for many images.
#[derive(Debug)]
pub struct Bilinear {
    src: ImageSize,
    dst: ImageSize,
    columns: Vec<Tap>,
    rows: Vec<Tap>,
    /// Two source rows resized along x, planar: 3 * dst.width each.
    upper: Vec<f32>,
    lower: Vec<f32>,
}

impl Bilinear {
    /// Prepares the resize of `src` to `dst`.
    pub fn new(src: ImageSize, dst: ImageSize) -> Self {
        let row = dst.width() as usize * 3;
        Self {
            src,
            dst,
            columns: taps(src.width(), dst.width()),
            rows: taps(src.height(), dst.height()),
            upper: vec![0.0; row],
            lower: vec![0.0; row],
        }
    }

    /// Returns the size of the images it takes.
    pub fn src(&self) -> ImageSize {
        self.src
    }

    /// Returns the size of the images it makes.
    pub fn dst(&self) -> ImageSize {
        self.dst
    }

    /// Resizes the HWC bytes `hwc` (`src().rgb_len()` of them) into the CHW floats `chw` (`dst().rgb_len()`).
    ///
    /// # Errors
    /// [`ImageError::Length`] when a slice has another length; nothing is written then.
    pub fn run(&mut self, hwc: &[u8], chw: &mut [f32], range: Range) -> Result<(), ImageError> {
        expect_len("the image to resize (HWC)", hwc.len(), self.src.rgb_len())?;
        expect_len("the buffer for the resized image (CHW)", chw.len(), self.dst.rgb_len())?;
        let source_row = |y: u32| {
            let len = self.src.width() as usize * 3;
            &hwc[y as usize * len..][..len]
        };
        let width = self.dst.width() as usize;
        // The source rows that `upper` and `lower` hold. Rows are visited in order. So, when enlarging, most
        // target rows reuse both, or the lower one as the upper one.
        let mut held = [None; 2];
        for (y, tap) in self.rows.iter().enumerate() {
            if held[1] == Some(tap.lo) && held[0] != Some(tap.lo) {
                std::mem::swap(&mut self.upper, &mut self.lower);
                held.swap(0, 1);
            }
            if held[0] != Some(tap.lo) {
                resize_row(source_row(tap.lo), &self.columns, &mut self.upper);
                held[0] = Some(tap.lo);
            }
            if held[1] != Some(tap.hi) {
                resize_row(source_row(tap.hi), &self.columns, &mut self.lower);
                held[1] = Some(tap.hi);
            }
            let rows = self.upper.chunks_exact(width).zip(self.lower.chunks_exact(width));
            for (plane, (top, bottom)) in chw.chunks_exact_mut(self.dst.pixels()).zip(rows) {
                let out = &mut plane[y * width..][..width];
                blend(top, bottom, tap.w1, out);
                if range == Range::Unit {
                    out.iter_mut().for_each(|v| *v /= 255.0);
                }
            }
        }
        Ok(())
    }
}

/// Resizes the HWC bytes `hwc` of size `src` into the CHW floats `chw` of size `dst`, once. It allocates
/// tables; [`Bilinear`] keeps them.
///
/// # Errors
/// [`ImageError::Length`] when a slice does not hold three channels of its size; nothing is written then.
pub fn resize(
    hwc: &[u8],
    src: ImageSize,
    chw: &mut [f32],
    dst: ImageSize,
    range: Range,
) -> Result<(), ImageError> {
    Bilinear::new(src, dst).run(hwc, chw, range)
}

/// Resizes one HWC source row along x, into three planes of `columns.len()`.
fn resize_row(hwc: &[u8], columns: &[Tap], planes: &mut [f32]) {
    let (red, rest) = planes.split_at_mut(columns.len());
    let (green, blue) = rest.split_at_mut(columns.len());
    for (((tap, r), g), b) in columns.iter().zip(red).zip(green).zip(blue) {
        let left = &hwc[tap.lo as usize * 3..][..3];
        let right = &hwc[tap.hi as usize * 3..][..3];
        let (w0, w1) = (1.0 - tap.w1, tap.w1);
        *r = w0 * f32::from(left[0]) + w1 * f32::from(right[0]);
        *g = w0 * f32::from(left[1]) + w1 * f32::from(right[1]);
        *b = w0 * f32::from(left[2]) + w1 * f32::from(right[2]);
    }
}

/// Computes `out = h0 * top + h1 * bottom`, a row at a time: the loop that vectorises.
fn blend(top: &[f32], bottom: &[f32], h1: f32, out: &mut [f32]) {
    let h0 = 1.0 - h1;
    for ((v, t), b) in out.iter_mut().zip(top).zip(bottom) {
        *v = h0 * t + h1 * b;
    }
}

#[cfg(test)]
mod tests;
