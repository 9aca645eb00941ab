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
    /// To earlier lives of slots, still to be read to the end.
    leaving: Vec<Arc<Link>>,
    /// Those of both, in their order.
    all: Arc<[Arc<Link>]>,
}

impl Links {
    pub(super) fn new() -> Self {
        Links(RwLock::new(State {
            by_slot: vec![None; MAX_PROCESSES],
            leaving: Vec::new(),
            all: Arc::default(),
        }))
    }

    /// The link in the slot of `peer`, which may be that of another life of the slot.
    pub(super) fn in_slot_of(&self, peer: ProcessId) -> Option<Arc<Link>> {
        self.0.read().by_slot.get(peer.slot()).and_then(Clone::clone)
    }

    /// The link to `peer`.
    pub(super) fn to(&self, peer: ProcessId) -> Option<Arc<Link>> {
        let state = self.0.read();
        let current = state.by_slot.get(peer.slot()).and_then(Option::as_ref);
        current.into_iter().chain(&state.leaving).find(|link| link.peer == peer).map(Arc::clone)
    }

    /// All links, as they are now.
    pub(super) fn all(&self) -> Arc<[Arc<Link>]> {
        Arc::clone(&self.0.read().all)
    }

    /// The link in the slot of `peer` as `make` leaves it, given the one that is there, which is kept among
    /// [`all`](Self::all) until it is [removed](Self::remove). Everybody else sees the link that was there before, or the
    /// result. `None` where the slot cannot be, or `make` returned none; then nothing changes.
    pub(super) fn replace(
        &self,
        peer: ProcessId,
        make: impl FnOnce(Option<&Arc<Link>>) -> Option<Arc<Link>>,
    ) -> Option<Arc<Link>> {
        let mut state = self.0.write();
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
        let mut state = self.0.write();
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
