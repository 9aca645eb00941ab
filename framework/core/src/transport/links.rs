//! All links of a process.
//!
//! Every send uses it (the link to a peer), and so do the reader at every poll (all links), and code that
//! tells all peers something.
//!
//! **Invariants.** A slot has one link over which anything is sent. Links to earlier processes of the slot
//! stay beside it until they are read to the end. A removed link is dropped with its last reference.
//!
//! A reader's thread keeps the list that its reader polls ([`Links::keep`]), so that sends on that thread
//! take no lock. The thread drops the list before the reader sleeps, because otherwise a link would outlive
//! its end by that sleep.
//!
//! **Locks.** One, for reading by messages from other threads. Inside it, when held for writing: the locks
//! that `make` takes in [`Links::replace`], see `connect`.
//!
//! **On a crash** of a peer its link stays until the reader removes it. **On cancellation** nothing happens.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::Link;
use crate::ids::ProcessId;
use crate::limits::MAX_PROCESSES;

/// Up to this many links are searched one by one for a peer; if there are more, the link is found by slot.
const FEW: usize = 16;

/// The list of all links of one process, with its number.
struct CachedLinks {
    /// The id of the `Links` that it belongs to.
    of: u64,
    version: u64,
    list: Arc<[Arc<Link>]>,
}

thread_local! {
    static KEPT: Cell<Option<CachedLinks>> = const { Cell::new(None) };
}

/// The links, found by peer, and as a list that costs nothing to take, because the reader takes it at every
/// poll.
pub(crate) struct Links {
    state: RwLock<LinkTable>,
    /// Unique among the `Links` of this operating-system process.
    id: u64,
    /// Changes with the list of all. Written under the lock.
    version: AtomicU64,
    /// The number of the last half that was made.
    halves: AtomicU64,
    /// How many links have notices that were posted and are not published.
    with_unpublished_notices: Arc<AtomicUsize>,
    /// The number of links on which entries are marked to be published, or are being published.
    due: Arc<AtomicUsize>,
}

struct LinkTable {
    /// By the peer's slot.
    by_slot: Vec<Option<Arc<Link>>>,
    /// Links to earlier processes of slots, which are still read to the end.
    leaving: Vec<Arc<Link>>,
    /// The links of both lists, in order.
    all: Arc<[Arc<Link>]>,
}

