//! Waits of streams, and of host threads, for the tickets of others.
//!
//! They come before every use of a tensor on a stream, before every handler, and before memory is reused.
//!
//! [`Stream::wait`] upholds CLOCK-1: it is called for the ready ticket of a tensor before every use of the
//! tensor on the stream. It enqueues a wait unless the host can see that the clock has passed, or the stream
//! waits for it already.
//!
//! DEATH-3: a ticket is noted in the stream's log *before* the wait is submitted, and also where no wait is
//! needed because the stream waits for a higher value of that clock already. A death can then be traced
//! through the stream (see [`taint`](crate::clock::taint)). Waits that only order work (`wait_in_order`) are
//! not noted: a stream that waits for the last use of memory before it writes the memory anew does not depend
//! on the old data.
//!
//! The step that notes a use also checks it against the table of taint. The log has a lock of its own,
//! because a submitter may be blocked in the driver, with the stream's state locked, behind the very wait
//! that a marking is to end.
//!
//! Waits are inserted at use, too. The handler's stream waits before the handler begins. For a message that
//! came as a value, and for a use on another stream, the wait is inserted when `read_on` is called. A stream
//! remembers its waits, so a second request costs nothing.
//!
//! Waits that only order (`join`, `wait_in_order`) are enqueued even behind work that failed. A failure is
//! reported once, to the next caller that puts work on the stream; a drop or a join that took the report
//! would lose it, and the order with it. Where a device is lost and cannot order anything any more, a tensor
//! is lent rather than handed over, and a lease with unknown uses is kept until its process ends.
//!
//! At a handler's beginning the owed clock writes come before the new waits. So the result of the last
//! message does not wait for the tensors of the next one, and is not lost with them. In the middle of a
//! handler the owed writes stay deferred: a use may be noted under the owed value.
//!
//! **Locks.** The first three steps of a wait take no lock of this stream for long, so that a drop gets its
//! ticket meanwhile (LEASE-2). The last three are one step under the lock of the stream's state; the log's
//! lock is taken inside it.
//!
//! **On a crash** of the process that a stream waits for, the node releases its clocks, and the wait ends
//! (DEATH-1). **On cancellation** a wait that was enqueued stays; one that was refused leaves nothing behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::process_streams::OwnStreams;
use super::{Stream, StreamState};
use crate::clock::taint::{Tainted, TicketStatus};
use crate::clock::{ClockDomain, ClockError, Deadline, Ticket, Waited, passed};
use crate::device::{DeviceError, StreamOp};
use crate::fault;
use crate::ids::ProcessId;
use crate::observe::trace::What;

/// Number of clocks that a stream remembers its waits for, before it removes those that have passed.
const MOST_WAITED: usize = 256;

type Tickets = SmallVec<[Ticket; 8]>;
type Ops = SmallVec<[StreamOp; 8]>;

/// See [`testing_skip_waits`].
#[cfg(feature = "testing")]
static SKIP_WAITS: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Makes all streams of this process skip their waits from here on, or wait again. That breaks CLOCK-1 and
/// CLOCK-2, so that a test can show that it would notice: readers of a tensor read whatever its memory holds.
/// It exists only with the feature `testing`; programs must never call it.
#[cfg(feature = "testing")]
pub fn testing_skip_waits(skip: bool) {
    SKIP_WAITS.store(skip, std::sync::atomic::Ordering::Relaxed);
}

/// The purpose of a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The data, to be used.
    Data,
    /// The data, before a handler is called.
    Handler,
    /// The end of the work.
    Order,
    /// The data and the end of the work, for one ticket that is to stand for several.
    Join,
}

impl Why {
    /// Returns whether the wait must be put in any case. It must where the memory's next use has to come
    /// after it; no caller then acts on an error.
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

    /// Waits as [`wait`](Self::wait) does, at the beginning of a handler that works on this stream, when all
    /// uses of earlier handlers are enqueued. The clock write that the stream owes for earlier work does not
    /// wait for the tickets.
    pub(crate) fn begin(&self, tickets: &[Ticket]) -> Result<(), DeviceError> {
        if self.0.log.is_marked() {
            self.leave_range(&mut self.0.state.lock());
        }
        if tickets.is_empty() { Ok(()) } else { self.wait_as(Why::Handler, tickets.iter().copied()) }
    }

