//! All the clocks that one process can see: its own, and those of its peers as long as they are known here.
//!
//! **Nodes.** A process number has a meaning within one node only, and so has everything that is named by
//! one: a ticket, a lease, a chunk, an actor. A program may have several nodes, at once or one after the
//! other, and is [`ProcessId::NODE`] in each. So a domain stands for one process *of one node*, and every
//! handle knows its own domain: nothing of one domain is looked up in another (SAFE-1, CLOCK-1, CLOCK-2). A
//! comparison of two addresses tells domains apart.

use std::any::Any;
use std::fmt;
#[cfg(any(test, feature = "testing"))]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use smallvec::SmallVec;

use super::marking::Knowledge;
use super::sleeping_threads::SleepingThreads;
use super::slots::{OwnClock, Slots};
use super::taint::EpochPage;
use super::{ClockPage, Ticket, UnknownClock, passed};
use crate::ids::ProcessId;
use crate::limits::MAX_PROCESSES;
use crate::observe::trace::Tracer;
use crate::os::{AdaptiveSpin, Birth};

/// The number of a domain, and so of a node, within this process: for errors, and for code that does not have
/// the domain itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeNumber {
    /// A node that this process was in; they are counted from 1.
    Node(u64),
    /// A domain without a node; these have a count of their own.
    Outside(u64),
}

impl NodeNumber {
    fn next(of_a_node: bool) -> Self {
        static NODES: AtomicU64 = AtomicU64::new(1);
        static OTHERS: AtomicU64 = AtomicU64::new(1);
        let next = |count: &AtomicU64| count.fetch_add(1, Ordering::Relaxed);
        if of_a_node { NodeNumber::Node(next(&NODES)) } else { NodeNumber::Outside(next(&OTHERS)) }
    }
}

impl fmt::Display for NodeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeNumber::Node(number) => write!(f, "node {number} of this process"),
            NodeNumber::Outside(_) => f.write_str("no node"),
        }
    }
}

/// The clocks of this process and of its peers. One per process and node.
#[derive(Debug)]
pub struct ClockDomain {
    pub(super) own: ProcessId,
    node: NodeNumber,
    pub(super) own_page: Arc<ClockPage>,
    /// Read for the length of a look-up, written only when a peer comes or goes.
    pub(super) peers: RwLock<Peers>,
    pub(super) slots: Arc<Slots>,
    pub(super) spin: AdaptiveSpin,
    /// See [`of_streams`](Self::of_streams).
    of_streams: OnceLock<Box<dyn Any + Send + Sync>>,
    tracer: Tracer,
    /// Exists only where the node detects hangs, so that other nodes do not pay for the notes.
    pub(super) asleep: OnceLock<SleepingThreads>,
    #[cfg(any(test, feature = "testing"))]
    pub(super) frozen: AtomicBool,
    knowledge: Knowledge,
    birth: Birth,
}

#[derive(Debug)]
pub(super) struct Peers {
    /// By roster slot. Two lives of one slot can overlap while tensors of the earlier one still exist.
    by_slot: Box<[SmallVec<[Peer; 1]>]>,
    /// The same pages in one list, where the advancer reads their counts.
    pub(super) all: Vec<Arc<ClockPage>>,
}

#[derive(Clone, Debug)]
struct Peer {
    id: ProcessId,
    page: Arc<ClockPage>,
}

impl ClockDomain {
    /// Creates the clocks of process `own`, whose page this process writes, without peers. No node tells this
    /// domain of deaths.
    ///
    /// # Panics
    /// `own` is a node's own process, which has the domain of its node: see [`ProcessId::OUTSIDE`].
    #[cfg(any(test, feature = "inside"))]
    pub fn new(own: ProcessId, page: Arc<ClockPage>) -> Arc<Self> {
        assert_ne!(own, ProcessId::NODE, "clocks without a node, in the name of one");
        Self::with_epoch_page(own, page, None)
    }

