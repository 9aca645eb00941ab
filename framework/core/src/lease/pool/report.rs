//! What a pool says of itself: how full it is, and who has its memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use std::time::Instant;

use super::{Pool, State};
use crate::ids::ProcessId;
use crate::observe::survey::{HolderReport, MAX_HOLDERS, PoolReport};

/// Sizes of a pool, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// All chunks together.
    pub chunk_bytes: u64,
    /// Allocations that somebody holds.
    pub held_bytes: u64,
    /// How many those are.
    pub allocations: usize,
    /// How many of them other processes have leases on.
    pub lent_bytes: u64,
    /// Released, but the last use has not passed.
    pub quarantined_bytes: u64,
}

impl Pool {
    /// Sizes, in bytes.
    pub fn stats(&self) -> PoolStats {
        self.state.lock().stats()
    }

    /// How full it is, and who holds what, for whoever looks on. One pass over the lease table.
    pub(crate) fn report(&self) -> PoolReport {
        let (device, budget) = (self.device_id(), self.options.budget);
        let state = self.state.lock();
        let stats = state.stats();
        let mut by_process: BTreeMap<ProcessId, (u64, u64, Instant)> = BTreeMap::new();
        for entry in state.table.report() {
            let local = (entry.local > 0).then_some(self.process);
            for holder in entry.holders.iter().map(|(process, _)| *process).chain(local) {
                let (bytes, tensors, since) = by_process.entry(holder).or_insert((0, 0, entry.since));
                (*bytes, *tensors) = (*bytes + entry.block.bytes, *tensors + 1);
                *since = entry.since.min(*since);
            }
        }
        drop(state);
        let holders = by_process.into_iter().map(|(process, (bytes, tensors, since))| HolderReport {
            process,
            bytes,
            tensors,
            oldest: since.elapsed(),
        });
        let mut holders: Vec<_> = holders.collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        let more_holders = holders.len().saturating_sub(MAX_HOLDERS) as u64;
        holders.truncate(MAX_HOLDERS);
        PoolReport {
            device,
            budget,
            chunks: stats.chunk_bytes,
            held: stats.held_bytes,
            tensors: stats.allocations as u64,
            in_flight: stats.lent_bytes,
            quarantined: stats.quarantined_bytes,
            holders,
            more_holders,
        }
    }

    /// The holders of this pool's memory, the largest first, in words.
    #[cfg(any(test, feature = "inside"))]
    pub fn holders(&self) -> String {
        self.state.lock().holders(self.process)
    }
}

impl State {
    pub(super) fn stats(&self) -> PoolStats {
        let mut stats = PoolStats { chunk_bytes: self.chunk_bytes, ..PoolStats::default() };
        for (block, lent) in self.table.live() {
            stats.held_bytes += block.bytes;
            stats.lent_bytes += if lent { block.bytes } else { 0 };
            stats.allocations += 1;
        }
        stats.quarantined_bytes = self.quarantine.iter().map(|(block, _)| block.bytes).sum();
        stats
    }

    pub(super) fn holders(&self, process: ProcessId) -> String {
        let mut by_process: BTreeMap<ProcessId, (u64, usize, f64)> = Default::default();
        for entry in self.table.report() {
            let local = (entry.local > 0).then_some(process);
            for holder in entry.holders.iter().map(|(process, _)| *process).chain(local) {
                let sums = by_process.entry(holder).or_default();
                sums.0 += entry.block.bytes;
                sums.1 += 1;
                sums.2 = sums.2.max(entry.since.elapsed().as_secs_f64());
            }
        }
        let mut rows: Vec<_> = by_process.into_iter().collect();
        rows.sort_by_key(|(_, (bytes, ..))| std::cmp::Reverse(*bytes));
        let mut text = String::from("Held by");
        for (index, (holder, (bytes, count, age))) in rows.iter().take(8).enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let own = if *holder == process { " (this process)" } else { "" };
            let _ = write!(
                text,
                "{comma} {holder}{own}: {bytes} bytes in {count} tensors, the oldest for {age:.1} s"
            );
        }
        if rows.is_empty() {
            text.push_str(" nobody: the last uses have not passed yet");
        }
        text
    }
}
