//! Frames in: reads them from the links, and delivers them.
//!
//! The reader copies a frame out of the ring, checks it (WIRE-1), and takes it in two steps. First it checks
//! that everything which the leases need is there: a mapping of each chunk, an open link to each owner, room
//! for a hold. If not, the frame stays where it is, the reader asks for the missing parts, and comes back
//! later. Then it adopts all of the leases. From there on they are values that go back by themselves, even if
//! the message is not delivered (LEASE-2). The hold on memory of a third process is posted before the cursor
//! moves past the frame (LEASE-3).
//!
//! The receiver answers a rejected frame. A receiver that cannot read a frame cannot know its leases either,
//! so it posts the frame's end position back. The sender remembers the grants and takes them out of its lease
//! table.
//!
//! Only the reader uses it.
//!
//! **Invariants.** WIRE-1: no part of a frame is believed before it is checked; a bad frame is dropped, its
//! leases go back, and it is counted. LEASE-2, LEASE-3 as above. MBX-1: frames of a link are taken in order,
//! so one that waits holds up those behind it. MBX-2: a peer that sends more than its credits is given up.
//!
//! **Locks.** The link's `inbound` is held throughout, and every other lock is taken inside it; see
//! [`link`](super::link). The mailbox decodes messages under it, but no handler runs under it.
//!
//! **On a crash** of the sender its frames are taken to the end. **On cancellation** of the reader, between
//! two polls, frames stay where they are.

mod delivery;

use std::fmt::Display;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use self::delivery::Content;
use super::actors::KeptInboxes;
use super::asks::AskFailure;
use super::chunks::Chunk;
use super::connect::NoLink;
use super::inbox::Refusal;
use super::link::{Fault, Inbound, Link};
use super::{LinkRefused, Transport, entry, wake_reasons};
use crate::clock::Ticket;
use crate::device::{Access, ChunkMapping};
use crate::fault;
use crate::ids::{ChunkId, ProcessId};
use crate::lease::table::LeaseTableError;
use crate::lease::{Lease, LeaseId, Returns};
use crate::message::buffers::Use;
use crate::message::codec::{self, DecodeError};
use crate::message::wire::{Frame, Kind, LeaseEntry, Tables};
use crate::tensor::DType;
use crate::tensor::{Layout, Tensor};
use crate::transport::ring::RingCorrupt;

/// Frames taken from one link before the others get their turn.
const BATCH: usize = 128;

/// A reply's content.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) body: &'a [u8],
    pub(crate) tensors: Vec<Tensor>,
}

/// The result of a check of a frame's needs.
enum Needs {
    /// Everything is there. Chunks of dead processes stay mapped for as long as these mappings are kept.
    Ready(Mappings),
    /// A part was missing, and has been asked for.
    Wait,
    /// A part will never be there, for this reason.
    Never(String),
}

/// The buffer into which a reader copies frames, one after the other.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    tables: Tables,
}

/// Mappings of dead processes' chunks. Otherwise they go with the last lease on them, which another thread
/// may drop at any moment.
type Mappings = SmallVec<[Arc<ChunkMapping>; 2]>;

type Adopted = SmallVec<[(Lease, Option<Ticket>); 2]>;

impl Transport {
    /// Takes frames from a link; true if there was one.
    pub(super) fn take_frames(
        self: &Arc<Self>,
        link: &Arc<Link>,
        buffer: &mut FrameBuffer,
        inboxes: &mut KeptInboxes,
    ) -> bool {
        let mut any = false;
        let mut guard = link.inbound();
        let Some(inbound) = guard.as_mut() else { return false };
        link.set_stuck(false);
        let mut left = BATCH;
        while left > 0 {
            left -= 1;
            match inbound.data.peek(&mut buffer.bytes) {
                Ok(None) => break,
                Ok(Some(end)) => {
                    if !self.take_frame(link, inbound, (&mut *buffer, &mut *inboxes), end) {
                        // It stays in the ring, and every poll of the reader checks it again until it is
                        // taken.
                        link.set_stuck(true);
                        break;
                    }
                    inbound.data.consume();
                    inbound.number = inbound.number.wrapping_add(1);
                    any = true;
                    if link.is_broken() {
                        break; // It was given up over this frame.
                    }
                }
                Err(error) => {
                    if matches!(error, RingCorrupt::Moved { .. })
                        && let Some(bytes) = link.fresh_data()
                    {
                        drop(inbound.data.follow(bytes));
                        any = true;
                        continue;
                    }
                    tracing::error!(peer = %link.peer, %error, "a ring is corrupt; its process is given up");
                    self.counters.count_rejected();
                    self.give_up(link);
                    break;
                }
            }
        }
        link.set_unfinished(left == 0);
        if any {
            fault::point("transport.take.cursor");
            // The holds of these frames are visible already (LEASE-3): the peer releases its leases when it
            // sees the cursor.
            inbound.data.publish_head();
            link.ring(wake_reasons::ROOM);
        }
        any
    }

