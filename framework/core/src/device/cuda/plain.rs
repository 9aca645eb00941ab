//! Memory of `cuMemAlloc`, for libraries that cannot use chunks at full speed: NIXL writes to chunks at 0.5
//! GB/s, and to this memory at 250.
//!
//! It is never freed, because `cuMemFree` may wait for the whole device. The next request for the same length
//! gets memory that was given back.

#![expect(unsafe_code, reason = "vouches for memory of the driver's")]

use std::sync::Arc;

use parking_lot::Mutex;

use super::super::{Access, ChunkMapping, DeviceError};
use super::Shared;

/// The memory that was given back: addresses and lengths.
#[derive(Default)]
pub(super) struct Free(Mutex<Vec<(u64, u64)>>);

struct Plain {
    shared: Arc<Shared>,
    at: u64,
    bytes: u64,
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.shared.plain.0.lock().push((self.at, self.bytes));
    }
}

pub(super) fn take(shared: &Arc<Shared>, bytes: u64) -> Result<Arc<ChunkMapping>, DeviceError> {
    let known = {
        let mut free = shared.plain.0.lock();
        let found = free.iter().position(|(_, length)| *length == bytes);
        found.map(|index| free.swap_remove(index).0)
    };
    let at = match known {
        Some(at) => at,
        None => {
            shared.bind()?;
            shared.driver.alloc(bytes as usize).map_err(shared.no_room(bytes))?
        }
    };
    let holder = Box::new(Plain { shared: Arc::clone(shared), at, bytes });
    // SAFETY: this is memory of this device and of this length, which the holder owns until it is dropped;
    // nothing else refers to it.
    Ok(unsafe { ChunkMapping::new(at, bytes, Access::ReadWrite, shared.id, holder) })
}
