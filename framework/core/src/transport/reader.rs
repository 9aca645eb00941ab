//! The reader: the one loop of a process that reads everything its peers write.
//!
//! It polls while there is something to read, spins adaptively for a while, and then sleeps until its
//! doorbell rings. Before it sleeps it announces that on its wake page and polls once more, so no wake-up is
//! lost (see [`doorbell`](crate::transport::doorbell)).
//!
//! If there are many links, it polls those that are [lively](super::attention).
//!
//! The reader loads the two tails that a peer moves, and takes a lock only if one has moved. It loads the
//! head in the ring to the peer only while a lease of a third process waits for it (`Link::poll`).
//!
//! In a worker the reader runs on the thread of the actors, so a message costs no switch of threads; in the
//! node it has a thread of its own. Actors started with `own_thread` have theirs.
//!
//! One task or thread of the process runs it: a worker's main thread, beside its actors, or a thread of the
//! node.
//!
//! **Invariants.** No wake-up is lost. The steps for a link have one order: leases back, frames passed,
//! replies out, frames in. The reader waits for no other process.
//!
//! **Locks.** None across a poll; each step takes those of its link.
//!
//! **On a crash** of a peer the reader reads everything that the peer had posted, and then removes its link.
//! **On cancellation** nothing is lost, see [`Transport::run`].

#![expect(unsafe_code, reason = "tokio asks for a promise about the descriptor that it watches")]

use std::io;
use std::num::NonZero;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Sleep;

use super::actors::KeptInboxes;
use super::attention::PollResult;
use super::frame_buffer::FrameBuffer;
use super::incoming::FrameTaker;
use super::link::Link;
use super::reader_state::{ReaderCache, ReaderState};
use super::renewal::IdleChecks;
use super::role::Reads;
use super::{Transport, wake_reasons};
use crate::limits::IDLE_CHECK;
use crate::os::step_aside;
use crate::stream::turn::Turn;
use crate::transport::doorbell::Sleeper;
use crate::transport::ring::{Native, Word};
use crate::transport::spin::{Spin, SpinStep};

/// The doorbells of a transport, which this keeps alive.
struct Listening(Arc<Transport>);

impl AsRawFd for Listening {
    fn as_raw_fd(&self) -> RawFd {
        self.0.wakeups.as_raw_fd()
    }
}

/// How often the reader steps aside before it lets the runtime poll descriptors and timers, and wake tasks
/// that `tokio::task::yield_now` deferred, which costs a system call.
const STEPS_PER_LOOK: u32 = 8;

/// A reader that never parks looks for idle links after this many polls that found something, at the cost of
/// one clock read.
const POLLS_PER_IDLE_CHECK: u32 = 1 << 16;

/// How often the reader parks before it counts its cores again, because some may have been taken away.
const PARKS_PER_COUNT: u32 = 64;

/// The environment variable that says for a process whether waiting threads poll for messages.
const LOOK: &str = "TENSORPOST_LOOK";

/// Returns the setting of [`LOOK`]; `None` if the cores are to be counted.
fn said_of_spare_cores() -> Option<bool> {
    match std::env::var_os(LOOK)?.to_str() {
        Some("always") => Some(true),
        Some("never") => Some(false),
        Some("auto" | "") => None,
        _ => {
            tracing::warn!("{LOOK} is `always`, `never` or `auto`; the cores are counted, as with `auto`");
            None
        }
    }
}

/// Returns how many cores this thread may use.
fn cores_of_this_thread() -> usize {
    rustix::thread::sched_getaffinity(None).map_or(0, |set| set.count() as usize)
}

impl ReaderState {
    /// Polls all links if `heads`, and else those whose turn it is; see [`ReaderCache::poll`].
    pub(super) fn poll(&mut self, transport: &Arc<Transport>, heads: bool) -> bool {
        self.kept.poll(transport, &mut self.buffer, heads)
    }
}

