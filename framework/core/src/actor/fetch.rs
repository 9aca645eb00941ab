//! Copies from one device to another, for actors that want the tensors of their messages on their own device.
//!
//! If the device's streams reach the memory, a fetch allocates, waits for the ready ticket and copies, all on
//! the receiving stream. If they do not, the bytes pass through page-locked host memory, piece by piece: a
//! stream of the memory's device copies out, the receiving stream copies in, and each waits for the other's
//! clock. The host waits for neither (CLOCK-1). It waits only for room on the streams, if a tensor has
//! hundreds of pieces (MBX-2).
//!
//! The receiver stages, with a context on the tensor's GPU in its own process, as every holder has one. So no
//! other process has to know about the copy, and two streams can wait for each other's clocks without a host
//! thread.
//!
//! The source is noted as used on the stream that reads it, so its lease goes back when the copy has passed
//! (CLOCK-2).
//!
//! If a fetch fails, it gives back its allocations, and the sources are as they were.

#![expect(unsafe_code, reason = "copies between raw addresses, whose ranges the leases vouch for")]

use std::ops::Range;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use smallvec::smallvec;

use crate::clock::Ticket;
use crate::device::{Backend, ChunkMapping, DeviceError, Keep, STAGING_BYTES};
use crate::ids::DeviceId;
use crate::lease::{Lease, PoolError};
use crate::limits::ALLOCATION_UNIT;
use crate::message::scope::{Leases, Outline};
use crate::stream::Stream;
use crate::tensor::{DType, DeviceStream, TensorError, TensorMut};

/// The number of pieces of one tensor that are on their way at a time.
const PIECES: usize = 4;

/// The streams that an actor's fetches need besides its own: one on each device from which memory was staged.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    streams: Mutex<Vec<(DeviceId, Stream)>>,
}

/// The bytes that a fetch has copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) bytes: u64,
    /// The bytes that went through host memory because one GPU cannot reach the other's.
    pub(super) staged: u64,
}

/// Pairs of devices that this process's log has named.
static NAMED: Mutex<Vec<(DeviceId, DeviceId)>> = Mutex::new(Vec::new());

/// A lease of a message that is to be fetched, and the span of it that the tensors see.
struct Wanted<'a> {
    index: usize,
    lease: &'a Lease,
    ready: Option<Ticket>,
    /// In bytes of the allocation. It begins at a multiple of [`ALLOCATION_UNIT`], so that every layout stays
    /// aligned.
    span: Range<u64>,
}

impl Wanted<'_> {
    fn bytes(&self) -> u64 {
        self.span.end - self.span.start
    }
}

