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
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::actors::KeptInboxes;
use super::attention::{Attention, PollResult};
use super::incoming::{FrameBuffer, FrameTaker};
use super::link::Link;
use super::renewal::IdleChecks;
use super::{Transport, wake_reasons};
use crate::limits::IDLE_CHECK;
use crate::os::step_aside;
use crate::stream::turn::Turn;
use crate::transport::doorbell::Sleeper;
use crate::transport::ring::Word;
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

/// Lets the other tasks of the thread run.
async fn make_way(steps: &mut u32) {
    *steps = steps.wrapping_add(1);
    if steps.is_multiple_of(STEPS_PER_LOOK) {
        tokio::task::yield_now().await;
    } else {
        step_aside().await;
    }
}

/// The state for reading; the thread that holds it reads ([`Role`](super::role::Role)).
#[derive(Debug, Default)]
pub(super) struct ReaderState {
    pub(super) buffer: FrameBuffer,
    pub(super) kept: ReaderCache,
    /// Whether a thread that borrowed it has found something.
    pub(super) found: bool,
}

impl ReaderState {
    /// Prepares it for another thread, which may read from here on.
    pub(super) fn leave_thread(&mut self) {
        self.kept.attention.let_go();
    }
}

/// State that a reader keeps from one poll to the next, so that a poll takes no lock if nothing has changed.
#[derive(Debug, Default)]
pub(super) struct ReaderCache {
    attention: Attention,
    inboxes: KeptInboxes,
}

impl ReaderCache {
    /// Drops the kept references while the reader sleeps, so that they keep no link or inbox alive past its
    /// end.
    fn let_go(&mut self) {
        self.attention.let_go();
        self.inboxes.let_go();
    }
}

impl Transport {
    /// Polls every link once; returns true if there was anything to do. For tests and single-threaded
    /// drivers; [`run`](Self::run) does the same before it sleeps.
    #[cfg(any(test, feature = "inside"))]
    pub fn poll(self: &Arc<Self>, buffer: &mut FrameBuffer) -> bool {
        self.poll_links(buffer, &mut ReaderCache::default(), true)
    }

