//! Makes links. See [`link`](super::link) for the protocol.
//!
//! Code that needs a link to a peer uses it, and so does the handler of the peer's link messages.
//!
//! **Invariants.** There is one link per peer, and one per slot over which anything is sent. A new process of
//! a slot gets a link only when the process before it is known to have ended (WIRE-1: a frame can name any
//! process).
//!
//! **Locks.** That of [`Links`](super::links::Links) for writing while a link is made. Inside it, the places
//! of actors for reading, and the new link's credits. No message to the node is sent under it.
//!
//! **If memory or descriptors are short**, here, at the peer or in the node, one half of a link is refused.
//! The link then goes on both sides, and its waiters are told which process lacks what ([`LinkRefused`]). It
//! was not open on either side: a process that refuses a half has not said that it took it, or has sent no
//! half of its own. The next use makes another link. A peer that refuses a link which was open lies, and is
//! given up.
//!
//! **On a crash** of the peer before its half has come, the link never opens, and is removed when the node
//! reports the end. **On cancellation**, and if this thread unwinds, a link whose half was not sent is
//! removed again; one whose half was sent stays.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scopeguard::{ScopeGuard, guard};

use super::bad_half::BadHalf;
use super::link::Link;
use super::{LinkRefused, Transport, WhyRefused, wake_reasons};
use crate::clock::ClockPage;
use crate::fault;
use crate::ids::{ActorId, ProcessId};
use crate::transport::control_channel::{LinkMessage, Location, ToNode};

/// How long a process that starts an actor waits for the link to the actor's process, and how often it
/// checks. It takes a millisecond if both processes run.
const LINK_WAIT: Duration = Duration::from_secs(1);
const LINK_LOOK: Duration = Duration::from_micros(100);

/// Why there is no link.
#[derive(Debug)]
pub(crate) enum NoLink {
    /// The peer has ended or broke the protocol, or another process of its slot has not ended.
    NoPeer,
    /// This process lacks memory or descriptors for it, as this says. The next use tries again.
    Lack(std::io::Error),
}

/// A peer's half of a link, which came or is to be refused.
pub(super) struct PeerHalf<'a> {
    pub(super) transport: &'a Transport,
    pub(super) from: ProcessId,
    pub(super) number: u64,
}

impl Transport {
    /// Returns the link to `peer`, and asks for it if there is none yet; it may not be open yet. Returns
    /// `None` if the peer has ended, or another process of its slot has not.
    pub(crate) fn link(&self, peer: ProcessId) -> Option<Arc<Link>> {
        self.link_or_lack(peer).ok()
    }

    /// Does the same as [`link`](Self::link), and says if this process lacks something for it.
    pub(super) fn link_or_lack(&self, peer: ProcessId) -> Result<Arc<Link>, NoLink> {
        let (link, is_new) = self.find_or_make(peer)?;
        if is_new {
            self.send_half(&link).map_err(NoLink::Lack)?;
        }
        Ok(link)
    }

    /// Blocks until the link to an actor's process is open, so that the first message finds it. It does not
    /// block for long, because that process may be busy. It must not be called on the thread that reads.
    pub(crate) fn await_link(&self, actor: ActorId, location: Location) {
        if location.process == self.me || self.directory.meets_other_host(actor) {
            return;
        }
        let Some(link) = self.link(location.process) else { return };
        let until = Instant::now() + LINK_WAIT;
        while !link.is_open() && !link.is_past() && Instant::now() < until {
            std::thread::sleep(LINK_LOOK);
        }
    }

