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
use std::sync::Arc;

use smallvec::SmallVec;

use self::delivery::Content;
use super::actors::KeptInboxes;
use super::asks::AskFailure;
use super::chunks::Chunk;
use super::connect::NoLink;
use super::frame_buffer::FrameBuffer;
use super::inbox::Refusal;
use super::link::{Fault, Inbound, Link};
use super::parts::Parts;
use super::traced::Taking;
use super::{LeaseLimit, LinkRefused, Transport, entry, wake_reasons};
use crate::clock::Ticket;
use crate::device::{Access, ChunkMapping};
use crate::fault;
use crate::ids::{ChunkId, ProcessId};
use crate::lease::table::LeaseTableError;
use crate::lease::{Lease, LeaseId, Returns};
use crate::message::buffers::Use;
use crate::message::codec::{self, DecodeError};
use crate::message::wire::{Frame, Kind, LeaseEntry};
use crate::tensor::DType;
use crate::tensor::{Layout, Tensor};
use crate::transport::ring::RingCorrupt;

/// Frames taken from one link before the others get their turn.
const BATCH: usize = 128;

/// Mappings of dead processes' chunks. Otherwise they go with the last lease on them, which another thread
/// may drop at any moment.
type Mappings = SmallVec<[Arc<ChunkMapping>; 2]>;

type Adopted = SmallVec<[(Lease, Option<Ticket>); 2]>;

/// Takes the frames of one link. It holds the link's `inbound`.
pub(super) struct FrameTaker<'a> {
    transport: &'a Arc<Transport>,
    link: &'a Arc<Link>,
    inbound: &'a mut Inbound,
}

/// The findings of a check of a frame's needs.
#[derive(Default)]
struct Check {
    /// Whether a part is missing, and has been asked for.
    waits: bool,
    /// Chunks of dead processes stay mapped for as long as these mappings are kept.
    kept: Mappings,
    /// The third processes that own memory in the frame, and how many holds it needs on each one's.
    holds: SmallVec<[(Arc<Link>, usize); 2]>,
}

impl<'a> FrameTaker<'a> {
    /// Takes frames from a link; true if there was one.
    pub(super) fn take_frames(
        transport: &'a Arc<Transport>,
        link: &'a Arc<Link>,
        buffer: &mut FrameBuffer,
        inboxes: &mut KeptInboxes,
    ) -> bool {
        let mut any = false;
        let mut guard = link.inbound();
        let Some(inbound) = guard.as_mut() else { return false };
        link.set_stuck(false);
        let mut taker = FrameTaker { transport, link, inbound };
        let mut left = BATCH;
        while left > 0 {
            left -= 1;
            match taker.inbound.data.peek(&mut buffer.bytes) {
                Ok(None) => break,
                Ok(Some(end)) => {
                    if !taker.take_frame(buffer, inboxes, end) {
                        // It stays in the ring, and every poll of the reader checks it again until it is
                        // taken.
                        link.set_stuck(true);
                        break;
                    }
                    taker.inbound.data.consume();
                    taker.inbound.number = taker.inbound.number.wrapping_add(1);
                    any = true;
                    if link.is_broken() {
                        break; // It was given up over this frame.
                    }
                }
                Err(error) => {
                    if matches!(error, RingCorrupt::Moved { .. })
                        && let Some(bytes) = link.fresh_data()
                    {
                        drop(taker.inbound.data.follow(bytes));
                        any = true;
                        continue;
                    }
                    tracing::error!(peer = %link.peer, %error, "a ring is corrupt; its process is given up");
                    transport.counters.count_rejected();
                    transport.give_up(link);
                    break;
                }
            }
        }
        link.set_unfinished(left == 0);
        if any {
            fault::point("transport.take.cursor");
            // The holds of these frames are visible already (LEASE-3): the peer releases its leases when it
            // sees the cursor.
            taker.inbound.data.publish_head();
            link.ring(wake_reasons::ROOM);
        }
        any
    }

