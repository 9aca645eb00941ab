//! Resident memory of processes.

use std::fs;
use std::io;

/// Returns the resident bytes of a process, shared pages included, as `/proc/<pid>/smaps_rollup` has them.
///
/// # Errors
/// There is no such process, or this process may not look at it.
pub fn resident(pid: u32) -> io::Result<u64> {
    field(pid, "Rss:")
}

/// As [`resident`], with each shared page divided by the number of processes that map it.
///
/// # Errors
/// As [`resident`].
pub fn proportional(pid: u32) -> io::Result<u64> {
    field(pid, "Pss:")
}

fn field(pid: u32, name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib =
        line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|kib| kib.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other(format!("no {name} in smaps_rollup of {pid}")))
}