    /// Returns the link to `peer`, and whether it was made just now. A new link's half still has to be sent.
    fn find_or_make(&self, peer: ProcessId) -> Result<(Arc<Link>, bool), NoLink> {
        if let Some(link) = self.links.to(peer) {
            // A link that was refused and is about to go carries the reason, so it is returned.
            let given_up = link.is_broken() && link.refused().get().is_none();
            return if given_up { Err(NoLink::NoPeer) } else { Ok((link, false)) };
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
            // WIRE-1: a frame can name any process. Another process of the slot takes this one's place only
            // when this one is known to have ended.
            Some(link) if !self.lifecycle.exited.contains(link.peer) => None,
            _ => {
                is_new = true;
                self.new_link(peer).map_err(|error| lack = Some(error)).ok()
            }
        });
        let link = link.ok_or_else(|| lack.map_or(NoLink::NoPeer, NoLink::Lack))?;
        Ok((link, is_new))
    }

    fn new_link(&self, peer: ProcessId) -> std::io::Result<Arc<Link>> {
        let link = Arc::new(Link::new(
            peer,
            self.links.number_half(),
            self.wakeups.ears(),
            self.links.unpublished_notices(),
            self.links.due(),
        )?);
        // Under the lock of all links: an actor is withdrawn either before this, and the new link is told
        // here, or after, and then the withdrawal finds this link (`Actors::withdraw`).
        self.actors.tell_new(&link);
        Ok(link)
    }

    /// Sends this process's half of a new link. If that fails, the link is removed again, and the peer's half
    /// is refused if it was taken in the meantime.
    fn send_half(&self, link: &Arc<Link>) -> Result<(), std::io::Error> {
        let sent = self.try_send_half(link);
        if let Err(error) = &sent {
            self.void(link, LinkRefused::here(error), Some((None, WhyRefused::of(error))));
        }
        sent
    }

    fn try_send_half(&self, link: &Arc<Link>) -> Result<(), std::io::Error> {
        // For a thread that unwinds: a link whose half was not sent never opens.
        let unsent = guard((), |()| {
            let why = std::io::Error::other("the thread that was making it has panicked");
            self.void(link, LinkRefused::here(&why), Some((None, WhyRefused::BadHalf)));
        });
        fault::point("transport.link.begin");
        let sent = self.export_half(link).and_then(|mut descriptors| {
            let link_message = LinkMessage::Link { number: link.number() };
            link.send_half(|rings_and_bell| {
                descriptors.extend(rings_and_bell);
                let route = ToNode::Route { to: link.peer, link_message };
                self.control.send(route, descriptors).map_err(std::io::Error::other)
            })
        });
        // From here on the peer connects to this half and answers. If the link were removed, that answer
        // would make another link, and no process would read its rings, because the node passes each half on
        // only once.
        ScopeGuard::into_inner(unsent);
        if sent.is_ok() {
            fault::point("transport.link.sent");
        }
        sent
    }

    fn export_half(&self, link: &Link) -> std::io::Result<Vec<OwnedFd>> {
        Ok(vec![self.domain.own_page().export_fd()?, self.wakeups.export()?, link.export()?])
    }

    /// Notes that `peer` or the node refused this process's half.
    pub(super) fn half_refused(&self, peer: ProcessId, number: u64, why: LinkRefused) {
        // A refusal of an earlier half says nothing new.
        let Some(link) = self.links.to(peer).filter(|link| link.number() == number) else { return };
        if link.is_broken() {
            return; // It was given up, and stays so that no other link is made.
        }
        if link.is_open() {
            // WIRE-1: the peer has said that it has taken the half.
            tracing::error!(%peer, "it refused a link that is open, and is given up: {why}");
            self.counters.count_rejected();
            return self.give_up(&link);
        }
        tracing::warn!(%peer, "a link was refused: {why}");
        self.void(&link, why, None);
    }

    /// Removes a link that never opens. Its waiters are told why, and the next use makes another. If
    /// `to_peer` is given, the peer's half with that number is refused, or else the one that was taken, if
    /// any.
    fn void(&self, link: &Link, why: LinkRefused, to_peer: Option<(Option<u64>, WhyRefused)>) {
        let taken = link.refuse(why);
        // Sent while the link is still there: a thread that makes another link sends its half after this.
        if let Some((number, why)) = to_peer
            && let Some(number) = number.or(taken)
        {
            PeerHalf { transport: self, from: link.peer, number }.say_refused(why);
        }
        // If a lying peer had claimed to have the half, something may have been sent over the link.
        self.let_go(link);
        self.fail_asks(link.peer);
        self.links.remove(link);
        link.wake_senders();
        link.note_given_up();
    }
}