    /// Takes a frame; returns false if it has to wait.
    fn take_frame(&mut self, buffer: &mut FrameBuffer, inboxes: &mut KeptInboxes, end: u64) -> bool {
        fault::point("transport.take.frame");
        let frame = match Frame::parse(&buffer.bytes, &mut buffer.tables, self.inbound.number) {
            Ok(frame) => frame,
            Err(error) => {
                if !self.link.has_room_for_holds(1) {
                    return false;
                }
                self.reject_frame(Fault::ItsOwn, &error);
                // Its leases cannot be read here, so the sender, which knows them, takes them back.
                self.transport.return_rings(self.link).post_now(entry::rejected(end));
                return true;
            }
        };
        let entries = || frame.leases.iter().chain(&frame.body_lease);
        let mappings = match self.needs_of(entries()) {
            Ok(Some(mappings)) => mappings,
            Ok(None) => return false,
            Err(why) => {
                self.reject_frame(Fault::Anybodys, &why);
                let chunks = &self.transport.memory.chunks;
                entries().for_each(|entry| chunks.forget_missing(entry.id.chunk));
                self.give_back(entries());
                self.refuse_frame(&frame, &Refusal::Undelivered(why));
                return true;
            }
        };
        let mut adopted = Adopted::new();
        for entry in entries() {
            match self.adopt(entry) {
                Ok(lease) => adopted.push((lease, entry.ready)),
                Err(why) => {
                    self.reject_frame(Fault::Anybodys, &why);
                    self.refuse_frame(&frame, &Refusal::Undelivered(why));
                    // The leases adopted so far go back when they drop; this one and the rest go back without
                    // having been taken.
                    self.give_back(entries().skip(adopted.len()));
                    return true;
                }
            }
        }
        drop(mappings);
        self.transport.counters.count_received();
        self.inbound.taking = end;
        let _noted = Taking::begin(&self.transport.domain, self.link, &frame.header, end);
        self.dispatch(inboxes, &frame, adopted);
        true
    }

