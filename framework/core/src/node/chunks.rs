//! The descriptors of every chunk of the node's processes, and how long they are kept (LEASE-4: a chunk
//! outlives its owner).
//!
//! A process that gets a lease in a chunk needs the chunk's descriptor. It has the chunk mapped for as long
//! as it holds such a lease, and got the descriptor for that mapping here. So the node knows which processes
//! may hold a lease without any message about single leases. It keeps the chunks of living processes. A chunk
//! of a process that ended is *retired*, and the node closes its descriptors, once
//!
//! - its owner is reclaimed: all frames that the owner had sent were read, and a process that took a lease
//!   from them has the chunk mapped, because a frame waits for the mapping before it is taken;
//! - nobody has it mapped. A lease that travels is kept by its sender until the receiver has passed the
//!   frame, so the sender's mapping ends after the receiver's has begun (LEASE-3);
//! - every process that had it mapped and ended is reclaimed too: one of its frames may have carried the last
//!   lease.
//!
//! A living process *withdraws* chunks in which nobody holds anything: the node closes their descriptors at
//! once, and tells the processes that have one mapped.
//!
//! A process says when it has unmapped a chunk of a dead process, or a withdrawn one; it unmaps it when its
//! last lease there goes. Counting leases instead would take a message per lease, or a round of pings to see
//! which leases are under way.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;

use crate::device::Access;
use crate::ids::{ChunkId, DeviceId, ProcessId};
use crate::node::limits::MAX_CHUNKS;
use crate::os::PeerFd;

/// A chunk as the node knows it.
pub(crate) struct Chunk {
    pub(crate) device: DeviceId,
    pub(crate) bytes: u64,
    /// One to read and one to write; `None` for a chunk that was withdrawn.
    descriptors: Option<[PeerFd; 2]>,
    /// The processes that got a descriptor and have not said that it is unmapped, dead processes that are not
    /// reclaimed among them.
    mapped: HashSet<(ProcessId, Access)>,
}

impl Chunk {
    /// Makes a descriptor for `access`, unless the chunk was withdrawn.
    fn descriptor(&self, access: Access) -> Option<io::Result<OwnedFd>> {
        let [read_only, writable] = self.descriptors.as_ref()?;
        Some(match access {
            Access::ReadOnly => read_only.try_clone(),
            Access::ReadWrite => writable.try_clone(),
        })
    }
}

/// All chunks that anybody can hold a lease in.
#[derive(Default)]
pub(crate) struct Chunks {
    chunks: HashMap<ChunkId, Chunk>,
    by_owner: HashMap<ProcessId, usize>,
    /// Owners that are reclaimed and have chunks here.
    reclaimed: HashSet<ProcessId>,
}

/// Why a chunk was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChunkRefused {
    Again,
    TooMany,
}

/// The chunk was not published, or is gone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotPublished;

/// The process had no such mapping.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotMapped;

impl Chunks {
    /// Keeps a new chunk.
    pub(crate) fn publish(
        &mut self,
        id: ChunkId,
        device: DeviceId,
        bytes: u64,
        descriptors: [OwnedFd; 2],
    ) -> Result<(), ChunkRefused> {
        // A worker may send any descriptor, so closing it must not block this thread.
        let descriptors = Some(descriptors.map(PeerFd::from));
        let count = self.by_owner.entry(id.owner).or_default();
        match self.chunks.entry(id) {
            Entry::Occupied(_) => Err(ChunkRefused::Again),
            Entry::Vacant(_) if *count >= MAX_CHUNKS => Err(ChunkRefused::TooMany),
            Entry::Vacant(entry) => {
                entry.insert(Chunk { device, bytes, descriptors, mapped: HashSet::new() });
                *count += 1;
                Ok(())
            }
        }
    }

    /// Whether a chunk is known, and not retired.
    pub(crate) fn knows(&self, id: ChunkId) -> bool {
        self.chunks.contains_key(&id)
    }

    /// Makes a descriptor of a chunk for `to`, with its device and size; `None` if the chunk is not known.
    pub(crate) fn hand_out(
        &mut self,
        id: ChunkId,
        to: ProcessId,
        access: Access,
    ) -> Option<io::Result<(DeviceId, u64, OwnedFd)>> {
        let chunk = self.chunks.get_mut(&id)?;
        let descriptor = chunk.descriptor(access)?;
        if descriptor.is_ok() {
            chunk.mapped.insert((to, access));
        }
        Some(descriptor.map(|descriptor| (chunk.device, chunk.bytes, descriptor)))
    }

    /// Withdraws a chunk, in which nobody holds anything, as its owner says. Returns the processes that have
    /// it mapped and must let go of it; until they have, the chunk stays here without descriptors.
    pub(crate) fn withdraw(&mut self, id: ChunkId) -> Result<Vec<ProcessId>, NotPublished> {
        let chunk = self.chunks.get_mut(&id).ok_or(NotPublished)?;
        drop(chunk.descriptors.take().ok_or(NotPublished)?);
        let mut holders: Vec<_> = chunk.mapped.iter().map(|(holder, _)| *holder).collect();
        holders.sort();
        holders.dedup();
        self.retire(id);
        Ok(holders)
    }

    /// Notes that `by` has unmapped the chunk.
    pub(crate) fn unmapped(&mut self, id: ChunkId, by: ProcessId, access: Access) -> Result<(), NotMapped> {
        let chunk = self.chunks.get_mut(&id).ok_or(NotMapped)?;
        if !chunk.mapped.remove(&(by, access)) {
            return Err(NotMapped);
        }
        self.retire(id);
        Ok(())
    }

    /// Notes that all messages of `process` were read: no lease in a chunk that it had mapped, or in its own
    /// chunks, can still turn up in them.
    pub(crate) fn reclaimed(&mut self, process: ProcessId) {
        if self.by_owner.contains_key(&process) {
            self.reclaimed.insert(process);
        }
        for chunk in self.chunks.values_mut() {
            chunk.mapped.retain(|(holder, _)| *holder != process);
        }
        for id in self.chunks.keys().copied().collect::<Vec<_>>() {
            self.retire(id);
        }
    }

    /// Returns how many chunks are kept.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Returns how many chunks and owners are remembered.
    #[cfg(feature = "testing")]
    pub(crate) fn kept(&self) -> usize {
        self.chunks.len() + self.by_owner.len() + self.reclaimed.len()
    }

    #[cfg(test)]
    pub(crate) fn is_forgotten(&self, owner: ProcessId) -> bool {
        !self.by_owner.contains_key(&owner) && !self.reclaimed.contains(&owner)
    }

    /// Forgets a chunk that nobody can hold a lease in.
    fn retire(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get(&id) else { return };
        let is_withdrawn = chunk.descriptors.is_none();
        if !chunk.mapped.is_empty() || !(is_withdrawn || self.reclaimed.contains(&id.owner)) {
            return;
        }
        self.chunks.remove(&id);
        if let Entry::Occupied(mut count) = self.by_owner.entry(id.owner) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
                self.reclaimed.remove(&id.owner);
            }
        }
    }
}