    /// Creates the clocks as [`new`](Self::new) does, in a node that says on `epoch_page` what every process
    /// must know of deaths.
    pub fn with_epoch_page(
        own: ProcessId,
        page: Arc<ClockPage>,
        epoch_page: Option<Arc<EpochPage>>,
    ) -> Arc<Self> {
        let by_slot = std::iter::repeat_with(SmallVec::new).take(MAX_PROCESSES).collect();
        let node = NodeNumber::next(epoch_page.is_some());
        let knowledge = Knowledge::new(epoch_page);
        knowledge.meet(own);
        Arc::new(ClockDomain {
            own,
            node,
            own_page: page,
            peers: RwLock::new(Peers { by_slot, all: Vec::new() }),
            slots: Arc::default(),
            spin: AdaptiveSpin::default(),
            of_streams: OnceLock::new(),
            tracer: Tracer::default(),
            asleep: OnceLock::new(),
            #[cfg(any(test, feature = "testing"))]
            frozen: AtomicBool::new(false),
            knowledge,
            birth: Birth::here(),
        })
    }

    pub(super) fn knowledge(&self) -> &Knowledge {
        &self.knowledge
    }

    /// Returns how many processes the node has, as it says; 0 where it has not said.
    pub(crate) fn processes(&self) -> usize {
        self.knowledge.processes()
    }

    /// Returns the process that passes on the messages from other hosts, as the node says.
    pub(crate) fn gateway(&self) -> Option<ProcessId> {
        self.knowledge.gateway()
    }

