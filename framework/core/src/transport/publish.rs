//! Publishing: what was written into the rings becomes visible to the peers, and those that sleep are woken.
//!
//! A frame that is committed and a notice that is posted lie in a ring whose tail has not moved yet. Each
//! notes on its link what is due, see [`wake_reasons`]. The end of the turn publishes all of it together: one
//! tail per ring, one doorbell per peer. Outside of a turn it is published at once. Used by `outgoing`
//! (frames), `returns` (notices), and the handing back of credits.
//!
//! **Invariants.** What was written and marked before [`Transport::publish_all`] is visible when that call
//! has returned, whichever thread committed it, and whichever has taken the mark. (A frame that is alone
//! outside of a turn is published with its own ring, as it is written.) All returns are visible before any
//! frame. An answer is visible after all that its handler had sent to others before: whoever has it may
//! forget what it asked for, and a process that is killed between the two must not have said that it passed
//! on what it then takes along.
//!
//! **Locks.** `notices_out` of each link, then `out` of each, one at a time and none inside another.
//!
//! **On a crash** between the write and the publishing nobody has seen the frame: it was never sent. **On
//! cancellation** nothing happens: a turn ends also when its future is dropped.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::link::Link;
use super::{Transport, wake_reasons};
use crate::fault;
use crate::ids::ProcessId;
use crate::stream::turn::{self, TurnEnd};

/// To whom the turn that is open on this thread has sent messages that are not published.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SentTo {
    Nobody,
    One(ProcessId),
    Several,
}

thread_local! {
    static SENT_TO: Cell<SentTo> = const { Cell::new(SentTo::Nobody) };
    /// Where in the list of links there was something to publish the last time.
    static FIRST: Cell<usize> = const { Cell::new(0) };
}

/// Tells the threads that run from each other, by where each has its own of what is above.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublishingThread(usize);

impl PublishingThread {
    pub(crate) fn current() -> Self {
        // A thread that is ending, and has nothing of its own any more, is none of the others.
        PublishingThread(SENT_TO.try_with(|own| std::ptr::from_ref(own).addr()).unwrap_or(0))
    }
}

impl TurnEnd for Transport {
    /// Publishes what the turn has gathered: one tail per link.
    fn turn_ended(&self) {
        SENT_TO.set(SentTo::Nobody);
        self.links.with_all(|links| self.publish_all(links));
    }
}

impl Transport {
    /// Publishes a message at the end of the turn, or before the turn answers somebody else.
    pub(super) fn publish_message_soon(&self, link: &Arc<Link>, due: u8) {
        if self.publish_soon(link, due) {
            return;
        }
        SENT_TO.set(match SENT_TO.get() {
            SentTo::Nobody => SentTo::One(link.peer),
            SentTo::One(peer) if peer == link.peer => SentTo::One(peer),
            _ => SentTo::Several,
        });
    }

    /// Publishes what the turn has sent to others than `to`, which is about to be answered.
    pub(super) fn publish_before_answer(&self, to: &Link) {
        if !matches!(SENT_TO.get(), SentTo::Nobody) && SENT_TO.get() != SentTo::One(to.peer) {
            turn::flush_now();
        }
    }

    /// Publishes what the turn has sent, if whoever is about to be answered asked on another thread of this
    /// process: it may answer for it at once. On this one nobody goes on before the turn has ended.
    pub(crate) fn publish_before_local_answer(&self, asked_on: PublishingThread) {
        if !matches!(SENT_TO.get(), SentTo::Nobody) && asked_on != PublishingThread::current() {
            turn::flush_now();
        }
    }

    /// Publishes at the end of the turn, or now where no turn is open; whether that was now. `due` is what
    /// for, see [`wake_reasons`].
    pub(super) fn publish_soon(&self, link: &Arc<Link>, due: u8) -> bool {
        // The mark comes after the write that it is for, and before the turn is asked: a turn that ends on
        // another thread meanwhile publishes this too, and the one here then finds nothing due.
        link.note_due(due);
        let now = !turn::at_end(self, || self.arc());
        if now {
            self.publish_if_due(link);
        }
        now
    }

