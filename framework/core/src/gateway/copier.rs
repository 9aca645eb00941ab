//! Copies between tensors of one device and page-locked slots, in one direction, on a stream of its own.
//!
//! Used by the [`Store`](super::store::Store): a lane submits the copy of its piece, and this one's thread
//! waits, on the host, for the clock of the stream. *Out*: a piece goes to its lane when the copy has passed
//! and the data was still good (HOST-6). *In*: a piece counts as landed when its copy is submitted (HOST-8),
//! and its slot comes back when it has passed.
//!
//! **Invariants.** HOST-7: what is read here was waited for by the host before, and what is written was
//! nobody's any more ([`DeviceStream::settle`]), so the stream has copies and clock writes on it and no
//! waits; the copies of a message are never behind another's. MBX-2: a copy has one of [`GATEWAY_SLOTS`];
//! whoever finds none waits.
//!
//! **Threads.** `tensorpost-copier`, one for each, waits for copies in the order of the stream. **Locks.**
//! That of the free slots, under which nothing is done.
//!
//! **On cancellation** of a read its copy goes on, and the slot comes back behind it. **On the loss of the
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

/// See the module.
#[derive(Debug)]
pub(super) struct Copier {
    stream: DeviceStream,
    slots: Arc<Slots>,
    /// To its thread, which ends with this. Unbounded only in form: slots bound it.
    begun: mpsc::Sender<Begun>,
}

/// Who waits for what a copy reads, and how it went.
type Told = oneshot::Sender<Result<Bytes, TensorError>>;

/// A copy that was submitted.
struct Begun {
    /// `None` where it has passed.
    ticket: Option<Ticket>,
    between: Between,
}

/// What a copy goes to, or comes from.
enum Between {
    /// What it reads, how many bytes, and who waits for them. Of one that writes, nobody.
    Slot(Slot, Option<(Tensor, usize, Told)>),
    /// An arena: what it reads, if anything, and who waits until it has passed.
    Arena(Option<Tensor>, oneshot::Sender<Result<(), TensorError>>),
}

/// Pieces of page-locked memory.
#[derive(Debug)]
struct Slots {
    memory: Arc<ChunkMapping>,
    free: Mutex<Vec<u64>>,
    /// One for each that is free, or about to be.
    permits: Arc<Semaphore>,
}

/// One of them, given back when dropped.
struct Slot {
    address: u64,
    slots: Arc<Slots>,
    /// After the address went back: fields go behind [`Drop::drop`].
    _permit: OwnedSemaphorePermit,
}

/// A slot with bytes that nobody writes any more.
struct Filled {
    slot: Slot,
    bytes: usize,
}

/// A tensor whose pieces come, on the device where it will be.
#[derive(Debug)]
pub(super) struct Landing {
    tensor: TensorMut,
    /// Of its first byte, and as many as it has.
    address: u64,
    bytes: u64,
    mapping: Arc<ChunkMapping>,
    copier: Arc<Copier>,
}

impl Copier {
    /// With a stream that nobody else uses. Takes its slots now, so that no lane asks the driver for memory.
    ///
    /// # Errors
    /// The device has no page-locked memory, or the system no thread.
    pub(super) fn start(stream: DeviceStream) -> Result<Arc<Self>, TensorError> {
        let slots = Slots::of(&stream)?;
        let (begun, copies) = mpsc::channel();
        let domain = Arc::clone(stream.clocked().domain());
        let thread = thread::Builder::new().name("tensorpost-copier".to_owned());
        let spawned = thread.spawn(move || copies.into_iter().for_each(|copy: Begun| copy.end(&domain)));
        spawned.map_err(DeviceError::os("start a thread that waits for copies"))?;
        Ok(Arc::new(Copier { stream, slots, begun }))
    }

    /// Slots that nobody has.
    #[cfg(test)]
    pub(super) fn free_slots(&self) -> usize {
        self.slots.permits.available_permits()
    }

    /// Its memory and its stream.
    pub(super) fn stream(&self) -> &DeviceStream {
        &self.stream
    }

