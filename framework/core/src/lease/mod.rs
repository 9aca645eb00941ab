//! Leases: the rights to use pieces of device memory, and the rules for when memory can be reused.
//!
//! **On drop**: the last lease of a process on an allocation leads to exactly one release (LEASE-2). In the
//! owner's process that is an entry in its own [`table`]; in another one it is one entry on the return ring
//! to the owner, room for which was reserved when the lease was granted. Neither waits for anything, and
//! neither can fail.
//!
//! **On a crash** of a holder its entries stay in the owner's lease table until the owner is told of the
//! death; they are kept by holder for that reason (LEASE-4). On a crash of the owner the chunk lives on in
//! its descriptor.
//!
//! The parts: [`table`] counts the leases. [`pool`] turns a lease table, an allocator and a device into a
//! bounded pool of memory. [`handle`] is the lease that a tensor holds. `external` leases memory that another
//! library keeps. [`writers`] lists the pieces of split allocations that have their writer in this process.

mod error;
#[cfg(feature = "dlpack")]
pub(crate) mod external;
pub mod handle;
pub mod pool;
mod sharing;
pub mod table;
mod users;
pub mod writers;

use serde::{Deserialize, Serialize};

pub use error::PoolError;
pub use handle::{Lease, Returns};
#[cfg(feature = "bindings")]
pub(crate) use pool::LetGo;
pub use pool::{GpuBudget, Pool, PoolOptions};
pub(crate) use sharing::is_last;
pub use writers::Writers;

use crate::ids::ChunkId;

/// Names one allocation for as long as it lives: an entry of its owner's lease table, and which use of that
/// entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseId {
    /// The chunk that the memory lies in; it names the owner too.
    pub chunk: ChunkId,
    /// Entry of the owner's lease table.
    pub entry: u32,
    /// How often that entry was used before. It tells the name of an earlier allocation from the current one.
    pub generation: u32,
}
