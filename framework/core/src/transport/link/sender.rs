//! The sender's side of a link: the data ring out, the room promised in it, and the leases of frames under
//! way.
//!
//! `outgoing` uses it for claims, frames, and replies that wait for room; so do `publish`, and `returns`,
//! which drops the leases of frames that the peer has passed.
//!
//! **Invariants.** MBX-2: a frame is written only into room that was claimed for it, and a message only for a
//! credit; an unused claim gives everything back. LEASE-3: leases on others' memory are kept until the peer
//! has passed their frame.
//!
//! **Locks.** `out`, and only atomics inside it: no lease is dropped and no task is woken under it, except
//! the reader, whose wake-up is one write.
//!
//! **On a crash** of the peer the thread that breaks the link drops everything that waits here. **On
//! cancellation** of a send its claim drops.

mod outbox;
mod plain;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use parking_lot::Mutex;
use smallvec::SmallVec;

use self::outbox::Reply;
use super::due::Due;
use super::leases::Forwards;
use super::{AWAY, CLOSED, Link, NOBODY};
use crate::lease::{Lease, LeaseId};
use crate::limits::{MAX_ACTORS, MAX_GRANTED};
use crate::message::scope::Outline;
use crate::message::wire::{self, Header, Kind, LeaseEntry};
use crate::observe::survey::SentReport;
#[cfg(any(test, feature = "testing"))]
use crate::testing::forge::{self, Tamper};
use crate::transport::destination::Destination;
use crate::transport::ring::{NativeBytes, Producer, RingCorrupt};
use crate::transport::transmit_error::{NotNow, TransmitError};

/// How many frames under way are remembered before the reader checks which of them the peer has passed.
const REMEMBERED: usize = 64;

/// Bytes of the buffer for the beginnings of frames that an idle link keeps.
const KEPT_HEAD: usize = 1 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct SenderSide {
    out: Mutex<Option<Outbound>>,
    /// By the index of the peer's actor. Written under the lock of `out`. Checks without the lock come before
    /// the work of encoding, and decide nothing.
    windows: Box<[Window]>,
    /// The position up to which frames are in the ring, and the one up to which they are published. Written
    /// under the lock of `out`.
    written: AtomicU64,
    published: AtomicU64,
    /// The reasons of entries that are committed and not published yet, see
    /// [`wake_reasons`](crate::transport::wake_reasons).
    due: Due,
    /// A frame once found no room in the ring, or no free lease: waiting senders may lack that.
    lacks_room: AtomicBool,
    /// Replies wait in the outbox.
    backlog: AtomicBool,
    /// Frames with leases on others' memory are under way. The leases are dropped once the peer has passed
    /// the frames.
    forwards: AtomicBool,
    /// Many frames under way are remembered: the reader should check which of them the peer has passed.
    remembers_many: AtomicBool,
}

/// The sending end of the data ring, with the state that it must remember.
#[derive(Debug)]
pub(crate) struct Outbound {
    ring: Producer,
    /// Bytes promised to frames that are not in the ring yet.
    claimed: usize,
    /// Frames with leases that the peer has not passed yet.
    in_flight: VecDeque<InFlight>,
    /// How many of them keep leases on others' memory.
    forwards: usize,
    /// Replies that found no room. Each still has the credit of its ask, so there are at most as many as the
    /// peer may ask (MBX-2).
    outbox: VecDeque<Reply>,
    /// Frames written so far: the number of the next one, see [`wire`].
    number: u32,
    head: Vec<u8>,
    /// A test's change to the next frame.
    #[cfg(any(test, feature = "testing"))]
    tamper: Option<Tamper>,
}

/// The messages under way to one actor of the peer.
#[derive(Debug, Default)]
struct Window {
    /// Messages sent or promised.
    sent: AtomicU64,
    /// How many of them the actor is done with, as of the last load.
    handled: AtomicU64,
}

/// The leases of a frame on its way.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// The position at which the peer has passed it.
    end: u64,
    /// Grants on this process's memory, to take back should the peer reject the frame.
    granted: SmallVec<[LeaseId; 2]>,
    /// Leases on others' memory, kept until the peer has posted its own hold (LEASE-3).
    kept: SmallVec<[Lease; 2]>,
}

