//! How a link is made. See [`link`](super::link) for the protocol.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use scopeguard::{ScopeGuard, guard};

use super::link::Link;
use super::{Slot, Transport};
use crate::clock::ClockPage;
use crate::fault;
use crate::ids::ProcessId;
use crate::transport::control_channel::{FromNode, LinkMessage, ToNode};

/// Why a half was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadHalf {
    #[error("a page that it sent is not what it has to be: {0}")]
    Memory(#[from] crate::os::BadMemfd),
    #[error("its clock page is not what it has to be: {0}")]
    Clock(#[from] crate::clock::BadClockPage),
    #[error("its link message came with {0} descriptors instead of 4")]
    Descriptors(usize),
    #[error("its ring cannot be: {0}")]
    Ring(#[from] crate::transport::ring::BadCapacity),
    #[error("it sent its half twice")]
    Twice,
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Transport {
    /// The link to `peer`, asked for if there is none yet; `None` when the peer has ended, or another life of its slot has
    /// not. It may not be open yet.
    pub(crate) fn link(&self, peer: ProcessId) -> Option<Arc<Link>> {
        if let Some(link) = self.links.to(peer) {
            return (!link.is_broken()).then_some(link);
        }
        if self.exited.contains(peer) || peer.slot() == self.me.slot() || self.exited.take_nobody(peer) {
            return None;
        }
        let mut is_new = false;
        let link = self.links.replace(peer, |known| match known {
            Some(link) if link.peer == peer => Some(Arc::clone(link)),
            // WIRE-1: a frame can name any process. Another life of the slot takes this one's place only when this one is
            // known to have ended.
            Some(link) if !self.exited.contains(link.peer) => None,
            _ => {
                is_new = true;
                self.new_link(peer)
            }
        })?;
        if !is_new {
            return Some(link);
        }
        // Also when this thread unwinds: a link whose half was not sent never opens.
        let unsent = guard(Arc::clone(&link), |link| {
            if !link.is_connected() {
                self.links.remove(&link);
            }
            self.give_up(&link);
        });
        match self.send_half(&link) {
            Ok(()) => {
                ScopeGuard::into_inner(unsent);
                Some(link)
            }
            Err(error) => {
                tracing::error!(%peer, %error, "the half of a link could not be sent; the next use tries again");
                None
            }
        }
    }

    fn new_link(&self, peer: ProcessId) -> Option<Arc<Link>> {
        let link = match Link::new(peer, &self.ears) {
            Ok(link) => Arc::new(link),
            Err(error) => {
                tracing::error!(%peer, %error, "no memory for a link");
                return None;
            }
        };
        for (index, inbox) in self.inboxes.read().iter().enumerate() {
            if let Slot::Withdrawn { away, .. } = inbox {
                link.close(index as u16, *away);
            }
        }
        Some(link)
    }

    fn send_half(&self, link: &Link) -> Result<(), std::io::Error> {
        fault::point("transport.link.begin");
        let descriptors = vec![
            self.domain.own_page().export_fd()?,
            self.wake_page.export()?,
            link.export()?,
            link.take_bell().ok_or(std::io::ErrorKind::AlreadyExists)?,
        ];
        let route = ToNode::Route { to: link.peer, link_message: LinkMessage::Link };
        let sent = self.control.send(route, descriptors).map_err(std::io::Error::other);
        fault::point("transport.link.sent");
        sent
    }

    /// Takes what the node sends. Any thread; never blocks.
    pub fn from_node(&self, message: FromNode, descriptors: Vec<OwnedFd>) {
        match message {
            FromNode::LinkMessage { from, link_message: LinkMessage::Link } => {
                if let Err(error) = self.half_came(from, descriptors) {
                    tracing::error!(peer = %from, %error, "a link was refused");
                    if let Some(link) = self.link(from) {
                        self.give_up(&link);
                    }
                }
            }
            FromNode::LinkMessage { from, link_message: LinkMessage::LinkAck } => {
                if let Some(link) = self.link(from) {
                    link.acknowledge();
                    link.wake_senders();
                }
            }
            FromNode::Chunk { chunk, device, bytes, access } => {
                self.chunk_came(chunk, device, bytes, access, descriptors);
            }
            FromNode::NoChunk { chunk, access } => self.no_chunk(chunk, access),
            FromNode::Actor { actor, at } => self.actor_is(actor, at),
            FromNode::ProcessDown(process_down) => self.on_process_down(process_down),
            FromNode::Watching { ticket, down } => self.watching_began(ticket, down.as_ref()),
            FromNode::Lifecycle(event) => self.lifecycle(&event),
            FromNode::Registered { ticket, result } => self.directory.registered(ticket, result),
            FromNode::Found { ticket, found } => self.directory.found(ticket, found),
            FromNode::Taint(update) => {
                let ranges = self.domain.learn(&update);
                let answer = ToNode::Tainted { round: update.round, ranges };
                if self.control.send(answer, Vec::new()).is_err() {
                    tracing::debug!("the node has ended before it heard what is tainted");
                }
            }
            FromNode::ClocksReleased { process } => self.domain.clocks_released(process),
            FromNode::Exited { process } => self.on_process_exited(process),
            FromNode::Nobody { process } => {
                self.exited.note_nobody(process);
                if let Some(link) = self.links.to(process) {
                    // The place is for a life of the slot that there is.
                    self.links.remove(&link);
                    self.give_up(&link);
                }
            }
            FromNode::Reclaim { process } => self.reclaim(process),
        }
        self.wake_reader();
    }

    fn half_came(&self, from: ProcessId, descriptors: Vec<OwnedFd>) -> Result<(), BadHalf> {
        let count = descriptors.len();
        let [clock, wake_page, memory, bell] =
            <[OwnedFd; 4]>::try_from(descriptors).map_err(|_| BadHalf::Descriptors(count))?;
        // LEASE-4: memory of the lives before this one is still about, and is taken as that of the dead.
        self.exited.note_before(from);
        let Some(link) = self.link(from) else { return Ok(()) };
        fault::point("transport.link.came");
        // The clock page first: a frame that comes over the link may carry tickets of it.
        self.domain.add_peer(from, ClockPage::open(clock)?);
        link.connect(wake_page, memory, bell)?;
        fault::point("transport.link.connected");
        let route = ToNode::Route { to: from, link_message: LinkMessage::LinkAck };
        if self.control.send(route, Vec::new()).is_err() {
            link.break_off();
        }
        Ok(())
    }

    /// Has nothing more to do with a peer that broke the protocol, or has ended and was read to the end.
    pub(crate) fn give_up(&self, link: &Link) {
        link.break_off();
        if link.is_connected() && !link.has_exited() {
            self.leaves_unread.store(true, Ordering::SeqCst);
        }
        self.let_go(link);
        self.fail_asks(link.peer);
        link.wake_senders();
        link.given_up.store(true, Ordering::Release);
    }

    /// The last of a peer that ended and was read to the end, or will not be read any more: its link goes, and the node
    /// hears of it. For the reader, when it has [given the link up](Self::give_up).
    pub(super) fn part_with(&self, link: &Link) {
        fault::point("transport.drained");
        self.links.remove(link);
        self.exited.note_read();
        self.loosen_chunks();
        self.say_drained(link.peer);
    }

    /// Lets go of what was to go over a link that is broken: replies that found no room, and leases kept until the peer
    /// has passed their frames. It never will, or its own hold is on its way to the owner (LEASE-3). True if there was any.
    pub(super) fn let_go(&self, link: &Link) -> bool {
        let (in_flight, outbox) = match link.out.lock().as_mut() {
            Some(out) => {
                out.forwards = 0;
                (std::mem::take(&mut out.in_flight), std::mem::take(&mut out.outbox))
            }
            None => return false,
        };
        // Dropped here, without the lock: leases go with them, over other links.
        !in_flight.is_empty() || !outbox.is_empty()
    }

    /// A process ended. What it had posted is still read, by the reader, which then gives the link up;
    /// nothing goes to it any more.
    fn on_process_exited(&self, process: ProcessId) {
        self.exited.note(process);
        self.look_again();
        match self.links.to(process) {
            // Its asks fail once the replies that it had posted are read.
            Some(link) => link.end(),
            None => {
                self.exited.note_read();
                self.loosen_chunks();
                self.say_drained(process);
            }
        }
    }

    fn say_drained(&self, process: ProcessId) {
        if self.control.send(ToNode::Drained { process }, Vec::new()).is_err() {
            tracing::debug!(%process, "the node has ended before it heard that a ring is drained");
        }
    }

    /// Everybody has read what the process had posted: every hold that it forwarded is in its owner's lease table or
    /// ring, so its own leases can go (LEASE-4). What it owned stays with whoever holds it.
    fn reclaim(&self, process: ProcessId) {
        // The holds that its last frames led to, before its leases go (LEASE-3).
        crate::lease::pool::Surroundings::drain_returns(self);
        // Before the leases go: who grants one behind that sees this (`evict_if_reclaimed`).
        self.exited.note_reclaimed(process);
        self.evict(process);
    }

    fn evict(&self, process: ProcessId) {
        let pools = self.pools.read().clone();
        pools.iter().for_each(|pool| pool.evict(process));
    }

    /// Drops what `process` was granted after its leases had been dropped: by a send that had claimed its frame before
    /// (LEASE-4). The grant came behind the eviction in the pool's lock, and so this look comes behind the note.
    pub(super) fn evict_if_reclaimed(&self, process: ProcessId) {
        if self.exited.is_reclaimed(process) {
            self.evict(process);
        }
    }

    /// Whether a process has ended.
    pub(super) fn has_exited(&self, process: ProcessId) -> bool {
        self.exited.contains(process)
    }

    /// Makes the reader look again.
    pub(crate) fn wake_reader(&self) {
        if let Err(error) = self.ears.wake() {
            tracing::warn!(%error, "the reader could not be woken");
        }
    }
}
