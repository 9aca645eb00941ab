//! A stream on the host: closures, copies and clock operations, in order.

#![expect(unsafe_code, reason = "implements the unsafe functions of a stream")]

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;

use super::super::{DeviceError, Keep, StreamBackend, StreamOp};
use super::queue::{Queue, QueueState};
use super::work::{self, Bytes, Work};
use crate::clock::{ClockDomain, ClockError, OwnClock, UnknownClock, passed};

/// The caller itself moves up to this many bytes, if no work is before them: that costs about as much as a
/// switch of threads.
const INLINE_BYTES: usize = 256 << 10;

/// A stream of the host device; see [`StreamBackend`] for its contract.
///
/// A closure that panics is like a kernel that faults on a GPU: a worker ends with it, and says why. In the
/// program's own process the next fallible call reports it. Dropping the stream never blocks; submitted work
/// is still done.
pub struct HostStream {
    queue: Arc<Queue>,
}

impl HostStream {
    /// Makes a stream that advances `clock`. Its thread starts when it is first needed.
    pub fn new(clock: OwnClock, domain: Arc<ClockDomain>) -> Arc<Self> {
        Arc::new(HostStream { queue: Queue::new(clock, domain) })
    }

    /// Submits a closure, the counterpart of a kernel on a GPU. It always runs on the stream's thread; `keep`
    /// is held until it has run. Waits for room if [`MAX_STREAM_STEPS`](crate::limits::MAX_STREAM_STEPS)
    /// steps are queued.
    ///
    /// # Errors
    /// Earlier work failed, or the thread cannot be started; the closure is dropped then.
    pub fn run(&self, closure: impl FnOnce() + Send + 'static, keep: Keep) -> Result<(), DeviceError> {
        let mut state = self.queue.enter_with_room()?;
        self.queue.push(&mut state, [Work::Run(Box::new(closure), keep)])
    }

    /// Returns whether nothing is queued or running.
    #[cfg(any(test, feature = "inside"))]
    pub fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }

    #[cfg(test)]
    pub(super) fn has_thread(&self) -> bool {
        self.queue.has_thread()
    }

    #[cfg(test)]
    pub(super) fn has_waiters(&self) -> bool {
        self.queue.has_waiters()
    }

    /// Does `bytes` at once if no work is before it and it is small; otherwise queues it.
    ///
    /// # Safety
    /// The contract of the caller's own `unsafe fn`, until the step is done.
    unsafe fn bytes(&self, bytes: Bytes, len: usize, keep: Keep) -> Result<(), DeviceError> {
        self.check_fork()?;
        let mut state = self.queue.enter_with_room()?;
        if state.is_idle() && len <= INLINE_BYTES {
            // SAFETY: the contract is passed on; `keep` lives until this function returns.
            unsafe { bytes.perform() };
            drop(state); // before `keep`: dropping a mapping is no work to do under the lock
            return Ok(());
        }
        self.queue.push(&mut state, [Work::Bytes(bytes, keep)])
    }

    /// Fails in a forked child, which has no thread to work through the queue.
    fn check_fork(&self) -> Result<(), DeviceError> {
        if self.queue.domain.is_inherited() { Err(ClockError::Forked.into()) } else { Ok(()) }
    }

    /// Checks a batch before any of it is done, and looks up the pages that it waits on.
    fn steps(&self, ops: &[StreamOp]) -> Result<SmallVec<[Work; 4]>, DeviceError> {
        let domain = &self.queue.domain;
        let step = |op: &StreamOp| match *op {
            StreamOp::Advance(value) => Ok(Work::Advance(value)),
            StreamOp::Wait(ticket) => {
                let page = domain.page_of(ticket.process).filter(|page| page.load(ticket.slot).is_some());
                Ok(Work::Wait(
                    ticket,
                    page.ok_or(UnknownClock(ticket)).map_err(crate::clock::ClockError::from)?,
                ))
            }
        };
        ops.iter().map(step).collect()
    }

    /// Does a step under the lock if it cannot block; otherwise gives it back.
    fn at_once(&self, state: &mut QueueState, step: Work) -> Option<Work> {
        match step {
            Work::Advance(_) => {
                if let Err(message) = step.perform(&self.queue.clock, &self.queue.domain, &self.queue.stood) {
                    state.fail(message);
                }
                None
            }
            Work::Wait(ticket, ref page) => {
                let is_over = page.load(ticket.slot).is_some_and(|clock| passed(clock, ticket.value));
                (!is_over).then_some(step)
            }
            other => Some(other),
        }
    }
}

