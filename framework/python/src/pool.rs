//! Puts PyTorch's allocations into the process's own pool, so that a handler's new tensors can be sent
//! without a copy.
//!
//! `torch.cuda.memory.CUDAPluggableAllocator` looks up the two functions at the end by their names in this
//! library. PyTorch takes segments for many tensors, works in them on the actor's stream and keeps them: each
//! is one allocation of the pool. The budget of the pool bounds the memory that is lent out, and not the
//! memory that an actor uses itself. If the pool has no room, a segment is GPU memory outside of any pool,
//! and tensors in it are copied when they are sent.

#![expect(unsafe_code, reason = "PyTorch calls C functions")]

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pyo3::prelude::*;
use tensorpost_core::bindings::seen_as;
use tensorpost_core::os::PerProcess;
use tensorpost_core::tensor::{DType, DeviceStream, Tensor, TensorError};

use crate::cuda;
use crate::lent_out::{self, Handed};

/// Streams, each with its GPU's number and its handle.
type Streams = Mutex<Vec<(i32, u64, DeviceStream)>>;

/// The streams of this process's actors, in whose memory PyTorch allocates.
static STREAMS: PerProcess<Streams> = PerProcess::new(Mutex::default);

/// The segments that PyTorch has taken, by address.
static TAKEN: PerProcess<Mutex<HashMap<u64, Segment>>> = PerProcess::new(Mutex::default);

#[expect(clippy::large_enum_variant, reason = "one for each segment of PyTorch, and nearly all are pooled")]
enum Segment {
    /// An allocation of the pool.
    Pooled { tensor: Tensor, stream: DeviceStream, _known: Arc<Handed> },
    /// Memory that is in no pool.
    Private(DeviceStream),
}

/// Whether the log has said that the pool had no room.
static TOLD: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The stream that we have set as PyTorch's current stream on this thread.
    static WORKS_ON: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes PyTorch work on this stream, on this thread.
pub(crate) fn work_on(py: Python<'_>, stream: &DeviceStream) -> PyResult<()> {
    let (Some(handle), Some(ordinal)) = (cuda::handle(stream), cuda::ordinal(stream)) else { return Ok(()) };
    if WORKS_ON.get() == Some(handle) {
        return Ok(());
    }
    py.import("tensorpost._torch")?.call_method1("work_on", (ordinal, handle))?;
    WORKS_ON.set(Some(handle));
    Ok(())
}

/// Returns the stream that PyTorch works on, on this thread, as DLPack numbers it.
pub(crate) fn current(py: Python<'_>, stream: &DeviceStream) -> PyResult<i64> {
    py.import("tensorpost._torch")?.call_method1("current", (cuda::ordinal(stream),))?.extract()
}

/// Lets PyTorch allocate memory for this stream.
pub(crate) fn open_for(stream: &DeviceStream) {
    if let (Some(ordinal), Some(handle)) = (cuda::ordinal(stream), cuda::handle(stream)) {
        let mut streams = STREAMS.get().lock();
        streams.retain(|(_, known, _)| *known != handle);
        streams.push((ordinal, handle, stream.clone()));
    }
}

/// Allocates memory for PyTorch's work on the stream `works_on`.
fn take(ordinal: i32, bytes: usize, works_on: u64) -> Result<u64, TensorError> {
    let stream = {
        let streams = STREAMS.get().lock();
        let mut here = streams.iter().filter(|(known, ..)| *known == ordinal);
        let own = here.clone().find(|(_, handle, _)| *handle == works_on);
        own.or_else(|| here.next()).map(|(.., stream)| stream.clone())
    };
    let refused = |why: String| TensorError::DlPack { why };
    let stream = stream.ok_or_else(|| refused(format!("no actor here works on cuda:{ordinal}")))?;
    let tensor = match stream.empty(DType::U8, &[bytes]) {
        Ok(made) => made.freeze(),
        Err(TensorError::Pool(full)) => {
            let Ok(address) = cuda::allocate(&stream, bytes) else { return Err(full.into()) };
            if !TOLD.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "PyTorch allocates beyond the pool, and tensors that lie there are copied when they are sent; `gpu_budget=` of \
                     `tp.Node` or of `spawn` gives the pool more. {full}"
                );
            }
            TAKEN.get().lock().insert(address, Segment::Private(stream));
            return Ok(address);
        }
        Err(error) => return Err(error),
    };
    if let Some(own) = cuda::handle(&stream) {
        // Our stream waits for the last user of the memory, and a side stream must come behind that too
        // (CLOCK-2). SAFETY: PyTorch allocates for an existing stream.
        unsafe { cuda::order(&stream, own, works_on) }.map_err(refused)?;
    }
    let (address, known) = lent_out::pool(&tensor, &stream)?;
    TAKEN.get().lock().insert(address, Segment::Pooled { tensor, stream, _known: known });
    Ok(address)
}

/// Allocates memory for PyTorch; null if there is none.
#[unsafe(no_mangle)]
extern "C" fn tensorpost_alloc(bytes: isize, ordinal: c_int, stream: *mut c_void) -> *mut c_void {
    let taken = std::panic::catch_unwind(|| take(ordinal, bytes.max(1) as usize, stream as u64));
    match taken {
        Ok(Ok(address)) => std::ptr::with_exposed_provenance_mut(address as usize),
        Ok(Err(error)) => {
            tracing::warn!(%error, "PyTorch gets no memory, of the pool or the GPU");
            null_mut()
        }
        Err(_) => null_mut(),
    }
}

/// Frees memory for PyTorch: only work that is already on its stream still uses it.
#[unsafe(no_mangle)]
extern "C" fn tensorpost_free(address: *mut c_void, _: isize, _: c_int, _: *mut c_void) {
    let address = address.expose_provenance() as u64;
    let segment = TAKEN.get().lock().remove(&address);
    match segment {
        None => {}
        Some(Segment::Pooled { tensor, stream, _known }) => {
            let layout = *tensor.layout();
            // Its last use is the work that is on the stream by now.
            drop(seen_as(&tensor, DType::U8, layout, Some(Some(&stream))));
        }
        Some(Segment::Private(stream)) => {
            // SAFETY: it came from `cuda::allocate`, and PyTorch has released it.
            if let Err(error) = unsafe { cuda::free(&stream, address) } {
                tracing::warn!(error, "memory of a GPU was not given back");
            }
        }
    }
}
