//! Reports of a pool: how full it is, and which processes have its memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use smallvec::SmallVec;

use super::{Pool, PoolState};
use crate::ids::ProcessId;
use crate::lease::table::Sum;
use crate::limits::MAX_SHOWN_HOLDERS;
use crate::observe::survey::{HolderReport, PoolReport};

/// How many of the oldest allocations the report of a full pool looks at.
pub(super) const OLDEST: usize = 64;

/// Sizes of a pool, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// All chunks together.
    pub chunk_bytes: u64,
    /// Bytes of allocations that have a holder.
    pub held_bytes: u64,
    /// Number of those allocations.
    pub allocations: usize,
    /// Bytes of those on which other processes have leases.
    pub lent_bytes: u64,
    /// Bytes of released allocations whose last use has not passed.
    pub quarantined_bytes: u64,
}

impl Pool {
    /// Returns the sizes of the pool.
    pub fn stats(&self) -> PoolStats {
        self.state.lock().stats()
    }

    /// Reports how full the pool is, and its holders, for watchers. It takes one pass over the lease table.
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
        let more_holders = holders.len().saturating_sub(MAX_SHOWN_HOLDERS) as u64;
        holders.truncate(MAX_SHOWN_HOLDERS);
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

    /// Returns a text that names the holders of this pool's memory, the largest first.
    #[cfg(any(test, feature = "inside"))]
    pub fn holders(&self) -> String {
        self.state.lock().holders(self.process)
    }
}

impl PoolState {
    pub(super) fn stats(&self) -> PoolStats {
        let open = self.table.open_sum();
        PoolStats {
            chunk_bytes: self.chunk_bytes,
            held_bytes: open.bytes,
            allocations: open.tensors as usize,
            lent_bytes: self.table.lent_sum().bytes,
            quarantined_bytes: self.quarantine.iter().map(|(block, _)| block.bytes).sum(),
        }
    }

    /// Returns a text that names the holders of the memory, and for how long they have had it. A pool may be
    /// full again and again, so the cost does not grow with the number of allocations. It looks at a few of
    /// the oldest allocations only. For a process that has none of those, the text gives an upper limit of
    /// the age of its own.
    pub(super) fn holders(&self, process: ProcessId) -> String {
        let mut oldest: SmallVec<[(ProcessId, Instant); 8]> = SmallVec::new();
        let mut most = None;
        // The first entry of a holder is its oldest, because the entries come by age.
        for entry in self.table.by_age().take(OLDEST) {
            let local = (entry.local > 0).then_some(process);
            for holder in entry.holders.iter().map(|(process, _)| *process).chain(local) {
                if !oldest.iter().any(|(known, _)| *known == holder) {
                    oldest.push((holder, entry.since));
                }
            }
            // A holder that has none of these entries has nothing older than the last of them.
            most = Some(entry.since);
        }
        let local = Some((process, self.table.local_sum())).filter(|(_, sum)| sum.tensors > 0);
        let mut rows: SmallVec<[_; 8]> = self.table.sums_of_others().chain(local).collect();
        rows.sort_by_key(|(process, sum)| (Reverse(sum.bytes), *process));
        let mut text = String::from("Held by");
        for (index, (holder, Sum { bytes, tensors })) in rows.iter().take(8).enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let own = if *holder == process { " (this process)" } else { "" };
            let _ = write!(text, "{comma} {holder}{own}: {bytes} bytes in {tensors} tensors");
            let seconds = |since: Instant| since.elapsed().as_secs_f64();
            let _ = match (oldest.iter().find(|(known, _)| known == holder), most) {
                (Some((_, since)), _) => write!(text, ", the oldest for {:.1} s", seconds(*since)),
                (None, Some(most)) => write!(text, ", none for more than {:.1} s", seconds(most)),
                (None, None) => Ok(()),
            };
        }
        if rows.is_empty() {
            text.push_str(" nobody: the last uses have not passed yet");
        }
        text
    }
}