impl Fetches {
    /// Replaces the leases of a message that `must_move` names by leases on fresh memory of `stream`, filled
    /// by that stream, and moves the outlines accordingly. Pending, with `waker` noted, if the pool has no
    /// room now.
    ///
    /// # Errors
    /// The pool can never have the room, a layout leaves its lease, or a device refuses.
    pub(super) fn fetch(
        &self,
        stream: &DeviceStream,
        leases: &mut Leases,
        outlines: &mut [Outline],
        must_move: impl Fn(DeviceId) -> bool,
        backend_of: impl Fn(DeviceId) -> Result<Arc<dyn Backend>, DeviceError>,
        waker: &Waker,
    ) -> Poll<Result<Moved, TensorError>> {
        let wanted = match wanted(leases, outlines, must_move) {
            Ok(wanted) => wanted,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let targets = match allocate(stream, &wanted, waker) {
            Poll::Ready(Ok(targets)) => targets,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        let mut fetched = Vec::with_capacity(targets.len());
        let mut moved = Moved::default();
        for (wanted, mut target) in wanted.iter().zip(targets) {
            match self.copy(stream, wanted, &mut target, &backend_of) {
                Ok(staged) => moved.staged += staged,
                Err(error) => return Poll::Ready(Err(error)),
            }
            moved.bytes += wanted.bytes();
            fetched.push((wanted.index, wanted.span.start, target.freeze()));
        }
        // The message changes only once all its copies were submitted, so a failed fetch leaves it as it was.
        for (index, start, tensor) in fetched {
            for outline in outlines.iter_mut().filter(|outline| usize::from(outline.lease) == index) {
                let elements = start as usize / outline.dtype.size();
                match outline.layout.moved_back(elements) {
                    Some(layout) => outline.layout = layout,
                    // The span covers the layouts, so none starts before it.
                    None => return Poll::Ready(Err(no_span())),
                }
            }
            leases[index] = (tensor.lease().clone(), tensor.ready());
        }
        Poll::Ready(Ok(moved))
    }

    /// Returns how many bytes went through host memory because there was no direct copy.
    fn copy(
        &self,
        stream: &DeviceStream,
        wanted: &Wanted<'_>,
        target: &mut TensorMut,
        backend_of: &impl Fn(DeviceId) -> Result<Arc<dyn Backend>, DeviceError>,
    ) -> Result<u64, TensorError> {
        let (lease, bytes) = (wanted.lease, wanted.bytes());
        let to = target.write_on(stream.clocked())?;
        let target_mapping = target.lease().writable()?.1;
        let from = lease.address() + wanted.span.start;
        let source_mapping = Arc::clone(lease.mapping());
        let here = stream.pool().backend();
        if here.can_reach(lease.device()) {
            // CLOCK-1, then CLOCK-2.
            stream.clocked().wait(wanted.ready)?;
            lease.used_on(stream.clocked());
            let keep: Keep = smallvec![source_mapping, target_mapping];
            // SAFETY: the span lies in the allocation, whose mapping is kept, and this device's streams reach
            // it. The target has as many bytes, is kept, and belongs to nobody else yet. The calls above
            // order both with all other uses.
            unsafe { stream.clocked().backend().copy(to, from, bytes, keep)? };
            return Ok(0);
        }
        let there = backend_of(lease.device())?;
        let out = self.stream_on(&there, stream.clocked())?;
        out.wait(wanted.ready)?;
        lease.used_on(&out);
        // Staging needs the GPU of the two devices: its copies need page-locked memory.
        let staging = if there.id() == DeviceId::HOST { here } else { &there };
        // SAFETY: as above, for the reading and the writing stream.
        unsafe {
            stage((&out, from, source_mapping), (stream.clocked(), to, target_mapping), bytes, staging)?
        };
        if there.id() == DeviceId::HOST || here.id() == DeviceId::HOST {
            return Ok(0);
        }
        name(there.id(), here.id());
        Ok(bytes)
    }

    fn stream_on(&self, device: &Arc<dyn Backend>, near: &Stream) -> Result<Stream, DeviceError> {
        let mut streams = self.streams.lock();
        if let Some((_, stream)) = streams.iter().find(|(known, _)| *known == device.id()) {
            return Ok(stream.clone());
        }
        let stream = Stream::new_or_shared(device, near.domain())?;
        streams.push((device.id(), stream.clone()));
        Ok(stream)
    }
}

/// Names the two devices in the log, once, because copies through host memory are slow.
fn name(from: DeviceId, to: DeviceId) {
    let mut named = NAMED.lock();
    if !named.contains(&(from, to)) {
        named.push((from, to));
        drop(named);
        tracing::warn!(
            %from, %to,
            "no peer access between two GPUs: tensors are copied through host memory; `bytes_staged` counts them"
        );
    }
}

/// Returns the leases to fetch, each once.
fn wanted<'a>(
    leases: &'a Leases,
    outlines: &[Outline],
    must_move: impl Fn(DeviceId) -> bool,
) -> Result<Vec<Wanted<'a>>, TensorError> {
    let mut all = Vec::new();
    for (index, (lease, ready)) in leases.iter().enumerate() {
        if !must_move(lease.device()) {
            continue;
        }
        let mut span: Option<Range<u64>> = None;
        for outline in outlines.iter().filter(|outline| usize::from(outline.lease) == index) {
            outline.layout.fits(outline.dtype, lease.bytes())?;
            let bytes = outline.layout.bytes_span(outline.dtype)?;
            let (start, end) = (bytes.start as u64, bytes.end as u64);
            span = Some(span.map_or(start..end, |span| span.start.min(start)..span.end.max(end)));
        }
        let span = span.unwrap_or(0..0);
        let start = span.start - span.start % ALLOCATION_UNIT;
        all.push(Wanted { index, lease, ready: *ready, span: start..span.end });
    }
    Ok(all)
}

