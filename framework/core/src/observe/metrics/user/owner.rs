//! The actor whose code a thread runs: the label `actor` of metrics.
//!
//! A thread says so by a number in thread-local memory, so that polling an actor costs a store. The names are
//! in a table that changes when actors start and end. A thread that an actor has for itself always belongs to
//! it. In a process with one actor, all threads count as that actor's. No other actor can own a task outside
//! the actor's context, a host kernel, or the future of a handler (which actix runs as such a task).

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::ids::ActorId;

static NAMES: RwLock<Vec<(ActorId, Arc<str>)>> = RwLock::new(Vec::new());

thread_local! {
    static OWNER: Cell<Option<ActorId>> = const { Cell::new(None) };
}

/// An actor of this process, from its start to its end.
pub(crate) struct Owner(ActorId);

impl Owner {
    pub(crate) fn new(actor: ActorId, name: &str) -> Self {
        NAMES.write().push((actor, name.into()));
        Owner(actor)
    }

    /// Counts everything that this thread does as this actor's, until the thread ends.
    pub(crate) fn own_thread(&self) {
        OWNER.set(Some(self.0));
    }

    /// Counts everything that this thread does as this actor's, until the guard drops.
    pub(crate) fn enter(&self) -> OwnerGuard {
        OwnerGuard { before: OWNER.replace(Some(self.0)) }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut names = NAMES.write();
        if let Some(at) = names.iter().position(|(actor, _)| *actor == self.0) {
            names.swap_remove(at);
        }
    }
}

/// See [`Owner::enter`].
pub(crate) struct OwnerGuard {
    before: Option<ActorId>,
}

impl Drop for OwnerGuard {
    fn drop(&mut self) {
        OWNER.set(self.before);
    }
}

/// Returns the name of the actor whose code this thread runs.
pub(super) fn current() -> Option<Arc<str>> {
    let (names, own) = (NAMES.read(), OWNER.get());
    let found = match (own, &names[..]) {
        (None, [only]) => Some(only),
        (None, _) => None,
        (Some(own), all) => all.iter().find(|(actor, _)| *actor == own),
    };
    found.map(|(_, name)| Arc::clone(name))
}
