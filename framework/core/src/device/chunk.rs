//! Chunks: the unit in which device memory is shared between processes.

#![expect(
    unsafe_code,
    reason = "an unsafe constructor: whoever makes a mapping vouches for its address range"
)]

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use super::Access;
use crate::ids::DeviceId;

/// A chunk as it is mapped in this process. It is unmapped when the last reference is dropped.
pub struct ChunkMapping {
    addr: u64,
    len: u64,
    access: Access,
    device: DeviceId,
    /// Unmaps the chunk on drop. Stands before `afterwards`, because fields are dropped in this order.
    _holder: Box<dyn Any + Send + Sync>,
    /// Dropped when the chunk is unmapped.
    afterwards: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl ChunkMapping {
    /// Makes a mapping of a range that `holder` keeps mapped until it is dropped.
    ///
    /// # Safety
    /// `addr..addr + len` is memory of `device`, mapped with `access` in this process for as long as `holder`
    /// lives, and `holder` gives nobody a Rust reference into it.
    pub unsafe fn new(
        addr: u64,
        len: u64,
        access: Access,
        device: DeviceId,
        holder: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(ChunkMapping { addr, len, access, device, _holder: holder, afterwards: OnceLock::new() })
    }

    /// Returns where the chunk starts, as the device addresses it and, for host memory, this process does.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the length in bytes, a multiple of the device's granularity.
    #[allow(clippy::len_without_is_empty, reason = "an empty chunk cannot be made")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether this process may only read the chunk, or also write it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the device of the memory.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Returns the address of `bytes` bytes at `offset`, or `None` if they are not inside.
    pub fn range(&self, offset: u64, bytes: u64) -> Option<u64> {
        let end = offset.checked_add(bytes)?;
        (end <= self.len).then(|| self.addr + offset)
    }

    /// Drops `token` right after the chunk was unmapped, on the thread that unmaps it. Only the first token
    /// is taken.
    pub(crate) fn drop_afterwards(&self, token: Box<dyn Any + Send + Sync>) {
        let _ = self.afterwards.set(token);
    }
}

impl fmt::Debug for ChunkMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkMapping({} {:#x}+{:#x} {:?})", self.device, self.addr, self.len, self.access)
    }
}

/// A newly made chunk.
#[derive(Debug)]
pub struct NewChunk {
    /// The chunk's mapping in this process, writable.
    pub mapping: Arc<ChunkMapping>,
    /// The descriptor for peers that read the chunk. If the device cannot make one that is limited to reading
    /// (CUDA), it is the same as `read_write`, and the importer maps it read-only.
    pub read_only: OwnedFd,
    /// The descriptor for peers to which a tensor of the chunk is handed over exclusively.
    pub read_write: OwnedFd,
}
