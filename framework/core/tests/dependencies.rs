//! Dependencies inside the crate point one way, along [`ORDER`]: a module names only those before it, and those of [`BESIDE`].
//! The test reads what the sources name. What goes against the order today is in [`EXCEPTIONS`], which can only get shorter.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Each module may use those before it. (`device` stands behind `clock`, because a stream of a device advances a clock, and a
/// clock knows no device.)
const ORDER: &[&str] = &[
    "limits",
    "os",
    "ids",
    "clock",
    "device",
    "stream",
    "lease",
    "tensor",
    "message",
    "transport",
    "actor",
    "node",
];

/// Those that every module may use, with what they themselves may use.
const BESIDE: &[(&str, &[&str])] = &[("observe", &["limits", "os", "ids"]), ("fault", &[])];

/// Those that may use all, and that no module uses in what programs run.
const ABOVE: &[&str] = &["api", "testing", "lib"];

/// Files that belong to a later module than the folder that they are in.
const ELSEWHERE: &[(&str, &str)] = &[
    ("clock/stream", "stream"),
    ("clock/turn", "stream"),
    ("clock/late", "stream"),
    ("clock/queued", "stream"),
];

/// What goes against the order, as file and module, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    // The process's clocks keep the clock writes that its streams have put off.
    ("clock/domain", "stream"),
    // The process's clocks know its streams, to mark on them what a death has tainted.
    ("clock/own", "stream"),
];

#[test]
fn modules_use_only_those_before_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeSet::new();
    for path in sources(&root) {
        let file = path.strip_prefix(&root).expect("below it").with_extension("");
        let file = file.to_str().expect("our names are text").trim_end_matches("/mod").to_owned();
        let text = fs::read_to_string(&path).expect("a source can be read");
        for target in named(&file, &text) {
            if !may_use(home(&file), &target) {
                found.insert((file.clone(), target));
            }
        }
    }
    let known: BTreeSet<_> =
        EXCEPTIONS.iter().map(|(file, target)| ((*file).to_owned(), (*target).to_owned())).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "against the order of dependencies, as (file, module that it names): {new:?}");
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "no longer against the order, take them out of the exceptions: {gone:?}");
}

/// Whether a module may name another.
fn may_use(module: &str, target: &str) -> bool {
    if module == target || ABOVE.contains(&module) {
        return true;
    }
    if let Some((_, uses)) = BESIDE.iter().find(|(beside, _)| *beside == module) {
        return uses.contains(&target);
    }
    let place = |module: &str| ORDER.iter().position(|known| *known == module);
    let Some(own) = place(module) else { panic!("`{module}` has no place in the order of dependencies") };
    BESIDE.iter().any(|(beside, _)| *beside == target) || place(target).is_some_and(|target| target < own)
}

/// The module that a file belongs to.
fn home(file: &str) -> &str {
    let elsewhere = ELSEWHERE.iter().find(|(part, _)| *part == file);
    elsewhere.map_or_else(|| file.split('/').next().expect("it has a name"), |(_, module)| module)
}

/// The modules that a file names by `crate::…`, and by `super::…` where [`ELSEWHERE`] makes another module of a neighbour.
/// What tests name is left out, and so is what only the feature `testing` compiles.
fn named(file: &str, text: &str) -> BTreeSet<String> {
    let mut targets = BTreeSet::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line.starts_with("//") {
            continue;
        }
        if line.starts_with("#[cfg(") && line.contains("test") && !line.contains("not(") {
            // What it stands before: a line, or a module of tests, which is the end of the file.
            match lines.next() {
                Some(next) if next.contains("mod ") && next.ends_with('{') => break,
                _ => continue,
            }
        }
        for (at, start) in [(line, "crate::"), (line, "super::")].into_iter().flat_map(|(line, start)| {
            line.match_indices(start).map(move |(at, _)| (&line[at + start.len()..], start))
        }) {
            let mut parts = at.split("::").map(|part| {
                let end = part.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(part.len());
                &part[..end]
            });
            let (first, second) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            assert!(
                !(start == "crate::" && first.is_empty()),
                "{file}: one `use` for each module, so that this test can read it: {line}"
            );
            if start == "crate::" {
                let path = format!("{first}/{second}");
                targets.insert(home(if is_elsewhere(&path) { &path } else { first }).to_owned());
            } else if let Some((folder, _)) = file.split_once('/') {
                let path = format!("{folder}/{first}");
                if is_elsewhere(&path) && file.matches('/').count() == 1 {
                    targets.insert(home(&path).to_owned());
                }
            }
        }
    }
    targets
}

fn is_elsewhere(path: &str) -> bool {
    ELSEWHERE.iter().any(|(file, _)| *file == path)
}

/// All sources that programs run: no tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("our names are text");
        if name == "tests" || name.ends_with("_tests") || ["conformance", "fake"].contains(&name) {
            continue;
        }
        if path.is_dir() {
            all.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push(path);
        }
    }
    all
}
