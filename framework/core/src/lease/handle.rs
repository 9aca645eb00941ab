//! A lease as a process holds it: one value per delivery or allocation, shared by every tensor made from it.
//!
//! When the last of them drops, the lease goes back on its own: to the pool of this process, or through
//! [`Returns`] to its owner (LEASE-2). With it go the tickets of every local stream that used the memory
//! (CLOCK-2), taken at that moment, so that they stand for all work enqueued before.
//!
//! A use is recorded as a stream, and gets its ticket only at the release. That one ticket stands for all
//! work enqueued before, so no kernel needs one of its own. More than [`MAX_RELEASE_TICKETS`] streams are
//! joined into one.
//!
//! A lease remembers its last writing clock value (`Lease::taint`). So an accumulator that never left its
//! stream, and has no ticket, is lost with what was added to it (DEATH-3). Every later use is refused, so the
//! value stays.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::LeaseId;
#[cfg(feature = "dlpack")]
use super::foreign::{Collector, Foreign};
use super::pool::Pool;
use super::sharing::{Handles, is_last};
use super::table::Uses;
use super::users::Users;
use super::writers::Writers;
use crate::clock::taint::{Tainted, TicketStatus};
use crate::clock::{ClockDomain, ClockError, Ticket};
use crate::device::{Access, ChunkMapping, DeviceError};
#[cfg(feature = "dlpack")]
use crate::ids::ChunkId;
use crate::ids::{DeviceId, ProcessId};
use crate::limits::MAX_RELEASE_TICKETS;
use crate::stream::Stream;

/// The way back to the owners of leases that other processes granted.
pub trait Returns: Send + Sync + 'static {
    /// Gives one lease back. Never blocks and never fails: room was reserved when the lease was taken
    /// (LEASE-2). `uses` are tickets of this process, [`MAX_RELEASE_TICKETS`] at most.
    fn release(&self, id: LeaseId, uses: &[Ticket]);

    /// A writable mapping of a chunk that another process owns, for a tensor handed over exclusively.
    ///
    /// # Errors
    /// The node does not have the chunk any more, or mapping it failed.
    fn writable(&self, id: LeaseId) -> Result<Arc<ChunkMapping>, DeviceError>;

    /// The pieces of other processes' split allocations that have a writer in this one.
    fn writers(&self) -> &Writers;
}

/// The right to use one allocation.
#[derive(Clone)]
pub struct Lease(Arc<Inner>);

struct Inner {
    id: LeaseId,
    device: DeviceId,
    domain: Arc<ClockDomain>,
    mapping: Arc<ChunkMapping>,
    /// Set when a writable mapping was needed beside a read-only `mapping`.
    writable: Mutex<Option<Arc<ChunkMapping>>>,
    offset: u64,
    bytes: u64,
    origin: Origin,
    /// It came with no lease left anywhere else, and nothing of it was sent since. Where this is not set, an
    /// owner can still see in its lease table that nobody else holds the memory.
    sole: AtomicBool,
    /// Its memory was split: it has a writer per piece, and nobody reads it.
    in_parts: AtomicBool,
    /// Tensors of this process that stand on this lease. Frames on their way and release queues are not
    /// counted.
    handles: Handles,
    users: Mutex<Users>,
    /// The stream that the memory was taken for or delivered to: where a kernel is thought to run that names
    /// no other.
    home: OnceLock<Stream>,
}

/// Tickets could not be made one: no stream of this process used the memory, or it cannot wait for them.
#[derive(Debug)]
pub(crate) struct NotJoined;

/// Streams could not be joined, so no ticket stands for what all of them did with the memory.
#[derive(Debug)]
pub(crate) struct Unordered {
    /// When what was written last is there.
    pub(crate) written: Option<Ticket>,
}

