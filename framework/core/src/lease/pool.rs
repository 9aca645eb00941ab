//! A process's own memory on one device: chunks, cut into allocations, each with an entry in the
//! [`LeaseTable`].
//!
//! Memory comes back in two steps. An entry that nobody holds any more first becomes a *candidate*: the pool
//! drains once more everything that its peers have posted, and closes the entry only if it has not changed in
//! the meantime (LEASE-3). A closed block whose last uses have not all passed waits in quarantine. The pool
//! reuses it early only if there is no other memory. Then the stream of the new user waits for those uses
//! (CLOCK-2), so the host never waits.
//!
//! The pool grows by whole chunks up to its budget in bytes. Up to a quarter of the budget it prefers growing
//! to memory whose last use is still running, so that a producer does not run in step with its consumer. Past
//! that it prefers the wait on the stream. At the budget an allocation fails with a report of the holders
//! (MBX-2).
//!
//! An allocation checks a few of the blocks in quarantine (`sweep`), and the next allocation checks the next
//! few: a process that is far ahead of its GPU has hundreds there. An allocation checks all of them only if
//! that finds no memory.
//!
//! A chunk that stays empty for a while gives its memory back (`idle`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::LeaseId;
use super::error::PoolError;
use super::handle::Lease;
use super::table::{Emptied, GivenBack, LeaseTable, LeaseTableError, Measured, Remaining, Uses};
use serde::{Deserialize, Serialize};

use super::writers::Writers;
use crate::clock::{ClockDomain, ClockError, Ticket};
use crate::device::pool::{Block, SubAllocator};
use crate::device::{Backend, ChunkMapping, DeviceError};
use crate::fault;
use crate::ids::{ChunkId, DeviceId, ProcessId};
use crate::limits::{CHUNK_BYTES, DEFAULT_HOST_BUDGET};
use crate::observe::trace::{LeaseName, What};
use crate::os::lock::{Condvar, Mutex};

mod forwards;
mod idle;
#[cfg(feature = "bindings")]
mod lending;
#[cfg(feature = "bindings")]
mod lent;
mod report;
mod sole;
mod surroundings;
mod waiting;
pub(crate) use idle::NextIdleCheck;
#[cfg(feature = "bindings")]
pub(crate) use lending::LetGo;
pub use report::PoolStats;
pub use surroundings::Surroundings;

/// Blocks in use that one allocation or return checks when it does not need them.
const LOOKS: usize = 8;

/// The share of a GPU that its pool may take, for tensors that are sent, received or kept for others. It does
/// not count memory that a library allocates for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuBudget {
    /// Bytes.
    Bytes(u64),
    /// Thousandths of the GPU's memory.
    Thousandths(u16),
}

impl Default for GpuBudget {
    /// Returns a quarter of the GPU's memory.
    fn default() -> Self {
        GpuBudget::Thousandths(250)
    }
}

impl GpuBudget {
    /// Makes a budget of a share of the GPU's memory, from 0 to 1.
    pub(crate) fn share(share: f64) -> Self {
        GpuBudget::Thousandths((share.clamp(0.0, 1.0) * 1000.0).round() as u16)
    }

    /// Returns its bytes on a GPU that has `total`.
    pub(crate) fn of(self, total: u64) -> u64 {
        match self {
            GpuBudget::Bytes(bytes) => bytes,
            GpuBudget::Thousandths(share) => (total / 1000).saturating_mul(u64::from(share)).max(CHUNK_BYTES),
        }
    }
}

/// How large a pool may get.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// Bytes that its chunks may take together.
    pub budget: u64,
    /// Bytes of its first chunk; later ones grow.
    pub first_chunk: u64,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions { budget: DEFAULT_HOST_BUDGET, first_chunk: CHUNK_BYTES }
    }
}

/// One device's memory in this process.
pub struct Pool {
    process: ProcessId,
    backend: Arc<dyn Backend>,
    domain: Arc<ClockDomain>,
    options: PoolOptions,
    surroundings: OnceLock<Weak<dyn Surroundings>>,
    /// One flag for all pools of the process: see [`tell_emptied`](Self::tell_emptied).
    emptied: OnceLock<Arc<AtomicBool>>,
    chunk_base: u32,
    writers: Writers,
    state: Mutex<PoolState>,
    /// Signalled when no thread is closing entries any more.
    closing_done: Condvar,
}

