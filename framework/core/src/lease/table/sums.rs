//! The bytes and tensors that each process holds in a lease table, updated with every change. So the report
//! of a full pool needs no walk through all entries, of which there may be a million.
//!
//! Only [`LeaseTable`](super::LeaseTable) uses it, under the same lock.

use smallvec::SmallVec;

use crate::ids::ProcessId;

/// A number of allocations, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Their bytes.
    pub bytes: u64,
    /// Their number.
    pub tensors: u64,
}

impl Sum {
    #[inline]
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.tensors += 1;
    }

    #[inline]
    pub(super) fn take(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.tensors -= 1;
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    /// Allocations that the owner's own process holds.
    pub(super) local: Sum,
    /// All open entries.
    pub(super) open: Sum,
    /// Allocations on which another process has a lease.
    pub(super) lent: Sum,
    /// Allocations that each other process holds, by its slot. If a slot was used twice, the leases of the
    /// earlier process go when that process is reclaimed.
    by_slot: Vec<SmallVec<[(ProcessId, Sum); 1]>>,
}

impl Sums {
    /// Adds an allocation on which `process` took its first lease.
    pub(super) fn begins(&mut self, process: ProcessId, bytes: u64) {
        let slot = process.slot();
        if self.by_slot.len() <= slot {
            self.by_slot.resize_with(slot + 1, SmallVec::new);
        }
        let lives = &mut self.by_slot[slot];
        match lives.iter_mut().find(|(known, _)| *known == process) {
            Some((_, sum)) => sum.add(bytes),
            None => lives.push((process, Sum { bytes, tensors: 1 })),
        }
    }

    /// Removes an allocation on which `process` has given its last lease back.
    pub(super) fn ends(&mut self, process: ProcessId, bytes: u64) {
        let Some(lives) = self.by_slot.get_mut(process.slot()) else { return };
        let Some(at) = lives.iter().position(|(known, _)| *known == process) else { return };
        lives[at].1.take(bytes);
        // The row of a live process is kept: it will have leases again.
        if lives[at].1.tensors == 0 && lives.len() > 1 {
            lives.swap_remove(at);
        }
    }

    /// Returns the sum of each other process that holds something.
    pub(super) fn others(&self) -> impl Iterator<Item = (ProcessId, Sum)> {
        self.by_slot.iter().flatten().copied().filter(|(_, sum)| sum.tensors > 0)
    }
}
