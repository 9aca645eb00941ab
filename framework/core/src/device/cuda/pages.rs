//! Clock pages that GPUs can write and wait on.
//!
//! A page is registered with the driver once per process, by address, when a stream first needs it, and stays so for
//! the life of the process: unregistering waits for everything on the device, and while it does, every other call of
//! the process waits as well. With one stream waiting for a clock, that is a deadlock (seen on an H200, driver 580).
//! What stays is one page of 4 KiB for each life of each peer; no descriptor.

#![expect(unsafe_code, reason = "registers host memory")]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::super::DeviceError;
use super::Shared;
use crate::clock::ClockPage;
use crate::os::Mapping;

/// A page that devices can reach.
struct Registered {
    /// Never unmapped, because never unregistered.
    _mapping: Arc<Mapping>,
    /// Where each device sees it, by the device's handle.
    addresses: SmallVec<[(i32, u64); 2]>,
}

static PAGES: Mutex<Option<HashMap<usize, Registered>>> = Mutex::new(None);

/// Where the device sees a page, which is registered if it is not yet. Valid for the life of the process.
pub(super) fn address(shared: &Shared, page: &ClockPage) -> Result<u64, DeviceError> {
    let mapping = page.mapping();
    let mut pages = PAGES.lock();
    let page = match pages.get_or_insert_default().entry(mapping.addr() as usize) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => {
            shared.bind()?;
            // SAFETY: kept below for the life of the process, where nothing can fail before.
            unsafe { shared.driver.register(mapping.addr(), mapping.len(), mapping.access())? };
            place.insert(Registered { _mapping: Arc::clone(mapping), addresses: SmallVec::new() })
        }
    };
    if let Some((_, address)) = page.addresses.iter().find(|(device, _)| *device == shared.device) {
        return Ok(*address);
    }
    shared.bind()?;
    let address = shared.driver.device_address(mapping.addr())?;
    page.addresses.push((shared.device, address));
    Ok(address)
}
