//! Leases on memory of a third process: the notice to their owner before they are passed on, and the owner's
//! handling of it.
//!
//! A process that passes a lease on posts a notice to the owner. The owner can see it before the frame, and
//! so before the hold that the frame leads to, is visible to any process. Room for it is taken with the
//! claim, so a send never waits in the middle. Messages without leases on others' memory need none of this.
//!
//! The owner reads rings one after the other, so it may read the hold before the notice. Such a hold stays
//! unproven until every ring was drained once more ([`Transport::settle_holds`]); the [lease
//! table](crate::lease::table) keeps the counts.
//!
//! `outgoing` uses it on the one side, `returns` and `incoming` on the other.
//!
//! **Invariants.** A forward is visible to the owner before its frame is written. WIRE-1: a hold gives its
//! process nothing before it is proven. MBX-2: a process has at most `MAX_FORWARDS` forwards that an owner
//! has not read.
//!
//! **Locks.** `notices_out` of each owner's link, alone; for settling, the locks of a drain, and none across
//! it.
//!
//! **On a crash** of the forwarder after its notice, the forward is removed when the forwarder is reclaimed.
//! **On cancellation** of a send its claim gives the room back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::entry;
use super::link::{Fault, Forwards, Link};
use super::outgoing::FrameSender;
use super::returns::ReturnRings;
use super::{NotNow, Transport, wake_reasons};
use crate::fault;
use crate::ids::ProcessId;
use crate::lease::table::Settled;
use crate::lease::{Lease, LeaseId};
use crate::message::codec::Encoded;

impl FrameSender<'_> {
    /// Takes room to tell the owners of the leases that a frame to `link` passes on, all or nothing.
    pub(super) fn claim_forwards(&self, encoded: &Encoded) -> Result<Forwards, NotNow> {
        let mut wanted: SmallVec<[(Arc<Link>, usize); 1]> = SmallVec::new();
        for owner in encoded.leases.iter().filter_map(|(lease, _)| self.forwarded_owner(lease)) {
            match wanted.iter_mut().find(|(known, _)| known.peer == owner) {
                Some((_, count)) => *count += 1,
                // If there is no link to the owner, it has ended, and nobody counts its leases.
                None => wanted.extend(
                    self.transport.links.to(owner).filter(|link| !link.is_past()).map(|link| (link, 1)),
                ),
            }
        }
        let mut claimed = Forwards::default();
        for (owner, count) in wanted {
            if !owner.reserve_forwards(count) {
                // The owner may sleep, and no other notice posted to it would wake it.
                owner.ring(wake_reasons::FRAMES);
                self.link.lack_forwards(&owner, count);
                return Err(NotNow::RingFull);
            }
            claimed.0.push((owner, count));
        }
        Ok(claimed)
    }

    /// Tells the owners. They can see it when this returns, which is before the frame is written.
    pub(super) fn say_forwards(&self, mut forwards: Forwards, leases: &[Lease]) {
        for (owner, count) in std::mem::take(&mut forwards.0) {
            let owned = leases.iter().filter(|lease| lease.id().chunk.owner == owner.peer);
            let notices = owned.map(|lease| entry::forward(lease.id(), self.link.peer));
            #[cfg(any(test, feature = "testing"))]
            if self.transport.lifecycle.is_abandoned() {
                continue;
            }
            if let Err(error) = owner.post_forwards(count, notices) {
                tracing::error!(peer = %owner.peer, %error, "an owner could not be told of a forward; its ring is wrong");
                self.transport.give_up(&owner);
            }
            fault::point("transport.send.forwarded");
        }
    }

    /// Returns the owner of a frame's lease, if that is a third process.
    fn forwarded_owner(&self, lease: &Lease) -> Option<ProcessId> {
        let owner = lease.id().chunk.owner;
        (lease.pool().is_none() && owner != self.link.peer && owner != self.transport.me).then_some(owner)
    }
}

impl ReturnRings<'_> {
    /// Notes that the peer passes on a lease on this process's memory.
    pub(super) fn note_forward(&self, id: LeaseId, to: ProcessId) -> Result<(), String> {
        let pool = self.transport.memory.pool_of(id)?;
        // A dead receiver sends no hold any more that could take it.
        if self.transport.lifecycle.exited.is_reclaimed(to) {
            return Ok(());
        }
        pool.forward(id, self.link.peer, to).map_err(|error| error.to_string())?;
        // Checked after the forward was counted. The note comes before the eviction, so one of the two
        // removes the forward.
        if self.transport.lifecycle.exited.is_reclaimed(to) {
            pool.forget_forwards(id, to);
        }
        Ok(())
    }
}

impl Transport {
    /// Settles holds that a drain left open; returns true if there were any. It must not be called under a
    /// link's `notices_in`.
    pub(super) fn settle_if_open(&self) -> bool {
        let open = self.memory.take_unsettled();
        if open {
            self.settle_holds();
        }
        open
    }

    /// Drains every ring, and decides on the holds that were unproven before: an honest forwarder has posted
    /// its notice by then.
    pub(super) fn settle_holds(&self) {
        let pools = self.memory.pools();
        let passes: SmallVec<[_; 4]> = pools.iter().map(|pool| pool.begin_pass()).collect();
        if passes.iter().any(Option::is_some) {
            // The next drain settles holds that this one leaves open; the mark is set.
            for link in self.links.all().iter() {
                self.return_rings(link).drain();
            }
        }
        for (pool, pass) in pools.iter().zip(passes) {
            pool.end_pass(pass).into_iter().for_each(|settled| self.count_settled(settled));
        }
    }

    fn count_settled(&self, settled: Settled) {
        match settled {
            Settled::Refused(process, holds, error) => {
                self.counters.rejected.fetch_add(u64::from(holds), Ordering::Relaxed);
                if let Some(link) = self.links.to(process) {
                    self.note_refused(&link, Fault::Anybodys, "a notice about a lease was refused", &error);
                    (0..holds).for_each(|_| link.uncount_forwarded());
                    link.count_refused(holds as usize);
                }
            }
            Settled::GivenBack(process, given) => {
                if let Some(link) = self.links.to(process) {
                    link.count_given(given);
                }
            }
            // For the pool.
            Settled::Emptied(_) => {}
        }
    }
}