impl ReaderCache {
    /// Polls all links if `heads`, and else those whose turn it is. It checks how far peers have read in
    /// their rings only if `heads`, or if something waits for that.
    fn poll(&mut self, transport: &Arc<Transport>, buffer: &mut FrameBuffer, heads: bool) -> bool {
        let ReaderCache { attention, inboxes } = self;
        inboxes.refresh(&transport.actors);
        let any = attention.poll(&transport.links, heads, |link| {
            transport.poll_link(link, (&mut *buffer, &mut *inboxes), heads)
        });
        transport.fences.check(&*transport.control);
        transport.last_replies.check(&transport.links);
        // Once for all links, because closing entries that were given back drains all return rings again.
        if any {
            transport.memory.close_emptied();
        }
        transport.memory.chunks.loosen_if_due(&transport.links, &transport.lifecycle);
        // Only after a poll in vain: while there is something to do, more may come that rings anyway.
        if !any {
            transport.wakeups.ring_deferred(&transport.links);
        }
        any
    }
}

/// The loop of a reader, with its state from one step to the next.
struct ReaderLoop<'a> {
    transport: &'a Arc<Transport>,
    ears: AsyncFd<Listening>,
    sleeper: Sleeper<Native>,
    spin: Spin,
    /// Steps aside so far.
    aside: u32,
    /// Steps without the role.
    without: u32,
    /// Polls that found something.
    finds: u32,
    idle_checks: IdleChecks,
    /// The cores that the process may use. This includes the limit of a container, which is read from files
    /// and does not change.
    limit: usize,
    /// Those of them that this thread may use.
    cores: usize,
    said: Option<bool>,
    parks: u32,
}

impl<'a> ReaderLoop<'a> {
    fn new(transport: &'a Arc<Transport>) -> io::Result<Self> {
        let listening = Listening(Arc::clone(transport));
        // SAFETY: the descriptor is the transport's own, which the `Listening` keeps, and so is open for as
        // long as the `AsyncFd` is there; it always names the same epoll instance.
        let ears = unsafe { AsyncFd::register_with_interest(listening, Interest::READABLE) }?;
        let limit = std::thread::available_parallelism().map_or(1, NonZero::get);
        Ok(ReaderLoop {
            transport,
            ears,
            sleeper: Sleeper::new(transport.wakeups.sleep_word()),
            spin: Spin::new(),
            aside: 0,
            without: 0,
            finds: 0,
            idle_checks: IdleChecks::default(),
            limit,
            cores: limit,
            said: said_of_spare_cores(),
            parks: 0,
        })
    }

