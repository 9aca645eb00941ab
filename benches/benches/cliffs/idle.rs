//! The memory of a link that was busy and is not any more.

use std::fs;
use std::time::{Duration, Instant};

use tensorpost::prelude::*;

use super::{Bound, Row, bodies};

/// In bytes.
const MOST: f64 = (64 << 10) as f64;
/// It has to be given back within a minute; nobody wants to wait that long here.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of the largest memory of a link, one way, that a process has mapped: of the words and of the rings, what is resident.
fn largest(pid: u32) -> anyhow::Result<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let (mut words, mut rings, mut of_link) = (0, 0, None);
    for line in maps.lines() {
        if let Some(kib) = line.strip_prefix("Rss:") {
            let bytes = kib.trim().trim_end_matches(" kB").parse::<u64>()? << 10;
            match of_link.take() {
                Some(true) => rings = bytes.max(rings),
                Some(false) => words = bytes.max(words),
                None => {}
            }
        } else if line.contains("memfd:tensorpost-link") || line.contains("memfd:tensorpost-rings") {
            of_link = Some(line.contains("tensorpost-rings"));
        }
    }
    Ok(words + rings)
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
