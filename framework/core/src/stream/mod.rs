//! Streams: a stream runs work in order, and has a clock that others wait for.
//!
//! A [`Ticket`] of a stream stands for everything that was put on it before [`Stream::ticket`] was called.
//! Tickets of one turn share one clock value and one write (see `turn`), so a second ticket costs nothing.
//! `wait` makes a stream wait for the tickets of others. Where a device has no room for a clock write,
//! `late_writes` makes it later. `process_streams` has the state that the streams of a process share.
//!
//! Its users are leases and tensors, which note each use, actors, whose handlers each work on one stream, and
//! the transport, which ends turns.
//!
//! **Invariants.** CLOCK-1 and DEATH-3, in `wait`. Clock values of a stream are written in order, and a write
//! stays in front of every wait that was asked for after its ticket was given out, except waits in the same
//! turn. LEASE-2: a ticket is given out without waiting for the device.
//!
//! **Locks**, in the order in which they nest: a stream's state, its log, the table of taint (see
//! `clock/marking.rs`). A stream's list of waits has the place of the log in that order. The late writer's
//! list and a stream's failure may be locked under the state, with nothing under them. The driver may be
//! called, and may block, with the state locked. So the log has a lock of its own, and the marking thread
//! takes no state.
//!
//! **On a crash** of this process the node releases its clocks. **On cancellation** nothing is taken back:
//! enqueued work stays, and a dropped stream does its work to the end.

mod late_writes;
mod process_streams;
mod queued;
pub(crate) mod turn;
mod wait;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::taint::{StreamLog, TicketStatus};
use crate::clock::{ClockDomain, ClockError, Ticket, passed};
use crate::device::{Backend, DeviceError, DeviceKind, StreamBackend, StreamOp};
use crate::fault;
use crate::ids::{DeviceId, ProcessId};
use crate::os::Inert;
use process_streams::OwnStreams;

pub(crate) use process_streams::finish_own_work;
pub(crate) use queued::waiting;
pub(crate) use wait::host_wait;
pub(crate) use wait::host_wait_in_order;
#[cfg(feature = "testing")]
pub use wait::testing_skip_waits;

/// An ordered queue of work on a device. Clones are the same stream.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    /// Inert, because in a forked child its thread does not exist, and the driver of its device is of no use.
    backend: Inert<Arc<dyn StreamBackend>>,
    domain: Arc<ClockDomain>,
    own: Arc<OwnStreams>,
    process: ProcessId,
    kind: DeviceKind,
    device: DeviceId,
    slot: u16,
    log: Arc<StreamLog>,
    /// How often it was given to a caller that could not get a stream of its own.
    sharers: AtomicUsize,
    state: Mutex<StreamState>,
    /// Waits enqueued, for the metrics.
    waits: AtomicU64,
    /// A failure that could not be returned when it came; the next fallible call returns it.
    failure: Mutex<Option<String>>,
}

struct StreamState {
    /// Value of the last clock write that was enqueued.
    written: u64,
    /// As `written`, without the values that were given up: the stream really writes this one.
    enqueued: u64,
    /// Whether a ticket for `written + 1` was given out.
    owed: bool,
    /// Whether the device had no room for the owed write, which the late writer of this process makes then.
    late: bool,
    /// Per clock the highest value that this stream waits for already.
    waited: HashMap<(ProcessId, u16), u64>,
    /// The turn in which the first ticket was given out since the stream was marked; the inner `None`:
    /// outside of any.
    marked_in: Option<Option<u64>>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({}, clock {})", self.0.kind, self.0.slot)
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Stream {}

impl Stream {
    /// Creates a new stream of `device`, with a clock of this process.
    ///
    /// # Errors
    /// The process has no clock left ([`MAX_STREAMS`](crate::limits::MAX_STREAMS)), or the device refuses.
    pub fn new(device: &Arc<dyn Backend>, domain: &Arc<ClockDomain>) -> Result<Self, DeviceError> {
        if domain.is_inherited() {
            return Err(ClockError::Forked.into());
        }
        let clock = domain.allocate_slot()?;
        let slot = clock.slot();
        let log = domain.log(slot);
        let enqueued = clock.value();
        // The log outlives streams, so an earlier stream of this clock may have been marked. Go on behind its
        // range, or values of this stream would count as tainted (DEATH-3).
        let written = log.leave_range(enqueued);
        let backend = device.create_stream(clock, Arc::clone(domain))?;
        let own = OwnStreams::of(domain);
        let stream = Stream(Arc::new(Inner {
            backend: Inert::new(backend),
            domain: Arc::clone(domain),
            own: Arc::clone(own),
            process: domain.own(),
            kind: device.kind(),
            device: device.id(),
            slot,
            log,
            sharers: AtomicUsize::new(0),
            state: Mutex::new(StreamState {
                written,
                enqueued,
                owed: false,
                late: false,
                waited: HashMap::new(),
                marked_in: None,
            }),
            waits: AtomicU64::new(0),
            failure: Mutex::new(None),
        }));
        // Register before any ticket is given out: a waiter in this process finds the stream by its clock, to
        // enqueue the write that it waits for.
        own.register(slot, &stream);
        if let Some(queued) = own.queued(slot) {
            queued.begin(device.id());
        }
        Ok(stream)
    }

