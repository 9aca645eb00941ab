//! A stream as the rest of the framework sees it: a place to put work in order, with a clock that others wait for.
//!
//! A [`Ticket`] of a stream stands for everything that was put on it before [`Stream::ticket`] was called. Tickets of
//! one turn share one clock value and one write (see `turn`): asking twice costs nothing.
//!
//! CLOCK-1 is upheld in [`Stream::wait`]: it is called for the ready ticket of a tensor before every use of the tensor
//! on the stream, and enqueues a wait unless the host can see that the clock has passed or the stream waits already.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{ClockDomain, ClockError, Deadline, Ticket, Waited, passed, turn};
use crate::device::{Backend, DeviceError, DeviceKind, StreamBackend, StreamOp};
use crate::fault;
use crate::ids::{DeviceId, ProcessId};
use crate::observe::trace::What;

/// Clocks that a stream remembers to wait for, before it looks which of them have passed.
const MOST_WAITED: usize = 256;

/// An ordered queue of work on a device. Clones are the same stream.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    backend: Arc<dyn StreamBackend>,
    domain: Arc<ClockDomain>,
    process: ProcessId,
    kind: DeviceKind,
    device: DeviceId,
    slot: u16,
    /// How often it was given out to somebody who asked for a stream and could get none of its own.
    sharers: AtomicUsize,
    state: Mutex<State>,
    /// Waits enqueued, for the figures.
    waits: AtomicU64,
    /// What went wrong where it could not be returned; the next fallible call does.
    failure: Mutex<Option<String>>,
}

struct State {
    /// Value of the last clock write that was enqueued.
    written: u64,
    /// Whether a ticket for `written + 1` was given out.
    owed: bool,
    /// Whether the device had no room for the write that is owed, and the domain's late writer sees to it.
    late: bool,
    /// Per clock the highest value this stream waits for already.
    waited: HashMap<(ProcessId, u16), u64>,
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

/// See [`testing_skip_waits`].
#[cfg(feature = "testing")]
static SKIP_WAITS: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Has no stream of this process wait for anything from here on, or wait again: breaks CLOCK-1 and CLOCK-2, so that a
/// test can show that it would notice. Whoever reads a tensor then reads whatever its memory holds. Only there with the
/// feature `testing`; never for a program.
#[cfg(feature = "testing")]
pub fn testing_skip_waits(skip: bool) {
    SKIP_WAITS.store(skip, std::sync::atomic::Ordering::Relaxed);
}

impl Stream {
    /// A new stream of `device`, with a clock of this process.
    ///
    /// # Errors
    /// The process has no clock left ([`MAX_STREAMS`](crate::limits::MAX_STREAMS)), or the device refuses.
    pub fn new(device: &Arc<dyn Backend>, domain: &Arc<ClockDomain>) -> Result<Self, DeviceError> {
        let clock = domain.allocate_slot()?;
        let slot = clock.slot();
        let written = clock.value();
        let backend = device.create_stream(clock, Arc::clone(domain))?;
        let stream = Stream(Arc::new(Inner {
            backend,
            domain: Arc::clone(domain),
            process: domain.own(),
            kind: device.kind(),
            device: device.id(),
            slot,
            sharers: AtomicUsize::new(0),
            state: Mutex::new(State { written, owed: false, late: false, waited: HashMap::new() }),
            waits: AtomicU64::new(0),
            failure: Mutex::new(None),
        }));
        domain.own_streams().register(slot, &stream);
        Ok(stream)
    }

