//! Frames out.
//!
//! A frame goes in two steps. [`Transport::claim`] takes everything that it needs (credit, room in the ring, room for
//! its leases to come back) or nothing, while the sender still has the value. Then the sender drops the value, and
//! [`Transport::commit`] writes the frame: only now can be seen which leases have no handle left in this process, and
//! so were moved all the way. What was granted is in the lease table before the frame is published (LEASE-1).
//!
//! A process looks at a peer's words only when it has to: each look takes the cache line away from the one who writes
//! it. A sender counts its own credits and its own room, and looks at the receiver's count and cursor when those are
//! used up. Whether an actor takes messages at all is a word apart, which changes once in a life.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::inbox::Refusal;
use super::link::{AWAY, CLOSED, Credit, InFlight, Link, Outbound};
use super::{Transport, wake_reasons};
use crate::clock::taint::TicketStatus;
use crate::fault;
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::lease::table::Uses;
use crate::lease::{Lease, PoolError};
use crate::limits::{MAX_GRANTED, MAX_INLINE_BODY};
use crate::message::codec::{self, Encoded};
use crate::message::parts::give_away;
use crate::message::wire::{self, Header, Kind, LeaseEntry};
use crate::tensor::{DType, DeviceStream, TensorError};
use crate::transport::ring::RingCorrupt;

/// Replies that may wait for a peer whatever it may ask.
const FEW_REPLIES: usize = 4096;

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) kind: Kind,
    pub(crate) index: u16,
    pub(crate) actor: ActorId,
    pub(crate) correlation: u64,
    pub(crate) key: u64,
    /// Of the mailbox, per sending process.
    pub(crate) capacity: u32,
}

/// What a frame still lacks. Waiting helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotNow {
    /// The link is being made.
    Connecting,
    /// The mailbox has as many unhandled messages of this process as it takes.
    MailboxFull,
    /// The ring to the process is full.
    RingFull,
    /// The process holds as many leases of this one as it may.
    LeasesOut,
}

/// Why a frame cannot go out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransmitError {
    #[error("not now: {0:?}")]
    NotNow(NotNow),
    #[error("there is no such actor (any more)")]
    NoSuchActor,
    #[error("the actor failed and is being restarted")]
    Restarting,
    #[error("process {0} has ended")]
    Exited(ProcessId),
    #[error("its body of {bytes} bytes needs host memory: {error}")]
    Body { bytes: usize, error: PoolError },
    #[error("a tensor in it depends on work that {0} had not done when it died")]
    Tainted(ProcessId),
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Everything a frame needs, taken. Dropping it gives all back.
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
    done: bool,
}

impl Claim {
    /// The process that it is to be sent to.
    #[cfg(feature = "testing")]
    pub(crate) fn peer(&self) -> ProcessId {
        self.link.peer
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        self.link.granted.fetch_sub(self.owned, Ordering::Relaxed);
        if let Some(out) = self.link.out.lock().as_mut() {
            out.claimed -= self.bytes;
            if let Some(sent) = self.credit.and_then(|index| out.sent.get_mut(usize::from(index))) {
                *sent -= 1;
            }
        }
    }
}

impl Transport {
    /// Whether a message to that mailbox could go now, as far as can be said before it is encoded.
    pub(crate) fn may_send(&self, link: &Link, destination: &Destination) -> Result<(), TransmitError> {
        check_open(link)?;
        let mut out = link.out.lock();
        let Some(out) = out.as_mut() else { return Err(TransmitError::NotNow(NotNow::Connecting)) };
        check_credit(link, out, destination)
    }

