//! Counts an actor's messages that are under way on other threads, because their handlers are in another
//! language.
//!
//! An actor that is told to stop waits for these, as for the futures of its own handlers. A hang probe counts
//! them, too.
//!
//! **Locks.** The waker's lock, with nothing inside it. **On a crash** of a handler's thread its messages
//! drop, and their senders are told so.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

/// See the module.
#[derive(Default)]
pub(super) struct HandedOff {
    open: AtomicUsize,
    /// Messages whose handlers have not begun.
    queued: AtomicUsize,
    answered: AtomicU64,
    /// The waker of an actor that stops.
    waker: Mutex<Option<Waker>>,
    /// The sink for messages, once it was needed.
    #[cfg(feature = "bindings")]
    sink: std::sync::OnceLock<std::sync::Arc<dyn super::raw::RawSink>>,
}

#[cfg(feature = "bindings")]
impl HandedOff {
    pub(super) fn sink(
        &self,
        find: impl FnOnce() -> std::sync::Arc<dyn super::raw::RawSink>,
    ) -> &dyn super::raw::RawSink {
        &**self.sink.get_or_init(find)
    }

    pub(super) fn known_sink(&self) -> Option<&dyn super::raw::RawSink> {
        self.sink.get().map(|sink| &**sink)
    }
}

impl HandedOff {
    #[cfg(feature = "bindings")]
    pub(super) fn one_more(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that the handler of a message begins, or never will.
    #[cfg(feature = "bindings")]
    pub(super) fn one_begins(&self) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns how many messages wait for their handlers.
    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    #[cfg(feature = "bindings")]
    pub(super) fn one_less(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        // HANDED-OFF: pairs with `is_idle`. Either `is_idle` sees the last message gone, or this sees the
        // waker.
        if self.open.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns whether no message is under way. If any is, `waker` is woken when the last one is done.
    pub(super) fn is_idle(&self, waker: &Waker) -> bool {
        if self.open.load(Ordering::SeqCst) == 0 {
            return true;
        }
        *self.waker.lock() = Some(waker.clone());
        // HANDED-OFF: read after the waker was stored.
        self.open.load(Ordering::SeqCst) == 0
    }

    /// Returns how many are under way, and how many were answered.
    pub(super) fn counts(&self) -> (usize, u64) {
        (self.open.load(Ordering::Relaxed), self.answered.load(Ordering::Relaxed))
    }
}