    /// A new stream, or, where the device has no more of them ([`Backend::stream_limit`]), one of this process's that is
    /// there already. Work of several users on one stream is right, only later than it might be: a wait is enqueued
    /// after the work that it waits for, so what stands in front of anything was enqueued before it, and nothing goes
    /// round in circles.
    ///
    /// # Errors
    /// As for [`new`](Self::new); [`DeviceError::NoStream`] where those that there are were all dropped.
    pub fn new_or_shared(device: &Arc<dyn Backend>, domain: &Arc<ClockDomain>) -> Result<Self, DeviceError> {
        let error = match Self::new(device, domain) {
            Err(error @ DeviceError::NoStream { .. }) => error,
            other => return other,
        };
        let Some(stream) = domain.own_streams().to_share(device.id()) else { return Err(error) };
        if stream.0.sharers.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                clock = stream.0.slot,
                "a stream is shared, and its users wait for each other: {error}"
            );
        }
        Ok(stream)
    }

    /// The device's own stream, for those who know its type.
    pub fn backend(&self) -> &Arc<dyn StreamBackend> {
        &self.0.backend
    }

    /// The clocks that this stream can wait for.
    pub fn domain(&self) -> &Arc<ClockDomain> {
        &self.0.domain
    }

    pub(super) fn device(&self) -> DeviceId {
        self.0.device
    }

    /// Its clock now, which others see as well.
    pub(super) fn now(&self) -> Option<Ticket> {
        let value = self.0.domain.own_page().load(self.0.slot)?;
        Some(Ticket { process: self.0.process, slot: self.0.slot, value })
    }

    pub(super) fn sharers(&self) -> usize {
        self.0.sharers.load(Ordering::Relaxed)
    }

    pub(super) fn downgrade(&self) -> WeakStream {
        WeakStream(Arc::downgrade(&self.0))
    }

    /// Stands for everything enqueued so far; `None` when all of it has run already.
    pub fn ticket(&self) -> Option<Ticket> {
        let value = {
            let mut state = self.0.state.lock();
            state.owed = true;
            state.written + 1
        };
        // A host stream that is idle runs the write here and now, which spares its readers a wait.
        if self.0.kind == DeviceKind::Host || !turn::defer(self) {
            self.flush_to(value);
        }
        let ticket = Ticket { process: self.0.process, slot: self.0.slot, value };
        let now = self.0.domain.own_page().load(self.0.slot);
        (!now.is_some_and(|now| passed(now, value))).then_some(ticket)
    }

    /// Enqueues the clock write for every ticket given out so far.
    pub(crate) fn flush(&self) {
        let mut state = self.0.state.lock();
        if state.owed {
            self.write(&mut state);
        }
    }

    pub(super) fn flush_to(&self, value: u64) {
        let mut state = self.0.state.lock();
        if state.owed && !passed(state.written, value) {
            self.write(&mut state);
        }
    }

    /// Enqueues the write that is owed, or, where that could mean to wait for the device, leaves it to the late writer
    /// (LEASE-2): one write stands for every ticket that was given out until it is made.
    fn write(&self, state: &mut State) {
        if state.late {
            return;
        }
        if !self.0.backend.has_room() && self.0.domain.late_writer().put(self) {
            state.late = true;
            return;
        }
        self.write_now(state);
    }

    /// For the late writer: whether the write that it was left is made by now.
    pub(super) fn write_late(&self) -> bool {
        let mut state = self.0.state.lock();
        if state.late && self.0.backend.has_room() {
            self.write_now(&mut state);
        }
        !state.late
    }

    fn write_now(&self, state: &mut State) {
        state.late = false;
        state.written += 1;
        state.owed = false;
        fault::point("stream.advance");
        let advance = [StreamOp::Advance(state.written)];
        let Err(error) = self.0.backend.submit(&advance) else { return };
        // It may only have reported a failure of earlier work, which it does once; the write is owed all the same.
        tracing::error!(clock = self.0.slot, %error, "work on a stream failed");
        if let Err(error) = self.0.backend.submit(&advance) {
            // The device is lost to this process; whoever waits is released by the death certificate (DEATH-1).
            tracing::error!(clock = self.0.slot, %error, "a clock write could not be enqueued");
        }
    }

    /// Notes what went wrong in a call that cannot return it.
    #[cfg(feature = "cuda")]
    pub(crate) fn fail(&self, error: &dyn std::error::Error) {
        tracing::error!(clock = self.0.slot, %error, "work was put on a stream that may run too early");
        *self.0.failure.lock() = Some(error.to_string());
    }

    /// A wait is put on the stream: the host has not seen the clock pass.
    fn note_wait(&self, ticket: Ticket) {
        self.0.waits.fetch_add(1, Ordering::Relaxed);
        let Ticket { process: on, slot: clock, value } = ticket;
        self.0.domain.tracer().note(|| What::WaitEnqueued { stream: self.0.slot, on, clock, value });
    }

    /// Waits put on this stream so far, and how long it stood in them where the device tells.
    pub(crate) fn waits(&self) -> (u64, Option<Duration>) {
        (self.0.waits.load(Ordering::Relaxed), self.0.backend.waited())
    }

    /// Makes later work on this stream wait for all `tickets`, in one batch. The host does not wait.
    ///
    /// # Errors
    /// The clock of a ticket is not known to this process, or the device refuses.
    pub fn wait(&self, tickets: impl IntoIterator<Item = Ticket>) -> Result<(), DeviceError> {
        if let Some(message) = self.0.failure.lock().take() {
            return Err(DeviceError::Stream { slot: self.0.slot, message });
        }
        let tickets: SmallVec<[Ticket; 8]> = tickets.into_iter().collect();
        #[cfg(feature = "testing")]
        if SKIP_WAITS.load(std::sync::atomic::Ordering::Relaxed) {
            return Ok(());
        }
        // Before this stream's state is locked: two streams that wait for each other must not meet in their locks.
        for ticket in
            tickets.iter().filter(|ticket| ticket.process == self.0.process && ticket.slot != self.0.slot)
        {
            self.0.domain.own_streams().flush(ticket.slot, ticket.value);
        }
        let mut ops: SmallVec<[StreamOp; 8]> = SmallVec::new();
        if !tickets.is_empty() {
            self.0.backend.make_room()?;
        }
        let mut state = self.0.state.lock();
        for ticket in tickets {
            if ticket.process == self.0.process && ticket.slot == self.0.slot {
                continue; // in order already
            }
            let key = (ticket.process, ticket.slot);
            if state.waited.get(&key).is_some_and(|value| passed(*value, ticket.value)) {
                continue;
            }
            match self.0.domain.passed(&ticket) {
                Ok(true) => {}
                Ok(false) => {
                    self.note_wait(ticket);
                    ops.push(StreamOp::Wait(ticket));
                }
                Err(error) => return Err(ClockError::from(error).into()),
            }
            state.waited.insert(key, ticket.value);
        }
        if state.waited.len() > MOST_WAITED {
            // Processes come and go: what has passed needs no remembering.
            state.waited.retain(|(process, slot), value| {
                let ticket = Ticket { process: *process, slot: *slot, value: *value };
                matches!(self.0.domain.passed(&ticket), Ok(false))
            });
        }
        if ops.is_empty() {
            return Ok(());
        }
        fault::point("stream.wait");
        if state.late {
            // What this stream waits for may itself wait for the write that is owed.
            self.write_now(&mut state);
        }
        self.0.backend.submit(&ops)
    }
}

/// Blocks the calling thread until `ticket` has passed, after it made sure that the write it stands for is enqueued.
pub(crate) fn host_wait(
    domain: &Arc<ClockDomain>,
    ticket: Ticket,
    deadline: Option<Deadline>,
) -> Result<Waited, ClockError> {
    if ticket.process == domain.own() {
        domain.own_streams().flush(ticket.slot, ticket.value);
    }
    domain.wait(&ticket, deadline)
}

#[derive(Debug)]
pub(super) struct WeakStream(std::sync::Weak<Inner>);

impl WeakStream {
    pub(super) fn upgrade(&self) -> Option<Stream> {
        self.0.upgrade().map(Stream)
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} clock {}", self.kind, self.slot)
    }
}