    /// Checks whether everything that the leases need is there: `None` if a part was missing, and has been
    /// asked for. The error says why a part will never be there.
    ///
    /// Nothing is taken yet: a frame may be checked many times before it is taken. A missing part does not
    /// end the check, so that all parts are asked for at once, and the frame waits for the slowest answer
    /// instead of one answer after another. A part that can never be there ends it. So does a link that the
    /// frame has waited for and that was refused; otherwise every check would ask for it again.
    fn needs_of<'e>(
        &mut self,
        entries: impl Iterator<Item = &'e LeaseEntry> + Clone,
    ) -> Result<Option<Mappings>, String> {
        // WIRE-1, ONE-WRITER: this process would write parts of memory that it also has as a whole.
        let is_whole =
            |entry: &LeaseEntry| entries.clone().any(|other| !other.in_parts && other.id == entry.id);
        if let Some(entry) = entries.clone().find(|entry| entry.in_parts && is_whole(entry)) {
            return Err(format!("it has entry {} as a whole and in parts", entry.id.entry));
        }
        if let Some(refused) = self.inbound.awaits.drain(..).find(|refused| refused.get().is_some()) {
            return Err(no_link(refused.get()));
        }
        let mut check = Check::default();
        for entry in entries {
            // First the clocks, for memory of this process too.
            if let Some(ready) = entry.ready {
                self.check_clock(ready, &mut check)?;
            }
            // This process's own memory is mapped, and its lease table has the rest (`adopt_own`).
            if entry.id.chunk.owner == self.transport.me {
                continue;
            }
            // The owner is asked for a link only after the node has said that there is such a chunk.
            if let Some(mapping) = self.check_chunk(entry, &mut check)? {
                // Last, the process that counts the lease.
                self.check_owner(entry.id.chunk.owner, mapping, &mut check)?;
            }
        }
        self.check_room_for_holds(&mut check);
        Ok((!check.waits).then_some(check.kept))
    }

    /// Checks the clock that a tensor is ready with. A wait lasts for ever, or not at all, if its clock ran
    /// back, is unknown, or has no promise to advance that far.
    fn check_clock(&mut self, ready: Ticket, check: &mut Check) -> Result<(), String> {
        let domain = &self.transport.domain;
        let Ticket { process, slot: clock, value } = ready;
        if let Some(page) = domain.page_of(process) {
            if let Some((before, now)) = page.ran_back(clock) {
                // Nothing that the writer of that clock says about any tensor can be trusted.
                if let Some(liar) = self.transport.link(process) {
                    liar.break_off();
                    self.transport.wakeups.wake_reader();
                }
                return Err(format!("clock {clock} of {process} ran back from {before} to {now}"));
            }
            // WIRE-1, DEATH-1: without this check the node would take this process for the liar, in place of
            // its peer.
            if !page.is_promised(clock, value) {
                let what = "a tensor is to be ready when clock";
                return Err(format!(
                    "{what} {clock} of {process} shows {value}, which {process} has not promised"
                ));
            }
        }
        // Its certificate says whether the data is there.
        if domain.page_of(process).is_some() || domain.knows_end_of(&ready) {
            return Ok(());
        }
        // The page of a process comes with the link to it. Without the page no stream could wait for the
        // clock (CLOCK-1).
        match self.transport.link_or_lack(process) {
            Ok(link) if !link.is_open() => {
                self.inbound.awaits.push(Arc::clone(link.refused()));
                check.waits = true;
            }
            Ok(_) => {}
            Err(NoLink::Lack(error)) => return Err(no_link(Some(&LinkRefused::here(&error)))),
            Err(NoLink::NoPeer) if self.may_come(process) => check.waits = true,
            // It has ended since, and its certificate came before its end (DEATH-3).
            Err(NoLink::NoPeer) if domain.knows_end_of(&ready) => {}
            Err(NoLink::NoPeer) => {
                return Err(format!("{process}, which was to write a tensor, has ended"));
            }
        }
        Ok(())
    }

    /// Checks the chunk of a lease, and returns its mapping for reading. Asks the node if it is unknown here.
    fn check_chunk(
        &self,
        entry: &LeaseEntry,
        check: &mut Check,
    ) -> Result<Option<Arc<ChunkMapping>>, String> {
        let id = entry.id.chunk;
        let transport = self.transport;
        if entry.in_parts {
            // The part will be written, and no later step of a message's way waits for a mapping.
            match transport.memory.chunks.get(id, Access::ReadWrite, &*transport.control) {
                Chunk::Mapped(mapping) => check.kept.extend(self.has_exited(id.owner).then_some(mapping)),
                Chunk::Wanted => check.waits = true,
                Chunk::Missing(why) => return Err(self.no_chunk(id, &why)),
            }
        }
        match transport.memory.chunks.get(id, Access::ReadOnly, &*transport.control) {
            Chunk::Mapped(mapping) if mapping.range(entry.offset, entry.bytes).is_none() => Err(format!(
                "a lease of {} bytes at {} leaves its chunk of {} bytes",
                entry.bytes,
                entry.offset,
                mapping.len()
            )),
            Chunk::Mapped(mapping) => Ok(Some(mapping)),
            Chunk::Wanted => {
                check.waits = true;
                Ok(None)
            }
            Chunk::Missing(why) => Err(self.no_chunk(id, &why)),
        }
    }

    /// Checks the process that counts a lease. Memory of a process that ended stays valid (LEASE-4), and
    /// nobody counts its leases any more. But its mapping may go with the last of them at any moment, so it
    /// is kept until they are adopted. For its own memory the sender has granted a lease. For a third
    /// process's memory this one has to post a hold.
    fn check_owner(
        &self,
        owner: ProcessId,
        mapping: Arc<ChunkMapping>,
        check: &mut Check,
    ) -> Result<(), String> {
        if self.has_exited(owner) {
            check.kept.push(mapping);
            return Ok(());
        }
        if owner == self.link.peer {
            return Ok(());
        }
        fault::point("transport.take.owner");
        match self.transport.link_or_lack(owner) {
            Ok(owners) => match check.holds.iter_mut().find(|(known, _)| known.peer == owner) {
                Some((_, count)) => *count += 1,
                None => check.holds.push((owners, 1)),
            },
            Err(NoLink::Lack(error)) => return Err(no_link(Some(&LinkRefused::here(&error)))),
            Err(NoLink::NoPeer) => {
                // Asked first: an end is noted before the link that tells of it opens.
                let will_be_known = self.may_come(owner) || self.may_have_ended(owner);
                if self.has_exited(owner) {
                    // It has ended since the check above.
                    check.kept.push(mapping);
                } else if will_be_known {
                    check.waits = true;
                } else {
                    // Nobody would count the lease (LEASE-1).
                    return Err(format!(
                        "{owner}, which owns a tensor, was given up here, or was never there"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that each owner's ring has room for the holds. By owner and not by lease: a ring with room for
    /// one hold may not have room for all holds that the frame needs.
    fn check_room_for_holds(&mut self, check: &mut Check) {
        for (owners, count) in check.holds.drain(..) {
            if !owners.is_open() {
                self.inbound.awaits.push(Arc::clone(owners.refused()));
                check.waits = true;
            } else if !owners.has_room_for_holds(count) {
                // The owner may sleep, and no other notice posted to it would wake it.
                owners.ring(wake_reasons::FRAMES);
                LeaseLimit::note_no_room_for_holds(self.transport.me, self.link.peer, &owners, count);
                check.waits = true;
            }
        }
    }

    fn has_exited(&self, process: ProcessId) -> bool {
        self.transport.lifecycle.exited.contains(process)
    }

    /// Returns why a frame that needs this chunk cannot be taken.
    fn no_chunk(&self, chunk: ChunkId, why: &str) -> String {
        // A process may have ended because it could not publish its memory; then that is the reason.
        let down = self.transport.lifecycle.exited.how(chunk.owner);
        let ended = down.map_or_else(String::new, |down| format!("; its process ended: {}", down.reason));
        format!("chunk {} of {} {why}{ended}", chunk.index, chunk.owner)
    }

    /// Returns whether `process` may be a new process of its slot that this one has not heard of yet. The
    /// node will say when the one before it has ended.
    fn may_come(&self, process: ProcessId) -> bool {
        let known = self.transport.links.in_slot_of(process);
        process.slot() != self.transport.me.slot()
            && !self.has_exited(process)
            && known.is_some_and(|link| link.peer.incarnation() < process.incarnation())
    }

    /// Returns whether `process` may be an earlier process of its slot, of whose end this one was not told.
    /// Then a link to a later one is being made. It opens when that one is there, or goes when the node says
    /// that there is none.
    fn may_have_ended(&self, process: ProcessId) -> bool {
        let known = self.transport.links.in_slot_of(process);
        known.is_some_and(|link| link.peer.incarnation() > process.incarnation() && !link.is_connected())
    }

    fn adopt(&self, entry: &LeaseEntry) -> Result<Lease, String> {
        let id = entry.id;
        let owner = id.chunk.owner;
        if owner == self.transport.me {
            let lease = self.adopt_own(id, entry.sole, entry.in_parts)?;
            // WIRE-1: after an error the lease drops here, and so goes back to the pool.
            if lease.offset() != entry.offset || lease.bytes() != entry.bytes {
                return Err(format!("a lease on entry {} came back with another offset or size", id.entry));
            }
            return Ok(lease);
        }
        // WIRE-1, ONE-WRITER: what is written here in parts is neither read as a whole nor given a second
        // writer. (An owner's lease table knows it.)
        if !entry.in_parts && self.transport.memory.writers().has(id) {
            return Err(format!(
                "entry {} of {owner} comes as a whole, and this process writes parts of it",
                id.entry
            ));
        }
        let missing = || format!("chunk {} of {owner} does not exist", id.chunk.index);
        let mapped =
            |access| match self.transport.memory.chunks.get(id.chunk, access, &*self.transport.control) {
                Chunk::Mapped(mapping) => Ok(mapping),
                Chunk::Wanted | Chunk::Missing(_) => Err(missing()),
            };
        let mapping = mapped(Access::ReadOnly)?;
        let writable = entry.in_parts.then(|| mapped(Access::ReadWrite)).transpose()?;
        if owner == self.link.peer {
            self.link.count_held();
        } else if let Some(owners) = self.transport.link(owner).filter(|_| !self.has_exited(owner)) {
            // A third process owns the memory and has to count this lease. A dead owner counts none.
            fault::point("transport.forward.hold");
            // LEASE-3: visible before the sender sees the cursor, and so before it releases its own lease.
            self.transport.return_rings(&owners).post_hold(id, self.link.peer);
            fault::point("transport.forward.held");
            // LEASE-2: room for the release stays reserved while the lease counts as held.
            owners.count_held();
        }
        let domain = Arc::clone(&self.transport.domain);
        let returns: Arc<dyn Returns> = Arc::<Transport>::clone(self.transport);
        let lease = Lease::held(returns, id, domain, mapping, entry.offset, entry.bytes, entry.sole);
        if let Some(writable) = writable {
            lease.set_writable(writable);
            lease.set_in_parts();
        }
        Ok(lease)
    }

    /// Adopts a lease on this process's own memory, which the peer sends back.
    fn adopt_own(&self, id: LeaseId, sole: bool, in_parts: bool) -> Result<Lease, String> {
        let pool = self.transport.memory.pool_of(id)?;
        let adopted = match pool.adopt(id, self.link.peer, sole, in_parts) {
            // LEASE-3: the peer posted its hold before it sent the frame, but on another ring, which this
            // process may have read before it saw the frame. So it reads that ring once more.
            Err(LeaseTableError::NotHeld { .. }) => {
                self.transport.return_rings(self.link).drain_and_settle();
                // If the hold is not proven yet, this pass settles it.
                self.transport.settle_holds();
                pool.adopt(id, self.link.peer, sole, in_parts)
            }
            adopted => adopted,
        };
        adopted.map_err(|error| error.to_string())
    }

    /// Gives back leases that the peer granted and that were not adopted.
    fn give_back<'e>(&self, entries: impl Iterator<Item = &'e LeaseEntry>) {
        for entry in entries {
            if entry.id.chunk.owner == self.link.peer {
                self.transport.return_rings(self.link).post(entry::release(entry.id, &[]));
            }
        }
    }

    fn dispatch(&mut self, inboxes: &mut KeptInboxes, frame: &Frame<'_>, mut adopted: Adopted) {
        let large;
        let body = match frame.body_lease.and_then(|_| adopted.pop()) {
            Some((lease, _)) => match copy_body(lease, frame.header.body_bytes as usize) {
                Ok(copied) => {
                    large = copied;
                    large.0.as_slice()
                }
                Err(why) => {
                    self.reject(Fault::ItsOwn, &why);
                    return self.refuse_frame(frame, &Refusal::Undelivered(why));
                }
            },
            None => frame.body,
        };
        let tensors = match codec::tensors(&adopted, frame.tensors) {
            Ok(tensors) => tensors,
            Err(error) => {
                self.reject(Fault::ItsOwn, &error);
                return self.refuse_frame(frame, &Refusal::Undelivered(error.to_string()));
            }
        };
        let tickets = adopted.iter().filter_map(|(_, ready)| *ready).collect();
        // From here on the tensors are the only handles on their leases, so the receiving handler may hand
        // them over at once.
        drop(adopted);
        match frame.header.kind {
            Kind::Send | Kind::Ask | Kind::Follow => {
                self.deliver(inboxes, frame, Content { body, tensors, tickets });
            }
            Kind::Reply => self.take_reply(frame.header.correlation, Ok(Parts { body, tensors })),
            Kind::Refusal => {
                let why = codec::decode::<Refusal>(body, Vec::new(), None);
                let why = why.unwrap_or_else(|error| Refusal::Undelivered(error.to_string()));
                self.take_reply(frame.header.correlation, Err(AskFailure::Refused(why.bounded())));
            }
        }
    }

    /// Counts and reports a frame that is taken but not delivered. Its sender has counted it as sent, so it
    /// counts as received; otherwise a shutdown would wait for it until its deadline.
    fn reject_frame(&self, fault: Fault, why: &dyn Display) {
        self.transport.counters.count_received();
        self.reject(fault, why);
    }

    fn reject(&self, fault: Fault, why: &dyn Display) {
        self.transport.counters.count_rejected();
        self.transport.note_refused(self.link, fault, "a frame was rejected", why);
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
