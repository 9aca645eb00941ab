//! Sends leases back to their owners, and takes them in on the owners' side.
//!
//! A holder posts notices (releases, holds, rejections) to the owner's return ring, see [`entry`]; the owner
//! takes them in and keeps its lease table. Each lease that drops uses it, and so do `incoming` (holds), the
//! reader, and a pool that needs an up-to-date lease table.
//!
//! **Invariants.** LEASE-2: a release never waits, and finds room. LEASE-3: a hold is visible before the
//! cursor moves past its frame. A cursor is read before the notices that belong to it are drained.
//!
//! **Locks.** A link's `notices_in` while its notices are taken in; inside it a pool's, and the link's `out`.
//! `notices_out` for each notice, alone. Leases taken from a link are dropped outside of all of them.
//!
//! **On a crash** of the owner its lease table is gone, and releases to it are dropped. **On cancellation**
//! nothing happens.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::Transport;
use super::entry::{self, Notice};
use super::link::{Fault, Link};
use crate::clock::Ticket;
use crate::device::{Access, ChunkMapping, DeviceError};
use crate::fault;
use crate::ids::{ChunkId, DeviceId, ProcessId};
use crate::lease::pool::Surroundings;
use crate::lease::{LeaseId, Returns, Writers};
use crate::limits::MAX_FORWARDED;
use crate::stream::turn::Turn;
use crate::transport::control_channel::ToNode;
use crate::transport::ring::Entry;

/// How long a process that ends waits for its own reader to close entries that were given back.
const LAST_RETURNS: Duration = Duration::from_millis(200);

impl Returns for Transport {
    fn release(&self, id: LeaseId, uses: &[Ticket]) {
        fault::point("lease.release");
        let Some(link) = self.link(id.chunk.owner).filter(|link| !link.has_exited()) else {
            return; // The owner has ended: there is no lease table any more.
        };
        link.uncount_held();
        self.return_rings(&link).post(entry::release(id, uses));
    }

    fn writable(&self, id: LeaseId) -> Result<Arc<ChunkMapping>, DeviceError> {
        self.memory.chunks.map_now(id.chunk, Access::ReadWrite, &*self.control, &self.wakeups)
    }

    fn writers(&self) -> &Writers {
        self.memory.writers()
    }
}

impl Surroundings for Transport {
    fn drain_returns(&self) {
        // Memory comes back, and may soon be idle.
        self.wakeups.note_memory_moved();
        for link in self.links.all().iter() {
            self.return_rings(link).drain();
        }
        self.settle_if_open();
    }

    fn publish_chunk(
        &self,
        chunk: ChunkId,
        device: DeviceId,
        bytes: u64,
        read_only: OwnedFd,
        read_write: OwnedFd,
    ) -> Result<(), DeviceError> {
        let message = ToNode::PublishChunk { chunk, device, bytes };
        self.control
            .send(message, vec![read_only, read_write])
            .map_err(|closed| DeviceError::Refused { what: closed.to_string() })
    }

    fn withdraw_chunk(&self, chunk: ChunkId) {
        if self.control.send(ToNode::WithdrawChunk { chunk }, Vec::new()).is_err() {
            tracing::debug!(?chunk, "the node has ended before it heard that a chunk went back");
        }
    }

    fn wanted(&self) {
        self.wakeups.wake_reader();
    }
}

impl Transport {
    /// Takes in all notices of peers about leases, and how far they have read. A release does not wake a
    /// sleeping owner, so code that needs an up-to-date lease table calls this first.
    pub(crate) fn take_in_returns(&self) {
        let turn = Turn::begin();
        for link in self.links.all().iter().filter(|link| !link.is_broken()) {
            let rings = self.return_rings(link);
            rings.drain_and_settle();
            rings.retire_in_flight(true);
        }
        drop(turn);
        self.memory.close_emptied();
    }

    /// Does the same as [`take_in_returns`](Self::take_in_returns) for the last time, and also waits for the
    /// closing that the reader is about to do.
    pub(crate) fn take_in_last_returns(&self) {
        self.take_in_returns();
        self.memory.close_emptied_with_all(LAST_RETURNS);
    }

    /// Returns the return rings to and from the link's peer.
    #[inline]
    pub(super) fn return_rings<'a>(&'a self, link: &'a Arc<Link>) -> ReturnRings<'a> {
        ReturnRings { transport: self, link }
    }
}

/// The return rings to and from one peer.
pub(super) struct ReturnRings<'a> {
    pub(super) transport: &'a Transport,
    pub(super) link: &'a Arc<Link>,
}

