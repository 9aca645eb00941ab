//! Copies between tensors of one device and page-locked slots, in one direction, on a stream of its own.
//!
//! Used by the [`Store`](super::store::Store). A lane submits the copy of its piece, and the copier's thread
//! waits on the host for the stream's clock. *Out*: a piece goes to its lane when the copy has completed and
//! the data was still good (HOST-6). *In*: a piece counts as landed when its copy is submitted (HOST-8), and
//! its slot comes back when the copy has completed.
//!
//! **Invariants.** HOST-7: the host waits for the source before a copy is submitted, and a destination is
//! memory that nobody uses any more ([`DeviceStream::settle`]). So the stream holds only copies and clock
//! writes, no waits, and no message's copies queue behind another's wait. MBX-2: each copy takes one of
//! [`GATEWAY_SLOTS`] slots; a copy that finds none waits.
//!
//! **Threads.** Each copier has one, `tp-copier`, which waits for copies in stream order. **Locks.**
//! That of the free slots, a leaf: only a push or a pop happens under it.
//!
//! **On cancellation** of a read its copy still runs, and the slot comes back after it. **On the loss of the
//! device** the process ends.

#![expect(unsafe_code, reason = "copies between raw addresses, whose ranges the leases vouch for")]

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use smallvec::smallvec;
use tensorpost_hosts::limits::PIECE_BYTES;
use tensorpost_hosts::net::Parts;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::clock::{ClockDomain, Ticket};
use crate::device::{ChunkMapping, DeviceError, STAGING_BYTES};
use crate::ids::DeviceId;
use crate::limits::GATEWAY_SLOTS;
use crate::stream::host_wait_in_order;
use crate::tensor::{DeviceStream, Tensor, TensorError, TensorMut};

const _: () = assert!(GATEWAY_SLOTS as u64 * PIECE_BYTES <= STAGING_BYTES);

/// Copies in one direction for one device; see the module.
#[derive(Debug)]
pub(super) struct Copier {
    stream: DeviceStream,
    slots: Arc<Slots>,
    /// To the copier's thread, which ends when this sender is dropped. The channel is bounded in practice by
    /// the number of slots.
    begun: mpsc::Sender<SubmittedCopy>,
}

/// Receives the bytes that a copy has read, or the error.
type Told = oneshot::Sender<Result<Bytes, TensorError>>;

/// A copy that was submitted.
struct SubmittedCopy {
    /// `None` if the copy has already completed.
    ticket: Option<Ticket>,
    between: Between,
}

/// Everything that a copy holds until it completes.
enum Between {
    /// Everything that a copy holds until it completes.
    Slot(PinnedSlot, Option<(Tensor, usize, Told)>),
    /// An arena: the source tensor of an export, `None` for an import, and the task that waits for the copy.
    Arena(Option<Tensor>, oneshot::Sender<Result<(), TensorError>>),
}

/// Page-locked memory, cut into slots of one piece each.
#[derive(Debug)]
struct Slots {
    memory: Arc<ChunkMapping>,
    free: Mutex<Vec<u64>>,
    /// One permit for each slot that is free, or about to be.
    permits: Arc<Semaphore>,
}

/// One slot, given back when dropped.
struct PinnedSlot {
    address: u64,
    slots: Arc<Slots>,
    /// Released after the address went back: fields are dropped after [`Drop::drop`] has run.
    _permit: OwnedSemaphorePermit,
}

/// A slot whose bytes have been copied in and are not written any more.
struct Filled {
    slot: PinnedSlot,
    bytes: usize,
}

/// A tensor whose pieces are arriving, on the device where it will live.
#[derive(Debug)]
pub(super) struct Landing {
    tensor: TensorMut,
    /// The address of its first byte, and its length in bytes.
    address: u64,
    bytes: u64,
    mapping: Arc<ChunkMapping>,
    copier: Arc<Copier>,
}

impl Copier {
    /// Starts a copier on a stream that nobody else uses. Reserves its slots now, so that no lane asks the
    /// driver for memory.
    ///
    /// # Errors
    /// The device has no page-locked memory, or the system has no thread.
    pub(super) fn start(stream: DeviceStream) -> Result<Arc<Self>, TensorError> {
        let slots = Slots::of(&stream)?;
        let (begun, copies) = mpsc::channel();
        let domain = Arc::clone(stream.clocked().domain());
        let thread = thread::Builder::new().name("tp-copier".to_owned());
        let spawned =
            thread.spawn(move || copies.into_iter().for_each(|copy: SubmittedCopy| copy.end(&domain)));
        spawned.map_err(DeviceError::os("start a thread that waits for copies"))?;
        Ok(Arc::new(Copier { stream, slots, begun }))
    }

