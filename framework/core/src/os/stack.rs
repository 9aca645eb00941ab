//! Notices that a thread of a worker has overflowed its stack.
//!
//! Rust's runtime does so in programs that run `main`. A worker is taken over before `main`, so that runtime
//! never began there, and an overflow would be a fault like any other. This module watches the worker's main
//! thread, those of actors with a thread of their own, and the framework's own, some of which run closures of
//! users.
//!
//! The handler runs on a stack of its own. The thread that it stopped may hold any lock. So the handler only
//! notes the thread's name, rings a doorbell, and waits. The control thread hears the doorbell, tells the
//! node, and ends the process. **If it does not** within [`TOLD_WITHIN`], and after every other fault, the
//! system's own action ends the process.

#![expect(unsafe_code, reason = "Rust has no handlers of signals, and no stacks for them")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use libc::{SIGSEGV, sigaction, siginfo_t, stack_t};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::EventFd;

/// Bytes of a handler's stack. The kernel puts the registers there, which take 11 KiB with AMX.
const HANDLER_STACK: usize = 64 << 10;

/// The least number of bytes below a stack that count as overflowed. The main thread has no guard pages: the
/// kernel does not let its stack grow.
const LEAST_GUARD: usize = 16 << 10;

/// How long an overflowed thread waits for the end of its process.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// The process whose threads are watched; 0 where none are.
static WORKER: AtomicI32 = AtomicI32::new(0);
/// The doorbell's descriptor.
static BELL: AtomicI32 = AtomicI32::new(-1);
static HAS_OVERFLOWED: AtomicBool = AtomicBool::new(false);
/// The name of the thread that has overflowed, with zeros at its end.
static NAME: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

thread_local! {
    /// The handler's stack of this thread; it goes with the thread.
    static STACK: Cell<Option<HandlerStack>> = const { Cell::new(None) };
}

/// Lies at the low end of a handler's stack, which grows towards it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Watched {
    mark: u64,
    /// The addresses at which a fault of the thread is an overflow.
    from: usize,
    to: usize,
}

const MARK: u64 = u64::from_ne_bytes(*b"tp-stack");

/// The memory of a handler's stack.
struct HandlerStack(*mut c_void);

/// Begins to watch this process, which is a worker, with its calling thread. After an overflow `bell` rings,
/// which stays open as long as the process runs; then call [`overflowed`]. A program that handles such faults
/// itself, as Rust's runtime does, goes on doing so.
pub(crate) fn begin(bell: &EventFd) {
    let mut found = MaybeUninit::<sigaction>::zeroed();
    // SAFETY: zeros are a value of this struct. The kernel writes the present action there, and reads the new
    // one, whose handler takes the form that its flags name.
    unsafe {
        if libc::sigaction(SIGSEGV, ptr::null(), found.as_mut_ptr()) != 0 {
            return;
        }
        let mut action = found.assume_init();
        if action.sa_sigaction != libc::SIG_DFL {
            return;
        }
        BELL.store(bell.as_fd().as_raw_fd(), Ordering::Relaxed);
        action.sa_sigaction = faulted as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(SIGSEGV, &raw const action, ptr::null_mut()) != 0 {
            return;
        }
        WORKER.store(libc::getpid(), Ordering::Relaxed);
    }
    watch();
}

/// Watches the calling thread until it ends, if this process is a watched worker.
pub(crate) fn watch() {
    if WORKER.load(Ordering::Relaxed) == 0 || has_handler_stack() {
        return;
    }
    let stack = guard().and_then(|(from, to)| HandlerStack::new(Watched { mark: MARK, from, to }));
    // An ending thread keeps nothing any more, and is not watched.
    let _ = STACK.try_with(|kept| kept.set(stack));
}

/// Returns the name of the thread that has overflowed its stack, if one has.
pub(crate) fn overflowed() -> Option<String> {
    // Pairs with the store in `ring`.
    if !HAS_OVERFLOWED.load(Ordering::Acquire) {
        return None;
    }
    let name = NAME.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
    let name: Vec<u8> = name.take_while(|byte| *byte != 0).collect();
    Some(String::from_utf8_lossy(&name).into_owned())
}

/// Returns the kernel's description of the calling thread's stack for handlers. Handlers may call it.
fn described() -> Option<stack_t> {
    let mut stack = MaybeUninit::<stack_t>::zeroed();
    // SAFETY: the call only writes the description, and zeros are a value of it.
    unsafe { (libc::sigaltstack(ptr::null(), stack.as_mut_ptr()) == 0).then(|| stack.assume_init()) }
}