    /// Takes what the frame needs, all or nothing.
    pub(crate) fn claim(
        &self,
        link: &Arc<Link>,
        destination: &Destination,
        encoded: &Encoded,
    ) -> Result<Claim, TransmitError> {
        fault::point("transport.send.claim");
        check_open(link)?;
        // A reply was looked at when it was given; it is looked at once more where it arrives.
        if let Some(tainted) = encoded.taint().filter(|_| wants_credit(destination.kind)) {
            return Err(TransmitError::Tainted(tainted.by));
        }
        let body =
            if encoded.body.len() > MAX_INLINE_BODY { Some(self.body_lease(&encoded.body)?) } else { None };
        let inline = if body.is_some() { 0 } else { encoded.body.len() };
        let leases = encoded.leases.len() + usize::from(body.is_some());
        // Twice: the record may have to skip to the beginning of the ring.
        let bytes = 2 * (wire::frame_bytes(leases, encoded.tensors.len(), inline) + 16);
        let owned = encoded.leases.iter().filter(|(lease, _)| lease.pool().is_some()).count()
            + usize::from(body.is_some());

        let mut guard = link.out.lock();
        let Some(out) = guard.as_mut() else { return Err(TransmitError::NotNow(NotNow::Connecting)) };
        check_credit(link, out, destination)?;
        if !out.ring.has_free(out.claimed + bytes).map_err(|error| self.corrupt(link, &error))? {
            // Before the sender asks the reader to be woken for it, see `Sending::poll`.
            link.lacks_room.store(true, Ordering::Release);
            return Err(TransmitError::NotNow(NotNow::RingFull));
        }
        if owned > 0 && link.granted.load(Ordering::Relaxed) + owned > MAX_GRANTED {
            link.lacks_room.store(true, Ordering::Release);
            return Err(TransmitError::NotNow(NotNow::LeasesOut));
        }
        link.granted.fetch_add(owned, Ordering::Relaxed);
        out.claimed += bytes;
        let credit = wants_credit(destination.kind).then_some(destination.index);
        if let Some(sent) = credit.and_then(|index| out.sent.get_mut(usize::from(index))) {
            *sent += 1;
        }
        Ok(Claim { link: Arc::clone(link), bytes, owned, credit, body, done: false })
    }

    /// Writes the frame that was claimed. The value that was encoded has been dropped.
    pub(crate) fn commit(&self, claim: Claim, destination: &Destination, encoded: Encoded) {
        self.commit_as(claim, destination, encoded, wake_reasons::FRAMES);
    }

    /// As [`commit`](Self::commit); `due` is for which of the [`wake_reasons`] the peer is woken.
    fn commit_as(&self, mut claim: Claim, destination: &Destination, encoded: Encoded, due: u8) {
        let since = self.domain.tracer().begin();
        fault::point("transport.send.claimed");
        let link = Arc::clone(&claim.link);
        let Encoded { body, leases, tensors, mut parts } = encoded;
        let mut granted = SmallVec::new();
        let mut entries: SmallVec<[LeaseEntry; 4]> = SmallVec::new();
        for (lease, ready) in &leases {
            // Before the frame is written: a part that comes back at once finds that it had left.
            let given = give_away(lease, &mut parts);
            let entry = match given {
                None => self.entry_for(&link, lease, *ready, &mut granted),
                Some((given, uses)) => self.entry_for_parts(&link, lease, given, uses, &mut granted),
            };
            self.counters.bytes_lent.fetch_add(lease.bytes(), Ordering::Relaxed);
            entries.push(entry);
        }
        if let Some(lease) = &claim.body {
            let entry = self.entry_for(&link, lease, None, &mut granted);
            entries.push(entry);
        }
        let header = Header {
            kind: destination.kind,
            body_in_lease: claim.body.is_some(),
            index: destination.index,
            actor: destination.actor,
            correlation: destination.correlation,
            key: destination.key,
            body_bytes: body.len() as u32,
        };
        let inline: &[u8] = if claim.body.is_some() { &[] } else { &body };
        // Leases on this process's own memory go with the frame: the lease table has the grant. Others' are kept until
        // the receiver has passed the frame, having posted its own hold before (LEASE-3).
        let kept: SmallVec<[Lease; 2]> = leases
            .iter()
            .filter(|(lease, _)| lease.pool().is_none())
            .map(|(lease, _)| lease.clone())
            .collect();
        let waits = !kept.is_empty();
        fault::point("transport.send.granted");
        let written = {
            let mut guard = link.out.lock();
            guard.as_mut().and_then(|out| {
                out.claimed -= claim.bytes;
                claim.done = true;
                if waits {
                    // The reader may sleep, and it is to let go of them. Under the lock: before anybody can publish.
                    self.want_progress();
                    out.forwards += 1;
                    link.forwards.store(true, Ordering::Release);
                }
                write(out, &header, &entries, &tensors, inline, granted, kept)
            })
        };
        if let Some(end) = written {
            self.counters.sent.fetch_add(1, Ordering::SeqCst);
            self.note_sent(since, &link, &header, end, entries.iter().map(|entry| entry.bytes).sum());
        } else {
            tracing::error!(peer = %link.peer, "a frame did not fit the room that was claimed for it");
            self.give_up(&link);
        }
        codec::give_back(body);
        fault::point("transport.send.written");
        // After the frame is written: with these may go the last local lease, and its last uses into the lease table.
        drop(leases);
        if link.is_broken() {
            // It broke between the claim and now, and asks were failed before this one was among them, or after.
            self.let_go(&link);
            self.fail_asks(link.peer);
            self.evict_if_reclaimed(link.peer);
        }
        self.publish_soon(&link, due);
    }