    /// Returns the number of free slots.
    #[cfg(test)]
    pub(super) fn free_slots(&self) -> usize {
        self.slots.permits.available_permits()
    }

    /// Returns the copier's stream, whose pool is its memory.
    pub(super) fn stream(&self) -> &DeviceStream {
        &self.stream
    }

    /// Reads `bytes` bytes of a packed tensor from `offset` into a slot, and returns them. The tensor's data
    /// must be ready already.
    ///
    /// # Errors
    /// The data is not good any more (HOST-6), or the device refuses.
    pub(super) async fn read(
        &self,
        tensor: &Tensor,
        offset: u64,
        bytes: usize,
    ) -> Result<Bytes, TensorError> {
        let slot = self.slots.take().await;
        let (told, done) = oneshot::channel();
        self.begin_read(tensor, offset, bytes, slot, told)?;
        // Without an answer the copier's thread has ended, and the process ends in a moment.
        done.await.unwrap_or(Err(TensorError::TimedOut))
    }

    fn begin_read(
        &self,
        tensor: &Tensor,
        offset: u64,
        bytes: usize,
        slot: PinnedSlot,
        told: Told,
    ) -> Result<(), TensorError> {
        let from = self.source(tensor, offset, bytes as u64)?;
        if bytes as u64 > PIECE_BYTES {
            let what = format!("{bytes} bytes for a slot of {PIECE_BYTES}");
            return Err(DeviceError::Refused { what }.into());
        }
        let keep = smallvec![Arc::clone(tensor.lease().mapping()), Arc::clone(&self.slots.memory)];
        // SAFETY: `source` has checked the range. The slot has room for a piece and belongs to this copy
        // alone until the copier's thread gives it back after the copy. Both are kept mapped.
        unsafe { self.stream.clocked().backend().copy(slot.address, from, bytes as u64, keep)? };
        self.submitted(Between::Slot(slot, Some((tensor.clone(), bytes, told))));
        Ok(())
    }

    /// Copies `bytes` bytes of a packed tensor from `offset` into an arena of the same device. Resolves when
    /// they are there. The tensor's data must be ready already.
    ///
    /// # Errors
    /// The data is not good any more (HOST-6), the arena has no such range, or the device refuses.
    pub(super) async fn export(
        &self,
        tensor: &Tensor,
        offset: u64,
        bytes: u64,
        arena: &Arc<ChunkMapping>,
        at: u64,
    ) -> Result<(), TensorError> {
        let from = self.source(tensor, offset, bytes)?;
        let to = in_arena(arena, at, bytes)?;
        let keep = smallvec![Arc::clone(tensor.lease().mapping()), Arc::clone(arena)];
        // SAFETY: `source` has checked the source range, and `in_arena` the destination. The lane has given
        // this part of the arena to this copy alone until it has completed. Both are kept mapped.
        unsafe { self.stream.clocked().backend().copy(to, from, bytes, keep)? };
        let (told, passed) = oneshot::channel();
        self.submitted(Between::Arena(Some(tensor.clone()), told));
        // Without an answer the copier's thread has ended, and the process ends in a moment.
        passed.await.unwrap_or(Err(TensorError::TimedOut))
    }

    /// Writes bytes to an arena and waits until they are there. Blocks, so call it on a thread that may.
    ///
    /// # Errors
    /// The arena has no such range, or the device refuses.
    pub(super) fn fill_arena(
        &self,
        arena: &Arc<ChunkMapping>,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), TensorError> {
        let to = in_arena(arena, at, bytes.len() as u64)?;
        let stream = self.stream.clocked().backend();
        // SAFETY: `in_arena` has checked the range. The arena is kept mapped, and the lane uses it for
        // nothing else before it was probed.
        unsafe { stream.upload(to, bytes, smallvec![Arc::clone(arena)])? };
        Ok(stream.synchronize()?)
    }

