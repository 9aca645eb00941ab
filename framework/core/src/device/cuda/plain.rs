//! Memory of `cuMemAlloc`, for libraries that cannot use chunks at speed: NIXL writes to those at 0.5 GB/s,
//! and to this at 250.
//!
//! It is never freed, because `cuMemFree` may wait for the whole device; who wants as much again gets what
//! was given back.

#![expect(unsafe_code, reason = "vouches for memory of the driver's")]

use std::sync::Arc;

use parking_lot::Mutex;

use super::super::{Access, ChunkMapping, DeviceError};
use super::Shared;

/// What was given back: addresses and lengths.
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
    // SAFETY: memory of this device of this length, which is the holder's until it is dropped; nothing refers
    // to it.
    Ok(unsafe { ChunkMapping::new(at, bytes, Access::ReadWrite, shared.id, holder) })
}