struct PoolState {
    allocator: SubAllocator,
    table: LeaseTable<Block>,
    /// By index.
    chunks: BTreeMap<u32, Arc<ChunkMapping>>,
    /// Index of the next chunk. No index is used twice: a peer may still have a withdrawn chunk of that name
    /// mapped.
    next_chunk: u32,
    chunk_bytes: u64,
    /// Entries that reached zero and wait for the second check in `close_emptied`.
    candidates: Vec<Emptied>,
    /// Closed blocks whose last uses had not passed when they were closed.
    quarantine: VecDeque<(Block, Uses)>,
    /// Ranges given back to the allocator before their last uses had passed.
    pending: Vec<Pending>,
    waiters: Vec<Waker>,
    /// How many allocations have come back. A waiter for memory compares it to see whether it missed some.
    returned: u64,
    /// Threads that have taken candidates and have not closed them yet.
    closing: usize,
    #[cfg(feature = "bindings")]
    lending: lending::Lending,
}

impl Measured for Block {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

struct Pending {
    chunk: u32,
    from: u64,
    to: u64,
    uses: Uses,
}

/// Fresh memory: a sole lease on it, and the uses that the first user's stream has to wait for.
#[derive(Debug)]
pub struct Allocation {
    /// The lease.
    pub lease: Lease,
    /// Last uses of the memory by its earlier holders.
    pub after: Uses,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} of {}: {:?})", self.backend.name(), self.process, self.stats())
    }
}

impl Pool {
    /// Makes an empty pool of the process whose clocks these are. It takes no memory before the first
    /// allocation. `chunk_base` is the index of its first chunk, so that the pools of one process number
    /// theirs apart.
    pub fn new(
        backend: Arc<dyn Backend>,
        domain: Arc<ClockDomain>,
        options: PoolOptions,
        chunk_base: u32,
    ) -> Arc<Self> {
        let first = options.first_chunk.min(options.budget).max(backend.granularity());
        let allocator = SubAllocator::new(first, backend.granularity(), options.budget);
        Arc::new(Pool {
            process: domain.own(),
            backend,
            domain,
            options,
            surroundings: OnceLock::new(),
            emptied: OnceLock::new(),
            chunk_base,
            writers: Writers::default(),
            state: Mutex::new(PoolState {
                allocator,
                table: LeaseTable::default(),
                chunks: BTreeMap::new(),
                next_chunk: 0,
                chunk_bytes: 0,
                candidates: Vec::new(),
                quarantine: VecDeque::new(),
                pending: Vec::new(),
                waiters: Vec::new(),
                returned: 0,
                closing: 0,
                #[cfg(feature = "bindings")]
                lending: lending::Lending::default(),
            }),
            closing_done: Condvar::new(),
        })
    }

    /// Connects the pool to its transport. Before that its memory cannot be sent.
    pub(crate) fn surround(&self, surroundings: Weak<dyn Surroundings>) {
        // A second call would be a second transport for one pool; the first stays.
        let _ = self.surroundings.set(surroundings);
    }

    /// Registers a flag that the pool sets whenever a release or a settled hold makes a call of
    /// [`close_emptied`](Self::close_emptied) due. The caller that does this for all pools then needs none of
    /// their locks to find out.
    pub(crate) fn tell_emptied(&self, emptied: Arc<AtomicBool>) {
        let _ = self.emptied.set(emptied);
    }

    /// Adds an entry to be checked a second time.
    fn add_candidate(&self, state: &mut PoolState, emptied: Emptied) {
        state.candidates.push(emptied);
        // After the push: a thread that sees the flag finds the candidate, unless another thread has already
        // taken it.
        if let Some(told) = self.emptied.get() {
            told.store(true, Ordering::Release);
        }
    }