/// Everything that a frame needs, already taken. Dropping it gives everything back.
#[derive(Debug)]
pub(crate) struct Claim {
    link: Arc<Link>,
    /// Bytes of the ring, worst case.
    bytes: usize,
    /// Grants counted.
    owned: usize,
    /// The index whose credit was taken.
    credit: Option<u16>,
    /// The lease that the body is in.
    body: Option<Lease>,
    /// Room to tell the owners of the leases that it passes on.
    forwards: Forwards,
    done: Cell<bool>,
}

/// A frame that is about to be written.
pub(crate) struct Draft<'a> {
    pub(crate) header: &'a Header,
    pub(crate) entries: &'a [LeaseEntry],
    pub(crate) tensors: &'a [Outline],
    pub(crate) inline: &'a [u8],
    /// Grants on this process's memory.
    pub(crate) granted: SmallVec<[LeaseId; 2]>,
    /// Leases on others' memory.
    pub(crate) kept: SmallVec<[Lease; 2]>,
}

impl Claim {
    /// Returns the link over which the frame goes.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Returns the lease that the body is in, if it is too large for the frame.
    pub(crate) fn body(&self) -> Option<&Lease> {
        self.body.as_ref()
    }

    /// Takes the room to tell the owners of the leases that it passes on. It must be used before the frame is
    /// [written](Self::write).
    pub(crate) fn take_forwards(&mut self) -> Forwards {
        std::mem::take(&mut self.forwards)
    }

    /// Returns the process to which the frame goes.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn peer(&self) -> crate::ids::ProcessId {
        self.link.peer
    }

    /// Writes the frame, and returns its end in the ring if there was room. If leases on others' memory go
    /// with it, `want_progress` is called first.
    pub(crate) fn write(&self, draft: Draft<'_>, want_progress: impl FnOnce()) -> Option<u64> {
        let mut guard = self.link.sender.out.lock();
        let out = guard.as_mut()?;
        // The claimed room is given back and used under the same lock, so no other thread gets it in between.
        out.claimed -= self.bytes;
        self.done.set(true);
        if !draft.kept.is_empty() {
            // The reader may sleep, and it has to drop them later. Under the lock, so before any thread can
            // publish.
            out.forwards += 1;
            self.link.sender.forwards.store(true, Ordering::Release);
            // WANTS: pairs with the fence in `Sleeper::prepare`. Either the reader's last poll finds that it
            // waits for the peer's head, or this thread sees the word with the wanted reasons, and adds to
            // it.
            fence(Ordering::SeqCst);
            want_progress();
        }
        let end = out.write(draft)?;
        self.link.sender.note_remembered(out);
        // Release: a thread that sees this position also sees that a notice waits which this thread has
        // posted before, see `publish_all`.
        self.link.sender.written.store(end, Ordering::Release);
        Some(end)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.done.get() {
            return;
        }
        self.link.return_grants(self.owned);
        if let Some(out) = self.link.sender.out.lock().as_mut() {
            out.claimed -= self.bytes;
            if let Some(window) = self.credit.and_then(|index| self.link.window(index)) {
                // No other writer has the lock, here and below: no read-modify-write is needed.
                window.sent.store(window.sent.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
            }
        }
    }
}

impl Outbound {
    /// Writes a frame, and returns its end in the ring if there was room.
    fn write(&mut self, draft: Draft<'_>) -> Option<u64> {
        let Draft { header, entries, tensors, inline, granted, kept } = draft;
        let end = if entries.is_empty() && tensors.is_empty() {
            let head = wire::plain_head(header, self.number);
            self.put(&head, inline)?
        } else {
            let mut head = std::mem::take(&mut self.head);
            wire::write_head(&mut head, header, entries, tensors, self.number);
            let end = self.put(&head, inline);
            self.head = head;
            end?
        };
        if !granted.is_empty() || !kept.is_empty() {
            self.in_flight.push_back(InFlight { end, granted, kept });
        }
        Some(end)
    }

