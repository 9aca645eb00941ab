//! The actors of this process: which mailbox is at which index, and how many messages are under way in them.
//!
//! Used by `incoming`, which delivers to them; by senders of this process, the short way; by the actors themselves, which
//! come and go; and by the node, which asks whether the process is busy.
//!
//! **Invariants.** An index belongs to one actor at a time, and the largest mailbox that was ever at it is remembered: so
//! many replies a peer may be owed (MBX-2). A message is open from its delivery until its receipt has dropped.
//!
//! **Locks.** `inboxes`, for reading inside the lock of [`Links`], and of a shard of the directory; never the other way
//! round. Nothing that was in a place is dropped under it.
//!
//! **On a crash** of an actor its place is withdrawn, and each peer's credits say so. **On cancellation** of a handler its
//! receipt drops, and the message is done with.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::inbox::Inbox;
use super::links::Links;
use super::{Link, TransportError, wake_reasons};
use crate::limits::MAX_ACTORS;
use crate::observe::hang_probe::ActorProbe;
use crate::observe::metrics::ActorMetrics;

/// See the module.
pub(super) struct Actors {
    inboxes: RwLock<Vec<Slot>>,
    #[cfg(any(test, feature = "inside"))]
    next: AtomicUsize,
    /// Messages delivered and not done with.
    open: AtomicUsize,
}

/// A location for an actor.
#[derive(Clone, Default)]
enum Slot {
    /// Nobody was there yet.
    #[default]
    Free,
    Taken {
        inbox: Arc<dyn Inbox>,
        /// Of the largest mailbox that was ever here, per sending process.
        most: u32,
    },
    /// Somebody was there, and is started anew if this is set.
    Withdrawn {
        away: bool,
        /// Of the largest mailbox that was ever here, per sending process.
        capacity: u32,
    },
}

impl Slot {
    fn capacity(&self) -> u32 {
        match self {
            Slot::Free => 0,
            Slot::Taken { most: capacity, .. } | Slot::Withdrawn { capacity, .. } => *capacity,
        }
    }
}

impl Actors {
    pub(super) fn new() -> Self {
        Actors {
            inboxes: RwLock::new(Vec::new()),
            #[cfg(any(test, feature = "inside"))]
            next: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
        }
    }

    /// An index that no actor had before. It may be one that there cannot be.
    #[cfg(any(test, feature = "inside"))]
    pub(super) fn next_index(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Gives an actor the location `index`, and has its credits go on where the links stand.
    ///
    /// # Errors
    /// [`TransportError::TooManyActors`].
    pub(super) fn serve_at(
        &self,
        index: u16,
        inbox: Arc<dyn Inbox>,
        links: &Links,
    ) -> Result<(), TransportError> {
        let index = usize::from(index);
        if index >= MAX_ACTORS {
            return Err(TransportError::TooManyActors);
        }
        let capacity = inbox.capacity();
        let before = {
            let mut inboxes = self.inboxes.write();
            if inboxes.len() <= index {
                inboxes.resize(index + 1, Slot::Free);
            }
            let most = inboxes[index].capacity().max(capacity);
            std::mem::replace(&mut inboxes[index], Slot::Taken { inbox, most })
        };
        drop(before);
        // Only now: a link that is made meanwhile reads the place (`tell_new`). And where nobody was before, too: a frame that
        // named it too early has closed it.
        for link in links.all().iter() {
            link.open_mailbox(index as u16, capacity);
        }
        Ok(())
    }

    /// The actor at `index` is gone, or `away` and started anew: its senders are told, or wait for its next life.
    pub(super) fn withdraw(&self, index: u16, away: bool, links: &Links) {
        let slot = self.inboxes.write().get_mut(usize::from(index)).map(|slot| {
            let capacity = slot.capacity();
            std::mem::replace(slot, Slot::Withdrawn { away, capacity })
        });
        // Dropped here, without the lock: what waits in it are messages, and dropping those lets leases go.
        drop(slot);
        // Only now: a link that is made meanwhile reads the place, and closes the index by itself (`tell_new`).
        for link in links.all().iter() {
            link.close(index, away);
            link.ring(wake_reasons::CREDIT);
        }
    }

    /// The actor at `index` is gone, and another may come there. Its senders look where it is now; what is on its way still comes
    /// to its mailbox, and its credits go on where they stand.
    #[cfg(feature = "hosts")]
    pub(super) fn pause(&self, index: u16, links: &Links) {
        for link in links.all().iter() {
            link.pause(index);
            link.ring(wake_reasons::CREDIT);
        }
    }

    /// Messages that one sending process could ever have unhandled at `index`; `None` where nobody was.
    #[cfg(feature = "hosts")]
    pub(super) fn most_at(&self, index: u16) -> Option<u32> {
        self.inboxes.read().get(usize::from(index)).map(Slot::capacity).filter(|most| *most > 0)
    }

    /// Has a new link say which mailboxes there are, and which are closed.
    pub(super) fn tell_new(&self, link: &Link) {
        for (index, slot) in self.inboxes.read().iter().enumerate() {
            let index = index as u16; // there are MAX_ACTORS
            match slot {
                Slot::Free => {}
                Slot::Taken { inbox, .. } => link.open_mailbox_at(index, inbox.capacity(), 0),
                Slot::Withdrawn { away, .. } => link.close(index, *away),
            }
        }
    }

    pub(super) fn inbox(&self, index: u16) -> Option<Arc<dyn Inbox>> {
        match self.inboxes.read().get(usize::from(index)) {
            Some(Slot::Taken { inbox, .. }) => Some(Arc::clone(inbox)),
            _ => None,
        }
    }

    /// Whether the actor that was at `index` is started anew.
    pub(super) fn is_away(&self, index: u16) -> bool {
        matches!(self.inboxes.read().get(usize::from(index)), Some(Slot::Withdrawn { away: true, .. }))
    }

    /// Messages that one peer may have here unhandled, in all mailboxes that there are or were.
    pub(super) fn capacities(&self) -> usize {
        self.inboxes.read().iter().map(|slot| slot.capacity() as usize).sum()
    }

    /// What the actors have done.
    pub(super) fn metrics(&self) -> Vec<ActorMetrics> {
        self.each_inbox(|inbox| inbox.metrics())
    }

    /// Whether, and how, the actors go on.
    pub(super) fn sights(&self) -> Vec<ActorProbe> {
        self.each_inbox(|inbox| inbox.hang_probe())
    }

    /// What `look` sees of the mailboxes. They are asked without the lock.
    fn each_inbox<T>(&self, look: impl Fn(&dyn Inbox) -> Option<T>) -> Vec<T> {
        let inboxes = self.inboxes.read().clone();
        let seen = inboxes.iter().filter_map(|slot| match slot {
            Slot::Taken { inbox, .. } => look(&**inbox),
            Slot::Free | Slot::Withdrawn { .. } => None,
        });
        seen.collect()
    }

    /// Counts a message that was delivered, until it is done with.
    pub(super) fn opened(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    /// The counterpart of [`opened`](Self::opened).
    pub(super) fn done(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    /// Messages delivered and not done with.
    pub(super) fn open(&self, order: Ordering) -> usize {
        self.open.load(order)
    }
}
