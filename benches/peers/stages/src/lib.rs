//! The computations of the stages of the example `10-image-pipeline`, for its peers. They are the same
//! functions, so that the peers differ only in how images get from one stage to the next. They can be called
//! from Rust, and with C's calling convention from Python.

pub mod c;
// These are the files themselves: a peer is built without the framework.
#[path = "../../../../actors/src/image/mod.rs"]
pub mod image;
#[path = "../../../../actors/src/source.rs"]
pub mod source;

use std::path::{Path, PathBuf};

use image::normalise::Normalisation;
use image::resize::{self, Range};
use image::{ImageError, edge, png, quantise};

pub use image::ImageSize;
pub use image::decode::EncodedImage;
pub use image::edge::EDGES_PLANE;
pub use source::ImageFolder;

const NORMALISATION: Normalisation = Normalisation::IMAGENET;

/// The width of resized images: the example's default.
pub const WIDTH: u32 = 512;
/// As [`WIDTH`].
pub const HEIGHT: u32 = 384;
/// The pixels of one plane.
pub const PIXELS: usize = WIDTH as usize * HEIGHT as usize;
/// The values of three planes.
pub const PLANES: usize = 3 * PIXELS;

fn size() -> Result<ImageSize, ImageError> {
    ImageSize::new(WIDTH, HEIGHT)
}

/// Returns the bytes of the pixels of a folder's largest image: peers whose memory is bounded choose the
/// bound from it.
///
/// # Errors
/// A file is no image.
pub fn largest(folder: &ImageFolder) -> Result<usize, ImageError> {
    let mut largest = 0;
    for file in folder.files() {
        largest = largest.max(image::decode::dimensions(file)?.rgb_len());
    }
    Ok(largest)
}

/// Resizes and normalises: bytes of an image of `source`'s size to [`PLANES`] floats.
///
/// # Errors
/// A slice has the wrong length.
pub fn resize(hwc: &[u8], source: ImageSize, planes: &mut [f32]) -> Result<(), ImageError> {
    resize::resize(hwc, source, planes, size()?, Range::Bytes)?;
    NORMALISATION.apply(planes, size()?)
}

/// Finds edges: [`PLANES`] floats to [`PIXELS`]. `scratch` is as long as these.
///
/// # Errors
/// A slice has the wrong length.
pub fn edges(planes: &[f32], scratch: &mut [f32], magnitudes: &mut [f32]) -> Result<(), ImageError> {
    edge::edges(planes, size()?, scratch, magnitudes)
}

/// Finds edges in the image's own memory: they are in its plane [`EDGES_PLANE`].
///
/// # Errors
/// The slice has the wrong length.
pub fn edges_in_place(planes: &mut [f32]) -> Result<(), ImageError> {
    edge::edges_in_place(planes, size()?)
}

/// Writes edges as a gray PNG.
///
/// # Errors
/// The slice has the wrong length, or the file cannot be written.
pub fn write(path: &Path, magnitudes: &[f32]) -> Result<(), ImageError> {
    let mut gray = vec![0; magnitudes.len()];
    quantise::to_gray8(magnitudes, edge::gain(&NORMALISATION), &mut gray)?;
    png::write_gray8(path, &gray, size()?)
}

/// Returns the example's name for the file of frame `id` of `photograph`, whose name must be letters, digits
/// and `-_.`.
pub fn target(folder: &Path, id: u64, photograph: &Path) -> PathBuf {
    let name = photograph.file_stem().map(|name| name.to_string_lossy()).unwrap_or_default();
    folder.join(format!("{id:05}-{name}.png"))
}
