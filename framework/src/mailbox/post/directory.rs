//! Where actors live, and names for them: questions to the node and their answers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::sync::oneshot;

use super::Office;
use crate::ids::ActorId;
use crate::mailbox::port::{Place, PortClosed, ToNode};

#[derive(Debug, Default)]
pub(super) struct Directory {
    /// Places that the node told; they replace what an address remembers (an actor can be restarted elsewhere).
    places: DashMap<ActorId, Option<Place>>,
    /// Whether there is any, so that a send need not look where nothing ever moved.
    moved: AtomicBool,
    next: AtomicU64,
    registrations: DashMap<u64, oneshot::Sender<Result<(), ActorId>>>,
    lookups: DashMap<u64, oneshot::Sender<Option<(ActorId, Place)>>>,
}

impl Directory {
    pub(super) fn actor(&self, actor: ActorId, place: Option<Place>) {
        self.places.insert(actor, place);
        // MOVED release: pairs with `place_of`, which sees the place where it sees this.
        self.moved.store(true, Ordering::Release);
    }

    pub(super) fn registered(&self, ticket: u64, result: Result<(), ActorId>) {
        if let Some((_, waiting)) = self.registrations.remove(&ticket) {
            // Whoever asked may have given up.
            let _ = waiting.send(result);
        }
    }

    pub(super) fn found(&self, ticket: u64, found: Option<(ActorId, Place)>) {
        if let Some((_, waiting)) = self.lookups.remove(&ticket) {
            let _ = waiting.send(found);
        }
    }
}

impl Office {
    /// Where `actor` lives now: what the node said last, or else `known`. `None` when it is gone for good.
    pub(crate) fn place_of(&self, actor: ActorId, known: Place) -> Option<Place> {
        // MOVED acquire: pairs with `Directory::actor`.
        if !self.directory.moved.load(Ordering::Acquire) {
            return Some(known);
        }
        self.directory.places.get(&actor).map_or(Some(known), |place| *place)
    }

    /// Registers `actor` under `name`. The outer error: the node is gone; the inner: another actor has the name.
    pub(crate) async fn register(
        &self,
        name: String,
        actor: ActorId,
    ) -> Result<Result<(), ActorId>, PortClosed> {
        let ticket = self.directory.next.fetch_add(1, Ordering::Relaxed);
        let (answer, waiting) = oneshot::channel();
        self.directory.registrations.insert(ticket, answer);
        self.port.send(ToNode::Register { ticket, name, actor }, Vec::new())?;
        waiting.await.map_err(|_| PortClosed)
    }

    /// The actor under `name`.
    pub(crate) async fn lookup(&self, name: String) -> Result<Option<(ActorId, Place)>, PortClosed> {
        let ticket = self.directory.next.fetch_add(1, Ordering::Relaxed);
        let (answer, waiting) = oneshot::channel();
        self.directory.lookups.insert(ticket, answer);
        self.port.send(ToNode::Lookup { ticket, name }, Vec::new())?;
        waiting.await.map_err(|_| PortClosed)
    }
}
