//! Forks: a forked child has a copy of everything in this process, and must change nothing that the parent
//! shares with others.
//!
//! A fork copies the memory and the descriptors of a process, and one of its threads. In the child a ring's
//! position, an open ask or a lease means nothing; a shared page would have two writers (ONE-WRITER); the
//! threads that would answer are missing. So `pthread_atfork` notes each fork, and in the child
//!
//! * memory that this process writes for others is blank and private, or read-only ([`InForks`]);
//! * descriptors that belong to this process alone lead nowhere ([`Private`]): the other ends notice when the
//!   parent ends, and get no byte from a child;
//! * each value that was made before the fork knows that it is [inherited](Birth): calls on it return errors
//!   that say so ([`INHERITED`]), and its drop does nothing ([`Inert`]);
//! * statics, such as a thread that exists once in a process, are made anew ([`PerProcess`]).
//!
//! The first two hold for any code that the child runs. The others keep it from locks that missing threads
//! hold, and from waits for such threads. A child may read its parent's tensors in host memory; a write there
//! faults.
//!
//! A child that executes another program at once needs none of this. `vfork` and `posix_spawn` call no
//! handlers, and the thread that starts workers says so ([`forks_to_execute`]).
//!
//! **Locks.** The registry's lock: the handlers take it before a fork and release it after the fork in both
//! processes. Meanwhile the child does not allocate, log or wait.

#![expect(unsafe_code, reason = "maps, and handlers of the C library")]

use std::cell::{Cell, UnsafeCell};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The error text of every call on a value that a process inherited by a fork.
pub const INHERITED: &str = "this process was forked from one that has a node, and what belongs to that node works there \
                             alone: have the parent do it, or start a node in this process";

/// A counter alone on its cache lines, because each message reads it.
#[repr(align(128))]
struct Alone(AtomicU32);

/// Number of forks between the process that loaded this code and the running one. Only the child writes it.
static FORKS: Alone = Alone(AtomicU32::new(0));

thread_local! {
    /// See [`forks_to_execute`].
    static EXECUTES: Cell<bool> = const { Cell::new(false) };
}

/// The process that something was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth(u32);

impl Birth {
    /// Returns this process. From here on its forks are noticed.
    pub fn here() -> Self {
        watch();
        Self::now()
    }

    /// Returns this process, as [`here`](Self::here) does. The caller knows that a value of the node was made
    /// before, so forks are noticed already.
    #[inline]
    pub(crate) fn now() -> Self {
        Birth(FORKS.0.load(Ordering::Relaxed))
    }

    /// Returns whether this process was forked from that one since.
    #[inline]
    pub fn is_inherited(self) -> bool {
        self != Self::now()
    }
}

/// A value whose drop does nothing in a forked child. There it would wait for threads that do not exist, or
/// end something of the parent's.
#[derive(Debug)]
pub struct Inert<T> {
    birth: Birth,
    value: ManuallyDrop<T>,
}

impl<T> Inert<T> {
    /// Creates a value that belongs to this process.
    pub fn new(value: T) -> Self {
        Inert { birth: Birth::here(), value: ManuallyDrop::new(value) }
    }

    /// Returns the value; `None` where this process inherited it by a fork, and then leaves it as it is.
    pub fn into_inner(self) -> Option<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: it is taken once, because its owner is not dropped.
        (!this.is_inherited()).then(|| unsafe { ManuallyDrop::take(&mut this.value) })
    }

    /// Returns whether this process inherited it by a fork.
    pub fn is_inherited(&self) -> bool {
        self.birth.is_inherited()
    }
}

