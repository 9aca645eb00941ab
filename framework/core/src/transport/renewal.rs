//! Giving back what links hold that were busy and are idle: when, and what is said to the peers. How is in `link/renewal.rs`.
//!
//! Used by the reader, when it has nothing else to do, and by what the node passes on.
//!
//! **Invariants.** Nothing of this is on a message's way: the reader looks at its links for it when it is about to sleep, at most once
//! in [`IDLE_LINK`], and a process in which nothing has moved since does not wake up for it. A link that has been silent for that long
//! is below [`IDLE_RING_BYTES`](crate::limits::IDLE_RING_BYTES) after two such looks, if its peer runs.
//!
//! **Locks.** See `link/renewal.rs`; messages to the node go under none of them.
//!
//! **On a crash** of a peer its link is no longer looked at. **On cancellation** of the reader the next one begins anew.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::connect::BadHalf;
use super::control_channel::{LinkMessage, ToNode};
use super::link::{Link, RingUse};
use super::pages::RingMemory;
use super::{Transport, wake_reasons};
use crate::ids::ProcessId;
use crate::limits::{IDLE_LINK, MAX_OFFERS_PER_LOOK};

/// When a reader looks for links that are idle.
#[derive(Debug, Default)]
pub(super) struct IdleLooks {
    next: Option<Instant>,
    /// How much had moved at the last look.
    moved: u64,
}

impl IdleLooks {
    /// Takes a look, if one is due by now; `look` says whether another is to follow in any case. When the next one is due, if so much
    /// as `moved` has.
    pub(super) fn turn(
        &mut self,
        moved: u64,
        now: impl FnOnce() -> Instant,
        look: impl FnOnce() -> bool,
    ) -> Option<Instant> {
        if self.next.is_none() && self.moved == moved {
            return None;
        }
        let now = now();
        let due = match self.next {
            // Something has moved for the first time since all was quiet.
            None => true,
            Some(next) if next <= now => look() || self.moved != moved,
            next => return next,
        };
        self.moved = moved;
        self.next = due.then(|| now + IDLE_LINK);
        self.next
    }
}

impl Transport {
    /// A number that is greater when messages have gone or come.
    fn moved(&self) -> u64 {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        of(&self.counters.sent).wrapping_add(of(&self.counters.received))
    }

    /// Moves rings that can, and looks for idle links if that is due. When the next look is.
    pub(super) fn give_back_idle(&self, looks: &mut IdleLooks) -> Option<Instant> {
        self.move_rings_if_due();
        looks.turn(self.moved(), Instant::now, || self.look_for_idle_links())
    }

    /// Moves rings whose peers have taken fresh memory since the last time.
    pub(crate) fn move_rings_if_due(&self) {
        if self.wakeups.take_offer_taken() {
            self.links.all().iter().for_each(|link| self.move_rings(link));
        }
    }

    /// Looks at all links, and offers fresh memory for rings that are idle, and moves those whose peers have it. Whether there is
    /// something that another look may find.
    pub(crate) fn look_for_idle_links(&self) -> bool {
        let (mut again, mut offers) = (false, 0);
        for link in self.links.all().iter() {
            self.move_rings(link);
            match link.look_at_rings() {
                RingUse::Small => continue,
                RingUse::Idle if offers < MAX_OFFERS_PER_LOOK => {
                    offers += 1;
                    // For want of descriptors there is another look.
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

    /// Has the rings to a peer go on in memory that it has taken, where that is so.
    fn move_rings(&self, link: &Arc<Link>) {
        if link.move_rings() {
            // The peer sleeps, and has both memories until it reads on.
            self.publish_soon(link, wake_reasons::FRAMES);
        }
    }

    /// A peer offers fresh memory for its rings. It is told whether this process has taken it.
    pub(super) fn rings_came(&self, from: ProcessId, number: u64, descriptors: Vec<OwnedFd>) {
        // Of one that was given up, or whose link does not stand, nothing is taken.
        let link = self.links.to(from).filter(|link| link.is_connected() && !link.is_past());
        let taken = link.as_ref().map(|link| take_rings(link, descriptors));
        if let (Some(link), Some(Err(error))) = (&link, &taken) {
            if error.lack().is_some() {
                tracing::debug!(peer = %from, %error, "no room for the fresh rings of an idle link");
            } else {
                tracing::error!(peer = %from, %error, "fresh rings were refused, and their sender is given up");
                self.counters.rejected.fetch_add(1, Ordering::Relaxed);
                self.give_up(link);
            }
        }
        self.answer_offer(from, number, taken.is_some_and(|taken| taken.is_ok()));
    }

    /// The descriptor of such memory is lost: this process may open no more files.
    pub(super) fn rings_lost(&self, from: ProcessId, number: u64) {
        self.answer_offer(from, number, false);
    }

    fn answer_offer(&self, to: ProcessId, number: u64, is_taken: bool) {
        let link_message = LinkMessage::RingsAnswer { number, is_taken };
        if self.control.send(ToNode::Route { to, link_message }, Vec::new()).is_err() {
            tracing::debug!(peer = %to, "the node has ended before it heard of fresh rings");
        }
    }

    /// A peer has answered an offer.
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

    /// A reader that parks at `after` the beginning, when so much has moved; whether it looked.
    fn park(looks: &mut IdleLooks, begin: Instant, after: Duration, moved: u64, again: bool) -> bool {
        let looked = Cell::new(false);
        looks.turn(
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
        let (begin, mut looks) = (Instant::now(), IdleLooks::default());
        assert_eq!(looks.turn(0, || unreachable!("nothing has ever moved"), || unreachable!()), None);
        assert!(!park(&mut looks, begin, Duration::ZERO, 1, false), "a message is not its own silence");
        assert!(!park(&mut looks, begin, IDLE_LINK / 2, 5, false), "nor is the next one");
        assert!(park(&mut looks, begin, IDLE_LINK, 5, false));
        // Something came behind the first: that there is nothing any more is what the next look says.
        assert!(park(&mut looks, begin, 2 * IDLE_LINK, 5, false));
        assert_eq!(
            looks.turn(5, || unreachable!("it sleeps until something moves"), || unreachable!()),
            None
        );
        assert_eq!(looks.turn(6, || begin + 9 * IDLE_LINK, || unreachable!()), Some(begin + 10 * IDLE_LINK));
    }

    #[test]
    fn while_something_is_left_there_is_another_look() {
        let (begin, mut looks) = (Instant::now(), IdleLooks::default());
        park(&mut looks, begin, Duration::ZERO, 1, false);
        for count in 1..5 {
            assert!(park(&mut looks, begin, count * IDLE_LINK, 1, true));
            assert!(!park(&mut looks, begin, count * IDLE_LINK + Duration::from_millis(1), 1, true));
        }
    }
}
