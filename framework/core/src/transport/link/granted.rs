//! The counts, visible to a peer, of messages that this process's actors are done with.
//!
//! `credits` uses it, under its lock. `tests/loom_senders.rs` explores this file: a sender that sees a
//! message counted may put another into its place.

use crate::limits::MAX_ACTORS;
use crate::os::monotonic_ns;
use crate::sync::Ordering;
use crate::transport::ring::NativeWords;
use crate::transport::wake_reasons;

/// In a mailbox-state word: no actor was there yet, as far as the peer has heard.
pub(crate) const NOBODY: u64 = 0;

/// In a mailbox-state word: the actor is gone.
pub(crate) const CLOSED: u64 = u64::MAX;

/// In a mailbox-state word: the actor failed and is being restarted, somewhere.
pub(crate) const AWAY: u64 = u64::MAX - 1;

/// The credit of a message. It goes back when the message is done with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit {
    /// The index of the actor.
    pub(crate) index: u16,
    /// The capacity of its mailbox, per sending process.
    pub(crate) capacity: u32,
}

/// Messages of the peer that this process's actors are done with, by index.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) actors: Vec<Handled>,
    pub(super) credits: NativeWords,
    pub(super) mailbox_states: NativeWords,
}

/// The credits of one of this process's actors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handled {
    /// Messages that it is done with; [`CLOSED`] or [`AWAY`] if there will be no more.
    pub(super) count: u64,
    /// At least how many of them the peer was told of.
    pub(super) told: u64,
    /// When the peer was last told, in nanoseconds on the monotonic clock.
    pub(super) told_at: u64,
}

impl Granted {
    pub(super) fn new(credits: NativeWords, mailbox_states: NativeWords) -> Self {
        let none = Handled { count: 0, told: 0, told_at: monotonic_ns() };
        Granted { actors: vec![none; MAX_ACTORS], credits, mailbox_states }
    }

    pub(super) fn count(&self, index: u16) -> Option<u64> {
        self.actors.get(usize::from(index)).map(|handled| handled.count)
    }

    /// Closes `index` for messages; `why` is [`CLOSED`] or [`AWAY`].
    pub(super) fn close(&mut self, index: u16, why: u64) {
        let index = usize::from(index);
        let Some(handled) = self.actors.get_mut(index) else { return };
        (handled.count, handled.told) = (why, why);
        // CREDIT release: pairs with `Link::mailbox_state`.
        self.mailbox_states.store(index, why, Ordering::Release);
    }

    /// Announces [`AWAY`], as [`close`](Self::close) does, but messages that were sent by now still count
    /// when they are done with.
    #[cfg(feature = "hosts")]
    pub(super) fn pause(&mut self, index: u16) {
        // CREDIT release: pairs with `Link::mailbox_state`.
        self.mailbox_states.store(usize::from(index), AWAY, Ordering::Release);
    }

    /// Returns whether the last actor at `index` is gone, or away.
    pub(super) fn is_closed(&self, index: u16) -> bool {
        self.count(index).is_some_and(|count| count >= AWAY)
    }

    /// Opens `index` for an actor whose mailbox takes this many messages of a peer. If another actor was
    /// there before, `received` messages were taken for that one, and all count as done with.
    pub(super) fn open(&mut self, index: u16, capacity: u32, received: u64) {
        let was_closed = self.is_closed(index);
        let index = usize::from(index);
        let Some(handled) = self.actors.get_mut(index) else { return };
        // CREDIT release, all: pair with `Link::handled` and `Link::mailbox_state`.
        if was_closed {
            (handled.count, handled.told) = (received, received);
            self.credits.store(index, received, Ordering::Release);
        }
        self.mailbox_states.store(index, u64::from(capacity), Ordering::Release);
    }

    /// Counts one message more as done with, and returns whether to wake the peer for it. This decides the
    /// first of the three ends of the delay in [`wake_reasons`]; other code handles the last two.
    pub(super) fn one_more(&mut self, credit: Credit, now: u64) -> bool {
        let index = usize::from(credit.index);
        let Some(handled) = self.actors.get_mut(index).filter(|handled| handled.count < AWAY) else {
            return false;
        };
        handled.count += 1;
        // CREDIT release: pairs with `Link::handled`.
        self.credits.store(index, handled.count, Ordering::Release);
        let tell = credit.capacity < wake_reasons::LEAST_GATHERED
            || handled.count - handled.told >= u64::from(credit.capacity / 2)
            || now.saturating_sub(handled.told_at) >= wake_reasons::TELL_EVERY.as_nanos() as u64;
        if tell {
            (handled.told, handled.told_at) = (handled.count, now);
        }
        tell
    }
}
