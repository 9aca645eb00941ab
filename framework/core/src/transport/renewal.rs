//! Gives back memory that this process holds and does not use: of links that were busy, and of pools. This
//! file decides when, and exchanges the messages with peers; `link/renewal.rs` and `lease/pool/idle.rs` do
//! the work.
//!
//! The reader calls it when it has nothing else to do, and so does the handler of messages that the node
//! passes on.
//!
//! **Invariants.** None of this delays a message: the reader checks its links for idle memory when it is
//! about to sleep, at most once in [`IDLE_CHECK`]. A process in which nothing has moved since does not wake
//! up for it. A link that has been silent for that long takes less than
//! [`IDLE_RING_BYTES`](crate::limits::IDLE_RING_BYTES) after two such checks, if its peer runs.
//!
//! **Locks.** See `link/renewal.rs`; no message to the node is sent under any of them.
//!
//! **On a crash** of a peer its link is no longer checked. **On cancellation** of the reader the next one
//! begins anew.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::bad_half::BadHalf;
use super::control_channel::{LinkMessage, ToNode};
use super::link::{Link, RingUse};
use super::pages::RingMemory;
use super::{Transport, wake_reasons};
use crate::ids::ProcessId;
use crate::lease::pool::NextIdleCheck;
use crate::limits::{IDLE_CHECK, LATE_IDLE_CHECK, MAX_OFFERS_PER_LOOK};

/// When a reader looks for idle memory.
#[derive(Debug, Default)]
pub(super) struct IdleChecks {
    next: Option<Instant>,
    /// The value of `moved` at the last look.
    moved: u64,
}

impl IdleChecks {
    /// Takes a look if one is due by now, and returns when the next one is due, if any. `moved` changes when
    /// messages or memory have moved.
    pub(super) fn turn(
        &mut self,
        moved: u64,
        now: impl FnOnce() -> Instant,
        check: impl FnOnce() -> NextIdleCheck,
    ) -> Option<Instant> {
        let has_moved = self.moved != moved;
        if self.next.is_none() && !has_moved {
            return None;
        }
        let now = now();
        let soon = now + IDLE_CHECK;
        self.next = match self.next {
            // Something has moved for the first time since all was idle.
            None => Some(soon),
            Some(next) if next <= now => match check() {
                NextIdleCheck::Soon => Some(soon),
                _ if has_moved => Some(soon),
                NextIdleCheck::Late => Some(now + LATE_IDLE_CHECK),
                NextIdleCheck::Never => None,
            },
            // Something has moved, so a late look would be too late.
            Some(next) if has_moved => Some(next.min(soon)),
            next => next,
        };
        self.moved = moved;
        self.next
    }
}

impl Transport {
    /// Returns a number that changes when messages were sent or received, or memory came back while all was
    /// idle.
    fn moved(&self) -> u64 {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        of(&self.counters.sent)
            .wrapping_add(of(&self.counters.received))
            .wrapping_add(self.wakeups.memory_moved())
    }

    /// Moves the rings that can move, and looks for idle memory if that is due. Returns when the next look is
    /// due.
    pub(super) fn give_back_idle(&self, checks: &mut IdleChecks) -> Option<Instant> {
        self.move_rings_if_due();
        let next = checks.turn(self.moved(), Instant::now, || self.check_idle());
        self.wakeups.set_all_idle(next.is_none());
        next
    }

    /// Gives back memory that was idle at the last look and is idle now, and notes which memory is. Returns
    /// when another look is worthwhile.
    pub(crate) fn check_idle(&self) -> NextIdleCheck {
        // Holders may have released memory without waking this process.
        self.take_in_returns();
        let memory = self.memory.check_idle();
        if self.check_idle_links() { NextIdleCheck::Soon } else { memory }
    }

    /// Moves rings whose peers have taken fresh memory since the last time.
    pub(crate) fn move_rings_if_due(&self) {
        if self.wakeups.take_offer_taken() {
            self.links.all().iter().for_each(|link| self.move_rings(link));
        }
    }

    /// Checks all links: offers fresh memory for rings that are idle, and moves those whose peers have it.
    /// Returns whether another look may find something.
    fn check_idle_links(&self) -> bool {
        let (mut again, mut offers) = (false, 0);
        for link in self.links.all().iter() {
            self.move_rings(link);
            match link.poll_rings() {
                RingUse::Small => continue,
                RingUse::Idle if offers < MAX_OFFERS_PER_LOOK => {
                    offers += 1;
                    // If descriptors are short, another look tries again.
                    if let Err(error) = self.offer_rings(link) {
                        tracing::debug!(peer = %link.peer, %error, "no fresh memory for an idle link");
                    }
                }
                RingUse::Idle | RingUse::Busy => {}
            }
            again = true;
        }
        again
    }

    fn offer_rings(&self, link: &Link) -> std::io::Result<()> {
        let rings = RingMemory::create()?;
        let descriptor = rings.export()?;
        let link_message = LinkMessage::Rings { number: link.offer(rings) };
        let route = ToNode::Route { to: link.peer, link_message };
        self.control.send(route, vec![descriptor]).map_err(std::io::Error::other)
    }