impl<T> Deref for Inert<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Inert<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Inert<T> {
    fn drop(&mut self) {
        if !self.is_inherited() {
            // SAFETY: nothing uses the value after this, which is called once.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A static that is made at the first use, and again in a forked child. The child leaves its parent's value
/// as it is.
pub struct PerProcess<T: 'static> {
    made: AtomicPtr<(Birth, T)>,
    make: fn() -> T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// Creates a static whose value `make` makes. Where two threads use it first at the same time, one of the
    /// two values is dropped.
    pub const fn new(make: fn() -> T) -> Self {
        PerProcess { made: AtomicPtr::new(std::ptr::null_mut()), make }
    }

    /// Returns this process's value.
    pub fn get(&'static self) -> &'static T {
        let known = self.made.load(Ordering::Acquire);
        // SAFETY: a pointer that is not null is a box that was leaked below, and that nobody writes.
        match unsafe { known.as_ref() } {
            Some((birth, value)) if !birth.is_inherited() => value,
            _ => self.make(known),
        }
    }

    #[cold]
    fn make(&'static self, known: *mut (Birth, T)) -> &'static T {
        let made = Box::into_raw(Box::new((Birth::here(), (self.make)())));
        match self.made.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it is the box, which is leaked.
            Ok(_) => unsafe { &(*made).1 },
            Err(other) => {
                // SAFETY: nobody else has seen it; the other is a box that was leaked here.
                unsafe {
                    drop(Box::from_raw(made));
                    &(*other).1
                }
            }
        }
    }
}

impl<T> std::fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

/// How a forked child sees a mapping that its parent writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InForks {
    /// Zeros of the child's own: nobody sees what the child writes there by mistake.
    Blank,
    /// The same bytes, read-only: a write faults.
    ReadOnly,
}

/// A descriptor that leads to nothing in a forked child. An example is the end of a socket by which the other
/// side notices that this process ended.
#[derive(Debug)]
pub struct Private<T: AsFd = OwnedFd> {
    fd: T,
    registered: bool,
}

impl<T: AsFd> Private<T> {
    /// Makes `fd` private: forks from here on do not have it.
    pub fn new(fd: T) -> Self {
        watch();
        let registered = !EXECUTES.get();
        if registered {
            let number = fd.as_fd().as_raw_fd();
            with_registry(|registry| {
                let open = || File::options().read(true).write(true).open("/dev/null").ok();
                registry.nothing = registry.nothing.take().or_else(open);
                registry.descriptors.push(number);
            });
        }
        Private { fd, registered }
    }

    /// Returns the descriptor; forks from here on have it.
    pub fn into_inner(self) -> T {
        let this = ManuallyDrop::new(self);
        this.forget();
        // SAFETY: it is read once, because its owner is not dropped.
        unsafe { std::ptr::read(&raw const this.fd) }
    }

    fn forget(&self) {
        if !self.registered {
            return;
        }
        let number = self.fd.as_fd().as_raw_fd();
        with_registry(|registry| {
            if let Some(at) = registry.descriptors.iter().position(|known| *known == number) {
                registry.descriptors.swap_remove(at);
            }
        });
    }
}

impl<T: AsFd> Deref for Private<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.fd
    }
}

impl<T: AsFd> AsFd for Private<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<T: AsFd> Drop for Private<T> {
    fn drop(&mut self) {
        // Forget the descriptor before closing it: its number could name another file when a child is told to
        // close it. A child that is made between the two steps has it, like any other descriptor.
        self.forget();
    }
}

/// Declares that forks of the calling thread from here on execute another program at once; they are not
/// noticed. The thread has a descriptor table of its own, in which nothing need be made [`Private`].
pub fn forks_to_execute() {
    EXECUTES.set(true);
}

/// Ends a forked child at once, without the exit handlers, which belong to its parent.
pub fn end(status: i32) -> ! {
    // SAFETY: it may be called at any time, and does not return.
    unsafe { libc::_exit(status) }
}

/// Everything that a child must not have.
struct Registry {
    pages: Vec<(usize, usize, InForks)>,
    descriptors: Vec<RawFd>,
    /// The null device, to which private descriptors lead in a child.
    nothing: Option<File>,
}

