//! The resources that a process uses, so that a test can show that they come back.
//!
//! [`leaks`](fn@leaks) takes a snapshot of the calling process: the resources that the operating system holds
//! for it, and those that its transports hold. [`Usage::growth`] compares two snapshots. A snapshot can be
//! sent, so an actor can reply with that of its worker.
//!
//! ```
//! use tensorpost::prelude::*;
//! use tensorpost::testing::leaks;
//!
//! # fn main() -> anyhow::Result<()> {
//! let node = Node::builder().start()?;
//! let stream = node.host_stream()?;
//! stream.zeros(DType::F32, &[4])?; // the first one makes the pool's chunk
//! let before = leaks();
//! let tensor = stream.zeros(DType::F32, &[4])?;
//! assert_eq!(before.growth(&leaks()), ["allocations held on host memory: 0 became 1"]);
//! drop(tensor);
//! assert!(before.growth(&leaks()).is_empty());
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::sync::Weak;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::limits::MAX_DEAD_PAGES;
use crate::transport::Transport;

/// The transports of this process: one, except in tests of the framework itself.
static TRANSPORTS: Mutex<Vec<Weak<Transport>>> = Mutex::new(Vec::new());

/// Includes a transport from here on.
pub(crate) fn watch(transport: Weak<Transport>) {
    let mut transports = TRANSPORTS.lock();
    transports.retain(|transport| transport.strong_count() > 0);
    transports.push(transport);
}

/// The resources that a process uses. Every count is by name, so that a difference names the leak.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Open descriptors, by kind: `memfd:tensorpost-link`, `eventfd`, `socket`, or the path of a file.
    pub descriptors: BTreeMap<String, usize>,
    /// Shared mappings, by the mapped file.
    pub mappings: BTreeMap<String, usize>,
    /// Threads.
    pub threads: usize,
    /// Processes that this one has started and that have not been reaped, by name.
    pub children: BTreeMap<String, usize>,
    /// The resources that the transports hold: leased allocations of each pool, leases on memory of each
    /// other process, mapped chunks of others, links, asks without an answer, messages not done with.
    pub held: BTreeMap<String, usize>,
    /// Bytes of the pools' chunks, by device. They grow to the peak need, and stay.
    pub chunk_bytes: BTreeMap<String, u64>,
    /// Resident bytes that belong to this process alone. Allocators keep some freed bytes, so this is not
    /// exact.
    pub resident: u64,
}

/// Returns a snapshot of this process. It looks through `/proc`, which takes some milliseconds.
pub fn leaks() -> Usage {
    let mut usage = Usage {
        descriptors: descriptors(),
        mappings: mappings(),
        threads: fs::read_dir("/proc/self/task").map_or(0, Iterator::count),
        children: children(),
        resident: resident(),
        ..Usage::default()
    };
    let transports: Vec<_> = TRANSPORTS.lock().iter().filter_map(Weak::upgrade).collect();
    for transport in transports {
        transport.count_what_is_held(|what, count| *usage.held.entry(what).or_default() += count);
        for pool in transport.memory.pools() {
            *usage.chunk_bytes.entry(pool.backend().name()).or_default() += pool.stats().chunk_bytes;
        }
    }
    usage
}

/// The name of descriptors and mappings of which a bounded number outlives its process: the clocks of dead
/// processes.
const KEPT_FOR_A_WHILE: &str = "memfd:tensorpost-clocks";

/// The bound: the pages that a process keeps, and in the node those that it checks again.
const KEPT: usize = 2 * MAX_DEAD_PAGES;

impl Usage {
    /// Returns the resources of which `later` has more than this, in words; empty when nothing was left
    /// behind. It does not count [`resident`](Self::resident) bytes, which are never exact, nor the clocks of
    /// dead processes, of which a few stay for a while.
    pub fn growth(&self, later: &Usage) -> Vec<String> {
        let mut grown = Vec::new();
        compare("descriptors of ", &self.descriptors, &later.descriptors, &mut grown);
        compare("mappings of ", &self.mappings, &later.mappings, &mut grown);
        compare("processes called ", &self.children, &later.children, &mut grown);
        compare("", &self.held, &later.held, &mut grown);
        if later.threads > self.threads {
            grown.push(format!("threads: {} became {}", self.threads, later.threads));
        }
        for (device, bytes) in &later.chunk_bytes {
            let before = self.chunk_bytes.get(device).copied().unwrap_or(0);
            if *bytes > before {
                grown.push(format!("bytes of chunks on {device}: {before} became {bytes}"));
            }
        }
        grown
    }
}

