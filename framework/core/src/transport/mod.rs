//! A process's transport: its links to all peers, the memory that it lends and borrows, and the mailboxes it
//! serves.
//!
//! The actor layer (addresses, mailboxes), the node's side of a process, and every lease on memory of other
//! processes use it.
//!
//! # The way of a message
//! Read the files in this order; a message passes each of them once.
//!
//! | step | file |
//! |---|---|
//! | send: an attempt, or a place in the queue | `actor/sending.rs`, `waiting` |
//! | directory: where the actor is | `route`, `directory` |
//! | links: the link to that process | `links`, `connect`, `link` |
//! | outgoing: claim, encode, drop, commit | `outgoing`, `link/sender.rs` |
//! | publish: the ring's tail moves, at the end of the turn | `publish` |
//! | ring, doorbell: shared memory | `transport/ring/`, `pages`, `entry`, `transport/doorbell.rs`, `wake_reasons` |
//! | reader: the receiver polls the link | `reader`, `link/receiver.rs` |
//! | incoming: checked, its leases adopted | `incoming`, `chunks` |
//! | inbox: decoded, and put into the mailbox | `actors`, `inbox` |
//! | handler | `actor/inbox/task.rs`, `actor/handles.rs` |
//!
//! On the way back, a credit or a reply goes from the receipt in `inbox` through `replies`, and leases go
//! through `returns`. `forwards` tells a third process of leases on its memory.
//!
//! # The parts
//! Each part owns its state and its locks in its file, with the methods for it. Its callers go to the part, a
//! field of [`Transport`], and pass it the other parts that it needs. The files that work across parts
//! (`outgoing`, `replies`, `forwards`, `publish`, `reader`, `incoming`, `returns`, `connect`, `renewal`,
//! `from_node`, `endings`, `until_read`, `blame`, `route`) own nothing and have no lock of their own.
//!
//! | part | owns |
//! |---|---|
//! | `memory`, `chunks` | the pools, the chunks of others that are mapped here |
//! | `links`, `link` | the links to all peers |
//! | `actors` | the places of mailboxes, how many messages are open |
//! | `asks` | the callers that wait for replies |
//! | `directory` | the locations of actors, and names |
//! | `fences`, `last_replies` | the callers to tell when sent frames were taken, and when all replies are sent |
//! | `wakeups` | the wake page, the doorbells, deferred wake-ups |
//! | `role` | the right to read |
//! | `counters` | the counts of frames and bytes |
//! | `lifecycle`, `exited`, `watching` | exited processes, watchers, and the stage of this process's own life |
//!
//! The work on one link is on a value that borrows the transport and the link:
//!
//! | value | work |
//! |---|---|
//! | `FrameSender` (`outgoing`, `replies`, `forwards`, `lending`) | frames out |
//! | `FrameTaker` (`incoming`) | frames in |
//! | `ReturnRings` (`returns`, `forwards`) | leases back, in both directions |
//! | `PeerHalf` (`connect`) | the half of a link that the peer sends |
//!
//! # Invariants
//! Each part names the invariants that it upholds. All of them uphold two: no thread waits here for another
//! process, except one that maps a chunk, with a deadline; and shared memory has one writer (ONE-WRITER, see
//! `pages`).
//!
//! # Locks
//! In the order in which they may nest. A lock is never taken inside another lock of the same line.
//!
//! 1. a link's `inbound`, while the reader takes frames;
//! 2. the chunks' `came`;
//! 3. a shard of the directory, of the asks, or of the chunks; a link's `notices_in`; the watchers' two;
//! 4. all links, for writing (`connect`) or reading;
//! 5. the places of actors; the pools; a link's `lacks`;
//! 6. a link's `out`, `notices_out`, credits, `guests`; a queue's places; a pool's own; the ringer of a
//!    doorbell.
//!
//! A message to the node may be sent under 1 to 3 and a pool's own. User code runs under no lock but 1, and
//! there only to decode messages.
//!
//! # On a crash, and on cancellation
//! On a crash of a peer its link breaks: its senders get their messages back, its asks fail; `endings` has
//! the steps. On a crash of this process its peers still read everything that it published. A cancelled send
//! gives up its place in the queue, and nothing was sent. A dropped ask is removed, and its reply is dropped.
//!
//! The transport knows no tensor. [`ring`] and [`doorbell`] are the protocols in shared memory. [`spin`]
//! decides when to stop polling. [`control_channel`] has the requests to the node, and [`lifecycle`] the
//! node's reports on processes that exited.

