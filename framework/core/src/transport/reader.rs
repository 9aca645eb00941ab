//! The reader: the one loop of a process that looks at everything its peers write.
//!
//! It polls while there is something, spins adaptively for a while, and then sleeps until its doorbell rings.
//! Before it sleeps it says so on its wake page and looks once more: no wake-up is lost (see
//! [`doorbell`](crate::transport::doorbell)).
//!
//! Of many links it looks at those that are [lively](super::attention).
//!
//! The reader looks at the two tails that a peer moves, and takes a lock only when one has moved; at the head
//! in the ring to the peer only while a lease of a third process waits for it (`Link::look`).
//!
//! In a worker the reader runs on the thread of the actors, so a message costs no switch of threads; in the
//! node it has a thread of its own. Actors started with `own_thread` have theirs.
//!
//! Run by one task or thread of the process: a worker's main thread, beside its actors, or a thread of the
//! node's own.
//!
//! **Invariants.** No wake-up is lost. A link is looked at in one order: leases back, frames passed, replies
//! out, frames in. The reader waits for no other process.
//!
//! **Locks.** None across a look; each step takes those of its link.
//!
//! **On a crash** of a peer the reader reads to the end what it had posted, and then parts with it. **On
//! cancellation** nothing is lost, see [`Transport::run`].

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
use super::attention::{Attention, Found};
use super::incoming::FrameBuffer;
use super::link::Link;
use super::renewal::IdleLooks;
use super::{Transport, wake_reasons};
use crate::limits::IDLE_LOOK;
use crate::os::step_aside;
use crate::stream::turn::Turn;
use crate::transport::doorbell::Sleeper;
use crate::transport::ring::Word;
use crate::transport::spin::{Spin, Step};

/// The doorbells of a transport that is there for as long.
struct Listening(Arc<Transport>);

impl AsRawFd for Listening {
    fn as_raw_fd(&self) -> RawFd {
        self.0.wakeups.as_raw_fd()
    }
}

/// The reader steps aside so often before it has the runtime look at its descriptors and timers, and wake
/// whom `tokio::task::yield_now` put off: a system call.
const STEPS_PER_LOOK: u32 = 8;

/// After so many looks at which there was something a reader that never parks looks for links that are idle:
/// one clock is read.
const LOOKS_PER_IDLE_LOOK: u32 = 1 << 16;

/// So often the reader parks before it counts again on how many cores it may run: somebody may take some
/// away.
const PARKS_PER_COUNT: u32 = 64;

/// Whether threads that wait look for what comes, where somebody says so for the process.
const LOOK: &str = "TENSORPOST_LOOK";

/// What [`LOOK`] says; `None` where the cores are counted.
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

/// What is read with: whoever holds it reads ([`Role`](super::role::Role)).
#[derive(Debug, Default)]
pub(super) struct Looking {
    pub(super) buffer: FrameBuffer,
    pub(super) kept: Kept,
    /// Whether a thread that was lent it has found something.
    pub(super) found: bool,
}

impl Looking {
    /// Another thread may read from here on.
    pub(super) fn leave_thread(&mut self) {
        self.kept.attention.let_go();
    }
}

/// What a reader keeps from one look to the next, so that a look takes no lock where nothing has changed.
#[derive(Debug, Default)]
pub(super) struct Kept {
    attention: Attention,
    inboxes: KeptInboxes,
}

impl Kept {
    /// The reader sleeps: nobody is to outlive its end by that.
    fn let_go(&mut self) {
        self.attention.let_go();
        self.inboxes.let_go();
    }
}

impl Transport {
    /// Looks at every link once; true if there was anything to do. For tests and single-threaded drivers;
    /// [`run`](Self::run) does the same before it sleeps.
    #[cfg(any(test, feature = "inside"))]
    pub fn poll(self: &Arc<Self>, buffer: &mut FrameBuffer) -> bool {
        self.look_at_links(buffer, &mut Kept::default(), true)
    }

