//! Loom's types in the place of the crate's `sync` module. A model compiles files of the crate unchanged
//! against them.
//!
//! Loom treats a sequentially consistent access as one that acquires and releases. So here such an access has
//! a fence beside it, as on machines that have no such accesses. A model says in [`Weaker`] which of these it
//! takes away, for all code that runs in it. Then loom has to find a failure, or the order was never needed.

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};

pub(crate) use std::sync::atomic::Ordering;

#[allow(unused_imports, reason = "only some files start threads")]
pub(crate) use loom::thread;

/// The guarantee that a model takes away from its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each model takes away what its code has")]
pub(crate) enum Weaker {
    Nothing,
    /// Sequentially consistent accesses only acquire and release.
    SeqCst,
    /// Stores that should release are relaxed.
    Release,
    /// Loads that should acquire are relaxed.
    Acquire,
    /// Fences do nothing.
    Fences,
    /// `notify_one` wakes nobody.
    Notify,
    /// `notify_all` wakes one thread.
    NotifyAll,
}

thread_local! {
    /// All threads of a model run on this one.
    static WEAKER: Cell<Weaker> = const { Cell::new(Weaker::Nothing) };
}

/// Sets the weakness for this test's thread from here on.
#[allow(dead_code, reason = "some models take away what they themselves do")]
pub(crate) fn weaken(weaker: Weaker) {
    WEAKER.set(weaker);
}

fn weaker() -> Weaker {
    WEAKER.get()
}

/// Returns the order that is left of `order`, and whether a fence stands beside it.
fn left_of(order: Ordering) -> (Ordering, bool) {
    match (order, weaker()) {
        (Ordering::SeqCst, weaker) => (Ordering::AcqRel, weaker != Weaker::SeqCst),
        (Ordering::Release, Weaker::Release) | (Ordering::Acquire, Weaker::Acquire) => {
            (Ordering::Relaxed, false)
        }
        (Ordering::AcqRel, Weaker::Release) => (Ordering::Acquire, false),
        (Ordering::AcqRel, Weaker::Acquire) => (Ordering::Release, false),
        (order, _) => (order, false),
    }
}

fn full_fence(is_there: bool) {
    if is_there {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

#[allow(dead_code, reason = "as above")]
pub(crate) fn fence(order: Ordering) {
    if weaker() != Weaker::Fences {
        loom::sync::atomic::fence(order);
    }
}

macro_rules! atomics {
    ($($name:ident: $value:ty;)*) => {$(
        #[derive(Debug, Default)]
        #[allow(dead_code, reason = "as above")]
        pub(crate) struct $name(loom::sync::atomic::$name);

        #[allow(dead_code, reason = "as above")]
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                $name(loom::sync::atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                let (order, fenced) = left_of(order);
                full_fence(fenced);
                self.0.load(if order == Ordering::AcqRel { Ordering::Acquire } else { order })
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                let (order, fenced) = left_of(order);
                self.0.store(value, if order == Ordering::AcqRel { Ordering::Release } else { order });
                full_fence(fenced);
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.changed(order, |atomic, order| atomic.swap(value, order))
            }

            fn changed(
                &self,
                order: Ordering,
                change: impl FnOnce(&loom::sync::atomic::$name, Ordering) -> $value,
            ) -> $value {
                let (order, fenced) = left_of(order);
                full_fence(fenced);
                let before = change(&self.0, order);
                full_fence(fenced);
                before
            }
        }
    )*};
}

atomics! {
    AtomicBool: bool;
    AtomicU8: u8;
    AtomicU32: u32;
    AtomicU64: u64;
    AtomicUsize: usize;
}

macro_rules! numbers {
    ($($name:ident: $value:ty;)*) => {$(
        #[allow(dead_code, reason = "as above")]
        impl $name {
            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.changed(order, |atomic, order| atomic.fetch_add(value, order))
            }

            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.changed(order, |atomic, order| atomic.fetch_sub(value, order))
            }

            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.changed(order, |atomic, order| atomic.fetch_or(value, order))
            }

            pub(crate) fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                update: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let ((set, fenced), (fetch, _)) = (left_of(set), left_of(fetch));
                let fetch = if fetch == Ordering::AcqRel { Ordering::Acquire } else { fetch };
                full_fence(fenced);
                let result = self.0.fetch_update(set, fetch, update);
                full_fence(fenced);
                result
            }
        }
    )*};
}

