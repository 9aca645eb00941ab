//! Leases: who may use a piece of device memory, and when it can be used again.
//!
//! **On drop**: the last lease of a process on an allocation leads to exactly one release (LEASE-2). In the owner's
//! process that is a line in its own [`book`]; in another one it is one entry on the return ring to the owner, room
//! for which was reserved when the lease was granted. Neither waits for anything, and neither can fail.
//!
//! **On a crash** of a holder its lines stay in the owner's book until the owner is told of the death; they are kept
//! by holder for that reason (LEASE-4). On a crash of the owner the chunk lives on in its descriptor.
//!
//! The parts: [`book`] counts, [`pool`] turns the book, an allocator and a device into memory with an end to it,
//! [`handle`] is what a tensor holds, [`writers`] says which pieces of split allocations are written here.

pub mod book;
mod error;
pub mod handle;
pub mod pool;
pub mod writers;

use serde::{Deserialize, Serialize};

pub use error::PoolError;
pub use handle::{Lease, Returns};
pub use pool::{Pool, PoolOptions};
pub use writers::Writers;

use crate::ids::ChunkId;

/// Names one allocation for as long as it lives: a line of its owner's book, in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseId {
    /// The chunk that the memory lies in; it names the owner too.
    pub chunk: ChunkId,
    /// Line of the owner's book.
    pub line: u32,
    /// How often that line was used before; tells an old name from a new one.
    pub generation: u32,
}
