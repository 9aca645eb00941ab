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

/// A chunk as it is mapped in this process; unmapped when the last reference is dropped.
pub struct ChunkMapping {
    addr: u64,
    len: u64,
    access: Access,
    device: DeviceId,
    /// Unmaps it on drop. Stands before `afterwards`: fields are dropped in this order.
    _holder: Box<dyn Any + Send + Sync>,
    /// Dropped when it is unmapped.
    afterwards: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl ChunkMapping {
    /// A range that `holder` keeps mapped until it is dropped.
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

    /// Where it starts, as the device and, for host memory, this process address it.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Length in bytes, a multiple of the device's granularity.
    #[allow(clippy::len_without_is_empty, reason = "an empty chunk cannot be made")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// What this process may do with it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The device whose memory it is.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Address of `bytes` bytes at `offset`; `None` where they are not inside.
    pub fn range(&self, offset: u64, bytes: u64) -> Option<u64> {
        let end = offset.checked_add(bytes)?;
        (end <= self.len).then(|| self.addr + offset)
    }

    /// Drops `token` right after the chunk was unmapped, on whichever thread that happens. Only the first
    /// token is taken.
    pub(crate) fn drop_afterwards(&self, token: Box<dyn Any + Send + Sync>) {
        let _ = self.afterwards.set(token);
    }
}

impl fmt::Debug for ChunkMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkMapping({} {:#x}+{:#x} {:?})", self.device, self.addr, self.len, self.access)
    }
}

/// A chunk that was just made.
#[derive(Debug)]
pub struct NewChunk {
    /// Its mapping here, writable.
    pub mapping: Arc<ChunkMapping>,
    /// The descriptor for peers that read it. Where the device cannot make one that is limited to reading
    /// (CUDA), it is the same as the other, and the importer maps it read-only.
    pub read_only: OwnedFd,
    /// The descriptor for peers to which a tensor of it is handed over exclusively.
    pub read_write: OwnedFd,
}
