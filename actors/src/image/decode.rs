//! Encoded bytes to RGB pixels.
//!
//! The content, not the file's name, decides the format (PNG or JPEG). Gray is spread over three channels,
//! alpha is dropped, 16-bit samples are scaled to 8 bits. The pixels come as they are stored: an orientation
//! in the metadata is not applied and a colour profile is ignored.
//!
//! Files are not trusted: a size beyond [`MAX_SIDE`] and an allocation beyond [`MAX_ALLOC`] are
//! refused before memory is taken.

use std::fmt;
use std::io::{BufRead, BufReader, Cursor, Seek};
use std::path::Path;

use ::image::error::{LimitError, LimitErrorKind};
use ::image::{ColorType, DynamicImage, ImageDecoder, ImageReader, Limits};

use super::{ImageError, ImageSize, MAX_SIDE, expect_len};

/// The most memory that a decoder may take for one image, in bytes: the largest RGB image (768 MiB) and the
/// decoder's own needs.
pub const MAX_ALLOC: u64 = 1 << 30;

const _: () = assert!(MAX_SIDE as u64 * MAX_SIDE as u64 * 3 < MAX_ALLOC);

/// Decoded pixels, HWC, eight bits a channel.
#[derive(Clone, PartialEq, Eq)]
pub struct Rgb8Image {
    /// Width and height.
    pub size: ImageSize,
    /// `size.rgb_len()` bytes: red, green, blue of the first row's first pixel, and on.
    pub pixels: Vec<u8>,
}

impl fmt::Debug for Rgb8Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rgb8Image").field("size", &self.size).finish_non_exhaustive()
    }
}

/// An image with its header read and its pixels not yet decoded.
///
/// Use it to decode straight into memory that must be sized first: ask for [`size`](Self::size), allocate,
/// then call [`decode_into`](Self::decode_into). The file is opened once.
pub struct EncodedImage<'a> {
    name: String,
    size: ImageSize,
    decoder: Box<dyn ImageDecoder + 'a>,
}

impl<'a> EncodedImage<'a> {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`ImageError::Read`], [`ImageError::Decode`] or [`ImageError::Size`]; the first two name the file.
    pub fn open(path: impl AsRef<Path>) -> Result<EncodedImage<'static>, ImageError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match std::fs::File::open(path) {
            Ok(file) => EncodedImage::read(name, BufReader::new(file)),
            Err(source) => Err(ImageError::Read { name, source }),
        }
    }

    /// Reads the header of an image in memory; `name` is its name in errors.
    ///
    /// # Errors
    /// [`ImageError::Decode`] or [`ImageError::Size`].
    pub fn from_bytes(name: impl Into<String>, bytes: &'a [u8]) -> Result<Self, ImageError> {
        Self::read(name.into(), Cursor::new(bytes))
    }

    fn read(name: String, reader: impl BufRead + Seek + 'a) -> Result<Self, ImageError> {
        let mut limits = Limits::default();
        limits.max_image_width = Some(MAX_SIDE);
        limits.max_image_height = Some(MAX_SIDE);
        limits.max_alloc = Some(MAX_ALLOC);
        let mut reader = match ImageReader::new(reader).with_guessed_format() {
            Ok(reader) => reader,
            Err(source) => return Err(ImageError::Read { name, source }),
        };
        reader.limits(limits);
        match reader.into_decoder() {
            Ok(decoder) => {
                let (width, height) = decoder.dimensions();
                // The decoders bound only their own scratch memory, not the samples: 16-bit RGBA takes 8
                // bytes a pixel.
                if decoder.total_bytes() > MAX_ALLOC {
                    let limit = LimitError::from_kind(LimitErrorKind::InsufficientMemory);
                    let source = ::image::ImageError::Limits(limit);
                    return Err(ImageError::Decode { name, source });
                }
                Ok(Self { name, size: ImageSize::new(width, height)?, decoder: Box::new(decoder) })
            }
            Err(source) => Err(ImageError::Decode { name, source }),
        }
    }

    /// Width and height, from the header.
    pub fn size(&self) -> ImageSize {
        self.size
    }

    /// Decodes the pixels into `hwc`, which must hold exactly `self.size().rgb_len()` bytes.
    ///
    /// An 8-bit RGB or grey file is decoded without a copy in between.
    ///
    /// # Errors
    /// [`ImageError::Length`] before anything is written; [`ImageError::Decode`] when the file is damaged,
    /// and then the content of `hwc` is unspecified.
    pub fn decode_into(self, hwc: &mut [u8]) -> Result<(), ImageError> {
        expect_len("the buffer for decoded pixels (HWC)", hwc.len(), self.size.rgb_len())?;
        let Self { name, decoder, .. } = self;
        match decoder.color_type() {
            ColorType::Rgb8 => read_all(decoder, hwc),
            // `into_rgb8` converts each sample through a float, which takes longer than the decoding.
            ColorType::L8 => {
                let pixels = hwc.len() / 3;
                read_all(decoder, &mut hwc[2 * pixels..]).map(|()| grey_to_rgb(hwc))
            }
            _ => DynamicImage::from_decoder(decoder).map(|image| hwc.copy_from_slice(&image.into_rgb8())),
        }
        .map_err(|source| ImageError::Decode { name, source })
    }

    /// Decodes the pixels into a new buffer.
    ///
    /// # Errors
    /// [`ImageError::Decode`] when the file is damaged.
    pub fn decode(self) -> Result<Rgb8Image, ImageError> {
        let size = self.size;
        let mut pixels = vec![0; size.rgb_len()];
        self.decode_into(&mut pixels)?;
        Ok(Rgb8Image { size, pixels })
    }
}

