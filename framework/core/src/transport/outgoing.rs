//! Frames out: claims room for them, and writes them.
//!
//! A frame is sent in two steps. [`FrameSender::claim`] takes everything that it needs (credit, room in the
//! ring, room for its leases to come back) or nothing, while the sender still has the value. Then the sender
//! drops the value, and [`FrameSender::commit`] writes the frame. Only then is it known which leases have no
//! handle left in this process, and so were handed over completely.
//!
//! A process loads a peer's words only when necessary, because each load takes the cache line away from the
//! writer. A sender counts its own credits and its own room, and loads the receiver's count and cursor only
//! when those are used up. A separate word says whether an actor takes messages at all; it changes once in a
//! life.
//!
//! `actor/sending.rs` uses it for messages, and [`replies`](super::replies) for replies.
//!
//! **Invariants.** LEASE-1: a grant is in the lease table before the frame is written. LEASE-3: leases on
//! others' memory are kept until the peer has passed the frame.
//!
//! **Locks.** The sender side's `out` for the claim, and once more for the write; between the two, a pool's
//! for each lease. None inside another. A frame that has only a body takes `out` once, for both
//! ([`FrameSender::send_plain`]).
//!
//! **On a crash** of the peer the claim fails, or the commit finds the link broken and drops everything by
//! itself. **On cancellation** a claim drops and gives everything back; a commit is not interrupted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;
use smallvec::SmallVec;

use super::destination::Destination;
pub(crate) use super::link::Claim;
use super::link::{Draft, Forwards, Link, claimed_bytes, wants_credit};
use super::traced::note_sent;
use super::transmit_error::{NotNow, TransmitError};
use super::{LeaseLimit, Transport, wake_reasons};
use crate::clock::taint::TicketStatus;
use crate::fault;
use crate::lease::Lease;
use crate::lease::table::Uses;
use crate::limits::MAX_INLINE_BODY;
use crate::message::EncodeError;
use crate::message::body::Room;
use crate::message::buffers::{Gathered, Use};
use crate::message::codec::{self, Encoded};
use crate::message::packed::Lists;
use crate::message::parts::give_away;
use crate::message::wire::{Kind, LeaseEntry};
use crate::observe::context::TraceContext;
use crate::stream::turn::{self, Turn};
use crate::transport::ring::RingCorrupt;

/// Sends frames to one peer.
pub(crate) struct FrameSender<'a> {
    pub(super) transport: &'a Transport,
    pub(super) link: &'a Arc<Link>,
}

impl Transport {
    /// Returns the sender of frames to the link's peer.
    #[inline]
    pub(crate) fn frames_to<'a>(&'a self, link: &'a Arc<Link>) -> FrameSender<'a> {
        FrameSender { transport: self, link }
    }
}