enum Origin {
    /// This process's own memory.
    Own(Arc<Pool>),
    /// Another's.
    Other(Arc<dyn Returns>),
    /// Nobody's here: another library of this process keeps it.
    #[cfg(feature = "dlpack")]
    Foreign(Foreign),
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("id", &self.0.id)
            .field("bytes", &self.0.bytes)
            .field("handles", &self.handles())
            .finish_non_exhaustive()
    }
}

impl Lease {
    /// A lease of the owner itself: on fresh memory, or (`sole` as the sender says) on memory that came back.
    pub(super) fn own(
        pool: Arc<Pool>,
        id: LeaseId,
        mapping: Arc<ChunkMapping>,
        offset: u64,
        bytes: u64,
        sole: bool,
    ) -> Self {
        let domain = Arc::clone(pool.domain());
        Self::new(id, domain, mapping, offset, bytes, Origin::Own(pool), sole)
    }

    /// A lease that came with a message from another process. The caller has checked that `offset` and
    /// `bytes` lie in the mapping, and has posted the hold if a third process owns the memory (LEASE-3).
    pub(crate) fn held(
        returns: Arc<dyn Returns>,
        id: LeaseId,
        domain: Arc<ClockDomain>,
        mapping: Arc<ChunkMapping>,
        offset: u64,
        bytes: u64,
        sole: bool,
    ) -> Self {
        Self::new(id, domain, mapping, offset, bytes, Origin::Other(returns), sole)
    }

    /// A lease on memory that another library of this process keeps: the only one, for it is in no lease
    /// table. `sole`: whether that library does not use it.
    #[cfg(feature = "dlpack")]
    pub(crate) fn foreign(
        domain: Arc<ClockDomain>,
        mapping: Arc<ChunkMapping>,
        bytes: u64,
        sole: bool,
        collector: &'static Collector,
    ) -> Self {
        // Told apart for whoever debugs; the memory is in no chunk that anybody else could name.
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let chunk = ChunkId { owner: domain.own(), index: u32::MAX };
        let id = LeaseId { chunk, entry: NUMBER.fetch_add(1, Ordering::Relaxed), generation: 0 };
        Self::new(id, domain, mapping, 0, bytes, Origin::Foreign(Foreign::new(collector)), sole)
    }

    /// Whether other processes can have leases on the memory.
    pub(crate) fn can_leave(&self) -> bool {
        #[cfg(feature = "dlpack")]
        return !matches!(self.0.origin, Origin::Foreign(_));
        #[cfg(not(feature = "dlpack"))]
        true
    }

    fn new(
        id: LeaseId,
        domain: Arc<ClockDomain>,
        mapping: Arc<ChunkMapping>,
        offset: u64,
        bytes: u64,
        origin: Origin,
        sole: bool,
    ) -> Self {
        Lease(Arc::new(Inner {
            id,
            device: mapping.device(),
            domain,
            mapping,
            writable: Mutex::new(None),
            offset,
            bytes,
            origin,
            sole: AtomicBool::new(sole),
            in_parts: AtomicBool::new(false),
            handles: Handles::default(),
            users: Mutex::default(),
            home: OnceLock::new(),
        }))
    }

    /// Its name in the owner's lease table.
    pub fn id(&self) -> LeaseId {
        self.0.id
    }

    /// Whether both are the same lease, not only leases on the same memory.
    pub fn same_as(&self, other: &Lease) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The process whose memory it is.
    pub fn owner(&self) -> ProcessId {
        self.0.id.chunk.owner
    }

    inside! {
        /// The pool, when the memory is this process's own.
        pub fn pool(&self) -> Option<&Arc<Pool>> {
            match &self.0.origin {
                Origin::Own(pool) => Some(pool),
                _ => None,
            }
        }
    }

    /// The device that the memory is on.
    pub fn device(&self) -> DeviceId {
        self.0.device
    }

    /// The clocks of the node that it came by, which are the only ones that its tickets mean something among.
    pub(crate) fn domain(&self) -> &Arc<ClockDomain> {
        &self.0.domain
    }

