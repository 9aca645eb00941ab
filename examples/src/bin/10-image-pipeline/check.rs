//! Checks what the pipeline made against the same computation in this process, on the host: they agree to the bit, whatever
//! the device. (A GPU adds up means and deviations in another order: these agree to 1e-12 of the largest value.)

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use tensorpost_actors::image::normalise::Normalisation;
use tensorpost_actors::image::{ImageSize, decode};
use tensorpost_actors::source::ImageFolder;
use tensorpost_actors::stages::{Reference, STATISTICS, Written, reference};

use crate::follow::{Ending, Outcome};

/// Mismatches that are named.
const NAMED: usize = 5;

/// What the stages were told to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) size: ImageSize,
    pub(crate) normalisation: Normalisation,
    pub(crate) gain: f32,
}

/// Checks every frame's floats, by their checksum and statistics, and one PNG file for each photograph, pixel by pixel;
/// that no frame is missing and all are in order; and the table. Says what was checked.
///
/// # Errors
/// Names the frames that are wrong, and how.
pub(crate) fn check(
    folder: &ImageFolder,
    out: &Path,
    settings: &Settings,
    outcome: &Outcome,
    asked: u64,
) -> anyhow::Result<String> {
    let written = &outcome.written;
    complete(outcome, asked)?;
    let table =
        std::fs::read_to_string(out.join(STATISTICS)).context("the table of statistics is missing")?;
    let rows = table.lines().count().saturating_sub(1);
    ensure!(rows == written.len(), "the table of statistics has {rows} lines for {} frames", written.len());

    let mut known: HashMap<Arc<Path>, Reference> = HashMap::new();
    let mut wrong = Vec::new();
    for frame in written {
        let path = folder.frame(frame.id);
        let (expected, is_first) = match known.entry(Arc::clone(path)) {
            Entry::Occupied(entry) => (entry.into_mut(), false),
            Entry::Vacant(entry) => {
                let computed = reference(path, settings.size, &settings.normalisation, settings.gain)?;
                (entry.insert(computed), true)
            }
        };
        let mismatch = compare(frame, expected);
        let mismatch = match mismatch {
            None if is_first => compare_file(&out.join(&frame.file), settings.size, &expected.gray)?,
            other => other,
        };
        if let Some(how) = mismatch {
            wrong.push(format!("frame {} ({}): {how}", frame.id, path.display()));
        }
    }
    if !wrong.is_empty() {
        let (count, all) = (wrong.len(), written.len());
        wrong.truncate(NAMED);
        bail!(
            "{count} of {all} frames differ from the computation in one process:\n  {}",
            wrong.join("\n  ")
        );
    }
    Ok(format!(
        "checked: all {} frames are equal, to the bit, to the computation in one process ({} photographs)",
        written.len(),
        known.len()
    ))
}

/// All frames are there, once and in order.
fn complete(outcome: &Outcome, asked: u64) -> anyhow::Result<()> {
    let Outcome { ending, written, skipped, end, .. } = outcome;
    let sent = end.frames;
    ensure!(written.len() as u64 == sent, "{sent} frames were sent and {} written", written.len());
    let disorder = written.windows(2).find(|pair| pair[0].id >= pair[1].id);
    if let Some([before, after]) = disorder {
        bail!("frame {} came after frame {}", after.id, before.id);
    }
    let seen = sent + skipped.len() as u64;
    ensure!(*ending == Ending::Stopped || seen == asked, "{asked} frames were asked for and {seen} came");
    ensure!(*ending == Ending::Stopped || sent > 0, "no frame could be decoded");
    Ok(())
}

/// How the floats differ, if they do.
fn compare(frame: &Written, expected: &Reference) -> Option<String> {
    let (found, wanted) = (&frame.stats, &expected.stats);
    if found.checksum != wanted.checksum {
        return Some(format!(
            "the checksum of its edges is {:016x}, must be {:016x} (mean {} instead of {})",
            found.checksum, wanted.checksum, found.mean, wanted.mean
        ));
    }
    (!found.agrees(wanted)).then(|| format!("its statistics are {found:?}, must be {wanted:?}"))
}