    /// Takes a frame; returns false if it has to wait.
    fn take_frame(
        self: &Arc<Self>,
        link: &Arc<Link>,
        inbound: &mut Inbound,
        (buffer, inboxes): (&mut FrameBuffer, &mut KeptInboxes),
        end: u64,
    ) -> bool {
        fault::point("transport.take.frame");
        let frame = match Frame::parse(&buffer.bytes, &mut buffer.tables, inbound.number) {
            Ok(frame) => frame,
            Err(error) => {
                if !link.has_room_for_holds(1) {
                    return false;
                }
                self.reject_frame(link, Fault::ItsOwn, &error);
                // Its leases cannot be read here, so the sender, which knows them, takes them back.
                self.post_notice_now(link, entry::rejected(end));
                return true;
            }
        };
        let entries = || frame.leases.iter().chain(&frame.body_lease);
        let mappings = match self.needs_of(link, &mut inbound.awaits, entries()) {
            Needs::Ready(mappings) => mappings,
            Needs::Wait => return false,
            Needs::Never(why) => {
                self.reject_frame(link, Fault::Anybodys, &why);
                entries().for_each(|entry| self.memory.chunks.forget_missing(entry.id.chunk));
                self.give_back(link, entries());
                self.refuse_frame(link, inbound, &frame, &Refusal::Undelivered(why));
                return true;
            }
        };
        let mut adopted = Adopted::new();
        for entry in entries() {
            match self.adopt(link, entry) {
                Ok(lease) => adopted.push((lease, entry.ready)),
                Err(why) => {
                    self.reject_frame(link, Fault::Anybodys, &why);
                    self.refuse_frame(link, inbound, &frame, &Refusal::Undelivered(why));
                    // The leases adopted so far go back when they drop; this one and the rest go back without
                    // having been taken.
                    self.give_back(link, entries().skip(adopted.len()));
                    return true;
                }
            }
        }
        drop(mappings);
        self.counters.count_received();
        inbound.taking = end;
        let _noted = self.note_taking(link, &frame.header, end);
        self.dispatch(link, inbound, inboxes, &frame, adopted);
        true
    }

