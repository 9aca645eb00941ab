//! The reader: the one loop of a process that looks at everything its peers write.
//!
//! It polls while there is something, spins adaptively for a while, and then sleeps until its doorbell rings. Before it
//! sleeps it says so on its mail page and looks once more: no wake-up is lost (see
//! [`doorbell`](crate::mailbox::doorbell)).

#![expect(unsafe_code, reason = "tokio asks for a promise about the descriptor that it watches")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::link::Link;
use super::{Office, entry};
use crate::clock::turn::Turn;
use crate::lease::LeaseId;
use crate::mailbox::doorbell::Sleeper;
use crate::mailbox::ring::Word;
use crate::mailbox::spin::{Spin, Step};

impl Office {
    /// Looks at every link once; true if there was anything to do. For tests and single-threaded drivers;
    /// [`run`](Self::run) calls it in a loop.
    pub fn poll(&self, buffer: &mut Vec<u8>) -> bool {
        let mut any = false;
        for link in self.links.all().iter() {
            any |= self.poll_link(link, buffer);
        }
        if any {
            let pools = self.pools.read().clone();
            pools.iter().for_each(|pool| pool.settle());
        }
        self.loosen_if_due();
        any
    }

    fn poll_link(&self, link: &Arc<Link>, buffer: &mut Vec<u8>) -> bool {
        if link.is_broken() {
            if !link.given_up.load(Ordering::Acquire) {
                self.give_up(link);
            }
            let ended = link.has_ended();
            let any = self.let_go(link);
            if ended {
                self.part_with(link);
            }
            return any || ended;
        }
        let ended = link.has_ended();
        // One turn: what the frames lead to here (leases back, refusals) is published together.
        let turn = Turn::begin();
        let mut any = self.drain_link_returns(link);
        any |= self.settle_in_flight(link);
        any |= self.flush_outbox(link);
        any |= self.take_frames(link, buffer);
        drop(turn);
        if ended && link.is_drained() {
            self.give_up(link);
            self.part_with(link);
            return true;
        }
        if link.has_waiting() {
            link.wake_senders();
        }
        any
    }

    /// Whether a peer's progress, not only its frames, has to wake this process.
    fn wants_progress(&self) -> bool {
        let waits = self.links.all().iter().any(|link| {
            link.has_waiting()
                || link.stuck.load(Ordering::Relaxed)
                || link.out.lock().as_ref().is_some_and(|out| {
                    !out.outbox.is_empty() || out.in_flight.iter().any(|frame| !frame.kept.is_empty())
                })
        });
        waits || self.pools.read().iter().any(|pool| pool.has_waiters())
    }

    /// From now on peers' progress wakes this process. Called before what the progress is waited for is published.
    pub(super) fn want_progress(&self) {
        let wants = self.mail.wants();
        if wants.load(Ordering::Relaxed) == 0 {
            wants.store(1, Ordering::Relaxed);
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
        // SAFETY: the descriptor is this value's own, moved into the `AsyncFd`, which lives as long as this future; it
        // always names the same eventfd.
        let bell = unsafe { AsyncFd::register_with_interest(self.bell.try_clone()?, Interest::READABLE) }?;
        let wants = self.mail.wants();
        let mut sleeper = Sleeper::<crate::mailbox::ring::Native>::new(self.mail.sleep());
        let mut spin: Spin = Spin::new();
        let mut buffer = Vec::new();
        while !self.stopped.load(Ordering::Acquire) {
            if self.poll(&mut buffer) {
                spin.found();
                tokio::task::yield_now().await;
                continue;
            }
            match spin.idle() {
                Step::Poll => std::hint::spin_loop(),
                Step::Yield => tokio::task::yield_now().await,
                Step::Park => {
                    // WANTS: written before the fence in `prepare`.
                    let waits = self.wants_progress();
                    wants.store(u64::from(waits), Ordering::Relaxed);
                    sleeper.prepare();
                    // What another thread has sent meanwhile, or the last look has found, may want progress too. It is
                    // seen here, or it came after the word was written and has written it (`want_progress`).
                    let asleep = !self.poll(&mut buffer) && (waits || !self.wants_progress());
                    if asleep && !self.stopped.load(Ordering::Acquire) {
                        bell.readable().await?.clear_ready();
                    }
                    sleeper.awake();
                }
            }
        }
        Ok(())
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

    /// The peer's credit was handed back: it is told at the end of the turn.
    pub(super) fn credit_soon(&self, link: &Arc<Link>) {
        self.publish_soon(link);
    }
}