    fn entry_for(
        &self,
        link: &Link,
        lease: &Lease,
        ready: Option<crate::clock::Ticket>,
        granted: &mut SmallVec<[crate::lease::LeaseId; 2]>,
    ) -> LeaseEntry {
        let id = lease.id();
        let shared = grant(link, lease, granted);
        let mut sole = lease.hand_over(link.peer, shared);
        let mut ready = ready;
        if sole {
            // A new writer waits for everything that was done with the memory, a reader only for its data. Reads that
            // other processes have released and not finished are joined too; without a stream to join them there is no
            // hand-over, only a loan.
            let mut uses = lease.recorded_uses();
            uses.retain(|ticket| !self.domain.passed(ticket).unwrap_or(true));
            sole = uses.is_empty() || lease.join_uses(uses);
            // What is tainted stays it, whoever is joined.
            let tainted = ready.is_some_and(|ticket| self.domain.tainted_by(&ticket).is_some());
            if !lease.users().is_empty() && !tainted {
                match lease.joined_ticket() {
                    Ok(joined) => ready = joined,
                    // Without an order there is no hand-over, only a loan.
                    Err(unordered) => (ready, sole) = (unordered.written.or(ready), false),
                }
            }
        }
        let ready = ready.filter(|ticket| !matches!(self.domain.status(ticket), Ok(TicketStatus::Ready)));
        LeaseEntry { id, offset: lease.offset(), bytes: lease.bytes(), ready, sole, in_parts: false }
    }

    /// For memory of which parts are in the frame. `given` is whether the message had the only handle on each.
    fn entry_for_parts(
        &self,
        link: &Link,
        lease: &Lease,
        given: bool,
        mut uses: Uses,
        granted: &mut SmallVec<[crate::lease::LeaseId; 2]>,
    ) -> LeaseEntry {
        let id = lease.id();
        let _ = grant(link, lease, granted);
        uses.retain(|ticket| !matches!(self.domain.status(ticket), Ok(TicketStatus::Ready)));
        // All that was done with these parts, here and before: the next writer waits for it (CLOCK-1).
        let (ready, in_parts) = match lease.one_of(uses) {
            Ok(ready) => (ready, given),
            Err(error) => {
                tracing::error!(
                    ?error,
                    "what was done with parts of one lease cannot be waited for; they are not given away"
                );
                (None, false)
            }
        };
        if !given {
            tracing::warn!(peer = %link.peer, "a part was kept when it was sent; its message will be refused");
        }
        LeaseEntry { id, offset: lease.offset(), bytes: lease.bytes(), ready, sole: false, in_parts }
    }

    /// Puts a large body into host memory, to travel as a lease.
    fn body_lease(&self, body: &[u8]) -> Result<Lease, TransmitError> {
        let Some(pool) = self.pool_on(DeviceId::HOST) else {
            return Err(TransmitError::NoSuchActor);
        };
        let stream = match self.scratch.get() {
            Some(stream) => stream,
            None => {
                let stream = DeviceStream::new(pool, Arc::clone(&self.domain))?;
                self.scratch.get_or_init(|| stream)
            }
        };
        let mut tensor = stream.empty(DType::U8, &[body.len()]).map_err(|error| match error {
            TensorError::Pool(error) => TransmitError::Body { bytes: body.len(), error },
            other => TransmitError::Tensor(other),
        })?;
        tensor.copy_from_slice(body)?;
        Ok(tensor.lease().clone())
    }

    /// Sends a reply, and hands the credit of `asked`, the mailbox of the actor that was asked, back when it went;
    /// where there is no room now, the reader sends it when there is.
    ///
    /// A reply that only `acknowledges` wakes the sender when its credit does.
    pub(crate) fn reply(
        &self,
        link: &Arc<Link>,
        correlation: u64,
        encoded: Encoded,
        asked: Option<Credit>,
        acknowledges: bool,
    ) {
        self.answer(link, Kind::Reply, correlation, encoded, asked, acknowledges);
    }

