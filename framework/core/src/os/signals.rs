//! Signals that are the node's business, in its workers.
//!
//! A service manager, a scheduler or a container's end sends `SIGTERM` to all processes at once, and a closed
//! terminal `SIGHUP`. The node lets everything under way finish then, so a worker does nothing of its own: it
//! ends when the node says so, by `SIGKILL`, or with it.
//!
//! A signal that comes while a worker starts waits until the worker [leaves it to the node](leave_to_node).
//! What a worker starts by `exec` has the system's own ways again. What is forked from it ends as it would
//! have without this: pools end their processes so.

#![expect(unsafe_code, reason = "Rust has no handlers of signals, and no way between fork and exec")]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use libc::{c_int, sigaction, sigset_t};

const SIGNALS: [c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The process that leaves them to its node; 0 before.
static WORKER: AtomicI32 = AtomicI32::new(0);

/// What was to be done before.
static BEFORE: [OnceLock<Before>; SIGNALS.len()] = [const { OnceLock::new() }; SIGNALS.len()];

struct Before(sigaction);

// SAFETY: it is a number, a mask and the address of a function, and is only handed back to the kernel.
unsafe impl Send for Before {}
// SAFETY: as above.
unsafe impl Sync for Before {}

/// Called between any two instructions, so it calls only what may be called there: `getpid`, `sigaction` and
/// `raise`.
extern "C" fn left_to_node(signal: c_int) {
    // SAFETY: it takes nothing.
    if unsafe { libc::getpid() } == WORKER.load(Ordering::Relaxed) {
        return;
    }
    let known = SIGNALS.iter().position(|known| *known == signal).and_then(|at| BEFORE[at].get());
    if let Some(Before(before)) = known {
        // SAFETY: the kernel gave it for this signal. The second comes when this handler has returned, which
        // blocks it.
        unsafe {
            libc::sigaction(signal, before, std::ptr::null_mut());
            libc::raise(signal);
        }
    }
}

fn set() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call makes the set, and the signals exist.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in SIGNALS {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Has a child begin with these signals blocked.
pub(crate) fn hold_back(command: &mut Command) -> &mut Command {
    let set = set();
    let block = move || {
        // SAFETY: the set is whole, and nothing is asked for. It may be called between fork and exec.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    };
    // SAFETY: `block` calls nothing but `pthread_sigmask`, and allocates nothing.
    unsafe { command.pre_exec(block) }
}

/// From here on this process, which a node has started, leaves these signals to its node. To be called on its
/// main thread, first of all.
pub(crate) fn leave_to_node() {
    // SAFETY: it takes nothing.
    WORKER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    let set = set();
    for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
        let mut found = MaybeUninit::<sigaction>::zeroed();
        // SAFETY: zeros are a value of this struct, whose fields are filled; the handler is of the form that
        // no flag changes. The old action is written where the call succeeds, and it does for signals that
        // exist and can be handled.
        unsafe {
            if libc::sigaction(signal, std::ptr::null(), found.as_mut_ptr()) != 0 {
                continue;
            }
            // First: the handler may be called as soon as there is one.
            let _ = before.set(Before(found.assume_init()));
            let mut action = MaybeUninit::<sigaction>::zeroed().assume_init();
            action.sa_sigaction = left_to_node as extern "C" fn(c_int) as usize;
            action.sa_flags = libc::SA_RESTART;
            action.sa_mask = set;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
    // SAFETY: the set is whole. What came until now is handled here, and so is left to the node too.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
}