fn compare(
    of: &str,
    before: &BTreeMap<String, usize>,
    after: &BTreeMap<String, usize>,
    grown: &mut Vec<String>,
) {
    for (what, count) in after {
        let was = before.get(what).copied().unwrap_or(0);
        let kept = if what == KEPT_FOR_A_WHILE { KEPT } else { 0 };
        if *count > was + kept {
            grown.push(format!("{of}{what}: {was} became {count}"));
        }
    }
}

fn descriptors() -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    let own = format!("/proc/{}/fd", std::process::id());
    for entry in fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        // A descriptor can be closed between the two looks.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let target = target.to_string_lossy();
        if target != own {
            *found.entry(kind_of(&target)).or_default() += 1;
        }
    }
    found
}

/// `/memfd:name (deleted)`, `socket:[123]`, `anon_inode:[eventfd]`, `/a/file`.
fn kind_of(target: &str) -> String {
    if let Some(name) = target.strip_prefix("/memfd:") {
        return format!("memfd:{}", name.trim_end_matches(" (deleted)"));
    }
    if let Some(kind) = target.strip_prefix("anon_inode:") {
        return kind.trim_matches(['[', ']']).to_owned();
    }
    match target.split_once(":[") {
        Some((kind, _)) => kind.to_owned(),
        None => target.to_owned(),
    }
}

fn mappings() -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for line in fs::read_to_string("/proc/self/maps").unwrap_or_default().lines() {
        // address permissions offset device inode path
        let mut fields = line.split_ascii_whitespace();
        let is_shared = fields.nth(1).is_some_and(|permissions| permissions.ends_with('s'));
        let path = fields.skip(3).collect::<Vec<_>>().join(" ");
        if is_shared && !path.is_empty() {
            *found.entry(kind_of(&path)).or_default() += 1;
        }
    }
    found
}

fn children() -> BTreeMap<String, usize> {
    let own = std::process::id().to_string();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // pid (name) state parent …; the name can hold anything.
        let Some((before, after)) = stat.rsplit_once(')') else { continue };
        if after.split_ascii_whitespace().nth(1) == Some(&own) {
            let name = before.split_once('(').map_or("", |(_, name)| name);
            *found.entry(name.to_owned()).or_default() += 1;
        }
    }
    found
}

fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_what_people_call_them() {
        let kinds = [
            ("/memfd:tensorpost-link (deleted)", "memfd:tensorpost-link"),
            ("anon_inode:[eventfd]", "eventfd"),
            ("anon_inode:inotify", "inotify"),
            ("socket:[4711]", "socket"),
            ("pipe:[1]", "pipe"),
            ("/dev/null", "/dev/null"),
        ];
        for (target, kind) in kinds {
            assert_eq!(kind_of(target), kind);
        }
    }

    #[test]
    fn growth_names_what_has_grown() {
        let count = |counts: &[(&str, usize)]| counts.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect();
        let before =
            Usage { threads: 2, descriptors: count(&[("socket", 3), ("eventfd", 1)]), ..Usage::default() };
        let mut after = before.clone();
        assert!(before.growth(&after).is_empty());
        after.descriptors = count(&[("socket", 2), ("eventfd", 2)]);
        after.mappings = count(&[("memfd:x", 1), (KEPT_FOR_A_WHILE, 9)]);
        after.threads = 3;
        after.resident = 1 << 30;
        let grown =
            ["descriptors of eventfd: 1 became 2", "mappings of memfd:x: 0 became 1", "threads: 2 became 3"];
        assert_eq!(before.growth(&after), grown);
    }
}
