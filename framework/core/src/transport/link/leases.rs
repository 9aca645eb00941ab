//! Leases over this link: the two return rings, and how many leases each side has of the other's memory.
//!
//! `returns` uses it for notices out and in, `incoming` for room for holds, and a claim for room for grants.
//!
//! **Invariants.** LEASE-2: room for the return of a lease is reserved when the lease is taken. The peer has
//! room for `MAX_GRANTED` returns of leases that this process grants it. This process leaves as much room in
//! its own ring for leases that the peer may still grant, regardless of how many it holds by then. Forwards
//! have room of their own.
//!
//! **Locks.** `notices_in`, and inside it the locks that handling a notice takes: a pool's, and the sender
//! side's. `notices_out`, and no other lock inside it.
//!
//! **On a crash** of the peer this process reads everything that the peer had posted; nobody reads notices
//! posted to the peer. **On cancellation** nothing happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::Link;
use crate::lease::table::GivenBack;
use crate::limits::{MAX_FORWARDED, MAX_FORWARDS, RETURN_BACKLOG};
use crate::os::monotonic_ns;
use crate::transport::entry;
use crate::transport::ring::entries::PushError;
use crate::transport::ring::{Entry, EntryConsumer, EntryProducer, NativeBytes, RingCorrupt};
use crate::transport::wake_reasons;

/// How often the log reports that a limit of leases is reached.
const TELL_LIMIT_EVERY: Duration = Duration::from_secs(60);

/// Room on the rings to the owners of the leases that a frame passes on. Dropping it gives unused room back.
#[derive(Debug, Default)]
pub(crate) struct Forwards(pub(in crate::transport) SmallVec<[(Arc<Link>, usize); 1]>);

