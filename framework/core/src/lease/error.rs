//! Errors of allocation from a pool.

use crate::device::DeviceError;
use crate::limits::MAX_POOL_CHUNKS;

/// Why an allocation failed. Nothing was taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Larger than the pool may ever be.
    #[error(
        "a tensor of {asked} bytes can never fit the pool of {device}, whose budget is {budget} bytes; raise the \
         budget (`host_budget`, `gpu_budget`), or split the tensor"
    )]
    TooLarge {
        /// The device.
        device: String,
        /// Bytes asked for.
        asked: u64,
        /// Budget in bytes.
        budget: u64,
    },
    /// No room now; dropping tensors makes some. A retry makes sense.
    #[error(
        "the pool of {device} is full: {asked} bytes asked for, {in_use} of {budget} bytes in use{}; drop tensors that are not needed \
         any more, wait for some with `empty_when_free`, or raise the budget (`host_budget`, `gpu_budget`). {holders}",
        at_the_bound(*.chunks)
    )]
    Full {
        /// The device.
        device: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes in use or waiting for their last use to pass.
        in_use: u64,
        /// Budget in bytes.
        budget: u64,
        /// Chunks that it has; at most 64.
        chunks: usize,
        /// The largest holders, by process, and for how long.
        holders: String,
    },
    /// The device has too little free memory for the pool to grow within its budget: other processes of the
    /// node, or programs outside it, use the device.
    #[error(
        "{device} has no room for {chunk} more bytes, for a tensor of {asked}; this process has {in_use} bytes there, within \
         its budget of {budget}: lower the budgets, end what else uses the device, or raise a limit of memory (ulimit -v, \
         memory.max of the cgroup). {holders}"
    )]
    NoRoom {
        /// The device.
        device: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes that the pool wanted to grow by.
        chunk: u64,
        /// Bytes of the pool's chunks.
        in_use: u64,
        /// Budget in bytes.
        budget: u64,
        /// The largest holders of this pool's memory, by process, and for how long.
        holders: String,
        /// The error of the device.
        #[source]
        source: Box<DeviceError>,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Returns the part of the message for a pool that has reached its limit of chunks: bytes of the budget may
/// be left, but the pool cannot add a chunk.
fn at_the_bound(chunks: usize) -> String {
    if chunks < MAX_POOL_CHUNKS {
        return String::new();
    }
    format!(
        ", in {chunks} chunks, the most that there may be: make fewer and larger tensors, or a larger first chunk"
    )
}
