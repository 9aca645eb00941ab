//! Frames out.
//!
//! A frame goes in two steps. [`Transport::claim`] takes everything that it needs (credit, room in the ring,
//! room for its leases to come back) or nothing, while the sender still has the value. Then the sender drops
//! the value, and [`Transport::commit`] writes the frame: only now can be seen which leases have no handle
//! left in this process, and so were moved all the way.
//!
//! A process looks at a peer's words only when it has to: each look takes the cache line away from the one
//! who writes it. A sender counts its own credits and its own room, and looks at the receiver's count and
//! cursor when those are used up. Whether an actor takes messages at all is a word apart, which changes once
//! in a life.
//!
//! Used by `actor/sending.rs` for messages, by a receipt ([`inbox`](super::inbox)) for replies, and by the
//! reader for replies that found no room.
//!
//! **Invariants.** LEASE-1: what is granted is in the lease table before the frame is written. LEASE-3:
//! leases of others are kept until the peer has passed the frame. MBX-2: a reply keeps its ask's credit until
//! it has gone, so no more replies wait than the peer may ask.
//!
//! **Locks.** The sender side's `out` for the claim, and once more for the write; between the two, a pool's
//! for each lease. None inside another. A frame of a body alone takes `out` once, for both
//! ([`Transport::send_plain`]).
//!
//! **On a crash** of the peer the claim fails, or the commit finds the link broken and lets go of everything
//! by itself. **On cancellation** a claim drops and gives everything back; a commit is not interrupted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;
use smallvec::SmallVec;

use super::forwards::Forwards;
use super::inbox::Refusal;
pub(crate) use super::link::Claim;
use super::link::{Credit, Draft, Link, claimed_bytes, wants_credit};
use super::{LinkRefused, Transport, wake_reasons};
use crate::clock::taint::TicketStatus;
use crate::fault;
use crate::ids::{ActorId, ProcessId};
use crate::lease::table::Uses;
use crate::lease::{Lease, PoolError};
use crate::limits::MAX_INLINE_BODY;
use crate::message::EncodeError;
use crate::message::body::Room;
use crate::message::buffers::{Gathered, Use};
use crate::message::codec::{self, Encoded};
use crate::message::packed::Lists;
use crate::message::parts::give_away;
use crate::message::wire::{Header, Kind, LeaseEntry};
use crate::observe::context::TraceContext;
use crate::stream::turn::{self, Turn};
use crate::tensor::TensorError;
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
    /// Whether the body ends with the context of a span.
    pub(crate) has_context: bool,
}

impl Destination {
    /// The header of a frame that goes there.
    fn header(&self, body_in_lease: bool, body: usize) -> Header {
        let Destination { kind, index, actor, correlation, key, has_context } = *self;
        // Longer ones are not encoded (MAX_BODY).
        let body_bytes = body as u32;
        Header { kind, body_in_lease, has_context, index, actor, correlation, key, body_bytes }
    }
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
    /// As much of this process's memory is with others as may be; or, in the gateway, there is none for its
    /// body.
    MemoryOut,
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
    #[error("{0}")]
    NoLink(LinkRefused),
    #[error("its body of {bytes} bytes needs host memory: {error}")]
    Body { bytes: usize, error: PoolError },
    #[error("a tensor in it depends on work that {0} had not done when it died")]
    Tainted(ProcessId),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

impl Transport {
    /// Sends a message the long way. `expect` notes the ask, where it is one, and gives its number, which is
    /// returned. On an error `message` is as it was, and `expect` was not called.
    pub(crate) fn send<M: Serialize>(
        &self,
        link: &Arc<Link>,
        mut destination: Destination,
        message: &mut Option<M>,
        lists: Lists,
        expect: impl FnOnce() -> Option<u64>,
    ) -> Result<Option<u64>, TransmitError> {
        // Before the work of encoding.
        link.may_send(&destination)?;
        let Some(value) = message.as_ref() else { return Ok(None) };
        // Outside of a handler a send is a turn of its own: the data of a tensor and the end of its lease are
        // one clock write. It ends, and publishes the frame, when this returns.
        let turn = Turn::begin();
        let mut encoded = self.encode(value, lists)?;
        if self.directory.meets_foreign(destination.actor) {
            // Before the claim: the sender has the message back.
            encoded.may_leave_host()?;
        }
        destination.has_context = encoded.append(TraceContext::current());
        // A mere send of nothing but a short body needs no two steps: nothing of its value can be handed
        // over. Nor a turn of its own, in which nothing was put off.
        if destination.kind == Kind::Send && encoded.is_plain() {
            drop(turn);
            let sent = self.send_plain(link, &destination, &encoded.body, wake_reasons::FRAMES);
            Use::Encoded.give_back(encoded.body);
            sent?;
            drop(message.take());
            return Ok(None);
        }
        let claim = self.claim(link, &destination, &encoded)?;
        // Nothing fails from here on. The ask is noted before its frame can be seen: the reply may come at
        // once.
        let correlation = expect();
        destination.correlation = correlation.unwrap_or(0);
        // The value goes before the frame is written: what has no handle left then was moved all the way.
        drop(message.take());
        self.commit(claim, &destination, encoded);
        Ok(correlation)
    }

