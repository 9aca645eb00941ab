//! Memory: the pools that this process lends from, and the chunks of others that it has mapped.
//!
//! Its users are `outgoing` (large bodies), `incoming` (mappings, leases that come back), `returns` (notices
//! about leases), the end of a process (evictions), and every allocation.
//!
//! **Invariants.** There is one pool per device, and it is never dropped while the process lives, so a lease
//! always finds its lease table (LEASE-1). Each pool numbers its chunks from a range of its own.
//!
//! **Locks.** `pools`, then a pool's own. [`Chunks`] has its own, see there; none of them is taken inside
//! `pools`, nor `pools` inside them.
//!
//! **On a crash** of a process its leases are evicted from every pool, once everything that it had posted was
//! read (LEASE-4). **On cancellation** nothing happens: only [`Chunks::map_now`] waits here, with a deadline.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::RwLock;
use smallvec::SmallVec;

use super::chunks::Chunks;
use super::{TransmitError, Transport};
use crate::clock::ClockDomain;
use crate::device::{Backend, Device, DeviceError};
use crate::ids::{DeviceId, ProcessId};
use crate::lease::pool::NextIdleCheck;
use crate::lease::{GpuBudget, Lease, LeaseId, Pool, PoolOptions, Writers};
use crate::limits::POOL_CHUNK_NAMES;
use crate::tensor::{DType, DeviceStream, TensorError, TensorMut};

/// See the module.
pub(crate) struct Memory {
    domain: Arc<ClockDomain>,
    /// The surroundings of the pools.
    transport: Weak<Transport>,
    /// One per device in use.
    pools: RwLock<Vec<Arc<Pool>>>,
    /// Chunks of other processes.
    pub(crate) chunks: Chunks,
    /// The writers of other processes' split memory.
    writers: Writers,
    /// Set when entries that were given back or settled are due to be closed, see [`Pool::tell_emptied`].
    emptied: Arc<AtomicBool>,
    /// A hold is unproven, or forwards of a process that has released its leases are left.
    unsettled: AtomicBool,
    gpu_budget: OnceLock<GpuBudget>,
    /// The share of each pool's budget that may be lent, if there is a bound.
    #[cfg(feature = "bindings")]
    lent_share: OnceLock<u64>,
    /// The stream on which large bodies are written.
    scratch: OnceLock<DeviceStream>,
    /// One more than the host pool's count of returns when it last had no memory for a body.
    refused_body: AtomicU64,
}

impl Memory {
    pub(super) fn new(domain: Arc<ClockDomain>, transport: Weak<Transport>) -> Self {
        Memory {
            domain,
            transport,
            pools: RwLock::default(),
            chunks: Chunks::new(),
            writers: Writers::default(),
            emptied: Arc::default(),
            unsettled: AtomicBool::new(false),
            gpu_budget: OnceLock::new(),
            #[cfg(feature = "bindings")]
            lent_share: OnceLock::new(),
            scratch: OnceLock::new(),
            refused_body: AtomicU64::new(0),
        }
    }

    /// Returns the bytes that the pool of a GPU may take, unless it was opened with other options.
    fn device_budget(&self, backend: &Arc<dyn Backend>) -> u64 {
        self.gpu_budget.get().copied().unwrap_or_default().of(backend.total_bytes())
    }

    /// Sets how much the pool of each GPU may take. Only the first call counts.
    pub(crate) fn set_gpu_budget(&self, budget: GpuBudget) {
        let _ = self.gpu_budget.set(budget);
    }

    /// Returns the process's memory on `device`, made on first use.
    pub(super) fn pool(&self, device: &Arc<dyn Backend>, options: PoolOptions) -> Arc<Pool> {
        if let Some(pool) = self.pool_on(device.id()) {
            return pool;
        }
        let mut pools = self.pools.write();
        // Another thread may have made it between the two locks.
        if let Some(pool) = pools.iter().find(|pool| pool.device_id() == device.id()) {
            return Arc::clone(pool);
        }
        // Each pool numbers its chunks from a range of its own; a process has a handful of devices.
        let base = pools.len() as u32 * POOL_CHUNK_NAMES;
        let pool = Pool::new(Arc::clone(device), Arc::clone(&self.domain), options, base);
        pool.surround(self.transport.clone());
        pool.tell_emptied(Arc::clone(&self.emptied));
        #[cfg(feature = "bindings")]
        self.bound(&pool);
        pools.push(Arc::clone(&pool));
        pool
    }

    /// Returns the process's memory on a device. On first use it opens the device and makes the pool.
    ///
    /// # Errors
    /// This process cannot use the device.
    pub(super) fn pool_for(&self, device: DeviceId) -> Result<Arc<Pool>, DeviceError> {
        if let Some(pool) = self.pool_on(device) {
            return Ok(pool);
        }
        let backend = Device::by_id(device)?.backend()?;
        let options = PoolOptions { budget: self.device_budget(&backend), ..PoolOptions::default() };
        Ok(self.pool(&backend, options))
    }

    /// Makes messages that would bring a pool past this share of its budget wait from now on. Only the first
    /// call counts.
    #[cfg(feature = "bindings")]
    pub(super) fn bound_lending(&self, share: u64) {
        // Under the lock: a pool made at the same time gets its bound either here or in `pool`.
        let pools = self.pools.write();
        let _ = self.lent_share.set(share.max(1));
        pools.iter().for_each(|pool| self.bound(pool));
    }