    /// Does the same as [`poll`](Self::poll), as a reader looks that is kept busy.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn glance(self: &Arc<Self>, buffer: &mut FrameBuffer) -> bool {
        self.look_at_links(buffer, &mut Kept::default(), false)
    }

    /// Looks at all links if `heads`, and else at those whose turn it is. What peers have passed in their
    /// rings is looked at only if `heads` or where that is waited for.
    pub(super) fn look_at_links(
        self: &Arc<Self>,
        buffer: &mut FrameBuffer,
        kept: &mut Kept,
        heads: bool,
    ) -> bool {
        let Kept { attention, inboxes } = kept;
        inboxes.refresh(&self.actors);
        let any = attention
            .look(&self.links, heads, |link| self.poll_link(link, (&mut *buffer, &mut *inboxes), heads));
        self.look_at_fences();
        self.look_at_last_replies();
        // Once for all links: closing what was given back drains all return rings again.
        if any {
            self.memory.close_emptied();
        }
        self.memory.chunks.loosen_if_due(&self.links, &self.lifecycle);
        // Only in vain: while there is something to do, more may come that rings anyway.
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
    ) -> Found {
        if link.is_broken() {
            if !link.is_given_up() {
                self.give_up(link);
            }
            let exited = link.has_exited();
            // At each look: a send that had its claim may have put more there since.
            let any = self.let_go(link);
            // A peer that lives keeps its link, so that its slot is known to be given up; one that has ended
            // goes.
            if exited {
                self.part_with(link);
            }
            return (any || exited).into();
        }
        // Read before the rings are: what the peer had posted before its end is then seen by this look.
        let exited = link.has_exited();
        // Nothing comes over it yet.
        if !exited && !link.is_connected() {
            return Found::NotYet;
        }
        let mut any = false;
        let moved = link.look(heads);
        if moved.any || exited {
            // One turn: what the frames lead to here (leases back, refusals) is published together.
            let turn = Turn::begin();
            // Leases back first: they may be what a reply, or a hold for a frame, waits for. Frames last:
            // what they bring back is found in the lease table, and what they lead to finds the room that the
            // others have made.
            if moved.returns || exited {
                any |= self.drain_link_returns(link);
            } else {
                any |= self.settle_if_open();
            }
            if heads || link.may_have_passed() {
                any |= self.retire_in_flight(link, heads);
            }
            any |= self.flush_outbox(link);
            any |= self.take_frames(link, buffer, inboxes);
            drop(turn);
            if exited && link.is_drained() {
                self.give_up(link);
                self.part_with(link);
                return Found::Something;
            }
        }
        if link.has_waiting() {
            link.wake_senders();
        }
        if !any && !link.is_made() { Found::NotYet } else { any.into() }
    }

    /// For which wake reasons of a peer, other than frames, this process has to be woken; see
    /// [`wake_reasons`].
    fn wanted_wake_reasons(&self) -> u64 {
        let links = self.links.all();
        let credit = links.iter().any(|link| link.has_waiting());
        let room = links.iter().any(|link| link.lacks_room() || link.is_stuck() || link.waits_for_head());
        let room = room || self.memory.has_waiters();
        let bit = |wanted, bit| if wanted { u64::from(bit) } else { 0 };
        bit(credit, wake_reasons::CREDIT) | bit(room, wake_reasons::ROOM)
    }

    /// Returns whether there are twice as many of `cores` as processes that this one knows of: there are some
    /// for a second thread of each.
    fn has_cores_to_spare(&self, cores: usize) -> bool {
        cores >= 2 * (self.links.all().len() + 1)
    }

    /// Returns whether the node has more processes than there are `cores`: one that looks is then in
    /// another's way, unless it gives way.
    fn is_crowded(&self, cores: usize) -> bool {
        self.domain.processes().max(self.links.all().len() + 1) > cores
    }

    /// Returns whether a thread that waits for a message may look for it instead of sleeping at once: there
    /// are cores for two threads of each process.
    #[cfg(any(feature = "foreign", feature = "hosts"))]
    pub fn has_spare_cores(&self) -> bool {
        self.wakeups.has_spare_cores()
    }

    /// Reads until [`stop`](Self::stop). One task or thread of the process runs it; the task stays on its
    /// thread, for whose sends it keeps the list of links ([`Links::keep`](super::links::Links::keep)).
    ///
    /// # Errors
    /// The doorbell cannot be waited for: there is no tokio runtime with I/O, or no descriptor left.
    ///
    /// # Panics
    /// The runtime has no time.
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
        // With the limit of a container, which takes a look at files and does not change.
        let limit = std::thread::available_parallelism().map_or(1, NonZero::get);
        let (mut cores, mut parks) = (limit, 0_u32);
        let said = said_of_spare_cores();
        let (mut steps, mut without) = (0, 0_u32);
        // Whoever has been lent it gives it back.
        let mut reads = self.role.take();
        let (mut idle_looks, mut finds) = (IdleLooks::default(), 0_u32);
        // One for all sleeps: to make one and to take it back would be paid for by each message that wakes
        // the reader.
        let mut alarm = pin!(tokio::time::sleep(IDLE_LOOK));
        while !self.lifecycle.is_stopped() {
            self.end_fork(0);
            if self.role.is_wanted() {
                reads = None;
            }
            let Some(looking) = reads.as_mut() else {
                without = without.wrapping_add(1);
                reads = self.role.take_for_reader(without);
                match &mut reads {
                    Some(looking) => {
                        if std::mem::take(&mut looking.found) {
                            spin.found();
                        }
                    }
                    None => match spin.idle() {
                        Step::Poll => std::hint::spin_loop(),
                        Step::Yield => make_way(&mut steps).await,
                        Step::GiveWay => {
                            make_way(&mut steps).await;
                            spin.give_way();
                        }
                        // The peers need not ring: somebody looks.
                        Step::Park => self.role.is_back().await,
                    },
                }
                continue;
            };
            let Looking { buffer, kept, .. } = &mut **looking;
            if self.look_at_links(buffer, kept, false) {
                finds = finds.wrapping_add(1);
                if finds.is_multiple_of(LOOKS_PER_IDLE_LOOK) {
                    self.give_back_idle(&mut idle_looks);
                }
                spin.found();
                make_way(&mut steps).await;
                continue;
            }
            match spin.idle() {
                Step::Poll => std::hint::spin_loop(),
                Step::Yield => make_way(&mut steps).await,
                Step::GiveWay => {
                    make_way(&mut steps).await;
                    spin.give_way();
                }
                // First what has time. Then in this order, none of which may change places: what it wants,
                // that it is parked, that it sleeps, and then the last look. Whoever publishes something does
                // so first and then reads these words, so it either sees them and rings, or the last look
                // sees what it has published.
                Step::Park => {
                    let idle_look = self.give_back_idle(&mut idle_looks).map(Into::into);
                    if let Some(at) = idle_look.filter(|at| *at != alarm.deadline()) {
                        alarm.as_mut().reset(at);
                    }
                    // WANTS: written before the fence in `prepare`.
                    let wanted = self.wanted_wake_reasons();
                    wants.store(wanted, Ordering::Relaxed);
                    // For this process's own threads: who puts a ring off from here on wakes the reader.
                    self.wakeups.park();
                    // For the peers: from here on they ring.
                    sleeper.prepare();
                    // What another thread has sent meanwhile, or the last look has found, may want progress
                    // too. It is seen here, or it came after the word was written and has written it
                    // (`want_progress`). At all links, and with what peers have passed, because nobody rings
                    // for that.
                    let asleep =
                        !self.look_at_links(buffer, kept, true) && self.wanted_wake_reasons() & !wanted == 0;
                    if asleep && !self.lifecycle.is_stopped() {
                        kept.let_go();
                        tokio::select! {
                            // Cleared, and looked at again anyway: the next ring is an edge of its own.
                            rung = ears.readable() => rung?.clear_ready(),
                            // Another task of this thread, or another thread, goes on while the reader
                            // sleeps.
                            () = self.wakeups.deferred_came() => {}
                            () = &mut alarm, if idle_look.is_some() => {}
                        }
                    }
                    // Both before the next look, so that nobody pays for waking a reader that looks.
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
        // Nobody does it after this.
        self.wakeups.ring_deferred(&self.links);
        Ok(())
    }

    /// What the wake page says.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn says_it_sleeps(&self) -> bool {
        self.wakeups.says_it_sleeps()
    }

    /// Returns whether something was published that nobody was rung for.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn has_deferred(&self) -> bool {
        self.wakeups.has_deferred()
    }

    /// Returns whether [`stop`](Self::stop) was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.lifecycle.is_stopped()
    }

    inside! {
        /// Ends [`run`](Self::run).
        pub fn stop(&self) {
            self.lifecycle.stop();
            self.wakeups.wake_reader();
        }
    }
}
