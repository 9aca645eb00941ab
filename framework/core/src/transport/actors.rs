//! The actors of this process: their mailboxes by index, and how many messages are under way in them.
//!
//! `incoming` and senders of this process deliver to them, the actors come and go, and the node asks whether
//! the process is busy.
//!
//! **Invariants.** An index belongs to one actor at a time. The capacity of the largest mailbox that was ever
//! at an index is remembered: it bounds the replies that a peer may be owed (MBX-2). A message is open from
//! its delivery until its receipt has dropped.
//!
//! **Locks.** `inboxes`, for reading inside the lock of [`Links`], and of a shard of the directory; never the
//! other way round. No mailbox is dropped under it.
//!
//! **On a crash** of an actor its location is withdrawn, and the mailbox state for each peer says so. **On
//! cancellation** of a handler its receipt drops, and the message is done with.

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
pub(crate) struct Actors {
    inboxes: RwLock<Vec<Slot>>,
    /// Changes with the inboxes. Written under the lock.
    version: AtomicU64,
    #[cfg(any(test, feature = "inside"))]
    next: AtomicUsize,
    /// Messages of peers that were delivered. Only the reader writes it, so it needs no locked bus
    /// instruction.
    delivered: AtomicUsize,
    /// Messages that senders of this process have handed over.
    handed_over: AtomicUsize,
    /// The messages of both kinds that are done with.
    done: AtomicUsize,
}

