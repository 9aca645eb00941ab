//! Leases back to their owners, and the owners' side of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;

use super::Transport;
use super::entry::{self, Notice};
use super::link::{InFlight, Link};
use super::wake_reasons;
use crate::clock::turn::Turn;
use crate::clock::{Ticket, turn};
use crate::device::{Access, ChunkMapping, DeviceError};
use crate::fault;
use crate::ids::{ChunkId, DeviceId};
use crate::lease::pool::Surroundings;
use crate::lease::{LeaseId, Pool, Returns, Writers};
use crate::limits::MAX_FORWARDED;
use crate::transport::control_channel::ToNode;
use crate::transport::ring::Entry;

/// So many frames under way are remembered before it is looked which of them the peer has passed.
const REMEMBERED: usize = 64;

/// How long a process that ends waits for its own reader to close what was given back.
const LAST_RETURNS: Duration = Duration::from_millis(200);

impl Returns for Transport {
    fn release(&self, id: LeaseId, uses: &[Ticket]) {
        fault::point("lease.release");
        let Some(link) = self.link(id.chunk.owner).filter(|link| !link.has_exited()) else {
            return; // The owner has ended: there is no lease table any more.
        };
        link.held.fetch_sub(1, Ordering::Relaxed);
        self.post_notice(&link, entry::release(id, uses));
    }

    fn writable(&self, id: LeaseId) -> Result<Arc<ChunkMapping>, DeviceError> {
        self.map_now(id.chunk, Access::ReadWrite)
    }

    fn writers(&self) -> &Writers {
        &self.writers
    }
}

impl Surroundings for Transport {
    fn drain_returns(&self) {
        for link in self.links.all().iter() {
            self.drain_link_returns(link);
        }
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

    fn wanted(&self) {
        self.wake_reader();
    }
}

impl Transport {
    /// Takes in what peers have posted about leases, and what they have passed. A release does not wake an owner that
    /// sleeps, so whoever wants to know how things stand does this before he looks.
    pub(crate) fn take_in_returns(&self) {
        let turn = Turn::begin();
        for link in self.links.all().iter().filter(|link| !link.is_broken()) {
            self.drain_link_returns(link);
            self.retire_in_flight(link, true);
        }
        drop(turn);
        let pools = self.pools.read().clone();
        pools.iter().for_each(|pool| pool.close_emptied());
    }

    /// [`take_in_returns`](Self::take_in_returns) for the last time: what the reader is about to do is waited for too.
    pub(crate) fn take_in_last_returns(&self) {
        self.take_in_returns();
        let pools = self.pools.read().clone();
        pools.iter().for_each(|pool| pool.close_emptied_with_all(LAST_RETURNS));
    }

    /// Posts an entry to the return ring. Room was reserved: every lease is counted from the moment it is taken.
    pub(super) fn post_notice(&self, link: &Arc<Link>, notice: Entry) {
        #[cfg(any(test, feature = "testing"))]
        if self.is_abandoned() {
            return;
        }
        let mut returns = link.returns_out.lock();
        let Some(ring) = returns.as_mut() else { return };
        if let Err(error) = ring.push(notice) {
            drop(returns);
            tracing::error!(peer = %link.peer, %error, "a lease could not be given back; the peer's ring is wrong");
            self.give_up(link);
            return;
        }
        drop(returns);
        fault::point("lease.released");
        self.publish_soon(link, wake_reasons::ROOM);
    }

    /// [`post_notice`](Self::post_notice), visible to the peer when this returns: something that has to be seen before a
    /// cursor is. Whoever else may be about to publish the ring is not waited for.
    pub(super) fn post_notice_now(&self, link: &Arc<Link>, notice: Entry) {
        self.post_notice(link, notice);
        #[cfg(any(test, feature = "testing"))]
        if self.is_abandoned() {
            return;
        }
        if let Some(ring) = link.returns_out.lock().as_mut() {
            ring.publish();
        }
    }

