//! The first GPU, used as a client of an MPS daemon does.

use crate::device::Backend;
use crate::device::cuda::CudaBackend;

/// Makes memory on it.
///
/// # Errors
/// The reason of the driver.
pub fn use_first() -> Result<(), String> {
    let used = CudaBackend::open(0).and_then(|gpu| gpu.create_chunk(gpu.granularity()));
    used.map(drop).map_err(|error| error.to_string())
}