    /// Encodes a value for another process.
    pub(super) fn encode<T: Serialize>(&self, value: &T, lists: Lists) -> Result<Encoded, EncodeError> {
        let room = |bytes| self.memory.body_memory(bytes).ok();
        let room: Option<Room<'_>> = if self.fills_bodies() { Some(&room) } else { None };
        codec::encode_for_peer(value, Use::Encoded.take(), lists, room, &self.domain)
    }

    /// Claims and writes a frame of a body alone, in one step: on an error nothing was taken. `due` as for
    /// [`commit_as`](Self::commit_as).
    fn send_plain(
        &self,
        link: &Arc<Link>,
        destination: &Destination,
        body: &[u8],
        due: u8,
    ) -> Result<(), TransmitError> {
        let since = self.domain.tracer().begin();
        fault::point("transport.send.claim");
        link.check_open()?;
        let header = destination.header(false, body.len());
        // Outside of a turn it is seen at once, which needs no lock of its own. Frames of other threads may
        // lie before it, so returns go first.
        let alone = !turn::is_open();
        #[cfg(any(test, feature = "testing"))]
        let alone = alone && !self.lifecycle.is_abandoned();
        let now = || {
            // Before the peer can count it as received, as everywhere: a shutdown compares the two.
            self.counters.sent.fetch_add(1, Ordering::SeqCst);
            fault::point("transport.send.written");
            let now = alone && !self.links.have_unpublished_notices();
            if now {
                fault::point("transport.send.publish");
            }
            now
        };
        let (end, is_published) =
            link.send_plain(destination, &header, body, now, |error| self.corrupt(link, error))?;
        self.note_sent(since, link, &header, end, 0);
        // As in `commit_as`; of this frame nothing is in the ring's books, and it is no ask.
        if link.is_broken() {
            self.let_go(link);
            self.evict_if_reclaimed(link.peer);
        }
        if is_published {
            self.tell(link, due);
        } else if wants_credit(destination.kind) {
            self.publish_message_soon(link, due);
        } else {
            self.publish_soon(link, due);
        }
        Ok(())
    }

    /// Takes what the frame needs, all or nothing.
    pub(crate) fn claim(
        &self,
        link: &Arc<Link>,
        destination: &Destination,
        encoded: &Encoded,
    ) -> Result<Claim, TransmitError> {
        fault::point("transport.send.claim");
        // Again: the link may have broken while the value was encoded.
        link.check_open()?;
        // A reply was looked at when it was given; it is looked at once more where it arrives.
        if let Some(tainted) = encoded.taint().filter(|_| wants_credit(destination.kind)) {
            return Err(TransmitError::Tainted(tainted.by));
        }
        // A reply waits for nothing here: its ask's sender is bounded.
        if wants_credit(destination.kind) && !self.may_lend(encoded) {
            return Err(TransmitError::NotNow(NotNow::MemoryOut));
        }
        let in_lease = encoded.filled.is_some() || encoded.body.len() > MAX_INLINE_BODY;
        let inline = if in_lease { 0 } else { encoded.body.len() };
        let leases = encoded.leases.len() + usize::from(in_lease);
        let bytes = claimed_bytes(leases, encoded.tensors.len(), inline);
        let own = encoded.leases.iter().filter(|(lease, _)| lease.pool().is_some()).count();
        let forwards = if own < encoded.leases.len() {
            self.claim_forwards(link, encoded).map_err(TransmitError::NotNow)?
        } else {
            Forwards::default()
        };
        let owned = own + usize::from(in_lease);
        // Outside of the link's lock: this allocates and copies. Where the claim fails, the lease goes again.
        let lacking = |error: &TransmitError| self.note_lack(link, error);
        let body = match &encoded.filled {
            Some(filled) => Some(filled.lease()),
            None if in_lease => {
                // Before: memory that comes back of a body that did not go would be what its sender waits
                // for.
                let may = link.may_claim(destination, bytes, owned, |error| self.corrupt(link, error));
                may.inspect_err(lacking)?;
                Some(self.body_lease(destination, encoded)?)
            }
            None => None,
        };
        let claim = link.claim(destination, bytes, owned, body, forwards, |error| self.corrupt(link, error));
        claim.inspect_err(lacking)
    }