    /// As [`reply`](Self::reply), but says why there is none.
    pub(crate) fn refuse(&self, link: &Arc<Link>, correlation: u64, why: &Refusal, asked: Option<Credit>) {
        match codec::encode(why, Vec::new()) {
            Ok(encoded) => self.answer(link, Kind::Refusal, correlation, encoded, asked, false),
            Err(error) => {
                tracing::error!(%error, "a refusal could not be encoded");
                self.hand_back(link, asked);
            }
        }
    }

    /// A message of the peer is done with.
    pub(crate) fn hand_back(&self, link: &Arc<Link>, asked: Option<Credit>) {
        self.hand_back_with(link, asked, wake_reasons::CREDIT);
    }

    /// As [`hand_back`](Self::hand_back); when the peer is to be woken for it, then for the reason `what` of the
    /// [`wake_reasons`].
    fn hand_back_with(&self, link: &Arc<Link>, asked: Option<Credit>, what: u8) {
        #[cfg(any(test, feature = "testing"))]
        if self.is_abandoned() {
            return;
        }
        if let Some(credit) = asked {
            let tell = link.hand_back(credit);
            // At the end of the turn.
            self.publish_soon(link, if tell { what } else { wake_reasons::deferred(what) });
        }
    }

    fn answer(
        &self,
        link: &Arc<Link>,
        kind: Kind,
        correlation: u64,
        encoded: Encoded,
        asked: Option<Credit>,
        acknowledges: bool,
    ) {
        let destination = Destination { kind, index: 0, actor: ActorId(0), correlation, key: 0, capacity: 0 };
        let claim = if link.backlog.load(Ordering::Acquire) {
            Err(TransmitError::NotNow(NotNow::RingFull))
        } else {
            self.claim(link, &destination, &encoded)
        };
        match claim {
            Ok(claim) if acknowledges && asked.is_some() => {
                self.commit_as(claim, &destination, encoded, wake_reasons::deferred(wake_reasons::FRAMES));
                self.hand_back_with(link, asked, wake_reasons::FRAMES);
            }
            Ok(claim) => {
                self.commit(claim, &destination, encoded);
                self.hand_back(link, asked);
            }
            Err(TransmitError::NotNow(_) | TransmitError::Body { .. }) => {
                let header = Header {
                    kind,
                    body_in_lease: false,
                    index: 0,
                    actor: ActorId(0),
                    correlation,
                    key: 0,
                    body_bytes: 0,
                };
                let waiting = link.out.lock().as_mut().map_or(0, |out| {
                    out.outbox.push_back((header, encoded, asked));
                    link.backlog.store(true, Ordering::Release);
                    out.outbox.len()
                });
                // The sum is over all actors: it is looked at where there is something to ask about.
                if waiting > FEW_REPLIES && waiting > self.most_replies() {
                    tracing::error!(
                        peer = %link.peer,
                        waiting,
                        "a peer asks more than its credits and does not read the answers; it is given up"
                    );
                    self.counters.rejected.fetch_add(1, Ordering::Relaxed);
                    link.break_off();
                }
                self.wake_reader();
            }
            Err(TransmitError::Exited(_)) => {} // Nobody is left to read it.
            Err(error) => {
                tracing::error!(peer = %link.peer, %error, "a reply could not be sent");
                if kind == Kind::Reply {
                    self.refuse(link, correlation, &Refusal::BadReply(error.to_string()), asked);
                } else {
                    self.hand_back(link, asked);
                }
            }
        }
    }

    /// Replies that one peer can have waiting here if it keeps to its credits (MBX-2): as many as it may ask of all actors
    /// that there are or were, each of which keeps its ask's credit until it has gone. Those to actors that there are not
    /// have no mailbox to be counted in, so this is where a peer that ignores the credits is found out.
    fn most_replies(&self) -> usize {
        let inboxes = self.inboxes.read();
        FEW_REPLIES + inboxes.iter().map(|slot| slot.capacity() as usize).sum::<usize>()
    }