    /// Whether it came by this node: whether the node's streams can wait for its tickets (CLOCK-1), and can
    /// say when they are done with the memory (CLOCK-2).
    #[inline]
    pub(crate) fn is_of(&self, domain: &Arc<ClockDomain>) -> bool {
        Arc::ptr_eq(&self.0.domain, domain)
    }

    inside! {
        /// Bytes from the chunk's start to the allocation.
        pub fn offset(&self) -> u64 {
            self.0.offset
        }
    }

    /// Size of the allocation in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    inside! {
        /// Address of the allocation in this process, for reading (for writing too, where the mapping is
        /// writable).
        pub fn address(&self) -> u64 {
            self.0.mapping.addr() + self.0.offset
        }
    }

    inside! {
        /// The mapping that [`address`](Self::address) lies in; work on a stream keeps it alive.
        pub fn mapping(&self) -> &Arc<ChunkMapping> {
            &self.0.mapping
        }
    }

    inside! {
        /// Address of the allocation for writing, and its mapping.
        ///
        /// # Errors
        /// The chunk of another process could not be mapped writable.
        pub fn writable(&self) -> Result<(u64, Arc<ChunkMapping>), DeviceError> {
            if self.0.mapping.access() == Access::ReadWrite {
                return Ok((self.address(), Arc::clone(&self.0.mapping)));
            }
            let Origin::Other(returns) = &self.0.origin else {
                return Err(DeviceError::Unsupported {
                    device: self.0.device,
                    what: "writing to memory that is there to be read only; copy it with `stream.copy(&tensor)`".into(),
                });
            };
            if self.0.domain.is_inherited() {
                // A forked child asks nobody; a mapping that was there before is here too.
                let known = self.0.writable.try_lock().and_then(|known| known.clone());
                let mapping = known.ok_or(ClockError::Forked)?;
                return Ok((mapping.addr() + self.0.offset, mapping));
            }
            let mut writable = self.0.writable.lock();
            let mapping = match &*writable {
                Some(mapping) => Arc::clone(mapping),
                None => returns.writable(self.0.id)?,
            };
            // WIRE-1: the place was checked against the read-only mapping; this is another, of the same
            // chunk.
            let address = mapping.range(self.0.offset, self.0.bytes).ok_or_else(|| DeviceError::Refused {
                what: format!(
                    "the writable mapping of chunk {} is shorter than the chunk",
                    self.0.id.chunk.index
                ),
            })?;
            *writable = Some(Arc::clone(&mapping));
            Ok((address, mapping))
        }
    }

    /// A writable mapping that is here already, for [`writable`](Self::writable).
    pub(crate) fn set_writable(&self, mapping: Arc<ChunkMapping>) {
        *self.0.writable.lock() = Some(mapping);
    }

    /// One more tensor stands on this lease.
    pub(crate) fn add_handle(&self) {
        self.0.handles.add();
    }

    /// One tensor fewer stands on this lease.
    pub(crate) fn remove_handle(&self) {
        self.0.handles.remove();
    }

    /// Tensors of this process that stand on this lease.
    pub fn handles(&self) -> usize {
        self.0.handles.count()
    }

    /// Whether this value is the only one on its lease, with all its clones gone: the tensors made of it, and
    /// the frames on their way that still hold it.
    pub(crate) fn is_last(&self) -> bool {
        is_last(&self.0)
    }

    /// Whether no other process has a lease on the memory, and this one no second one. Peers' releases are
    /// drained first.
    pub fn is_sole(&self) -> bool {
        if self.0.domain.is_inherited() {
            return false;
        }
        match &self.0.origin {
            Origin::Own(pool) => {
                (self.came_sole() && pool.came_back_sole(self.0.id)) || pool.is_sole(self.0.id)
            }
            _ => self.came_sole(),
        }
    }

    /// For the sender of a frame, after it has granted the receiver its lease and dropped the message:
    /// whether the receiver now is the only one; `shared`: what that grant returned. If not, this process is
    /// not either from now on.
    pub(crate) fn hand_over(&self, to: ProcessId, shared: bool) -> bool {
        let sole = self.is_last()
            && match &self.0.origin {
                Origin::Own(pool) => {
                    (self.came_sole() && pool.is_only_local(self.0.id))
                        || pool.is_sole_of(self.0.id, to, shared)
                }
                _ => self.came_sole(),
            };
        self.0.sole.store(false, Ordering::Relaxed);
        sole
    }

    fn came_sole(&self) -> bool {
        self.0.sole.load(Ordering::Relaxed)
    }

    /// The memory has a writer per piece from here on, in this process and others.
    pub(crate) fn set_in_parts(&self) {
        if let (false, Origin::Own(pool)) = (self.comes_in_parts(), &self.0.origin) {
            pool.set_in_parts(self.0.id, true);
        }
    }

    /// As [`set_in_parts`](Self::set_in_parts), of memory of which the owner's lease table says so already;
    /// whether the lease did.
    pub(super) fn comes_in_parts(&self) -> bool {
        self.0.sole.store(false, Ordering::Relaxed);
        self.0.in_parts.swap(true, Ordering::Relaxed)
    }

    /// Whether the memory has a writer per piece.
    pub(crate) fn is_in_parts(&self) -> bool {
        self.0.in_parts.load(Ordering::Relaxed)
    }

    /// All pieces are in this process, and only this lease is left of theirs: what others still have in the
    /// owner's lease table is on its way back, and nobody uses it any more.
    pub(crate) fn set_whole(&self) {
        if let (true, Origin::Own(pool)) = (self.0.in_parts.swap(false, Ordering::Relaxed), &self.0.origin) {
            pool.set_in_parts(self.0.id, false);
        }
        self.0.sole.store(true, Ordering::Relaxed);
    }

    /// The pieces of this memory that have a writer in this process.
    pub(crate) fn writers(&self) -> &Writers {
        match &self.0.origin {
            Origin::Own(pool) => pool.writers(),
            Origin::Other(returns) => returns.writers(),
            #[cfg(feature = "dlpack")]
            Origin::Foreign(foreign) => &foreign.writers,
        }
    }

    /// Uses by others that a new writer has to wait for: those that the owner's lease table has recorded.
    pub(crate) fn recorded_uses(&self) -> Uses {
        match &self.0.origin {
            Origin::Own(pool) => pool.uses(self.0.id),
            _ => Uses::new(),
        }
    }

    /// Notes that work on `stream` uses the memory: its end will be waited for before the memory is used
    /// again.
    pub(crate) fn used_on(&self, stream: &Stream) {
        self.users_with(stream).add_open(stream);
    }

    /// Its users, for one more. CLOCK-2: what they say at the end is looked up among the clocks of the
    /// lease's own node.
    #[inline]
    fn users_with(&self, stream: &Stream) -> MutexGuard<'_, Users> {
        debug_assert!(self.is_of(stream.domain()), "a stream of another node, which `check_node` refuses");
        self.0.users.lock()
    }

    /// Notes that `stream` was put behind earlier uses of the memory, and does nothing with it yet.
    pub(crate) fn ordered_on(&self, stream: &Stream) {
        self.users_with(stream).add(stream);
    }

    /// Notes work on `stream` that is enqueued, uses the memory and is over at `end`, which the stream writes
    /// without being asked.
    #[cfg(any(feature = "graphs", feature = "foreign"))]
    pub(crate) fn used_until(&self, stream: &Stream, end: Ticket, writes: bool) {
        let mut users = self.users_with(stream);
        users.add_until(stream, end);
        // What is tainted stays it, as in `written_on`.
        if writes && !users.is_lost(&self.0.domain) {
            users.written = Some(end);
        }
    }

    /// For who has the last handle and does no more with the memory: `end`, which `stream` gave out behind
    /// all that was done with it there, stands for that. Nothing where there is another handle, whose uses
    /// may still come.
    #[cfg(feature = "foreign")]
    pub(crate) fn closes_at(&self, stream: &Stream, end: Ticket) {
        if self.is_last() {
            self.0.users.lock().close_at(stream, end);
        }
    }

    /// As [`used_on`](Self::used_on), for work that writes.
    pub(crate) fn written_on(&self, stream: &Stream) {
        let mut users = self.users_with(stream);
        users.add_open(stream);
        // The update may have come since the write was allowed: what is tainted stays it (DEATH-3).
        if !users.is_lost(&self.0.domain) {
            users.written = Some(stream.next_ticket());
        }
    }

    /// Whether what this process has written here depends on the death of a process, and on whose: the ticket
    /// to refuse it by.
    pub(crate) fn taint(&self) -> Option<Tainted> {
        if !self.0.domain.has_taint() {
            return None;
        }
        let ticket = self.0.users.lock().written?;
        self.0.domain.tainted_by(&ticket).map(|by| Tainted { ticket, by })
    }

    /// Says which stream the memory belongs to; the first to say so is right.
    pub(crate) fn set_home(&self, stream: &Stream) {
        let _ = self.0.home.set(stream.clone());
    }

    /// The stream that the memory was taken for or delivered to.
    #[cfg(feature = "cuda")]
    pub(crate) fn home(&self) -> Option<Stream> {
        self.0.home.get().cloned()
    }

    /// Streams of this process that used the memory.
    pub(crate) fn users(&self) -> SmallVec<[Stream; 1]> {
        self.0.users.lock().streams.clone()
    }

    /// Whether `stream` was the last of this process to write the memory.
    pub(crate) fn was_written_by(&self, stream: &Stream) -> bool {
        self.0.users.lock().written.is_some_and(|ticket| ticket.slot == stream.next_ticket().slot)
    }

    /// As [`taint`](Self::taint), for data that is there at a ticket.
    pub(crate) fn taint_at(&self, ready: Option<Ticket>) -> Option<Tainted> {
        if !self.0.domain.has_taint() {
            return None;
        }
        let by = |ticket| self.0.domain.tainted_by(&ticket).map(|by| Tainted { ticket, by });
        ready.and_then(by).or_else(|| self.taint())
    }

    /// Puts the first stream that used the memory behind `tickets`; false when no stream did, or it could not
    /// be.
    pub(crate) fn join_uses(&self, tickets: Uses) -> bool {
        let users = self.users();
        users.first().is_some_and(|first| join(first, tickets).is_ok())
    }

    /// One ticket that stands for all of `tickets`, which local streams or whoever sent the lease gave out;
    /// several are joined into the first stream that used the memory.
    ///
    /// # Errors
    /// There is none, or its device is lost.
    pub(crate) fn one_of(&self, mut tickets: Uses) -> Result<Option<Ticket>, NotJoined> {
        if tickets.len() <= 1 {
            return Ok(tickets.pop());
        }
        let users = self.users();
        let first = users.first().ok_or(NotJoined)?;
        let tainted = || tickets.iter().copied().find(|ticket| self.0.domain.tainted_by(ticket).is_some());
        if let Err(error) = first.join(tickets.iter().copied())
            && tainted().is_none()
        {
            tracing::error!(%error, "what was done with a tensor cannot be waited for");
            return Err(NotJoined);
        }
        let joined = first.ticket();
        // Tainted data stays tainted, even if the stream has gone on since (DEATH-3).
        Ok(tainted().or(joined))
    }

    /// One ticket that stands for everything the local streams did with the memory so far; several streams
    /// are joined into the first. `None` when there is nothing to wait for.
    ///
    /// # Errors
    /// The first stream cannot be put behind the others: its device is lost to this process. The data is
    /// there at the ticket in the error; what readers on other streams still do, nothing stands for.
    pub(crate) fn joined_ticket(&self) -> Result<Option<Ticket>, Unordered> {
        let end = self.0.users.lock().end();
        if let Some(end) = end {
            let lost = self.taint().map(|tainted| tainted.ticket);
            return Ok(lost.or_else(|| self.0.still_ahead(end)));
        }
        let users = self.users();
        let Some((first, rest)) = users.split_first() else { return Ok(None) };
        let (mut lost, mut unordered, mut written) = (None, false, None);
        for other in rest {
            let Some(ticket) = other.ticket() else { continue };
            let wrote = self.was_written_by(other);
            let joined = if wrote { first.join([ticket]) } else { join(first, [ticket]) };
            if wrote {
                written = Some(ticket);
            }
            let Err(error) = joined else { continue };
            if wrote && self.0.domain.tainted_by(&ticket).is_some() {
                // The order is kept all the same; whoever reads is refused.
                lost = Some(ticket);
            } else {
                tracing::error!(%error, "streams that used a tensor could not be joined");
                unordered = true;
            }
        }
        let ticket = first.ticket();
        // Data that was lost stays lost, however far its stream has come since.
        let lost = self.taint().map(|tainted| tainted.ticket).or(lost);
        if unordered {
            return Err(Unordered { written: lost.or(written).or(ticket) });
        }
        Ok(lost.or(ticket))
    }
}