    /// So many bytes of a packed tensor from `offset` on, when they are in a slot. The tensor's data is there
    /// already.
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
        // Without an answer its thread has ended, and the process does in a moment.
        done.await.unwrap_or(Err(TensorError::TimedOut))
    }

    fn begin_read(
        &self,
        tensor: &Tensor,
        offset: u64,
        bytes: usize,
        slot: Slot,
        told: Told,
    ) -> Result<(), TensorError> {
        let from = self.source(tensor, offset, bytes as u64)?;
        if bytes as u64 > PIECE_BYTES {
            let what = format!("{bytes} bytes for a slot of {PIECE_BYTES}");
            return Err(DeviceError::Refused { what }.into());
        }
        let keep = smallvec![Arc::clone(tensor.lease().mapping()), Arc::clone(&self.slots.memory)];
        // SAFETY: `source` has found the range. The slot has room for a piece, and is this copy's alone until
        // it comes back behind it. Both are kept mapped.
        unsafe { self.stream.clocked().backend().copy(slot.address, from, bytes as u64, keep)? };
        self.submitted(Between::Slot(slot, Some((tensor.clone(), bytes, told))));
        Ok(())
    }

    /// Copies so many bytes of a packed tensor from `offset` on into an arena of the same device. Resolves
    /// when they are there. The tensor's data is there already.
    ///
    /// # Errors
    /// The data is not good any more (HOST-6), there is no such room, or the device refuses.
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
        // SAFETY: `source` has found the range. The other was found to be in the arena, of which the lane has
        // given this part to this copy alone until it has passed. Both are kept mapped.
        unsafe { self.stream.clocked().backend().copy(to, from, bytes, keep)? };
        let (told, passed) = oneshot::channel();
        self.submitted(Between::Arena(Some(tensor.clone()), told));
        // Without an answer its thread has ended, and the process does in a moment.
        passed.await.unwrap_or(Err(TensorError::TimedOut))
    }

    /// Writes bytes to an arena, and waits until they are there. On a thread that may wait.
    ///
    /// # Errors
    /// There is no such room, or the device refuses.
    pub(super) fn fill_arena(
        &self,
        arena: &Arc<ChunkMapping>,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), TensorError> {
        let to = in_arena(arena, at, bytes.len() as u64)?;
        let stream = self.stream.clocked().backend();
        // SAFETY: it was found to be in the arena, which is kept mapped, and which the lane uses for nothing
        // else before it was probed.
        unsafe { stream.upload(to, bytes, smallvec![Arc::clone(arena)])? };
        Ok(stream.synchronize()?)
    }

    /// Reads bytes of an arena. On a thread that may wait.
    ///
    /// # Errors
    /// As [`fill_arena`](Self::fill_arena).
    pub(super) fn read_arena(
        &self,
        arena: &Arc<ChunkMapping>,
        at: u64,
        bytes: &mut [u8],
    ) -> Result<(), TensorError> {
        let from = in_arena(arena, at, bytes.len() as u64)?;
        // SAFETY: as in `fill_arena`; the caller has the arena until this returns.
        unsafe { self.stream.clocked().backend().download(bytes, from)? };
        Ok(())
    }

    /// Where these bytes of a packed tensor are, for this stream to read them; nobody writes them while there
    /// is a `Tensor`.
    fn source(&self, tensor: &Tensor, offset: u64, bytes: u64) -> Result<u64, TensorError> {
        let span = tensor.layout().bytes_span(tensor.dtype())?;
        let last = offset.saturating_add(bytes);
        if last > span.len() as u64 || !tensor.is_contiguous() {
            let what = format!("bytes {offset} to {last} of a tensor of {}", span.len());
            return Err(DeviceError::Refused { what }.into());
        }
        // CLOCK-2; of CLOCK-1 the host has seen to.
        Ok(tensor.read_on(self.stream.clocked())? + span.start as u64 + offset)
    }

    fn submitted(&self, between: Between) {
        let begun = Begun { ticket: self.stream.clocked().ticket(), between };
        // Its thread ends with this, which is still there.
        let _ = self.begun.send(begun);
    }
}

fn in_arena(arena: &ChunkMapping, at: u64, bytes: u64) -> Result<u64, DeviceError> {
    let beside = || DeviceError::Refused { what: format!("{bytes} bytes at {at} of {arena:?}") };
    arena.range(at, bytes).ok_or_else(beside)
}

