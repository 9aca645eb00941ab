//! The errors of images. Each names its file or slice.

use std::io;
use std::path::PathBuf;

use super::MAX_SIDE;

/// An image could not be read, computed or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file could not be opened or read.
    #[error("cannot read image {name}: {source}; check that the file exists and may be read")]
    Read {
        /// The path, or the name the caller gave to the bytes.
        name: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The bytes are no image that can be decoded: an unknown format, or a damaged or oversized file.
    #[error(
        "cannot decode image {name}: {source}; it must be an intact PNG or JPEG of at most {MAX_SIDE} pixels a side"
    )]
    Decode {
        /// The path, or the name the caller gave to the bytes.
        name: String,
        /// The error of the decoder.
        source: ::image::ImageError,
    },
    /// A side is zero or longer than [`MAX_SIDE`].
    #[error(
        "an image of {width} x {height} pixels is out of bounds: each side must be 1 to {MAX_SIDE} pixels"
    )]
    Size {
        /// The width asked for, in pixels.
        width: u32,
        /// The height asked for, in pixels.
        height: u32,
    },
    /// A slice does not have the length that its layout and the image's size require.
    #[error("{what} has {actual} elements where {expected} are needed; size it from the image's dimensions")]
    Length {
        /// The slice, in words.
        what: &'static str,
        /// Elements needed.
        expected: usize,
        /// Elements given.
        actual: usize,
    },
    /// A normalisation's mean is not finite, or its standard deviation is not finite and positive.
    #[error(
        "channel {channel} cannot be normalised with mean {mean} and standard deviation {std}: both must be finite, and the deviation above zero"
    )]
    Normalisation {
        /// 0 red, 1 green, 2 blue.
        channel: usize,
        /// The mean given, in units of the 0..=1 range.
        mean: f32,
        /// The standard deviation given, in units of the 0..=1 range.
        std: f32,
    },
    /// Weights of a convolution that are no odd square, too many, or not all finite.
    #[error(
        "{count} weights are no convolution: give 1, 9, 25 … of them, a square with an odd side up to 31, all finite"
    )]
    Weights {
        /// How many were given.
        count: usize,
    },
    /// The file could not be written. An earlier file at the path is unchanged.
    #[error(
        "cannot write image {path}: {source}; check that the folder exists, may be written to and has room"
    )]
    Write {
        /// The path asked for.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The encoder refused. An earlier file at the path is unchanged.
    #[error("cannot encode image {name}: {source}")]
    Encode {
        /// The path, or a stand-in where the image stays in memory.
        name: String,
        /// The error of the encoder.
        source: ::image::ImageError,
    },
}

/// Checks the length of a caller's slice before anything is read or written.
pub(crate) fn expect_len(what: &'static str, actual: usize, expected: usize) -> Result<(), ImageError> {
    if actual == expected { Ok(()) } else { Err(ImageError::Length { what, expected, actual }) }
}
