//! What each process holds of a lease table, kept as it changes: whoever finds a pool full is told without a
//! walk through all of its entries, of which there may be a million.
//!
//! Used by [`LeaseTable`](super::LeaseTable) alone, under the same lock.

use smallvec::SmallVec;

use crate::ids::ProcessId;

/// Allocations, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// In bytes.
    pub bytes: u64,
    /// How many.
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
    /// Of the owner's own process.
    pub(super) local: Sum,
    /// All open entries.
    pub(super) open: Sum,
    /// Those on which another process has a lease.
    pub(super) lent: Sum,
    /// Of each other process, by its slot. Of two lives of one slot the earlier leases go when the process is
    /// reclaimed.
    by_slot: Vec<SmallVec<[(ProcessId, Sum); 1]>>,
}

impl Sums {
    /// `process` has a lease on an allocation of which it had none.
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

    /// `process` has no lease any more on an allocation of which it had some.
    pub(super) fn ends(&mut self, process: ProcessId, bytes: u64) {
        let Some(lives) = self.by_slot.get_mut(process.slot()) else { return };
        let Some(at) = lives.iter().position(|(known, _)| *known == process) else { return };
        lives[at].1.take(bytes);
        // The place of a process that lives is kept: it will have leases again.
        if lives[at].1.tensors == 0 && lives.len() > 1 {
            lives.swap_remove(at);
        }
    }

    /// Each other process that holds something.
    pub(super) fn others(&self) -> impl Iterator<Item = (ProcessId, Sum)> {
        self.by_slot.iter().flatten().copied().filter(|(_, sum)| sum.tensors > 0)
    }
}