    /// Does the same as [`poll`](Self::poll), in the way of a reader that is kept busy.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn glance(self: &Arc<Self>, buffer: &mut FrameBuffer) -> bool {
        self.poll_links(buffer, &mut ReaderCache::default(), false)
    }

    /// Polls all links if `heads`, and else those whose turn it is. It checks how far peers have read in
    /// their rings only if `heads`, or if something waits for that.
    pub(super) fn poll_links(
        self: &Arc<Self>,
        buffer: &mut FrameBuffer,
        kept: &mut ReaderCache,
        heads: bool,
    ) -> bool {
        let ReaderCache { attention, inboxes } = kept;
        inboxes.refresh(&self.actors);
        let any = attention
            .poll(&self.links, heads, |link| self.poll_link(link, (&mut *buffer, &mut *inboxes), heads));
        self.fences.check(&*self.control);
        self.last_replies.check(&self.links);
        // Once for all links, because closing entries that were given back drains all return rings again.
        if any {
            self.memory.close_emptied();
        }
        self.memory.chunks.loosen_if_due(&self.links, &self.lifecycle);
        // Only after a poll in vain: while there is something to do, more may come that rings anyway.
        if !any {
            self.wakeups.ring_deferred(&self.links);
        }
        any
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

    /// Returns the wake reasons, other than frames, for which peers have to wake this process; see
    /// [`wake_reasons`].
    fn wanted_wake_reasons(&self) -> u64 {
        let links = self.links.all();
        let credit = links.iter().any(|link| link.has_waiting());
        let room = links.iter().any(|link| link.lacks_room() || link.is_stuck() || link.waits_for_head());
        let room = room || self.memory.has_waiters();
        let bit = |wanted, bit| if wanted { u64::from(bit) } else { 0 };
        bit(credit, wake_reasons::CREDIT) | bit(room, wake_reasons::ROOM)
    }

    /// Returns whether `cores` is at least twice the number of processes that this one knows of, so that each
    /// has a core for a second thread.
    fn has_cores_to_spare(&self, cores: usize) -> bool {
        cores >= 2 * (self.links.all().len() + 1)
    }

    /// Returns whether the node has more processes than there are `cores`. A polling process is then in the
    /// way of another, unless it gives way.
    fn is_crowded(&self, cores: usize) -> bool {
        self.domain.processes().max(self.links.all().len() + 1) > cores
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
        // SAFETY: the descriptor is the transport's own, which the `Listening` keeps, and so is open for as
        // long as the `AsyncFd` is there; it always names the same epoll instance.
        let ears =
            unsafe { AsyncFd::register_with_interest(Listening(Arc::clone(&self)), Interest::READABLE) }?;
        let wants = self.wakeups.wants_word();
        let mut sleeper = Sleeper::<crate::transport::ring::Native>::new(self.wakeups.sleep_word());
        let mut spin: Spin = Spin::new();
        // This includes the limit of a container, which is read from files and does not change.
        let limit = std::thread::available_parallelism().map_or(1, NonZero::get);
        let (mut cores, mut parks) = (limit, 0_u32);
        let said = said_of_spare_cores();
        let (mut steps, mut without) = (0, 0_u32);
        // A thread that borrows the role gives it back.
        let mut reads = self.role.take();
        let (mut idle_checks, mut finds) = (IdleChecks::default(), 0_u32);
        // One timer for all sleeps: otherwise each message that wakes the reader would pay for making a timer
        // and removing it.
        let mut alarm = pin!(tokio::time::sleep(IDLE_CHECK));
        while !self.lifecycle.is_stopped() {
            self.end_fork(0);
            if self.role.is_wanted() {
                reads = None;
            }
            let Some(reading) = reads.as_mut() else {
                without = without.wrapping_add(1);
                reads = self.role.take_for_reader(without);
                match &mut reads {
                    Some(reading) => {
                        if std::mem::take(&mut reading.found) {
                            spin.found();
                        }
                    }
                    None => match spin.idle() {
                        SpinStep::Poll => std::hint::spin_loop(),
                        SpinStep::Yield => make_way(&mut steps).await,
                        SpinStep::GiveWay => {
                            make_way(&mut steps).await;
                            spin.give_way();
                        }
                        // The peers need not ring, because another thread polls.
                        SpinStep::Park => self.role.is_back().await,
                    },
                }
                continue;
            };
            let ReaderState { buffer, kept, .. } = &mut **reading;
            if self.poll_links(buffer, kept, false) {
                finds = finds.wrapping_add(1);
                if finds.is_multiple_of(POLLS_PER_IDLE_CHECK) {
                    self.give_back_idle(&mut idle_checks);
                }
                spin.found();
                make_way(&mut steps).await;
                continue;
            }
            match spin.idle() {
                SpinStep::Poll => std::hint::spin_loop(),
                SpinStep::Yield => make_way(&mut steps).await,
                SpinStep::GiveWay => {
                    make_way(&mut steps).await;
                    spin.give_way();
                }
                // First the work that has time. Then four steps whose order must not change: announce the
                // wanted wake reasons, that the reader is parked, and that it sleeps; then poll one last
                // time. A publisher publishes first and then reads these words. So it either sees them and
                // rings, or the last poll sees the published item.
                SpinStep::Park => {
                    let idle_look = self.give_back_idle(&mut idle_checks).map(Into::into);
                    if let Some(at) = idle_look.filter(|at| *at != alarm.deadline()) {
                        alarm.as_mut().reset(at);
                    }
                    // WANTS: written before the fence in `prepare`.
                    let wanted = self.wanted_wake_reasons();
                    wants.store(wanted, Ordering::Relaxed);
                    // For this process's own threads: a thread that defers a ring from here on wakes the
                    // reader.
                    self.wakeups.park();
                    // For the peers: from here on they ring.
                    sleeper.prepare();
                    // A message that another thread has sent in the meantime, or that the last poll has
                    // found, may need progress of a peer too. Either this check sees that, or the message
                    // came after the word was written and has set the word itself (`want_progress`). This
                    // poll covers all links, and how far peers have read, because nobody rings for that.
                    let asleep =
                        !self.poll_links(buffer, kept, true) && self.wanted_wake_reasons() & !wanted == 0;
                    if asleep && !self.lifecycle.is_stopped() {
                        kept.let_go();
                        tokio::select! {
                            // Cleared, and polled again anyway: the next ring is an edge of its own.
                            rung = ears.readable() => rung?.clear_ready(),
                            // Another task of this thread, or another thread, may defer a ring while the
                            // reader sleeps.
                            () = self.wakeups.deferred_came() => {}
                            () = &mut alarm, if idle_look.is_some() => {}
                        }
                    }
                    // Both before the next poll, so that no publisher pays for waking a reader that is awake.
                    self.wakeups.unpark();
                    sleeper.awake();
                    if parks.is_multiple_of(PARKS_PER_COUNT) {
                        cores = limit.min(cores_of_this_thread());
                    }
                    parks = parks.wrapping_add(1);
                    let spare = said.unwrap_or_else(|| self.has_cores_to_spare(cores));
                    self.wakeups.note_spare_cores(spare);
                    spin.set_patient(said.unwrap_or(true));
                    spin.set_crowded(self.is_crowded(cores));
                }
            }
        }
        // After this no reader is left to ring.
        self.wakeups.ring_deferred(&self.links);
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