impl Begun {
    /// Waits until the copy has passed, and tells whoever waits for it.
    fn end(self, domain: &Arc<ClockDomain>) {
        let Begun { ticket, between } = self;
        // The clock is this process's own, and always comes; whether its data is good, the tensor knows.
        let passed = ticket.map_or(Ok(()), |ticket| host_wait_in_order(domain, ticket));
        if let Err(error) = &passed {
            tracing::error!(%error, "a copy between a tensor and another host cannot be waited for; its slot is used no more");
            // Who waits for a part of an arena waits for ever, and nobody else gets it.
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
        // HOST-6: the data was there before; it is believed when it still is.
        let good = tensor.wait(None);
        let answer = good.map(|()| Bytes::from_owner(Filled { slot, bytes }));
        // Before whoever waits goes on: what is released behind that is not kept by this.
        drop(tensor);
        // Its connection may have ended meanwhile.
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

    /// A free one, waited for.
    async fn take(self: &Arc<Self>) -> Slot {
        loop {
            // It is never closed, so there is one in the end.
            let permit = Arc::clone(&self.permits).acquire_owned().await;
            let address = self.free.lock().pop();
            if let (Ok(permit), Some(address)) = (permit, address) {
                return Slot { address, slots: Arc::clone(self), _permit: permit };
            }
        }
    }
}

impl Slot {
    /// Puts bytes at its start, as many as there is room for.
    fn fill(&mut self, piece: &Parts) {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.address as usize);
        let mut at = 0;
        for part in piece.iter() {
            let part = &part[..part.len().min(PIECE_BYTES as usize - at)];
            // SAFETY: the slot has a piece's bytes of host memory, of which `at` and these are no more; it is
            // this value's alone (`&mut`), and no work uses it.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), start.add(at), part.len()) };
            at += part.len();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.free.lock().push(self.address);
    }
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        let start = std::ptr::with_exposed_provenance::<u8>(self.slot.address as usize);
        // SAFETY: a slot has room for a piece, and this is no longer; the copy into it has passed, and nobody
        // writes it before it is given back, with this value.
        unsafe { std::slice::from_raw_parts(start, self.bytes) }
    }
}

impl Landing {
    /// For a tensor that is new, of the copier's own memory.
    ///
    /// # Errors
    /// It is not packed, or the device refuses.
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

    /// Copies a piece of a tensor that comes to where it belongs. When this returns the copy is submitted,
    /// and whoever takes the tensor then waits for it as for any work.
    ///
    /// # Errors
    /// The tensor has no such bytes, or the device refuses.
    pub(super) async fn write(&self, offset: u64, piece: &Parts) -> Result<(), TensorError> {
        if self.bytes == 0 {
            // The byte that stands for it is nobody's.
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
        // SAFETY: the range was found to be in the tensor, which is writable, and the stream's to write since
        // [`new`](Self::new); each of its pieces is written once, by whoever the session gave it to. The slot
        // is not written before it comes back behind this. Both are kept mapped.
        unsafe { copier.stream.clocked().backend().copy(to, slot.address, bytes, keep)? };
        copier.submitted(Between::Slot(slot, None));
        Ok(())
    }

    /// Copies bytes of an arena of the same device to `offset`, as [`write`](Self::write). What resolves when
    /// the copy has passed.
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
        // SAFETY: as in `write`; the part of the arena is this copy's alone, as the lane has it, until it has
        // passed. Both are kept mapped.
        unsafe { self.copier.stream.clocked().backend().copy(to, from, bytes, keep)? };
        let (told, passed) = oneshot::channel();
        self.copier.submitted(Between::Arena(None, told));
        Ok(passed)
    }

    /// Where it is.
    pub(super) fn device(&self) -> DeviceId {
        self.copier.stream.pool().backend().id()
    }

    /// The tensor, when nobody writes it any more: all its pieces have landed.
    pub(super) fn into_tensor(self: Arc<Self>) -> Option<TensorMut> {
        Arc::into_inner(self).map(|landing| landing.tensor)
    }
}