    /// Publishes if that was put off.
    pub(super) fn publish_if_due(&self, link: &Arc<Link>) {
        self.publish_all(std::slice::from_ref(link));
    }

    /// Publishes what was put off on any of `links`: makes everything committed there visible to the peers,
    /// and wakes those that have to be.
    ///
    /// All returns are to be seen before any frame: a message that says that its sender has dropped
    /// something, or that a third process is told of by its receiver, does not overtake the drop. (The other
    /// way round nothing needs an order: a lease that a frame takes along is kept until the peer has passed
    /// the frame.)
    pub(super) fn publish_all(&self, links: &[Arc<Link>]) {
        // First all marks are taken, then anything is published: a frame that is committed after its link's
        // mark was taken sets it again, so nothing is left without one. Of frames without a mark another
        // thread is about to set it, or has taken it and is about to publish them: that one may stand still
        // for long, and nobody waits for it.
        //
        // More than that are in few turns.
        let mut due: SmallVec<[(&Link, u8, Option<u64>); 16]> = SmallVec::new();
        // The look ends with the last link on which something is due, and begins where there was something
        // the last time: with hundreds of links, of which one or two have something, all of them cost more
        // than the message. A link whose mark another thread has taken counts until that has published it, so
        // it is not passed by. Counted anew each time: a mark that came since the look began, and was taken,
        // does not stand for one that was there before.
        let mut taken = 0;
        let first = FIRST.get().min(links.len());
        let (before, behind) = links.split_at(first);
        for (at, link) in (first..).zip(behind).chain((0..).zip(before)) {
            if self.links.count_due() == taken {
                break;
            }
            let (what, frames) = (link.take_due(), link.unpublished_frames());
            if what != 0 || frames.is_some() {
                taken += usize::from(what != 0);
                if links.len() > 1 {
                    FIRST.set(at);
                }
                due.push((link, what, frames));
            }
        }
        #[cfg(any(test, feature = "testing"))]
        if self.lifecycle.is_abandoned() {
            return;
        }
        // Two loops and not one: the returns of all links come before the first frame of any.
        for (link, _, _) in &due {
            link.publish_notices();
        }
        if self.links.have_unpublished_notices() && due.iter().any(|(_, _, frames)| frames.is_some()) {
            // Frames of other threads may be among these, and those may have left returns on any link before
            // them. What is written from here on is not published below.
            for link in self.links.all().iter() {
                link.publish_notices();
            }
        }
        for (link, _, frames) in &due {
            fault::point("transport.send.publish");
            if let Some(end) = frames {
                link.publish_frames(*end);
            }
        }
        for (link, what, _) in &due {
            if *what != 0 {
                link.due_is_published();
            }
        }
        // Doorbells last, and outside of the locks: each is a system call, and who wakes has to find
        // everything. By reference: the list is large, and is not moved.
        for (link, what, _) in &due {
            if *what != 0 {
                self.tell(link, *what);
            }
        }
    }

    /// Wakes the peer for what was published, if it has to be.
    pub(super) fn tell(&self, link: &Link, due: u8) {
        fault::point("transport.send.published");
        let (ring, deferred) = wake_reasons::split(due);
        // What is put off is noted before the bell is rung for the rest: that ring ends the quiet. A frame's
        // ring is for both, so then there is nothing to remind this process's reader of, which a reply from
        // another thread would wake for it.
        if deferred != 0 && ring & wake_reasons::FRAMES == 0 {
            link.defer_wakeup(deferred);
            self.wakeups.defer_wakeup();
        }
        if ring != 0 {
            // Though nothing may be new to see: what was published early has not rung yet.
            link.ring(ring);
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
