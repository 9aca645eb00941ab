//! A lease in the process that holds it: one value per delivery or allocation, shared by every tensor made
//! from it.
//!
//! When the last of them drops, the lease goes back on its own: to the pool of this process, or through
//! [`Returns`] to its owner (LEASE-2). The tickets of every local stream that used the memory go with it
//! (CLOCK-2). They are taken at that moment, so they cover all work enqueued before.
//!
//! A use is recorded as a stream, and gets its ticket only at the release. That one ticket covers all work
//! enqueued before, so no kernel needs a ticket of its own. If more than [`MAX_RELEASE_TICKETS`] streams used
//! the memory, they are joined into one.
//!
//! A lease remembers its last writing clock value (`Lease::taint`). So an accumulator that never left its
//! stream, and has no ticket, counts as lost if data added to it was lost (DEATH-3). Every later use is
//! refused, so the value no longer changes.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::LeaseId;
#[cfg(feature = "dlpack")]
use super::external::{Collector, External};
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
    /// Gives one lease back. Never blocks and never fails: room was reserved when the lease was granted
    /// (LEASE-2). `uses` are tickets of this process, [`MAX_RELEASE_TICKETS`] at most.
    fn release(&self, id: LeaseId, uses: &[Ticket]);

    /// Returns a writable mapping of a chunk that another process owns, for a tensor handed over exclusively.
    ///
    /// # Errors
    /// The node does not have the chunk any more, or mapping it failed.
    fn writable(&self, id: LeaseId) -> Result<Arc<ChunkMapping>, DeviceError>;

    /// Returns the pieces of other processes' split allocations that have a writer in this process.
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
    /// The lease arrived with no other lease left on the memory, and nothing was sent from it since. If this
    /// is not set, the owner can still see in its lease table that nobody else holds the memory.
    sole: AtomicBool,
    /// The memory was split: each piece has its writer, and nobody reads the whole.
    in_parts: AtomicBool,
    /// Counts the tensors of this process on this lease. Frames on their way and release queues are not
    /// counted.
    handles: Handles,
    users: Mutex<Users>,
    /// The stream that the memory was allocated for or delivered to. A kernel that names no stream is assumed
    /// to run on it.
    home: OnceLock<Stream>,
}

/// The tickets could not be joined into one: no stream of this process used the memory, or the stream cannot
/// wait for them.
#[derive(Debug)]
pub(crate) struct NotJoined;

/// The streams could not be joined, so no one ticket covers the work of all of them on the memory.
#[derive(Debug)]
pub(crate) struct Unordered {
    /// The ticket at which the data written last is there.
    pub(crate) written: Option<Ticket>,
}

enum Origin {
    /// This process's own memory.
    Own(Arc<Pool>),
    /// Memory of another process.
    Other(Arc<dyn Returns>),
    /// Memory in no pool: another library of this process keeps it.
    #[cfg(feature = "dlpack")]
    External(External),
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
    /// Makes a lease of the owner itself, on fresh memory or on memory that came back; then `sole` is what
    /// the sender said.
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

    /// Makes the lease that came with a message from another process. The caller has checked that `offset`
    /// and `bytes` lie in the mapping, and has posted the hold if a third process owns the memory (LEASE-3).
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

    /// Makes a lease on memory that another library of this process keeps. It is the only lease on it,
    /// because it is in no lease table. `sole` says that the library does not use the memory.
    #[cfg(feature = "dlpack")]
    pub(crate) fn external(
        domain: Arc<ClockDomain>,
        mapping: Arc<ChunkMapping>,
        bytes: u64,
        sole: bool,
        collector: &'static Collector,
    ) -> Self {
        // The number only tells leases apart in debug output; the memory is in no chunk that another process
        // could name.
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let chunk = ChunkId { owner: domain.own(), index: u32::MAX };
        let id = LeaseId { chunk, entry: NUMBER.fetch_add(1, Ordering::Relaxed), generation: 0 };
        Self::new(id, domain, mapping, 0, bytes, Origin::External(External::new(collector)), sole)
    }