/// A location for an actor.
#[derive(Clone, Default)]
enum Slot {
    /// No actor was there yet.
    #[default]
    Free,
    Taken {
        inbox: Arc<dyn Inbox>,
        /// The capacity of the largest mailbox that was ever here, per sending process.
        most: u32,
    },
    /// An actor was there; it is being restarted if `away` is set.
    Withdrawn {
        away: bool,
        /// The capacity of the largest mailbox that was ever here, per sending process.
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

    /// Returns an index that no actor had before. It may be out of range.
    #[cfg(any(test, feature = "inside"))]
    pub(super) fn next_index(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Gives an actor the location `index`, and continues its credits at each link's count.
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
        // Only now: a link that is made in the meantime reads the location (`tell_new`). This is also needed
        // if no actor was there before, because a frame that named the index too early has closed it.
        for link in links.all().iter() {
            link.open_mailbox(index as u16, capacity);
        }
        Ok(())
    }

    /// Removes the actor at `index`, and tells its senders. If it is `away`, it is being restarted, and its
    /// senders wait for its next life.
    pub(super) fn withdraw(&self, index: u16, away: bool, links: &Links) {
        let slot = self.inboxes.write().get_mut(usize::from(index)).map(|slot| {
            let capacity = slot.capacity();
            self.version.fetch_add(1, Ordering::Release);
            std::mem::replace(slot, Slot::Withdrawn { away, capacity })
        });
        // Dropped here, without the lock, because messages wait in it, and leases go with them.
        drop(slot);
        // Only now: a link that is made in the meantime reads the location, and closes the index by itself
        // (`tell_new`).
        for link in links.all().iter() {
            link.close(index, away);
            link.ring(wake_reasons::CREDIT);
        }
    }

    /// Pauses the location of an actor that is gone, where another may follow. Its senders look up where it
    /// is now. Messages on their way still reach its mailbox, and its credits continue at their count.
    #[cfg(feature = "hosts")]
    pub(crate) fn pause(&self, index: u16, links: &Links) {
        for link in links.all().iter() {
            link.pause(index);
            link.ring(wake_reasons::CREDIT);
        }
    }

    /// Returns how many unhandled messages one sending process could ever have at `index`; `None` if no actor
    /// was there.
    pub(super) fn most_at(&self, index: u16) -> Option<u32> {
        self.inboxes.read().get(usize::from(index)).map(Slot::capacity).filter(|most| *most > 0)
    }

    /// Announces on a new link which mailboxes there are, and which are closed.
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

    pub(crate) fn inbox(&self, index: u16) -> Option<Arc<dyn Inbox>> {
        match self.inboxes.read().get(usize::from(index)) {
            Some(Slot::Taken { inbox, .. }) => Some(Arc::clone(inbox)),
            _ => None,
        }
    }

    /// Returns whether the actor that was at `index` is being restarted.
    pub(super) fn is_away(&self, index: u16) -> bool {
        matches!(self.inboxes.read().get(usize::from(index)), Some(Slot::Withdrawn { away: true, .. }))
    }

    /// Returns how many unhandled messages one peer may have here, in all mailboxes that there are or were.
    pub(super) fn capacities(&self) -> usize {
        self.inboxes.read().iter().map(|slot| slot.capacity() as usize).sum()
    }

    /// Returns the metrics of the actors.
    pub(super) fn metrics(&self) -> Vec<ActorMetrics> {
        self.each_inbox(|inbox| inbox.metrics())
    }

    /// Returns snapshots of the actors for hang detection.
    pub(super) fn sights(&self) -> Vec<ActorProbe> {
        self.each_inbox(|inbox| inbox.hang_probe())
    }

    /// Collects the results of `look` for all mailboxes. It is called without the lock.
    fn each_inbox<T>(&self, look: impl Fn(&dyn Inbox) -> Option<T>) -> Vec<T> {
        let inboxes = self.inboxes.read().clone();
        let seen = inboxes.iter().filter_map(|slot| match slot {
            Slot::Taken { inbox, .. } => look(&**inbox),
            Slot::Free | Slot::Withdrawn { .. } => None,
        });
        seen.collect()
    }

    /// Counts a message of this process, until it is done with.
    pub(crate) fn opened(&self) {
        self.handed_over.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a message of a peer, until it is done with. For the reader.
    pub(super) fn delivered(&self) {
        let count = self.delivered.load(Ordering::Relaxed).wrapping_add(1);
        self.delivered.store(count, Ordering::Release);
    }

    /// Counts a message of either kind as done with.
    pub(crate) fn done(&self) {
        self.done.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how many messages are delivered and not done with.
    pub(super) fn open(&self) -> usize {
        // In this order: if the first load counts a message as done with, the later ones also see that it was
        // delivered.
        let done = self.done.load(Ordering::SeqCst);
        let handed_over = self.handed_over.load(Ordering::SeqCst);
        self.delivered.load(Ordering::Acquire).wrapping_add(handed_over).wrapping_sub(done)
    }
}

/// The number of mailboxes that a reader keeps.
const KEPT: usize = 8;

/// Mailboxes that a reader has delivered to lately, so that it takes no lock for the next message.
///
/// It drops them before it sleeps, and when a poll begins after any mailbox of the process has come or gone.
/// So they outlive their actors at most while it is busy, and are never dropped under a link's lock.
#[derive(Default)]
pub(super) struct KeptInboxes {
    version: u64,
    inboxes: SmallVec<[(u16, Arc<dyn Inbox>); KEPT]>,
}

impl KeptInboxes {
    /// Drops the mailboxes if any has changed. To be called without a lock, before a poll.
    #[inline]
    pub(super) fn refresh(&mut self, actors: &Actors) {
        let version = actors.version.load(Ordering::Acquire);
        if self.version != version {
            self.inboxes.clear();
            self.version = version;
        }
    }

    /// Drops the mailboxes. To be called without a lock.
    pub(super) fn let_go(&mut self) {
        self.inboxes.clear();
    }

    /// Returns the mailbox at `index`, as [`Actors::inbox`] finds it.
    #[inline]
    pub(super) fn get(&mut self, actors: &Actors, index: u16) -> Option<FoundInbox<'_>> {
        // After a change in the middle of a poll the kept ones are not used.
        if self.version != actors.version.load(Ordering::Acquire) {
            return actors.inbox(index).map(FoundInbox::Now);
        }
        let known = self.inboxes.iter().position(|(known, _)| *known == index);
        let at = match known {
            Some(at) => at,
            None if self.inboxes.len() == KEPT => return actors.inbox(index).map(FoundInbox::Now),
            None => {
                // Another mailbox may have come since the version was read. Then this one is newer than the
                // version, and the next refresh drops it.
                self.inboxes.push((index, actors.inbox(index)?));
                self.inboxes.len() - 1
            }
        };
        self.inboxes.get(at).map(|(_, inbox)| FoundInbox::Kept(inbox))
    }
}

impl std::fmt::Debug for KeptInboxes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeptInboxes({})", self.inboxes.len())
    }
}

/// A mailbox that was looked up.
pub(super) enum FoundInbox<'a> {
    /// It is kept.
    Kept(&'a Arc<dyn Inbox>),
    /// It is not.
    Now(Arc<dyn Inbox>),
}

impl std::ops::Deref for FoundInbox<'_> {
    type Target = dyn Inbox;

    fn deref(&self) -> &Self::Target {
        match self {
            FoundInbox::Kept(inbox) => &***inbox,
            FoundInbox::Now(inbox) => &**inbox,
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    /// Like a reader that is kept busy, this uses the same list of mailboxes for all polls.
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
        // As in the middle of a poll, when nothing may be dropped.
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
