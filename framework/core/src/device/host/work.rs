//! The steps of a host stream, and how each is done.

#![expect(unsafe_code, reason = "copies between raw addresses, as kernels do")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::Keep;
use crate::clock::{ClockDomain, ClockError, ClockPage, OwnClock, Ticket};
use crate::fault;
use crate::observe::trace::What;
use crate::os::{monotonic_ns, vital};

/// A step. The things that a step keeps are dropped right after it.
pub(super) enum Work {
    /// Wait for a ticket, on the page that was looked up when the step was submitted.
    Wait(Ticket, Arc<ClockPage>),
    /// Advance the stream's clock.
    Advance(u64),
    /// A user's closure.
    Run(Box<dyn FnOnce() + Send>, Keep),
    /// A step of the framework itself.
    Bytes(Bytes, Keep),
}

/// An operation on bytes at raw addresses. Code that makes one takes over the `unsafe` contract of
/// [`StreamBackend`](crate::device::StreamBackend): the addresses stay valid until the operation is done.
pub(super) enum Bytes {
    /// Copy between two ranges.
    Copy { dst: u64, src: u64, bytes: usize },
    /// Set a range to one value.
    Fill { dst: u64, bytes: usize, value: u8 },
    /// Copy from a buffer that the step owns.
    Upload { dst: u64, src: Box<[u8]> },
}

impl Bytes {
    /// Performs the operation.
    ///
    /// # Safety
    /// The contract of the call that made it holds.
    pub(super) unsafe fn perform(&self) {
        match self {
            // SAFETY: by the contract of `StreamBackend::copy`, which the caller upholds, both ranges are
            // mapped and do not overlap, and nobody in this process uses them unordered with this step. If
            // `bytes` is 0 the addresses must still not be null, and those of mapped ranges are not.
            Bytes::Copy { dst, src, bytes } => unsafe { copy(*dst, *src, *bytes) },
            // SAFETY: as above, for the destination of `StreamBackend::fill`.
            Bytes::Fill { dst, bytes, value } => unsafe { fill(*dst, *bytes, *value) },
            // SAFETY: as above, for the destination of `StreamBackend::upload`; the step owns the source.
            Bytes::Upload { dst, src } => unsafe { copy(*dst, src.as_ptr() as u64, src.len()) },
        }
    }
}

/// Copies bytes between raw addresses.
///
/// # Safety
/// Unless `bytes` is 0: `src` is readable and `dst` writable for `bytes` bytes, they do not overlap, and
/// nobody in this process accesses them unordered with this. (Another process that breaks its lease can
/// change the bytes that are read. They are only moved, so any value will do.)
pub(super) unsafe fn copy(dst: u64, src: u64, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, bytes) };
    }
}

/// Sets bytes at a raw address.
///
/// # Safety
/// As for the destination of [`copy`].
pub(super) unsafe fn fill(dst: u64, bytes: usize, value: u8) {
    if bytes > 0 {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::write_bytes(dst as *mut u8, value, bytes) };
    }
}

impl Work {
    /// Performs the step, and returns an error's text. Panics of user code end here: a worker ends with them,
    /// and elsewhere the next caller is told. The time of a wait is added to `stood`, in nanoseconds.
    pub(super) fn perform(
        self,
        clock: &OwnClock,
        domain: &ClockDomain,
        stood: &AtomicU64,
    ) -> Result<(), String> {
        match self {
            Work::Wait(ticket, page) => {
                fault::point("stream.waiting");
                let since = monotonic_ns();
                let waited = ended(domain.wait_on(&page, &ticket, None).map(drop));
                let Ticket { process: on, slot: clock_slot, value } = ticket;
                let took = monotonic_ns().saturating_sub(since);
                stood.fetch_add(took, Ordering::Relaxed);
                domain.tracer().note_on_stream(clock.slot(), since, || What::StreamWaited {
                    on,
                    clock: clock_slot,
                    value,
                    took,
                });
                waited
            }
            Work::Advance(value) => ended(domain.advance(clock, value)),
            Work::Run(closure, keep) => {
                // The closure holds nothing of the stream itself.
                let done = catch_unwind(AssertUnwindSafe(closure)).map_err(|panic| {
                    let message = format!("a closure panicked: {}", vital::panic_text(panic.as_ref()));
                    // The panic's payload is the user's too, and may panic again when it is dropped.
                    let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
                    message
                });
                if let Err(message) = &done
                    && vital::fail(&format!("on its host stream {}, {message}", clock.slot()))
                {
                    // The closure has left tensors half written, as a faulting kernel does. The clock must
                    // not say that they are ready (CLOCK-1), and processes that wait for them learn of the
                    // death (DEATH-3).
                    vital::await_end();
                }
                drop(keep);
                done
            }
            Work::Bytes(bytes, keep) => {
                // SAFETY: only the `unsafe fn`s of the stream make such a step. Their contract lasts until
                // now, and `keep` is still held.
                unsafe { bytes.perform() };
                drop(keep);
                Ok(())
            }
        }
    }
}

fn ended(result: Result<(), ClockError>) -> Result<(), String> {
    result.map_err(|error| error.to_string())
}