impl crate::device::sealed::Sealed for HostStream {}

impl StreamBackend for HostStream {
    fn clock_slot(&self) -> u16 {
        self.queue.clock.slot()
    }

    /// Does not wait for room either: clock operations are small, are bounded by the messages that they
    /// belong to, and are submitted when a lease is dropped (LEASE-2). It also does not report a failure of
    /// earlier work. A caller that orders one thing behind another must have it ordered, so the failure is
    /// for the next caller that submits work.
    fn submit(&self, ops: &[StreamOp]) -> Result<(), DeviceError> {
        self.check_fork()?;
        let steps = self.steps(ops)?;
        let mut state = self.queue.enter_in_order();
        for op in ops {
            if let StreamOp::Advance(value) = op {
                self.queue.clock.promise(*value);
            }
        }
        let mut steps = steps.into_iter();
        while state.is_idle() {
            let Some(step) = steps.next() else { return Ok(()) };
            if let Some(step) = self.at_once(&mut state, step) {
                return self.queue.push(&mut state, std::iter::once(step).chain(steps));
            }
        }
        self.queue.push(&mut state, steps)
    }

    unsafe fn copy(&self, dst: u64, src: u64, bytes: u64, keep: Keep) -> Result<(), DeviceError> {
        let bytes = length(bytes)?;
        // SAFETY: the caller's contract, passed on.
        unsafe { self.bytes(Bytes::Copy { dst, src, bytes }, bytes, keep) }
    }

    unsafe fn fill(&self, dst: u64, bytes: u64, value: u8, keep: Keep) -> Result<(), DeviceError> {
        let bytes = length(bytes)?;
        // SAFETY: the caller's contract, passed on.
        unsafe { self.bytes(Bytes::Fill { dst, bytes, value }, bytes, keep) }
    }

    unsafe fn upload(&self, dst: u64, src: &[u8], keep: Keep) -> Result<(), DeviceError> {
        self.check_fork()?;
        let mut state = self.queue.enter_with_room()?;
        // The source is only borrowed, so it must be read now in any case. At any size that is cheaper
        // without a buffer.
        if state.is_idle() {
            // SAFETY: `src` is a slice, and the caller's contract holds for `dst`.
            unsafe { work::copy(dst, src.as_ptr() as u64, src.len()) };
            drop(state); // before `keep`, as above
            return Ok(());
        }
        let bytes = Bytes::Upload { dst, src: src.into() };
        self.queue.push(&mut state, [Work::Bytes(bytes, keep)])
    }

    unsafe fn download(&self, dst: &mut [u8], src: u64) -> Result<(), DeviceError> {
        self.check_fork()?;
        let state = self.queue.enter()?;
        let (to, bytes) = (dst.as_mut_ptr() as u64, dst.len());
        if state.is_idle() {
            // SAFETY: `dst` is a slice, and the caller's contract holds for `src`. The lock keeps later steps
            // back.
            unsafe { work::copy(to, src, bytes) };
            return Ok(());
        }
        // `dst` is borrowed until this returns, and `finish` returns only when the step is done or was never
        // queued.
        let step = Work::Bytes(Bytes::Copy { dst: to, src, bytes }, Keep::new());
        self.queue.finish(state, Some(step))
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.check_fork()?;
        let state = self.queue.enter()?;
        if state.is_idle() { Ok(()) } else { self.queue.finish(state, None) }
    }

    fn waited(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.queue.stood.load(Ordering::Relaxed)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn length(bytes: u64) -> Result<usize, DeviceError> {
    usize::try_from(bytes).map_err(|_| DeviceError::Refused { what: format!("{bytes} bytes in one step") })
}

impl Drop for HostStream {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl fmt::Debug for HostStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostStream(clock {})", self.queue.clock.slot())
    }
}
