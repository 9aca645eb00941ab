//! The wall clock may jump at any time, so the code takes no decision by it: deadlines, orders and limits go
//! by `CLOCK_MONOTONIC`. The test reads the sources.

use std::fs;
use std::path::{Path, PathBuf};

/// Names of the wall clock in code.
const NAMES: &[&str] = &["SystemTime", "UNIX_EPOCH", "Realtime", "chrono::"];

/// Files that may use the wall clock, because they only show a time: the time of a record of the console's
/// log, and that of a stage's start, from which its spans in a trace are counted.
const EXCEPTIONS: &[&str] = &["core/src/node/console/log.rs", "pipeline/src/worker/meter.rs"];

#[test]
fn nothing_goes_by_the_wall_clock() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for folder in ["src", "core/src", "pipeline/src", "derive/src", "hosts/src", "watch/src"] {
        for path in sources(&root.join(folder)) {
            let text = fs::read_to_string(&path).expect("a source can be read");
            let file = path.strip_prefix(&root).expect("below it").display().to_string();
            if NAMES.iter().any(|name| text.contains(name)) {
                found.push(file);
            }
        }
    }
    assert_eq!(found, EXCEPTIONS);
}

/// Returns the sources in a folder and below it.
pub(super) fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).expect("a folder of sources").map(|entry| entry.expect("listed").path());
    let of = |path: PathBuf| match path.is_dir() {
        true => sources(&path),
        false if path.extension().is_some_and(|ending| ending == "rs") => vec![path],
        false => Vec::new(),
    };
    entries.flat_map(of).collect()
}
