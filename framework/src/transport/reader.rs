//! The reader: the one loop of a process that looks at everything its peers write.
//!
//! It polls while there is something, spins adaptively for a while, and then sleeps until its doorbell rings. Before it
//! sleeps it says so on its wake page and looks once more: no wake-up is lost (see
//! [`doorbell`](crate::transport::doorbell)).
//!
//! The reader looks at the two tails that a peer moves, and takes a lock only when one has moved; at the head in the
//! ring to the peer only while a lease of a third process waits for it (`Link::has_moved`).
//!
//! In a worker the reader runs on the thread of the actors, so a message costs no switch of threads; in the node it has
//! a thread of its own. Actors started with `own_thread` have theirs.

#![expect(unsafe_code, reason = "tokio asks for a promise about the descriptor that it watches")]

use std::io;
use std::num::NonZero;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use smallvec::SmallVec;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::link::Link;
use super::{Transport, entry, wake_reasons};
use crate::clock::turn::Turn;
use crate::lease::{LeaseId, Pool};
use crate::os::step_aside;
use crate::transport::doorbell::Sleeper;
use crate::transport::ring::Word;
use crate::transport::spin::{Spin, Step};

/// The ears of a transport that is there for as long.
struct Listening(Arc<Transport>);

impl AsRawFd for Listening {
    fn as_raw_fd(&self) -> RawFd {
        self.0.ears.as_raw_fd()
    }
}

/// The reader steps aside so often before it has the runtime look at its descriptors and timers, and wake whom
/// `tokio::task::yield_now` put off: a system call.
const STEPS_PER_LOOK: u32 = 8;

/// Lets the other tasks of the thread run.
async fn make_way(steps: &mut u32) {
    *steps = steps.wrapping_add(1);
    if steps.is_multiple_of(STEPS_PER_LOOK) {
        tokio::task::yield_now().await;
    } else {
        step_aside().await;
    }
}

impl Transport {
    /// Looks at every link once; true if there was anything to do. For tests and single-threaded drivers;
    /// [`run`](Self::run) calls it in a loop.
    pub fn poll(&self, buffer: &mut Vec<u8>) -> bool {
        self.look_at_links(buffer, true)
    }