    /// Sends replies that found no room before; true if one went.
    pub(super) fn flush_outbox(&self, link: &Arc<Link>) -> bool {
        let mut any = false;
        while link.backlog.load(Ordering::Acquire) {
            let next = link.out.lock().as_mut().and_then(|out| {
                let next = out.outbox.pop_front();
                link.backlog.store(next.is_some(), Ordering::Release);
                next
            });
            let Some((header, encoded, asked)) = next else { return any };
            let destination = Destination {
                kind: header.kind,
                index: 0,
                actor: ActorId(0),
                correlation: header.correlation,
                key: 0,
                capacity: 0,
            };
            match self.claim(link, &destination, &encoded) {
                Ok(claim) => {
                    self.commit(claim, &destination, encoded);
                    self.hand_back(link, asked);
                    any = true;
                }
                Err(TransmitError::NotNow(_) | TransmitError::Body { .. }) => {
                    if let Some(out) = link.out.lock().as_mut() {
                        out.outbox.push_front((header, encoded, asked));
                    }
                    return any;
                }
                Err(error) => {
                    tracing::error!(peer = %link.peer, %error, "a reply could not be sent");
                    self.hand_back(link, asked);
                }
            }
        }
        any
    }

    fn corrupt(&self, link: &Link, error: &RingCorrupt) -> TransmitError {
        tracing::error!(peer = %link.peer, %error, "a peer's cursor is corrupt");
        self.counters.rejected.fetch_add(1, Ordering::Relaxed);
        link.break_off();
        // The rest is for the reader: a lock is held here.
        self.wake_reader();
        TransmitError::Exited(link.peer)
    }
}

/// The peer's lease into the lease table, where the memory is this process's own (LEASE-1); whether somebody else was
/// ever given one.
fn grant(link: &Link, lease: &Lease, granted: &mut SmallVec<[crate::lease::LeaseId; 2]>) -> bool {
    let Some(pool) = lease.pool() else { return true };
    match pool.grant(lease.id(), link.peer) {
        Ok(before) => {
            granted.push(lease.id());
            before
        }
        // The lease is a value of this process, so its entry is open.
        Err(error) => {
            tracing::error!(%error, "an own lease is not in the lease table");
            true
        }
    }
}

fn wants_credit(kind: Kind) -> bool {
    matches!(kind, Kind::Send | Kind::Ask)
}

fn check_open(link: &Link) -> Result<(), TransmitError> {
    if link.is_broken() || link.has_exited() {
        return Err(TransmitError::Exited(link.peer));
    }
    if link.is_open() { Ok(()) } else { Err(TransmitError::NotNow(NotNow::Connecting)) }
}

fn check_credit(link: &Link, out: &mut Outbound, destination: &Destination) -> Result<(), TransmitError> {
    if !wants_credit(destination.kind) {
        return Ok(());
    }
    match link.mailbox_state(destination.index) {
        CLOSED => return Err(TransmitError::NoSuchActor),
        AWAY => return Err(TransmitError::Restarting),
        _ => {}
    }
    let index = usize::from(destination.index);
    let sent = out.sent.get(index).copied().ok_or(TransmitError::NoSuchActor)?;
    let handled = out.handled.get_mut(index).ok_or(TransmitError::NoSuchActor)?;
    // A peer that claims to have handled more than was sent gets no more than a full window for it.
    let is_full = |handled: u64| sent.saturating_sub(handled) >= u64::from(destination.capacity);
    if is_full(*handled) {
        // Only now: the receiver writes that word with each message, and to look at it takes the cache line away.
        *handled = link.handled(destination.index);
        if is_full(*handled) {
            return Err(TransmitError::NotNow(NotNow::MailboxFull));
        }
    }
    Ok(())
}

/// Where the frame ends in the ring, if there was room.
fn write(
    out: &mut Outbound,
    header: &Header,
    entries: &[LeaseEntry],
    tensors: &[crate::message::scope::Outline],
    inline: &[u8],
    granted: SmallVec<[crate::lease::LeaseId; 2]>,
    kept: SmallVec<[Lease; 2]>,
) -> Option<u64> {
    let mut head = std::mem::take(&mut out.head);
    wire::write_head(&mut head, header, entries, tensors, inline);
    #[cfg(any(test, feature = "testing"))]
    let inline = match out.tamper.take() {
        Some(tamper) => {
            head.extend_from_slice(inline);
            tamper.0(&mut head);
            &[]
        }
        None => inline,
    };
    let written = match out.ring.reserve(head.len() + inline.len()) {
        Ok(mut reservation) => {
            reservation.write(0, &head);
            reservation.write(head.len(), inline);
            let end = reservation.commit();
            if !granted.is_empty() || !kept.is_empty() {
                out.in_flight.push_back(InFlight { end, granted, kept });
            }
            Some(end)
        }
        Err(_) => None,
    };
    out.head = head;
    written
}
