//! Messages of one actor that are under way on other threads: their handlers are another language's.
//!
//! An actor that is told to stop stops behind them, as behind the futures of its own handlers; and a probe
//! for hangs counts them.
//!
//! **Locks.** That of the waker, and nothing inside of it. **On a crash** of a handler's thread its messages
//! drop, and are answered so.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

/// See the module.
#[derive(Default)]
pub(super) struct Elsewhere {
    open: AtomicUsize,
    /// Those of them whose handlers have not begun.
    queued: AtomicUsize,
    answered: AtomicU64,
    /// Of an actor that stops.
    waker: Mutex<Option<Waker>>,
    /// Where messages are put, once one was.
    #[cfg(feature = "foreign")]
    sink: std::sync::OnceLock<std::sync::Arc<dyn super::foreign::RawSink>>,
}

#[cfg(feature = "foreign")]
impl Elsewhere {
    pub(super) fn sink(
        &self,
        find: impl FnOnce() -> std::sync::Arc<dyn super::foreign::RawSink>,
    ) -> &dyn super::foreign::RawSink {
        &**self.sink.get_or_init(find)
    }

    pub(super) fn known_sink(&self) -> Option<&dyn super::foreign::RawSink> {
        self.sink.get().map(|sink| &**sink)
    }
}

impl Elsewhere {
    #[cfg(feature = "foreign")]
    pub(super) fn one_more(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    /// The handler of one begins, or never will.
    #[cfg(feature = "foreign")]
    pub(super) fn one_begins(&self) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many wait for their handlers.
    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    #[cfg(feature = "foreign")]
    pub(super) fn one_less(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        // ELSEWHERE: pairs with `is_idle`. Either that sees the last one gone, or this sees the waker.
        if self.open.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether nothing is under way; `waker` is woken when that is so.
    pub(super) fn is_idle(&self, waker: &Waker) -> bool {
        if self.open.load(Ordering::SeqCst) == 0 {
            return true;
        }
        *self.waker.lock() = Some(waker.clone());
        // ELSEWHERE: behind the waker.
        self.open.load(Ordering::SeqCst) == 0
    }

    /// How many are under way, and how many were answered.
    pub(super) fn counts(&self) -> (usize, u64) {
        (self.open.load(Ordering::Relaxed), self.answered.load(Ordering::Relaxed))
    }
}
