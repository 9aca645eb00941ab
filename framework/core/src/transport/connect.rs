//! How a link is made. See [`link`](super::link) for the protocol.
//!
//! Used by whoever needs a link to a peer, and by what the node passes on of the peer.
//!
//! **Invariants.** There is one link per peer, and one per slot that anything goes to. A life of a slot gets a link only
//! when the life before is known to have ended (WIRE-1: a frame can name any process).
//!
//! **Locks.** That of [`Links`](super::links::Links) for writing while a link is made; inside of it the places of actors
//! for reading, and the new link's credits. Nothing is sent to the node under it.
//!
//! **On a crash** of the peer before its half has come the link never opens, and goes with the word of its end. **On
//! cancellation**, and where this thread unwinds, a link whose half was not sent is taken out again; one whose half was
//! sent stays.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use scopeguard::{ScopeGuard, guard};

use super::Transport;
use super::link::Link;
use crate::clock::ClockPage;
use crate::fault;
use crate::ids::ProcessId;
use crate::os::{remedy, vital};
use crate::transport::control_channel::{LinkMessage, ToNode};

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

/// Why there is no link.
#[derive(Debug)]
pub(crate) enum NoLink {
    /// The peer has ended or broke the protocol, or another life of its slot has not ended.
    NoPeer,
    /// This process lacks memory or descriptors for it, as this says. The next use tries again.
    Lack(String),
}

fn lacks(peer: ProcessId, error: &std::io::Error) -> NoLink {
    let why = format!("{error}{}", remedy(error));
    tracing::error!(%peer, "a link could not be made: {why}");
    NoLink::Lack(why)
}

impl Transport {
    /// The link to `peer`, asked for if there is none yet; `None` when the peer has ended, or another life of its slot has
    /// not. It may not be open yet.
    pub(crate) fn link(&self, peer: ProcessId) -> Option<Arc<Link>> {
        self.link_or_lack(peer).ok()
    }

    /// As [`link`](Self::link), and says where it is this process that lacks something for it.
    pub(super) fn link_or_lack(&self, peer: ProcessId) -> Result<Arc<Link>, NoLink> {
        if let Some(link) = self.links.to(peer) {
            return if link.is_broken() { Err(NoLink::NoPeer) } else { Ok(link) };
        }
        if self.lifecycle.exited.contains(peer)
            || peer.slot() == self.me.slot()
            || self.lifecycle.exited.take_nobody(peer)
        {
            return Err(NoLink::NoPeer);
        }
        let (mut is_new, mut lack) = (false, None);
        let link = self.links.replace(peer, |known| match known {
            Some(link) if link.peer == peer => Some(Arc::clone(link)),
            // WIRE-1: a frame can name any process. Another life of the slot takes this one's place only when this one is
            // known to have ended.
            Some(link) if !self.lifecycle.exited.contains(link.peer) => None,
            _ => {
                is_new = true;
                self.new_link(peer).map_err(|error| lack = Some(error)).ok()
            }
        });
        let Some(link) = link else {
            return Err(lack.map_or(NoLink::NoPeer, |error| lacks(peer, &error)));
        };
        if !is_new {
            return Ok(link);
        }
        self.send_half(&link).map_err(|error| lacks(peer, &error))?;
        Ok(link)
    }

    fn new_link(&self, peer: ProcessId) -> std::io::Result<Arc<Link>> {
        let link = Arc::new(Link::new(peer, self.wakeups.ears())?);
        // Under the lock of all links: an actor is withdrawn either before this, and is found here, or after, and then its
        // withdrawal finds this link (`Actors::withdraw`).
        self.actors.each_withdrawn(|index, away| link.close(index, away));
        Ok(link)
    }

    /// Sends this process's half of a link that is new. Where that fails the link is taken out again.
    fn send_half(&self, link: &Arc<Link>) -> Result<(), std::io::Error> {
        // Also when this thread unwinds: a link whose half was not sent never opens.
        let unsent = guard(Arc::clone(link), |link| {
            if !link.is_connected() {
                self.links.remove(&link);
            }
            self.give_up(&link);
        });
        fault::point("transport.link.begin");
        let descriptors = vec![
            self.domain.own_page().export_fd()?,
            self.wakeups.export()?,
            link.export()?,
            link.take_bell().ok_or(std::io::ErrorKind::AlreadyExists)?,
        ];
        let route = ToNode::Route { to: link.peer, link_message: LinkMessage::Link };
        self.control.send(route, descriptors).map_err(std::io::Error::other)?;
        // From here on the peer connects to it and answers. Without the link that answer would make another one, in whose
        // rings nobody reads: the node passes one half on.
        ScopeGuard::into_inner(unsent);
        fault::point("transport.link.sent");
        Ok(())
    }

    pub(super) fn half_came(&self, from: ProcessId, descriptors: Vec<OwnedFd>) -> Result<(), BadHalf> {
        let count = descriptors.len();
        let [clock, wake_page, memory, bell] =
            <[OwnedFd; 4]>::try_from(descriptors).map_err(|_| BadHalf::Descriptors(count))?;
        // LEASE-4: memory of the lives before this one is still about, and is taken as that of the dead.
        self.lifecycle.exited.note_before(from);
        let link = match self.link_or_lack(from) {
            Ok(link) => link,
            Err(NoLink::NoPeer) => return Ok(()),
            Err(NoLink::Lack(why)) => {
                // The peer's senders wait for this half. A worker ends, and they are told; the program's own process has
                // no such way out.
                vital::fail(&format!("the half of a link could not be made: {why}"));
                return Ok(());
            }
        };
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
}