impl Links {
    pub(super) fn new() -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let state =
            LinkTable { by_slot: vec![None; MAX_PROCESSES], leaving: Vec::new(), all: Arc::default() };
        Links {
            state: RwLock::new(state),
            id: IDS.fetch_add(1, Ordering::Relaxed),
            version: AtomicU64::new(0),
            halves: AtomicU64::new(0),
            with_unpublished_notices: Arc::default(),
            due: Arc::default(),
        }
    }

    /// Returns a number for the half of a new link.
    pub(super) fn number_half(&self) -> u64 {
        self.halves.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the counter in which a new link counts itself while it has unpublished notices.
    pub(super) fn unpublished_notices(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.with_unpublished_notices)
    }

    /// Returns the counter in which a new link counts itself while something on it is due.
    pub(super) fn due(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.due)
    }

    /// Returns on how many links something is due.
    pub(super) fn count_due(&self) -> usize {
        self.due.load(Ordering::Acquire)
    }

    /// Returns whether a notice was posted on any link and is not published.
    pub(super) fn have_unpublished_notices(&self) -> bool {
        self.with_unpublished_notices.load(Ordering::Acquire) > 0
    }

    /// Returns the link in the slot of `peer`, which may be that of another process of the slot.
    pub(super) fn in_slot_of(&self, peer: ProcessId) -> Option<Arc<Link>> {
        self.state.read().by_slot.get(peer.slot()).and_then(Clone::clone)
    }

    /// Keeps the list with that number for sends on this thread, until it is [dropped](Self::let_go_of_kept).
    pub(super) fn keep(&self, list: &Arc<[Arc<Link>]>, version: u64) {
        drop(KEPT.replace(Some(CachedLinks { of: self.id, version, list: Arc::clone(list) })));
    }

    /// Drops the list that this thread keeps.
    pub(super) fn let_go_of_kept() {
        // A thread that is ending has already dropped it.
        drop(KEPT.try_with(Cell::take));
    }

    /// Calls `f` with all links, as they are now.
    pub(super) fn with_all<R>(&self, f: impl FnOnce(&[Arc<Link>]) -> R) -> R {
        // Taken out during the call, because `f` may call this again.
        let kept = KEPT.try_with(Cell::take).ok().flatten();
        let is_it = |kept: &CachedLinks| kept.of == self.id && kept.version == self.version();
        let result = match &kept {
            Some(kept) if is_it(kept) => f(&kept.list),
            _ => f(&self.all()),
        };
        if kept.is_some() {
            drop(KEPT.try_with(|slot| slot.replace(kept)));
        }
        result
    }

    /// Returns the link to `peer`.
    pub(super) fn to(&self, peer: ProcessId) -> Option<Arc<Link>> {
        let kept = KEPT.try_with(Cell::take).ok().flatten();
        let Some(kept) = kept else { return self.look_up(peer) };
        let is_it = kept.of == self.id && kept.version == self.version();
        let found = if is_it && kept.list.len() <= FEW {
            // Links to earlier processes of slots come after the others in the list.
            kept.list.iter().find(|link| link.peer == peer).map(Arc::clone)
        } else {
            self.look_up(peer)
        };
        drop(KEPT.try_with(|slot| slot.replace(Some(kept))));
        found
    }

    fn look_up(&self, peer: ProcessId) -> Option<Arc<Link>> {
        let state = self.state.read();
        let current = state.by_slot.get(peer.slot()).and_then(Option::as_ref);
        current.into_iter().chain(&state.leaving).find(|link| link.peer == peer).map(Arc::clone)
    }

    /// Returns all links, as they are now.
    pub(crate) fn all(&self) -> Arc<[Arc<Link>]> {
        Arc::clone(&self.state.read().all)
    }

    /// Returns a number that changes with the list of [`all`](Self::all).
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns all links, as they are now, and the number of that list.
    pub(super) fn all_with_version(&self) -> (Arc<[Arc<Link>]>, u64) {
        let state = self.state.read();
        (Arc::clone(&state.all), self.version())
    }

    /// Returns whether a sender waits for a peer, even if the link is still being made.
    pub(super) fn are_waited_for(&self) -> bool {
        self.all().iter().any(|link| !link.is_broken() && link.has_waiting())
    }

    /// Returns whether on any open link a frame is unread, or something waits to go out.
    pub(super) fn are_busy(&self) -> bool {
        self.all().iter().any(|link| link.is_open() && link.is_busy())
    }

    /// Replaces the link in the slot of `peer` by the result of `make`, which is given the present one. The
    /// present link stays among [`all`](Self::all) until it is [removed](Self::remove). Other threads see
    /// either the old link or the new one. Returns `None`, and changes nothing, if the slot is out of range
    /// or `make` returned none.
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
            self.gather(&mut state);
        }
        Some(link)
    }

    /// Removes a link; threads that hold it can go on using it.
    pub(super) fn remove(&self, link: &Link) {
        let is_it = |known: &Arc<Link>| std::ptr::eq(Arc::as_ptr(known), link);
        let mut state = self.state.write();
        if let Some(place) = state.by_slot.get_mut(link.peer.slot()) {
            place.take_if(|known| is_it(known));
        }
        state.leaving.retain(|known| !is_it(known));
        self.gather(&mut state);
    }

    fn gather(&self, state: &mut LinkTable) {
        state.all = state.by_slot.iter().flatten().chain(&state.leaving).map(Arc::clone).collect();
        self.version.fetch_add(1, Ordering::Release);
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::testing::Cluster;

    /// Like a reader: the list that a thread keeps is never used once it is out of date.
    #[test]
    fn a_kept_list_is_left_where_links_have_come_or_gone() {
        let cluster = Cluster::new(3);
        cluster.begin_link(0, 1);
        cluster.run_until_idle();
        let links = &cluster.transport(0).links;
        let peers = || links.with_all(|all| all.iter().map(|link| link.peer).collect::<Vec<_>>());
        let (list, version) = links.all_with_version();
        links.keep(&list, version);
        assert!(links.with_all(|all| std::ptr::eq(all, &*list)), "no lock is taken for it");
        assert_eq!(peers(), [cluster.process(1)]);
        assert!(links.to(cluster.process(2)).is_none());
        // No list of another process is kept here.
        assert_eq!(cluster.transport(1).links.with_all(<[_]>::len), 1);
        assert!(cluster.transport(2).links.to(cluster.process(1)).is_none());
        cluster.begin_link(0, 2);
        assert_eq!(peers(), [cluster.process(1), cluster.process(2)]);
        assert!(links.to(cluster.process(2)).is_some());
        let (list, version) = links.all_with_version();
        links.keep(&list, version);
        let link = links.to(cluster.process(1)).expect("it is there");
        links.remove(&link);
        assert!(links.to(cluster.process(1)).is_none() && peers() == [cluster.process(2)]);
        Links::let_go_of_kept();
        let known = Arc::downgrade(&list);
        drop((list, link));
        assert!(known.upgrade().is_none(), "the thread has let go of it");
    }

    /// A link or mailbox that goes during the sleep must not stay until the next message.
    #[test]
    fn a_reader_that_sleeps_keeps_neither_links_nor_mailboxes() {
        let cluster = Cluster::new(2);
        let (to, inbox) = cluster.inbox::<u32>(0, 4);
        cluster.connect();
        let kept_by_nobody = Arc::strong_count(&inbox);
        let transport = cluster.transport(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let reader = tokio::spawn(Arc::clone(transport).run());
            cluster.send(1, &to, 1);
            // The reader runs on this thread, so if it says that it sleeps, it does.
            let until = Instant::now() + Duration::from_secs(30);
            while inbox.is_empty() || !transport.wakeups.says_it_sleeps() {
                assert!(Instant::now() < until, "the reader never goes to sleep");
                tokio::task::yield_now().await;
            }
            assert_eq!(inbox.take_one().message, 1);
            assert_eq!(Arc::strong_count(&inbox), kept_by_nobody);
            let link = transport.links.to(cluster.process(1)).expect("it is there");
            let known = Arc::downgrade(&link);
            transport.links.remove(&link);
            drop(link);
            assert!(known.upgrade().is_none(), "the reader keeps it");
            transport.stop();
            reader.await.expect("it does not panic").expect("it reads");
        });
    }
}
