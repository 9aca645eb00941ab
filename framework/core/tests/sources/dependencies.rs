//! Dependencies inside a crate point one way, along its order: a module names only modules before it, and
//! those beside. The test reads the sources for the names. There are no exceptions.
//!
//! Bounds stand in one place too: those of the node in `node/limits.rs`, all others in `limits.rs`.
//!
//! The crate that watches keeps the same rules as this one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A crate whose modules have an order.
struct Crate {
    /// Its folder, from this crate's.
    folder: &'static str,
    /// Each module may use those before it.
    order: &'static [&'static str],
    /// Modules that every module may use, each with the modules that it may use itself.
    beside: &'static [(&'static str, &'static [&'static str])],
    /// Modules that may use all others. No module uses them in code that programs run.
    above: &'static [&'static str],
}

/// This crate, and the one that watches.
const CRATES: [Crate; 2] = [
    Crate { folder: ".", order: ORDER, beside: BESIDE, above: &["api", "testing", "lib"] },
    Crate {
        folder: "../watch",
        order: &[
            "limits",
            "nvml",
            "draw",
            "series",
            "progress",
            "trace",
            "console",
            "live",
            "doctor",
            "registered",
        ],
        beside: &[],
        above: &["testing", "lib"],
    },
];

/// The order of this crate. (`device` stands behind `clock`, because a device's stream advances a clock, and
/// a clock knows no device.)
const ORDER: &[&str] = &[
    "limits",
    "os",
    "ids",
    "clock",
    "device",
    "trial",
    "stream",
    "lease",
    "tensor",
    "message",
    "transport",
    "actor",
    "gateway",
    "node",
];

/// The modules beside that order.
const BESIDE: &[(&str, &[&str])] =
    &[("observe", &["limits", "os", "ids"]), ("fault", &[]), ("sync", &["os"])];

/// Constants named as a maximum that bound nothing that a process keeps or takes from others. The third field
/// says what the number is.
const NO_BOUNDS: &[(&str, &str, &str)] = &[
    ("device/cuda/abi", "MAX_BATCH", "the driver's own"),
    ("message/portable/difference", "MAX_LINE", "where a line of an error is cut"),
    ("message/portable/difference", "MAX_LISTED", "lines of an error"),
    ("message/portable/difference", "MAX_TYPE", "where a name in such a line is cut"),
    ("message/portable/interfaces", "MAX_SHOWN_NAME", "where a name in an error is cut"),
    ("console/graph/svg", "MAX_NAME", "the width of a box in a drawing"),
    ("node/typed", "MAX_SPARES", "that of `limits`, where users find it"),
    ("observe/trace/mod", "MAX_KNOWN", "a thread's own memory of what it has said"),
    ("progress", "MAX_ROWS", "the height of a terminal"),
    ("progress", "MAX_STAGES", "the width of a line"),
    ("transport/ring/error", "MAX", "what a position in a ring can say"),
    ("transport/spin", "MAX_SKIP", "polls between two looks"),
];

#[test]
fn bounds_stand_in_one_place() {
    let mut elsewhere = BTreeSet::new();
    for (file, path) in CRATES.iter().flat_map(Crate::files) {
        if ["limits", "limits/hosts", "node/limits", "node/limits/hosts"].contains(&file.as_str()) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source can be read");
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let Some((_, constant)) = line.split_once("const ") else { continue };
            let name = constant.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            if name == "MAX" || name.starts_with("MAX_") {
                elsewhere.insert((file.clone(), name.to_owned()));
            }
        }
    }
    let known = NO_BOUNDS.iter().map(|(file, name, _)| ((*file).to_owned(), (*name).to_owned()));
    assert_eq!(elsewhere, known.collect(), "left: found; right: known. A bound belongs into `limits.rs`");
}

#[test]
fn modules_use_only_those_before_them() {
    let mut against = BTreeSet::new();
    for of in &CRATES {
        for (file, path) in of.files() {
            let home = file.split('/').next().expect("it has a name").to_owned();
            let text = fs::read_to_string(&path).expect("a source can be read");
            against.extend(
                named(&file, &text)
                    .into_iter()
                    .filter(|target| !of.may_use(&home, target))
                    .map(|target| (of.folder, file.clone(), target)),
            );
        }
    }
    assert!(
        against.is_empty(),
        "against the order of dependencies, as (crate, file, module that it names): {against:?}"
    );
}

/// Most places of a folder that ask for the feature `hosts`. Core knows other hosts by the seams
/// `node/supervisor/neighbours.rs`, `node/broker/neighbours.rs` and `transport/gate.rs`.
const ASK_FOR_HOSTS: &[(&str, usize)] = &[("node/supervisor", 6), ("node", 28), ("transport", 17)];