fn no_span() -> TensorError {
    DeviceError::Refused { what: "a layout that starts before its own first byte".to_owned() }.into()
}

/// Allocates memory for all leases or for none.
fn allocate(
    stream: &DeviceStream,
    wanted: &[Wanted<'_>],
    waker: &Waker,
) -> Poll<Result<Vec<TensorMut>, TensorError>> {
    let pool = stream.pool();
    let before = pool.returned();
    // This attempt takes memory and gives it back. That must wake others, and not the one that waits here.
    let waited = pool.waits_no_more(waker);
    let done = |done| {
        // Another future of the same task may have waited with the same waker.
        if waited {
            waker.wake_by_ref();
        }
        Poll::Ready(done)
    };
    let mut targets = Vec::with_capacity(wanted.len());
    for one in wanted {
        match stream.empty(DType::U8, &[one.bytes() as usize]) {
            Ok(target) => targets.push(target),
            Err(TensorError::Pool(PoolError::Full { .. })) => break,
            Err(error) => return done(Err(error)),
        }
    }
    if targets.len() == wanted.len() {
        return done(Ok(targets));
    }
    let own = targets.len() as u64;
    drop(targets);
    if let Some(never) = pool.never_has(wanted.iter().map(Wanted::bytes).sum()) {
        return done(Err(never.into()));
    }
    pool.wake_on_return(waker);
    // If more came back than this attempt gave back, another thread returned memory since the attempt began,
    // and that may have woken nobody. A thread that is still closing this attempt's own memory wakes the
    // waiter itself.
    if pool.returned() - before > own {
        waker.wake_by_ref();
    }
    Poll::Pending
}

/// Copies from one stream's device to the other's through host memory.
///
/// # Safety
/// As for [`StreamBackend::copy`](crate::device::StreamBackend::copy), of the source for the first stream and
/// of the destination for the second.
unsafe fn stage(
    (out, from, source): (&Stream, u64, Arc<ChunkMapping>),
    (into, to, target): (&Stream, u64, Arc<ChunkMapping>),
    bytes: u64,
    staging: &Arc<dyn Backend>,
) -> Result<(), DeviceError> {
    let mut blocks: Vec<(Arc<ChunkMapping>, Option<Ticket>)> = Vec::new();
    let mut at = 0;
    for piece in 0.. {
        let length = (bytes - at).min(STAGING_BYTES);
        if length == 0 {
            break;
        }
        if blocks.len() < PIECES {
            blocks.push((staging.staging(length)?, None));
        }
        let (block, emptied) = &mut blocks[piece % PIECES];
        // The block's last piece is copied in before the next one is copied out.
        out.wait(emptied.take())?;
        // SAFETY: by the caller's contract this is a piece of the source. The block has room for it, is kept,
        // and is this function's alone, in the order of the two streams' waits.
        unsafe {
            out.backend().copy(
                block.addr(),
                from + at,
                length,
                smallvec![Arc::clone(&source), Arc::clone(block)],
            )?
        };
        into.wait(out.ticket())?;
        // SAFETY: as above, for the destination.
        unsafe {
            into.backend().copy(
                to + at,
                block.addr(),
                length,
                smallvec![Arc::clone(&target), Arc::clone(block)],
            )?
        };
        *emptied = into.ticket();
        at += length;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