    /// Takes the role again, unless other threads want it.
    fn take_role(&mut self) -> Option<Reads<'a>> {
        self.without = self.without.wrapping_add(1);
        let mut reads = self.transport.role.take_for_reader(self.without)?;
        if std::mem::take(&mut reads.found) {
            self.spin.found();
        }
        Some(reads)
    }

    /// Notes that a poll has found something.
    fn found(&mut self) {
        self.finds = self.finds.wrapping_add(1);
        if self.finds.is_multiple_of(POLLS_PER_IDLE_CHECK) {
            self.transport.give_back_idle(&mut self.idle_checks);
        }
        self.spin.found();
    }

    /// Lets the other tasks of the thread run.
    async fn make_way(&mut self) {
        self.aside = self.aside.wrapping_add(1);
        if self.aside.is_multiple_of(STEPS_PER_LOOK) {
            tokio::task::yield_now().await;
        } else {
            step_aside().await;
        }
    }

    /// Makes way, also for other processes.
    async fn give_way(&mut self) {
        self.make_way().await;
        self.spin.give_way();
    }

    /// Sleeps until a peer or another thread of the process wakes it, or idle memory is due.
    async fn park(&mut self, reading: &mut ReaderState, mut alarm: Pin<&mut Sleep>) -> io::Result<()> {
        let transport = self.transport;
        // First the work that has time. Then four steps whose order must not change: announce the wanted wake
        // reasons, that the reader is parked, and that it sleeps; then poll one last time. A publisher
        // publishes first and then reads these words. So it either sees them and rings, or the last poll sees
        // the published item.
        let idle_look = transport.give_back_idle(&mut self.idle_checks).map(Into::into);
        if let Some(at) = idle_look.filter(|at| *at != alarm.deadline()) {
            alarm.as_mut().reset(at);
        }
        // WANTS: written before the fence in `prepare`.
        let wanted = wanted_wake_reasons(transport);
        transport.wakeups.wants_word().store(wanted, Ordering::Relaxed);
        // For this process's own threads: a thread that defers a ring from here on wakes the reader.
        transport.wakeups.park();
        // For the peers: from here on they ring.
        self.sleeper.prepare();
        // A message that another thread has sent in the meantime, or that the last poll has found, may need
        // progress of a peer too. Either this check sees that, or the message came after the word was written
        // and has set the word itself (`want_progress`). This poll covers all links, and how far peers have
        // read, because nobody rings for that.
        let asleep = !reading.poll(transport, true) && wanted_wake_reasons(transport) & !wanted == 0;
        if asleep && !transport.lifecycle.is_stopped() {
            reading.kept.let_go();
            tokio::select! {
                // Cleared, and polled again anyway: the next ring is an edge of its own.
                rung = self.ears.readable() => rung?.clear_ready(),
                // Another task of this thread, or another thread, may defer a ring while the reader sleeps.
                () = transport.wakeups.deferred_came() => {}
                () = &mut alarm, if idle_look.is_some() => {}
            }
        }
        // Both before the next poll, so that no publisher pays for waking a reader that is awake.
        transport.wakeups.unpark();
        self.sleeper.awake();
        self.count_cores();
        Ok(())
    }

    /// Notes whether each process has a core for a second thread, and whether the node has more processes
    /// than cores. A polling process is then in the way of another, unless it gives way.
    fn count_cores(&mut self) {
        if self.parks.is_multiple_of(PARKS_PER_COUNT) {
            self.cores = self.limit.min(cores_of_this_thread());
        }
        self.parks = self.parks.wrapping_add(1);
        let known = self.transport.links.all().len() + 1;
        let spare = self.said.unwrap_or(self.cores >= 2 * known);
        self.transport.wakeups.note_spare_cores(spare);
        self.spin.set_patient(self.said.unwrap_or(true));
        self.spin.set_crowded(self.transport.domain.processes().max(known) > self.cores);
    }
}

/// Returns the wake reasons, other than frames, for which peers have to wake this process; see
/// [`wake_reasons`].
fn wanted_wake_reasons(transport: &Transport) -> u64 {
    let links = transport.links.all();
    let credit = links.iter().any(|link| link.has_waiting());
    let room = links.iter().any(|link| link.lacks_room() || link.is_stuck() || link.waits_for_head());
    let room = room || transport.memory.has_waiters();
    let bit = |wanted, bit| if wanted { u64::from(bit) } else { 0 };
    bit(credit, wake_reasons::CREDIT) | bit(room, wake_reasons::ROOM)
}

impl Transport {
    /// Polls every link once; returns true if there was anything to do. For tests and single-threaded
    /// drivers; [`run`](Self::run) does the same before it sleeps.
    #[cfg(any(test, feature = "inside"))]
    pub fn poll(self: &Arc<Self>, buffer: &mut FrameBuffer) -> bool {
        ReaderCache::default().poll(self, buffer, true)
    }