    /// Returns its device.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub(super) fn domain(&self) -> &Arc<ClockDomain> {
        &self.domain
    }

    /// Returns the pieces of its split allocations that have a writer in this process.
    pub(crate) fn writers(&self) -> &Writers {
        &self.writers
    }

    /// Returns the id of its device.
    pub fn device_id(&self) -> DeviceId {
        self.backend.id()
    }

    /// Returns whether `chunk` is one of its own.
    pub(crate) fn has_chunk(&self, chunk: ChunkId) -> bool {
        chunk.owner == self.process
            && chunk
                .index
                .checked_sub(self.chunk_base)
                .is_some_and(|index| self.state.lock().chunks.contains_key(&index))
    }

    /// Allocates `bytes` bytes. Never waits.
    ///
    /// # Errors
    /// See [`PoolError`]; nothing was taken.
    pub fn allocate(self: &Arc<Self>, bytes: u64) -> Result<Allocation, PoolError> {
        if self.domain.is_inherited() {
            // The parent may have given the same memory out.
            return Err(DeviceError::from(ClockError::Forked).into());
        }
        // The steps go from cheap to expensive. First free memory, after a check of a few blocks in
        // quarantine.
        if let Some(allocation) = self.try_allocate(bytes, LOOKS) {
            return Ok(allocation);
        }
        // Then memory that peers have given back by notices that no thread has read yet, and all of the
        // quarantine.
        self.reclaim();
        if let Some(allocation) = self.try_allocate(bytes, usize::MAX) {
            return Ok(allocation);
        }
        // Then a new chunk, up to a quarter of the budget; past that, memory whose last use is still running;
        // at last the rest of the budget. The module's documentation gives the reason for this order.
        let mut state = self.state.lock();
        let waits = !state.quarantine.is_empty();
        let grown = match self.grow_below(&mut state, bytes, self.options.budget / 4) {
            // If the device has no room either, memory that the stream must wait for is better than none.
            Err(PoolError::NoRoom { .. }) if waits => false,
            grown => grown?,
        };
        if !grown {
            // Blocks whose uses have not passed: the new user's stream waits for them (CLOCK-2).
            if waits {
                state.open_quarantine();
                if let Some(allocation) = self.cut(&mut state, bytes) {
                    return Ok(allocation);
                }
            }
            // Then a chunk within the budget.
            self.grow_below(&mut state, bytes, self.options.budget)?;
        }
        match self.cut(&mut state, bytes) {
            Some(allocation) => Ok(allocation),
            None if bytes > self.options.budget => Err(PoolError::TooLarge {
                device: self.backend.name(),
                asked: bytes,
                budget: self.options.budget,
            }),
            None => {
                let stats = state.stats();
                Err(PoolError::Full {
                    device: self.backend.name(),
                    asked: bytes,
                    in_use: stats.held_bytes + stats.quarantined_bytes,
                    budget: self.options.budget,
                    chunks: state.chunks.len(),
                    holders: state.holders(self.process),
                })
            }
        }
    }

    fn try_allocate(self: &Arc<Self>, bytes: u64, looks: usize) -> Option<Allocation> {
        let mut state = self.state.lock();
        state.sweep(&self.domain, looks);
        self.cut(&mut state, bytes)
    }

    fn cut(self: &Arc<Self>, state: &mut PoolState, bytes: u64) -> Option<Allocation> {
        // A tensor of zero bytes takes a unit too, so that it has a place in a chunk and can be sent like any
        // other. Its lease carries that size, because a lease that comes back to the owner has to agree with
        // the block in the lease table.
        let bytes = bytes.max(1);
        let block = state.allocator.allocate(bytes)?;
        fault::point("pool.cut");
        let after = state.pending_uses(&self.domain, &block);
        let mapping = Arc::clone(state.chunks.get(&block.chunk)?);
        let (chunk, offset) =
            (ChunkId { owner: self.process, index: self.chunk_base + block.chunk }, block.offset);
        let (entry, generation) = state.table.open(block, after.clone());
        let lease =
            Lease::own(Arc::clone(self), LeaseId { chunk, entry, generation }, mapping, offset, bytes, false);
        self.domain.tracer().note(|| What::LeaseOpened { lease: name(lease.id()), bytes });
        Some(Allocation { lease, after })
    }

    /// Grows by a chunk for `bytes` if there is room for one below `limit`, and returns whether it did. The
    /// chunk itself may go past `limit`, up to the budget.
    fn grow_below(&self, state: &mut PoolState, bytes: u64, limit: u64) -> Result<bool, PoolError> {
        let next = |limit: u64| state.allocator.next_chunk(bytes, limit.saturating_sub(state.chunk_bytes));
        match next(limit).and_then(|_| next(self.options.budget)) {
            Some(size) => self.grow(state, bytes, size).map(|()| true),
            None => Ok(false),
        }
    }

    fn grow(&self, state: &mut PoolState, bytes: u64, most: u64) -> Result<(), PoolError> {
        let mut size = most;
        let chunk = loop {
            match self.backend.create_chunk(size) {
                // If the device has no room for the preferred size, it may have room for a smaller chunk that
                // suffices.
                Err(DeviceError::OutOfMemory { .. }) if size / 2 >= bytes.max(self.backend.granularity()) => {
                    size = (size / 2).next_multiple_of(self.backend.granularity());
                }
                made => break made,
            }
        };
        let chunk = chunk.map_err(|source| match source {
            DeviceError::OutOfMemory { .. } => PoolError::NoRoom {
                device: self.backend.name(),
                asked: bytes,
                chunk: size,
                in_use: state.chunk_bytes,
                budget: self.options.budget,
                holders: state.holders(self.process),
                source: Box::new(source),
            },
            other => other.into(),
        })?;
        fault::point("pool.chunk.made");
        let index = state.next_chunk;
        if let Some(surroundings) = self.surroundings.get().and_then(Weak::upgrade) {
            let id = ChunkId { owner: self.process, index: self.chunk_base + index };
            surroundings.publish_chunk(id, self.device_id(), size, chunk.read_only, chunk.read_write)?;
        }
        fault::point("pool.chunk.published");
        state.chunks.insert(index, chunk.mapping);
        state.next_chunk += 1;
        state.chunk_bytes += size;
        state.allocator.add_chunk(index, size);
        Ok(())
    }

    /// Gives `to` a lease; see [`LeaseTable::grant`].
    ///
    /// # Errors
    /// The entry is not in the lease table.
    pub(crate) fn grant(&self, id: LeaseId, to: ProcessId) -> Result<bool, LeaseTableError> {
        let shared = self.state.lock().table.grant(id.entry, id.generation, to)?;
        self.domain.tracer().note(|| What::LeaseGranted { lease: name(id), to });
        Ok(shared)
    }

    /// Takes a lease back from `from`. Returns which kind it was, and whether all holds are settled; if not,
    /// a [pass](Self::begin_pass) is due. The caller calls [`close_emptied`](Self::close_emptied) after it
    /// has handled all notices that it found.
    ///
    /// # Errors
    /// The lease table has no such lease: nothing changed.
    pub(crate) fn release(
        &self,
        id: LeaseId,
        from: ProcessId,
        uses: &[Ticket],
    ) -> Result<(GivenBack, bool), LeaseTableError> {
        let mut state = self.state.lock();
        let (left, given) = state.table.give_back(id.entry, id.generation, from, uses)?;
        // Not closed yet: the memory may have been forwarded, and the hold that says so may be on another
        // ring (LEASE-3). `close_emptied` checks a second time, after a drain of all rings.
        if let Remaining::Empty(emptied) = left {
            self.add_candidate(&mut state, emptied);
        }
        self.domain.tracer().note(|| What::LeaseReturned { lease: name(id), from });
        Ok((given, state.table.is_settled()))
    }

    /// Marks a lease of this process as one on parts, or on the whole again.
    pub(super) fn set_in_parts(&self, id: LeaseId, in_parts: bool) {
        if !in_parts {
            self.take_in_holds(id);
        }
        // The lease is a value of this process, so its entry is open.
        if let Err(error) = self.state.lock().table.set_in_parts(id.entry, id.generation, in_parts) {
            tracing::error!(%error, "an own lease is not in the lease table");
        }
    }

    /// Drops all leases of a process that ended. The caller has drained everything that it had posted
    /// (LEASE-4).
    pub(crate) fn evict(&self, process: ProcessId) {
        {
            let mut state = self.state.lock();
            let empty = state.table.evict(process);
            state.candidates.extend(empty);
        }
        self.close_emptied();
    }

    /// Makes a lease for this process on its own memory, which `from` sent to it.
    ///
    /// # Errors
    /// The entry is not in the lease table, or `from` holds no lease on it.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        id: LeaseId,
        from: ProcessId,
        sole: bool,
        in_parts: bool,
    ) -> Result<Lease, LeaseTableError> {
        let mut state = self.state.lock();
        let unknown = LeaseTableError::Unknown { entry: id.entry, generation: id.generation };
        let block = state.table.block(id.entry, id.generation).ok_or(unknown)?;
        if self.chunk_base + block.chunk != id.chunk.index {
            return Err(unknown);
        }
        let (offset, bytes) = (block.offset, block.bytes);
        let mapping = state.chunks.get(&block.chunk).map(Arc::clone).ok_or(unknown)?;
        state.table.adopt_as(id.entry, id.generation, from, in_parts)?;
        let lease = Lease::own(Arc::clone(self), id, mapping, offset, bytes, sole);
        if in_parts {
            lease.comes_in_parts();
        }
        Ok(lease)
    }

    pub(super) fn release_local(&self, id: LeaseId, uses: &[Ticket], in_parts: bool) {
        let left = {
            let mut state = self.state.lock();
            if in_parts {
                // If the entry is unknown, the next line reports it too.
                let _ = state.table.drop_part(id.entry, id.generation);
            }
            let left = state.table.release_local(id.entry, id.generation, uses);
            if let Ok(Remaining::Empty(emptied)) = left {
                state.candidates.push(emptied);
            }
            left
        };
        match left {
            Ok(Remaining::Empty(_)) => self.close_emptied(),
            Ok(Remaining::Held) => {}
            Err(error) => tracing::error!(%error, "a local lease was not in the lease table"),
        }
    }

    /// Gives every candidate its second check: drains everything that peers have posted, then closes the
    /// entries that nobody holds.
    ///
    /// An entry goes back in three steps. It is *emptied* when its last lease in the lease table was given
    /// back, and becomes a candidate. It is *closed* here, if it is still empty after a drain. Its block
    /// stays in *quarantine* until its last uses have passed on their clocks, or until a new user needs it
    /// earlier and waits for them (CLOCK-2).
    pub(crate) fn close_emptied(&self) {
        // In a loop: the drain may empty further entries, and no other thread may come to check those.
        loop {
            // The candidates are taken under the lock and checked without it: the drain takes the locks of
            // all links, and then this one for each notice. Another thread that closes entries at the same
            // time takes the candidates that have come since, and drains by itself.
            let candidates = {
                let mut state = self.state.lock();
                if state.candidates.is_empty() {
                    return;
                }
                // They are taken before the drain: candidates that the drain adds get a drain of their own,
                // in the next turn of the loop.
                state.closing += 1;
                std::mem::take(&mut state.candidates)
            };
            fault::point("pool.close_emptied");
            // LEASE-3: this drain finds every hold that a receiver posted before its forwarder released the
            // lease.
            self.drain();
            let mut state = self.state.lock();
            let mut closed = 0;
            for emptied in candidates {
                // An entry that was emptied again since, by this drain or by another thread's, stays open:
                // the hold behind that release may be on a ring that this drain had already passed. The
                // thread that takes that new candidate drains after it.
                if let Some((block, uses)) = state.table.close(emptied) {
                    let Emptied { entry, generation, .. } = emptied;
                    let lease = LeaseName { chunk: self.chunk_base + block.chunk, entry, generation };
                    self.domain.tracer().note(|| What::LeaseClosed { lease });
                    #[cfg(feature = "bindings")]
                    state.lending.closed(&block);
                    state.quarantine.push_back((block, uses));
                    closed += 1;
                }
            }
            // Blocks whose uses have passed by now need not wait in quarantine for the next allocation.
            state.sweep(&self.domain, LOOKS);
            // Only after the blocks are in quarantine: `close_emptied_with_all` waits for this.
            state.closing -= 1;
            if state.closing == 0 {
                self.closing_done.notify_all();
            }
            let waiters = state.came_back(closed);
            // Wakers are the user's code, so they are not called under the lock.
            drop(state);
            waiters.into_iter().for_each(Waker::wake);
        }
    }

    /// Calls [`close_emptied`](Self::close_emptied), and waits at most for `limit` until other threads have
    /// closed theirs. Then everything that was given back before the call is closed. Code that
    /// [`close_emptied`](Self::close_emptied) calls must not call this.
    pub(crate) fn close_emptied_with_all(&self, limit: Duration) {
        self.close_emptied();
        let until = Instant::now() + limit;
        let mut state = self.state.lock();
        while state.closing > 0 && !self.closing_done.wait_until(&mut state, until).timed_out() {}
    }

    fn reclaim(&self) {
        self.drain();
        self.close_emptied();
    }

    fn drain(&self) {
        if let Some(surroundings) = self.surroundings.get().and_then(Weak::upgrade) {
            surroundings.drain_returns();
        }
    }

    pub(super) fn uses(&self, id: LeaseId) -> Uses {
        self.state.lock().table.uses(id.entry, id.generation)
    }

    /// Returns the holders of an allocation: the number of local leases, and those of others by process.
    /// Returns `None` if it is not in the lease table.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn shares(&self, id: LeaseId) -> Option<(u32, Vec<(ProcessId, u32)>)> {
        self.state.lock().table.shares(id.entry, id.generation)
    }
}

