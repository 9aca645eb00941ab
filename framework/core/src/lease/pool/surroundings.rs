//! The calls that a pool makes to its process: the way to peers and to the node.

use std::os::fd::OwnedFd;

use crate::device::DeviceError;
use crate::ids::{ChunkId, DeviceId};

/// The transport, as a pool needs it.
pub trait Surroundings: Send + Sync + 'static {
    /// Handles everything that peers have posted so far, holds and releases, ring by ring. Notices that
    /// another thread has taken from a ring are in the lease table by the time this call has passed that
    /// ring.
    fn drain_returns(&self);

    /// Tells the node of a new chunk, with a descriptor to map it read-only and one to map it writable.
    ///
    /// # Errors
    /// The node is gone.
    fn publish_chunk(
        &self,
        chunk: ChunkId,
        device: DeviceId,
        bytes: u64,
        read_only: OwnedFd,
        read_write: OwnedFd,
    ) -> Result<(), DeviceError>;

    /// Tells the node that nobody holds anything in a chunk, and nobody will. Every process that has it
    /// mapped unmaps it.
    fn withdraw_chunk(&self, chunk: ChunkId);

    /// Notes that a caller waits for memory, so that peers announce when they give some back.
    fn wanted(&self);
}
