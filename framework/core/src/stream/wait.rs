//! How a stream comes to wait for the tickets of others, and a host thread too.
//!
//! Used for every use of a tensor on a stream, before every handler, and before memory is used anew.
//!
//! CLOCK-1 is upheld in [`Stream::wait`]: it is called for the ready ticket of a tensor before every use of
//! the tensor on the stream, and enqueues a wait unless the host can see that the clock has passed or the
//! stream waits already.
//!
//! DEATH-3: what is waited for is noted in the stream's log *before* the wait is submitted, and also where no
//! wait is needed because a higher value of that clock is waited for already. A death can then be traced
//! through the stream (see [`taint`](crate::clock::taint)). Waits that only order work (`wait_in_order`) are
//! not noted: who waits for the last use of memory before writing it anew does not depend on what was in it.
//!
//! The use is also checked against the table of taint in the step that notes it. The log has a lock of its
//! own, because a submitter may be blocked in the driver, with the stream's state locked, behind the very
//! wait that a marking is to end.
//!
//! Waits are inserted at use, too. The handler's stream waits before the handler; a message that came as a
//! value, or a use on another stream, is waited for when `read_on` is called. A stream remembers what it
//! waits for, so asking twice costs nothing.
//!
//! Work that only orders (`join`, `wait_in_order`) takes its place behind work that failed. A failure is
//! reported once, to whoever asks for work; a drop or a join that took the report would lose it, and the
//! order with it. Where a device is lost and cannot order anything any more, a tensor is lent rather than
//! handed over, and a lease whose uses cannot be told is kept until its process ends.
//!
//! At a handler's beginning the clock writes that are owed come before the new waits. So the result of the
//! last message does not wait for the tensors of the next one, and is not lost with them. In the middle of a
//! handler they stay put off: a use may be noted under the value that is owed.
//!
//! **Locks.** The first three steps of a wait take no lock of this stream for long, so that a drop gets its
//! ticket meanwhile (LEASE-2). The last three are one step under the stream's state; the log is locked inside
//! it.
//!
//! **On a crash** of the process that is waited for, the node releases its clocks, and the wait ends
//! (DEATH-1). **On cancellation** a wait that was enqueued stays; one that was refused leaves nothing behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::own::OwnStreams;
use super::{State, Stream};
use crate::clock::taint::{Tainted, TicketStatus};
use crate::clock::{ClockDomain, ClockError, Deadline, Ticket, Waited, passed};
use crate::device::{DeviceError, StreamOp};
use crate::fault;
use crate::ids::ProcessId;
use crate::observe::trace::What;

/// Clocks that a stream remembers to wait for, before it looks which of them have passed.
const MOST_WAITED: usize = 256;

type Tickets = SmallVec<[Ticket; 8]>;
type Ops = SmallVec<[StreamOp; 8]>;

