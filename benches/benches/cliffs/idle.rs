//! The memory of a link that was busy and is not any more.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use tensorpost::prelude::*;

use super::{Bound, Row, bodies};

/// In bytes.
const MOST: f64 = (64 << 10) as f64;
/// It has to be given back within a minute; nobody wants to wait that long here.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of the largest memory of a link that a process writes, or reads.
fn largest(pid: u32) -> anyhow::Result<u64> {
    let mut largest = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        // One may close meanwhile.
        let Ok(target) = fs::read_link(&path) else { continue };
        if target.to_string_lossy().contains("tensorpost-link") {
            // In units of 512 bytes, whatever the block size is.
            largest = largest.max(fs::metadata(&path).map_or(0, |link| link.blocks() * 512));
        }
    }
    Ok(largest)
}

pub(super) fn rows(node: &Node) -> anyhow::Result<Vec<Row>> {
    let (peak, idle) = bodies::around_the_ring(node, |pids| {
        let all =
            || -> anyhow::Result<u64> { pids.iter().try_fold(0, |most, pid| Ok(largest(*pid)?.max(most))) };
        let (peak, since) = (all()?, Instant::now());
        loop {
            let now = all()?;
            if now as f64 <= MOST || since.elapsed() > PATIENCE {
                return Ok((peak, (now, since.elapsed())));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    })?;
    let (bytes, after) = idle;
    Ok(vec![Row::new(
        "memory of a link that is idle, KiB",
        format!("{} KiB after {:.1} s, at its peak {}", bytes >> 10, after.as_secs_f64(), peak >> 10),
        bytes as f64 / 1024.0,
        Some(Bound::AtMost(MOST / 1024.0)),
    )])
}
