//! Ends: of a link, when the peer broke the protocol; of a peer, when its process has exited.
//!
//! A peer's end comes in steps, in this order: the node says that it has gone, and nothing goes to it any
//! more ([`on_process_exited`](Transport::on_process_exited)); the reader reads to the end what it had
//! posted, gives the link up, parts with it, and tells the node ([`part_with`](Transport::part_with)); and
//! when everybody has, the node has it reclaimed: its leases are dropped ([`reclaim`](Transport::reclaim)).
//! Used by the reader and by what the node says.
//!
//! **Invariants.** LEASE-4: no lease of the dead is dropped before everything that it had posted is read, and
//! none that it was granted behind that stays. Its asks fail only once the replies that it had posted are
//! read.
//!
//! **Locks.** None across two steps. What a link let go of is dropped without its locks: leases go with it,
//! over others.
//!
//! **On a crash** of this process in between the node counts it as one that has read everything. **On
//! cancellation** nothing happens: nothing here waits.

use super::Transport;
use super::link::Link;
use crate::fault;
use crate::ids::ProcessId;
use crate::lease::pool::Surroundings;
use crate::transport::control_channel::ToNode;

impl Transport {
    /// Has nothing more to do with a peer that broke the protocol, or has ended and was read to the end.
    pub(crate) fn give_up(&self, link: &Link) {
        // First nothing more goes out or in: a send that is committed behind this looks after what it left
        // (`commit`).
        link.break_off();
        if link.is_connected() && !link.has_exited() {
            self.lifecycle.leave_unread();
        }
        self.let_go(link);
        self.fail_asks(link.peer);
        // Whoever waits fails, or looks where the actor is now.
        link.wake_senders();
        // Last: until this is set the reader does all of it once more.
        link.note_given_up();
    }

    /// The last of a peer that ended and was read to the end, or will not be read any more: its link goes,
    /// and the node hears of it. For the reader, when it has [given the link up](Self::give_up).
    pub(super) fn part_with(&self, link: &Link) {
        fault::point("transport.drained");
        self.links.remove(link);
        self.lifecycle.exited.note_read();
        self.memory.chunks.loosen();
        self.say_drained(link.peer);
    }

    /// Lets go of what was to go over a link that is broken: replies that found no room, and leases kept
    /// until the peer has passed their frames. It never will, or its own hold is on its way to the owner
    /// (LEASE-3). True if there was any.
    pub(super) fn let_go(&self, link: &Link) -> bool {
        let (in_flight, outbox) = link.take_unsent();
        // Dropped here, without the lock: leases go with them, over other links.
        !in_flight.is_empty() || !outbox.is_empty()
    }

    /// A process ended. What it had posted is still read, by the reader, which then gives the link up;
    /// nothing goes to it any more.
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

    /// Everybody has read what the process had posted: every hold that it forwarded is in its owner's lease
    /// table or ring, so its own leases can go (LEASE-4). What it owned stays with whoever holds it.
    pub(super) fn reclaim(&self, process: ProcessId) {
        // The holds that its last frames led to, before its leases go (LEASE-3).
        Surroundings::drain_returns(self);
        // Before the leases go: who grants one behind that sees this (`evict_if_reclaimed`).
        self.lifecycle.exited.note_reclaimed(process);
        self.memory.evict(process);
    }

    /// Drops what `process` was granted after its leases had been dropped: by a send that had claimed its
    /// frame before (LEASE-4). The grant came behind the eviction in the pool's lock, and so this look comes
    /// behind the note.
    pub(super) fn evict_if_reclaimed(&self, process: ProcessId) {
        if self.lifecycle.exited.is_reclaimed(process) {
            self.memory.evict(process);
        }
    }
}
