//! The limit on how many leases of one process another may hold (MBX-2), and its error texts.
//!
//! A sender whose message lacks leases waits as for room in a mailbox, but no handler makes that room: the
//! process that keeps the tensors has to drop some. So the errors of the sender and of a receiver that waits
//! in vain, the log, and the console all name the limit.
//!
//! `outgoing` and `incoming` use it when they meet the limit, and so do the texts of errors. **Locks.** None.
//! **On a crash** of the holder its leases come back (LEASE-4).

use super::link::Link;
use super::{NotNow, Route, TransmitError, Transport};
use crate::ids::ProcessId;
use crate::limits::{MAX_FORWARDED, MAX_GRANTED, MAX_TENSORS};

/// The error of a process that holds as many tensors of another as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{holder} holds {leases} tensors of {owner}, of {most} that one process may hold of another: it has to drop some, or to keep \
     copies of small ones (`.clone()` in PyTorch, `.copy()` in NumPy, `to_vec` in Rust); `tensorpost holders` shows who holds what"
)]
pub struct LeaseLimit {
    /// The process that holds them.
    pub holder: ProcessId,
    /// The process whose memory they are in.
    pub owner: ProcessId,
    /// How many it holds.
    pub leases: usize,
    /// How many it may hold.
    pub most: usize,
}

impl Link {
    /// Returns whether a message to the peer may lack leases.
    pub(crate) fn may_lack_leases(&self) -> bool {
        self.granted() + MAX_TENSORS > MAX_GRANTED
    }
}

impl LeaseLimit {
    /// Returns the limit for leases of `owner`'s memory that the link's peer holds.
    fn granted(owner: ProcessId, link: &Link) -> Self {
        LeaseLimit { holder: link.peer, owner, leases: link.granted(), most: MAX_GRANTED }
    }

    /// Logs now and then that claims of process `me` fail for lack of leases.
    #[cold]
    pub(super) fn note_lack(me: ProcessId, link: &Link, error: &TransmitError) {
        if matches!(error, TransmitError::NotNow(NotNow::LeasesOut)) && link.tells_limit() {
            tracing::warn!("messages to {} wait: {}", link.peer, Self::granted(me, link));
        }
    }

    /// Logs now and then that a frame waits because process `me` holds too many leases. Called when the
    /// owner's ring has no room for that many more holds.
    #[cold]
    pub(super) fn note_no_room_for_holds(me: ProcessId, from: ProcessId, owners: &Link, holds: usize) {
        if owners.held() + 2 * holds < MAX_FORWARDED || !owners.tells_limit() {
            return;
        }
        let (owner, leases) = (owners.peer, owners.held());
        let limit = LeaseLimit { holder: me, owner, leases, most: MAX_FORWARDED };
        tracing::warn!("messages of {from} with tensors of {owner} wait: {limit}");
    }
}

impl Transport {
    /// Returns the limit, if it is what stops a message that found room in the mailbox and none on the way.
    pub(crate) fn leases_lacked(&self, route: &Route) -> Option<LeaseLimit> {
        match route {
            Route::Long(link, location, _) if link.may_lack_leases() && link.has_credit(location.index) => {
                Some(LeaseLimit::granted(self.me, link))
            }
            _ => None,
        }
    }

    /// Returns the limit, if this process holds as many tensors of another as it may. Then that process sends
    /// it no more.
    pub fn held_to_the_limit(&self) -> Option<LeaseLimit> {
        self.links.all().iter().find(|link| link.held() + MAX_TENSORS > MAX_GRANTED).map(|link| {
            let (holder, owner, leases) = (self.me, link.peer, link.held());
            LeaseLimit { holder, owner, leases, most: MAX_GRANTED }
        })
    }
}
