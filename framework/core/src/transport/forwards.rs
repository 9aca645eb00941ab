//! Leases on memory of a third process: what their owner is told before they are passed on, and what it makes
//! of that.
//!
//! Who passes a lease on posts a notice to its owner, which the owner can see before the frame, and so the
//! hold that the frame leads to, can be seen by anybody. Room for it is taken with the claim, so a send never
//! waits in the middle. A message with no leases of others has nothing to do with any of this.
//!
//! The owner reads rings one after the other, so it may read the hold before the notice. Such a hold stands
//! open until every ring was drained once more ([`Transport::settle_holds`]); the [lease
//! table](crate::lease::table) keeps the counts.
//!
//! Used by `outgoing` on the one side, by `returns` and `incoming` on the other.
//!
//! **Invariants.** A forward is visible to the owner before its frame is written. WIRE-1: a hold gives its
//! process nothing before it is proven. MBX-2: of forwards that an owner has not read, a process has no more
//! than `MAX_FORWARDS`.
//!
//! **Locks.** `notices_out` of each owner's link, alone; for settling, those of a drain, and none across it.
//!
//! **On a crash** of the forwarder behind its notice the count goes when it is reclaimed. **On cancellation**
//! of a send its claim gives the room back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::entry;
use super::link::{Fault, Link};
use super::outgoing::NotNow;
use super::{Transport, wake_reasons};
use crate::fault;
use crate::ids::ProcessId;
use crate::lease::table::{Given, Settled};
use crate::lease::{Lease, LeaseId};
use crate::message::codec::Encoded;

/// Room on the rings to the owners of what a frame passes on. Dropping it gives back what was not used.
#[derive(Debug, Default)]
pub(crate) struct Forwards(SmallVec<[(Arc<Link>, usize); 1]>);

impl Drop for Forwards {
    fn drop(&mut self) {
        for (owner, count) in &self.0 {
            owner.return_forwards(*count);
        }
    }
}

impl Transport {
    /// Takes room to tell the owners of what a frame to `link` passes on. All or nothing.
    pub(super) fn claim_forwards(&self, link: &Arc<Link>, encoded: &Encoded) -> Result<Forwards, NotNow> {
        let mut wanted: SmallVec<[(Arc<Link>, usize); 1]> = SmallVec::new();
        for owner in encoded.leases.iter().filter_map(|(lease, _)| self.forwarded_owner(link, lease)) {
            match wanted.iter_mut().find(|(known, _)| known.peer == owner) {
                Some((_, count)) => *count += 1,
                // Without a link to it the owner has ended, and nobody counts its leases.
                None => {
                    wanted.extend(self.links.to(owner).filter(|link| !link.is_past()).map(|link| (link, 1)))
                }
            }
        }
        let mut claimed = Forwards::default();
        for (owner, count) in wanted {
            if !owner.reserve_forwards(count) {
                // The owner may sleep: nothing else that is posted to it is worth waking it.
                owner.ring(wake_reasons::FRAMES);
                link.lack_forwards(&owner, count);
                return Err(NotNow::RingFull);
            }
            claimed.0.push((owner, count));
        }
        Ok(claimed)
    }

    /// Tells the owners, who can see it when this returns: before the frame is written.
    pub(super) fn say_forwards(&self, to: &Link, mut forwards: Forwards, leases: &[Lease]) {
        for (owner, count) in std::mem::take(&mut forwards.0) {
            let owned = leases.iter().filter(|lease| lease.id().chunk.owner == owner.peer);
            let notices = owned.map(|lease| entry::forward(lease.id(), to.peer));
            #[cfg(any(test, feature = "testing"))]
            if self.lifecycle.is_abandoned() {
                continue;
            }
            if let Err(error) = owner.post_forwards(count, notices) {
                tracing::error!(peer = %owner.peer, %error, "an owner could not be told of a forward; its ring is wrong");
                self.give_up(&owner);
            }
            fault::point("transport.send.forwarded");
        }
    }

    /// Whom a frame's lease belongs to, if that is a third process.
    fn forwarded_owner(&self, link: &Link, lease: &Lease) -> Option<ProcessId> {
        let owner = lease.id().chunk.owner;
        (lease.pool().is_none() && owner != link.peer && owner != self.me).then_some(owner)
    }

    /// The peer passes a lease on this process's memory on.
    pub(super) fn note_forward(&self, link: &Link, id: LeaseId, to: ProcessId) -> Result<(), String> {
        let pool = self.memory.pool_of(id)?;
        // Of the dead nothing comes any more that could take it.
        if self.lifecycle.exited.is_reclaimed(to) {
            return Ok(());
        }
        pool.forward(id, link.peer, to).map_err(|error| error.to_string())?;
        // Behind the count, as the note comes before the eviction: one of the two takes it out.
        if self.lifecycle.exited.is_reclaimed(to) {
            pool.forget_forwards(id, to);
        }
        Ok(())
    }

    /// Settles what a drain left open, if it did: true if there was anything. Not to be called under a link's
    /// `notices_in`.
    pub(super) fn settle_if_open(&self) -> bool {
        let open = self.memory.take_unsettled();
        if open {
            self.settle_holds();
        }
        open
    }

    /// Drains every ring, and decides on the holds that were unproven before: whoever forwarded them had said
    /// so by then.
    pub(super) fn settle_holds(&self) {
        let pools = self.memory.pools();
        let passes: SmallVec<[_; 4]> = pools.iter().map(|pool| pool.begin_pass()).collect();
        if passes.iter().any(Option::is_some) {
            // What is left open by this is for whoever drains next; the mark is set.
            for link in self.links.all().iter() {
                self.drain_link(link);
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
                    Self::count_given(&link, given);
                }
            }
            // For the pool.
            Settled::Emptied(_) => {}
        }
    }

    /// The peer has given a lease back.
    pub(super) fn count_given(link: &Link, given: Given) {
        match given {
            Given::Forwarded => link.uncount_forwarded(),
            Given::Granted => link.return_grants(1),
            Given::Refused => return link.uncount_refused(),
            Given::Later => return,
        }
        link.count_released();
    }
}