impl PoolState {
    /// Notes that this many allocations have come back, or other memory. Returns the wakers to call.
    fn came_back(&mut self, allocations: u64) -> Vec<Waker> {
        self.returned += allocations.max(1);
        #[cfg(feature = "bindings")]
        self.lending.came_back();
        std::mem::take(&mut self.waiters)
    }

    /// Gives blocks whose last uses have passed back to the allocator, until it has found `most` blocks whose
    /// uses have not. The next call begins after those. A process whose stream is far behind has many such
    /// blocks, and checks only a few for each allocation.
    fn sweep(&mut self, domain: &ClockDomain, most: usize) {
        let mut kept = 0;
        for _ in 0..self.quarantine.len() {
            let Some((block, mut uses)) = self.quarantine.pop_front() else { return };
            uses.retain(|ticket| !has_passed(domain, ticket));
            if uses.is_empty() {
                self.allocator.free(block);
                continue;
            }
            self.quarantine.push_back((block, uses));
            kept += 1;
            if kept >= most {
                return;
            }
        }
    }

    /// Gives all quarantined blocks back to the allocator, and remembers the uses that their ranges wait for.
    fn open_quarantine(&mut self) {
        let lent;
        (lent, self.quarantine) =
            std::mem::take(&mut self.quarantine).into_iter().partition(|(block, _)| !block.is_lent());
        for (block, uses) in lent {
            // Recorded by range and not by block: the allocator joins free blocks, and cuts others out of
            // them.
            let (from, to) = (block.offset, block.offset + block.bytes);
            self.pending.push(Pending { chunk: block.chunk, from, to, uses });
            self.allocator.free(block);
        }
    }

    fn pending_uses(&mut self, domain: &ClockDomain, block: &Block) -> Uses {
        self.pending.retain_mut(|pending| {
            pending.uses.retain(|ticket| !has_passed(domain, ticket));
            !pending.uses.is_empty()
        });
        let (from, to) = (block.offset, block.offset + block.bytes);
        let mut uses = Uses::new();
        for pending in &self.pending {
            if pending.chunk == block.chunk && pending.from < to && from < pending.to {
                uses.extend(pending.uses.iter().copied());
            }
        }
        uses
    }
}

fn name(id: LeaseId) -> LeaseName {
    LeaseName { chunk: id.chunk.index, entry: id.entry, generation: id.generation }
}

/// Returns whether a use is over. A use that a death cut off is over too (DEATH-1).
fn has_passed(domain: &ClockDomain, ticket: &Ticket) -> bool {
    // If this process no longer knows the clock's process, the clock was released when that process ended.
    domain.passed(ticket).unwrap_or(true)
}

#[cfg(test)]
pub(crate) mod tests;
