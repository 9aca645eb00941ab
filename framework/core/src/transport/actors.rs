//! The actors of this process: which mailbox is at which index, and how many messages are under way in them.
//!
//! Used by `incoming`, which delivers to them; by senders of this process, the short way; by the actors
//! themselves, which come and go; and by the node, which asks whether the process is busy.
//!
//! **Invariants.** An index belongs to one actor at a time, and the largest mailbox that was ever at it is
//! remembered: so many replies a peer may be owed (MBX-2). A message is open from its delivery until its
//! receipt has dropped.
//!
//! **Locks.** `inboxes`, for reading inside the lock of [`Links`], and of a shard of the directory; never the
//! other way round. Nothing that was in a place is dropped under it.
//!
//! **On a crash** of an actor its place is withdrawn, and each peer's credits say so. **On cancellation** of
//! a handler its receipt drops, and the message is done with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;
use smallvec::SmallVec;

use super::inbox::Inbox;
use super::links::Links;
use super::{Link, TransportError, wake_reasons};
use crate::limits::MAX_ACTORS;
use crate::observe::hang_probe::ActorProbe;
use crate::observe::metrics::ActorMetrics;

/// See the module.
pub(super) struct Actors {
    inboxes: RwLock<Vec<Slot>>,
    /// Changes with them. Written under the lock.
    version: AtomicU64,
    #[cfg(any(test, feature = "inside"))]
    next: AtomicUsize,
    /// Messages that peers have sent and that were delivered. Written by the reader alone, so that no lock of
    /// the bus is taken.
    delivered: AtomicUsize,
    /// Messages that senders of this process have handed over.
    handed_over: AtomicUsize,
    /// Those of both that are done with.
    done: AtomicUsize,
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
            version: AtomicU64::new(0),
            #[cfg(any(test, feature = "inside"))]
            next: AtomicUsize::new(0),
            delivered: AtomicUsize::new(0),
            handed_over: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
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
            self.version.fetch_add(1, Ordering::Release);
            std::mem::replace(&mut inboxes[index], Slot::Taken { inbox, most })
        };
        drop(before);
        // Only now: a link that is made meanwhile reads the place (`tell_new`). And where nobody was before,
        // too: a frame that named it too early has closed it.
        for link in links.all().iter() {
            link.open_mailbox(index as u16, capacity);
        }
        Ok(())
    }

    /// The actor at `index` is gone, or `away` and started anew: its senders are told, or wait for its next
    /// life.
    pub(super) fn withdraw(&self, index: u16, away: bool, links: &Links) {
        let slot = self.inboxes.write().get_mut(usize::from(index)).map(|slot| {
            let capacity = slot.capacity();
            self.version.fetch_add(1, Ordering::Release);
            std::mem::replace(slot, Slot::Withdrawn { away, capacity })
        });
        // Dropped here, without the lock: what waits in it are messages, and dropping those lets leases go.
        drop(slot);
        // Only now: a link that is made meanwhile reads the place, and closes the index by itself
        // (`tell_new`).
        for link in links.all().iter() {
            link.close(index, away);
            link.ring(wake_reasons::CREDIT);
        }
    }

    /// The actor at `index` is gone, and another may come there. Its senders look where it is now; what is on
    /// its way still comes to its mailbox, and its credits go on where they stand.
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

    /// Returns whether the actor that was at `index` is started anew.
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

    /// Counts a message of this process, until it is done with.
    pub(super) fn opened(&self) {
        self.handed_over.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a message of a peer, until it is done with. For the reader.
    pub(super) fn delivered(&self) {
        let count = self.delivered.load(Ordering::Relaxed).wrapping_add(1);
        self.delivered.store(count, Ordering::Release);
    }

    /// The counterpart of both.
    pub(super) fn done(&self) {
        self.done.fetch_add(1, Ordering::SeqCst);
    }

    /// Messages delivered and not done with.
    pub(super) fn open(&self) -> usize {
        // In this order: of a message that was done with by the first look, the second sees that it was
        // delivered.
        let done = self.done.load(Ordering::SeqCst);
        let handed_over = self.handed_over.load(Ordering::SeqCst);
        self.delivered.load(Ordering::Acquire).wrapping_add(handed_over).wrapping_sub(done)
    }
}

/// So many mailboxes a reader keeps.
const KEPT: usize = 8;