    /// Writes the frame that was claimed. The value that was encoded has been dropped.
    pub(crate) fn commit(&self, claim: Claim, destination: &Destination, encoded: Encoded) {
        self.commit_as(claim, destination, encoded, wake_reasons::FRAMES);
    }

    /// Does the same as [`commit`](Self::commit); `due` is for which of the [`wake_reasons`] the peer is
    /// woken.
    fn commit_as(&self, mut claim: Claim, destination: &Destination, encoded: Encoded, due: u8) {
        let since = self.domain.tracer().begin();
        fault::point("transport.send.claimed");
        let forwards = claim.take_forwards();
        let link = claim.link();
        let bytes = encoded.body_len();
        let Encoded { body, filled, leases, tensors, mut parts } = encoded;
        // The claim has its lease.
        drop(filled);
        // First the grants: when the peer sees the frame, its leases are in the lease table (LEASE-1).
        let mut granted = SmallVec::new();
        let mut entries: SmallVec<[LeaseEntry; 4]> = SmallVec::new();
        for (lease, ready) in &leases {
            // Before the frame is written: a part that comes back at once finds that it had left.
            let given = give_away(lease, &mut parts);
            let entry = match given {
                None => self.entry_for(link, lease, *ready, &mut granted),
                Some((given, uses)) => self.entry_for_parts(link, lease, given, uses, &mut granted),
            };
            self.counters.bytes_lent.fetch_add(lease.bytes(), Ordering::Relaxed);
            entries.push(entry);
        }
        // The body's lease goes last: the receiver takes the last one for it.
        if let Some(lease) = claim.body() {
            let entry = self.entry_for(link, lease, None, &mut granted);
            entries.push(entry);
        }
        let header = destination.header(claim.body().is_some(), bytes);
        let inline: &[u8] = if claim.body().is_some() { &[] } else { &body };
        // Leases on this process's own memory go with the frame: the lease table has the grant. Others' are
        // kept until the receiver has passed the frame, having posted its own hold before (LEASE-3).
        let kept: SmallVec<[Lease; 2]> = leases
            .iter()
            .filter(|(lease, _)| lease.pool().is_none())
            .map(|(lease, _)| lease.clone())
            .collect();
        if !kept.is_empty() {
            // Before the frame can be seen, and so the hold that it leads to.
            self.say_forwards(link, forwards, &kept);
        }
        fault::point("transport.send.granted");
        let draft = Draft { header: &header, entries: &entries, tensors: &tensors, inline, granted, kept };
        let written = claim.write(draft, || self.wakeups.want_progress());
        if let Some(end) = written {
            self.counters.sent.fetch_add(1, Ordering::SeqCst);
            self.note_sent(since, link, &header, end, entries.iter().map(|entry| entry.bytes).sum());
        } else {
            // The claim was for the worst case, so the ring is not what it was: nothing of this peer is
            // believed any more.
            tracing::error!(peer = %link.peer, "a frame did not fit the room that was claimed for it");
            self.give_up(link);
        }
        Use::Encoded.give_back(body);
        fault::point("transport.send.written");
        // After the frame is written: with these may go the last local lease, and its last uses into the
        // lease table.
        Gathered { leases, tensors }.give_back();
        // After the write, and not before: whoever breaks the link sets the mark first, and then takes what
        // is in the ring's books. So either that one has found this frame's leases there, or the mark is seen
        // here.
        if link.is_broken() {
            // It broke between the claim and now, and asks were failed before this one was among them, or
            // after.
            self.let_go(link);
            self.fail_asks(link.peer);
            self.evict_if_reclaimed(link.peer);
        }
        // Last: what the dropped leases have posted goes out with the frame, and before it.
        if wants_credit(destination.kind) {
            self.publish_message_soon(link, due);
        } else {
            self.publish_soon(link, due);
        }
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
            // A new writer waits for everything that was done with the memory, a reader only for its data.
            // Reads that other processes have released and not finished are joined too; without a stream to
            // join them there is no hand-over, only a loan.
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

    /// For memory of which parts are in the frame. `given` is whether the message had the only handle on
    /// each.
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

    /// Sends a reply, and hands the credit of `asked`, the mailbox of the actor that was asked, back when it
    /// went; where there is no room now, the reader sends it when there is.
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

    /// Does the same as [`reply`](Self::reply), but says why there is none.
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

    /// Does the same as [`hand_back`](Self::hand_back); when the peer is to be woken for it, then for the
    /// reason `what` of the [`wake_reasons`].
    fn hand_back_with(&self, link: &Arc<Link>, asked: Option<Credit>, what: u8) {
        #[cfg(any(test, feature = "testing"))]
        if self.lifecycle.is_abandoned() {
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
        self.publish_before_answer(link);
        let destination =
            Destination { kind, index: 0, actor: ActorId(0), correlation, key: 0, has_context: false };
        // A reply does not overtake those that wait. Replies need no order, but the first ones have waited
        // longest. It only acknowledges: it is published quietly, and its credit says when to ring for both.
        let is_quiet = acknowledges && asked.is_some();
        let due = if is_quiet { wake_reasons::deferred(wake_reasons::FRAMES) } else { wake_reasons::FRAMES };
        let sent = if link.has_backlog() {
            Err(TransmitError::NotNow(NotNow::RingFull))
        } else if encoded.is_plain() {
            self.send_plain(link, &destination, &encoded.body, due).map(|()| None)
        } else {
            self.claim(link, &destination, &encoded).map(Some)
        };
        // The credit of the ask goes back behind its reply, in whichever way that goes, and never before: it
        // bounds the replies that wait (MBX-2).
        match sent {
            // Where somebody waits for it, the frame rings, and the credit goes along.
            Ok(claim) => {
                match claim {
                    Some(claim) => self.commit_as(claim, &destination, encoded, due),
                    None => Use::Encoded.give_back(encoded.body),
                }
                self.hand_back_with(
                    link,
                    asked,
                    if is_quiet { wake_reasons::FRAMES } else { wake_reasons::CREDIT },
                );
            }
            // It cannot go now, and this thread must not wait: it may be a handler's, or the reader's. The
            // reader sends it when there is room, and until then it keeps the credit (MBX-2).
            Err(TransmitError::NotNow(_) | TransmitError::Body { .. }) => {
                let header = Header {
                    kind,
                    body_in_lease: false,
                    has_context: false,
                    index: 0,
                    actor: ActorId(0),
                    correlation,
                    key: 0,
                    body_bytes: 0,
                };
                // While it waits it takes nothing of the memory that messages to others need.
                let encoded = encoded.into_buffer();
                let waiting = link.queue_reply((header, encoded, asked));
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
                // It may sleep without knowing that it is to be woken for room; and it gives a broken link
                // up.
                self.wakeups.wake_reader();
            }
            Err(TransmitError::Exited(_)) => {} // Nobody is left to read it.
            // It can never go as it is. A refusal says so in its place; where that was the refusal, only the
            // credit is left.
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

    /// Replies that one peer can have waiting here if it keeps to its credits (MBX-2): as many as it may ask
    /// of all actors that there are or were, each of which keeps its ask's credit until it has gone. Those to
    /// actors that there are not have no mailbox to be counted in, so this is where a peer that ignores the
    /// credits is found out.
    fn most_replies(&self) -> usize {
        FEW_REPLIES + self.actors.capacities()
    }

    /// Sends replies that found no room before; true if one went.
    pub(super) fn flush_outbox(&self, link: &Arc<Link>) -> bool {
        let mut any = false;
        while link.has_backlog() {
            let Some((header, encoded, asked)) = link.next_reply() else { return any };
            let destination = Destination {
                kind: header.kind,
                index: 0,
                actor: ActorId(0),
                correlation: header.correlation,
                key: 0,
                has_context: false,
            };
            match self.claim(link, &destination, &encoded) {
                Ok(claim) => {
                    self.commit(claim, &destination, encoded);
                    self.hand_back(link, asked);
                    any = true;
                }
                Err(TransmitError::NotNow(_) | TransmitError::Body { .. }) => {
                    link.put_reply_back((header, encoded, asked));
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
        self.wakeups.wake_reader();
        TransmitError::Exited(link.peer)
    }
}

/// The peer's lease into the lease table, where the memory is this process's own (LEASE-1); whether somebody
/// else was ever given one.
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