mod actors;
pub mod asks;
mod attention;
mod bad_half;
mod blame;
mod chunks;
mod connect;
pub mod control_channel;
mod counters;
mod deferred;
mod destination;
mod directory;
pub mod doorbell;
mod endings;
pub(crate) mod entry;
pub(crate) mod envelope;
mod exited;
mod fences;
mod forwards;
mod frame_buffer;
mod from_node;
pub(crate) mod gate;
#[cfg(feature = "hosts")]
pub mod gateway_messages;
#[cfg(any(test, feature = "bindings"))]
mod helper;
pub mod inbox;
mod incoming;
mod last_replies;
mod lease_limit;
mod lending;
pub mod lifecycle;
mod link;
mod links;
mod local_credits;
mod memory;
mod outgoing;
mod pages;
mod parts;
mod process;
mod publish;
mod reader;
mod reader_state;
mod refused;
mod renewal;
mod replies;
mod returns;
pub mod ring;
mod role;
mod route;
pub mod spin;
mod survey;
mod traced;
mod transmit_error;
mod until_read;
#[cfg(any(test, feature = "testing"))]
mod usage;
mod waiting;
mod wake_reasons;
mod wakeups;
mod watching;
pub(crate) mod works_until;

use std::io;
use std::sync::{Arc, OnceLock, Weak};

use actors::Actors;
pub use asks::AskFailure;
use asks::Asks;
use counters::Counters;
pub use counters::TransportStats;
use directory::Directory;
use fences::Fences;
#[cfg(feature = "bindings")]
pub use helper::Helper;
use last_replies::LastReplies;
use links::Links;
use memory::Memory;
use process::ProcessLifecycle;
use role::Role;
use wakeups::Wakeups;

pub(crate) use destination::Destination;
#[cfg(any(test, feature = "testing"))]
pub use frame_buffer::FrameBuffer;
pub use lease_limit::LeaseLimit;
pub(crate) use link::Link;
#[cfg(any(test, feature = "testing"))]
pub(crate) use outgoing::Claim;
#[cfg(any(test, feature = "testing"))]
pub(crate) use parts::Parts;
pub(crate) use publish::PublishingThread;
pub(crate) use refused::LinkRefused;
pub use refused::WhyRefused;
pub(crate) use route::{NoRoute, Route};
pub(crate) use transmit_error::{NotNow, TransmitError};
pub(crate) use waiting::{PlaceInQueue, Queue};
pub(crate) use watching::{Tell, Watcher};

use crate::clock::{ClockDomain, ProcessPages};
use crate::device::{Backend, DeviceError};
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::lease::{Pool, PoolOptions};
use crate::limits::MAX_ACTORS;
use crate::observe::hang_probe::HangProbe;
use crate::observe::metrics::ProcessMetrics;
use crate::os::{Birth, fork, remedy_of_start, resident_bytes};
use crate::stream;
use control_channel::{ControlChannel, Location};
use inbox::{Inbox, Refusal};
use lifecycle::ExitedProcess;

