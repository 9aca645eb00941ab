//! All links of a process.

use std::sync::Arc;

use parking_lot::RwLock;

use super::Link;
use crate::ids::ProcessId;
use crate::limits::MAX_PROCESSES;

/// The links, found by peer, and as a list that costs nothing to take: the reader takes it at every look.
pub(super) struct Links(RwLock<State>);

struct State {
    /// By the peer's slot.
    by_slot: Vec<Option<Arc<Link>>>,
    /// Those of `by_slot`, in its order.
    all: Arc<[Arc<Link>]>,
}

impl Links {
    pub(super) fn new() -> Self {
        Links(RwLock::new(State { by_slot: vec![None; MAX_PROCESSES], all: Arc::default() }))
    }

    /// The link in the slot of `peer`, which may be that of another life of the slot.
    pub(super) fn in_slot_of(&self, peer: ProcessId) -> Option<Arc<Link>> {
        self.0.read().by_slot.get(peer.slot()).and_then(Clone::clone)
    }

    /// All links, as they are now.
    pub(super) fn all(&self) -> Arc<[Arc<Link>]> {
        Arc::clone(&self.0.read().all)
    }

    /// The link in the slot of `peer` as `make` leaves it, given the one that is there. Everybody else sees the link that
    /// was there before, or the result. `None` where the slot cannot be, or `make` returned none; then nothing changes.
    pub(super) fn replace(
        &self,
        peer: ProcessId,
        make: impl FnOnce(Option<&Arc<Link>>) -> Option<Arc<Link>>,
    ) -> Option<Arc<Link>> {
        let mut state = self.0.write();
        let place = state.by_slot.get_mut(peer.slot())?;
        let link = make(place.as_ref())?;
        if place.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &link)) {
            *place = Some(Arc::clone(&link));
            state.all = state.by_slot.iter().flatten().map(Arc::clone).collect();
        }
        Some(link)
    }

    /// Takes a link out; whoever has it goes on with it.
    pub(super) fn remove(&self, link: &Link) {
        let mut state = self.0.write();
        let place = state.by_slot.get_mut(link.peer.slot());
        if let Some(place) = place
            && place.as_ref().is_some_and(|known| std::ptr::eq(&raw const **known, link))
        {
            *place = None;
            state.all = state.by_slot.iter().flatten().map(Arc::clone).collect();
        }
    }
}
