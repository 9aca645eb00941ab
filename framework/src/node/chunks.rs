//! The descriptors of every chunk of the node's processes (LEASE-4: a chunk outlives its owner).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::OwnedFd;

use crate::device::Access;
use crate::ids::{ChunkId, DeviceId, ProcessId};
use crate::node::limits::MAX_CHUNKS;

/// A chunk as the node knows it.
pub(crate) struct Chunk {
    pub(crate) device: DeviceId,
    pub(crate) bytes: u64,
    read_only: OwnedFd,
    writable: OwnedFd,
}

impl Chunk {
    /// A new descriptor for `access`.
    pub(crate) fn descriptor(&self, access: Access) -> io::Result<OwnedFd> {
        match access {
            Access::ReadOnly => self.read_only.try_clone(),
            Access::ReadWrite => self.writable.try_clone(),
        }
    }
}

/// All chunks. They are kept until the node ends: a lease in a chunk of a dead process may be in any process, or in a
/// frame that nobody opened yet, and the node sees neither.
#[derive(Default)]
pub(crate) struct Chunks {
    chunks: HashMap<ChunkId, Chunk>,
    by_owner: HashMap<ProcessId, usize>,
}

/// Why a chunk was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChunkRefused {
    Again,
    TooMany,
}

impl Chunks {
    /// Keeps a new chunk.
    pub(crate) fn publish(
        &mut self,
        id: ChunkId,
        device: DeviceId,
        bytes: u64,
        [read_only, writable]: [OwnedFd; 2],
    ) -> Result<(), ChunkRefused> {
        let count = self.by_owner.entry(id.owner).or_default();
        match self.chunks.entry(id) {
            Entry::Occupied(_) => Err(ChunkRefused::Again),
            Entry::Vacant(_) if *count >= MAX_CHUNKS => Err(ChunkRefused::TooMany),
            Entry::Vacant(entry) => {
                entry.insert(Chunk { device, bytes, read_only, writable });
                *count += 1;
                Ok(())
            }
        }
    }

    pub(crate) fn get(&self, id: ChunkId) -> Option<&Chunk> {
        self.chunks.get(&id)
    }
}