impl FrameSender<'_> {
    /// Sends a message to another process. If it is an ask, `expect` notes it and gives its number, which is
    /// returned. On an error `message` is as it was, and `expect` was not called.
    pub(crate) fn send<M: Serialize>(
        &self,
        mut destination: Destination,
        message: &mut Option<M>,
        lists: Lists,
        expect: impl FnOnce() -> Option<u64>,
    ) -> Result<Option<u64>, TransmitError> {
        // Before the work of encoding.
        self.link.may_send(&destination)?;
        let Some(value) = message.as_ref() else { return Ok(None) };
        // Outside of a handler a send is a turn of its own: one clock write covers the data of a tensor and
        // the end of its lease. The turn ends, and publishes the frame, when this function returns.
        let turn = Turn::begin();
        let mut encoded = self.encode(value, lists)?;
        if self.transport.directory.meets_other_host(destination.actor) {
            // Checked before the claim, while the sender can still get the message back.
            encoded.may_leave_host()?;
        }
        destination.has_context = encoded.append(TraceContext::current());
        // A send of only a short body does not need two steps, because its value has no tensor to hand over.
        // It needs no turn of its own either, because nothing was deferred in it.
        if destination.kind == Kind::Send && encoded.is_plain() {
            drop(turn);
            let sent = self.send_plain(&destination, &encoded.body, wake_reasons::FRAMES);
            Use::Encoded.give_back(encoded.body);
            sent?;
            drop(message.take());
            return Ok(None);
        }
        let claim = self.claim(&destination, &encoded)?;
        // Nothing fails from here on. The ask is noted before its frame is visible, because the reply may
        // come at once.
        let correlation = expect();
        destination.correlation = correlation.unwrap_or(0);
        // The value is dropped before the frame is written: a lease without a handle is then handed over
        // completely.
        drop(message.take());
        self.commit(claim, &destination, encoded);
        Ok(correlation)
    }

    /// Encodes a value for another process.
    pub(super) fn encode<T: Serialize>(&self, value: &T, lists: Lists) -> Result<Encoded, EncodeError> {
        let room = |bytes| self.transport.memory.body_memory(bytes).ok();
        let room: Option<Room<'_>> = if self.transport.memory.fills_bodies() { Some(&room) } else { None };
        codec::encode_for_peer(value, Use::Encoded.take(), lists, room, &self.transport.domain)
    }

    /// Claims and writes a frame that has only a body, in one step. On an error nothing was taken. `due` is
    /// as for [`commit_as`](Self::commit_as).
    pub(super) fn send_plain(
        &self,
        destination: &Destination,
        body: &[u8],
        due: u8,
    ) -> Result<(), TransmitError> {
        let since = self.transport.domain.tracer().begin();
        fault::point("transport.send.claim");
        self.link.check_open()?;
        let header = destination.header(false, body.len());
        // Outside of a turn it is published at once, which needs no further lock. Frames of other threads may
        // lie before it, so returns go first.
        let alone = !turn::is_open();
        #[cfg(any(test, feature = "testing"))]
        let alone = alone && !self.transport.lifecycle.is_abandoned();
        let now = || {
            // Counted before the peer can count it as received, as everywhere, because a shutdown compares
            // the two counts.
            self.transport.counters.sent.fetch_add(1, Ordering::SeqCst);
            fault::point("transport.send.written");
            let now = alone && !self.transport.links.have_unpublished_notices();
            if now {
                fault::point("transport.send.publish");
            }
            now
        };
        let (end, is_published) =
            self.link.send_plain(destination, &header, body, now, |error| self.corrupt(error))?;
        note_sent(&self.transport.domain, since, self.link, &header, end, 0);
        // As in `commit_as`. This frame has nothing among the remembered leases, and it is not an ask.
        if self.link.is_broken() {
            self.transport.let_go(self.link);
            self.transport.evict_if_reclaimed(self.link.peer);
        }
        if is_published {
            self.transport.tell(self.link, due);
        } else if wants_credit(destination.kind) {
            self.transport.publish_message_soon(self.link, due);
        } else {
            self.transport.publish_soon(self.link, due);
        }
        Ok(())
    }

    /// Takes everything that the frame needs, or nothing.
    pub(crate) fn claim(&self, destination: &Destination, encoded: &Encoded) -> Result<Claim, TransmitError> {
        fault::point("transport.send.claim");
        // Checked again: the link may have broken while the value was encoded.
        self.link.check_open()?;
        // A reply was checked when it was given, and is checked again where it arrives.
        if let Some(tainted) = encoded.taint().filter(|_| wants_credit(destination.kind)) {
            return Err(TransmitError::Tainted(tainted.by));
        }
        // A reply does not wait here, because the sender of its ask is bounded.
        if wants_credit(destination.kind) && !self.transport.memory.may_lend(encoded) {
            return Err(TransmitError::NotNow(NotNow::MemoryOut));
        }
        let in_lease = encoded.filled.is_some() || encoded.body.len() > MAX_INLINE_BODY;
        let inline = if in_lease { 0 } else { encoded.body.len() };
        let leases = encoded.leases.len() + usize::from(in_lease);
        let bytes = claimed_bytes(leases, encoded.tensors.len(), inline);
        let own = encoded.leases.iter().filter(|(lease, _)| lease.pool().is_some()).count();
        let forwards = if own < encoded.leases.len() {
            self.claim_forwards(encoded).map_err(TransmitError::NotNow)?
        } else {
            Forwards::default()
        };
        let owned = own + usize::from(in_lease);
        // Outside of the link's lock, because this allocates and copies. If the claim fails, the lease is
        // dropped again.
        let lacking = |error: &TransmitError| LeaseLimit::note_lack(self.transport.me, self.link, error);
        let body = match &encoded.filled {
            Some(filled) => Some(filled.lease()),
            None if in_lease => {
                // Checked before the allocation: otherwise the sender, which waits for memory, would be woken
                // by the memory of its own unsent body.
                let may = self.link.may_claim(destination, bytes, owned, |error| self.corrupt(error));
                may.inspect_err(lacking)?;
                Some(self.body_lease(destination, encoded)?)
            }
            None => None,
        };
        let claim = self.link.claim(destination, bytes, owned, body, forwards, |error| self.corrupt(error));
        claim.inspect_err(lacking)
    }

    /// Writes the claimed frame. The caller has dropped the encoded value.
    pub(crate) fn commit(&self, claim: Claim, destination: &Destination, encoded: Encoded) {
        self.commit_as(claim, destination, encoded, wake_reasons::FRAMES);
    }

    /// Does the same as [`commit`](Self::commit). `due` has the [`wake_reasons`] for which the peer is woken.
    pub(super) fn commit_as(&self, mut claim: Claim, destination: &Destination, encoded: Encoded, due: u8) {
        let since = self.transport.domain.tracer().begin();
        fault::point("transport.send.claimed");
        let forwards = claim.take_forwards();
        let bytes = encoded.body_len();
        let Encoded { body, filled, leases, tensors, mut parts } = encoded;
        // The claim holds the body's lease.
        drop(filled);
        // First the grants: when the peer sees the frame, its leases are in the lease table (LEASE-1).
        let mut granted = SmallVec::new();
        let mut entries: SmallVec<[LeaseEntry; 4]> = SmallVec::new();
        for (lease, ready) in &leases {
            // Before the frame is written, so that a part that comes back at once finds that it had left.
            let given = give_away(lease, &mut parts);
            let entry = match given {
                None => self.entry_for(lease, *ready, &mut granted),
                Some((given, uses)) => self.entry_for_parts(lease, given, uses, &mut granted),
            };
            self.transport.counters.bytes_lent.fetch_add(lease.bytes(), Ordering::Relaxed);
            entries.push(entry);
        }
        // The body's lease goes last: the receiver takes the last one for it.
        if let Some(lease) = claim.body() {
            let entry = self.entry_for(lease, None, &mut granted);
            entries.push(entry);
        }
        let header = destination.header(claim.body().is_some(), bytes);
        let inline: &[u8] = if claim.body().is_some() { &[] } else { &body };
        // Leases on this process's own memory go with the frame, because the lease table has the grant.
        // Leases on others' memory are kept until the receiver, which posts its own hold first, has passed
        // the frame (LEASE-3).
        let kept: SmallVec<[Lease; 2]> = leases
            .iter()
            .filter(|(lease, _)| lease.pool().is_none())
            .map(|(lease, _)| lease.clone())
            .collect();
        if !kept.is_empty() {
            // Before the frame is visible, and so before the hold that it leads to.
            self.say_forwards(forwards, &kept);
        }
        fault::point("transport.send.granted");
        let draft = Draft { header: &header, entries: &entries, tensors: &tensors, inline, granted, kept };
        let written = claim.write(draft, || self.transport.wakeups.want_progress());
        if let Some(end) = written {
            self.transport.counters.sent.fetch_add(1, Ordering::SeqCst);
            note_sent(
                &self.transport.domain,
                since,
                self.link,
                &header,
                end,
                entries.iter().map(|entry| entry.bytes).sum(),
            );
        } else {
            // The claim was for the worst case, so the ring has been corrupted, and this peer is no longer
            // trusted.
            tracing::error!(peer = %self.link.peer, "a frame did not fit the room that was claimed for it");
            self.transport.give_up(self.link);
        }
        Use::Encoded.give_back(body);
        fault::point("transport.send.written");
        // After the frame is written: the last local lease may drop with these, and record its last uses in
        // the lease table.
        Gathered { leases, tensors }.give_back();
        // Checked after the write: a thread that breaks the link sets the mark first, and then takes the
        // remembered leases. So either that thread has found this frame's leases, or this one sees the mark.
        if self.link.is_broken() {
            // The link broke between the claim and now. Its asks may have been failed before this ask was
            // among them.
            self.transport.let_go(self.link);
            self.transport.fail_asks(self.link.peer);
            self.transport.evict_if_reclaimed(self.link.peer);
        }
        // Last, so that the notices of the dropped leases are published with the frame, and before it.
        if wants_credit(destination.kind) {
            self.transport.publish_message_soon(self.link, due);
        } else {
            self.transport.publish_soon(self.link, due);
        }
    }

    fn entry_for(
        &self,
        lease: &Lease,
        ready: Option<crate::clock::Ticket>,
        granted: &mut SmallVec<[crate::lease::LeaseId; 2]>,
    ) -> LeaseEntry {
        let id = lease.id();
        let shared = grant(self.link, lease, granted);
        let mut sole = lease.hand_over(self.link.peer, shared);
        let mut ready = ready;
        if sole {
            // A new writer waits for all work on the memory, a reader only for its data. Reads that other
            // processes have released and not finished are joined too. Without a stream to join them the
            // memory is not handed over, only lent.
            let mut uses = lease.recorded_uses();
            uses.retain(|ticket| !self.transport.domain.passed(ticket).unwrap_or(true));
            sole = uses.is_empty() || lease.join_uses(uses);
            // A tainted ticket stays, no matter which streams are joined.
            let tainted = ready.is_some_and(|ticket| self.transport.domain.tainted_by(&ticket).is_some());
            if !lease.users().is_empty() && !tainted {
                match lease.joined_ticket() {
                    Ok(joined) => ready = joined,
                    // Without an order the memory is not handed over, only lent.
                    Err(unordered) => (ready, sole) = (unordered.written.or(ready), false),
                }
            }
        }
        let ready =
            ready.filter(|ticket| !matches!(self.transport.domain.status(ticket), Ok(TicketStatus::Ready)));
        LeaseEntry { id, offset: lease.offset(), bytes: lease.bytes(), ready, sole, in_parts: false }
    }

    /// Makes the entry for memory of which parts are in the frame. `given` says whether the message had the
    /// only handle on each part.
    fn entry_for_parts(
        &self,
        lease: &Lease,
        given: bool,
        mut uses: Uses,
        granted: &mut SmallVec<[crate::lease::LeaseId; 2]>,
    ) -> LeaseEntry {
        let id = lease.id();
        let _ = grant(self.link, lease, granted);
        uses.retain(|ticket| !matches!(self.transport.domain.status(ticket), Ok(TicketStatus::Ready)));
        // The ticket of all work on these parts, here and before. The next writer waits for it (CLOCK-1).
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
            tracing::warn!(peer = %self.link.peer, "a part was kept when it was sent; its message will be refused");
        }
        LeaseEntry { id, offset: lease.offset(), bytes: lease.bytes(), ready, sole: false, in_parts }
    }

    fn corrupt(&self, error: &RingCorrupt) -> TransmitError {
        tracing::error!(peer = %self.link.peer, %error, "a peer's cursor is corrupt");
        self.transport.counters.count_rejected();
        self.link.break_off();
        // The reader does the rest, because a lock is held here.
        self.transport.wakeups.wake_reader();
        TransmitError::Exited(self.link.peer)
    }
}

/// Enters the peer's lease in the lease table, if the memory is this process's own (LEASE-1). Returns whether
/// any other process was ever given a lease on it.
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
