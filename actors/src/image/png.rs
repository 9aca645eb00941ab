//! Pixels to PNG: to bytes in memory, or to files, whole or not at all.
//!
//! A file is written under a temporary name in its own folder and then renamed. A reader of the path sees the
//! old file or the whole new one, also when this process dies on the way (a hidden `.tmp…` file may then stay
//! behind). It is not flushed to the disk: after a power cut the file may be missing or empty.

use std::fs::Permissions;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ::image::codecs::png::PngEncoder;
use ::image::{ExtendedColorType, ImageEncoder};

use super::{ImageError, ImageSize, expect_len};

/// Writes an HW image of gray bytes to `path`, replacing an earlier file.
///
/// # Errors
/// [`ImageError::Length`], [`ImageError::Write`] or [`ImageError::Encode`]; the path is left as it was.
pub fn write_gray8(path: impl AsRef<Path>, hw: &[u8], size: ImageSize) -> Result<(), ImageError> {
    expect_len("the gray pixels to write (HW)", hw.len(), size.pixels())?;
    write(path.as_ref(), hw, size, ExtendedColorType::L8)
}

/// Writes an HWC image of RGB bytes to `path`, replacing an earlier file.
///
/// # Errors
/// [`ImageError::Length`], [`ImageError::Write`] or [`ImageError::Encode`]; the path is left as it was.
pub fn write_rgb8(path: impl AsRef<Path>, hwc: &[u8], size: ImageSize) -> Result<(), ImageError> {
    expect_len("the RGB pixels to write (HWC)", hwc.len(), size.rgb_len())?;
    write(path.as_ref(), hwc, size, ExtendedColorType::Rgb8)
}

/// Encodes an HW image of gray bytes as the bytes of a PNG file.
///
/// # Errors
/// [`ImageError::Length`] or [`ImageError::Encode`].
pub fn encode_gray8(hw: &[u8], size: ImageSize) -> Result<Vec<u8>, ImageError> {
    expect_len("the gray pixels to encode (HW)", hw.len(), size.pixels())?;
    let mut bytes = Vec::new();
    encode(&mut bytes, hw, size, ExtendedColorType::L8, || IN_MEMORY.to_owned())?;
    Ok(bytes)
}

/// Encodes an HWC image of RGB bytes as the bytes of a PNG file.
///
/// # Errors
/// [`ImageError::Length`] or [`ImageError::Encode`].
pub fn encode_rgb8(hwc: &[u8], size: ImageSize) -> Result<Vec<u8>, ImageError> {
    expect_len("the RGB pixels to encode (HWC)", hwc.len(), size.rgb_len())?;
    let mut bytes = Vec::new();
    encode(&mut bytes, hwc, size, ExtendedColorType::Rgb8, || IN_MEMORY.to_owned())?;
    Ok(bytes)
}

/// The name in errors of an image that is not written to a file.
const IN_MEMORY: &str = "in memory";

fn encode(
    to: impl Write,
    pixels: &[u8],
    size: ImageSize,
    colour: ExtendedColorType,
    name: impl FnOnce() -> String,
) -> Result<(), ImageError> {
    PngEncoder::new(to)
        .write_image(pixels, size.width(), size.height(), colour)
        .map_err(|source| ImageError::Encode { name: name(), source })
}

fn write(path: &Path, pixels: &[u8], size: ImageSize, colour: ExtendedColorType) -> Result<(), ImageError> {
    let failed = |source| ImageError::Write { path: path.to_owned(), source };
    // The rename must not cross file systems, so the temporary file goes beside the target. `parent` of a
    // bare name is the empty path, which means the current folder.
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // A temporary file is private by default; this one becomes an ordinary file, so the umask alone decides.
    let temporary = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(failed)?;

    let mut writer = BufWriter::new(temporary);
    encode(&mut writer, pixels, size, colour, || path.display().to_string()).map_err(
        |error| match error {
            ImageError::Encode { source: ::image::ImageError::IoError(source), .. } => failed(source),
            error => error,
        },
    )?;
    writer.flush().map_err(failed)?;
    let temporary = writer.into_inner().map_err(|error| failed(error.into_error()))?;
    temporary.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::*;

    fn size(width: u32, height: u32) -> ImageSize {
        ImageSize::new(width, height).expect("in bounds")
    }

    #[test]
    fn comes_back_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.png");
        write_rgb8(&path, &[9; 3], size(1, 1)).expect("first");
        let hwc: Vec<u8> = (0..24).map(|i| i * 10).collect();
        write_rgb8(&path, &hwc, size(4, 2)).expect("second, over the first");
        let back = decode::decode(&path).expect("decodes");
        assert_eq!((back.size, back.pixels), (size(4, 2), hwc));

        write_gray8(&path, &[7, 200], size(1, 2)).expect("third");
        let back = decode::decode(&path).expect("decodes");
        assert_eq!((back.size, back.pixels), (size(1, 2), vec![7, 7, 7, 200, 200, 200]));
        assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 1);
    }

    #[test]
    fn bytes_in_memory_are_those_of_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.png");
        let pixels: Vec<u8> = (0..24).map(|i| i * 10).collect();
        let file = || std::fs::read(&path).expect("written");
        write_rgb8(&path, &pixels, size(4, 2)).expect("room");
        assert_eq!(encode_rgb8(&pixels, size(4, 2)).expect("encodes"), file());
        write_gray8(&path, &pixels, size(6, 4)).expect("room");
        assert_eq!(encode_gray8(&pixels, size(6, 4)).expect("encodes"), file());
        assert!(matches!(encode_rgb8(&pixels, size(4, 3)), Err(ImageError::Length { expected: 36, .. })));
        assert!(matches!(encode_gray8(&[], size(1, 1)), Err(ImageError::Length { actual: 0, .. })));
    }

    #[test]
    fn a_failure_names_the_path_and_keeps_what_was_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = folder.path().join("nowhere").join("out.png");
        let error = write_gray8(&missing, &[1], size(1, 1)).expect_err("no folder");
        assert!(
            matches!(error, ImageError::Write { .. }) && error.to_string().contains("nowhere/out.png"),
            "{error}"
        );

        // A folder cannot be replaced by a file: the last step fails, and the temporary file must go.
        let taken = folder.path().join("taken.png");
        std::fs::create_dir(&taken).expect("made");
        assert!(matches!(write_gray8(&taken, &[1], size(1, 1)), Err(ImageError::Write { .. })));
        assert!(matches!(write_gray8(&taken, &[1, 2], size(1, 1)), Err(ImageError::Length { .. })));
        assert!(taken.is_dir());
        assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 1);
    }
}
