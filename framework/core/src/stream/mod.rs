//! A stream as the rest of the framework sees it: a place to put work in order, with a clock that others wait for.
//!
//! A [`Ticket`] of a stream stands for everything that was put on it before [`Stream::ticket`] was called. Tickets of
//! one turn share one clock value and one write (see `turn`): asking twice costs nothing.
//!
//! CLOCK-1 is upheld in [`Stream::wait`]: it is called for the ready ticket of a tensor before every use of the tensor
//! on the stream, and enqueues a wait unless the host can see that the clock has passed or the stream waits already.
//!
//! DEATH-3: what is waited for is noted in the stream's log *before* the wait is submitted, and also where no wait is
//! needed because a higher value of that clock is waited for already. A death can then be traced through the stream
//! (see [`taint`](crate::clock::taint)). Waits that only order work (`wait_in_order`) are not noted: who waits for
//! the last use of memory before writing it anew does not depend on what was in it.
//!
//! The use is also checked against the table of taint in the step that notes it. The log has a lock of its own, because
//! a submitter may be blocked in the driver, with the stream's state locked, behind the very wait that a marking is to
//! end.
//!
//! Waits are inserted at use, too. The handler's stream waits before the handler; a message that came as a value, or a
//! use on another stream, is waited for when `read_on` is called. A stream remembers what it waits for, so asking twice
//! costs nothing.
//!
//! Work that only orders (`join`, `wait_in_order`) takes its place behind work that failed. A failure is reported once,
//! to whoever asks for work; a drop or a join that took the report would lose it, and the order with it. Where a device
//! is lost and cannot order anything any more, a tensor is lent rather than handed over, and a lease whose uses cannot
//! be told is kept until its process ends.
//!
//! At a handler's beginning the clock writes that are owed come before the new waits. So the result of the last message
//! does not wait for the tensors of the next one, and is not lost with them. In the middle of a handler they stay put
//! off: a use may be noted under the value that is owed.

mod late;
mod own;
mod queued;
pub(crate) mod turn;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::clock::taint::{StreamLog, Tainted, TicketStatus};
use crate::clock::{ClockDomain, ClockError, Deadline, Ticket, Waited, passed};
use crate::device::{Backend, DeviceError, DeviceKind, StreamBackend, StreamOp};
use crate::fault;
use crate::ids::{DeviceId, ProcessId};
use crate::observe::trace::What;
use own::OwnStreams;

pub(crate) use own::finish_own_work;
pub(crate) use queued::waiting;

/// Clocks that a stream remembers to wait for, before it looks which of them have passed.
const MOST_WAITED: usize = 256;

/// An ordered queue of work on a device. Clones are the same stream.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    backend: Arc<dyn StreamBackend>,
    domain: Arc<ClockDomain>,
    own: Arc<OwnStreams>,
    process: ProcessId,
    kind: DeviceKind,
    device: DeviceId,
    slot: u16,
    log: Arc<StreamLog>,
    /// How often it was given out to somebody who asked for a stream and could get none of its own.
    sharers: AtomicUsize,
    state: Mutex<State>,
    /// Waits enqueued, for the metrics.
    waits: AtomicU64,
    /// A failure that could not be returned when it came; the next fallible call returns it.
    failure: Mutex<Option<String>>,
}

