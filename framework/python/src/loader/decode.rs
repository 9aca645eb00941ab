//! Decodes a file's bytes to RGB pixels: JPEG by zune-jpeg, PNG by png.
//!
//! The content tells the format. Gray is spread over three channels, alpha is dropped, 16 bits become 8 (the
//! high ones), and an orientation or a colour profile in the metadata is ignored. Except for 16 bits, PIL's
//! `Image.open(..).convert("RGB")` does the same. A file that ends too early is an error. Files are not
//! trusted: an image larger than [`MAX_SIDE`] is not decoded.

use std::io::Cursor;

use png::{ColorType, Transformations};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::limits::{MAX_PIXELS, MAX_SIDE};

/// Pixels, three bytes each, row by row.
#[derive(Debug, Default)]
pub(super) struct Rgb {
    pub(super) pixels: Vec<u8>,
    pub(super) width: usize,
    pub(super) height: usize,
}

impl Rgb {
    /// Resizes to an image of this size, with unspecified pixels.
    pub(super) fn reshape(&mut self, width: usize, height: usize) -> Result<(), String> {
        if width == 0 || height == 0 || width > MAX_SIDE || height > MAX_SIDE || width * height > MAX_PIXELS {
            return Err(format!(
                "it has {width} x {height} pixels, and images have from 1 to {MAX_SIDE} a side, {MAX_PIXELS} in all; make it smaller"
            ));
        }
        self.pixels.resize(width * height * 3, 0);
        (self.width, self.height) = (width, height);
        Ok(())
    }
}

/// The buffers that are reused for the next file.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// The pixels of a PNG with another number of channels.
    other: Vec<u8>,
}

impl Decoder {
    /// # Errors
    /// The error in the file.
    pub(super) fn decode(&mut self, file: &[u8], into: &mut Rgb) -> Result<(), String> {
        match file {
            [0xff, 0xd8, ..] => jpeg(file, into),
            [0x89, b'P', b'N', b'G', ..] => {
                self.png(file, into).map_err(|error| format!("it is no good PNG: {error}"))
            }
            [] => Err("it is empty".to_owned()),
            _ => Err("it is neither a JPEG nor a PNG".to_owned()),
        }
    }

    fn png(&mut self, file: &[u8], into: &mut Rgb) -> Result<(), Box<dyn std::error::Error>> {
        let mut decoder =
            png::Decoder::new_with_limits(Cursor::new(file), png::Limits { bytes: MAX_PIXELS * 8 });
        // Texts and profiles are not needed, and an untrusted file may unpack to large ones.
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
        let mut reader = decoder.read_info()?;
        let (width, height) = reader.info().size();
        into.reshape(width as usize, height as usize)?;
        let channels = match reader.output_color_type().0 {
            ColorType::Rgb => {
                reader.next_frame(&mut into.pixels)?;
                return Ok(());
            }
            ColorType::Rgba => 4,
            ColorType::GrayscaleAlpha => 2,
            ColorType::Grayscale => 1,
            ColorType::Indexed => return Err("its palette was not expanded".into()),
        };
        self.other.resize(into.width * into.height * channels, 0);
        reader.next_frame(&mut self.other)?;
        for (pixel, other) in into.pixels.chunks_exact_mut(3).zip(self.other.chunks_exact(channels)) {
            match other {
                [red, green, blue, _] => pixel.copy_from_slice(&[*red, *green, *blue]),
                [gray, ..] => pixel.fill(*gray),
                [] => {}
            }
        }
        Ok(())
    }
}

fn jpeg(file: &[u8], into: &mut Rgb) -> Result<(), String> {
    let failed = |error: zune_jpeg::errors::DecodeErrors| format!("it is no good JPEG: {error}");
    // The sides are checked below, before memory is taken for them, with an error that says what to do.
    let any_side = usize::from(u16::MAX);
    let options = DecoderOptions::new_fast()
        .set_max_width(any_side)
        .set_max_height(any_side)
        .set_strict_mode(true)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(failed)?;
    let (width, height) = decoder.dimensions().ok_or("it is no good JPEG: it has no size")?;
    into.reshape(width, height)?;
    decoder.decode_into(&mut into.pixels).map_err(failed)
}
