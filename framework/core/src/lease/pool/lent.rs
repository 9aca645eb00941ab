//! Parts of an allocation that another library of this process has cut up, each with an entry of its own in
//! the lease table.
//!
//! The library would use a part anew as soon as it lets go of it. So whoever lends one keeps the library's
//! handle in the part's block: it goes where a block's room goes back to the allocator, when nobody has a
//! lease any more and all uses have passed (LEASE-1, CLOCK-2). It is never taken back early, behind a wait:
//! the library knows no such waits.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{Block, Lease, LeaseId, Pool, Uses, name};
use crate::ids::ChunkId;
use crate::observe::trace::What;

impl Pool {
    /// A lease on `bytes` bytes from `start` on of the allocation that `whole` stands for. The caller has
    /// looked that they lie in it, and `keep` keeps it. `closed` is set when nobody has a lease on it any
    /// more.
    pub(crate) fn lend(
        self: Arc<Self>,
        whole: &Lease,
        start: u64,
        bytes: u64,
        keep: Box<dyn Any + Send>,
        closed: Arc<AtomicBool>,
    ) -> Lease {
        let bytes = bytes.max(1);
        let chunk: ChunkId = whole.id().chunk;
        let offset = whole.offset() + start;
        let block = Block::lent(chunk.index - self.chunk_base, offset, bytes, keep, closed);
        let (entry, generation) = self.state.lock().table.open(block, Uses::new());
        let id = LeaseId { chunk, entry, generation };
        self.domain.tracer().note(|| What::LeaseOpened { lease: name(id), bytes });
        Lease::own(Arc::clone(&self), id, Arc::clone(whole.mapping()), offset, bytes, false)
    }
}
