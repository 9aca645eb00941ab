//! GPUs: the handles by which libraries name streams to each other, and the order between our streams and
//! theirs.

#![expect(unsafe_code, reason = "streams of other libraries are raw handles")]

use cudarc::driver::result::{event, free_sync, malloc_sync, stream as raw_stream};
use cudarc::driver::sys::{CUevent_flags, CUevent_wait_flags};
use tensorpost_core::tensor::DeviceStream;

/// `cudaStreamLegacy`, which waits for the work of all streams that were not made as non-blocking.
pub(crate) const LEGACY: u64 = 1;

/// Returns the number of the stream's GPU in this process; `None` for the host.
pub(crate) fn ordinal(stream: &DeviceStream) -> Option<i32> {
    i32::try_from(stream.cuda_context().ok()?.ordinal()).ok()
}

/// Returns the stream's handle, by which other libraries name it.
pub(crate) fn handle(stream: &DeviceStream) -> Option<u64> {
    Some(stream.cuda_stream().ok()?.cu_stream() as u64)
}

/// Allocates memory of the GPU of `of` outside of any pool, as any CUDA library does.
///
/// # Errors
/// The GPU is full, or the driver refuses.
pub(crate) fn allocate(of: &DeviceStream, bytes: usize) -> Result<u64, String> {
    bind(of)?;
    // SAFETY: the caller does not read the memory before it was written, as with any library's memory.
    unsafe { malloc_sync(bytes) }.map_err(|error| error.to_string())
}

/// Frees memory when all work with it has passed.
///
/// # Safety
/// The memory comes from [`allocate`] for this GPU, and only work that was enqueued before still uses it.
///
/// # Errors
/// The driver refuses.
pub(crate) unsafe fn free(of: &DeviceStream, address: u64) -> Result<(), String> {
    bind(of)?;
    // SAFETY: the caller's promise. The driver waits for the work.
    unsafe { free_sync(address) }.map_err(|error| error.to_string())
}

fn bind(of: &DeviceStream) -> Result<(), String> {
    let context = of.cuda_context().map_err(|error| error.to_string())?;
    context.bind_to_thread().map_err(|error| error.to_string())
}

/// Puts `behind` after all work that `first` has been given; both are streams of the GPU of `of`. The host
/// does not wait.
///
/// # Safety
/// Both are existing streams, or [`LEGACY`].
///
/// # Errors
/// The driver refuses.
pub(crate) unsafe fn order(of: &DeviceStream, first: u64, behind: u64) -> Result<(), String> {
    if first == behind {
        return Ok(());
    }
    bind(of)?;
    let event = event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(|error| error.to_string())?;
    // SAFETY: the event was just made, in the context of both streams, which exist, as the caller promises.
    // The driver keeps a destroyed event's work until it has passed.
    unsafe {
        let ordered = event::record(event, first as _).and_then(|()| {
            raw_stream::wait_event(behind as _, event, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
        });
        let destroyed = event::destroy(event);
        ordered.and(destroyed).map_err(|error| error.to_string())
    }
}