/// See [`testing_skip_waits`].
#[cfg(feature = "testing")]
static SKIP_WAITS: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Makes all streams of this process skip their waits from here on, or wait again. That breaks CLOCK-1 and
/// CLOCK-2, so that a test can show that it would notice: readers of a tensor read whatever its memory holds.
/// Only there with the feature `testing`; never for a program.
#[cfg(feature = "testing")]
pub fn testing_skip_waits(skip: bool) {
    SKIP_WAITS.store(skip, std::sync::atomic::Ordering::Relaxed);
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

impl Why {
    /// The memory's next use must come after the wait, so there is nobody to be told of anything else.
    fn must_be_put(self) -> bool {
        matches!(self, Why::Order | Why::Join)
    }
}

impl Stream {
    /// Makes later work on this stream wait for the data that all `tickets` stand for, in one batch. The host
    /// does not wait.
    ///
    /// # Errors
    /// The data of a ticket will never be there ([`Tainted`]), its clock is not known to this process, or the
    /// device refuses.
    pub fn wait(&self, tickets: impl IntoIterator<Item = Ticket>) -> Result<(), DeviceError> {
        self.wait_as(Why::Data, tickets)
    }

    /// As [`wait`](Self::wait), at the beginning of a handler that works on this stream: no use of an earlier
    /// one is still to be enqueued. What the stream owes for earlier work does not wait for the tickets.
    pub(crate) fn begin(&self, tickets: &[Ticket]) -> Result<(), DeviceError> {
        if self.0.log.is_marked() {
            self.leave_range(&mut self.0.state.lock());
        }
        if tickets.is_empty() { Ok(()) } else { self.wait_as(Why::Handler, tickets.iter().copied()) }
    }

    /// Makes later work on this stream come after everything that `tickets` stand for, whether or not that
    /// had a result: for the reuse of memory (CLOCK-2).
    ///
    /// # Errors
    /// As for [`wait`](Self::wait), taint excepted.
    pub(crate) fn wait_in_order(&self, tickets: impl IntoIterator<Item = Ticket>) -> Result<(), DeviceError> {
        self.wait_as(Why::Order, tickets)
    }

    /// As [`wait`](Self::wait), for joining what several streams did into this one: every wait is enqueued,
    /// also behind work that failed and where the data of a ticket will never be there. A failure stays for
    /// the next call to report.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait), once all is enqueued that can be. [`Tainted`] is about the data: the
    /// order is kept.
    pub(crate) fn join(&self, tickets: impl IntoIterator<Item = Ticket>) -> Result<(), DeviceError> {
        self.wait_as(Why::Join, tickets)
    }

    /// Six steps, in an order that matters. The first three are done without this stream's lock; the other
    /// three under it, as one: what is looked at, noted and enqueued must not be parted, or two users of the
    /// stream could each leave the other's wait out.
    fn wait_as(&self, why: Why, tickets: impl IntoIterator<Item = Ticket>) -> Result<(), DeviceError> {
        let this = &*self.0;
        if this.domain.is_inherited() {
            return Err(ClockError::Forked.into());
        }
        if !why.must_be_put()
            && let Some(message) = this.failure.lock().take()
        {
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
        let mut lost: Option<DeviceError> = None;
        let open = self.still_open(why, tickets, &mut lost)?;
        if open.is_empty() {
            return lost.map_or(Ok(()), Err);
        }
        // (2) Before this stream's state is locked: two streams that wait for each other must not meet in
        // their locks.
        self.enqueue_writes_of(&open);
        // (3) This may wait for the device, so it is done without the lock, which a drop needs for its ticket
        // (LEASE-2). Without room a wait is late, and never wrong.
        if let Err(error) = this.backend.make_room()
            && !why.must_be_put()
        {
            return Err(error);
        }
        let mut state = this.state.lock();
        // (4) Under the lock: another user of the stream may have asked for the same wait meanwhile.
        let mut ops = self.waits_needed(why, &open, &mut state)?;
        let (position, advance) = self.write_in_front(why, !ops.is_empty(), &mut state);
        // (5) Before the wait is submitted: the marking must find the note, or the note must find the death.
        // And before what the stream waits for is remembered, so that a refused use leaves nothing behind.
        if let Err(depends) = self.note_use(why, position, &open) {
            // A use for data is refused and its waits are not put.
            if !why.must_be_put() {
                ops.clear();
            }
            lost.get_or_insert(tainted(depends));
        }
        // The write that is owed goes all the same, and goes first, so that it does not wait for what comes
        // behind it.
        if let Some(advance) = advance {
            ops.insert(0, advance);
        }
        if ops.is_empty() {
            return lost.map_or(Ok(()), Err);
        }
        fault::point("stream.wait");
        // (6) Last of all: the driver may block here, behind this very wait for example.
        self.submit_waits(why, &ops, advance, &state)?;
        // Only now: a wait that was not enqueued must be asked for again.
        remember(&ops, &mut state);
        lost.map_or(Ok(()), Err)
    }

    /// Step 1: those of the tickets that may have to be waited for. What has to be reported although the
    /// others are put goes into `lost`.
    fn still_open(
        &self,
        why: Why,
        tickets: impl IntoIterator<Item = Ticket>,
        lost: &mut Option<DeviceError>,
    ) -> Result<Tickets, DeviceError> {
        let this = &*self.0;
        let mut open = Tickets::new();
        for ticket in tickets {
            let own = ticket.process == this.process && ticket.slot == this.slot;
            let status = match this.domain.status(&ticket).map_err(ClockError::from) {
                Ok(status) => status,
                Err(error) if why.must_be_put() => {
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
        Ok(open)
    }

    /// Step 2: enqueues the writes of this process that the tickets stand for. A wait for a write that nobody
    /// enqueues would never end.
    fn enqueue_writes_of(&self, open: &[Ticket]) {
        for ticket in open.iter().filter(|ticket| ticket.process == self.0.process) {
            self.0.own.flush(ticket.slot, ticket.value);
        }
    }

    /// Step 4: the waits that the stream does not stand behind already, for clocks that the host has not seen
    /// pass.
    fn waits_needed(&self, why: Why, open: &[Ticket], state: &mut State) -> Result<Ops, DeviceError> {
        let domain = &self.0.domain;
        let mut ops = Ops::new();
        for ticket in open {
            let waits = state.waited.get(&(ticket.process, ticket.slot));
            let known = waits.is_some_and(|value| passed(*value, ticket.value));
            // A clock that cannot be looked at any more is left to the device, which waits or refuses.
            let has_passed = match domain.passed(ticket).map_err(ClockError::from) {
                Err(error) if !why.must_be_put() => return Err(error.into()),
                passed => passed.unwrap_or(false),
            };
            if !known && !has_passed {
                self.count_wait(*ticket);
                ops.push(StreamOp::Wait(*ticket));
            }
        }
        if state.waited.len() > MOST_WAITED {
            // Processes come and go: what has passed needs no remembering.
            state.waited.retain(|(process, slot), value| {
                let ticket = Ticket { process: *process, slot: *slot, value: *value };
                matches!(domain.passed(&ticket), Ok(false))
            });
        }
        Ok(ops)
    }

    /// Still step 4: the first own value that stands for work behind the waits, and the write that goes in
    /// front of them.
    ///
    /// What is owed does not wait for the tickets of a handler that was not called yet, and what this stream
    /// waits for may itself wait for a write that is late. In the middle of a handler, what is about to be
    /// enqueued may have been noted under the value that is owed, so that value counts as behind the wait.
    fn write_in_front(&self, why: Why, waits: bool, state: &mut State) -> (u64, Option<StreamOp>) {
        let in_the_middle = state.written + 1;
        let writes = waits && (state.late || (why == Why::Handler && state.owed));
        let advance = writes.then(|| {
            self.next_value(state);
            StreamOp::Advance(state.written)
        });
        let position = if why == Why::Handler { state.written + 1 } else { in_the_middle };
        (position, advance)
    }

    /// Step 5: all open tickets are noted, also those that need no wait of their own: the work behind them
    /// depends on each (DEATH-3). An error is the first that was tainted meanwhile, with the process whose
    /// death it was.
    fn note_use(&self, why: Why, position: u64, open: &[Ticket]) -> Result<(), (Ticket, ProcessId)> {
        if why == Why::Order {
            return Ok(());
        }
        let this = &*self.0;
        let is_over = |ticket: &Ticket| matches!(this.domain.status(ticket), Ok(TicketStatus::Ready));
        this.log.push(position, open, |ticket| this.domain.tainted_by(ticket), is_over)
    }

    /// Step 6: gives the device the waits. `advance` is the write of what is owed, if it is the first of
    /// `ops`: it waits for none of these.
    fn submit_waits(
        &self,
        why: Why,
        ops: &[StreamOp],
        advance: Option<StreamOp>,
        state: &State,
    ) -> Result<(), DeviceError> {
        let this = &*self.0;
        // Before the driver is called, which may block: a hang report has to find what it blocks behind.
        let queued = this.own.queued(this.slot);
        let put = queued.map_or(0, |queued| {
            let waits = ops.iter().filter_map(|op| match op {
                StreamOp::Wait(ticket) => Some(*ticket),
                StreamOp::Advance(_) => None,
            });
            queued.put(waits, state.enqueued, |ticket| this.domain.passed(ticket).unwrap_or(true))
        });
        let mut put_now = this.backend.submit(ops);
        if why.must_be_put()
            && let Err(error) = put_now
        {
            // It may only have reported a failure of earlier work, which it does once: that is for the next
            // call.
            this.failure.lock().get_or_insert(error.to_string());
            put_now = this.backend.submit(ops);
        }
        let Err(error) = put_now else { return Ok(()) };
        if let Some(queued) = queued {
            queued.take_back(put);
        }
        if let Some(advance) = advance {
            // It may only have reported a failure of earlier work; the write is owed all the same, as in
            // `write_now`.
            if let Err(error) = this.backend.submit(&[advance]) {
                tracing::error!(clock = this.slot, %error, "a clock write could not be enqueued");
            }
        }
        Err(error)
    }

    /// A wait is about to be put on the stream: the host has not seen the clock pass.
    fn count_wait(&self, ticket: Ticket) {
        self.0.waits.fetch_add(1, Ordering::Relaxed);
        let Ticket { process: on, slot: clock, value } = ticket;
        self.0.domain.tracer().note(|| What::WaitEnqueued { stream: self.0.slot, on, clock, value });
    }
}

/// The stream waits for these from now on.
fn remember(ops: &[StreamOp], state: &mut State) {
    for op in ops {
        if let StreamOp::Wait(ticket) = op {
            let value = state.waited.entry((ticket.process, ticket.slot)).or_insert(ticket.value);
            if !passed(*value, ticket.value) {
                *value = ticket.value;
            }
        }
    }
}

fn tainted((ticket, by): (Ticket, ProcessId)) -> DeviceError {
    ClockError::from(Tainted { ticket, by }).into()
}

/// Blocks the calling thread until `ticket` has passed, after it made sure that the write it stands for is
/// enqueued.
pub(crate) fn host_wait(
    domain: &Arc<ClockDomain>,
    ticket: Ticket,
    deadline: Option<Deadline>,
) -> Result<Waited, ClockError> {
    if domain.is_inherited() {
        // A forked child reads what is there.
        return if domain.passed_in_fork(&ticket) { Ok(Waited::Passed) } else { Err(ClockError::Forked) };
    }
    if ticket.process == domain.own() {
        OwnStreams::of(domain).flush(ticket.slot, ticket.value);
    }
    domain.wait_for_data(&ticket, deadline)
}

/// As [`host_wait`], until all that the ticket stands for is over, whether or not that had a result: for the
/// reuse of memory (CLOCK-2).
pub(crate) fn host_wait_in_order(domain: &Arc<ClockDomain>, ticket: Ticket) -> Result<(), ClockError> {
    if ticket.process == domain.own() {
        OwnStreams::of(domain).flush(ticket.slot, ticket.value);
    }
    domain.wait(&ticket, None).map(drop)
}
