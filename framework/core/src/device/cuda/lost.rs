//! Detects a device that this process has lost. After a kernel's fault every call fails, in all contexts of
//! the process, and only a new process can use the device again.
//!
//! The values that the process had promised on its clocks never come. So a worker tells the node why, and
//! ends; then its waiters are released as after any death (DEATH-1). No other process is affected, unless
//! they share the GPU through MPS.
//!
//! The first call that fails reports the loss. A process may make no call for a long time, and a kernel's
//! fault wakes nobody, so a thread asks the driver ten times a second. That finds faults of this process. A
//! fault of another client of the same MPS server does not show on an idle stream: it only shows once work is
//! put on the GPU ([`probe`]).

#![expect(unsafe_code, reason = "has the device write")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::super::DeviceError;
use super::pinned::Word;
use super::{BACKENDS, Shared};
use crate::os::vital;

/// How long a fault may go unnoticed in a process that makes no calls.
const LOOK_EVERY: Duration = Duration::from_millis(100);

static TOLD: AtomicBool = AtomicBool::new(false);

/// Returns whether a device was lost. Then clocks stand still, and submitted work is never done.
pub(super) fn is_lost() -> bool {
    TOLD.load(Ordering::Relaxed)
}

/// Reports an error if it says that a device is lost.
pub(super) fn tell(error: &DeviceError) {
    if TOLD.swap(true, Ordering::Relaxed) {
        return;
    }
    tracing::error!(%error, "a GPU is lost to this process");
    vital::fail_with_gpu(&format!("a GPU was lost to it: {error}"));
}

/// Puts work on each open device, and waits until it is done. Returns whether all devices are still there.
/// May wait for the driver.
pub(crate) fn probe() -> bool {
    let open: Vec<_> = BACKENDS.lock().values().map(Arc::clone).collect();
    for backend in open {
        // A loss is reported where the error is made. Any other error, such as a lack of memory, is no loss.
        if let Err(error) = try_out(&backend.shared) {
            tracing::debug!(%error, "a GPU could not be tried out");
        }
    }
    !is_lost()
}

/// Makes the device do a small piece of work, and waits until it is done.
fn try_out(shared: &Arc<Shared>) -> Result<(), DeviceError> {
    shared.bind()?;
    let word = Word::take(shared)?;
    let stream = &shared.housekeeping;
    // SAFETY: the word belongs to this function until the work is done, for which `finish` waits. If that
    // fails, it belongs to it for ever.
    let done = shared
        .finish(stream, || unsafe { shared.driver.fill(stream, word.device_address(), size_of::<u64>(), 0) });
    if done.is_err() {
        // The word is leaked: the device could still write it over for its next user.
        std::mem::forget(word);
    }
    done
}

/// Starts the thread that checks a device.
pub(super) fn watch(shared: &Arc<Shared>) {
    let watched = Arc::clone(shared);
    let name = format!("tp-watch-{}", shared.context.ordinal());
    let started = thread::Builder::new().name(name).spawn(move || {
        while !is_lost() {
            thread::park_timeout(LOOK_EVERY);
            // This call costs the GPU nothing. An error is reported where it is made.
            let _ = watched.bind().and_then(|()| watched.driver.is_idle(&watched.housekeeping));
        }
    });
    if let Err(error) = started {
        tracing::warn!(%error, "a fault of this process's kernels will only be noticed by the next call");
    }
}
