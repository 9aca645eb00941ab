//! What is new for a peer, and whom it is worth waking for. Ringing a doorbell is a system call, so there are kinds:
//!
//! | news | wakes |
//! |---|---|
//! | [`FRAMES`]: a frame | always |
//! | [`CREDIT`]: an actor is done with messages | a process in which a sender waits for room in a mailbox |
//! | [`ROOM`]: a cursor has moved, leases were posted | one that waits for room in a ring, for leases or for memory |
//! | any of them, [`quiet`] | nobody yet |
//!
//! Used by whoever publishes, see `publish`, and by the reader, which says what it wants.
//!
//! What a process wants to be woken for is the word `wants` of its mail page, in the same bits; frames need no wish.
//!
//! **Quiet news** is published like any other, so whoever is awake sees it at once; only the doorbell is put off. It is for
//! credits, and replies that only acknowledge, of which the next few make one ring: the sender still has most of a mailbox
//! under way. Three things end the quiet, so nobody is left asleep whom it concerns:
//!
//! 1. Half of the mailbox was handed back since the sender was told, or [`TELL_EVERY`] has passed and one more is.
//! 2. The bell is rung for anything else.
//! 3. The reader finds nothing to do (`Transport::poll`). It always comes to that: who puts off a ring says so in
//!    `Wakeups::quiet`, which the reader looks at after every look in vain and after it has said that it is parked, and
//!    wakes it if it is parked (`Wakeups::keep_quiet`).
//!
//! A doorbell that wakes is a system call in the middle of the ringer's work. While its neighbours sleep, a busy stage
//! rings once an item, for the item that it hands on; where cores are plenty they do not sleep.

use std::time::Duration;

/// Frames.
pub(crate) const FRAMES: u8 = 1;
/// Credits.
pub(crate) const CREDIT: u8 = 2;
/// Room in rings, leases, memory.
pub(crate) const ROOM: u8 = 4;

/// News of that kind that is to be published quietly.
pub(crate) const fn quiet(kind: u8) -> u8 {
    kind << KINDS
}

/// What is to be rung for, and what not, of news that is due.
pub(crate) const fn split(due: u8) -> (u8, u8) {
    (due & ((1 << KINDS) - 1), due >> KINDS)
}

const KINDS: u32 = 4;
const _: () = assert!((FRAMES | CREDIT | ROOM).ilog2() < KINDS);

/// A process that is to be woken for everything.
pub(crate) const ALL: u64 = (CREDIT | ROOM) as u64;

/// Mailboxes below this size tell their senders of each credit: there is nothing to gather.
pub(crate) const LEAST_GATHERED: u32 = 4;

/// Who has not told a sender of a credit for so long tells it of the next one, however much of the mailbox is left. Long
/// against the price of a ring, so that slow handlers lose nothing by it; and their senders are told of each message, as
/// they were before.
pub(crate) const TELL_EVERY: Duration = Duration::from_millis(1);
