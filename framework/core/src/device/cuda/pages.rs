//! Clock pages that GPUs can write and wait on.
//!
//! A page is registered with the driver once per process, by address, when a stream first needs it.
//! Unregistering waits for all work that this process has on the device, and meanwhile every other call of
//! the process waits as well. If one stream waits for a clock, that is a deadlock (seen on an H200, driver
//! 580). So the page of a dead process is unregistered only while every stream here is idle. All streams are
//! locked then, so that none is given a wait meanwhile. The call may wait for a kernel that the user launches
//! in that moment; the kernel ends by itself, as no wait can be in front of it.
//!
//! A thread looks for such a moment; the driver has no event for it. It starts when a page is registered
//! while others are unused, or when the process looks for idle resources.

#![expect(unsafe_code, reason = "registers host memory")]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::super::DeviceError;
use super::stream::Core;
use super::{BACKENDS, Shared};
use crate::clock::ClockPage;
use crate::os::Mapping;

/// A page that devices can reach.
struct Registered {
    /// Mapped as long as the page is registered.
    mapping: Arc<Mapping>,
    /// The address at which each device sees the page, by the device's handle.
    addresses: SmallVec<[(i32, u64); 2]>,
}

static PAGES: Mutex<Option<HashMap<usize, Registered>>> = Mutex::new(None);

impl Registered {
    /// Returns whether only this table has the page, so that no stream can be told to wait for it any more.
    /// Only an owner of an [`Arc`] can clone it. Here there is no other owner, and the table is locked.
    fn is_nobodys(&self) -> bool {
        Arc::strong_count(&self.mapping) == 1
    }
}

/// The first and the longest time between two looks for a moment without work.
const NAPS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// Returns the address at which the device sees a page, and registers the page if it is not registered yet.
/// The address is valid while the caller has the page, and after that until no stream has work.
pub(super) fn address(shared: &Shared, page: &ClockPage) -> Result<u64, DeviceError> {
    let mapping = page.mapping();
    let mut table = PAGES.lock();
    let pages = table.get_or_insert_default();
    let mut is_new = false;
    let page = match pages.entry(mapping.addr() as usize) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => {
            shared.bind()?;
            // SAFETY: the mapping is kept below until it is unregistered, and nothing can fail before that.
            unsafe { shared.driver.register(mapping.addr(), mapping.len(), mapping.access())? };
            is_new = true;
            place.insert(Registered { mapping: Arc::clone(mapping), addresses: SmallVec::new() })
        }
    };
    let known = page.addresses.iter().find(|(device, _)| *device == shared.device);
    let address = match known {
        Some((_, address)) => *address,
        None => {
            shared.bind()?;
            let address = shared.driver.device_address(mapping.addr())?;
            page.addresses.push((shared.device, address));
            address
        }
    };
    if is_new && pages.values().any(Registered::is_nobodys) {
        tidy();
    }
    Ok(address)
}

/// Starts a thread that unregisters pages of processes that have ended, if there are any.
pub(super) fn look() {
    let has_some = PAGES.lock().as_ref().is_some_and(|pages| pages.values().any(Registered::is_nobodys));
    if has_some {
        tidy();
    }
}

/// Starts a thread that unregisters unused pages, unless one is at work.
fn tidy() {
    static TIDYING: AtomicBool = AtomicBool::new(false);
    if TIDYING.swap(true, Ordering::AcqRel) {
        return;
    }
    let started = thread::Builder::new().name("tp-pages".into()).spawn(|| {
        let mut nap = NAPS[0];
        loop {
            thread::sleep(nap);
            match let_go() {
                Ok(true) => break,
                Ok(false) => nap = (2 * nap).min(NAPS[1]),
                Err(error) => {
                    // The device is lost to this process, which ends.
                    tracing::debug!(%error, "clock pages of processes that have ended are kept");
                    break;
                }
            }
        }
        TIDYING.store(false, Ordering::Release);
    });
    if let Err(error) = started {
        // The next page that is registered tries again.
        tracing::debug!(%error, "clock pages of processes that have ended are kept for now");
        TIDYING.store(false, Ordering::Release);
    }
}

/// Unregisters the unused pages, if no stream has work. Returns whether none is left. Waits neither for a
/// stream nor for a thread that has one locked.
pub(super) fn let_go() -> Result<bool, DeviceError> {
    let mut table = PAGES.lock();
    let Some(pages) = table.as_mut() else { return Ok(true) };
    if !pages.values().any(Registered::is_nobodys) {
        return Ok(true);
    }
    let Some(shared) = BACKENDS
        .try_lock()
        .map(|backends| backends.values().map(|backend| Arc::clone(&backend.shared)).collect::<Vec<_>>())
    else {
        return Ok(false);
    };
    let Some(first) = shared.first() else { return Ok(false) };
    // Streams that are made from here on wait for these locks, or for the table's.
    let streams: Vec<_> = shared.iter().map(|shared| shared.streams.cores()).collect();
    let cores: Vec<Arc<Core>> =
        streams.iter().flat_map(|cores| cores.iter().filter_map(Weak::upgrade)).collect();
    let mut held = Vec::with_capacity(cores.len());
    for core in &cores {
        match core.hold_if_idle()? {
            Some(order) => held.push(order),
            None => return Ok(false),
        }
    }
    first.bind()?;
    let nobodys: Vec<usize> = pages.iter().filter(|(_, page)| page.is_nobodys()).map(|(at, _)| *at).collect();
    for at in nobodys {
        let Some(page) = pages.remove(&at) else { continue };
        // SAFETY: the page was registered at this address. No stream has work, and none gets any while all
        // are locked. No clock of a stream of this process is on the page, because the process's own page is
        // never unused while it has streams.
        if let Err(error) = unsafe { first.driver.unregister(page.mapping.addr()) } {
            // The page may still be reachable, so it is never unmapped.
            std::mem::forget(page.mapping);
            return Err(error);
        }
    }
    Ok(true)
}

/// Returns whether a page that is mapped here is registered.
#[cfg(test)]
pub(super) fn is_registered(at: usize) -> bool {
    PAGES.lock().as_ref().is_some_and(|pages| pages.contains_key(&at))
}
