//! The order of a host stream: a queue, the thread that works through it, and the short cut past both.
//!
//! The first step that needs the thread starts it. While the thread has nothing to do, a submitter does a
//! step that cannot block at once, under the queue's lock, so that the order stays that of submission. Then a
//! message without a kernel costs no switch of threads.
//!
//! When the stream is dropped, the thread works off the queued steps, then ends and gives the clock back;
//! nobody waits for it (LEASE-2). Its waits end because every wait does (DEATH-1). `tests/loom_stream.rs`
//! explores this file.

use std::collections::VecDeque;

use super::work::Work;
use crate::clock::{ClockDomain, OwnClock};
use crate::device::DeviceError;
use crate::limits::MAX_STREAM_STEPS;
use crate::os::{AdaptiveSpin, vital};
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Arc, AtomicU64, Condvar, Mutex, MutexGuard, Ordering};

/// The state that a stream and its thread share.
pub(super) struct Queue {
    pub(super) clock: OwnClock,
    pub(super) domain: Arc<ClockDomain>,
    state: Mutex<QueueState>,
    /// Signalled when steps have come, or when the stream was dropped.
    more: Condvar,
    /// Signalled when the thread has finished a step that somebody waits for, or has made room.
    less: Condvar,
    /// `QueueState::submitted` and `QueueState::done`, for reading without the lock. Written under the lock.
    submitted: AtomicU64,
    done: AtomicU64,
    /// The nanoseconds that the thread has stood in waits.
    pub(super) stood: AtomicU64,
    worker_spin: AdaptiveSpin,
    waiter_spin: AdaptiveSpin,
}

#[derive(Default)]
pub(super) struct QueueState {
    steps: VecDeque<Work>,
    /// The steps ever queued, and those finished; equal while the thread has nothing to do.
    submitted: u64,
    done: u64,
    worker: Option<ThreadId>,
    /// Whether the thread is asleep on `more`.
    parked: bool,
    /// The number of threads asleep on `less`.
    waiters: u32,
    closed: bool,
    /// The first failure that was not reported yet.
    failure: Option<String>,
}

impl QueueState {
    /// Returns whether nothing is queued or running: then a step may be done at once.
    pub(super) fn is_idle(&self) -> bool {
        self.submitted == self.done
    }

    /// Notes a failure for the next caller. The first one counts.
    pub(super) fn fail(&mut self, message: String) {
        self.failure.get_or_insert(message);
    }
}

impl Queue {
    pub(super) fn new(clock: OwnClock, domain: Arc<ClockDomain>) -> Arc<Self> {
        Arc::new(Queue {
            clock,
            domain,
            state: Mutex::default(),
            more: Condvar::new(),
            less: Condvar::new(),
            submitted: AtomicU64::new(0),
            done: AtomicU64::new(0),
            stood: AtomicU64::new(0),
            worker_spin: AdaptiveSpin::default(),
            waiter_spin: AdaptiveSpin::default(),
        })
    }

    /// Locks the order. If there is an unreported failure, reports it instead, once.
    pub(super) fn enter(&self) -> Result<MutexGuard<'_, QueueState>, DeviceError> {
        let mut state = self.state.lock();
        match state.failure.take() {
            Some(message) => Err(DeviceError::Stream { slot: self.clock.slot(), message }),
            None => Ok(state),
        }
    }

    /// Locks the order, for operations that only order work: they take their place even if the work before
    /// them failed.
    pub(super) fn enter_in_order(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }

    /// As [`enter`](Self::enter), and waits while the queue is full (MBX-2). The stream's own thread does not
    /// wait: it would wait for itself.
    pub(super) fn enter_with_room(&self) -> Result<MutexGuard<'_, QueueState>, DeviceError> {
        let mut state = self.enter()?;
        while state.steps.len() >= MAX_STREAM_STEPS && state.worker != Some(thread::current().id()) {
            state.waiters += 1;
            self.less.wait(&mut state);
            state.waiters -= 1;
        }
        Ok(state)
    }

    /// Queues steps, and wakes or starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started; nothing was queued then.
    pub(super) fn push(
        self: &Arc<Self>,
        state: &mut QueueState,
        steps: impl IntoIterator<Item = Work>,
    ) -> Result<(), DeviceError> {
        if state.worker.is_none() {
            let queue = Arc::clone(self);
            let name = format!("tp-stream-{}", self.clock.slot());
            let thread = vital::spawn(&name, move || queue.work());
            state.worker =
                Some(thread.map_err(DeviceError::os("start the thread of a host stream"))?.thread().id());
        }
        let before = state.steps.len();
        state.steps.extend(steps);
        state.submitted += (state.steps.len() - before) as u64;
        self.submitted.store(state.submitted, Ordering::Release);
        if state.parked {
            state.parked = false;
            self.more.notify_one();
        }
        Ok(())
    }

    /// Queues a step, if there is one, and waits until everything queued so far is done.
    ///
    /// # Errors
    /// The caller is the stream's own thread, which would wait for itself: nothing was queued then. Or there
    /// is an unreported failure, from earlier work or from the work that was waited for: the queued work is
    /// done then.
    pub(super) fn finish<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, QueueState>,
        step: Option<Work>,
    ) -> Result<(), DeviceError> {
        if state.worker == Some(thread::current().id()) {
            let message = "work on a stream cannot wait for that stream".to_owned();
            return Err(DeviceError::Stream { slot: self.clock.slot(), message });
        }
        self.push(&mut state, step)?;
        let goal = state.submitted;
        drop(state);
        self.waiter_spin.until(|| self.done.load(Ordering::Acquire) >= goal);
        state = self.state.lock();
        while state.done < goal {
            state.waiters += 1;
            self.less.wait(&mut state);
            state.waiters -= 1;
        }
        drop(state);
        self.enter().map(drop)
    }

    /// Returns whether nothing is queued or running.
    #[cfg(any(test, feature = "inside"))]
    pub(super) fn is_idle(&self) -> bool {
        self.state.lock().is_idle()
    }

    #[cfg(test)]
    pub(super) fn has_thread(&self) -> bool {
        self.state.lock().worker.is_some()
    }

    #[cfg(test)]
    pub(super) fn has_waiters(&self) -> bool {
        self.state.lock().waiters > 0
    }

    /// Says that no more steps will come; the thread ends when it has done the queued ones.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.parked = false;
        self.more.notify_one();
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(step) = state.steps.pop_front() {
                drop(state);
                let outcome = step.perform(&self.clock, &self.domain, &self.stood);
                state = self.state.lock();
                if let Err(message) = outcome {
                    tracing::warn!(clock = self.clock.slot(), message, "work on a host stream failed");
                    state.fail(message);
                }
                state.done += 1;
                self.done.store(state.done, Ordering::Release);
                if state.waiters > 0 {
                    self.less.notify_all();
                }
                continue;
            }
            if state.closed {
                return;
            }
            let seen = state.submitted;
            drop(state);
            self.worker_spin.until(|| self.submitted.load(Ordering::Acquire) != seen);
            state = self.state.lock();
            // The notifier clears `parked`, so a spurious wake-up goes back to sleep.
            state.parked = state.steps.is_empty() && !state.closed;
            while state.parked {
                self.more.wait(&mut state);
            }
        }
    }
}