    /// Returns whether this process was forked from the one that owns these clocks. Then no clock is advanced
    /// or waited for here.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.birth.is_inherited()
    }

    /// Does the work of [`passed`](Self::passed) where these clocks are [inherited](Self::is_inherited). A
    /// thread that does not exist here may have the lock, and a clock that cannot be read has not passed.
    pub(crate) fn passed_in_fork(&self, ticket: &Ticket) -> bool {
        let peers = || {
            let peers = self.peers.try_read()?;
            peers.by_slot[ticket.process.slot()]
                .iter()
                .find(|peer| peer.id == ticket.process)?
                .page
                .load(ticket.slot)
        };
        let own = ticket.process == self.own;
        let clock = if own { self.own_page.load(ticket.slot) } else { peers() };
        clock.is_some_and(|clock| passed(clock, ticket.value))
    }

    /// Returns the process that this one is in the node.
    pub fn own(&self) -> ProcessId {
        self.own
    }

    /// Returns the node that these clocks belong to.
    #[inline]
    pub(crate) fn node(&self) -> NodeNumber {
        self.node
    }

    /// Returns the tracer, to which the process writes its events if its node traces. It is kept here because
    /// all code that writes events has the clocks at hand.
    pub(crate) fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// Returns the state that the streams of this process share; the first call makes it. It is kept here
    /// because all code with a stream, or with a ticket to wait for, has the process's clocks at hand. A
    /// clock knows no stream, so the type is not named here: only `stream` calls this, always for the same
    /// type.
    pub(crate) fn of_streams<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        let shared = self.of_streams.get_or_init(|| Box::new(make()));
        shared.downcast_ref().expect("one type is kept here")
    }

    /// Returns this process's page.
    pub fn own_page(&self) -> &Arc<ClockPage> {
        &self.own_page
    }

    /// Adds a peer's page, or replaces it. Another life of the same slot stays known until it is removed.
    pub(crate) fn add_peer(&self, id: ProcessId, page: Arc<ClockPage>) {
        let mut peers = self.peers.write();
        let incarnations = &mut peers.by_slot[id.slot()];
        incarnations.retain(|peer| peer.id != id);
        incarnations.push(Peer { id, page });
        peers.gather();
    }

    /// Forgets a peer's page, and returns it where it was known. Waits that already have it go on.
    pub(crate) fn remove_peer(&self, id: ProcessId) -> Option<Arc<ClockPage>> {
        let mut peers = self.peers.write();
        let incarnations = &mut peers.by_slot[id.slot()];
        let at = incarnations.iter().position(|peer| peer.id == id)?;
        let peer = incarnations.swap_remove(at);
        peers.gather();
        Some(peer.page)
    }

    /// Calls [`add_peer`](Self::add_peer), for tests of devices. Programs must never call it: a page of its
    /// own making would let a program read memory that nobody has written.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn testing_add_peer(&self, id: ProcessId, page: Arc<ClockPage>) {
        self.add_peer(id, page);
    }

    /// [`remove_peer`](Self::remove_peer), for tests of devices.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn testing_remove_peer(&self, id: ProcessId) -> Option<Arc<ClockPage>> {
        self.remove_peer(id)
    }

    /// Returns the page of a process, this one included.
    pub fn page_of(&self, id: ProcessId) -> Option<Arc<ClockPage>> {
        if id == self.own {
            return Some(Arc::clone(&self.own_page));
        }
        let peers = self.peers.read();
        peers.by_slot[id.slot()].iter().find(|peer| peer.id == id).map(|peer| Arc::clone(&peer.page))
    }

    /// Returns whether a ticket's clock has passed its value, or was released. Never blocks. It says that the
    /// work is over, not that the data is good: for that see [`status`](Self::status).
    pub fn passed(&self, ticket: &Ticket) -> Result<bool, UnknownClock> {
        match self.value_of(ticket.process, ticket.slot) {
            Some(clock) => Ok(passed(clock, ticket.value)),
            // A dead process keeps nobody waiting, even where its page is not here.
            None if self.knows_end_of(ticket) => Ok(true),
            None => Err(UnknownClock(*ticket)),
        }
    }

    /// Returns whether `clock` belongs to this domain's own process.
    pub fn owns(&self, clock: &OwnClock) -> bool {
        Arc::ptr_eq(&self.own_page, clock.page())
    }

    /// Returns the value of a clock; `None` where it is not known here.
    pub fn value_of(&self, process: ProcessId, slot: u16) -> Option<u64> {
        if process == self.own {
            return self.own_page.load(slot);
        }
        let peers = self.peers.read();
        peers.by_slot[process.slot()].iter().find(|peer| peer.id == process)?.page.load(slot)
    }

    /// Writes a clock of this process as no stream would, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn forge_clock(&self, slot: u16, value: u64) -> Result<(), super::ClockError> {
        self.own_page.store(slot, value)
    }

    /// Stops all advances of this process's clocks, as if it had died.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn freeze(&self) {
        self.frozen.store(true, Ordering::SeqCst);
    }

    /// Makes the process note its waits from now on. Call it before the process has a stream: an existing
    /// stream is not noted.
    pub(crate) fn detect_hangs(&self) {
        self.asleep.get_or_init(SleepingThreads::default);
    }

    /// Returns whether the node detects hangs.
    pub(crate) fn detects_hangs(&self) -> bool {
        self.asleep.get().is_some()
    }
}

impl Peers {
    fn gather(&mut self) {
        self.all = self.by_slot.iter().flatten().map(|peer| Arc::clone(&peer.page)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Waited;
    use super::super::waiting::tests::two;

    #[test]
    fn peers_come_and_go() {
        let (a, b) = two();
        let clock = a.allocate_slot().unwrap();
        let page = b.page_of(a.own()).unwrap();
        assert!(b.remove_peer(a.own()).is_some() && b.remove_peer(a.own()).is_none());
        assert!(b.page_of(a.own()).is_none() && b.passed(&clock.ticket(0)).is_err());
        a.advance(&clock, 1).unwrap();
        assert_eq!(b.wait_on(&page, &clock.ticket(1), None).unwrap(), Waited::Passed);
        assert!(b.page_of(b.own()).is_some());
    }
}