    #[cfg(feature = "bindings")]
    fn bound(&self, pool: &Pool) {
        if let Some(share) = self.lent_share.get() {
            pool.bound_lending(pool.budget() / share);
        }
    }

    /// Returns whether pools have bounds.
    #[cfg(feature = "bindings")]
    pub(super) fn bounds_lending(&self) -> bool {
        self.lent_share.get().is_some()
    }

    /// Returns the process's memory on a device, if it has used any.
    pub(super) fn pool_on(&self, device: DeviceId) -> Option<Arc<Pool>> {
        self.pools.read().iter().find(|pool| pool.device_id() == device).map(Arc::clone)
    }

    /// Returns the devices whose memory this process has used.
    pub(crate) fn devices_in_use(&self) -> Vec<DeviceId> {
        self.pools.read().iter().map(|pool| pool.device_id()).collect()
    }

    /// Returns the pools, to go through without the lock.
    pub(crate) fn pools(&self) -> SmallVec<[Arc<Pool>; 4]> {
        self.pools.read().iter().map(Arc::clone).collect()
    }

    /// Returns the pool with the chunk of a lease that a peer has named.
    pub(super) fn pool_of(&self, id: LeaseId) -> Result<Arc<Pool>, String> {
        let pool = self.pools.read().iter().find(|pool| pool.has_chunk(id.chunk)).map(Arc::clone);
        pool.ok_or_else(|| format!("chunk {} is not in any pool of this process", id.chunk.index))
    }

    /// Closes entries that were given back. The reader calls it when it has found something, and so does code
    /// that needs an up-to-date lease table.
    pub(super) fn close_emptied(&self) {
        // The load first, because after most messages there is nothing.
        if self.emptied.load(Ordering::Relaxed) && self.emptied.swap(false, Ordering::AcqRel) {
            self.pools().iter().for_each(|pool| pool.close_emptied());
        }
    }

    /// Does the same as [`close_emptied`](Self::close_emptied), and waits at most for `patience` for entries
    /// that another thread is about to close.
    pub(super) fn close_emptied_with_all(&self, patience: Duration) {
        self.pools().iter().for_each(|pool| pool.close_emptied_with_all(patience));
    }

    /// Returns whether any task waits for memory that peers may give back.
    pub(super) fn has_waiters(&self) -> bool {
        self.pools.read().iter().any(|pool| pool.has_waiters())
    }

    /// Notes that a notice has left something to settle. Set before its ring's lock is released.
    pub(super) fn note_unsettled(&self) {
        self.unsettled.store(true, Ordering::Release);
    }

    /// Takes the mark, and returns whether there is anything to settle; if so, the caller settles it.
    pub(super) fn take_unsettled(&self) -> bool {
        // The load first, because nearly always there is nothing.
        self.unsettled.load(Ordering::Relaxed) && self.unsettled.swap(false, Ordering::AcqRel)
    }

    /// Gives back the memory of chunks that were empty for a while. Returns when another look is worthwhile.
    pub(super) fn check_idle(&self) -> NextIdleCheck {
        self.pools().iter().map(|pool| pool.check_idle()).max().unwrap_or(NextIdleCheck::Never)
    }

    /// Drops the leases of a process that has ended (LEASE-4).
    pub(super) fn evict(&self, process: ProcessId) {
        self.pools().iter().for_each(|pool| pool.evict(process));
    }

    /// Returns the pieces of other processes' split allocations that have a writer in this one.
    pub(super) fn writers(&self) -> &Writers {
        &self.writers
    }

    /// Allocates host memory for a large body, which is sent as a lease.
    pub(super) fn body_memory(&self, bytes: usize) -> Result<TensorMut, TransmitError> {
        let Some(pool) = self.pool_on(DeviceId::HOST) else {
            return Err(TransmitError::NoSuchActor);
        };
        let stream = match self.scratch.get() {
            Some(stream) => stream,
            None => {
                let stream = DeviceStream::new(pool, Arc::clone(&self.domain))?;
                self.scratch.get_or_init(|| stream)
            }
        };
        stream.empty(DType::U8, &[bytes]).map_err(|error| match error {
            TensorError::Pool(error) => TransmitError::Body { bytes, error },
            other => TransmitError::Tensor(other),
        })
    }

    /// Notes that there was no memory for the body of a message that waits for some.
    pub(super) fn note_refused_body(&self) {
        let returned = self.pool_on(DeviceId::HOST).map_or(0, |pool| pool.returned());
        self.refused_body.fetch_max(returned + 1, Ordering::Relaxed);
    }

    /// Returns the host's pool, if it had no memory for a body and none has come back since.
    pub(super) fn pool_that_refused_body(&self) -> Option<Arc<Pool>> {
        let refused = self.refused_body.load(Ordering::Relaxed).checked_sub(1)?;
        self.pool_on(DeviceId::HOST).filter(|pool| pool.returned() == refused)
    }

    /// Copies a large body into host memory, and returns its lease.
    pub(super) fn body_lease(&self, body: &[u8]) -> Result<Lease, TransmitError> {
        let mut tensor = self.body_memory(body.len())?;
        tensor.copy_from_slice(body)?;
        Ok(tensor.lease().clone())
    }
}
