//! A process's transport: its links to all peers, the memory that it lends and borrows, and the mailboxes it serves.
//!
//! **On a crash of a peer** the link breaks: its senders get their messages back, its asks fail. **On a cancelled send**
//! the place in the queue is given up and nothing was sent.
//!
//! Read in this order: `pages` and `entry` (the forms), `link` (one peer), `connect` (how a link is made),
//! `outgoing` (frames out), `incoming` (frames in), `returns` (leases back), `chunks` (memory of others), `reader` (the
//! loop), `waiting` (queues of senders), `watching`, [`inbox`] (what it delivers to).
//!
//! It knows no tensor. [`ring`] and [`doorbell`] are the protocols in shared memory, [`spin`] says when to stop
//! polling, [`control_channel`] is what it asks of the node, [`lifecycle`] what the node says of processes that exited.

pub mod asks;
mod chunks;
mod connect;
pub mod control_channel;
mod directory;
pub mod doorbell;
pub(crate) mod entry;
mod exited;
pub mod inbox;
mod incoming;
pub mod lifecycle;
mod link;
mod links;
mod outgoing;
mod pages;
mod reader;
mod returns;
pub mod ring;
pub mod spin;
mod traced;
#[cfg(any(test, feature = "testing"))]
mod usage;
mod waiting;
mod wake_reasons;
mod watching;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use dashmap::DashMap;
use parking_lot::{Condvar, Mutex, RwLock};
use tokio::sync::{Notify, watch};

pub use asks::AskFailure;
pub(crate) use directory::{Arrival, Way};
#[cfg(any(test, feature = "testing"))]
pub(crate) use incoming::Parts;
pub(crate) use link::Link;
#[cfg(any(test, feature = "testing"))]
pub(crate) use outgoing::{Claim, NotNow};
pub(crate) use outgoing::{Destination, TransmitError};
pub(crate) use waiting::{PlaceInQueue, Queue};
pub(crate) use watching::{Tell, Watcher};

use crate::clock::turn::TurnEnd;
use crate::clock::{ClockDomain, ProcessPages};
use crate::device::{Backend, Device, DeviceError};
use crate::ids::{ChunkId, DeviceId, ProcessId};
use crate::lease::{Pool, PoolOptions, Writers};
use crate::limits::{CHUNK_BYTES, MAX_ACTORS};
use crate::observe::hang_probe::HangProbe;
use crate::observe::metrics::ProcessMetrics;
use crate::os::Ears;
use crate::tensor::DeviceStream;
use control_channel::ControlChannel;
use inbox::Inbox;

/// See the module.
pub struct Transport {
    me: ProcessId,
    this: Weak<Transport>,
    domain: Arc<ClockDomain>,
    wake_page: pages::WakePage,
    ears: Ears,
    control: Arc<dyn ControlChannel>,
    links: links::Links,
    /// Processes that exited; their slots may come back in another life.
    exited: exited::ExitedProcesses,
    /// One per device in use.
    pools: RwLock<Vec<Arc<Pool>>>,
    chunks: DashMap<(ChunkId, bool), chunks::Known>,
    chunk_came: (Mutex<()>, Condvar),
    /// Of split memory of other processes.
    writers: Writers,
    /// Threads that wait for a chunk.
    mapping: AtomicUsize,
    /// A chunk of a process that ended is to be left to the leases on it.
    loosen: AtomicBool,
    inboxes: RwLock<Vec<Slot>>,
    next_inbox: AtomicUsize,
    asks: DashMap<u64, asks::Pending>,
    next_correlation: AtomicU64,
    directory: directory::Directory,
    watching: watching::Watching,
    gpu_budget: OnceLock<u64>,
    /// Where large bodies are written.
    scratch: OnceLock<DeviceStream>,
    counters: Counters,
    /// Messages delivered and not done with.
    open: AtomicUsize,
    /// See [`Transport::leaves_unread`].
    leaves_unread: AtomicBool,
    /// Something was published that nobody was rung for (see [`wake_reasons`]).
    deferred: AtomicBool,
    /// The reader waits for its doorbell, or is about to.
    parked: AtomicBool,
    /// Ends that wait.
    deferred_came: Notify,
    /// Whether a shutdown of the node has begun.
    stopping: watch::Sender<bool>,
    stopped: AtomicBool,
    /// Its process is to be taken for dead: nothing that it does is seen any more.
    #[cfg(any(test, feature = "testing"))]
    abandoned: AtomicBool,
    /// Whether the process is about to end, and its actors with a policy for that live on elsewhere.
    leaving: AtomicBool,
}