/// How the file differs from `gray`, if it does.
fn compare_file(path: &Path, size: ImageSize, gray: &[u8]) -> anyhow::Result<Option<String>> {
    let image = decode::decode(path)?;
    if image.size != size {
        return Ok(Some(format!("{} has {}, must have {size}", path.display(), image.size)));
    }
    // A gray file is decoded with three equal channels.
    let differs = image.pixels.chunks_exact(3).zip(gray).position(|(found, wanted)| found != [*wanted; 3]);
    Ok(differs.map(|at| {
        let (x, y) = (at % size.width() as usize, at / size.width() as usize);
        let (found, wanted) = (image.pixels[3 * at], gray[at]);
        format!("{}: the pixel in column {x}, row {y} is {found}, must be {wanted}", path.display())
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tensorpost_actors::image::{png, stats::Stats};
    use tensorpost_actors::stages::End;

    use super::*;

    fn settings() -> Settings {
        let size = ImageSize::new(40, 30).expect("good");
        Settings { size, normalisation: Normalisation::IMAGENET, gain: 10.0 }
    }

    /// What a pipeline without a mistake makes of the example's photographs, once each.
    fn good(out: &Path) -> (ImageFolder, Outcome) {
        let folder = ImageFolder::open(concat!(env!("CARGO_MANIFEST_DIR"), "/data")).expect("photographs");
        let Settings { size, normalisation, gain } = settings();
        let mut table = "header\n".to_owned();
        let frame = |(id, path): (u64, Arc<Path>)| {
            let Reference { stats, gray } = reference(&path, size, &normalisation, gain).expect("decodes");
            let file = format!("{id}.png");
            png::write_gray8(out.join(&file), &gray, size).expect("written");
            table += "line\n";
            Written { id, name: String::new(), file, stats }
        };
        let written: Vec<_> = folder.frames(5).map(frame).collect();
        std::fs::write(out.join(STATISTICS), table).expect("written");
        let end = End { frames: 5, stages: Vec::new() };
        let outcome = Outcome {
            ending: Ending::Finished,
            written,
            skipped: Vec::new(),
            end,
            first: None,
            took: Duration::ZERO,
        };
        (folder, outcome)
    }

    #[test]
    fn every_kind_of_mistake_is_found_and_named() {
        let out = tempfile::tempdir().expect("a folder");
        let check = |outcome: &Outcome, folder: &ImageFolder| {
            super::check(folder, out.path(), &settings(), outcome, 5).map_err(|error| format!("{error:#}"))
        };
        let (folder, mut outcome) = good(out.path());
        assert!(check(&outcome, &folder).expect("good").contains("all 5 frames are equal"));

        let stats: Stats = outcome.written[2].stats;
        outcome.written[2].stats.checksum ^= 1;
        let said = check(&outcome, &folder).expect_err("a bit is wrong");
        assert!(said.contains("frame 2 (") && said.contains("checksum"), "{said}");
        outcome.written[2].stats = stats;

        outcome.written[2].stats.mean += 1e-13; // another order of adding up
        assert!(check(&outcome, &folder).is_ok());
        outcome.written[2].stats.mean += 1e-3;
        let said = check(&outcome, &folder).expect_err("another mean");
        assert!(said.contains("frame 2 (") && said.contains("statistics"), "{said}");
        outcome.written[2].stats = stats;

        std::fs::copy(out.path().join("0.png"), out.path().join("3.png")).expect("copied");
        let said = check(&outcome, &folder).expect_err("another picture");
        assert!(said.contains("frame 3 (") && said.contains("the pixel in column"), "{said}");

        let (_, mut outcome) = good(out.path());
        outcome.written.swap(0, 1);
        assert!(check(&outcome, &folder).expect_err("disorder").contains("frame 0 came after frame 1"));
        outcome.written.remove(0);
        assert!(check(&outcome, &folder).expect_err("lost").contains("5 frames were sent and 4 written"));
    }
}