#[test]
fn few_places_ask_for_other_hosts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (folder, most) in ASK_FOR_HOSTS {
        let asks = |path: PathBuf| {
            let text = fs::read_to_string(path).expect("a source can be read");
            text.lines().filter(|line| line.contains("feature = \"hosts\"")).count()
        };
        let count: usize = sources(&root.join(folder)).into_iter().map(asks).sum();
        assert!(count <= *most, "{folder}: {count} places ask for the feature `hosts`, of {most} that may");
    }
}

/// Parts of what the crate that watches draws: the file of a trace, progress, the live page, its metrics.
const DRAWN: &[&str] = &["traceEvents", "is_terminal", "<svg", "<html", "# TYPE ", "to_string_pretty"];

#[test]
fn core_records_and_draws_nothing() {
    for (file, path) in CRATES[0].files() {
        let text = fs::read_to_string(&path).expect("a source can be read");
        let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let drawn = lines.find(|line| DRAWN.iter().any(|part| line.contains(*part)));
        assert_eq!(drawn, None, "{file}: `tensorpost-watch` draws what core has recorded");
    }
}

/// Other hosts are a value that the supervisor owns behind the trait of `node/supervisor/neighbours.rs`. So
/// they do not reach into the supervisor, and add no method to its types.
#[test]
fn other_hosts_reach_into_no_supervisor() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/node/supervisor");
    for path in sources(&root.join("hosts")).into_iter().chain([root.join("hosts.rs")]) {
        let text = fs::read_to_string(&path).expect("a source can be read");
        for name in ["SupervisorState", "impl NodeState", "impl Restarts", "impl Shared", "impl WorkerId"] {
            assert!(!text.contains(name), "{}: it has `{name}`", path.display());
        }
    }
}

/// Other hosts are a value that the broker owns behind the trait of `node/broker/neighbours.rs`, too. So they
/// add no method to it, and it names nothing of them.
#[test]
fn other_hosts_reach_into_no_broker() {
    let node = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/node");
    let read = |path: &Path| fs::read_to_string(path).expect("a source can be read");
    for hosts in ["hosts", "supervisor/hosts"] {
        let files = sources(&node.join(hosts)).into_iter().chain([node.join(hosts).with_extension("rs")]);
        for path in files {
            let text = read(&path);
            let reaches = text.lines().find(|line| line.starts_with("impl") && line.contains("Broker"));
            assert_eq!(reaches, None, "{}", path.display());
        }
    }
    let broker = sources(&node.join("broker")).into_iter();
    for path in broker.chain(["broker.rs", "registry.rs", "roster.rs"].map(|file| node.join(file))) {
        let text = read(&path);
        let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        assert_eq!(lines.find(|line| line.contains("hosts::")), None, "{}", path.display());
    }
}

impl Crate {
    /// Returns its sources, each by its name and its path.
    fn files(&self) -> Vec<(String, PathBuf)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(self.folder).join("src");
        let name = |path: &Path| {
            let file = path.strip_prefix(&root).expect("below it").with_extension("");
            file.to_str().expect("our names are text").to_owned()
        };
        sources(&root).into_iter().map(|path| (name(&path), path)).collect()
    }

    /// Says whether a module may name another.
    fn may_use(&self, module: &str, target: &str) -> bool {
        if module == target || self.above.contains(&module) {
            return true;
        }
        if let Some((_, uses)) = self.beside.iter().find(|(beside, _)| *beside == module) {
            return uses.contains(&target);
        }
        let place = |module: &str| self.order.iter().position(|known| *known == module);
        let Some(own) = place(module) else { panic!("`{module}` has no place in the order of dependencies") };
        self.beside.iter().any(|(beside, _)| *beside == target)
            || place(target).is_some_and(|target| target < own)
    }
}

/// Returns the modules that a file names by `crate::…`. It leaves out names in tests, and in code that only
/// the feature `testing` compiles.
fn named(file: &str, text: &str) -> BTreeSet<String> {
    let mut targets = BTreeSet::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line.starts_with("//") {
            continue;
        }
        if line.starts_with("#[cfg(") && line.contains("test") && !line.contains("not(") {
            skip_item(&mut lines);
            continue;
        }
        for (at, start) in line.match_indices("crate::") {
            let name = &line[at + start.len()..];
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            assert!(end > 0, "{file}: one `use` for each module, so that this test can read it: {line}");
            targets.insert(name[..end].to_owned());
        }
    }
    targets
}

/// Skips the item that an attribute stands before: up to the line that ends it with all its brackets closed.
pub(super) fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>) {
    let mut open = 0_i64;
    for line in lines {
        open += line.matches(['{', '(', '[']).count() as i64 - line.matches(['}', ')', ']']).count() as i64;
        if open <= 0 && line.ends_with([';', ',', '}']) {
            return;
        }
    }
}

/// Returns all sources of code that programs run, without the tests.
pub(super) fn sources(folder: &Path) -> Vec<PathBuf> {
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
