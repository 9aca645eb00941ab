//! Tests with real photographs, made-up pixels, and files with false names or contents.

use std::path::PathBuf;

use ::image::{ImageBuffer, ImageFormat, Luma, Rgb, Rgba};

use super::*;

fn photo(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/data").join(name)
}

fn encoded(image: impl Into<DynamicImage>) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, ImageFormat::Png).expect("encodes");
    bytes.into_inner()
}

/// Returns the pixel at the left end of the first row, and the one at the right end of the last.
fn corners(image: &Rgb8Image) -> ([u8; 3], [u8; 3]) {
    let pixel = |at: usize| [image.pixels[at], image.pixels[at + 1], image.pixels[at + 2]];
    (pixel(0), pixel(image.pixels.len() - 3))
}

/// Sizes and corners are those of another decoder (libpng and libjpeg, through Pillow); `slack` is the
/// difference that two JPEG decoders may have.
#[test]
fn photographs() {
    for (name, width, height, first, last, slack) in [
        ("camera.png", 512, 512, [200; 3], [149; 3], 0),
        ("chelsea.png", 451, 300, [143, 120, 104], [162, 138, 128], 0),
        ("clock.png", 400, 300, [155; 3], [113; 3], 0),
        ("coffee.jpg", 600, 400, [20, 13, 7], [144, 60, 24], 4),
        ("retina.jpg", 800, 800, [0; 3], [0; 3], 4),
    ] {
        let path = photo(name);
        let size = dimensions(&path).expect("a header");
        assert_eq!((size.width(), size.height()), (width, height), "{name}");

        let image = decode(&path).expect("decodes");
        assert_eq!((image.size, image.pixels.len()), (size, size.rgb_len()), "{name}");
        let corners = corners(&image);
        for (got, want) in [(corners.0, first), (corners.1, last)] {
            assert!(
                got.iter().zip(want).all(|(&a, b)| a.abs_diff(b) <= slack),
                "{name}: {got:?} is not {want:?}"
            );
        }

        let mut buffer = vec![0xAA; size.rgb_len()];
        assert_eq!(decode_into(&path, &mut buffer).expect("decodes"), size);
        assert!(buffer == image.pixels, "{name}: decoding into a buffer gives other pixels");
    }
}

#[test]
fn other_kinds_of_pixels_become_rgb8() {
    let alpha = encoded(ImageBuffer::from_pixel(2, 1, Rgba([10u8, 20, 30, 0])));
    assert_eq!(decode_bytes("alpha", &alpha).expect("decodes").pixels, [10, 20, 30, 10, 20, 30]);
    let deep = encoded(
        ImageBuffer::from_raw(2, 1, vec![0xFFFFu16, 0x8080]).map(DynamicImage::ImageLuma16).expect("fits"),
    );
    assert_eq!(decode_bytes("deep", &deep).expect("decodes").pixels, [255, 255, 255, 128, 128, 128]);
}

#[test]
fn grey_is_spread_as_the_crate_spreads_it() {
    for width in [1, 2, 3, 255, 256] {
        let image = ImageBuffer::from_fn(width, 3, |x, y| Luma([(x + y) as u8]));
        let want = DynamicImage::from(image.clone()).into_rgb8().into_raw();
        assert_eq!(decode_bytes("grey", &encoded(image)).expect("decodes").pixels, want, "{width}");
    }
}