impl Drop for Forwards {
    fn drop(&mut self) {
        for (owner, count) in &self.0 {
            owner.return_forwards(*count);
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Leases {
    notices_out: Mutex<Option<NoticesOut>>,
    /// A notice was posted and not published yet. Written under the lock of `notices_out`.
    unpublished: AtomicBool,
    /// The number of the process's links with unpublished notices.
    with_unpublished: Arc<AtomicUsize>,
    notices_in: Mutex<Option<EntryConsumer>>,
    /// Leases on this process's memory that the peer was granted.
    granted: AtomicUsize,
    /// Leases that it took because others forwarded them to it. They leave room for leases that it is
    /// granted.
    forwarded: AtomicUsize,
    /// Holds of the peer that were refused and that it has not given back yet: it may be honest, and does not
    /// know of the refusal.
    refused: AtomicUsize,
    /// Leases on the peer's memory that this process holds.
    held: AtomicUsize,
    /// Leases that the peer has given back.
    released: AtomicU64,
    /// When the log last reported that a limit is reached, on the monotonic clock.
    limit_told: AtomicU64,
}

/// The return ring to the peer.
#[derive(Debug)]
pub(crate) struct NoticesOut {
    ring: EntryProducer,
    /// Forwards that are claimed and not posted.
    claimed: usize,
    /// Forwards that the peer may not have read. `last` is the position after the last of them in the ring.
    forwards: usize,
    last: u64,
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.note_unpublished(false);
    }
}

impl NoticesOut {
    /// Returns whether this many more forwards have room beside those that the peer has not read.
    fn has_room_for_forwards(&mut self, count: usize) -> bool {
        let fits = |forwards: &NoticesOut| forwards.forwards + forwards.claimed + count <= MAX_FORWARDS;
        // The peer's cursor is loaded only if necessary. The next thread that posts finds a corrupt one.
        if !fits(self) && self.ring.consumed().unwrap_or(u64::MAX) >= self.last {
            self.forwards = 0;
        }
        fits(self)
    }
}

impl Leases {
    pub(super) fn new(with_unpublished: Arc<AtomicUsize>) -> Self {
        Leases {
            notices_out: Mutex::new(None),
            unpublished: AtomicBool::new(false),
            with_unpublished,
            notices_in: Mutex::new(None),
            granted: AtomicUsize::new(0),
            forwarded: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            released: AtomicU64::new(0),
            limit_told: AtomicU64::new(0),
        }
    }

    /// Opens the ring to the peer.
    pub(super) fn open_out(&self, ring: EntryProducer) {
        *self.notices_out.lock() = Some(NoticesOut { ring, claimed: 0, forwards: 0, last: 0 });
    }

    /// Opens the ring from the peer.
    pub(super) fn open_in(&self, ring: EntryConsumer) {
        *self.notices_in.lock() = Some(ring);
    }

    /// Notes whether a notice waits to be published. Called under the lock of `notices_out`, so no other
    /// thread writes it.
    fn note_unpublished(&self, any: bool) {
        if self.unpublished.load(Ordering::Relaxed) == any {
            return;
        }
        self.unpublished.store(any, Ordering::Release);
        if any {
            self.with_unpublished.fetch_add(1, Ordering::Release);
        } else {
            self.with_unpublished.fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns how many leases the peer has given back since the link was made.
    pub(super) fn released(&self) -> u64 {
        self.released.load(Ordering::Relaxed)
    }
}

impl Link {
    /// Writes a notice to the peer, which sees it once it is [published](Self::publish_notices). Returns the
    /// [`wake_reasons`] for which to wake the peer, or `None` while the link is not connected.
    pub(crate) fn post(&self, notice: Entry) -> Result<Option<u8>, PushError> {
        let mut notices = self.leases.notices_out.lock();
        let Some(out) = notices.as_mut() else { return Ok(None) };
        out.ring.push(notice)?;
        self.leases.note_unpublished(true);
        // A sleeping peer is woken after this many notices, so that they touch no more memory than that.
        let backlog = RETURN_BACKLOG as u64;
        let is_long = out.ring.position().is_multiple_of(backlog) && out.ring.unconsumed()? >= backlog;
        Ok(Some(if is_long { wake_reasons::FRAMES } else { wake_reasons::ROOM }))
    }

    /// Makes all notices to the peer visible.
    pub(crate) fn publish_notices(&self) -> bool {
        // Acquire: if the mark is gone, some thread has published the notices that this thread has posted.
        if !self.leases.unpublished.load(Ordering::Acquire) {
            return false;
        }
        self.leases.notices_out.lock().as_mut().is_some_and(|out| {
            let any = out.ring.publish();
            self.leases.note_unpublished(false);
            any
        })
    }

    /// Takes room for this many forwards of leases on the peer's memory, all or nothing. Returns false if
    /// there is not enough now.
    pub(crate) fn reserve_forwards(&self, count: usize) -> bool {
        // The peer can see them only over an open link.
        self.is_open() && self.take_room_for_forwards(count, count)
    }

    /// Returns whether there is room for this many forwards, or nothing more is sent to the peer.
    pub(crate) fn has_room_for_forwards(&self, count: usize) -> bool {
        self.is_past() || (self.is_open() && self.take_room_for_forwards(count, 0))
    }

    fn take_room_for_forwards(&self, count: usize, taken: usize) -> bool {
        self.leases.notices_out.lock().as_mut().is_some_and(|out| {
            let has_room = out.has_room_for_forwards(count);
            out.claimed += if has_room { taken } else { 0 };
            has_room
        })
    }

    /// Gives back room that was [taken](Self::reserve_forwards).
    pub(crate) fn return_forwards(&self, count: usize) {
        if let Some(out) = self.leases.notices_out.lock().as_mut() {
            out.claimed -= count;
        }
    }

    /// Posts forwards into the room that was taken for `claimed`, and makes them visible.
    pub(crate) fn post_forwards(
        &self,
        claimed: usize,
        notices: impl Iterator<Item = Entry>,
    ) -> Result<(), PushError> {
        let mut guard = self.leases.notices_out.lock();
        let Some(out) = guard.as_mut() else { return Ok(()) };
        out.claimed -= claimed;
        for notice in notices {
            out.ring.push(notice)?;
            out.forwards += 1;
        }
        out.last = out.ring.position();
        out.ring.publish();
        self.leases.note_unpublished(false);
        Ok(())
    }

    /// Returns whether this many holds on the peer's memory can be posted now, with room left for their
    /// releases and for those of all leases that the peer may still grant (LEASE-2).
    pub(crate) fn has_room_for_holds(&self, holds: usize) -> bool {
        let mut notices = self.leases.notices_out.lock();
        let Some(out) = notices.as_mut() else { return false };
        let unconsumed = out.ring.unconsumed().unwrap_or(u64::MAX);
        let held = self.leases.held.load(Ordering::Relaxed) as u64;
        unconsumed.saturating_add(held + 2 * holds as u64 + 1) <= MAX_FORWARDED as u64
    }

    /// Has `handle` take each notice that the peer has posted; returns true if there was one. All of this
    /// happens under one lock, so notices that another thread took are in the lease table when this returns.
    /// `handle` returns whether the ring continues in other memory.
    ///
    /// # Errors
    /// The ring is corrupt. The lock is free again.
    pub(crate) fn drain_notices(&self, mut handle: impl FnMut(&Entry) -> bool) -> Result<bool, RingCorrupt> {
        let mut found = false;
        // Dropped, and so unmapped, after the lock is free again.
        let mut _left = None;
        let mut notices = self.leases.notices_in.lock();
        let Some(ring) = notices.as_mut() else { return Ok(false) };
        while let Some(entry) = ring.pop()? {
            found = true;
            if handle(&entry) {
                let fresh = self.renewal.fresh_returns();
                _left = Some(ring.follow(fresh.ok_or(RingCorrupt::Moved { at: ring.position() })?));
            }
        }
        if ring.publish_head() {
            self.ring(wake_reasons::ROOM);
        }
        Ok(found)
    }

    /// Returns how far this process has written, and how many bytes of the ring it has touched; `None` while
    /// the link is not connected.
    pub(super) fn notices_written(&self) -> Option<(u64, usize)> {
        self.leases.notices_out.lock().as_ref().map(|out| (out.ring.position(), out.ring.touched()))
    }

    /// Returns whether the peer has taken all notices, and there is room for one without a reservation. Such
    /// a notice then makes no release find a full ring (LEASE-2), as with the rejection of a frame.
    pub(super) fn notices_are_taken(&self) -> bool {
        let taken = |out: &mut NoticesOut| out.ring.unconsumed().is_ok_and(|left| left == 0);
        self.leases.notices_out.lock().as_mut().is_some_and(taken) && self.has_room_for_holds(1)
    }

    /// Makes the return ring continue in `bytes`, and marks that in it. Only the reader calls it, which posts
    /// holds and has checked that there [is room](Self::notices_are_taken). Returns the memory that it
    /// leaves, or `bytes` if another thread has posted a notice since.
    pub(super) fn move_notices(&self, bytes: NativeBytes) -> Result<NativeBytes, NativeBytes> {
        let mut guard = self.leases.notices_out.lock();
        let Some(out) = guard.as_mut() else { return Err(bytes) };
        let left = out.ring.move_to(entry::moved(), bytes)?;
        self.leases.note_unpublished(true);
        Ok(left)
    }

    /// Returns how many leases on this process's memory the peer was granted.
    pub(crate) fn granted(&self) -> usize {
        self.leases.granted.load(Ordering::Relaxed)
    }

    /// Takes room for the return of this many leases, which the peer is granted or will be.
    pub(super) fn reserve_grants(&self, leases: usize) {
        self.leases.granted.fetch_add(leases, Ordering::Relaxed);
    }

    /// Returns the room of this many grants, which were given back or not made.
    pub(crate) fn return_grants(&self, leases: usize) {
        self.leases.granted.fetch_sub(leases, Ordering::Relaxed);
    }

    /// Returns how many leases on this process's memory others have forwarded to the peer, as it says.
    pub(crate) fn forwarded(&self) -> usize {
        self.leases.forwarded.load(Ordering::Relaxed) + self.leases.refused.load(Ordering::Relaxed)
    }

    /// Counts this many refused holds of the peer.
    pub(crate) fn count_refused(&self, holds: usize) {
        self.leases.refused.fetch_add(holds, Ordering::Relaxed);
    }

    /// Uncounts a refused hold that the peer gives back. If the peer never had it, that harms only the peer.
    pub(crate) fn uncount_refused(&self) {
        let one_less = |refused: usize| refused.checked_sub(1);
        let _ = self.leases.refused.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    }

    pub(crate) fn count_forwarded(&self) {
        self.leases.forwarded.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn uncount_forwarded(&self) {
        self.leases.forwarded.fetch_sub(1, Ordering::Relaxed);
    }

    /// Updates the counts after the peer has given a lease back.
    pub(in crate::transport) fn count_given(&self, given: GivenBack) {
        match given {
            GivenBack::Forwarded => self.uncount_forwarded(),
            GivenBack::Granted => self.return_grants(1),
            GivenBack::Refused => return self.uncount_refused(),
            GivenBack::Later => return,
        }
        self.count_released();
    }

    /// Returns whether it is time to report that a limit of leases is reached: once a minute.
    pub(crate) fn tells_limit(&self) -> bool {
        let (now, told) = (monotonic_ns(), self.leases.limit_told.load(Ordering::Relaxed));
        let tells = told == 0 || now.saturating_sub(told) >= TELL_LIMIT_EVERY.as_nanos() as u64;
        if tells {
            self.leases.limit_told.store(now, Ordering::Relaxed);
        }
        tells
    }

    /// Returns how many leases on the peer's memory this process holds.
    pub(crate) fn held(&self) -> usize {
        self.leases.held.load(Ordering::Relaxed)
    }

    pub(crate) fn count_held(&self) {
        self.leases.held.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn uncount_held(&self) {
        self.leases.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a lease that the peer has given back, which a sender may have lacked.
    pub(crate) fn count_released(&self) {
        self.leases.released.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a weak handle on the memory of the return ring to the peer.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn notices_memory(&self) -> Option<std::sync::Weak<dyn std::any::Any + Send + Sync>> {
        self.leases.notices_out.lock().as_ref().map(|out| out.ring.memory())
    }

    /// Returns a weak handle on the memory of the return ring from the peer.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn notices_in_memory(&self) -> Option<std::sync::Weak<dyn std::any::Any + Send + Sync>> {
        self.leases.notices_in.lock().as_ref().map(|ring| ring.memory())
    }

    /// Keeps notices to the peer from being published while a test looks.
    #[cfg(all(test, feature = "testing"))]
    pub(crate) fn hold_notices(&self) -> parking_lot::MutexGuard<'_, Option<NoticesOut>> {
        self.leases.notices_out.lock()
    }
}