/// Reads an image into `samples`. The JPEG decoder accepts some damaged files without writing all samples.
/// The earlier bytes may belong to somebody else and are no part of the image, so they are cleared first.
fn read_all(decoder: Box<dyn ImageDecoder + '_>, samples: &mut [u8]) -> ::image::ImageResult<()> {
    samples.fill(0);
    decoder.read_image(samples)
}

/// Spreads grey samples, which are the last third of `hwc`, over all of it.
fn grey_to_rgb(hwc: &mut [u8]) {
    let pixels = hwc.len() / 3;
    for at in 0..pixels {
        // The sample lies behind the bytes written here, or is their last one, so no later sample is
        // overwritten.
        let grey = hwc[2 * pixels + at];
        hwc[3 * at..3 * at + 3].fill(grey);
    }
}

impl fmt::Debug for EncodedImage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncodedImage")
            .field("name", &self.name)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// Returns the size of the image at `path`, from its header alone.
///
/// # Errors
/// As [`EncodedImage::open`].
pub fn dimensions(path: impl AsRef<Path>) -> Result<ImageSize, ImageError> {
    Ok(EncodedImage::open(path)?.size())
}

/// Decodes the image at `path`.
///
/// # Errors
/// As [`EncodedImage::open`] and [`EncodedImage::decode`].
pub fn decode(path: impl AsRef<Path>) -> Result<Rgb8Image, ImageError> {
    EncodedImage::open(path)?.decode()
}

/// Decodes an image in memory; `name` is its name in errors.
///
/// # Errors
/// As [`EncodedImage::from_bytes`] and [`EncodedImage::decode`].
pub fn decode_bytes(name: impl Into<String>, bytes: &[u8]) -> Result<Rgb8Image, ImageError> {
    EncodedImage::from_bytes(name, bytes)?.decode()
}

/// Decodes the image at `path` into `hwc`, which must have exactly the image's length. Returns the image's
/// size.
///
/// # Errors
/// As [`EncodedImage::open`] and [`EncodedImage::decode_into`].
pub fn decode_into(path: impl AsRef<Path>, hwc: &mut [u8]) -> Result<ImageSize, ImageError> {
    let image = EncodedImage::open(path)?;
    let size = image.size();
    image.decode_into(hwc)?;
    Ok(size)
}

#[cfg(test)]
mod tests;