/// A location for an actor.
#[derive(Clone, Default)]
enum Slot {
    /// Nobody was there yet.
    #[default]
    Free,
    Taken(Arc<dyn Inbox>),
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
            Slot::Taken(inbox) => inbox.capacity(),
            Slot::Withdrawn { capacity, .. } => *capacity,
        }
    }
}

/// What a transport has counted since it opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) dead_letters: AtomicU64,
    pub(crate) bytes_lent: AtomicU64,
    pub(crate) bytes_fetched: AtomicU64,
    pub(crate) bytes_staged: AtomicU64,
}

/// What a transport has counted since it opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportStats {
    /// Frames sent to other processes.
    pub sent: u64,
    /// Frames taken from other processes.
    pub received: u64,
    /// Frames and notices refused because they were malformed or forged (WIRE-1).
    pub rejected: u64,
    /// Messages that no actor took, or that no handler was given because a tensor in them was lost with a process.
    pub dead_letters: u64,
    /// Bytes of tensors that went along as leases instead of being copied.
    pub bytes_not_copied: u64,
    /// Bytes of tensors that were copied to the device of the actor that got them, because it said so
    /// ([`Spawn::receive_on`](crate::node::Spawn::receive_on)) or could not reach them.
    pub bytes_fetched: u64,
    /// Of these, bytes that went through host memory because one GPU has no access to the other's memory.
    pub bytes_staged: u64,
}

/// Why a transport could not open, or a device not be used.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The operating system refused.
    #[error("the transport could not open: {0}")]
    Io(#[from] io::Error),
    /// A process hosts at most [`MAX_ACTORS`] actors in its life.
    #[error("this process has hosted {MAX_ACTORS} actors, which is the limit; start another worker")]
    TooManyActors,
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transport({}, {:?})", self.me, self.stats())
    }
}

impl Transport {
    /// Bytes that the pool of a GPU may take, unless it was opened with others: a quarter of its memory.
    fn device_budget(&self, backend: &Arc<dyn Backend>) -> u64 {
        let set = self.gpu_budget.get().copied();
        set.unwrap_or_else(|| (backend.total_bytes() / 4).max(CHUNK_BYTES))
    }

    /// Says how many bytes the pool of each GPU may take; the first to say so is right.
    pub fn set_gpu_budget(&self, bytes: u64) {
        let _ = self.gpu_budget.set(bytes);
    }

    /// Opens the transport of process `me`, whose control channel is `control`, with the pages that the node gave it.
    ///
    /// # Errors
    /// The operating system gives no memory or descriptors.
    pub fn open(
        me: ProcessId,
        control: Arc<dyn ControlChannel>,
        pages: ProcessPages,
    ) -> Result<Arc<Self>, TransportError> {
        let ProcessPages { clocks, epoch_page } = pages;
        let domain = ClockDomain::with_epoch_page(me, clocks, Some(epoch_page));
        let wake_page = pages::WakePage::create()?;
        let ears = Ears::create()?;
        let transport = Arc::new_cyclic(|this| Transport {
            me,
            this: Weak::clone(this),
            domain,
            wake_page,
            ears,
            control,
            links: links::Links::new(),
            exited: exited::ExitedProcesses::new(),
            pools: RwLock::default(),
            chunks: DashMap::new(),
            chunk_came: (Mutex::new(()), Condvar::new()),
            writers: Writers::default(),
            mapping: AtomicUsize::new(0),
            loosen: AtomicBool::new(false),
            inboxes: RwLock::new(Vec::new()),
            next_inbox: AtomicUsize::new(0),
            asks: DashMap::new(),
            next_correlation: AtomicU64::new(1),
            directory: directory::Directory::default(),
            watching: watching::Watching::default(),
            gpu_budget: OnceLock::new(),
            scratch: OnceLock::new(),
            counters: Counters::default(),
            open: AtomicUsize::new(0),
            leaves_unread: AtomicBool::new(false),
            deferred: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            deferred_came: Notify::new(),
            stopping: watch::Sender::new(false),
            stopped: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            #[cfg(any(test, feature = "testing"))]
            abandoned: AtomicBool::new(false),
        });
        // LEASE-4: what the earlier lives of this process made may come to it.
        transport.exited.note_before(me);
        #[cfg(any(test, feature = "testing"))]
        crate::testing::leaks::watch(Arc::downgrade(&transport));
        Ok(transport)
    }

