//! Chunks of device memory: made or imported by descriptor, mapped at an address of this process.
//!
//! A mapping keeps its memory, and so does every descriptor of it, in any process. So the handle is released
//! as soon as the chunk is mapped, and the death of the process that made the chunk takes nothing from the
//! others (LEASE-4).

#![expect(unsafe_code, reason = "maps device memory")]

use std::sync::Arc;

use super::super::{Access, ChunkMapping, DeviceError};
use super::Shared;
use super::driver::Driver;

/// A handle to memory, released when dropped.
pub(super) struct Handle {
    driver: &'static Driver,
    raw: u64,
}

impl Handle {
    /// Takes over a handle that the driver just returned.
    pub(super) fn new(driver: &'static Driver, raw: u64) -> Self {
        Handle { driver, raw }
    }

    pub(super) fn raw(&self) -> u64 {
        self.raw
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(error) = self.driver.release(self.raw) {
            tracing::warn!(%error, "a handle of device memory was not released");
        }
    }
}

/// A range of addresses with memory in it; both are given back on drop.
struct Mapped {
    shared: Arc<Shared>,
    address: u64,
    bytes: u64,
    /// Whether memory was mapped into the range yet.
    is_mapped: bool,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Mapped { shared, address, bytes, is_mapped } = self;
        let give_back = || -> Result<(), DeviceError> {
            shared.bind()?;
            if *is_mapped {
                // SAFETY: the range was mapped as a whole with this length. Work that uses it keeps the
                // mapping.
                unsafe { shared.driver.unmap(*address, *bytes)? };
            }
            // SAFETY: the range was reserved with this length, and nothing is mapped in it any more.
            unsafe { shared.driver.free_range(*address, *bytes) }
        };
        if let Err(error) = give_back() {
            tracing::warn!(%error, bytes, "a chunk of device memory was not unmapped");
        }
    }
}

/// Maps the first `bytes` bytes of a handle's memory, for this device and for those that can reach it.
pub(super) fn map(
    shared: &Arc<Shared>,
    handle: &Handle,
    bytes: u64,
    access: Access,
) -> Result<Arc<ChunkMapping>, DeviceError> {
    let driver = shared.driver;
    let address = driver.reserve(bytes)?;
    let mut mapped = Mapped { shared: Arc::clone(shared), address, bytes, is_mapped: false };
    // SAFETY: the range was just reserved with this length.
    unsafe { driver.map(address, bytes, handle.raw())? };
    mapped.is_mapped = true;
    let all: Vec<i32> = std::iter::once(shared.device).chain(shared.peers.iter().copied()).collect();
    if let Err(error) = driver.set_access(address, bytes, access, &all) {
        if shared.peers.is_empty() {
            return Err(error);
        }
        tracing::debug!(%error, "peer GPUs get no access to a chunk");
        driver.set_access(address, bytes, access, &[shared.device])?;
    }
    // SAFETY: `mapped` keeps the range until it is dropped and gives out no references into it.
    Ok(unsafe { ChunkMapping::new(address, bytes, access, shared.id, Box::new(mapped)) })
}