    /// Returns whether other processes can have leases on the memory.
    pub(crate) fn can_leave(&self) -> bool {
        #[cfg(feature = "dlpack")]
        return !matches!(self.0.origin, Origin::External(_));
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

    /// Returns its name in the owner's lease table.
    pub fn id(&self) -> LeaseId {
        self.0.id
    }

    /// Returns whether both are the same lease, not only leases on the same memory.
    pub fn same_as(&self, other: &Lease) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the process that owns the memory.
    pub fn owner(&self) -> ProcessId {
        self.0.id.chunk.owner
    }

    inside! {
        /// Returns the pool, if this process owns the memory.
        pub fn pool(&self) -> Option<&Arc<Pool>> {
            match &self.0.origin {
                Origin::Own(pool) => Some(pool),
                _ => None,
            }
        }
    }

    /// Returns the device that the memory is on.
    pub fn device(&self) -> DeviceId {
        self.0.device
    }

    /// Returns the clocks of the node that the lease came by. Its tickets mean something only among these
    /// clocks.
    pub(crate) fn domain(&self) -> &Arc<ClockDomain> {
        &self.0.domain
    }

    /// Returns whether the lease came by this node. Only then can the node's streams wait for its tickets
    /// (CLOCK-1), and tell when they are done with the memory (CLOCK-2).
    #[inline]
    pub(crate) fn is_of(&self, domain: &Arc<ClockDomain>) -> bool {
        Arc::ptr_eq(&self.0.domain, domain)
    }

    inside! {
        /// Returns the number of bytes from the chunk's start to the allocation.
        pub fn offset(&self) -> u64 {
            self.0.offset
        }
    }

    /// Returns the size of the allocation in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    inside! {
        /// Returns the address of the allocation in this process, for reading, and for writing too if the
        /// mapping is writable.
        pub fn address(&self) -> u64 {
            self.0.mapping.addr() + self.0.offset
        }
    }

    inside! {
        /// Returns the mapping that [`address`](Self::address) lies in. Work on a stream keeps it alive.
        pub fn mapping(&self) -> &Arc<ChunkMapping> {
            &self.0.mapping
        }
    }

    inside! {
        /// Returns the address of the allocation for writing, and its mapping.
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
                // A forked child asks no other process, but it has the mapping that its parent had before the
                // fork.
                let known = self.0.writable.try_lock().and_then(|known| known.clone());
                let mapping = known.ok_or(ClockError::Forked)?;
                return Ok((mapping.addr() + self.0.offset, mapping));
            }
            let mut writable = self.0.writable.lock();
            let mapping = match &*writable {
                Some(mapping) => Arc::clone(mapping),
                None => returns.writable(self.0.id)?,
            };
            // WIRE-1: the range was checked against the read-only mapping; this is another mapping of the
            // same chunk.
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

    /// Gives [`writable`](Self::writable) a writable mapping that this process already has.
    pub(crate) fn set_writable(&self, mapping: Arc<ChunkMapping>) {
        *self.0.writable.lock() = Some(mapping);
    }

    /// Counts one tensor more on this lease.
    pub(crate) fn add_handle(&self) {
        self.0.handles.add();
    }

    /// Counts one tensor fewer on this lease.
    pub(crate) fn remove_handle(&self) {
        self.0.handles.remove();
    }

    /// Tensors of this process that stand on this lease.
    pub fn handles(&self) -> usize {
        self.0.handles.count()
    }

    /// Returns whether this value is the only one on its lease. Its clones, in tensors made from it and in
    /// frames on their way, are then all gone.
    pub(crate) fn is_last(&self) -> bool {
        is_last(&self.0)
    }

    /// Returns whether this is the only lease on the memory, in this process and in all others. Releases from
    /// peers are drained first.
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

    /// Returns whether the receiver of a frame now holds the only lease. The sender calls this after it has
    /// granted the receiver its lease and dropped the message; `shared` is what that grant returned. In
    /// either case the sender's own lease no longer counts as the only one.
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

    /// Marks the memory as split: from here on each piece has its own writer, in this process or another.
    pub(crate) fn set_in_parts(&self) {
        if let (false, Origin::Own(pool)) = (self.comes_in_parts(), &self.0.origin) {
            pool.set_in_parts(self.0.id, true);
        }
    }

