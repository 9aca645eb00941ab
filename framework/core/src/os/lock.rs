//! A mutex and a condition variable for waits that may last.
//!
//! parking_lot keeps a table of all threads that wait. A forked child inherits the table without the threads,
//! and the stacks in it become those of its own threads. So a wait that may last when another thread forks
//! uses the locks of std, which are words for the kernel. The methods are named as parking_lot names them; a
//! panic under the lock poisons nothing.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// As [`std::sync::Mutex`], without poison.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Makes a mutex around a value.
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// The lock, until it is dropped.
#[doc(hidden)]
pub struct MutexGuard<'a, T>(
    /// `None` while a condition variable has it.
    Option<std::sync::MutexGuard<'a, T>>,
);

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(guard) => guard,
            None => unreachable!("a wait gives the lock back before it returns"),
        }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.0 {
            Some(guard) => guard,
            None => unreachable!("a wait gives the lock back before it returns"),
        }
    }
}

/// As [`std::sync::Condvar`], without poison.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

/// Whether a wait has ended because its time was over.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut(bool);

impl TimedOut {
    /// Returns whether it has.
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Makes a condition variable that nobody waits for.
    pub const fn new() -> Self {
        Condvar(std::sync::Condvar::new())
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits until another thread wakes this one. It may return without that.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.0.take() {
            guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// As [`wait`](Self::wait), for at most `time`.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> TimedOut {
        let Some(held) = guard.0.take() else { return TimedOut(true) };
        let (held, timed_out) = self.0.wait_timeout(held, time).unwrap_or_else(PoisonError::into_inner);
        guard.0 = Some(held);
        TimedOut(timed_out.timed_out())
    }

    /// As [`wait`](Self::wait), until `until`.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> TimedOut {
        self.wait_for(guard, until.saturating_duration_since(Instant::now()))
    }
}
