//! What a pool asks of the process that it is in: the way to peers and to the node.

use std::os::fd::OwnedFd;

use crate::device::DeviceError;
use crate::ids::{ChunkId, DeviceId};

/// The transport, as a pool needs it.
pub trait Surroundings: Send + Sync + 'static {
    /// Handles everything that peers have posted so far, holds and releases, ring by ring. What another
    /// thread has taken from a ring is in the lease table when this has passed that ring.
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

    /// Tells the node that nobody holds anything in a chunk, and nobody will: who has it mapped lets go of
    /// it.
    fn withdraw_chunk(&self, chunk: ChunkId);

    /// Somebody waits for memory: peers are to say when they give some back.
    fn wanted(&self);
}
