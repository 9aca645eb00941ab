//! Leases on parts of an allocation that another library of this process has cut up. Each part has an entry
//! of its own in the lease table.
//!
//! The library would reuse a part as soon as its own handle on it is dropped. So the part's block keeps the
//! library's handle. It is dropped at the point where another block's room goes back to the allocator: when
//! nobody has a lease any more and all uses have passed (LEASE-1, CLOCK-2). A part never goes back early,
//! with a wait on the stream, because the library knows no such waits.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{Block, Lease, LeaseId, Pool, Uses, name};
use crate::ids::ChunkId;
use crate::observe::trace::What;

impl Pool {
    /// Makes a lease on `bytes` bytes from `start` on in the allocation of `whole`. The caller has checked
    /// that they lie in it. `keep` keeps the library from reusing the part, and `closed` is set when nobody
    /// has a lease on it any more.
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
