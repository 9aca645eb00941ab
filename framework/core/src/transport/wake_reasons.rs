//! The reasons to wake a peer, and which sleeping processes each one wakes. Ringing a doorbell is a system
//! call, so reasons have kinds:
//!
//! | wake reason | wakes |
//! |---|---|
//! | [`FRAMES`]: a frame | always |
//! | [`CREDIT`]: an actor is done with messages | a process in which a sender waits for room in a mailbox |
//! | [`ROOM`]: a cursor has moved, leases were posted | one that waits for room in a ring, for leases or for memory |
//! | any of them, [`deferred`] | nobody yet |
//!
//! Publishing threads use it (see `publish`), and so does the reader, which announces which kinds it wants.
//!
//! The word `wants` of a process's wake page has the kinds that it wants to be woken for, in the same bits.
//! Frames wake it in any case.
//!
//! **A deferred wake-up** delays only the doorbell: the item itself is published at once, and a process that
//! is awake sees it at once. It is for credits, and for replies that only acknowledge. A few of them share
//! one ring, because the sender still has most of a mailbox under way. Three events end the delay, so no
//! process that it concerns stays asleep:
//!
//! 1. Half of the mailbox was handed back since the sender was last told, or [`TELL_EVERY`] has passed and
//!    another credit is handed back.
//! 2. The bell is rung for anything else.
//! 3. The reader finds nothing to do (`Transport::poll`). This always happens in the end: a thread that
//!    defers a ring sets `Wakeups::deferred`, and wakes the reader if it is parked (`Wakeups::defer_wakeup`).
//!    The reader checks that flag after every poll that found nothing, and after it has announced that it
//!    parks.
//!
//! A ring that wakes is a system call in the middle of the ringer's work. While its neighbours sleep, a busy
//! stage rings once per item, for the item that it hands on. With enough cores they do not sleep.

use std::time::Duration;

use crate::sync::Ordering;
use crate::transport::ring::{Orders, Platform, Word};

/// Frames were published.
pub(crate) const FRAMES: u8 = 1;
/// Credits were published.
pub(crate) const CREDIT: u8 = 2;
/// Room in rings, leases or memory came free.
pub(crate) const ROOM: u8 = 4;

/// Returns the bits of a deferred wake-up of that kind.
pub(crate) const fn deferred(kind: u8) -> u8 {
    kind << KINDS
}

/// Splits the wake-ups that are due into those to ring for now and those that are deferred.
pub(crate) const fn split(due: u8) -> (u8, u8) {
    (due & ((1 << KINDS) - 1), due >> KINDS)
}

const KINDS: u32 = 4;
const _: () = assert!((FRAMES | CREDIT | ROOM).ilog2() < KINDS);

/// All kinds, for a process that is to be woken for everything.
pub(crate) const ALL: u64 = (CREDIT | ROOM) as u64;

/// Returns whether to wake a process for `what`, which was published before. `wants` has the kinds that the
/// process wants to be woken for.
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

/// Mailboxes below this size tell their senders of each credit, because there is nothing to gather.
pub(crate) const LEAST_GATHERED: u32 = 4;

/// A mailbox that has not told a sender of a credit for this long tells it of the next one, regardless of how
/// much room is left. The time is long compared with the cost of a ring. Slow handlers therefore lose nothing
/// by it: their senders are told of each message.
pub(crate) const TELL_EVERY: Duration = Duration::from_millis(1);
