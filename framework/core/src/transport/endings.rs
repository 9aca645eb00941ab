//! The end of a link, when the peer broke the protocol; and of a peer, when its process has exited.
//!
//! A peer's end comes in steps, in this order. The node says that the peer is gone, and nothing is sent to it
//! any more ([`on_process_exited`](Transport::on_process_exited)). The reader reads everything that the peer
//! had posted, gives the link up, removes it, and tells the node ([`part_with`](Transport::part_with)). When
//! every process has done so, the node has the peer reclaimed, and its leases are dropped
//! ([`reclaim`](Transport::reclaim)). The reader calls these steps, and the node's messages do.
//!
//! **Invariants.** LEASE-4: no lease of a dead process is dropped before everything that it had posted is
//! read, and no lease that is granted to it after that stays. Asks to it fail only after the replies that it
//! had posted are read.
//!
//! **Locks.** None across two steps. Messages taken from a link are dropped without its locks, because their
//! leases go back over other links.
//!
//! **On a crash** of this process between two steps, the node counts it as having read everything. **On
//! cancellation** nothing happens: nothing here waits.

use super::Transport;
use super::link::Link;
use crate::fault;
use crate::ids::ProcessId;
use crate::lease::pool::Surroundings;
use crate::transport::control_channel::ToNode;

impl Transport {
    /// Gives up the link to a peer that broke the protocol, or has ended and was read to the end.
    pub(crate) fn give_up(&self, link: &Link) {
        // First, so that nothing more goes out or in. A send that commits after this cleans up after itself
        // (`commit`).
        link.break_off();
        if link.is_connected() && !link.has_exited() {
            self.lifecycle.leave_unread();
        }
        self.let_go(link);
        self.fail_asks(link.peer);
        // Waiting senders fail, or look up where the actor is now.
        link.wake_senders();
        // Last: until this is set the reader does all of it once more.
        link.note_given_up();
    }

    /// Removes the link of a peer that ended and was read to the end, or will not be read any more, and tells
    /// the node. The reader calls it after it has [given the link up](Self::give_up).
    pub(super) fn part_with(&self, link: &Link) {
        fault::point("transport.drained");
        self.links.remove(link);
        self.lifecycle.exited.note_read();
        self.memory.chunks.loosen();
        self.say_drained(link.peer);
    }

    /// Drops everything that waits on a broken link: replies that found no room, and leases kept until the
    /// peer has passed their frames. The peer never will pass them, or its own hold is already on its way to
    /// the owner (LEASE-3). Returns true if there was anything.
    pub(super) fn let_go(&self, link: &Link) -> bool {
        let (in_flight, outbox) = link.take_unsent();
        // Dropped here, without the lock: leases go with them, over other links.
        !in_flight.is_empty() || !outbox.is_empty()
    }

    /// Notes that a process ended. Nothing is sent to it any more. The reader still reads everything that it
    /// had posted, and then gives the link up.
    pub(super) fn on_process_exited(&self, process: ProcessId) {
        self.lifecycle.exited.note(process);
        self.directory.look_again();
        match self.links.to(process) {
            // Its asks fail once the replies that it had posted are read.
            Some(link) => link.end(),
            None => {
                self.lifecycle.exited.note_read();
                self.memory.chunks.loosen();
                self.say_drained(process);
            }
        }
    }

    fn say_drained(&self, process: ProcessId) {
        if self.control.send(ToNode::Drained { process }, Vec::new()).is_err() {
            tracing::debug!(%process, "the node has ended before it heard that a ring is drained");
        }
    }

    /// Drops the leases of a process after every process has read everything that it had posted. Every hold
    /// that it forwarded is then in the owner's lease table or ring, so its own leases can go (LEASE-4).
    /// Memory that it owned stays valid for its holders.
    pub(super) fn reclaim(&self, process: ProcessId) {
        // Takes in the holds that its last frames led to, before its leases go (LEASE-3).
        Surroundings::drain_returns(self);
        // Noted before the leases go: a thread that grants one after that sees the note
        // (`evict_if_reclaimed`).
        self.lifecycle.exited.note_reclaimed(process);
        self.memory.evict(process);
    }

    /// Drops leases that `process` was granted after its leases had been dropped, by a send that had claimed
    /// its frame before (LEASE-4). Such a grant took the pool's lock after the eviction did, so this check
    /// sees the note.
    pub(super) fn evict_if_reclaimed(&self, process: ProcessId) {
        if self.lifecycle.exited.is_reclaimed(process) {
            self.memory.evict(process);
        }
    }
}