    /// Creates a stream, or, where the device has no more of them ([`Backend::stream_limit`]), returns an
    /// existing one of this process. The work of several users on one stream is correct, only later than it
    /// might be. It cannot deadlock: a wait is enqueued after the work that it waits for, so the order of
    /// enqueuing has no cycle.
    ///
    /// # Errors
    /// As for [`new`](Self::new); [`DeviceError::NoStream`] where all existing streams were dropped.
    pub fn new_or_shared(device: &Arc<dyn Backend>, domain: &Arc<ClockDomain>) -> Result<Self, DeviceError> {
        let error = match Self::new(device, domain) {
            Err(error @ DeviceError::NoStream { .. }) => error,
            other => return other,
        };
        let Some(stream) = OwnStreams::of(domain).to_share(device.id()) else { return Err(error) };
        if stream.0.sharers.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                clock = stream.0.slot,
                "a stream is shared, and its users wait for each other: {error}"
            );
        }
        Ok(stream)
    }

    /// Returns the device's own stream, for callers that know its type.
    pub fn backend(&self) -> &Arc<dyn StreamBackend> {
        &self.0.backend
    }

    /// Returns the clocks that this stream can wait for.
    pub fn domain(&self) -> &Arc<ClockDomain> {
        &self.0.domain
    }

    fn device(&self) -> DeviceId {
        self.0.device
    }

    /// Returns the clock's current value, which others see too.
    fn now(&self) -> Option<Ticket> {
        let value = self.0.domain.own_page().load(self.0.slot)?;
        Some(Ticket { process: self.0.process, slot: self.0.slot, value })
    }

    fn sharers(&self) -> usize {
        self.0.sharers.load(Ordering::Relaxed)
    }

    fn downgrade(&self) -> WeakStream {
        WeakStream(Arc::downgrade(&self.0))
    }

    /// Returns a ticket for everything enqueued so far; `None` if all of it has run to its end.
    pub fn ticket(&self) -> Option<Ticket> {
        if self.0.domain.is_inherited() {
            // In a forked child: the parent's work runs in the parent, and stays ordered there.
            return None;
        }
        let value = {
            let mut state = self.0.state.lock();
            if self.0.log.is_marked() {
                self.leave_range_if_new(&mut state);
                state.marked_in.get_or_insert_with(turn::current);
            }
            state.owed = true;
            let value = state.written + 1;
            // Promise the value here, because the write may be made late.
            self.0.domain.own_page().promise(self.0.slot, value);
            value
        };
        // An idle host stream runs the write at once, which saves its readers a wait.
        if self.0.kind == DeviceKind::Host || !turn::defer(self) {
            self.flush_to(value);
        }
        let ticket = Ticket { process: self.0.process, slot: self.0.slot, value };
        (!matches!(self.0.domain.status(&ticket), Ok(TicketStatus::Ready))).then_some(ticket)
    }

    /// Returns the earliest ticket that work enqueued now can have, without promising its value.
    pub(crate) fn next_ticket(&self) -> Ticket {
        Ticket { process: self.0.process, slot: self.0.slot, value: self.0.log.next() }
    }

    /// Lets a marked stream go on behind the marked range, once no use can be left that was checked before
    /// the marking and is not enqueued yet. That is so when the stream has given out a ticket since, and is
    /// used in another turn than that one (outside of turns: at the next use). A handler's stream does so
    /// earlier, in [`begin`](Self::begin).
    fn leave_range_if_new(&self, state: &mut StreamState) {
        let turn = turn::current();
        if state.marked_in.is_some_and(|marked_in| turn.is_none() || marked_in != turn) {
            self.leave_range(state);
        }
    }

    fn leave_range(&self, state: &mut StreamState) {
        if state.owed {
            self.write(state);
        }
        state.written = self.0.log.leave_range(state.written);
        state.marked_in = None;
    }

    /// Enqueues the clock write for every ticket given out so far.
    pub(crate) fn flush(&self) {
        let mut state = self.0.state.lock();
        if state.owed {
            self.write(&mut state);
        }
    }

    fn flush_to(&self, value: u64) {
        let mut state = self.0.state.lock();
        if state.owed && !passed(state.written, value) {
            self.write(&mut state);
        }
    }

    /// Enqueues the owed write, or, where that could block on the device, leaves it to the late writer
    /// (LEASE-2). One write stands for every ticket that was given out until it is made.
    fn write(&self, state: &mut StreamState) {
        if state.late {
            return;
        }
        if !self.0.backend.has_room() && self.0.own.late_writer().put(self) {
            state.late = true;
            return;
        }
        self.write_now(state);
    }

    /// Tries to make a late write, for the late writer. Returns whether the write is made by now.
    fn write_late(&self) -> bool {
        let mut state = self.0.state.lock();
        if state.late && self.0.backend.has_room() {
            self.write_now(&mut state);
        }
        !state.late
    }

    fn write_now(&self, state: &mut StreamState) {
        fault::point("stream.advance");
        self.next_value(state);
        let advance = [StreamOp::Advance(state.written)];
        let Err(error) = self.0.backend.submit(&advance) else { return };
        // The driver may only have reported a failure of earlier work, which it does once; the write is still
        // owed.
        tracing::error!(clock = self.0.slot, %error, "work on a stream failed");
        if let Err(error) = self.0.backend.submit(&advance) {
            // The device is lost to this process; its waiters are released with the death certificate
            // (DEATH-1).
            tracing::error!(clock = self.0.slot, %error, "a clock write could not be enqueued");
        }
    }

    /// Calls `put` to enqueue work that itself advances the clock, at its end, to the value that `put` is
    /// given. Returns the ticket for that work, and for all work before. It waits while too much work is
    /// ahead (MBX-2).
    ///
    /// # Errors
    /// Those of `put`, which is not called where the stream has failed. The clock is advanced in any case.
    #[cfg(feature = "graphs")]
    pub(crate) fn put_with_write(
        &self,
        put: impl FnOnce(u64) -> Result<(), DeviceError>,
    ) -> Result<Ticket, DeviceError> {
        self.0.backend.make_room()?;
        let mut state = self.0.state.lock();
        if self.0.log.is_marked() {
            // This work depends on the marked range; work in a later turn goes on behind the range.
            state.marked_in.get_or_insert_with(turn::current);
        }
        // This write also stands for owed and late writes.
        self.next_value(&mut state);
        let value = state.written;
        self.0.domain.own_page().promise(self.0.slot, value);
        if let Err(error) = put(value) {
            let advance = [StreamOp::Advance(value)];
            if let Err(error) = self.0.backend.submit(&advance).or_else(|_| self.0.backend.submit(&advance)) {
                tracing::error!(clock = self.0.slot, %error, "a clock write could not be enqueued");
            }
            return Err(error);
        }
        Ok(Ticket { process: self.0.process, slot: self.0.slot, value })
    }

    fn next_value(&self, state: &mut StreamState) {
        state.late = false;
        state.written += 1;
        state.enqueued = state.written;
        state.owed = false;
        self.0.log.set_written(state.written);
    }

    /// Notes an error of a call that cannot return it.
    #[cfg(feature = "cuda")]
    pub(crate) fn fail(&self, error: &dyn std::error::Error) {
        tracing::error!(clock = self.0.slot, %error, "work was put on a stream that may run too early");
        *self.0.failure.lock() = Some(error.to_string());
    }

    /// Marks all work that the stream is given from now on as lost with the process `by`; see
    /// [`ClockDomain::mark_now`](crate::clock::ClockDomain).
    #[cfg(feature = "cuda")]
    pub(crate) fn mark_now(&self, by: ProcessId) {
        self.0.domain.mark_now(self.0.slot, by);
    }

    /// Returns how many waits were put on this stream so far, because something was not ready, and how long
    /// the stream stood in them where the device tells: a GPU does not.
    pub fn waits(&self) -> (u64, Option<Duration>) {
        (self.0.waits.load(Ordering::Relaxed), self.0.backend.waited())
    }
}

#[derive(Debug)]
struct WeakStream(std::sync::Weak<Inner>);

impl WeakStream {
    fn upgrade(&self) -> Option<Stream> {
        self.0.upgrade().map(Stream)
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} clock {}", self.kind, self.slot)
    }
}