    /// Does the same as [`set_in_parts`](Self::set_in_parts), for memory that the owner's lease table already
    /// shows as split. Returns whether this lease showed it too.
    pub(super) fn comes_in_parts(&self) -> bool {
        self.0.sole.store(false, Ordering::Relaxed);
        self.0.in_parts.swap(true, Ordering::Relaxed)
    }

    /// Returns whether the memory has a writer per piece.
    pub(crate) fn is_in_parts(&self) -> bool {
        self.0.in_parts.load(Ordering::Relaxed)
    }

    /// Marks the memory as whole again: all pieces are in this process, and this is the only lease on them.
    /// Leases that the owner's lease table still shows for other processes are on their way back and unused.
    pub(crate) fn set_whole(&self) {
        if let (true, Origin::Own(pool)) = (self.0.in_parts.swap(false, Ordering::Relaxed), &self.0.origin) {
            pool.set_in_parts(self.0.id, false);
        }
        self.0.sole.store(true, Ordering::Relaxed);
    }

    /// Returns the pieces of this memory that have a writer in this process.
    pub(crate) fn writers(&self) -> &Writers {
        match &self.0.origin {
            Origin::Own(pool) => pool.writers(),
            Origin::Other(returns) => returns.writers(),
            #[cfg(feature = "dlpack")]
            Origin::External(external) => &external.writers,
        }
    }

    /// Returns the uses by other processes that a new writer has to wait for, as recorded in the owner's
    /// lease table.
    pub(crate) fn recorded_uses(&self) -> Uses {
        match &self.0.origin {
            Origin::Own(pool) => pool.uses(self.0.id),
            _ => Uses::new(),
        }
    }

    /// Notes that work on `stream` uses the memory. The memory is not reused before that work ends.
    pub(crate) fn used_on(&self, stream: &Stream) {
        self.users_with(stream).add_open(stream);
    }