/// A registry with a lock of the C library, which a child may release.
struct Locked {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    registry: UnsafeCell<Registry>,
}

// SAFETY: the registry is only touched with the lock held.
unsafe impl Sync for Locked {}

static REGISTRY: Locked = Locked {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    registry: UnsafeCell::new(Registry { pages: Vec::new(), descriptors: Vec::new(), nothing: None }),
};

fn with_registry<R>(f: impl FnOnce(&mut Registry) -> R) -> R {
    lock();
    // SAFETY: the lock is held, and `f` does not come back here.
    let result = f(unsafe { &mut *REGISTRY.registry.get() });
    unlock();
    result
}

/// Hides the mapping from forked children from here on, as `how` says.
pub(super) fn keep_from_forks(addr: *mut u8, len: usize, how: InForks) {
    watch();
    with_registry(|registry| registry.pages.push((addr.addr(), len, how)));
}

/// Removes a mapping that is about to be unmapped.
pub(super) fn forget_mapping(addr: *mut u8) {
    with_registry(|registry| {
        if let Some(at) = registry.pages.iter().position(|(known, ..)| *known == addr.addr()) {
            registry.pages.swap_remove(at);
        }
    });
}

/// Makes forks noticed from here on.
fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // Miri knows no forks.
        #[cfg(not(miri))]
        // SAFETY: the three functions belong to this program, which is never unloaded, and do only what is
        // allowed in such handlers.
        let refused = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        #[cfg(miri)]
        let refused = 0;
        if refused != 0 {
            tracing::error!("forks of this process cannot be noticed: no memory for it");
        }
    });
}

unsafe extern "C" fn before() {
    lock();
}

unsafe extern "C" fn in_parent() {
    unlock();
}

/// Hides the parent's private state in the child. It does only what a signal handler may do, because other
/// threads may have held any lock.
unsafe extern "C" fn in_child() {
    if !EXECUTES.get() {
        FORKS.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the lock was taken before the fork, by this thread.
        let registry = unsafe { &*REGISTRY.registry.get() };
        for (addr, len, how) in &registry.pages {
            // SAFETY: the range is a mapping of this process, as long as it is in the registry. Its users go
            // through atomics or raw addresses, and any bytes are valid for them.
            unsafe { hide(*addr, *len, *how) };
        }
        if let Some(nothing) = &registry.nothing {
            for number in &registry.descriptors {
                // SAFETY: the descriptor belongs to this process as long as it is in the registry, and stays
                // open.
                unsafe { libc::dup3(nothing.as_raw_fd(), *number, libc::O_CLOEXEC) };
            }
        }
    }
    unlock();
}

/// # Safety
/// The range is a mapping, and its readers expect any bytes.
unsafe fn hide(addr: usize, len: usize, how: InForks) {
    let at = std::ptr::with_exposed_provenance_mut(addr);
    let blank = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the caller's promise. Where there is no memory for zeros, the range is left unmapped, and an
    // access faults.
    unsafe {
        match how {
            InForks::ReadOnly => {
                libc::mprotect(at, len, libc::PROT_READ);
            }
            InForks::Blank => {
                let made = libc::mmap(at, len, libc::PROT_READ | libc::PROT_WRITE, blank, -1, 0);
                if made == libc::MAP_FAILED {
                    libc::mprotect(at, len, libc::PROT_NONE);
                }
            }
        }
    }
}

fn lock() {
    // SAFETY: the lock was initialised as the C library says, and never moves. This thread does not hold it.
    let locked = unsafe { libc::pthread_mutex_lock(REGISTRY.lock.get()) };
    debug_assert_eq!(locked, 0, "a plain lock is always taken");
}

fn unlock() {
    // SAFETY: as above, but this thread holds it.
    let unlocked = unsafe { libc::pthread_mutex_unlock(REGISTRY.lock.get()) };
    debug_assert_eq!(unlocked, 0, "whoever holds a plain lock gives it back");
}