    /// Whether a hold on the peer's memory can be posted now, with room left for its release and for those of all leases
    /// that the peer may still grant (LEASE-2).
    pub(super) fn has_room_for_holds(&self, link: &Link, holds: usize) -> bool {
        let mut returns = link.returns_out.lock();
        let Some(ring) = returns.as_mut() else { return false };
        let unconsumed = ring.unconsumed().unwrap_or(u64::MAX);
        let held = link.held.load(Ordering::Relaxed) as u64;
        unconsumed.saturating_add(held + 2 * holds as u64 + 1) <= MAX_FORWARDED as u64
    }

    /// Handles what the peer has posted; true if there was anything.
    pub(super) fn drain_link_returns(&self, link: &Arc<Link>) -> bool {
        let mut found = false;
        let mut returns = link.returns_in.lock();
        let Some(ring) = returns.as_mut() else { return false };
        loop {
            match ring.pop() {
                Ok(Some(entry)) => {
                    found = true;
                    self.handle_notice(link, &entry);
                }
                Ok(None) => break,
                Err(error) => {
                    drop(returns);
                    tracing::error!(peer = %link.peer, %error, "a return ring is corrupt");
                    self.counters.rejected.fetch_add(1, Ordering::Relaxed);
                    self.give_up(link);
                    return true;
                }
            }
        }
        if ring.publish_head() {
            link.ring(wake_reasons::ROOM);
        }
        found
    }

    fn handle_notice(&self, link: &Arc<Link>, entry: &Entry) {
        let result =
            entry::parse(entry, link.peer).map_err(|error| error.to_string()).and_then(
                |notice| match notice {
                    Notice::Release { chunk, entry, generation, uses } => {
                        let id = entry::lease_id(self.me, chunk, entry, generation);
                        let released = self.pool_of(id)?.release(id, link.peer, &uses);
                        let was_forwarded = released.map_err(|error| error.to_string())?;
                        let counted = if was_forwarded { &link.forwarded } else { &link.granted };
                        counted.fetch_sub(1, Ordering::Relaxed);
                        fault::point("lease.taken");
                        link.released.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    }
                    Notice::Hold { chunk, entry, generation } => {
                        let id = entry::lease_id(self.me, chunk, entry, generation);
                        if link.forwarded.load(Ordering::Relaxed) >= MAX_FORWARDED {
                            // MBX-2: it could never give them all back. The reader gives the link up.
                            link.break_off();
                            return Err("it took more leases than its return ring has room for".into());
                        }
                        self.pool_of(id)?.hold(id, link.peer).map_err(|error| error.to_string())?;
                        link.forwarded.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    }
                    Notice::Rejected { end } => {
                        self.take_back(link, end);
                        Ok(())
                    }
                },
            );
        if let Err(error) = result {
            self.counters.rejected.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(peer = %link.peer, error, "a notice about a lease was refused");
        }
    }

    /// The peer could not read the frame that ends at `end`: the grants in it are void.
    fn take_back(&self, link: &Link, end: u64) {
        let granted = {
            let mut out = link.out.lock();
            let Some(out) = out.as_mut() else { return };
            let Some(frame) = out.in_flight.iter_mut().find(|frame| frame.end == end) else { return };
            std::mem::take(&mut frame.granted)
        };
        for id in granted {
            let released = self.pool_of(id).ok().map(|pool| pool.release(id, link.peer, &[]));
            match released {
                Some(Ok(true)) => link.forwarded.fetch_sub(1, Ordering::Relaxed),
                // Also where the peer has given it back itself, against the protocol: it was counted once.
                Some(Ok(false)) | None => link.granted.fetch_sub(1, Ordering::Relaxed),
                Some(Err(error)) => {
                    tracing::error!(%error, "the grant of a rejected frame was not in the lease table");
                    continue;
                }
            };
        }
    }