impl Inner {
    /// In a forked child: the lease is the parent's alone. Nothing is given back, unmapped or locked here.
    #[cold]
    fn leave_to_parent(&mut self) {
        std::mem::forget(std::mem::take(&mut self.users.get_mut().streams));
        std::mem::forget((Arc::clone(&self.domain), Arc::clone(&self.mapping), self.home.take()));
        std::mem::forget(self.writable.get_mut().take());
        match &self.origin {
            Origin::Own(pool) => std::mem::forget(Arc::clone(pool)),
            Origin::Other(returns) => std::mem::forget(Arc::clone(returns)),
            #[cfg(feature = "dlpack")]
            Origin::Foreign(_) => {}
        }
    }

    /// The ticket, unless all that it stands for has run to its end.
    fn still_ahead(&self, ticket: Ticket) -> Option<Ticket> {
        (!matches!(self.domain.status(&ticket), Ok(TicketStatus::Ready))).then_some(ticket)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.domain.is_inherited() {
            self.leave_to_parent();
            return;
        }
        let end = self.users.get_mut().end();
        let users = std::mem::take(&mut self.users.get_mut().streams);
        let mut uses: Uses = match end {
            Some(end) => self.still_ahead(end).into_iter().collect(),
            None => users.iter().filter_map(Stream::ticket).collect(),
        };
        match &self.origin {
            Origin::Own(pool) => pool.release_local(self.id, &uses, *self.in_parts.get_mut()),
            Origin::Other(returns) => {
                if let (true, Some(first)) = (uses.len() > MAX_RELEASE_TICKETS, users.first()) {
                    if let Err(error) = join(first, uses.drain(..)) {
                        // To give it back without its uses would let its owner use the memory under them
                        // (CLOCK-2). The owner has it back when this process ends, which a process without
                        // its device does.
                        tracing::error!(%error, "a lease is kept: what was done with its memory cannot be told");
                        return;
                    }
                    uses.extend(first.ticket());
                }
                returns.release(self.id, &uses);
            }
            #[cfg(feature = "dlpack")]
            Origin::Foreign(foreign) => foreign.release(&self.domain, &self.mapping, uses),
        }
    }
}

/// Puts `first` behind `tickets`. An error is a device that is lost to this process, and no failure of
/// earlier work.
fn join(first: &Stream, tickets: impl IntoIterator<Item = Ticket>) -> Result<(), DeviceError> {
    first.wait_in_order(tickets)
}