    /// Lets the rings to a peer continue in fresh memory, if the peer has taken it.
    fn move_rings(&self, link: &Arc<Link>) {
        if link.move_rings() {
            // The peer may sleep, and keeps both memories until it reads on.
            self.publish_soon(link, wake_reasons::FRAMES);
        }
    }

    /// Takes fresh memory that a peer offers for its rings, and tells the peer whether it was taken.
    pub(super) fn rings_came(&self, from: ProcessId, number: u64, descriptors: Vec<OwnedFd>) {
        // Nothing is taken from a peer that was given up, or whose link is not connected.
        let link = self.links.to(from).filter(|link| link.is_connected() && !link.is_past());
        let taken = link.as_ref().map(|link| take_rings(link, descriptors));
        if let (Some(link), Some(Err(error))) = (&link, &taken) {
            if error.lack().is_some() {
                tracing::debug!(peer = %from, %error, "no room for the fresh rings of an idle link");
            } else {
                tracing::error!(peer = %from, %error, "fresh rings were refused, and their sender is given up");
                self.counters.count_rejected();
                self.give_up(link);
            }
        }
        self.answer_offer(from, number, taken.is_some_and(|taken| taken.is_ok()));
    }

    /// Tells a peer whether the memory that it offers was taken. It is not if its descriptor is lost because
    /// this process may open no more files.
    pub(super) fn answer_offer(&self, to: ProcessId, number: u64, is_taken: bool) {
        let link_message = LinkMessage::RingsAnswer { number, is_taken };
        if self.control.send(ToNode::Route { to, link_message }, Vec::new()).is_err() {
            tracing::debug!(peer = %to, "the node has ended before it heard of fresh rings");
        }
    }

    /// Takes a peer's answer to an offer.
    pub(super) fn offer_answered(&self, from: ProcessId, number: u64, is_taken: bool) {
        if self.links.to(from).is_some_and(|link| link.answered(number, is_taken)) {
            self.wakeups.note_offer_taken();
        }
    }
}

fn take_rings(link: &Link, descriptors: Vec<OwnedFd>) -> Result<(), BadHalf> {
    let count = descriptors.len();
    let [rings] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| BadHalf::Descriptors(count, 1))?;
    link.take_offer(RingMemory::open(rings)?)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    /// Parks a reader at `after` the beginning, when `moved` has this value. Returns whether it looked.
    fn park(
        checks: &mut IdleChecks,
        begin: Instant,
        after: Duration,
        moved: u64,
        again: NextIdleCheck,
    ) -> bool {
        let looked = Cell::new(false);
        checks.turn(
            moved,
            || begin + after,
            || {
                looked.set(true);
                again
            },
        );
        looked.get()
    }

    #[test]
    fn who_is_silent_looks_once_more_and_then_never() {
        let (begin, mut checks) = (Instant::now(), IdleChecks::default());
        assert_eq!(checks.turn(0, || unreachable!("nothing has ever moved"), || unreachable!()), None);
        assert!(
            !park(&mut checks, begin, Duration::ZERO, 1, NextIdleCheck::Never),
            "a message is not its own silence"
        );
        assert!(!park(&mut checks, begin, IDLE_CHECK / 2, 5, NextIdleCheck::Never), "nor is the next one");
        assert!(park(&mut checks, begin, IDLE_CHECK, 5, NextIdleCheck::Never));
        assert_eq!(
            checks.turn(5, || unreachable!("it sleeps until something moves"), || unreachable!()),
            None
        );
        let next = checks.turn(6, || begin + 9 * IDLE_CHECK, || unreachable!("not at once"));
        assert_eq!(next, Some(begin + 10 * IDLE_CHECK));
    }

    #[test]
    fn while_something_is_left_there_is_another_look() {
        let (begin, mut checks) = (Instant::now(), IdleChecks::default());
        park(&mut checks, begin, Duration::ZERO, 1, NextIdleCheck::Never);
        for count in 1..5 {
            assert!(park(&mut checks, begin, count * IDLE_CHECK, 1, NextIdleCheck::Soon));
            assert!(!park(
                &mut checks,
                begin,
                count * IDLE_CHECK + Duration::from_millis(1),
                1,
                NextIdleCheck::Soon
            ));
        }
    }

    #[test]
    fn what_is_held_is_looked_at_late_and_sooner_when_something_moves() {
        let (begin, mut checks) = (Instant::now(), IdleChecks::default());
        park(&mut checks, begin, Duration::ZERO, 1, NextIdleCheck::Never);
        assert!(park(&mut checks, begin, IDLE_CHECK, 1, NextIdleCheck::Late));
        assert!(!park(&mut checks, begin, 2 * IDLE_CHECK, 1, NextIdleCheck::Late));
        assert!(!park(&mut checks, begin, 2 * IDLE_CHECK, 2, NextIdleCheck::Late), "not at once");
        assert!(park(&mut checks, begin, 3 * IDLE_CHECK, 2, NextIdleCheck::Late));
        assert!(park(&mut checks, begin, 3 * IDLE_CHECK + LATE_IDLE_CHECK, 2, NextIdleCheck::Late));
    }
}