    /// Drops the kept leases of frames that the peer has passed. The cursor is read before the return ring is drained, so
    /// that the rejection of a frame is seen before its grants are forgotten.
    pub(super) fn retire_in_flight(&self, link: &Arc<Link>, heads: bool) -> bool {
        let consumed = {
            let mut out = link.out.lock();
            let Some(out) = out.as_mut() else { return false };
            // What is not kept is only remembered, should the peer reject a frame: that has time.
            if out.in_flight.is_empty() || !(heads || out.forwards > 0 || out.in_flight.len() >= REMEMBERED) {
                return false;
            }
            out.ring.consumed()
        };
        let consumed = match consumed {
            Ok(consumed) => consumed,
            Err(error) => {
                tracing::error!(peer = %link.peer, %error, "a peer's cursor is corrupt");
                self.counters.rejected.fetch_add(1, Ordering::Relaxed);
                self.give_up(link);
                return true;
            }
        };
        let drained = self.drain_link_returns(link);
        let mut passed = Vec::new();
        {
            let mut out = link.out.lock();
            let Some(out) = out.as_mut() else { return false };
            while out.in_flight.front().is_some_and(|frame| frame.end <= consumed) {
                passed.extend(out.in_flight.pop_front());
            }
            out.forwards -= passed.iter().filter(|frame: &&InFlight| !frame.kept.is_empty()).count();
            link.forwards.store(out.forwards > 0, Ordering::Release);
        }
        // Dropped outside of the lock: this lets leases go, on other links too.
        drained || !passed.is_empty()
    }

    pub(super) fn pool_of(&self, id: LeaseId) -> Result<Arc<Pool>, String> {
        let pool = self.pools.read().iter().find(|pool| pool.has_chunk(id.chunk)).map(Arc::clone);
        pool.ok_or_else(|| format!("chunk {} is not in any pool of this process", id.chunk.index))
    }

    /// Publishes at the end of the turn, or now where no turn is open. `due` is what for, see [`wake_reasons`].
    pub(super) fn publish_soon(&self, link: &Arc<Link>, due: u8) {
        link.due.fetch_or(due, Ordering::AcqRel);
        if !turn::at_end(self, || self.arc()) {
            self.publish_if_due(link);
        }
    }

    /// Publishes if that was put off.
    pub(super) fn publish_if_due(&self, link: &Arc<Link>) {
        self.publish_all(std::slice::from_ref(link));
    }

    /// Publishes what was put off on any of `links`: makes everything committed there visible to the peers, and wakes those
    /// that have to be.
    ///
    /// All returns are to be seen before any frame: a message that says that its sender has dropped something, or that a
    /// third process is told of by its receiver, does not overtake the drop. (The other way round nothing needs an order: a
    /// lease that a frame takes along is kept until the peer has passed the frame.)
    pub(super) fn publish_all(&self, links: &[Arc<Link>]) {
        // More than that are in few turns.
        let mut due: SmallVec<[(&Link, u8); 16]> = SmallVec::new();
        for link in links {
            // The load first: most links of a turn have nothing due, and a swap takes the cache line for itself. What was
            // committed before the swap is published behind it, by whichever thread.
            if link.due.load(Ordering::Acquire) == 0 {
                continue;
            }
            let what = link.due.swap(0, Ordering::AcqRel);
            if what != 0 {
                due.push((link, what));
            }
        }
        #[cfg(any(test, feature = "testing"))]
        if self.is_abandoned() {
            return;
        }
        for (link, _) in &due {
            if let Some(ring) = link.returns_out.lock().as_mut() {
                ring.publish();
            }
        }
        for (link, _) in &due {
            if let Some(out) = link.out.lock().as_mut() {
                out.ring.publish();
            }
        }
        for (link, what) in due {
            self.tell(link, what);
        }
    }

    /// Wakes the peer for what was published, if it has to be.
    fn tell(&self, link: &Link, due: u8) {
        fault::point("transport.send.published");
        let (ring, deferred) = wake_reasons::split(due);
        if deferred != 0 {
            link.defer_wakeup(deferred);
            self.defer_wakeup();
        }
        if ring != 0 {
            // Though nothing may be new to see: what was published early has not rung yet.
            link.ring(ring);
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
