//! The memory of a link that was busy and is idle now, and of a pool that was full and is empty.

use std::fs;
use std::time::{Duration, Instant};

use tensorpost::prelude::*;

use super::{Bound, Row, bodies};

/// The bound, in bytes.
const MOST: f64 = (64 << 10) as f64;
/// It has to be given back within a minute; nobody wants to wait that long here.
const WAIT_FOR_FREED: Duration = Duration::from_secs(30);

/// Returns the resident bytes of the largest memory of a link, one way, that a process has mapped: its words
/// and its rings.
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

/// Returns the shared memory that this process has in memory, in bytes.
fn shared() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kib = status.lines().find_map(|line| line.strip_prefix("RssShmem:"));
    let kib: u64 = kib.unwrap_or_default().trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

/// Bytes that a pool takes for a moment.
const PEAK: usize = 512 << 20;

/// Measures the part of a pool's memory that is left when the pool was empty for a while.
fn emptied_pool(node: &Node) -> anyhow::Result<Row> {
    let stream = node.host_stream()?;
    let before = shared()?;
    let bytes = vec![1_u8; PEAK / 8];
    let tensors = (0..8).map(|_| stream.from_slice(&[bytes.len()], &bytes));
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    stream.synchronize()?;
    let peak = shared()?.saturating_sub(before);
    drop(tensors);
    let since = Instant::now();
    loop {
        let now = shared()?.saturating_sub(before);
        if now * 20 <= peak || since.elapsed() > WAIT_FOR_FREED {
            return Ok(Row::new(
                "memory of a pool that is empty, over what it held",
                format!("{} over {} MiB after {:.1} s", now >> 20, peak >> 20, since.elapsed().as_secs_f64()),
                now as f64 / peak.max(1) as f64,
                Some(Bound::AtMost(0.05)),
            ));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

pub(super) fn rows(node: &Node) -> anyhow::Result<Vec<Row>> {
    let (peak, idle) = bodies::around_the_ring(node, |pids| {
        let all =
            || -> anyhow::Result<u64> { pids.iter().try_fold(0, |most, pid| Ok(largest(*pid)?.max(most))) };
        let (peak, since) = (all()?, Instant::now());
        loop {
            let now = all()?;
            if now as f64 <= MOST || since.elapsed() > WAIT_FOR_FREED {
                return Ok((peak, (now, since.elapsed())));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    })?;
    let (bytes, after) = idle;
    Ok(vec![
        Row::new(
            "memory of a link that is idle, KiB",
            format!("{} KiB after {:.1} s, at its peak {}", bytes >> 10, after.as_secs_f64(), peak >> 10),
            bytes as f64 / 1024.0,
            Some(Bound::AtMost(MOST / 1024.0)),
        ),
        emptied_pool(node)?,
    ])
}
