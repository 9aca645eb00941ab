//! Publishing: makes entries that were written into the rings visible to the peers, and wakes sleeping peers.
//!
//! A committed frame and a posted notice lie in a ring whose tail has not moved yet. Each marks on its link
//! the wake reasons that are due, see [`wake_reasons`]. The end of the turn publishes all of them together:
//! one tail per ring, one doorbell per peer. Outside of a turn each is published at once. `outgoing`
//! (frames), `returns` (notices), and the handing back of credits use it.
//!
//! **Invariants.** Everything written and marked before [`Transport::publish_all`] is visible when that call
//! has returned, no matter which thread committed it or took the mark. (A frame that is alone outside of a
//! turn is published with its own ring, as it is written.) All returns are visible before any frame. An
//! answer is visible only after everything that its handler had sent to others before. The reason: the
//! receiver of the answer may forget its request. If the handler's process is killed between the two, it must
//! not have confirmed a message that is lost with it.
//!
//! **Locks.** `notices_out` of each link, then `out` of each, one at a time and none inside another.
//!
//! **On a crash** between the write and the publishing, no peer has seen the frame: it was never sent. **On
//! cancellation** nothing happens: a turn also ends when its future is dropped.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::link::Link;
use super::{Transport, wake_reasons};
use crate::fault;
use crate::ids::ProcessId;
use crate::stream::turn::{self, TurnEnd};

/// The receivers of unpublished messages of the turn that is open on this thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SentTo {
    Nobody,
    One(ProcessId),
    Several,
}

thread_local! {
    static SENT_TO: Cell<SentTo> = const { Cell::new(SentTo::Nobody) };
    /// The index in the list of links at which there was something to publish the last time.
    static FIRST: Cell<usize> = const { Cell::new(0) };
}

/// Identifies a running thread, by the address of its thread-local variable above.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublishingThread(usize);

impl PublishingThread {
    pub(crate) fn current() -> Self {
        // A thread that is ending has no thread-local variable any more, and differs from all others.
        PublishingThread(SENT_TO.try_with(|own| std::ptr::from_ref(own).addr()).unwrap_or(0))
    }
}

impl TurnEnd for Transport {
    /// Publishes everything that the turn has gathered: one tail per link.
    fn turn_ended(&self) {
        SENT_TO.set(SentTo::Nobody);
        self.links.with_all(|links| self.publish_all(links));
    }
}

impl Transport {
    /// Publishes a message at the end of the turn, or before the turn answers another process.
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

    /// Publishes everything that the turn has sent to processes other than `to`, which is about to be
    /// answered.
    pub(super) fn publish_before_answer(&self, to: &Link) {
        if !matches!(SENT_TO.get(), SentTo::Nobody) && SENT_TO.get() != SentTo::One(to.peer) {
            turn::flush_now();
        }
    }

    /// Publishes everything that the turn has sent, if the caller that is about to be answered asked on
    /// another thread of this process: that thread may act on the answer at once. On this thread no caller
    /// continues before the turn has ended.
    pub(crate) fn publish_before_local_answer(&self, asked_on: PublishingThread) {
        if !matches!(SENT_TO.get(), SentTo::Nobody) && asked_on != PublishingThread::current() {
            turn::flush_now();
        }
    }

    /// Publishes at the end of the turn, or now if no turn is open, and returns whether it was now. `due` has
    /// the wake reasons, see [`wake_reasons`].
    pub(super) fn publish_soon(&self, link: &Arc<Link>, due: u8) -> bool {
        // The mark comes after the write that it is for, and before the check for a turn: a turn that ends on
        // another thread in the meantime publishes this too, and then nothing is due here.
        link.note_due(due);
        let now = !turn::at_end(self, || self.this.upgrade());
        if now {
            self.publish_if_due(link);
        }
        now
    }

    /// Publishes the deferred entries of a link, if any.
    pub(super) fn publish_if_due(&self, link: &Arc<Link>) {
        self.publish_all(std::slice::from_ref(link));
    }

    /// Publishes the deferred entries of all of `links`: makes everything committed there visible to the
    /// peers, and wakes the peers that have to be woken.
    ///
    /// All returns become visible before any frame. So a message that says that its sender has dropped
    /// something does not overtake the drop, even if its receiver tells a third process of it. (The other
    /// direction needs no order: a lease that a frame takes along is kept until the peer has passed the
    /// frame.)
    pub(super) fn publish_all(&self, links: &[Arc<Link>]) {
        // All marks are taken before anything is published: a frame that is committed after its link's mark
        // was taken sets it again, so no frame is left without a mark. If there are frames without a mark,
        // another thread is about to set it, or has taken it and is about to publish them. That thread may be
        // stopped for long, and this one does not wait for it, so it publishes such frames too.
        //
        // Few turns have more than 16.
        let mut due: SmallVec<[(&Link, u8, Option<u64>); 16]> = SmallVec::new();
        // The search begins at the link that had something the last time, and ends with the last link on
        // which something is due. A search of hundreds of links, of which one or two have something, would
        // cost more than the message. A link whose mark another thread has taken counts until that thread has
        // published it, so it is not skipped. The count is read anew each time, so a mark that was set and
        // taken since the search began does not stand for one that was there before.
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
            // Frames of other threads may be among these, and those threads may have posted returns on any
            // link before. Frames written from here on are not published below.
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
        // Doorbells last, and outside of the locks: each is a system call, and a peer that wakes has to find
        // everything. By reference, because the list is large and should not be moved.
        for (link, what, _) in &due {
            if *what != 0 {
                self.tell(link, *what);
            }
        }
    }

    /// Wakes the peer for the published entries, if that is due.
    pub(super) fn tell(&self, link: &Link, due: u8) {
        fault::point("transport.send.published");
        let (ring, deferred) = wake_reasons::split(due);
        // Deferred rings are noted before the bell is rung for the rest, because that ring ends the delay. A
        // ring for a frame covers both, so then the reader of this process need not be reminded; a reply from
        // another thread would wake it for that.
        if deferred != 0 && ring & wake_reasons::FRAMES == 0 {
            link.defer_wakeup(deferred);
            self.wakeups.defer_wakeup();
        }
        if ring != 0 {
            // Rung even if nothing new is visible: entries that were published early have not been rung for
            // yet.
            link.ring(ring);
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