    /// Does the same as [`poll`](Self::poll), in the way of a reader that is kept busy.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn glance(self: &Arc<Self>, buffer: &mut FrameBuffer) -> bool {
        ReaderCache::default().poll(self, buffer, false)
    }

    fn poll_link(
        self: &Arc<Self>,
        link: &Arc<Link>,
        (buffer, inboxes): (&mut FrameBuffer, &mut KeptInboxes),
        heads: bool,
    ) -> PollResult {
        if link.is_broken() {
            if !link.is_given_up() {
                self.give_up(link);
            }
            let exited = link.has_exited();
            // At each poll, because a send that had its claim may have added more since.
            let any = self.let_go(link);
            // A live peer keeps its link, so that its slot is known to be given up. The link of a peer that
            // has ended is removed.
            if exited {
                self.part_with(link);
            }
            return (any || exited).into();
        }
        // Read before the rings are, so that this poll sees everything that the peer had posted before its
        // end.
        let exited = link.has_exited();
        // Nothing can arrive over it yet.
        if !exited && !link.is_connected() {
            return PollResult::NotYet;
        }
        let mut any = false;
        let moved = link.poll(heads);
        if moved.any || exited {
            // One turn, so that the results of the frames (leases back, refusals) are published together.
            let turn = Turn::begin();
            let rings = self.return_rings(link);
            // Leases back first: a reply, or a hold for a frame, may wait for them. Frames last: leases that
            // they bring back are then found in the lease table, and the notices that they lead to find the
            // room that the other steps have made.
            if moved.returns || exited {
                any |= rings.drain_and_settle();
            } else {
                any |= self.settle_if_open();
            }
            if heads || link.may_have_passed() {
                any |= rings.retire_in_flight(heads);
            }
            any |= self.frames_to(link).flush_outbox();
            any |= FrameTaker::take_frames(self, link, buffer, inboxes);
            drop(turn);
            if exited && link.is_drained() {
                self.give_up(link);
                self.part_with(link);
                return PollResult::Something;
            }
        }
        if link.has_waiting() {
            link.wake_senders();
        }
        if !any && !link.is_made() { PollResult::NotYet } else { any.into() }
    }

    /// Returns whether a thread that waits for a message may poll for it instead of sleeping at once, because
    /// there are cores for two threads of each process.
    #[cfg(any(feature = "bindings", feature = "hosts"))]
    pub fn has_spare_cores(&self) -> bool {
        self.wakeups.has_spare_cores()
    }

    /// Reads until [`stop`](Self::stop). One task or thread of the process runs it; the task stays on its
    /// thread, for whose sends it keeps the list of links ([`Links::keep`](super::links::Links::keep)).
    ///
    /// # Errors
    /// The reader cannot wait for the doorbell: there is no tokio runtime with I/O, or no descriptor left.
    ///
    /// # Panics
    /// The runtime has no timers.
    ///
    /// # Cancel safety
    /// Dropping it between two polls loses nothing; frames stay in their rings.
    pub async fn run(self: Arc<Self>) -> io::Result<()> {
        let mut reader = ReaderLoop::new(&self)?;
        // A thread that borrows the role gives it back.
        let mut reads = self.role.take();
        // One timer for all sleeps: otherwise each message that wakes the reader would pay for making a timer
        // and removing it.
        let mut alarm = pin!(tokio::time::sleep(IDLE_CHECK));
        while !self.lifecycle.is_stopped() {
            self.end_fork(0);
            if self.role.is_wanted() {
                reads = None;
            }
            let found = match reads.as_mut() {
                Some(reading) => reading.poll(&self, false),
                None => {
                    reads = reader.take_role();
                    if reads.is_some() {
                        continue;
                    }
                    false
                }
            };
            if found {
                reader.found();
                reader.make_way().await;
                continue;
            }
            match (reader.spin.idle(), reads.as_mut()) {
                (SpinStep::Poll, _) => std::hint::spin_loop(),
                (SpinStep::Yield, _) => reader.make_way().await,
                (SpinStep::GiveWay, _) => reader.give_way().await,
                // The peers need not ring, because another thread polls.
                (SpinStep::Park, None) => self.role.is_back().await,
                (SpinStep::Park, Some(reading)) => reader.park(reading, alarm.as_mut()).await?,
            }
        }
        // After this no reader is left to ring.
        self.wakeups.ring_deferred(&self.links);
        // DEATH-1: nobody reads to the end what the dead have posted, and another thread may still wait for a
        // reply of theirs.
        for link in self.links.all().iter().filter(|link| link.has_exited() && !link.is_given_up()) {
            self.give_up(link);
        }
        Ok(())
    }

    inside! {
        /// Ends [`run`](Self::run).
        pub fn stop(&self) {
            self.lifecycle.stop();
            self.wakeups.wake_reader();
        }
    }
}