/// The earlier contents of the buffer are no part of an image, even if the file's scan is damaged.
#[test]
fn a_file_that_ends_early_shows_nothing_of_what_was_there() {
    const BEFORE: u8 = 0xAA;
    let dark = |x: u32, y: u32| ((x * 7 + y * 3) % 100) as u8;
    let grey = DynamicImage::from(ImageBuffer::from_fn(64, 64, |x, y| Luma([dark(x, y)])));
    let colour = DynamicImage::from(ImageBuffer::from_fn(64, 64, |x, y| Rgb([dark(x, y); 3])));
    for image in [grey, colour] {
        let mut ended_early = false;
        let mut whole = Cursor::new(Vec::new());
        image.write_to(&mut whole, ImageFormat::Jpeg).expect("encodes");
        let whole = whole.into_inner();
        let scan = whole.windows(2).position(|marker| marker == [0xFF, 0xDA]).expect("a scan");
        // Splice a scan, or a segment and the end marker, into the middle of the scan.
        for spliced in [&whole[scan..scan + 14], &[0xFF, 0xE1, 0, 2, 0xFF, 0xD9]] {
            let mut bytes = whole.clone();
            let middle = scan + (whole.len() - scan) / 2;
            bytes.splice(middle..middle, spliced.iter().copied());
            let image = EncodedImage::from_bytes("spliced", &bytes).expect("a header");
            let mut buffer = vec![BEFORE; image.size().rgb_len()];
            if image.decode_into(&mut buffer).is_ok() {
                ended_early |= buffer.ends_with(&[0; 3]);
                assert!(!buffer.contains(&BEFORE), "{:02x?}", &spliced[..2]);
            }
        }
        assert!(ended_early, "the decoder has changed: nothing here says so any more");
    }
}

#[test]
fn a_wrong_buffer_is_refused_untouched() {
    for wrong in [0, 5, 7] {
        let bytes = encoded(ImageBuffer::from_pixel(2, 1, Luma([3u8])));
        let mut buffer = vec![1; wrong];
        let error = EncodedImage::from_bytes("gray", &bytes)
            .expect("header")
            .decode_into(&mut buffer)
            .expect_err("length");
        assert!(
            matches!(error, ImageError::Length { expected: 6, actual, .. } if actual == wrong),
            "{error}"
        );
        assert_eq!(buffer, vec![1; wrong]);
    }
}

#[test]
fn errors_name_the_file() {
    let error = decode("/nonexistent/cat.png").expect_err("missing");
    assert!(
        matches!(error, ImageError::Read { .. }) && error.to_string().contains("/nonexistent/cat.png"),
        "{error}"
    );

    let folder = tempfile::tempdir().expect("a folder");
    let whole = std::fs::read(photo("chelsea.png")).expect("read");
    for (name, bytes) in
        [("empty.png", &[][..]), ("text.jpg", b"not an image at all"), ("cut.png", &whole[..whole.len() / 2])]
    {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        let error = decode(&path).expect_err(name);
        assert!(matches!(error, ImageError::Decode { .. }) && error.to_string().contains(name), "{error}");
    }
    // A half file still has a header.
    assert_eq!(dimensions(folder.path().join("cut.png")).expect("header").width(), 451);
    // The content decides, not the name.
    let path = folder.path().join("in-truth-a-png.jpg");
    std::fs::write(&path, &whole).expect("written");
    assert!(decode(&path).is_ok());
}

#[test]
fn a_claim_of_a_huge_size_takes_no_memory() {
    let mut bytes = encoded(ImageBuffer::from_pixel(2, 1, Luma([3u8])));
    // The header chunk's data: width (4 bytes), height (4), bits a sample, kind of pixel (2: RGB, 6: RGBA), 3
    // more. Before it lie the signature (8), its length (4) and its name (4), and after it a CRC of name and
    // data. The last one has sides within bounds, and 2 GiB of samples.
    for (width, height, bits, kind) in
        [(MAX_SIDE + 1, 1, 8, 2), (1, 0x7FFF_FFFF, 8, 2), (0, 1, 8, 2), (MAX_SIDE, MAX_SIDE, 16, 6)]
    {
        bytes[16..20].copy_from_slice(&width.to_be_bytes());
        bytes[20..24].copy_from_slice(&height.to_be_bytes());
        bytes[24..26].copy_from_slice(&[bits, kind]);
        let crc = crc32(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&crc.to_be_bytes());
        let error = EncodedImage::from_bytes("huge", &bytes).expect_err("refused");
        assert!(matches!(error, ImageError::Decode { .. } | ImageError::Size { .. }), "{error}");
    }
    // The test changes headers in a way that a decoder accepts: a modest size passes.
    bytes[16..26].copy_from_slice(&[0, 0, 0, 5, 0, 0, 0, 4, 8, 2]);
    let crc = crc32(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&crc.to_be_bytes());
    let size = EncodedImage::from_bytes("modest", &bytes).expect("accepted").size();
    assert_eq!((size.width(), size.height()), (5, 4));
}

/// Computes the CRC of PNG, a bit at a time.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    })
}
