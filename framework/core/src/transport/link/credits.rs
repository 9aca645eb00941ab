//! Credits: how many of the peer's messages this process's actors are done with.
//!
//! The receiver of messages grants: it counts on its half what its actors are done with, and the sender compares that
//! with what it has sent. Used when a message's receipt drops, and when an actor comes or goes.
//!
//! **Invariants.** A count is published before anybody is rung for it. A word has one writer, the process that grants
//! (ONE-WRITER). A peer has no more messages in a mailbox than its capacity (MBX-2).
//!
//! **Locks.** One, and nothing inside of it.
//!
//! **On a crash** of the peer the counts are of no use to anybody, and go with the link. **On cancellation** of a handler
//! its receipt drops, and counts.

use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::Link;
use crate::limits::MAX_ACTORS;
use crate::os::monotonic_ns;
use crate::stream::turn;
use crate::transport::pages::LinkMemory;
use crate::transport::ring::NativeWords;
use crate::transport::wake_reasons;

/// In a mailbox-state word: the actor is gone, or never was.
pub(crate) const CLOSED: u64 = u64::MAX;

/// In a mailbox-state word: the actor failed and is started anew, somewhere.
pub(crate) const AWAY: u64 = u64::MAX - 1;

/// A credit that a message has: it goes back when the message is done with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit {
    /// Of the actor.
    pub(crate) index: u16,
    /// Of its mailbox, per sending process.
    pub(crate) capacity: u32,
}

/// Messages of the peer that this process's actors are done with, by index.
#[derive(Debug)]
struct Granted {
    actors: Vec<Handled>,
    credits: NativeWords,
    mailbox_states: NativeWords,
}

/// The credits of one of this process's actors.
#[derive(Clone, Copy, Debug)]
struct Handled {
    /// Messages that it is done with; [`CLOSED`] or [`AWAY`] where there will be no more.
    count: u64,
    /// Those of them that the peer was told of, at least; and when.
    told: u64,
    /// Nanoseconds on the monotonic clock.
    told_at: u64,
}

impl Granted {
    fn new(credits: NativeWords, mailbox_states: NativeWords) -> Self {
        let none = Handled { count: 0, told: 0, told_at: monotonic_ns() };
        Granted { actors: vec![none; MAX_ACTORS], credits, mailbox_states }
    }

    fn count(&self, index: u16) -> Option<u64> {
        self.actors.get(usize::from(index)).map(|handled| handled.count)
    }

    fn set(&mut self, index: u16, count: u64) {
        let index = usize::from(index);
        let Some(handled) = self.actors.get_mut(index) else { return };
        (handled.count, handled.told) = (count, count);
        // CREDIT release, all: pair with `Link::handled` and `Link::mailbox_state`.
        if count < AWAY {
            self.credits.store(index, count, Ordering::Release);
            self.mailbox_states.store(index, 0, Ordering::Release);
        } else {
            self.mailbox_states.store(index, count, Ordering::Release);
        }
    }

    /// One more is done with; whether the peer is to be woken for it. The last two of the three ends of the delay in
    /// [`wake_reasons`] are others' to see to.
    fn one_more(&mut self, credit: Credit, now: u64) -> bool {
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

/// The credits granted to the peer. See the module.
#[derive(Debug)]
pub(super) struct Credits(Mutex<Granted>);

impl Credits {
    pub(super) fn new(memory: &LinkMemory) -> Self {
        Credits(Mutex::new(Granted::new(memory.credits(), memory.mailbox_states())))
    }
}

impl Link {
    /// The message of the peer that has this credit is done with. Whether the peer is to be woken for it, if it waits: not
    /// while it has most of the mailbox under way (see [`wake_reasons`]).
    pub(crate) fn hand_back(&self, credit: Credit) -> bool {
        self.credits.0.lock().one_more(credit, turn::about_now())
    }

    /// How many messages of the peer this process's actor `index` is done with.
    pub(crate) fn handed_back(&self, index: u16) -> u64 {
        self.credits.0.lock().count(index).unwrap_or(CLOSED)
    }

    /// Another actor has come to the location `index`: the credits go on where the messages taken stand.
    pub(crate) fn reopen(&self, index: u16) {
        let received = self.receiver.received(index);
        // That lock is given back before this one is taken: the reader takes them the other way round.
        let mut handled = self.credits.0.lock();
        if handled.count(index).is_some_and(|count| count >= AWAY) {
            // Those of the last actor are done with: they were handled, or dropped when it stopped.
            handled.set(index, received.unwrap_or(0));
        }
    }

    /// No more messages for this process's actor `index`; where it is `away`, its senders wait for its next life.
    pub(crate) fn close(&self, index: u16, away: bool) {
        self.credits.0.lock().set(index, if away { AWAY } else { CLOSED });
    }
}

#[cfg(test)]
mod tests;