    /// Reads bytes of an arena. Blocks, so call it on a thread that may.
    ///
    /// # Errors
    /// See [`fill_arena`](Self::fill_arena).
    pub(super) fn read_arena(
        &self,
        arena: &Arc<ChunkMapping>,
        at: u64,
        bytes: &mut [u8],
    ) -> Result<(), TensorError> {
        let from = in_arena(arena, at, bytes.len() as u64)?;
        // SAFETY: as in `fill_arena`; the caller has the arena to itself until this returns.
        unsafe { self.stream.clocked().backend().download(bytes, from)? };
        Ok(())
    }

    /// Returns the address of these bytes of a packed tensor, for this stream to read. Nobody writes them
    /// while a `Tensor` exists.
    fn source(&self, tensor: &Tensor, offset: u64, bytes: u64) -> Result<u64, TensorError> {
        let span = tensor.layout().bytes_span(tensor.dtype())?;
        let last = offset.saturating_add(bytes);
        if last > span.len() as u64 || !tensor.is_contiguous() {
            let what = format!("bytes {offset} to {last} of a tensor of {}", span.len());
            return Err(DeviceError::Refused { what }.into());
        }
        // CLOCK-2: records this stream's use. CLOCK-1 needs nothing here: the host has waited already.
        Ok(tensor.read_on(self.stream.clocked())? + span.start as u64 + offset)
    }

    fn submitted(&self, between: Between) {
        let begun = SubmittedCopy { ticket: self.stream.clocked().ticket(), between };
        // The copier's thread ends only with this sender, which still exists.
        let _ = self.begun.send(begun);
    }
}

fn in_arena(arena: &ChunkMapping, at: u64, bytes: u64) -> Result<u64, DeviceError> {
    let beside = || DeviceError::Refused { what: format!("{bytes} bytes at {at} of {arena:?}") };
    arena.range(at, bytes).ok_or_else(beside)
}

impl SubmittedCopy {
    /// Waits until the copy has completed, and answers the task that waits for it.
    fn end(self, domain: &Arc<ClockDomain>) {
        let SubmittedCopy { ticket, between } = self;
        // The clock is this process's own, so it always advances; the tensor knows whether its data is good.
        let passed = ticket.map_or(Ok(()), |ticket| host_wait_in_order(domain, ticket));
        if let Err(error) = &passed {
            tracing::error!(%error, "a copy between a tensor and another host cannot be waited for; its slot is used no more");
            // A task that waits for a part of an arena then waits for ever, and nobody else gets that part.
            std::mem::forget(between);
            return;
        }
        let (slot, out) = match between {
            Between::Slot(slot, out) => (slot, out),
            Between::Arena(tensor, told) => {
                // HOST-6, as below.
                let good = tensor.as_ref().map_or(Ok(()), |tensor| tensor.wait(None));
                drop(tensor);
                let _ = told.send(good);
                return;
            }
        };
        let Some((tensor, bytes, told)) = out else { return };
        // HOST-6: the data was ready before the copy; it is good only if it still is after the copy.
        let good = tensor.wait(None);
        let answer = good.map(|()| Bytes::from_owner(Filled { slot, bytes }));
        // Dropped before the waiting task goes on, so that a release which follows does not find this handle.
        drop(tensor);
        // The lane's connection may have ended meanwhile.
        let _ = told.send(answer);
    }
}

impl Slots {
    fn of(stream: &DeviceStream) -> Result<Arc<Self>, DeviceError> {
        let memory = stream.pool().backend().staging(GATEWAY_SLOTS as u64 * PIECE_BYTES)?;
        let free = (0..GATEWAY_SLOTS as u64).map(|index| memory.addr() + index * PIECE_BYTES).collect();
        let permits = Arc::new(Semaphore::new(GATEWAY_SLOTS));
        Ok(Arc::new(Slots { memory, free: Mutex::new(free), permits }))
    }

    /// Takes a free slot, and waits if there is none.
    async fn take(self: &Arc<Self>) -> PinnedSlot {
        loop {
            // The semaphore is never closed, so a permit comes in the end.
            let permit = Arc::clone(&self.permits).acquire_owned().await;
            let address = self.free.lock().pop();
            if let (Ok(permit), Some(address)) = (permit, address) {
                return PinnedSlot { address, slots: Arc::clone(self), _permit: permit };
            }
        }
    }
}

impl PinnedSlot {
    /// Copies bytes to the start of the slot, as many as fit.
    fn fill(&mut self, piece: &Parts) {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.address as usize);
        let mut at = 0;
        for part in piece.iter() {
            let part = &part[..part.len().min(PIECE_BYTES as usize - at)];
            // SAFETY: the slot has `PIECE_BYTES` of host memory, and `at` plus this part is no more. The slot
            // belongs to this value alone (`&mut`), and no GPU work uses it.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), start.add(at), part.len()) };
            at += part.len();
        }
    }
}

