//! A device for tests: the host's, under another name. It can pretend to be a GPU with few streams, without
//! room on them, or without access to others.

#![expect(unsafe_code, reason = "a device that passes on the unsafe functions of another")]

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::host::HostBackend;
use super::{
    Access, Backend, ChunkMapping, DeviceError, DeviceKind, Keep, NewChunk, StreamBackend, StreamOp,
};
use crate::clock::{ClockDomain, OwnClock};
use crate::ids::DeviceId;

#[derive(Debug)]
pub(crate) struct Fake {
    host: Arc<HostBackend>,
    id: DeviceId,
    reach: Vec<DeviceId>,
    limit: usize,
    pub(crate) seen: Arc<Seen>,
}

/// The calls that a [`Fake`] got, and whether it pretends that its streams have no room.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) crowded: AtomicBool,
    /// Whether its streams only note their work, as if a kernel without end stood in front.
    pub(crate) mute: AtomicBool,
    streams: AtomicUsize,
    pub(crate) ops: Mutex<Vec<StreamOp>>,
    pub(crate) copies: AtomicUsize,
    pub(crate) staging: AtomicUsize,
}

impl Fake {
    /// Makes device number `id`, with `limit` streams, which reach the devices `reach` besides their own.
    pub(crate) fn new(id: u8, limit: usize, reach: &[u8]) -> Arc<Self> {
        let reach = reach.iter().map(|&id| DeviceId([id; 16])).collect();
        let (host, seen) = (HostBackend::new(), Arc::default());
        Arc::new(Fake { host, id: DeviceId([id; 16]), reach, limit, seen })
    }

    fn renamed(&self, mapping: Arc<ChunkMapping>) -> Arc<ChunkMapping> {
        let (addr, len, access) = (mapping.addr(), mapping.len(), mapping.access());
        // SAFETY: this is the range of `mapping`, which is kept.
        unsafe { ChunkMapping::new(addr, len, access, self.id, Box::new(mapping)) }
    }
}

/// Devices, one for each process of a cluster, that do none of the work of their streams: no clock is seen to
/// have passed.
#[derive(Debug, Default)]
pub(crate) struct Muted(Mutex<Vec<Arc<Fake>>>);

impl Muted {
    /// Makes the device of the next process.
    pub(crate) fn make(&self) -> Arc<Fake> {
        let fake = Fake::new(1, 4, &[]);
        fake.seen.mute.store(true, Ordering::SeqCst);
        self.0.lock().push(Arc::clone(&fake));
        fake
    }

    /// Returns the number of clock writes that the streams of process `number` were told since the last
    /// [`forget`](Self::forget).
    pub(crate) fn clock_writes(&self, number: usize) -> usize {
        let fakes = self.0.lock();
        fakes[number].seen.ops.lock().iter().filter(|op| matches!(op, StreamOp::Advance(_))).count()
    }

    pub(crate) fn forget(&self, number: usize) {
        self.0.lock()[number].seen.ops.lock().clear();
    }
}

#[derive(Debug)]
struct FakeStream {
    inner: Arc<dyn StreamBackend>,
    seen: Arc<Seen>,
}

impl Drop for FakeStream {
    fn drop(&mut self) {
        self.seen.streams.fetch_sub(1, Ordering::SeqCst);
    }
}

impl crate::device::sealed::Sealed for Fake {}

impl Backend for Fake {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn kind(&self) -> DeviceKind {
        // It pretends to be a GPU, whose streams put clock writes off.
        DeviceKind::Cuda
    }

    fn name(&self) -> String {
        format!("fake {}", self.id)
    }

    fn total_bytes(&self) -> u64 {
        self.host.total_bytes()
    }

    fn granularity(&self) -> u64 {
        self.host.granularity()
    }

    fn create_chunk(&self, bytes: u64) -> Result<NewChunk, DeviceError> {
        let chunk = self.host.create_chunk(bytes)?;
        Ok(NewChunk { mapping: self.renamed(chunk.mapping), ..chunk })
    }

    fn import_chunk(
        &self,
        fd: BorrowedFd<'_>,
        bytes: u64,
        access: Access,
    ) -> Result<Arc<ChunkMapping>, DeviceError> {
        Ok(self.renamed(self.host.import_chunk(fd, bytes, access)?))
    }

    fn create_stream(
        &self,
        clock: OwnClock,
        domain: Arc<ClockDomain>,
    ) -> Result<Arc<dyn StreamBackend>, DeviceError> {
        if self.seen.streams.load(Ordering::SeqCst) >= self.limit {
            return Err(DeviceError::NoStream { device: self.id, limit: self.limit });
        }
        let inner = self.host.create_stream(clock, domain)?;
        self.seen.streams.fetch_add(1, Ordering::SeqCst);
        Ok(Arc::new(FakeStream { inner, seen: Arc::clone(&self.seen) }))
    }

    fn stream_limit(&self) -> usize {
        self.limit
    }

    fn can_reach(&self, device: DeviceId) -> bool {
        device == self.id || self.reach.contains(&device)
    }

    fn staging(&self, bytes: u64) -> Result<Arc<ChunkMapping>, DeviceError> {
        self.seen.staging.fetch_add(1, Ordering::SeqCst);
        self.host.staging(bytes)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl crate::device::sealed::Sealed for FakeStream {}

impl StreamBackend for FakeStream {
    fn clock_slot(&self) -> u16 {
        self.inner.clock_slot()
    }

    fn submit(&self, ops: &[StreamOp]) -> Result<(), DeviceError> {
        self.seen.ops.lock().extend_from_slice(ops);
        if self.seen.mute.load(Ordering::SeqCst) { Ok(()) } else { self.inner.submit(ops) }
    }

    fn has_room(&self) -> bool {
        !self.seen.crowded.load(Ordering::SeqCst)
    }

    unsafe fn copy(&self, dst: u64, src: u64, bytes: u64, keep: Keep) -> Result<(), DeviceError> {
        self.seen.copies.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the contract is passed on.
        unsafe { self.inner.copy(dst, src, bytes, keep) }
    }

    unsafe fn fill(&self, dst: u64, bytes: u64, value: u8, keep: Keep) -> Result<(), DeviceError> {
        // SAFETY: the contract is passed on.
        unsafe { self.inner.fill(dst, bytes, value, keep) }
    }

    unsafe fn upload(&self, dst: u64, src: &[u8], keep: Keep) -> Result<(), DeviceError> {
        // SAFETY: the contract is passed on.
        unsafe { self.inner.upload(dst, src, keep) }
    }

    unsafe fn download(&self, dst: &mut [u8], src: u64) -> Result<(), DeviceError> {
        // SAFETY: the contract is passed on.
        unsafe { self.inner.download(dst, src) }
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.inner.synchronize()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
