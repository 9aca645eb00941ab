//! Signals that workers leave to their node.
//!
//! A service manager, a scheduler or the end of a container sends `SIGTERM` to all processes at once, and a
//! closed terminal sends `SIGHUP`. The node then lets everything under way finish, so a worker does not react
//! to the signal: it ends when the node says so, by `SIGKILL`, or when the node ends.
//!
//! A signal that comes while a worker starts waits until the worker [leaves it to the node](leave_to_node).
//! Programs that a worker starts by `exec` have the system's default actions again. Processes forked from a
//! worker end as they would have without this module, because process pools end their processes that way.

#![expect(unsafe_code, reason = "Rust has no handlers of signals, and no way between fork and exec")]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use libc::{c_int, sigaction, sigset_t};

const SIGNALS: [c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The process that leaves these signals to its node; 0 before.
static WORKER: AtomicI32 = AtomicI32::new(0);

/// The actions before the handlers were set.
static BEFORE: [OnceLock<Before>; SIGNALS.len()] = [const { OnceLock::new() }; SIGNALS.len()];

struct Before(sigaction);

// SAFETY: it is a number, a mask and the address of a function, and is only handed back to the kernel.
unsafe impl Send for Before {}
// SAFETY: as above.
unsafe impl Sync for Before {}

/// Handles a signal. It may run between any two instructions, so it calls only functions that are allowed
/// there: `getpid`, `sigaction` and `raise`.
extern "C" fn left_to_node(signal: c_int) {
    // SAFETY: it takes nothing.
    if unsafe { libc::getpid() } == WORKER.load(Ordering::Relaxed) {
        return;
    }
    let known = SIGNALS.iter().position(|known| *known == signal).and_then(|at| BEFORE[at].get());
    if let Some(Before(before)) = known {
        // SAFETY: the kernel gave this action for this signal. The raised signal is delivered when this
        // handler has returned, because the handler blocks it.
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

/// Makes a child start with these signals blocked.
pub(crate) fn hold_back(command: &mut Command) -> &mut Command {
    let set = set();
    let block = move || {
        // SAFETY: the set is initialised, and the old mask is not asked for. The call is allowed between fork
        // and exec.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    };
    // SAFETY: `block` calls nothing but `pthread_sigmask`, and allocates nothing.
    unsafe { command.pre_exec(block) }
}

/// Makes this process, which a node has started, leave these signals to its node. Call it first, on the main
/// thread.
pub(crate) fn leave_to_node() {
    // SAFETY: it takes nothing.
    WORKER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    let set = set();
    for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
        let mut found = MaybeUninit::<sigaction>::zeroed();
        // SAFETY: zeros are a value of this struct, and its fields are filled; without flags the handler
        // takes this form. The kernel writes the old action where the call succeeds, and it succeeds for
        // signals that exist and can be handled.
        unsafe {
            if libc::sigaction(signal, std::ptr::null(), found.as_mut_ptr()) != 0 {
                continue;
            }
            // Store the old action first: the handler may run as soon as it is set.
            let _ = before.set(Before(found.assume_init()));
            let mut action = MaybeUninit::<sigaction>::zeroed().assume_init();
            action.sa_sigaction = left_to_node as extern "C" fn(c_int) as usize;
            action.sa_flags = libc::SA_RESTART;
            action.sa_mask = set;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
    // SAFETY: the set is initialised. Signals that came until now are delivered here, and so are left to the
    // node too.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
}