impl Drop for PinnedSlot {
    fn drop(&mut self) {
        self.slots.free.lock().push(self.address);
    }
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        let start = std::ptr::with_exposed_provenance::<u8>(self.slot.address as usize);
        // SAFETY: a slot has room for a piece, and `bytes` is no more than that. The copy into it has
        // completed, and nobody writes the slot before this value is dropped.
        unsafe { std::slice::from_raw_parts(start, self.bytes) }
    }
}

impl Landing {
    /// Prepares a new tensor of the copier's own memory to be written.
    ///
    /// # Errors
    /// The tensor is not packed, or the device refuses.
    pub(super) fn new(copier: &Arc<Copier>, mut tensor: TensorMut) -> Result<Arc<Self>, TensorError> {
        let span = tensor.layout().bytes_span(tensor.dtype())?;
        let address = tensor.write_on(copier.stream.clocked())? + span.start as u64;
        let mapping = tensor.lease().writable()?.1;
        Ok(Arc::new(Landing {
            tensor,
            address,
            bytes: span.len() as u64,
            mapping,
            copier: Arc::clone(copier),
        }))
    }

    /// Copies a piece of an arriving tensor to its place. When this returns, the copy is submitted; the
    /// tensor's next user waits for it as for any GPU work.
    ///
    /// # Errors
    /// The tensor has no such bytes, or the device refuses.
    pub(super) async fn write(&self, offset: u64, piece: &Parts) -> Result<(), TensorError> {
        if self.bytes == 0 {
            // A tensor without elements has a span of one byte, which belongs nowhere.
            return Ok(());
        }
        let copier = &self.copier;
        let bytes = piece.remaining() as u64;
        let last = offset.saturating_add(bytes);
        if last > self.bytes || bytes > PIECE_BYTES {
            let what = format!("bytes {offset} to {last} of a tensor of {}", self.bytes);
            return Err(DeviceError::Refused { what }.into());
        }
        let mut slot = copier.slots.take().await;
        slot.fill(piece);
        let keep = smallvec![Arc::clone(&self.mapping), Arc::clone(&copier.slots.memory)];
        let to = self.address + offset;
        // SAFETY: the range was checked against the tensor, which is writable, and which this stream may
        // write since [`new`](Self::new). The session gives each piece to one lane, so each is written once.
        // Nobody writes the slot before the copier's thread gives it back after this copy. Both are kept
        // mapped.
        unsafe { copier.stream.clocked().backend().copy(to, slot.address, bytes, keep)? };
        copier.submitted(Between::Slot(slot, None));
        Ok(())
    }

    /// Copies bytes of an arena of the same device to `offset`, as [`write`](Self::write) does. Returns a
    /// receiver that resolves when the copy has completed.
    ///
    /// # Errors
    /// The tensor or the arena has no such bytes, or the device refuses.
    pub(super) fn import(
        &self,
        offset: u64,
        bytes: u64,
        arena: &Arc<ChunkMapping>,
        at: u64,
    ) -> Result<oneshot::Receiver<Result<(), TensorError>>, TensorError> {
        let last = offset.saturating_add(bytes);
        if last > self.bytes {
            let what = format!("bytes {offset} to {last} of a tensor of {}", self.bytes);
            return Err(DeviceError::Refused { what }.into());
        }
        let from = in_arena(arena, at, bytes)?;
        let keep = smallvec![Arc::clone(&self.mapping), Arc::clone(arena)];
        let to = self.address + offset;
        // SAFETY: as in `write`. The lane keeps the part of the arena for this copy alone until it has
        // completed. Both are kept mapped.
        unsafe { self.copier.stream.clocked().backend().copy(to, from, bytes, keep)? };
        let (told, passed) = oneshot::channel();
        self.copier.submitted(Between::Arena(None, told));
        Ok(passed)
    }

    /// Returns the device that the tensor is on.
    pub(super) fn device(&self) -> DeviceId {
        self.copier.stream.pool().backend().id()
    }

    /// Returns the tensor, if nobody writes it any more: all its pieces have landed.
    pub(super) fn into_tensor(self: Arc<Self>) -> Option<TensorMut> {
        Arc::into_inner(self).map(|landing| landing.tensor)
    }
}