    /// The process that it serves.
    pub fn process(&self) -> ProcessId {
        self.me
    }

    /// The clocks that the process can see.
    pub fn domain(&self) -> &Arc<ClockDomain> {
        &self.domain
    }

    /// The process's memory on `device`, made on first use.
    pub fn pool(&self, device: &Arc<dyn Backend>, options: PoolOptions) -> Arc<Pool> {
        if let Some(pool) = self.pool_on(device.id()) {
            return pool;
        }
        let mut pools = self.pools.write();
        if let Some(pool) = pools.iter().find(|pool| pool.device_id() == device.id()) {
            return Arc::clone(pool);
        }
        // Each pool numbers its chunks from a range of its own; a process has a handful of devices.
        let base = (pools.len() as u32) << 24;
        let pool = Pool::new(self.me, Arc::clone(device), Arc::clone(&self.domain), options, base);
        pool.surround(self.this.clone());
        pools.push(Arc::clone(&pool));
        pool
    }

    /// The process's memory on a device, made and the device opened on first use.
    ///
    /// # Errors
    /// This process cannot use the device.
    pub fn pool_for(&self, device: DeviceId) -> Result<Arc<Pool>, DeviceError> {
        if let Some(pool) = self.pool_on(device) {
            return Ok(pool);
        }
        let backend = Device::by_id(device)?.backend()?;
        let options = PoolOptions { budget: self.device_budget(&backend), ..PoolOptions::default() };
        Ok(self.pool(&backend, options))
    }

    /// The process's memory on a device, if it has used any.
    pub(crate) fn pool_on(&self, device: DeviceId) -> Option<Arc<Pool>> {
        self.pools.read().iter().find(|pool| pool.device_id() == device).map(Arc::clone)
    }

