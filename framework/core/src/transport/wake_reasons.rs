//! What is new for a peer, and whom it is worth waking for. Ringing a doorbell is a system call, so there are
//! kinds:
//!
//! | wake reason | wakes |
//! |---|---|
//! | [`FRAMES`]: a frame | always |
//! | [`CREDIT`]: an actor is done with messages | a process in which a sender waits for room in a mailbox |
//! | [`ROOM`]: a cursor has moved, leases were posted | one that waits for room in a ring, for leases or for memory |
//! | any of them, [`deferred`] | nobody yet |
//!
//! Used by whoever publishes, see `publish`, and by the reader, which says what it wants.
//!
//! What a process wants to be woken for is the word `wants` of its wake page, in the same bits; frames need
//! no wish.
//!
//! **A deferred wake-up** is of something that is published at once, so whoever is awake sees it at once;
//! only the doorbell waits. It is for credits, and replies that only acknowledge, of which the next few make
//! one ring: the sender still has most of a mailbox under way. Three things end the delay, so nobody is left
//! asleep whom it concerns:
//!
//! 1. Half of the mailbox was handed back since the sender was told, or [`TELL_EVERY`] has passed and one
//!    more is.
//! 2. The bell is rung for anything else.
//! 3. The reader finds nothing to do (`Transport::poll`). It always comes to that: who puts off a ring says
//!    so in `Wakeups::deferred`, which the reader looks at after every look in vain and after it has said
//!    that it is parked, and wakes it if it is parked (`Wakeups::defer_wakeup`).
//!
//! A doorbell that wakes is a system call in the middle of the ringer's work. While its neighbours sleep, a
//! busy stage rings once an item, for the item that it hands on; where cores are plenty they do not sleep.

use std::time::Duration;

use crate::sync::Ordering;
use crate::transport::ring::{Orders, Platform, Word};

/// Frames.
pub(crate) const FRAMES: u8 = 1;
/// Credits.
pub(crate) const CREDIT: u8 = 2;
/// Room in rings, leases, memory.
pub(crate) const ROOM: u8 = 4;

/// A wake-up of that kind that is to be deferred.
pub(crate) const fn deferred(kind: u8) -> u8 {
    kind << KINDS
}

/// The wake-ups that are due: those to ring for now, and those that are deferred.
pub(crate) const fn split(due: u8) -> (u8, u8) {
    (due & ((1 << KINDS) - 1), due >> KINDS)
}

const KINDS: u32 = 4;
const _: () = assert!((FRAMES | CREDIT | ROOM).ilog2() < KINDS);

/// A process that is to be woken for everything.
pub(crate) const ALL: u64 = (CREDIT | ROOM) as u64;

/// Returns whether a process that says in `wants` what it is to be woken for is to be woken for `what`, which
/// was published before.
pub(crate) fn is_wanted<P: Platform, O: Orders>(what: u8, wants: &P::Word) -> bool {
    if what & FRAMES != 0 {
        return true;
    }
    if O::WANTS_FENCE {
        // WANTS: pairs with the fence in the reader's `Sleeper::prepare`, which comes after it has written
        // the word.
        P::fence_seq_cst();
    }
    wants.load(Ordering::Relaxed) & u64::from(what) != 0
}

/// Mailboxes below this size tell their senders of each credit: there is nothing to gather.
pub(crate) const LEAST_GATHERED: u32 = 4;

/// Who has not told a sender of a credit for so long tells it of the next one, however much of the mailbox is
/// left. Long against the price of a ring, so that slow handlers lose nothing by it; and their senders are
/// told of each message, as they were before.
pub(crate) const TELL_EVERY: Duration = Duration::from_millis(1);