    /// Checks whether everything that the leases need is there.
    ///
    /// Nothing is taken yet: a frame may be checked many times before it is taken. A missing part does not
    /// end the check, so that all parts are asked for at once, and the frame waits for the slowest answer
    /// instead of one answer after another. A part that can never be there ends it. So does a link that the
    /// frame has waited for and that was refused; otherwise every check would ask for it again.
    fn needs_of<'a>(
        &self,
        link: &Arc<Link>,
        awaits: &mut Vec<Arc<OnceLock<LinkRefused>>>,
        entries: impl Iterator<Item = &'a LeaseEntry> + Clone,
    ) -> Needs {
        // WIRE-1, ONE-WRITER: this process would write parts of memory that it also has as a whole.
        let is_whole =
            |entry: &LeaseEntry| entries.clone().any(|other| !other.in_parts && other.id == entry.id);
        if let Some(entry) = entries.clone().find(|entry| entry.in_parts && is_whole(entry)) {
            return Needs::Never(format!("it has entry {} as a whole and in parts", entry.id.entry));
        }
        if let Some(refused) = awaits.drain(..).find(|refused| refused.get().is_some()) {
            return Needs::Never(no_link(refused.get()));
        }
        let (mut waits, mut kept) = (false, Mappings::new());
        let mut holds: SmallVec<[(Arc<Link>, usize); 2]> = SmallVec::new();
        for entry in entries {
            let owner = entry.id.chunk.owner;
            // First the clocks, for memory of this process too. A wait lasts for ever, or not at all, if its
            // clock ran back, is unknown, or has no promise to advance that far.
            if let Some(ready) = entry.ready
                && let Some(page) = self.domain.page_of(ready.process)
            {
                let Ticket { process, slot: clock, value } = ready;
                if let Some((before, now)) = page.ran_back(clock) {
                    // Nothing that the writer of that clock says about any tensor can be trusted.
                    if let Some(liar) = self.link(process) {
                        liar.break_off();
                        self.wakeups.wake_reader();
                    }
                    return Needs::Never(format!(
                        "clock {clock} of {process} ran back from {before} to {now}"
                    ));
                }
                // WIRE-1, DEATH-1: without this check the node would take this process for the liar, in place
                // of its peer.
                if !page.is_promised(clock, value) {
                    let what = "a tensor is to be ready when clock";
                    return Needs::Never(format!(
                        "{what} {clock} of {process} shows {value}, which {process} has not promised"
                    ));
                }
            }
            if let Some(ready) = entry.ready
                && self.domain.page_of(ready.process).is_none()
                // Its certificate says whether the data is there.
                && !self.domain.knows_end_of(&ready)
            {
                // The page of a process comes with the link to it. Without the page no stream could wait for
                // the clock (CLOCK-1).
                match self.link_or_lack(ready.process) {
                    Ok(link) if !link.is_open() => {
                        awaits.push(Arc::clone(link.refused()));
                        waits = true;
                    }
                    Ok(_) => {}
                    Err(NoLink::Lack(error)) => {
                        return Needs::Never(no_link(Some(&LinkRefused::here(&error))));
                    }
                    Err(NoLink::NoPeer) if self.may_come(ready.process) => waits = true,
                    // It has ended since, and its certificate came before its end (DEATH-3).
                    Err(NoLink::NoPeer) if self.domain.knows_end_of(&ready) => {}
                    Err(NoLink::NoPeer) => {
                        return Needs::Never(format!(
                            "{}, which was to write a tensor, has ended",
                            ready.process
                        ));
                    }
                }
            }
            // This process's own memory is mapped, and its lease table has the rest (`adopt_own`).
            if owner == self.me {
                continue;
            }
            if entry.in_parts {
                // The part will be written, and no later step of a message's way waits for a mapping.
                match self.memory.chunks.get(entry.id.chunk, Access::ReadWrite, &*self.control) {
                    Chunk::Mapped(mapping) => {
                        kept.extend(self.lifecycle.exited.contains(owner).then_some(mapping))
                    }
                    Chunk::Wanted => waits = true,
                    Chunk::Missing(why) => {
                        return Needs::Never(self.no_chunk(entry.id.chunk, &why));
                    }
                }
            }
            let mapping = match self.memory.chunks.get(entry.id.chunk, Access::ReadOnly, &*self.control) {
                Chunk::Mapped(mapping) => {
                    if mapping.range(entry.offset, entry.bytes).is_none() {
                        return Needs::Never(format!(
                            "a lease of {} bytes at {} leaves its chunk of {} bytes",
                            entry.bytes,
                            entry.offset,
                            mapping.len()
                        ));
                    }
                    mapping
                }
                Chunk::Wanted => {
                    // The owner is asked for a link only after the node has said that there is such a chunk.
                    waits = true;
                    continue;
                }
                Chunk::Missing(why) => {
                    return Needs::Never(self.no_chunk(entry.id.chunk, &why));
                }
            };
            // Last, the process that counts the lease. Memory of a process that ended stays valid (LEASE-4),
            // and nobody counts its leases any more. But its mapping may go with the last of them at any
            // moment, so it is kept until they are adopted. For its own memory the sender has granted a
            // lease. For a third process's memory this one has to post a hold.
            if self.lifecycle.exited.contains(owner) {
                kept.push(mapping);
            } else if owner != link.peer {
                fault::point("transport.take.owner");
                let owners = match self.link_or_lack(owner) {
                    Ok(owners) => Some(owners),
                    Err(NoLink::Lack(error)) => {
                        return Needs::Never(no_link(Some(&LinkRefused::here(&error))));
                    }
                    Err(NoLink::NoPeer) => None,
                };
                let Some(owners) = owners else {
                    // Asked first: an end is noted before the link that tells of it opens.
                    let will_be_known = self.may_come(owner) || self.may_have_ended(owner);
                    if self.lifecycle.exited.contains(owner) {
                        // It has ended since the check above.
                        kept.push(mapping);
                    } else if will_be_known {
                        waits = true;
                    } else {
                        // Nobody would count the lease (LEASE-1).
                        return Needs::Never(format!(
                            "{owner}, which owns a tensor, was given up here, or was never there"
                        ));
                    }
                    continue;
                };
                match holds.iter_mut().find(|(known, _)| known.peer == owner) {
                    Some((_, count)) => *count += 1,
                    None => holds.push((owners, 1)),
                }
            }
        }
        // By owner and not by lease: a ring with room for one hold may not have room for all holds that the
        // frame needs.
        for (owners, count) in holds {
            if !owners.is_open() {
                awaits.push(Arc::clone(owners.refused()));
                waits = true;
            } else if !owners.has_room_for_holds(count) {
                // The owner may sleep, and no other notice posted to it would wake it.
                owners.ring(wake_reasons::FRAMES);
                self.note_no_room_for_holds(link.peer, &owners, count);
                waits = true;
            }
        }
        if waits { Needs::Wait } else { Needs::Ready(kept) }
    }

    /// Returns why a frame that needs this chunk cannot be taken.
    fn no_chunk(&self, chunk: ChunkId, why: &str) -> String {
        // A process may have ended because it could not publish its memory; then that is the reason.
        let down = self.lifecycle.exited.how(chunk.owner);
        let ended = down.map_or_else(String::new, |down| format!("; its process ended: {}", down.reason));
        format!("chunk {} of {} {why}{ended}", chunk.index, chunk.owner)
    }

    /// Returns whether `process` may be a new process of its slot that this one has not heard of yet. The
    /// node will say when the one before it has ended.
    fn may_come(&self, process: ProcessId) -> bool {
        let known = self.links.in_slot_of(process);
        process.slot() != self.me.slot()
            && !self.lifecycle.exited.contains(process)
            && known.is_some_and(|link| link.peer.incarnation() < process.incarnation())
    }

    /// Returns whether `process` may be an earlier process of its slot, of whose end this one was not told.
    /// Then a link to a later one is being made. It opens when that one is there, or goes when the node says
    /// that there is none.
    fn may_have_ended(&self, process: ProcessId) -> bool {
        let known = self.links.in_slot_of(process);
        known.is_some_and(|link| link.peer.incarnation() > process.incarnation() && !link.is_connected())
    }

    fn adopt(&self, link: &Arc<Link>, entry: &LeaseEntry) -> Result<Lease, String> {
        let id = entry.id;
        let owner = id.chunk.owner;
        if owner == self.me {
            let lease = self.adopt_own(link, id, entry.sole, entry.in_parts)?;
            // WIRE-1: after an error the lease drops here, and so goes back to the pool.
            if lease.offset() != entry.offset || lease.bytes() != entry.bytes {
                return Err(format!("a lease on entry {} came back with another offset or size", id.entry));
            }
            return Ok(lease);
        }
        // WIRE-1, ONE-WRITER: what is written here in parts is neither read as a whole nor given a second
        // writer. (An owner's lease table knows it.)
        if !entry.in_parts && self.memory.writers().has(id) {
            return Err(format!(
                "entry {} of {owner} comes as a whole, and this process writes parts of it",
                id.entry
            ));
        }
        let missing = || format!("chunk {} of {owner} does not exist", id.chunk.index);
        let mapped = |access| match self.memory.chunks.get(id.chunk, access, &*self.control) {
            Chunk::Mapped(mapping) => Ok(mapping),
            Chunk::Wanted | Chunk::Missing(_) => Err(missing()),
        };
        let mapping = mapped(Access::ReadOnly)?;
        let writable = entry.in_parts.then(|| mapped(Access::ReadWrite)).transpose()?;
        if owner == link.peer {
            link.count_held();
        } else if let Some(owners) = self.link(owner).filter(|_| !self.lifecycle.exited.contains(owner)) {
            // A third process owns the memory and has to count this lease. A dead owner counts none.
            fault::point("transport.forward.hold");
            // LEASE-3: visible before the sender sees the cursor, and so before it releases its own lease.
            self.post_hold(&owners, id, link.peer);
            fault::point("transport.forward.held");
            // LEASE-2: room for the release stays reserved while the lease counts as held.
            owners.count_held();
        }
        let transport = self.arc().ok_or("the transport is closing")?;
        let domain = Arc::clone(&self.domain);
        let returns: Arc<dyn Returns> = transport;
        let lease = Lease::held(returns, id, domain, mapping, entry.offset, entry.bytes, entry.sole);
        if let Some(writable) = writable {
            lease.set_writable(writable);
            lease.set_in_parts();
        }
        Ok(lease)
    }

    /// Adopts a lease on this process's own memory, which the peer sends back.
    fn adopt_own(&self, link: &Arc<Link>, id: LeaseId, sole: bool, in_parts: bool) -> Result<Lease, String> {
        let pool = self.memory.pool_of(id)?;
        let adopted = match pool.adopt(id, link.peer, sole, in_parts) {
            // LEASE-3: the peer posted its hold before it sent the frame, but on another ring, which this
            // process may have read before it saw the frame. So it reads that ring once more.
            Err(LeaseTableError::NotHeld { .. }) => {
                self.drain_link_returns(link);
                // If the hold is not proven yet, this pass settles it.
                self.settle_holds();
                pool.adopt(id, link.peer, sole, in_parts)
            }
            adopted => adopted,
        };
        adopted.map_err(|error| error.to_string())
    }

    /// Gives back leases that the peer granted and that were not adopted.
    fn give_back<'a>(&self, link: &Arc<Link>, entries: impl Iterator<Item = &'a LeaseEntry>) {
        for entry in entries {
            if entry.id.chunk.owner == link.peer {
                self.post_notice(link, entry::release(entry.id, &[]));
            }
        }
    }

    fn dispatch(
        self: &Arc<Self>,
        link: &Arc<Link>,
        inbound: &mut Inbound,
        inboxes: &mut KeptInboxes,
        frame: &Frame<'_>,
        mut adopted: Adopted,
    ) {
        let large;
        let body = match frame.body_lease.and_then(|_| adopted.pop()) {
            Some((lease, _)) => match copy_body(lease, frame.header.body_bytes as usize) {
                Ok(copied) => {
                    large = copied;
                    large.0.as_slice()
                }
                Err(why) => {
                    self.reject(link, Fault::ItsOwn, &why);
                    return self.refuse_frame(link, inbound, frame, &Refusal::Undelivered(why));
                }
            },
            None => frame.body,
        };
        let tensors = match codec::tensors(&adopted, frame.tensors) {
            Ok(tensors) => tensors,
            Err(error) => {
                self.reject(link, Fault::ItsOwn, &error);
                return self.refuse_frame(link, inbound, frame, &Refusal::Undelivered(error.to_string()));
            }
        };
        let tickets = adopted.iter().filter_map(|(_, ready)| *ready).collect();
        // From here on the tensors are the only handles on their leases, so the receiving handler may hand
        // them over at once.
        drop(adopted);
        match frame.header.kind {
            Kind::Send | Kind::Ask | Kind::Follow => {
                self.deliver(link, inbound, inboxes, frame, Content { body, tensors, tickets });
            }
            Kind::Reply => self.take_reply(link, frame.header.correlation, Ok(Parts { body, tensors })),
            Kind::Refusal => {
                let why = codec::decode::<Refusal>(body, Vec::new(), None);
                let why = why.unwrap_or_else(|error| Refusal::Undelivered(error.to_string()));
                self.take_reply(link, frame.header.correlation, Err(AskFailure::Refused(why.bounded())));
            }
        }
    }

    /// Counts and reports a frame that is taken but not delivered. Its sender has counted it as sent, so it
    /// counts as received; otherwise a shutdown would wait for it until its deadline.
    fn reject_frame(&self, link: &Link, fault: Fault, why: &dyn Display) {
        self.counters.count_received();
        self.reject(link, fault, why);
    }

    fn reject(&self, link: &Link, fault: Fault, why: &dyn Display) {
        self.counters.count_rejected();
        self.note_refused(link, fault, "a frame was rejected", why);
    }
}

/// Returns why a frame that needs a link to a third process cannot be taken.
fn no_link(why: Option<&LinkRefused>) -> String {
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    format!("there is no link to the owner of a tensor, or to who writes it{why}")
}

/// Copies a body that came as a lease before it is read, because its sender could still change it.
fn copy_body(lease: Lease, bytes: usize) -> Result<Copied, String> {
    let layout = Layout::contiguous(&[bytes]).map_err(|error| error.to_string())?;
    layout
        .fits(DType::U8, lease.bytes())
        .map_err(|error| DecodeError::Layout { index: 0, error }.to_string())?;
    let tensor = Tensor::from_parts(lease, DType::U8, layout, None);
    let shared = tensor.as_slice::<u8>().map_err(|error| error.to_string())?;
    let mut copy = Use::Copied.take();
    copy.extend_from_slice(shared);
    Ok(Copied(copy))
}

/// A body in a buffer of this thread, which reuses the buffer.
struct Copied(Vec<u8>);

impl Drop for Copied {
    fn drop(&mut self) {
        Use::Copied.give_back(std::mem::take(&mut self.0));
    }
}
