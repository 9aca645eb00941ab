//! All links of a process.
//!
//! Used by every send (the link to a peer), by the reader at every look (all of them), and by whoever tells all peers.
//!
//! **Invariants.** A slot has one link that anything is sent over. Links to earlier lives of it stay beside that until they
//! are read to the end. A link that was taken out is dropped by whoever has it last.
//!
//! **Locks.** One, for reading on the way of a message. Inside of it, for writing: whatever `make` takes in
//! [`Links::replace`], see `connect`.
//!
//! **On a crash** of a peer its link stays until the reader parts with it. **On cancellation** nothing happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::Link;
use crate::ids::ProcessId;
use crate::limits::MAX_PROCESSES;

/// The links, found by peer, and as a list that costs nothing to take: the reader takes it at every look.
pub(super) struct Links {
    state: RwLock<State>,
    /// The number of the last half that was made.
    halves: AtomicU64,
    /// How many links have notices that were posted and are not published.
    with_unpublished_notices: Arc<AtomicUsize>,
}

struct State {
    /// By the peer's slot.
    by_slot: Vec<Option<Arc<Link>>>,
    /// To earlier lives of slots, still to be read to the end.
    leaving: Vec<Arc<Link>>,
    /// Those of both, in their order.
    all: Arc<[Arc<Link>]>,
}

impl Links {
    pub(super) fn new() -> Self {
        let state = State { by_slot: vec![None; MAX_PROCESSES], leaving: Vec::new(), all: Arc::default() };
        Links {
            state: RwLock::new(state),
            halves: AtomicU64::new(0),
            with_unpublished_notices: Arc::default(),
        }
    }

    /// A number for the half of a new link.
    pub(super) fn number_half(&self) -> u64 {
        self.halves.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What a new link counts itself in while it has notices that are not published.
    pub(super) fn unpublished_notices(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.with_unpublished_notices)
    }

    /// Whether a notice was posted on any link and is not published.
    pub(super) fn have_unpublished_notices(&self) -> bool {
        self.with_unpublished_notices.load(Ordering::Acquire) > 0
    }

    /// The link in the slot of `peer`, which may be that of another life of the slot.
    pub(super) fn in_slot_of(&self, peer: ProcessId) -> Option<Arc<Link>> {
        self.state.read().by_slot.get(peer.slot()).and_then(Clone::clone)
    }

    /// The link to `peer`.
    pub(super) fn to(&self, peer: ProcessId) -> Option<Arc<Link>> {
        let state = self.state.read();
        let current = state.by_slot.get(peer.slot()).and_then(Option::as_ref);
        current.into_iter().chain(&state.leaving).find(|link| link.peer == peer).map(Arc::clone)
    }

    /// All links, as they are now.
    pub(super) fn all(&self) -> Arc<[Arc<Link>]> {
        Arc::clone(&self.state.read().all)
    }

    /// Whether a sender waits for a peer, also where the link is still being made.
    pub(super) fn are_waited_for(&self) -> bool {
        self.all().iter().any(|link| !link.is_broken() && link.has_waiting())
    }

    /// Whether on an open link a frame lies unread, or something waits to go out.
    pub(super) fn are_busy(&self) -> bool {
        self.all().iter().any(|link| link.is_open() && link.is_busy())
    }

    /// The link in the slot of `peer` as `make` leaves it, given the one that is there, which is kept among
    /// [`all`](Self::all) until it is [removed](Self::remove). Everybody else sees the link that was there before, or the
    /// result. `None` where the slot cannot be, or `make` returned none; then nothing changes.
    pub(super) fn replace(
        &self,
        peer: ProcessId,
        make: impl FnOnce(Option<&Arc<Link>>) -> Option<Arc<Link>>,
    ) -> Option<Arc<Link>> {
        let mut state = self.state.write();
        let place = state.by_slot.get_mut(peer.slot())?;
        let link = make(place.as_ref())?;
        if place.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &link)) {
            let before = place.replace(Arc::clone(&link));
            state.leaving.extend(before);
            state.gather();
        }
        Some(link)
    }

    /// Takes a link out; whoever has it goes on with it.
    pub(super) fn remove(&self, link: &Link) {
        let is_it = |known: &Arc<Link>| std::ptr::eq(Arc::as_ptr(known), link);
        let mut state = self.state.write();
        if let Some(place) = state.by_slot.get_mut(link.peer.slot()) {
            place.take_if(|known| is_it(known));
        }
        state.leaving.retain(|known| !is_it(known));
        state.gather();
    }
}

impl State {
    fn gather(&mut self) {
        self.all = self.by_slot.iter().flatten().chain(&self.leaving).map(Arc::clone).collect();
    }
}
