//! Checks the pipeline's files against the same computation in this process, on the host: they agree to the
//! bit, on every device.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{bail, ensure};
use tensorpost_actors::image::resize::{Range, resize};
use tensorpost_actors::image::{ImageError, ImageSize, decode, edge, quantise};
use tensorpost_actors::ready::{Label, file_name};
use tensorpost_actors::source::ImageFolder;

use crate::NORMALISATION;
use crate::args::Args;

/// Number of mismatches that are named.
const NAMED: usize = 5;

/// Checks all of the `written` frames' files, pixel by pixel, and that no frame is missing. Returns a text
/// about the check.
///
/// # Errors
/// Names the wrong frames, and their faults.
pub(crate) fn check(args: &Args, written: u64, cancelled: bool) -> anyhow::Result<String> {
    let folder = ImageFolder::open(&args.images)?;
    // `None` for a photograph that cannot be decoded: no file is written for it.
    let mut known = HashMap::new();
    let (mut checked, mut left_out, mut wrong) = (0, 0, Vec::new());
    for (id, photograph) in folder.frames(args.frames) {
        if cancelled && checked == written {
            break;
        }
        let wanted = known.entry(photograph.clone()).or_insert_with(|| edges_of(&photograph, args.size).ok());
        let Some(wanted) = wanted else {
            left_out += 1;
            continue;
        };
        checked += 1;
        if let Err(how) = compare(&file(args, id, &photograph), args.size, wanted) {
            wrong.push(format!("frame {id} ({}): {how:#}", photograph.display()));
        }
    }
    if !wrong.is_empty() {
        let count = wrong.len();
        wrong.truncate(NAMED);
        bail!(
            "{count} of {checked} frames differ from the computation in one process:\n  {}",
            wrong.join("\n  ")
        );
    }
    ensure!(checked == written, "{written} frames were written, must be {checked}");
    ensure!(cancelled || checked > 0, "no frame could be decoded");
    let left_out = match left_out {
        0 => String::new(),
        count => format!("{count} frames were left out: their files could not be decoded\n"),
    };
    let photographs = known.values().flatten().count();
    Ok(format!(
        "{left_out}checked: all {checked} frames are equal, to the bit, to the computation in one process ({photographs} photographs)"
    ))
}

/// Returns how long after `began` the first frame's file was written, by the file system's times.
pub(crate) fn first_file(args: &Args, began: SystemTime) -> Option<Duration> {
    let folder = ImageFolder::open(&args.images).ok()?;
    let times = folder.frames(folder.files().len() as u64).filter_map(|(id, photograph)| {
        let written = file(args, id, &photograph).metadata().and_then(|file| file.modified()).ok()?;
        written.duration_since(began).ok()
    });
    times.min()
}

fn file(args: &Args, id: u64, photograph: &Path) -> PathBuf {
    let name = photograph.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    args.out.join(format!("{}.png", file_name(&Label { id, name }.to_string())))
}

/// Returns the expected pixels for a photograph, computed by one function after the other.
fn edges_of(photograph: &Path, size: ImageSize) -> Result<Vec<u8>, ImageError> {
    let photograph = decode::decode(photograph)?;
    let mut planes = vec![0.0; size.rgb_len()];
    resize(&photograph.pixels, photograph.size, &mut planes, size, Range::Bytes)?;
    NORMALISATION.apply(&mut planes, size)?;
    let (mut luma, mut magnitude) = (vec![0.0; size.pixels()], vec![0.0; size.pixels()]);
    edge::edges(&planes, size, &mut luma, &mut magnitude)?;
    let mut gray = vec![0; size.pixels()];
    quantise::to_gray8(&magnitude, edge::gain(&NORMALISATION), &mut gray)?;
    Ok(gray)
}

/// Checks that the file at `path` has these pixels.
fn compare(path: &Path, size: ImageSize, gray: &[u8]) -> anyhow::Result<()> {
    let image = decode::decode(path)?;
    ensure!(image.size == size, "{} has {}, must have {size}", path.display(), image.size);
    // A gray file is decoded with three equal channels.
    let pixels = image.pixels.chunks_exact(3);
    if let Some((at, (found, wanted))) =
        pixels.zip(gray).enumerate().find(|(_, (found, wanted))| **found != [**wanted; 3])
    {
        let (x, y) = (at % size.width() as usize, at / size.width() as usize);
        bail!("{}: the pixel in column {x}, row {y} is {}, must be {wanted}", path.display(), found[0]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use tensorpost_actors::image::png;

    use super::*;

    #[test]
    fn every_kind_of_mistake_is_found_and_named() {
        let out = tempfile::tempdir().expect("a folder");
        let path = out.path().to_str().expect("text");
        let args = Args::parse_from(["10", "--frames", "7", "--size", "40x30", "--out", path]);
        let folder = ImageFolder::open(&args.images).expect("photographs");
        let write = |id: u64, pixels: &[u8]| {
            png::write_gray8(file(&args, id, folder.frame(id)), pixels, args.size).expect("written");
        };
        let good = |id: u64| edges_of(folder.frame(id), args.size).expect("decodes");
        (0..7).for_each(|id| write(id, &good(id)));
        let check = |written| check(&args, written, false).map_err(|error| format!("{error:#}"));
        assert!(check(7).expect("good").contains("all 7 frames are equal"));
        assert_eq!(check(6), Err("6 frames were written, must be 7".to_owned()));
        assert!(super::check(&args, 3, true).expect("good").contains("all 3 frames are equal"));

        let mut pixels = good(6);
        pixels[41] ^= 1;
        write(6, &pixels);
        let said = check(7).expect_err("a bit is wrong");
        assert!(said.contains("1 of 7 frames differ") && said.contains("frame 6 ("), "{said}");
        assert!(said.contains("the pixel in column 1, row 1 is"), "{said}");
        std::fs::remove_file(file(&args, 3, folder.frame(3))).expect("removed");
        let said = check(7).expect_err("a file is missing");
        assert!(said.contains("2 of 7 frames differ") && said.contains("frame 3 ("), "{said}");
    }
}