    /// Puts the frame with this head and body into the ring.
    #[inline]
    fn put(&mut self, head: &[u8], inline: &[u8]) -> Option<u64> {
        #[cfg(any(test, feature = "testing"))]
        let forged = self.tamper.take().map(|tamper| tamper.of([head, inline].concat(), self.number));
        #[cfg(any(test, feature = "testing"))]
        let (head, inline) = forged.as_deref().map_or((head, inline), |forged| (forged, &[]));
        let mut reservation = self.ring.reserve(head.len() + inline.len()).ok()?;
        reservation.write(0, head);
        reservation.write(head.len(), inline);
        self.number = self.number.wrapping_add(1);
        Some(reservation.commit())
    }
}

impl SenderSide {
    pub(super) fn new(with_due: Arc<AtomicUsize>) -> Self {
        SenderSide {
            out: Mutex::new(None),
            windows: std::iter::repeat_with(Window::default).take(MAX_ACTORS).collect(),
            written: AtomicU64::new(0),
            published: AtomicU64::new(0),
            due: Due::new(with_due),
            lacks_room: AtomicBool::new(false),
            backlog: AtomicBool::new(false),
            forwards: AtomicBool::new(false),
            remembers_many: AtomicBool::new(false),
        }
    }

    /// Opens the ring to the peer.
    pub(super) fn open(&self, ring: Producer) {
        *self.out.lock() = Some(Outbound {
            ring,
            claimed: 0,
            in_flight: VecDeque::new(),
            forwards: 0,
            outbox: VecDeque::new(),
            number: 0,
            head: Vec::new(),
            #[cfg(any(test, feature = "testing"))]
            tamper: None,
        });
    }

    /// Returns whether frames with leases on others' memory are under way.
    pub(super) fn has_forwards(&self) -> bool {
        self.forwards.load(Ordering::Acquire)
    }

    /// Returns whether a check of what the peer has passed is worthwhile, although the peer announces
    /// nothing.
    pub(super) fn may_have_passed(&self) -> bool {
        self.has_forwards() || self.remembers_many.load(Ordering::Relaxed)
    }

    /// Returns how far this process has written, and how many bytes of the ring it has touched; `None` while
    /// the link is not connected.
    pub(super) fn written(&self) -> Option<(u64, usize)> {
        self.out.lock().as_ref().map(|out| (out.ring.position(), out.ring.touched()))
    }

    /// Returns whether the peer has read everything, and no frame is about to be written.
    pub(super) fn is_read(&self) -> bool {
        let is_read =
            |out: &mut Outbound| out.claimed == 0 && out.ring.unconsumed().is_ok_and(|left| left == 0);
        self.out.lock().as_mut().is_some_and(is_read)
    }

    /// Makes the data ring continue in `bytes`, and marks that in it. Returns the memory that it leaves, or
    /// `bytes` if something is under way.
    pub(super) fn move_ring(&self, bytes: NativeBytes) -> Result<NativeBytes, NativeBytes> {
        let mut guard = self.out.lock();
        // The mark must not take room that was claimed.
        let Some(out) = guard.as_mut().filter(|out| out.claimed == 0) else { return Err(bytes) };
        let left = out.ring.move_to(bytes)?;
        self.written.store(out.ring.position(), Ordering::Release);
        Ok(left)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn memory(&self) -> Option<std::sync::Weak<dyn std::any::Any + Send + Sync>> {
        self.out.lock().as_ref().map(|out| out.ring.memory())
    }

    /// Shrinks tables and buffers that have grown.
    pub(super) fn shrink(&self) {
        if let Some(out) = self.out.lock().as_mut() {
            out.in_flight.shrink_to(REMEMBERED);
            out.outbox.shrink_to(0);
            out.head.shrink_to(KEPT_HEAD);
        }
    }

    /// Updates the flag after frames were remembered or forgotten.
    fn note_remembered(&self, out: &Outbound) {
        let many = out.in_flight.len() >= REMEMBERED;
        if self.remembers_many.load(Ordering::Relaxed) != many {
            self.remembers_many.store(many, Ordering::Relaxed);
        }
    }

    /// Returns how far the peer has read.
    pub(super) fn consumed(&self) -> u64 {
        self.out.lock().as_mut().and_then(|out| out.ring.consumed().ok()).unwrap_or(0)
    }
}

impl Link {
    /// Checks whether a message to that mailbox could go now, as far as that is known before it is encoded.
    pub(crate) fn may_send(&self, destination: &Destination) -> Result<(), TransmitError> {
        self.check_open()?;
        self.check_credit(destination)
    }