struct State {
    /// Value of the last clock write that was enqueued.
    written: u64,
    /// As `written`, without the values that were given up: the stream really writes it.
    enqueued: u64,
    /// Whether a ticket for `written + 1` was given out.
    owed: bool,
    /// Whether the device had no room for the write that is owed, and the domain's late writer sees to it.
    late: bool,
    /// Per clock the highest value this stream waits for already.
    waited: HashMap<(ProcessId, u16), u64>,
    /// The turn in which the first ticket was given out since the stream was marked; the inner `None`: outside of any.
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

/// See [`testing_skip_waits`].
#[cfg(feature = "testing")]
static SKIP_WAITS: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Makes all streams of this process skip their waits from here on, or wait again. That breaks CLOCK-1 and CLOCK-2, so
/// that a test can show that it would notice: readers of a tensor read whatever its memory holds. Only there with the
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
        let log = domain.log(slot);
        let enqueued = clock.value();
        let written = log.leave_range(enqueued);
        let backend = device.create_stream(clock, Arc::clone(domain))?;
        let own = OwnStreams::of(domain);
        let stream = Stream(Arc::new(Inner {
            backend,
            domain: Arc::clone(domain),
            own: Arc::clone(own),
            process: domain.own(),
            kind: device.kind(),
            device: device.id(),
            slot,
            log,
            sharers: AtomicUsize::new(0),
            state: Mutex::new(State {
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
        own.register(slot, &stream);
        if let Some(queued) = own.queued(slot) {
            queued.begin(device.id());
        }
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
        let Some(stream) = OwnStreams::of(domain).to_share(device.id()) else { return Err(error) };
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

    fn device(&self) -> DeviceId {
        self.0.device
    }

    /// Its clock now, which others see as well.
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

    /// A ticket for everything enqueued so far; `None` if all of it has run to its end.
    pub fn ticket(&self) -> Option<Ticket> {
        let value = {
            let mut state = self.0.state.lock();
            if self.0.log.is_marked() {
                self.leave_range_if_new(&mut state);
                state.marked_in.get_or_insert_with(turn::current);
            }
            state.owed = true;
            state.written + 1
        };
        // A host stream that is idle runs the write here and now, which spares its readers a wait.
        if self.0.kind == DeviceKind::Host || !turn::defer(self) {
            self.flush_to(value);
        }
        let ticket = Ticket { process: self.0.process, slot: self.0.slot, value };
        (!matches!(self.0.domain.status(&ticket), Ok(TicketStatus::Ready))).then_some(ticket)
    }

    /// The ticket that work enqueued now will have at the earliest; nobody is promised anything.
    pub(crate) fn next_ticket(&self) -> Ticket {
        Ticket { process: self.0.process, slot: self.0.slot, value: self.0.log.next() }
    }

    /// A marked stream goes on behind the marked range once no use can be left that was checked before the marking and
    /// is still to be enqueued: when it has given out a ticket since, and is used in another turn than that (outside of
    /// turns: at the next use). A handler's stream does so earlier, in [`begin`](Self::begin).
    fn leave_range_if_new(&self, state: &mut State) {
        let turn = turn::current();
        if state.marked_in.is_some_and(|marked_in| turn.is_none() || marked_in != turn) {
            self.leave_range(state);
        }
    }

    fn leave_range(&self, state: &mut State) {
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

    /// Enqueues the write that is owed, or, where that could mean to wait for the device, leaves it to the late writer
    /// (LEASE-2): one write stands for every ticket that was given out until it is made.
    fn write(&self, state: &mut State) {
        if state.late {
            return;
        }
        if !self.0.backend.has_room() && self.0.own.late_writer().put(self) {
            state.late = true;
            return;
        }
        self.write_now(state);
    }

    /// For the late writer: whether the write that it was left is made by now.
    fn write_late(&self) -> bool {
        let mut state = self.0.state.lock();
        if state.late && self.0.backend.has_room() {
            self.write_now(&mut state);
        }
        !state.late
    }

    fn write_now(&self, state: &mut State) {
        fault::point("stream.advance");
        self.next_value(state);
        let advance = [StreamOp::Advance(state.written)];
        let Err(error) = self.0.backend.submit(&advance) else { return };
        // It may only have reported a failure of earlier work, which it does once; the write is owed all the same.
        tracing::error!(clock = self.0.slot, %error, "work on a stream failed");
        if let Err(error) = self.0.backend.submit(&advance) {
            // The device is lost to this process; whoever waits is released by the death certificate (DEATH-1).
            tracing::error!(clock = self.0.slot, %error, "a clock write could not be enqueued");
        }
    }

    fn next_value(&self, state: &mut State) {
        state.late = false;
        state.written += 1;
        state.enqueued = state.written;
        state.owed = false;
        self.0.log.set_written(state.written);
    }

    /// Notes what went wrong in a call that cannot return it.
    #[cfg(feature = "cuda")]
    pub(crate) fn fail(&self, error: &dyn std::error::Error) {
        tracing::error!(clock = self.0.slot, %error, "work was put on a stream that may run too early");
        *self.0.failure.lock() = Some(error.to_string());
    }

    /// Marks what the stream is given from now on as depending on the death of `by`; see
    /// [`ClockDomain::mark_now`](crate::clock::ClockDomain).
    #[cfg(feature = "cuda")]
    pub(crate) fn mark_now(&self, by: ProcessId) {
        self.0.domain.mark_now(self.0.slot, by);
    }

    /// A wait is put on the stream: the host has not seen the clock pass.
    fn note_wait(&self, ticket: Ticket) {
        self.0.waits.fetch_add(1, Ordering::Relaxed);
        let Ticket { process: on, slot: clock, value } = ticket;
        self.0.domain.tracer().note(|| What::WaitEnqueued { stream: self.0.slot, on, clock, value });
    }

    /// Waits put on this stream so far, because something was not ready, and how long it stood in them where the device
    /// tells: a GPU does not.
    pub fn waits(&self) -> (u64, Option<Duration>) {
        (self.0.waits.load(Ordering::Relaxed), self.0.backend.waited())
    }

    /// Makes later work on this stream wait for the data that all `tickets` stand for, in one batch. The host does not
    /// wait.
    ///
    /// # Errors
    /// The data of a ticket will never be there ([`Tainted`]), its clock is not known to this process, or the device
    /// refuses.
    pub fn wait(&self, tickets: impl IntoIterator<Item = Ticket>) -> Result<(), DeviceError> {
        self.wait_as(Why::Data, tickets)
    }

    /// As [`wait`](Self::wait), at the beginning of a handler that works on this stream: no use of an earlier one is
    /// still to be enqueued. What the stream owes for earlier work does not wait for the tickets.
    pub(crate) fn begin(&self, tickets: &[Ticket]) -> Result<(), DeviceError> {
        if self.0.log.is_marked() {
            self.leave_range(&mut self.0.state.lock());
        }
        if tickets.is_empty() { Ok(()) } else { self.wait_as(Why::Handler, tickets.iter().copied()) }
    }

    /// Makes later work on this stream come after everything that `tickets` stand for, whether or not that had a
    /// result: for the reuse of memory (CLOCK-2).
    ///
    /// # Errors
    /// As for [`wait`](Self::wait), taint excepted.
    pub(crate) fn wait_in_order(&self, tickets: impl IntoIterator<Item = Ticket>) -> Result<(), DeviceError> {
        self.wait_as(Why::Order, tickets)
    }

    /// As [`wait`](Self::wait), for joining what several streams did into this one: every wait is enqueued, also behind
    /// work that failed and where the data of a ticket will never be there. A failure stays for the next call to report.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait), once all is enqueued that can be. [`Tainted`] is about the data: the order is kept.
    pub(crate) fn join(&self, tickets: impl IntoIterator<Item = Ticket>) -> Result<(), DeviceError> {
        self.wait_as(Why::Join, tickets)
    }

    fn wait_as(&self, why: Why, tickets: impl IntoIterator<Item = Ticket>) -> Result<(), DeviceError> {
        let this = &*self.0;
        // The steps, in an order that matters: (1) what of the tickets is still open, (2) writes of this process that they
        // stand for, (3) room on the device, all without this stream's lock; (4) under it, what has to be waited for, (5)
        // the note in the log, (6) the device.
        //
        // Where the memory's next use must come after this, there is nobody to be told of anything else.
        let must_be_put = matches!(why, Why::Order | Why::Join);
        if !must_be_put && let Some(message) = this.failure.lock().take() {
            return Err(DeviceError::Stream { slot: this.slot, message });
        }
        #[cfg(feature = "testing")]
        if SKIP_WAITS.load(std::sync::atomic::Ordering::Relaxed) {
            return Ok(());
        }
        if this.log.is_marked() {
            self.leave_range_if_new(&mut this.state.lock());
        }
        // (1) All tickets are looked at before anything is enqueued: an error leaves the stream as it was.
        let mut open: SmallVec<[Ticket; 8]> = SmallVec::new();
        let mut lost: Option<DeviceError> = None;
        for ticket in tickets {
            let own = ticket.process == this.process && ticket.slot == this.slot;
            let status = match this.domain.status(&ticket).map_err(ClockError::from) {
                Ok(status) => status,
                Err(error) if must_be_put => {
                    lost.get_or_insert(error.into());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            match (why, status) {
                (Why::Join, TicketStatus::Tainted(by)) => {
                    lost.get_or_insert(tainted((ticket, by)));
                    if !own {
                        open.push(ticket);
                    }
                }
                (Why::Data | Why::Handler, TicketStatus::Tainted(by)) => {
                    return Err(ClockError::from(Tainted { ticket, by }).into());
                }
                (_, TicketStatus::Ready) => {}
                _ if own => {} // in order already
                _ => open.push(ticket),
            }
        }
        if open.is_empty() {
            return lost.map_or(Ok(()), Err);
        }
        // (2) A wait for a write that nobody enqueues would never end.
        // Before this stream's state is locked: two streams that wait for each other must not meet in their locks.
        for ticket in open.iter().filter(|ticket| ticket.process == this.process) {
            this.own.flush(ticket.slot, ticket.value);
        }
        // (3) This may wait for the device, so it is done without the lock, which a drop needs for its ticket (LEASE-2).
        // Without room a wait is late, and never wrong.
        if let Err(error) = this.backend.make_room()
            && !must_be_put
        {
            return Err(error);
        }
        // From here to the submission under the state's lock: what is looked at, noted and enqueued must be one step,
        // or two users of the stream could each leave the other's wait out.
        let mut state = this.state.lock();
        let mut ops: SmallVec<[StreamOp; 8]> = SmallVec::new();
        for ticket in &open {
            let waits = state.waited.get(&(ticket.process, ticket.slot));
            let known = waits.is_some_and(|value| passed(*value, ticket.value));
            // A clock that cannot be looked at any more is left to the device, which waits or refuses.
            let has_passed = match this.domain.passed(ticket).map_err(ClockError::from) {
                Err(error) if !must_be_put => return Err(error.into()),
                passed => passed.unwrap_or(false),
            };
            if !known && !has_passed {
                self.note_wait(*ticket);
                ops.push(StreamOp::Wait(*ticket));
            }
        }
        if state.waited.len() > MOST_WAITED {
            // Processes come and go: what has passed needs no remembering.
            state.waited.retain(|(process, slot), value| {
                let ticket = Ticket { process: *process, slot: *slot, value: *value };
                matches!(this.domain.passed(&ticket), Ok(false))
            });
        }
        // What is owed does not wait for the tickets of a handler that was not called yet, and what this stream waits
        // for may itself wait for a write that is late. In the middle of a handler, what is about to be enqueued may
        // have been noted under the value that is owed, so that value counts as behind the wait.
        let mut position = state.written + 1;
        let writes = !ops.is_empty() && (state.late || (why == Why::Handler && state.owed));
        let advance = writes.then(|| {
            self.next_value(&mut state);
            StreamOp::Advance(state.written)
        });
        if why == Why::Handler {
            position = state.written + 1;
        }
        // (5) All open tickets, also those that need no wait of their own: the work behind them depends on each (DEATH-3).
        // Before the wait is submitted: the marking must find it, or this must find the death. And before what the stream
        // waits for is remembered, so that a refused use leaves nothing behind.
        let noted = if why == Why::Order {
            Ok(())
        } else {
            let is_over = |ticket: &Ticket| matches!(this.domain.status(ticket), Ok(TicketStatus::Ready));
            this.log.push(position, &open, |ticket| this.domain.tainted_by(ticket), is_over)
        };
        // Tainted meanwhile: a use for data is refused and its waits are not put. The write that is owed goes all the
        // same, and goes first, so that it does not wait for what comes behind it.
        if noted.is_err() && !must_be_put {
            ops.clear();
        }
        if let Some(advance) = advance {
            ops.insert(0, advance);
        }
        if let Err(depends) = noted {
            lost.get_or_insert(tainted(depends));
        }
        if ops.is_empty() {
            return lost.map_or(Ok(()), Err);
        }
        fault::point("stream.wait");
        // (6) The write of what is owed is the first of them, so it waits for none of these.
        // Before the driver is called, which may block: behind this very wait, for example.
        let queued = this.own.queued(this.slot);
        let put = queued.map_or(0, |queued| {
            let waits = ops.iter().filter_map(|op| match op {
                StreamOp::Wait(ticket) => Some(*ticket),
                StreamOp::Advance(_) => None,
            });
            queued.put(waits, state.enqueued, |ticket| this.domain.passed(ticket).unwrap_or(true))
        });
        let mut put_now = this.backend.submit(&ops);
        if must_be_put && let Err(error) = put_now {
            // It may only have reported a failure of earlier work, which it does once: that is for the next call.
            this.failure.lock().get_or_insert(error.to_string());
            put_now = this.backend.submit(&ops);
        }
        if let Err(error) = put_now {
            if let Some(queued) = queued {
                queued.take_back(put);
            }
            if let Some(advance) = advance {
                // It may only have reported a failure of earlier work; the write is owed all the same, as in `write`.
                if let Err(error) = this.backend.submit(&[advance]) {
                    tracing::error!(clock = this.slot, %error, "a clock write could not be enqueued");
                }
            }
            return Err(error);
        }
        // Remembered only now: a wait that was not enqueued must be asked for again.
        for op in &ops {
            if let StreamOp::Wait(ticket) = op {
                let value = state.waited.entry((ticket.process, ticket.slot)).or_insert(ticket.value);
                if !passed(*value, ticket.value) {
                    *value = ticket.value;
                }
            }
        }
        lost.map_or(Ok(()), Err)
    }
}

/// The purpose of a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The data, to be used.
    Data,
    /// The same, before a handler is called.
    Handler,
    /// The end of the work.
    Order,
    /// The data and the end of the work, for a ticket that stands for several.
    Join,
}

fn tainted((ticket, by): (Ticket, ProcessId)) -> DeviceError {
    ClockError::from(Tainted { ticket, by }).into()
}

/// Blocks the calling thread until `ticket` has passed, after it made sure that the write it stands for is enqueued.
pub(crate) fn host_wait(
    domain: &Arc<ClockDomain>,
    ticket: Ticket,
    deadline: Option<Deadline>,
) -> Result<Waited, ClockError> {
    if ticket.process == domain.own() {
        OwnStreams::of(domain).flush(ticket.slot, ticket.value);
    }
    domain.wait_for_data(&ticket, deadline)
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
