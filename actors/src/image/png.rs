//! Pixels to PNG files, whole or not at all.
//!
//! A file is written under a temporary name in its own folder and then renamed. Whoever looks at the path sees the
//! old file or the whole new one, also when this process dies on the way (a hidden `.tmp…` file may then stay
//! behind). It is not flushed to the disk: after a power cut the file may be missing or empty.

use std::fs::Permissions;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ::image::codecs::png::PngEncoder;
use ::image::{ExtendedColorType, ImageEncoder};

use super::{ImageError, ImageSize, expect_len};

/// Writes an HW image of gray bytes to `path`, replacing what was there.
///
/// # Errors
/// [`ImageError::Length`], [`ImageError::Write`] or [`ImageError::Encode`]; the path is left as it was.
pub fn write_gray8(path: impl AsRef<Path>, hw: &[u8], size: ImageSize) -> Result<(), ImageError> {
    expect_len("the gray pixels to write (HW)", hw.len(), size.pixels())?;
    write(path.as_ref(), hw, size, ExtendedColorType::L8)
}

/// Writes an HWC image of RGB bytes to `path`, replacing what was there.
///
/// # Errors
/// [`ImageError::Length`], [`ImageError::Write`] or [`ImageError::Encode`]; the path is left as it was.
pub fn write_rgb8(path: impl AsRef<Path>, hwc: &[u8], size: ImageSize) -> Result<(), ImageError> {
    expect_len("the RGB pixels to write (HWC)", hwc.len(), size.rgb_len())?;
    write(path.as_ref(), hwc, size, ExtendedColorType::Rgb8)
}

fn write(path: &Path, pixels: &[u8], size: ImageSize, colour: ExtendedColorType) -> Result<(), ImageError> {
    let failed = |source| ImageError::Write { path: path.to_owned(), source };
    // The rename must not cross file systems, so the temporary file goes beside the target. `parent` of a bare name
    // is the empty path, which means the current folder.
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
    PngEncoder::new(&mut writer).write_image(pixels, size.width(), size.height(), colour).map_err(
        |source| match source {
            ::image::ImageError::IoError(source) => failed(source),
            source => ImageError::Encode { path: path.to_owned(), source },
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