fn has_handler_stack() -> bool {
    described().is_none_or(|stack| stack.ss_flags & libc::SS_DISABLE == 0)
}

/// Returns the addresses around the end of the calling thread's stack. Old C libraries count the guard pages
/// as a part of the stack.
fn guard() -> Option<(usize, usize)> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut low, mut size, mut guard) = (ptr::null_mut::<c_void>(), 0_usize, 0_usize);
    // SAFETY: the first call makes the attributes if it succeeds. Then they are read and given back.
    let is_known = unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let is_known = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut size) == 0
            && libc::pthread_attr_getguardsize(attributes.as_ptr(), &raw mut guard) == 0;
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        is_known
    };
    let (low, guard) = (low.addr(), guard.max(LEAST_GUARD));
    (is_known && size > guard).then(|| (low.saturating_sub(guard), low.saturating_add(guard)))
}

impl HandlerStack {
    /// Makes the stack that handlers use on the calling thread.
    fn new(watched: Watched) -> Option<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel picks a fresh range, so no existing memory is touched.
        let memory =
            unsafe { mmap_anonymous(ptr::null_mut(), HANDLER_STACK, access, MapFlags::PRIVATE) }.ok()?;
        let made = HandlerStack(memory);
        let stack = stack_t { ss_sp: memory, ss_flags: 0, ss_size: HANDLER_STACK };
        // SAFETY: the range is new, may be written, begins at a page, and is larger than the value. The stack
        // stays mapped until the drop, which takes it from the thread first.
        let is_set = unsafe {
            memory.cast::<Watched>().write(watched);
            libc::sigaltstack(&raw const stack, ptr::null_mut()) == 0
        };
        is_set.then_some(made)
    }
}

impl Drop for HandlerStack {
    fn drop(&mut self) {
        let none = stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: HANDLER_STACK };
        // SAFETY: the value drops on its thread, outside of handlers. Nothing uses the memory from here on.
        unsafe {
            libc::sigaltstack(&raw const none, ptr::null_mut());
            let _ = munmap(self.0, HANDLER_STACK);
        }
    }
}

/// Handles a fault. It may run between any two instructions, so it calls only functions that are allowed
/// there: `getpid`, `poll`, `prctl`, `raise`, `sigaction`, `sigaltstack` and `write`.
extern "C" fn faulted(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel describes the signal there.
    let (at, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    if code > 0 && is_overflow(at) && ring() {
        const WAIT_MS: c_int = 50;
        for _ in 0..TOLD_WITHIN.as_millis() / WAIT_MS as u128 {
            // SAFETY: it looks at no descriptor.
            unsafe { libc::poll(ptr::null_mut(), 0, WAIT_MS) };
        }
    }
    // SAFETY: zeros are the system's own action. An instruction that has faulted does so again when the
    // handler returns; a signal that somebody sent is raised again.
    unsafe {
        let default = MaybeUninit::<sigaction>::zeroed().assume_init();
        libc::sigaction(signal, &raw const default, ptr::null_mut());
        if code <= 0 {
            libc::raise(signal);
        }
    }
}

/// Whether a fault at this address is an overflow of the calling thread's stack.
fn is_overflow(at: usize) -> bool {
    let Some(stack) = described() else { return false };
    if stack.ss_flags & libc::SS_ONSTACK == 0 || stack.ss_size < size_of::<Watched>() {
        return false;
    }
    // SAFETY: the thread runs on that stack, so it is mapped. Another library may have made it; then these
    // bytes may be any, and the mark tells.
    let watched = unsafe { stack.ss_sp.cast::<Watched>().read_unaligned() };
    watched.mark == MARK && (watched.from..watched.to).contains(&at)
}

/// Notes the thread's name, and rings. Returns whether the doorbell's reader is in this process and hears it.
fn ring() -> bool {
    let (mut name, one) = ([0_u8; 16], 1_u64);
    // SAFETY: `getpid` takes nothing; the name is as long as the kernel writes it; 8 bytes are read of the
    // number.
    unsafe {
        if libc::getpid() != WORKER.load(Ordering::Relaxed) {
            return false;
        }
        libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr());
        let (words, _) = name.as_chunks::<8>();
        for (word, bytes) in NAME.iter().zip(words) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        // Pairs with the load in `overflowed`.
        HAS_OVERFLOWED.store(true, Ordering::Release);
        libc::write(BELL.load(Ordering::Relaxed), (&raw const one).cast(), size_of::<u64>()) > 0
    }
}