/// Mailboxes that a reader has delivered to lately, so that it takes no lock for the next message.
///
/// It lets go of them when a look begins, if any mailbox of the process has come or gone, and before it
/// sleeps: so they outlive their actors by the time that it is busy at most, and are never dropped under a
/// link's lock.
#[derive(Default)]
pub(super) struct KeptInboxes {
    version: u64,
    inboxes: SmallVec<[(u16, Arc<dyn Inbox>); KEPT]>,
}

impl KeptInboxes {
    /// To be called without a lock, before a look.
    #[inline]
    pub(super) fn refresh(&mut self, actors: &Actors) {
        let version = actors.version.load(Ordering::Acquire);
        if self.version != version {
            self.inboxes.clear();
            self.version = version;
        }
    }

    /// To be called without a lock.
    pub(super) fn let_go(&mut self) {
        self.inboxes.clear();
    }

    /// The mailbox at `index`, as [`Actors::inbox`] finds it.
    #[inline]
    pub(super) fn get(&mut self, actors: &Actors, index: u16) -> Option<Found<'_>> {
        // Behind a change that came in the middle of a look they are left alone.
        if self.version != actors.version.load(Ordering::Acquire) {
            return actors.inbox(index).map(Found::Now);
        }
        let known = self.inboxes.iter().position(|(known, _)| *known == index);
        let at = match known {
            Some(at) => at,
            None if self.inboxes.len() == KEPT => return actors.inbox(index).map(Found::Now),
            None => {
                // Another may have come since the version was read: then it is newer, and goes with the next
                // refresh.
                self.inboxes.push((index, actors.inbox(index)?));
                self.inboxes.len() - 1
            }
        };
        self.inboxes.get(at).map(|(_, inbox)| Found::Kept(inbox))
    }
}

impl std::fmt::Debug for KeptInboxes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeptInboxes({})", self.inboxes.len())
    }
}

/// A mailbox that was looked up.
pub(super) enum Found<'a> {
    /// It is kept.
    Kept(&'a Arc<dyn Inbox>),
    /// It is not.
    Now(Arc<dyn Inbox>),
}

impl std::ops::Deref for Found<'_> {
    type Target = dyn Inbox;

    fn deref(&self) -> &Self::Target {
        match self {
            Found::Kept(inbox) => &***inbox,
            Found::Now(inbox) => &**inbox,
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    /// As a reader does it that is kept busy: the same list of mailboxes for all looks.
    #[test]
    fn a_kept_mailbox_is_the_one_that_is_there() {
        let cluster = Cluster::new(1);
        let transport = cluster.transport(0);
        let (first, _at_first) = cluster.inbox::<u32>(0, 4);
        let mut kept = KeptInboxes::default();
        let found =
            |kept: &mut KeptInboxes, index| kept.get(&transport.actors, index).map(|inbox| inbox.actor());
        kept.refresh(&transport.actors);
        for _ in 0..2 {
            assert_eq!(found(&mut kept, first.location.index), Some(first.actor));
        }
        assert_eq!(kept.inboxes.len(), 1);
        assert_eq!(found(&mut kept, 77), None, "nobody is there");
        // In the middle of a look, when nothing may be dropped.
        transport.withdraw(first.location.index);
        assert_eq!(found(&mut kept, first.location.index), None);
        assert_eq!(kept.inboxes.len(), 1, "it is dropped without a lock");
        kept.refresh(&transport.actors);
        assert!(kept.inboxes.is_empty());
        let (second, _at_second) = cluster.inbox::<u32>(0, 4);
        kept.refresh(&transport.actors);
        assert_eq!(found(&mut kept, second.location.index), Some(second.actor));
        kept.let_go();
        assert!(kept.inboxes.is_empty());
    }

    #[test]
    fn more_mailboxes_than_are_kept_are_found_all_the_same() {
        let cluster = Cluster::new(1);
        let all: Vec<_> = (0..KEPT + 3).map(|_| cluster.inbox::<u32>(0, 4)).collect();
        let (actors, mut kept) = (&cluster.transport(0).actors, KeptInboxes::default());
        kept.refresh(actors);
        for (to, _) in all.iter().chain(&all) {
            let found = kept.get(actors, to.location.index).map(|inbox| inbox.actor());
            assert_eq!(found, Some(to.actor));
        }
        assert_eq!(kept.inboxes.len(), KEPT);
    }
}
