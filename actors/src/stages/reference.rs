//! The whole pipeline in one process, one function after the other: what the stages must agree with, bit for bit.

use std::path::Path;

use crate::image::edge::edges;
use crate::image::normalise::Normalisation;
use crate::image::resize::{Range, resize};
use crate::image::stats::Stats;
use crate::image::{ImageError, ImageSize, decode, quantise};

/// What should become of a photograph.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// Of the edges' magnitudes.
    pub stats: Stats,
    /// The pixels of the PNG file, HW.
    pub gray: Vec<u8>,
}

/// Computes what the pipeline should make of the photograph at `path`.
///
/// # Errors
/// As [`decode::decode`].
pub fn reference(
    path: &Path,
    size: ImageSize,
    normalisation: &Normalisation,
    gain: f32,
) -> Result<Reference, ImageError> {
    let photograph = decode::decode(path)?;
    let mut planes = vec![0.0; size.rgb_len()];
    resize(&photograph.pixels, photograph.size, &mut planes, size, Range::Bytes)?;
    normalisation.apply(&mut planes, size)?;
    let (mut luma, mut magnitude) = (vec![0.0; size.pixels()], vec![0.0; size.pixels()]);
    edges(&planes, size, &mut luma, &mut magnitude)?;
    let mut gray = vec![0; size.pixels()];
    quantise::to_gray8(&magnitude, gain, &mut gray)?;
    Ok(Reference { stats: Stats::of(&magnitude), gray })
}

/// The gain that makes the strongest straight edge white, from black to white in the original.
///
/// It is four times the luma's step (see [`edge`](mod@crate::image::edge)), and a step from 0 to 255 in channel `c` is
/// `1 / std[c]` after normalisation.
pub fn edge_gain(normalisation: &Normalisation) -> f32 {
    let [red, green, blue] = normalisation.std();
    255.0 / (4.0 * (0.299 / red + 0.587 / green + 0.114 / blue))
}