impl PeerHalf<'_> {
    /// Takes a peer's half. The peer is told whether it was taken, because its senders wait for that.
    pub(super) fn came(&self, descriptors: Vec<OwnedFd>) {
        let PeerHalf { transport, from, .. } = *self;
        let Err(error) = self.take(descriptors) else { return };
        if transport.lifecycle.exited.contains(from) {
            return; // Nobody waits.
        }
        tracing::error!(peer = %from, %error, "a link was refused");
        if let Some(lack) = error.lack() {
            self.refuse(LinkRefused::here(lack), WhyRefused::of(lack));
            return;
        }
        // Also if there is no link yet: from here on nothing from this peer is taken.
        if let Some(link) = transport.link(from) {
            transport.give_up(&link);
        }
        self.say_refused(WhyRefused::BadHalf);
    }

    fn take(&self, descriptors: Vec<OwnedFd>) -> Result<(), BadHalf> {
        let PeerHalf { transport, from, number } = *self;
        let count = descriptors.len();
        let [clock, wake_page, memory, rings, bell] =
            <[OwnedFd; 5]>::try_from(descriptors).map_err(|_| BadHalf::Descriptors(count, 5))?;
        // LEASE-4: memory of earlier processes of this slot may still be in use, and counts as memory of dead
        // processes.
        transport.lifecycle.exited.note_before(from);
        // There is such a process, even if the node said before that there is none.
        transport.lifecycle.exited.take_nobody(from);
        let find_or_make = || {
            transport.find_or_make(from).map_err(|none| match none {
                NoLink::NoPeer => BadHalf::GivenUp,
                NoLink::Lack(error) => BadHalf::Io(error),
            })
        };
        let (mut link, mut is_new) = find_or_make()?;
        if link.refused().get().is_some() {
            // The peer has heard of the refusal, and sends its next half before the thread that refused the
            // link has removed it.
            transport.links.remove(&link);
            (link, is_new) = find_or_make()?;
        }
        fault::point("transport.link.came");
        // The clock page first: a frame that comes over the link may carry tickets of it.
        transport.domain.add_peer(from, ClockPage::open(clock)?);
        link.connect(wake_page, memory, rings, bell)?;
        fault::point("transport.link.connected");
        if !link.note_taken(number) {
            // Another thread failed to send this process's half, and did not know of the peer's half.
            self.say_refused(WhyRefused::BadHalf);
            return Ok(());
        }
        fault::point("transport.link.taken");
        if is_new {
            // The peer learns that its half was taken when this half arrives. If this half cannot be sent,
            // the peer is told that.
            if let Err(error) = transport.send_half(&link) {
                tracing::error!(peer = %from, %error, "a link was refused");
            }
        } else {
            // Senders of the peer may wait for the link, or a frame there may.
            link.ring(wake_reasons::CREDIT | wake_reasons::ROOM);
        }
        if link.is_open() {
            link.wake_senders();
        }
        Ok(())
    }

    /// Refuses the half, which is lost because this process may open no more files.
    pub(super) fn lost(&self) {
        let error = std::io::Error::from(rustix::io::Errno::MFILE);
        let why = LinkRefused::here(&error);
        tracing::error!(peer = %self.from, "a link was refused: {why}");
        self.refuse(why, WhyRefused::of(&error));
    }

    /// Refuses a half that is right but that this process cannot take.
    fn refuse(&self, here: LinkRefused, there: WhyRefused) {
        // This process's own half has already gone to the peer, or leads to no link, because the peer's half
        // would have to answer it.
        match self.transport.links.to(self.from) {
            Some(link) => self.transport.void(&link, here, Some((Some(self.number), there))),
            None => self.say_refused(there),
        }
    }

    fn say_refused(&self, why: WhyRefused) {
        let PeerHalf { transport, from: peer, number } = *self;
        if transport.control.send(ToNode::RefuseLink { peer, number, why }, Vec::new()).is_err() {
            tracing::debug!(%peer, "the node has ended before it heard that a link was refused");
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