numbers! {
    AtomicU8: u8;
    AtomicU32: u32;
    AtomicU64: u64;
    AtomicUsize: usize;
}

/// Models std's `Arc` on loom's counter: loom's own `Arc` gives more ordering than std's does.
pub(crate) struct Arc<T>(*const Shared<T>);

struct Shared<T> {
    strong: loom::sync::atomic::AtomicUsize,
    value: T,
}

#[expect(unsafe_code, reason = "a pointer that several share")]
mod shared {
    use super::{Arc, Deref, Shared};
    use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use loom::sync::atomic::{AtomicUsize, fence};

    // SAFETY: as for std's.
    unsafe impl<T: Send + Sync> Send for Arc<T> {}
    // SAFETY: as for std's.
    unsafe impl<T: Send + Sync> Sync for Arc<T> {}

    #[allow(dead_code, reason = "as above")]
    impl<T> Arc<T> {
        pub(crate) fn new(value: T) -> Self {
            Arc(Box::into_raw(Box::new(Shared { strong: AtomicUsize::new(1), value })))
        }

        fn shared(&self) -> &Shared<T> {
            // SAFETY: the value lives until the last of the counted handles drops, and this is one of them.
            unsafe { &*self.0 }
        }

        pub(crate) fn strong_count(this: &Self) -> usize {
            this.shared().strong.load(Relaxed)
        }

        pub(crate) fn ptr_eq(this: &Self, other: &Self) -> bool {
            std::ptr::eq(this.0, other.0)
        }
    }

    impl<T> Clone for Arc<T> {
        fn clone(&self) -> Self {
            self.shared().strong.fetch_add(1, Relaxed);
            Arc(self.0)
        }
    }

    impl<T> Drop for Arc<T> {
        fn drop(&mut self) {
            // Loom has found a failure and the model is over. The value is leaked.
            if std::thread::panicking() {
                return;
            }
            if self.shared().strong.fetch_sub(1, Release) == 1 {
                fence(Acquire);
                // SAFETY: this was the last handle, and the pointer came from a box.
                drop(unsafe { Box::from_raw(self.0.cast_mut()) });
            }
        }
    }

    impl<T> Deref for Arc<T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.shared().value
        }
    }
}

impl<T: Default> Default for Arc<T> {
    fn default() -> Self {
        Arc::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Arc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Loom's mutex, with parking_lot's interface.
#[derive(Debug, Default)]
#[allow(dead_code, reason = "as above")]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

/// Holds the lock until it waits on a condition variable.
pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

#[allow(dead_code, reason = "as above")]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect("no thread panicked")))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it does not wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it does not wait")
    }
}

/// Loom's condition variable, with parking_lot's interface.
#[derive(Debug, Default)]
#[allow(dead_code, reason = "as above")]
pub(crate) struct Condvar(loom::sync::Condvar);

#[allow(dead_code, reason = "as above")]
impl Condvar {
    pub(crate) fn new() -> Self {
        Condvar(loom::sync::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let waiting = guard.0.take().expect("it does not wait");
        guard.0 = Some(self.0.wait(waiting).expect("no thread panicked"));
    }

    pub(crate) fn notify_one(&self) {
        if weaker() != Weaker::Notify {
            self.0.notify_one();
        }
    }

    pub(crate) fn notify_all(&self) {
        if weaker() == Weaker::NotifyAll {
            self.0.notify_one();
        } else {
            self.0.notify_all();
        }
    }
}