/// See the module. Callers use its parts as such; a method stands here if it needs several of them.
pub struct Transport {
    me: ProcessId,
    this: Weak<Transport>,
    domain: Arc<ClockDomain>,
    pub(crate) wakeups: Wakeups,
    role: Role,
    pub(crate) control: Arc<dyn ControlChannel>,
    pub(crate) links: Links,
    pub(crate) memory: Memory,
    pub(crate) actors: Actors,
    pub(crate) asks: Asks,
    pub(crate) directory: Directory,
    fences: Fences,
    pub(crate) last_replies: LastReplies,
    pub(crate) lifecycle: ProcessLifecycle,
    pub(crate) counters: Counters,
    birth: Birth,
    /// Set in the process that is the gateway.
    pub(crate) gate: OnceLock<Arc<dyn gate::Gate>>,
}

/// Why a transport could not open, or a device could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The operating system refused.
    #[error("the transport could not open: {0}{remedy}", remedy = remedy_of_start(.0))]
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
    /// Opens the transport of process `me`, whose control channel is `control`, with the pages that the node
    /// gave it.
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
        let wakeups = Wakeups::open()?;
        let transport = Arc::new_cyclic(|this| {
            let memory = Memory::new(Arc::clone(&domain), Weak::clone(this));
            Transport {
                me,
                this: Weak::clone(this),
                domain,
                wakeups,
                role: Role::new(),
                control,
                links: Links::new(),
                memory,
                actors: Actors::new(),
                asks: Asks::new(),
                directory: Directory::new(me),
                fences: Fences::default(),
                last_replies: LastReplies::default(),
                lifecycle: ProcessLifecycle::begin(me),
                counters: Counters::default(),
                birth: Birth::here(),
                gate: OnceLock::new(),
            }
        });
        #[cfg(any(test, feature = "testing"))]
        crate::testing::leaks::watch(Arc::downgrade(&transport));
        Ok(transport)
    }

    /// Returns whether this process was forked from the one that the transport serves. A fork sends, answers
    /// and gives back nothing.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.birth.is_inherited()
    }

    /// Returns the process that it serves.
    pub fn process(&self) -> ProcessId {
        self.me
    }

    /// Returns the clocks that the process can see.
    pub fn domain(&self) -> &Arc<ClockDomain> {
        &self.domain
    }

    /// Returns the process's memory on `device`, made on first use.
    pub fn pool(&self, device: &Arc<dyn Backend>, options: PoolOptions) -> Arc<Pool> {
        self.memory.pool(device, options)
    }

    /// Returns the process's memory on a device. On first use it opens the device and makes the pool.
    ///
    /// # Errors
    /// This process cannot use the device.
    pub fn pool_for(&self, device: DeviceId) -> Result<Arc<Pool>, DeviceError> {
        self.memory.pool_for(device)
    }

    /// Returns its counters.
    pub fn stats(&self) -> TransportStats {
        self.counters.stats()
    }

    /// Returns counters of the process and its actors. Memory that peers have given back counts as given
    /// back, even if the reader has not seen it yet.
    pub fn metrics(&self) -> ProcessMetrics {
        self.take_in_returns();
        let stats = self.stats();
        let actors = self.actors.metrics();
        let mut metrics = ProcessMetrics {
            sent: stats.sent,
            received: stats.received,
            rejected: stats.rejected,
            dead_letters: stats.dead_letters,
            bytes_not_copied: stats.bytes_not_copied,
            open: self.actors.open(),
            resident_bytes: resident_bytes(),
            actors,
            ..ProcessMetrics::default()
        };
        for pool in self.memory.pools().iter() {
            let pool = pool.stats();
            metrics.bytes_in_flight += pool.lent_bytes;
            metrics.bytes_held += pool.held_bytes;
            metrics.pool_bytes += pool.chunk_bytes;
        }
        metrics
    }

    /// Takes a snapshot for hang detection. Waits for nobody.
    pub(crate) fn hang_probe(&self) -> HangProbe {
        HangProbe { actors: self.actors.sights(), waits: stream::waiting(&self.domain) }
    }

    /// Returns whether a frame is unread, a delivered message is not done with yet, or something waits to go
    /// out.
    pub fn is_busy(&self) -> bool {
        self.actors.open() > 0 || self.links.are_waited_for() || self.links.are_busy()
    }

    /// Resolves when a shutdown of the node has begun; at once if it already has.
    pub fn until_stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        self.lifecycle.until_stopping()
    }

    /// Tells `watcher` from now on what happens to `actor`. The watcher is dropped when the node has ended.
    pub(crate) fn watch(&self, actor: ActorId, watcher: Watcher) {
        if self.is_inherited() {
            return;
        }
        self.lifecycle.watching.watch(actor, watcher, &*self.control);
    }

    /// Forgets an ask whose caller no longer waits. If a reply still comes, it is dropped, and its leases go
    /// back.
    pub(crate) fn forget_ask(&self, correlation: u64) {
        if self.is_inherited() {
            return;
        }
        self.asks.forget(correlation);
    }

    /// Returns what this process knows of a process that ended, for a caller that loses a message to or a
    /// reply of `actor` with it.
    pub(crate) fn exited(&self, process: ProcessId, actor: ActorId) -> ExitedProcess {
        self.directory.exited(process, actor, &self.lifecycle)
    }

    /// Notes that an actor of this process failed and is restarted. Senders of this process that wait for it
    /// keep waiting, in the queue that its mailbox had.
    pub(crate) fn goes_away(&self, actor: ActorId, location: Location) {
        self.directory.goes_away(actor, location, &self.links, &self.actors);
    }

    /// Fails the asks to a peer that will not reply any more.
    fn fail_asks(&self, peer: ProcessId) {
        self.asks.fail(peer, |actor| {
            let exited = self.exited(peer, actor);
            // A roaming actor may have lived in a worker of this host.
            let in_worker = exited.worker.as_ref().is_some_and(|(name, _)| name != lifecycle::GATEWAY);
            if !self.directory.is_on_other_host(actor) || actor.roams() && in_worker {
                return AskFailure::ProcessExited(exited);
            }
            // It lives on another host, and the gateway was the way to it.
            let exited = ExitedProcess { restarts: false, ..exited };
            AskFailure::Refused(Refusal::GatewayEnded(format!(
                "{exited}; a message to {actor} was under way there, and whether it was handled, nobody knows"
            )))
        });
    }

    /// Gives an actor a location in this process; `make` gets its index.
    ///
    /// # Errors
    /// [`TransportError::TooManyActors`].
    #[cfg(any(test, feature = "inside"))]
    pub fn serve(&self, make: impl FnOnce(u16) -> Arc<dyn Inbox>) -> Result<u16, TransportError> {
        let index = self.actors.next_index();
        self.serve_at(index as u16, make(index as u16))?;
        Ok(index as u16)
    }

    /// Gives an actor the location `index`, which the node chose. Messages for an earlier actor there carry
    /// its id, and do not reach the new one.
    ///
    /// # Errors
    /// [`TransportError::TooManyActors`].
    pub fn serve_at(&self, index: u16, inbox: Arc<dyn Inbox>) -> Result<(), TransportError> {
        self.actors.serve_at(index, inbox, &self.links)
    }

    /// Removes the actor at `index`, and tells its senders.
    pub fn withdraw(&self, index: u16) {
        self.withdraw_for(index, false);
    }

    /// Does the same as [`withdraw`](Self::withdraw). If the actor is `away`, its senders wait for its next
    /// life.
    pub(crate) fn withdraw_for(&self, index: u16, away: bool) {
        if self.is_inherited() {
            return;
        }
        self.actors.withdraw(index, away, &self.links);
    }

    /// Ends a forked child that has returned into its parent's code, from a handler for example. The actors
    /// belong to the parent, and peers know only the parent.
    pub(crate) fn end_fork(&self, status: i32) {
        if self.is_inherited() {
            fork::end(status);
        }
    }
}