    /// Makes later work on this stream come after all work that `tickets` stand for, even work without a
    /// result: for the reuse of memory (CLOCK-2).
    ///
    /// # Errors
    /// As for [`wait`](Self::wait), taint excepted.
    pub(crate) fn wait_in_order(&self, tickets: impl IntoIterator<Item = Ticket>) -> Result<(), DeviceError> {
        self.wait_as(Why::Order, tickets)
    }

    /// Joins the work of several streams into this one. It waits as [`wait`](Self::wait) does, but enqueues
    /// every wait, also behind work that failed and where the data of a ticket will never be there. A failure
    /// stays for the next call to report.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait), returned after all possible waits are enqueued. [`Tainted`] is about the
    /// data: the order is kept.
    pub(crate) fn join(&self, tickets: impl IntoIterator<Item = Ticket>) -> Result<(), DeviceError> {
        self.wait_as(Why::Join, tickets)
    }

    /// Waits in six steps, in an order that matters. The first three are done without this stream's lock, the
    /// other three under it. These three, the look, the note and the enqueuing, must be one step. Otherwise
    /// two users of the stream could each leave a wait to the other.
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
        // (1) Check all tickets before anything is enqueued: an error leaves the stream as it was.
        let mut lost: Option<DeviceError> = None;
        let open = self.still_open(why, tickets, &mut lost)?;
        if open.is_empty() {
            return lost.map_or(Ok(()), Err);
        }
        // (2) Do this before this stream's state is locked: two streams that wait for each other must not
        // block in each other's locks.
        self.enqueue_writes_of(&open);
        // (3) This may wait for the device, so do it without the lock, which a drop needs for its ticket
        // (LEASE-2). If there is no room after all, the wait is late, but never wrong.
        if let Err(error) = this.backend.make_room()
            && !why.must_be_put()
        {
            return Err(error);
        }
        let mut state = this.state.lock();
        // (4) Find the missing waits under the lock: another user of the stream may have asked for the same
        // wait meanwhile.
        let mut ops = self.waits_needed(why, &open, &mut state)?;
        let (position, advance) = self.write_in_front(why, !ops.is_empty(), &mut state);
        // (5) Note the use before the wait is submitted: the marking must find the note, or the note must
        // find the death. Also note it before the stream remembers the waits, so that a refused use leaves
        // nothing behind.
        if let Err(depends) = self.note_use(why, position, &open) {
            // A use for data is refused, and its waits are not put.
            if !why.must_be_put() {
                ops.clear();
            }
            lost.get_or_insert(tainted(depends));
        }
        // Put the owed write in any case, and first, so that it does not wait for the waits behind it.
        if let Some(advance) = advance {
            ops.insert(0, advance);
        }
        if ops.is_empty() {
            return lost.map_or(Ok(()), Err);
        }
        fault::point("stream.wait");
        // (6) Submit last: the driver may block here, behind this very wait for example.
        self.submit_waits(why, &ops, advance, &state)?;
        // Remember the waits only now: a wait that was not enqueued must be asked for again.
        remember(&ops, &mut state);
        lost.map_or(Ok(()), Err)
    }

    /// Step 1: returns the tickets that may need a wait. An error that has to be reported although the other
    /// waits are put goes into `lost`.
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

    /// Step 4: returns the waits that the stream does not stand behind already, for clocks that the host has
    /// not seen pass.
    fn waits_needed(&self, why: Why, open: &[Ticket], state: &mut StreamState) -> Result<Ops, DeviceError> {
        let domain = &self.0.domain;
        let mut ops = Ops::new();
        for ticket in open {
            let waits = state.waited.get(&(ticket.process, ticket.slot));
            let known = waits.is_some_and(|value| passed(*value, ticket.value));
            // Leave a clock that cannot be read any more to the device, which waits or refuses.
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
            // Processes come and go: forget the waits that have passed.
            state.waited.retain(|(process, slot), value| {
                let ticket = Ticket { process: *process, slot: *slot, value: *value };
                matches!(domain.passed(&ticket), Ok(false))
            });
        }
        Ok(ops)
    }

    /// Still step 4: returns the first own value that stands for work behind the waits, and the write that
    /// goes in front of them.
    ///
    /// An owed write must not wait for the tickets of a handler that was not called yet. A late write must
    /// not wait either, because the work that this stream waits for may itself wait for that write. In the
    /// middle of a handler, work that is about to be enqueued may have been noted under the owed value, so
    /// that value counts as behind the wait.
    fn write_in_front(&self, why: Why, waits: bool, state: &mut StreamState) -> (u64, Option<StreamOp>) {
        let in_the_middle = state.written + 1;
        let writes = waits && (state.late || (why == Why::Handler && state.owed));
        let advance = writes.then(|| {
            self.next_value(state);
            StreamOp::Advance(state.written)
        });
        let position = if why == Why::Handler { state.written + 1 } else { in_the_middle };
        (position, advance)
    }

    /// Step 5: notes all open tickets, also those that need no wait of their own, because the work behind
    /// them depends on each (DEATH-3). An error is the first ticket that was tainted meanwhile, with the
    /// process whose death tainted it.
    fn note_use(&self, why: Why, position: u64, open: &[Ticket]) -> Result<(), (Ticket, ProcessId)> {
        if why == Why::Order {
            return Ok(());
        }
        let this = &*self.0;
        let is_over = |ticket: &Ticket| matches!(this.domain.status(ticket), Ok(TicketStatus::Ready));
        this.log.push(position, open, |ticket| this.domain.tainted_by(ticket), is_over)
    }

    /// Step 6: gives the device the waits. `advance` is the owed write, if it is the first of `ops`: it waits
    /// for none of these.
    fn submit_waits(
        &self,
        why: Why,
        ops: &[StreamOp],
        advance: Option<StreamOp>,
        state: &StreamState,
    ) -> Result<(), DeviceError> {
        let this = &*self.0;
        // Note the waits before the driver is called, which may block: a hang report has to find the wait
        // that it blocks behind.
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
            // The driver may only have reported a failure of earlier work, which it does once: keep the
            // report for the next call.
            this.failure.lock().get_or_insert(error.to_string());
            put_now = this.backend.submit(ops);
        }
        let Err(error) = put_now else { return Ok(()) };
        if let Some(queued) = queued {
            queued.take_back(put);
        }
        if let Some(advance) = advance {
            // The driver may only have reported a failure of earlier work; the write is still owed, as in
            // `write_now`.
            if let Err(error) = this.backend.submit(&[advance]) {
                tracing::error!(clock = this.slot, %error, "a clock write could not be enqueued");
            }
        }
        Err(error)
    }

    /// Counts a wait that is about to be put on the stream, because the host has not seen the clock pass.
    fn count_wait(&self, ticket: Ticket) {
        self.0.waits.fetch_add(1, Ordering::Relaxed);
        let Ticket { process: on, slot: clock, value } = ticket;
        self.0.domain.tracer().note(|| What::WaitEnqueued { stream: self.0.slot, on, clock, value });
    }
}

/// Notes that the stream waits for these from now on.
fn remember(ops: &[StreamOp], state: &mut StreamState) {
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

/// Makes sure that the clock write of `ticket` is enqueued, and blocks the calling thread until the clock has
/// passed it.
pub(crate) fn host_wait(
    domain: &Arc<ClockDomain>,
    ticket: Ticket,
    deadline: Option<Deadline>,
) -> Result<Waited, ClockError> {
    if domain.is_inherited() {
        // A forked child never waits: it only reads the clock.
        return if domain.passed_in_fork(&ticket) { Ok(Waited::Passed) } else { Err(ClockError::Forked) };
    }
    if ticket.process == domain.own() {
        OwnStreams::of(domain).flush(ticket.slot, ticket.value);
    }
    domain.wait_for_data(&ticket, deadline)
}

/// Waits as [`host_wait`] does, until all work that the ticket stands for is over, even work without a
/// result: for the reuse of memory (CLOCK-2).
pub(crate) fn host_wait_in_order(domain: &Arc<ClockDomain>, ticket: Ticket) -> Result<(), ClockError> {
    if ticket.process == domain.own() {
        OwnStreams::of(domain).flush(ticket.slot, ticket.value);
    }
    domain.wait(&ticket, None).map(drop)
}