impl ReturnRings<'_> {
    /// Posts an entry to the return ring. Room was reserved, because every lease is counted from the moment
    /// it is taken.
    pub(super) fn post(&self, notice: Entry) {
        #[cfg(any(test, feature = "testing"))]
        if self.transport.lifecycle.is_abandoned() {
            return;
        }
        let due = match self.link.post(notice) {
            Ok(Some(due)) => due,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(peer = %self.link.peer, %error, "a lease could not be given back; the peer's ring is wrong");
                self.transport.give_up(self.link);
                return;
            }
        };
        fault::point("lease.released");
        self.transport.publish_soon(self.link, due);
    }

    /// Does the same as [`post`](Self::post), and the notice is visible to the peer when this
    /// returns. It is for notices that have to be visible before a cursor is. It does not wait for another
    /// thread that may be about to publish the ring.
    pub(super) fn post_now(&self, notice: Entry) {
        self.post(notice);
        #[cfg(any(test, feature = "testing"))]
        if self.transport.lifecycle.is_abandoned() {
            return;
        }
        self.link.publish_notices();
    }

    /// Posts the hold on a third process's memory, visible at once. So it is visible before the cursor moves
    /// past the frame that brought the lease, and before the forwarder releases its own (LEASE-3).
    pub(super) fn post_hold(&self, id: LeaseId, by: ProcessId) {
        self.post_now(entry::hold(id, by));
    }

    /// Handles everything that the peer has posted, and settles holds that this left open. Returns true if
    /// there was anything.
    pub(super) fn drain_and_settle(&self) -> bool {
        let found = self.drain();
        self.transport.settle_if_open() || found
    }

    /// Handles everything that the peer has posted; returns true if there was anything.
    pub(super) fn drain(&self) -> bool {
        match self.link.drain_notices(|entry| self.handle(entry)) {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(peer = %self.link.peer, %error, "a return ring is corrupt");
                self.transport.counters.count_rejected();
                self.transport.give_up(self.link);
                true
            }
        }
    }

    /// Handles a notice. Returns whether it says that the ring continues in other memory.
    fn handle(&self, entry: &Entry) -> bool {
        let mut moved = false;
        let result =
            entry::parse(entry, self.link.peer).map_err(|error| error.to_string()).and_then(|notice| {
                match notice {
                    Notice::Release { chunk, entry, generation, uses } => {
                        let id = entry::lease_id(self.transport.me, chunk, entry, generation);
                        let released = match self.never_over(self.link.peer, &uses) {
                            Some(never) => Err(never),
                            None => self.transport.memory.pool_of(id).and_then(|pool| {
                                pool.release(id, self.link.peer, &uses).map_err(|error| error.to_string())
                            }),
                        };
                        let (given, settled) = released.inspect_err(|_| self.link.uncount_refused())?;
                        if !settled {
                            self.transport.memory.note_unsettled();
                        }
                        fault::point("lease.taken");
                        self.link.count_given(given);
                        Ok(())
                    }
                    Notice::Hold { chunk, entry, generation, by } => {
                        let id = entry::lease_id(self.transport.me, chunk, entry, generation);
                        if self.link.forwarded() >= MAX_FORWARDED {
                            // MBX-2: the peer could never give them all back. The reader gives the link up.
                            self.link.break_off();
                            return Err("it took more leases than its return ring has room for".into());
                        }
                        let held = self.transport.memory.pool_of(id).and_then(|pool| {
                            pool.hold(id, self.link.peer, by).map_err(|error| error.to_string())
                        });
                        if !held.inspect_err(|_| self.link.count_refused(1))? {
                            self.transport.memory.note_unsettled();
                        }
                        self.link.count_forwarded();
                        Ok(())
                    }
                    Notice::Forward { chunk, entry, generation, to } => {
                        self.note_forward(entry::lease_id(self.transport.me, chunk, entry, generation), to)
                    }
                    Notice::Rejected { end } => {
                        self.take_back(end);
                        Ok(())
                    }
                    Notice::Moved => {
                        moved = true;
                        Ok(())
                    }
                }
            });
        if let Err(error) = result {
            self.transport.counters.count_rejected();
            // A hold may follow from another process's lie.
            self.transport.note_refused(
                self.link,
                Fault::Anybodys,
                "a notice about a lease was refused",
                &error,
            );
        }
        moved
    }

    /// Returns the error if a use of `holder` would never be over (WIRE-1). The lease then stays until its
    /// holder ends.
    fn never_over(&self, holder: ProcessId, uses: &[Ticket]) -> Option<String> {
        let page = self.transport.domain.page_of(holder)?;
        let Ticket { slot, value, .. } = uses.iter().find(|of| !page.is_promised(of.slot, of.value))?;
        Some(format!(
            "memory came back that is used until clock {slot} shows {value}, which was not promised"
        ))
    }

    /// Takes back the grants in the frame that ends at `end`, which the peer could not read.
    fn take_back(&self, end: u64) {
        let Some(granted) = self.link.take_grants(end) else { return };
        for id in granted {
            let released =
                self.transport.memory.pool_of(id).ok().map(|pool| pool.release(id, self.link.peer, &[]));
            match released {
                // Also if the peer has given it back itself, against the protocol: it was counted once.
                None => self.link.return_grants(1),
                Some(Ok((given, settled))) => {
                    if !settled {
                        self.transport.memory.note_unsettled();
                    }
                    self.link.count_given(given);
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "the grant of a rejected frame was not in the lease table");
                    continue;
                }
            };
        }
    }

    /// Drops the kept leases of frames that the peer has passed. The cursor is read before the return ring is
    /// drained, so that the rejection of a frame is seen before its grants are forgotten.
    pub(super) fn retire_in_flight(&self, heads: bool) -> bool {
        let Some(consumed) = self.link.consumed_if_due(heads) else { return false };
        let consumed = match consumed {
            Ok(consumed) => consumed,
            Err(error) => {
                tracing::error!(peer = %self.link.peer, %error, "a peer's cursor is corrupt");
                self.transport.counters.count_rejected();
                self.transport.give_up(self.link);
                return true;
            }
        };
        // Between the two locks, and after the cursor was read: the peer posts a rejection before it passes
        // the frame.
        let drained = self.drain_and_settle();
        let passed = self.link.take_passed(consumed);
        // Dropped outside of the lock, because leases go with it, on other links too.
        drained || !passed.is_empty()
    }
}