    /// As [`poll`](Self::poll), as a reader looks that is kept busy.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn glance(&self, buffer: &mut Vec<u8>) -> bool {
        self.look_at_links(buffer, false)
    }

    /// As [`poll`](Self::poll); what peers have passed in their rings is looked at only if `heads` or where that is waited
    /// for.
    fn look_at_links(&self, buffer: &mut Vec<u8>, heads: bool) -> bool {
        let mut any = false;
        for link in self.links.all().iter() {
            any |= self.poll_link(link, buffer, heads);
        }
        if any {
            let pools: SmallVec<[Arc<Pool>; 4]> = self.pools.read().iter().map(Arc::clone).collect();
            pools.iter().for_each(|pool| pool.close_emptied());
        }
        self.loosen_if_due();
        if !any {
            self.ring_deferred();
        }
        any
    }

    fn poll_link(&self, link: &Arc<Link>, buffer: &mut Vec<u8>, heads: bool) -> bool {
        if link.is_broken() {
            if !link.given_up.load(Ordering::Acquire) {
                self.give_up(link);
            }
            let exited = link.has_exited();
            let any = self.let_go(link);
            if exited {
                self.part_with(link);
            }
            return any || exited;
        }
        let exited = link.has_exited();
        let mut any = false;
        if link.has_moved(heads) || exited {
            // One turn: what the frames lead to here (leases back, refusals) is published together.
            let turn = Turn::begin();
            any |= self.drain_link_returns(link);
            any |= self.retire_in_flight(link, heads);
            any |= self.flush_outbox(link);
            any |= self.take_frames(link, buffer);
            drop(turn);
            if exited && link.is_drained() {
                self.give_up(link);
                self.part_with(link);
                return true;
            }
        }
        if link.has_waiting() {
            link.wake_senders();
        }
        any
    }

    /// For which wake reasons of a peer, other than frames, this process has to be woken; see [`wake_reasons`].
    fn wanted_wake_reasons(&self) -> u64 {
        let links = self.links.all();
        let credit = links.iter().any(|link| link.has_waiting());
        let room = links.iter().any(|link| {
            (link.has_waiting() && link.lacks_room.load(Ordering::Acquire))
                || link.stuck.load(Ordering::Relaxed)
                || link.out.lock().as_ref().is_some_and(|out| {
                    !out.outbox.is_empty() || out.in_flight.iter().any(|frame| !frame.kept.is_empty())
                })
        });
        let room = room || self.pools.read().iter().any(|pool| pool.has_waiters());
        let bit = |wanted, bit| if wanted { u64::from(bit) } else { 0 };
        bit(credit, wake_reasons::CREDIT) | bit(room, wake_reasons::ROOM)
    }

    /// Something was published that nobody was rung for. The reader rings when it finds nothing to do: soon, if it is not
    /// parked. It says that it is before it looks for this for the last time.
    pub(super) fn defer_wakeup(&self) {
        self.deferred.swap(true, Ordering::AcqRel);
        // DEFERRED: pairs with the fence in `park`: one of the two sees what the other has written.
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) {
            self.deferred_came.notify_one();
        }
    }

    /// The reader is about to sleep. What is deferred from now on wakes it; what was before is seen by its next
    /// look.
    fn park(&self) {
        self.parked.store(true, Ordering::Relaxed);
        // DEFERRED: pairs with the fence in `defer_wakeup`.
        fence(Ordering::SeqCst);
    }

    /// Rings for everything whose wake-up was deferred.
    fn ring_deferred(&self) {
        if self.deferred.load(Ordering::Relaxed) && self.deferred.swap(false, Ordering::AcqRel) {
            self.links.all().iter().for_each(|link| link.ring_deferred());
        }
    }

    /// Whether there are twice as many of `cores`, and of those that this thread may use, as processes that it knows of: one
    /// that looks for long then takes none away from another.
    fn has_cores_to_spare(&self, cores: usize) -> bool {
        let allowed = rustix::thread::sched_getaffinity(None).map_or(0, |set| set.count() as usize);
        cores.min(allowed) >= 2 * (self.links.all().len() + 1)
    }

    /// From now on peers' progress wakes this process. Called before what the progress is waited for is published.
    pub(super) fn want_progress(&self) {
        let wants = self.wake_page.wants();
        if wants.load(Ordering::Relaxed) & u64::from(wake_reasons::ROOM) == 0 {
            // All of it: the reader may be writing what it wants just now.
            wants.store(wake_reasons::ALL, Ordering::Relaxed);
        }
    }

    /// Reads until [`stop`](Self::stop). One task or thread of the process runs it.
    ///
    /// # Errors
    /// The doorbell cannot be waited for: there is no tokio runtime with I/O, or no descriptor left.
    ///
    /// # Cancel safety
    /// Dropping it between two polls loses nothing; frames stay in their rings.
    pub async fn run(self: Arc<Self>) -> io::Result<()> {
        // SAFETY: the descriptor is the transport's own, which the `Listening` keeps, and so is open for as long as the
        // `AsyncFd` is there; it always names the same epoll instance.
        let ears =
            unsafe { AsyncFd::register_with_interest(Listening(Arc::clone(&self)), Interest::READABLE) }?;
        let wants = self.wake_page.wants();
        let mut sleeper = Sleeper::<crate::transport::ring::Native>::new(self.wake_page.sleep());
        let mut spin: Spin = Spin::new();
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let (mut buffer, mut steps) = (Vec::new(), 0);
        while !self.stopped.load(Ordering::Acquire) {
            if self.look_at_links(&mut buffer, false) {
                spin.found();
                make_way(&mut steps).await;
                continue;
            }
            match spin.idle() {
                Step::Poll => std::hint::spin_loop(),
                Step::Yield => make_way(&mut steps).await,
                Step::Park => {
                    // WANTS: written before the fence in `prepare`.
                    let wanted = self.wanted_wake_reasons();
                    wants.store(wanted, Ordering::Relaxed);
                    self.park();
                    sleeper.prepare();
                    // What another thread has sent meanwhile, or the last look has found, may want progress too. It is
                    // seen here, or it came after the word was written and has written it (`want_progress`).
                    let asleep = !self.poll(&mut buffer) && self.wanted_wake_reasons() & !wanted == 0;
                    if asleep && !self.stopped.load(Ordering::Acquire) {
                        tokio::select! {
                            rung = ears.readable() => rung?.clear_ready(),
                            // Another task of this thread, or another thread, goes on while the reader sleeps.
                            () = self.deferred_came.notified() => {}
                        }
                    }
                    self.parked.store(false, Ordering::Relaxed);
                    sleeper.awake();
                    spin.set_patient(self.has_cores_to_spare(cores));
                }
            }
        }
        self.ring_deferred();
        Ok(())
    }

    /// What the wake page says.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn says_it_sleeps(&self) -> bool {
        self.wake_page.sleep().load(Ordering::Relaxed) & 1 == 1
    }

    /// Whether something was published that nobody was rung for.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn has_deferred(&self) -> bool {
        self.deferred.load(Ordering::Relaxed)
    }

    /// Whether [`stop`](Self::stop) was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Ends [`run`](Self::run).
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake_reader();
    }

    /// Posts the hold on a third process's memory, visible at once.
    pub(super) fn post_hold(&self, owners: &Arc<Link>, id: LeaseId) {
        self.post_notice_now(owners, entry::hold(id));
    }
}