    /// Locks the list of users, to add one. CLOCK-2: their tickets are later looked up among the clocks of
    /// the lease's own node.
    #[inline]
    fn users_with(&self, stream: &Stream) -> MutexGuard<'_, Users> {
        debug_assert!(self.is_of(stream.domain()), "a stream of another node, which `check_node` refuses");
        self.0.users.lock()
    }

    /// Notes that `stream` was put behind earlier uses of the memory, and has no work on it yet.
    pub(crate) fn ordered_on(&self, stream: &Stream) {
        self.users_with(stream).add(stream);
    }

    /// Notes that work already enqueued on `stream` uses the memory and is over at `end`, which the stream
    /// writes without being asked.
    #[cfg(any(feature = "graphs", feature = "bindings"))]
    pub(crate) fn used_until(&self, stream: &Stream, end: Ticket, writes: bool) {
        let mut users = self.users_with(stream);
        users.add_until(stream, end);
        // Tainted memory stays tainted, as in `written_on`.
        if writes && !users.is_lost(&self.0.domain) {
            users.written = Some(end);
        }
    }

    /// Notes that the holder of the last handle is done with the memory: `end`, which `stream` issued after
    /// all its work there, covers that work. Does nothing if there is another handle, whose uses may still
    /// come.
    #[cfg(feature = "bindings")]
    pub(crate) fn closes_at(&self, stream: &Stream, end: Ticket) {
        if self.is_last() {
            self.0.users.lock().close_at(stream, end);
        }
    }

    /// Does the same as [`used_on`](Self::used_on), for work that writes.
    pub(crate) fn written_on(&self, stream: &Stream) {
        let mut users = self.users_with(stream);
        users.add_open(stream);
        // The taint may have arrived since the write was allowed: tainted memory stays tainted (DEATH-3).
        if !users.is_lost(&self.0.domain) {
            users.written = Some(stream.next_ticket());
        }
    }

    /// Returns the taint if data that this process wrote here depends on a dead process: the ticket to refuse
    /// the use by, and the process.
    pub(crate) fn taint(&self) -> Option<Tainted> {
        if !self.0.domain.has_taint() {
            return None;
        }
        let ticket = self.0.users.lock().written?;
        self.0.domain.tainted_by(&ticket).map(|by| Tainted { ticket, by })
    }

    /// Sets the stream that the memory belongs to. Only the first call counts.
    pub(crate) fn set_home(&self, stream: &Stream) {
        let _ = self.0.home.set(stream.clone());
    }

    /// Returns the stream that the memory was allocated for or delivered to.
    #[cfg(feature = "cuda")]
    pub(crate) fn home(&self) -> Option<Stream> {
        self.0.home.get().cloned()
    }

    /// Returns the streams of this process that used the memory.
    pub(crate) fn users(&self) -> SmallVec<[Stream; 1]> {
        self.0.users.lock().streams.clone()
    }

    /// Returns whether `stream` was the last of this process to write the memory.
    pub(crate) fn was_written_by(&self, stream: &Stream) -> bool {
        self.0.users.lock().written.is_some_and(|ticket| ticket.slot == stream.next_ticket().slot)
    }

    /// Does the same as [`taint`](Self::taint), for data that is ready at a ticket.
    pub(crate) fn taint_at(&self, ready: Option<Ticket>) -> Option<Tainted> {
        if !self.0.domain.has_taint() {
            return None;
        }
        let by = |ticket| self.0.domain.tainted_by(&ticket).map(|by| Tainted { ticket, by });
        ready.and_then(by).or_else(|| self.taint())
    }

    /// Puts the first stream that used the memory behind `tickets`. Returns false if no stream used it, or
    /// the stream could not be put behind them.
    pub(crate) fn join_uses(&self, tickets: Uses) -> bool {
        let users = self.users();
        users.first().is_some_and(|first| join(first, tickets).is_ok())
    }

    /// Returns one ticket that covers all of `tickets`, which local streams or the sender of the lease
    /// issued. Several tickets are joined into the first stream that used the memory.
    ///
    /// # Errors
    /// No stream used the memory, or the device of the first one is lost.
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
        // Tainted data stays tainted, however far the stream has come since (DEATH-3).
        Ok(tainted().or(joined))
    }

    /// Returns one ticket that covers everything the local streams did with the memory so far. Several
    /// streams are joined into the first. Returns `None` if there is nothing to wait for.
    ///
    /// # Errors
    /// The first stream cannot be put behind the others: its device is lost to this process. The data is
    /// there at the ticket in the error. No ticket covers the work of readers on other streams.
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
                // The order holds all the same, and every reader is refused.
                lost = Some(ticket);
            } else {
                tracing::error!(%error, "streams that used a tensor could not be joined");
                unordered = true;
            }
        }
        let ticket = first.ticket();
        // Lost data stays lost, however far its stream has come since.
        let lost = self.taint().map(|tainted| tainted.ticket).or(lost);
        if unordered {
            return Err(Unordered { written: lost.or(written).or(ticket) });
        }
        Ok(lost.or(ticket))
    }
}

impl Inner {
    /// Forgets everything that the lease holds. A forked child calls it, because the lease is the parent's
    /// alone: the child gives back, unmaps and locks nothing.
    #[cold]
    fn leave_to_parent(&mut self) {
        std::mem::forget(std::mem::take(&mut self.users.get_mut().streams));
        std::mem::forget((Arc::clone(&self.domain), Arc::clone(&self.mapping), self.home.take()));
        std::mem::forget(self.writable.get_mut().take());
        match &self.origin {
            Origin::Own(pool) => std::mem::forget(Arc::clone(pool)),
            Origin::Other(returns) => std::mem::forget(Arc::clone(returns)),
            #[cfg(feature = "dlpack")]
            Origin::External(_) => {}
        }
    }

    /// Returns the ticket, unless all the work that it covers is complete.
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
                        // Giving the lease back without its uses would let the owner reuse the memory while
                        // they still run (CLOCK-2). The owner gets it back when this process ends, and a
                        // process without its device does end.
                        tracing::error!(%error, "a lease is kept: what was done with its memory cannot be told");
                        return;
                    }
                    uses.extend(first.ticket());
                }
                returns.release(self.id, &uses);
            }
            #[cfg(feature = "dlpack")]
            Origin::External(external) => external.release(&self.domain, &self.mapping, uses),
        }
    }
}

/// Puts `first` behind `tickets`. An error means that the device is lost to this process, never that earlier
/// work failed.
fn join(first: &Stream, tickets: impl IntoIterator<Item = Ticket>) -> Result<(), DeviceError> {
    first.wait_in_order(tickets)
}