    fn window(&self, index: u16) -> Option<&Window> {
        self.sender.windows.get(usize::from(index))
    }

    /// Checks whether frames can go out; the error says whether waiting helps.
    pub(crate) fn check_open(&self) -> Result<(), TransmitError> {
        if self.is_broken() || self.has_exited() {
            let refused = self.refused().get();
            return Err(
                refused.map_or(TransmitError::Exited(self.peer), |why| TransmitError::NoLink(why.clone()))
            );
        }
        if self.is_open() { Ok(()) } else { Err(TransmitError::NotNow(NotNow::Connecting)) }
    }

    fn check_credit(&self, destination: &Destination) -> Result<(), TransmitError> {
        if wants_credit(destination.kind) { self.credit_at(destination.index) } else { Ok(()) }
    }

    /// Returns whether the mailbox at `index` has room.
    pub(crate) fn has_credit(&self, index: u16) -> bool {
        self.credit_at(index).is_ok()
    }

    fn credit_at(&self, index: u16) -> Result<(), TransmitError> {
        let capacity = match self.mailbox_state(index) {
            CLOSED => return Err(TransmitError::NoSuchActor),
            AWAY => return Err(TransmitError::Restarting),
            // An actor that comes there takes at least one message, and until then the peer refuses it.
            NOBODY => 1,
            capacity => capacity,
        };
        let window = self.window(index).ok_or(TransmitError::NoSuchActor)?;
        let sent = window.sent.load(Ordering::Relaxed);
        // A peer that claims to have handled more than was sent gets no more than a full window for it.
        let is_full = |handled: u64| sent.saturating_sub(handled) >= capacity;
        if is_full(window.handled.load(Ordering::Relaxed)) {
            // Loaded only now: the receiver writes that word with each message, and a load takes the cache
            // line away from it.
            let handled = self.handled(index);
            if is_full(handled) {
                return Err(TransmitError::NotNow(NotNow::MailboxFull));
            }
            window.handled.store(handled, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes credit, `bytes` of the ring, and room for the return of `owned` leases, all or nothing, for a
    /// frame with its body in the lease `body`, if any, and with `forwards` taken before. `corrupt` makes the
    /// error for a peer with a broken cursor; it is called under the lock.
    pub(crate) fn claim(
        self: &Arc<Self>,
        destination: &Destination,
        bytes: usize,
        owned: usize,
        body: Option<Lease>,
        forwards: Forwards,
        corrupt: impl FnOnce(&RingCorrupt) -> TransmitError,
    ) -> Result<Claim, TransmitError> {
        let mut guard = self.sender.out.lock();
        let Some(out) = guard.as_mut() else { return Err(TransmitError::NotNow(NotNow::Connecting)) };
        self.check_claim(out, destination, bytes, owned, corrupt)?;
        // Everything is there: from here on all of it is taken, and nothing fails.
        self.reserve_grants(owned);
        out.claimed += bytes;
        let credit = wants_credit(destination.kind).then_some(destination.index);
        if let Some(window) = credit.and_then(|index| self.window(index)) {
            window.sent.store(window.sent.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        Ok(Claim { link: Arc::clone(self), bytes, owned, credit, body, forwards, done: Cell::new(false) })
    }

    /// Checks whether [`claim`](Self::claim) would find everything that it needs now.
    pub(crate) fn may_claim(
        &self,
        destination: &Destination,
        bytes: usize,
        owned: usize,
        corrupt: impl FnOnce(&RingCorrupt) -> TransmitError,
    ) -> Result<(), TransmitError> {
        let mut guard = self.sender.out.lock();
        let Some(out) = guard.as_mut() else { return Err(TransmitError::NotNow(NotNow::Connecting)) };
        self.check_claim(out, destination, bytes, owned, corrupt)
    }

    #[inline]
    fn check_claim(
        &self,
        out: &mut Outbound,
        destination: &Destination,
        bytes: usize,
        owned: usize,
        corrupt: impl FnOnce(&RingCorrupt) -> TransmitError,
    ) -> Result<(), TransmitError> {
        // First the credit: a sender that lacks it waits for the mailbox, and must not be woken for room.
        self.check_credit(destination)?;
        if !out.ring.has_free(out.claimed + bytes).map_err(|error| corrupt(&error))? {
            // Noted before the sender asks to be woken for it, see `Sending::poll`.
            self.lack_room();
            return Err(TransmitError::NotNow(NotNow::RingFull));
        }
        if owned > 0 && self.granted() + owned > MAX_GRANTED {
            self.lack_room();
            return Err(TransmitError::NotNow(NotNow::LeasesOut));
        }
        Ok(())
    }

    /// Notes the reasons of entries to publish, see [`wake_reasons`](crate::transport::wake_reasons).
    pub(crate) fn note_due(&self, due: u8) {
        self.sender.due.note(due);
    }

    /// Takes the reasons of entries to publish; zero if there are none. The thread that takes them publishes
    /// everything committed before, and then reports that ([`due_is_published`](Self::due_is_published)).
    pub(crate) fn take_due(&self) -> u8 {
        self.sender.due.take()
    }

    /// Notes that the peer can see the entries whose mark was taken.
    pub(crate) fn due_is_published(&self) {
        self.sender.due.published();
    }

    /// Returns the position up to which frames were written, if the peer cannot see all of them.
    pub(crate) fn unpublished_frames(&self) -> Option<u64> {
        let written = self.sender.written.load(Ordering::Acquire);
        (written > self.sender.published.load(Ordering::Acquire)).then_some(written)
    }

    /// Makes the frames up to `end`, which were written, visible to the peer.
    pub(crate) fn publish_frames(&self, end: u64) {
        let mut out = self.sender.out.lock();
        // Without a ring no peer can see them.
        let published = out.as_mut().map_or(end, |out| out.ring.publish_to(end));
        self.sender.published.store(published, Ordering::Release);
    }

    /// Returns whether a check of what the peer has passed is worthwhile, although the peer announces
    /// nothing.
    pub(crate) fn may_have_passed(&self) -> bool {
        self.sender.may_have_passed()
    }

    /// Returns how far the peer has read, if a load is worthwhile: with `heads`, or if leases on others'
    /// memory wait for it, or if many frames are remembered.
    pub(crate) fn consumed_if_due(&self, heads: bool) -> Option<Result<u64, RingCorrupt>> {
        let mut out = self.sender.out.lock();
        let out = out.as_mut()?;
        // Frames without kept leases are remembered only in case the peer rejects them, which is not urgent.
        if out.in_flight.is_empty() || !(heads || out.forwards > 0 || out.in_flight.len() >= REMEMBERED) {
            return None;
        }
        Some(out.ring.consumed())
    }

    /// Takes the frames that end at `consumed` or before. They must be dropped without a lock, because leases
    /// go with them.
    pub(crate) fn take_passed(&self, consumed: u64) -> Vec<InFlight> {
        let mut passed = Vec::new();
        if let Some(out) = self.sender.out.lock().as_mut() {
            while out.in_flight.front().is_some_and(|frame| frame.end <= consumed) {
                passed.extend(out.in_flight.pop_front());
            }
            out.forwards -= passed.iter().filter(|frame: &&InFlight| !frame.kept.is_empty()).count();
            self.sender.forwards.store(out.forwards > 0, Ordering::Release);
            self.sender.note_remembered(out);
        }
        passed
    }

    /// Takes the grants of the frame that ends at `end`; `None` if there is no such frame under way.
    pub(crate) fn take_grants(&self, end: u64) -> Option<SmallVec<[LeaseId; 2]>> {
        let mut out = self.sender.out.lock();
        let frame = out.as_mut()?.in_flight.iter_mut().find(|frame| frame.end == end)?;
        Some(std::mem::take(&mut frame.granted))
    }

    /// Takes everything that waits to be sent over the link, and the leases kept for frames under way. They
    /// must be dropped without a lock, because leases go with them.
    pub(crate) fn take_unsent(&self) -> (VecDeque<InFlight>, VecDeque<Reply>) {
        match self.sender.out.lock().as_mut() {
            Some(out) => {
                out.forwards = 0;
                self.sender.forwards.store(false, Ordering::Release);
                self.sender.backlog.store(false, Ordering::Release);
                (std::mem::take(&mut out.in_flight), std::mem::take(&mut out.outbox))
            }
            None => Default::default(),
        }
    }

    /// Notes that a frame found no room, which waiting senders may lack.
    pub(crate) fn lack_room(&self) {
        self.sender.lacks_room.store(true, Ordering::Release);
    }

    /// Returns whether a sender waits that may lack room in the ring, or leases.
    pub(crate) fn lacks_room(&self) -> bool {
        self.has_waiting() && self.sender.lacks_room.load(Ordering::Acquire)
    }

    /// Returns whether a reply waits for room, or leases on others' memory wait for the peer to pass their
    /// frame. A thread that has just queued a reply wakes the reader.
    pub(crate) fn waits_for_head(&self) -> bool {
        self.has_backlog() || self.sender.has_forwards()
    }
}

impl Link {
    /// Returns, for watchers, the messages sent to each of the peer's actors, and the replies that wait for
    /// room. Returns `None` while a sender holds the lock, because watchers do not wait for it (CON-1).
    pub(crate) fn sent_now(&self) -> Option<(Vec<SentReport>, u64)> {
        let out = self.sender.out.try_lock()?;
        let Some(out) = out.as_ref() else { return Some((Vec::new(), 0)) };
        let sent = self.sender.windows.iter().map(|window| window.sent.load(Ordering::Relaxed));
        let report = |(index, sent): (usize, u64)| {
            let index = index as u16;
            SentReport { index, sent, done: self.handled(index).min(sent) }
        };
        Some((sent.enumerate().filter(|(_, sent)| *sent > 0).map(report).collect(), out.outbox.len() as u64))
    }
}

/// Methods for tests.
#[cfg(any(test, feature = "testing"))]
impl Link {
    /// Returns the number of frames with leases under way, and of replies that wait for room.
    pub(crate) fn under_way(&self) -> (usize, usize) {
        let out = self.sender.out.lock();
        out.as_ref().map_or((0, 0), |out| (out.in_flight.len(), out.outbox.len()))
    }

    /// Returns whether there is a ring to the peer.
    pub(crate) fn has_ring(&self) -> bool {
        self.sender.out.lock().is_some()
    }

    /// Passes the bytes of the next frame through `tamper`.
    pub(crate) fn tamper_next(&self, tamper: Tamper) {
        if let Some(out) = self.sender.out.lock().as_mut() {
            out.tamper = Some(tamper);
        }
    }

    /// Writes and publishes `bytes` as a frame; returns false if there is no room.
    pub(crate) fn forge_frame(&self, bytes: &[u8]) -> bool {
        let mut out = self.sender.out.lock();
        let out = out.as_mut().expect("connected");
        let bytes = forge::sealed(bytes.to_vec(), out.number);
        out.put(&bytes, &[]).is_some() && out.ring.publish()
    }

    /// Keeps frames from being published while a test looks.
    #[cfg(all(test, feature = "testing"))]
    pub(crate) fn hold_frames(&self) -> parking_lot::MutexGuard<'_, Option<Outbound>> {
        self.sender.out.lock()
    }
}

/// Returns the bytes of the ring to claim for a frame. They are twice its size, because the record may have
/// to skip to the beginning of the ring.
pub(crate) fn claimed_bytes(leases: usize, tensors: usize, inline: usize) -> usize {
    2 * (wire::frame_bytes(leases, tensors, inline) + 16)
}

/// Returns whether a frame takes a credit of the mailbox. Messages do; replies have the credit of their ask.
pub(crate) fn wants_credit(kind: Kind) -> bool {
    kind.is_message()
}