    /// The devices whose memory this process has used.
    pub(crate) fn devices_in_use(&self) -> Vec<DeviceId> {
        self.pools.read().iter().map(|pool| pool.device_id()).collect()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What it has counted.
    pub fn stats(&self) -> TransportStats {
        TransportStats {
            sent: self.counters.sent.load(Ordering::Relaxed),
            received: self.counters.received.load(Ordering::Relaxed),
            rejected: self.counters.rejected.load(Ordering::Relaxed),
            dead_letters: self.counters.dead_letters.load(Ordering::Relaxed),
            bytes_not_copied: self.counters.bytes_lent.load(Ordering::Relaxed),
            bytes_fetched: self.counters.bytes_fetched.load(Ordering::Relaxed),
            bytes_staged: self.counters.bytes_staged.load(Ordering::Relaxed),
        }
    }

    /// What the process and its actors have done. Memory that peers have given back is counted as given back, whether or
    /// not the reader has seen it.
    pub fn metrics(&self) -> ProcessMetrics {
        self.take_in_returns();
        let stats = self.stats();
        let inboxes = self.inboxes.read().clone();
        let actors = inboxes.iter().filter_map(|slot| match slot {
            Slot::Taken(inbox) => inbox.metrics(),
            Slot::Free | Slot::Withdrawn { .. } => None,
        });
        let mut metrics = ProcessMetrics {
            sent: stats.sent,
            received: stats.received,
            rejected: stats.rejected,
            dead_letters: stats.dead_letters,
            bytes_not_copied: stats.bytes_not_copied,
            open: self.open.load(Ordering::Relaxed),
            actors: actors.collect(),
            ..ProcessMetrics::default()
        };
        for pool in self.pools.read().iter() {
            let pool = pool.stats();
            metrics.bytes_in_flight += pool.lent_bytes;
            metrics.bytes_held += pool.held_bytes;
            metrics.pool_bytes += pool.chunk_bytes;
        }
        metrics
    }

    /// What stands still here, if anything does. Waits for nobody.
    pub(crate) fn hang_probe(&self) -> HangProbe {
        let inboxes = self.inboxes.read().clone();
        let actors = inboxes.iter().filter_map(|slot| match slot {
            Slot::Taken(inbox) => inbox.hang_probe(),
            Slot::Free | Slot::Withdrawn { .. } => None,
        });
        HangProbe { actors: actors.collect(), waits: self.domain.waiting() }
    }

    /// Whether a frame lies unread, a message was delivered and is not done with, or something waits to go out.
    pub fn is_busy(&self) -> bool {
        // Somebody may wait for a link that is still being made.
        let waits = || self.links.all().iter().any(|link| !link.is_broken() && link.has_waiting());
        self.open.load(Ordering::SeqCst) > 0 || waits() || self.open_links().iter().any(|link| link.is_busy())
    }

    /// Whether messages to it, which their senders have counted, will never be read though nobody has died: it has given up
    /// a peer.
    pub(crate) fn leaves_unread(&self) -> bool {
        self.leaves_unread.load(Ordering::SeqCst)
    }

    /// A shutdown of the node has begun: whoever waits in [`until_stopping`](Self::until_stopping) is told.
    pub(crate) fn begin_stopping(&self) {
        self.stopping.send_replace(true);
    }

    /// The process is about to end, and its actors that come back after failures live on elsewhere.
    pub(crate) fn begin_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Resolves when a shutdown of the node has begun, at once if that was before.
    pub(crate) fn until_stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopping = self.stopping.subscribe();
        async move {
            // An error is a transport that closed, and with it the process.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        }
    }

    /// Gives an actor a location in this process; `make` gets its index.
    ///
    /// # Errors
    /// [`TransportError::TooManyActors`].
    pub fn serve(&self, make: impl FnOnce(u16) -> Arc<dyn Inbox>) -> Result<u16, TransportError> {
        let index = self.next_inbox.fetch_add(1, Ordering::Relaxed);
        self.serve_at(index as u16, make(index as u16))?;
        Ok(index as u16)
    }

    /// Gives an actor the location `index`, which the node chose. What was meant for an earlier actor there carries
    /// that one's identity, and does not reach the new one.
    ///
    /// # Errors
    /// [`TransportError::TooManyActors`].
    pub fn serve_at(&self, index: u16, inbox: Arc<dyn Inbox>) -> Result<(), TransportError> {
        let index = usize::from(index);
        if index >= MAX_ACTORS {
            return Err(TransportError::TooManyActors);
        }
        let before = {
            let mut inboxes = self.inboxes.write();
            if inboxes.len() <= index {
                inboxes.resize(index + 1, Slot::Free);
            }
            std::mem::replace(&mut inboxes[index], Slot::Taken(inbox))
        };
        if matches!(before, Slot::Withdrawn { .. }) {
            // The node gives a location out again when it has given out all others.
            for link in self.links.all().iter() {
                link.reopen(index as u16);
            }
        }
        Ok(())
    }

    /// The actor at `index` is gone: its senders are told.
    pub fn withdraw(&self, index: u16) {
        self.withdraw_for(index, false);
    }

    /// As [`withdraw`](Self::withdraw); where the actor is `away`, its senders wait for its next life.
    pub(crate) fn withdraw_for(&self, index: u16, away: bool) {
        let slot = self.inboxes.write().get_mut(usize::from(index)).map(|slot| {
            let capacity = slot.capacity();
            std::mem::replace(slot, Slot::Withdrawn { away, capacity })
        });
        // Dropped here, without the lock: what waits in it are messages, and dropping those lets leases go.
        drop(slot);
        for link in self.links.all().iter() {
            link.close(index, away);
            link.ring(wake_reasons::CREDIT);
        }
    }

    /// Counts a message that a local sender handed over, until it is done with.
    pub(crate) fn opened(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a message that no handler gets.
    pub(crate) fn dead_letter(&self) {
        self.counters.dead_letters.fetch_add(1, Ordering::Relaxed);
    }

    /// The counterpart of [`opened`](Self::opened).
    pub(crate) fn done(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn inbox(&self, index: u16) -> Option<Arc<dyn Inbox>> {
        match self.inboxes.read().get(usize::from(index)) {
            Some(Slot::Taken(inbox)) => Some(Arc::clone(inbox)),
            _ => None,
        }
    }

    /// Whether the actor that was at `index` is started anew.
    pub(crate) fn is_away(&self, index: u16) -> bool {
        matches!(self.inboxes.read().get(usize::from(index)), Some(Slot::Withdrawn { away: true, .. }))
    }

    fn arc(&self) -> Option<Arc<Transport>> {
        self.this.upgrade()
    }

    fn open_links(&self) -> Vec<Arc<Link>> {
        self.links.all().iter().filter(|link| link.is_open()).map(Arc::clone).collect()
    }
}

impl TurnEnd for Transport {
    /// Publishes what the turn has gathered: one tail per link.
    fn turn_ended(&self) {
        self.publish_all(&self.links.all());
    }
}
