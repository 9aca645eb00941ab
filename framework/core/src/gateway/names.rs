//! Actors, names and hosts, about which the nodes tell each other through their gateways.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tensorpost_hosts::ids::HostId;

use super::command::Command;
use super::dropped::dropped;
use super::locals::watch_local;
use super::mailboxes::{Mailbox, MailboxPlace};
use super::note::{Note, plain};
use super::proxy::Proxy;
use super::roaming::last_life_over;
use super::run::Gateway;
use super::to_node::tell;
use crate::actor::Address;
use crate::ids::{ActorId, DeviceId};
use crate::limits::MAX_HOST_QUESTIONS;
use crate::transport::control_channel::Location;
use crate::transport::gateway_messages::{FromGateway, HostEnd};
use crate::transport::inbox::{LocalCredits, Refusal};
use crate::transport::lifecycle::{EndReason, Lifecycle, Whereabouts};

fn out_of_reach(why: String) -> EndReason {
    EndReason::OutOfReach(why)
}

impl Gateway {
    /// Asks for an actor of another host that a process here wants to send to.
    pub(super) fn reach(&mut self, actor: ActorId) {
        if self.hosts.is_in_reach(actor, self.node.number()) {
            // A late message may already have made a mailbox, and had an offer, for an actor that rests.
            let offered = self.mailboxes.get(&actor).map_or(0, |mailbox| mailbox.offered);
            self.reaching.insert(actor, false);
            self.late.is_over(actor);
            return match self.roaming.host_of(actor, &self.hosts).filter(|_| offered > 0) {
                None => self.want(actor),
                Some(host) => self.served(host, actor, offered),
            };
        }
        let why = out_of_reach(format!("host {} is not of this node (any more)", actor.host()));
        tell(&self.transport, FromGateway::OutOfReach { actor, why: Some(why) });
    }

    /// Handles another host's offer of an actor's mailbox.
    pub(super) fn served(&mut self, host: u16, actor: ActorId, capacity: u32) {
        // WIRE-1: an actor that roams is offered by the host that its home has named, or by its home.
        if self.roaming.host_of(actor, &self.hosts) != Some(host) && !self.lives_at_home(host, actor) {
            return;
        }
        if self.late.waits(actor) {
            return; // the offer was for a mailbox that has rested since; its host is asked in its turn
        }
        if let Some(mailbox) = self.mailboxes.get_mut(&actor) {
            mailbox.offered = capacity;
        }
        if capacity > 0 {
            self.late.is_over(actor);
        }
        if let Some(was_told) = self.reaching.get_mut(&actor).filter(|_| capacity > 0)
            && !std::mem::replace(was_told, true)
        {
            tell(&self.transport, FromGateway::Reached { actor, capacity });
        }
        self.send_on(actor);
    }

    /// Serves the mailbox of an actor of another host at the place that the node has given it.
    pub(super) fn serve(&mut self, actor: ActorId, location: Location) {
        self.reaching.remove(&actor);
        if !self.hosts.is_in_reach(actor, self.node.number()) {
            // Its host was lost meanwhile, and the node was not told that this actor is out of reach.
            let why = out_of_reach(format!("host {} is not of this node any more", actor.host()));
            return tell(&self.transport, FromGateway::OutOfReach { actor, why: Some(why) });
        }
        let Location { index, capacity, .. } = location;
        let local = LocalCredits::new(capacity);
        let proxy = Arc::new(Proxy { actor, capacity, local, to: self.to.clone() });
        match self.transport.serve_at(index, proxy) {
            Ok(()) => {
                self.watched.remove(&actor);
                let used = self.mailboxes.last_item();
                let has_host = self.roaming.host_of(actor, &self.hosts).is_some();
                let mailbox = self
                    .mailboxes
                    .entry(actor)
                    .or_insert_with(|| Mailbox::new(MailboxPlace::Nowhere, capacity));
                (mailbox.place, mailbox.used) = (MailboxPlace::At(index), used);
                tell(&self.transport, FromGateway::Serving { actor });
                if !has_host {
                    // The actor's life there ended before its mailbox had a place.
                    (mailbox.place, mailbox.offered) = (MailboxPlace::GivenUp, 0);
                    tell(&self.transport, FromGateway::Rests { actor });
                }
            }
            Err(error) => {
                let why = Some(out_of_reach(error.to_string()));
                tell(&self.transport, FromGateway::OutOfReach { actor, why });
            }
        }
    }

    /// Closes the mailbox of an actor of another host, after the node told all processes that the actor is
    /// gone.
    pub(super) fn withdraw(&mut self, actor: ActorId) {
        if actor.roams() {
            // The actor has ended, lives nowhere now, or lives on this host.
            self.reaching.remove(&actor);
            self.roaming.is_over_now(actor);
            return self.close(actor, &last_life_over());
        }
        self.close(actor, &Refusal::NoSuchActor);
    }

    /// Looks up a name, which no actor of this host has, on the other hosts.
    pub(super) fn find(&mut self, ticket: u64, name: String) {
        let hosts: Vec<_> = self.hosts.keys().copied().collect();
        self.lookups.begin(ticket, name.clone(), &hosts);
        let note = Note::Find { ticket, name };
        hosts.into_iter().for_each(|host| self.note_to(host, &note));
        self.lookups.look_at(ticket, &self.transport);
    }

    /// Handles a note of another host.
    pub(super) fn note(&mut self, host: u16, note: &[u8]) {
        let note = match Note::decode(note) {
            Ok(note) => note,
            Err(error) => return dropped(host, &error),
        };
        match note {
            Note::Find { ticket, name } => self.find_here(host, ticket, name),
            Note::Found { ticket, found } => {
                // WIRE-1: a host speaks only of its own actors.
                let found = found.filter(|(actor, _)| actor.host() == host);
                self.lookups.answered(host, ticket, found, &self.transport);
            }
            Note::Want { actor, not } => self.want_local(host, actor, not),
            Note::LivesOn { actor, host: lives_on } => self.lives_there(host, actor, lives_on),
            Note::Watch { actors } => self.watch_guests(host, actors),
            Note::Watched => self.watched_there(host),
            Note::Rests { actor, told } => {
                self.locals.rests_there(host, actor, told, &mut self.hosts);
            }
            Note::Ended { actor, why } if actor.host() == host => self.ended(actor, why),
            Note::Ended { actor, why } if actor.roams() => self.ended_there(host, actor, why),
            Note::Lifecycle(event) if event.actor().host() == host => {
                if let Lifecycle::Down { actor, reason: EndReason::OutOfReach(_), .. } = event {
                    // Marked before the loss of that host is reported here: a sender that hears of this end
                    // and writes again waits for the next life.
                    self.life_over(actor, &last_life_over());
                }
                tell(&self.transport, FromGateway::Lifecycle(event));
            }
            Note::Lifecycle(event)
                if event.actor().host() == self.node.number()
                    && self.roaming.is_guest_on(event.actor(), host) =>
            {
                tell(&self.transport, FromGateway::Lifecycle(event));
            }
            Note::Ended { .. } | Note::Lifecycle(_) => {
                dropped(host, &"it speaks of an actor of another host");
            }
            Note::Joined(newcomer) if host == 0 => {
                let number = newcomer.who.host.0;
                if number != self.node.number() && !self.hosts.contains_key(&number) {
                    self.begin_with(newcomer);
                    self.hosts.tell_members(&self.node.own, &self.transport);
                }
            }
            Note::Left { host: other, why, how } if host == 0 => self.gone(other, &why, how),
            Note::Hosts { numbers, gone } if host == 0 => self.members_are(&numbers, &gone),
            Note::Names { names, is_last } if self.node.roster.is_some() => {
                tell(&self.transport, FromGateway::Names { host, names, is_last });
            }
            Note::Drain { round, within } if host == 0 => {
                tell(&self.transport, FromGateway::Drain { round, within });
            }
            Note::Drained { round, activity } if self.node.roster.is_some() => {
                tell(&self.transport, FromGateway::Drained { host, round, activity });
            }
            Note::Claimed { ticket, name, result } if host == 0 => {
                tell(&self.transport, FromGateway::Claimed { ticket, name, result });
            }
            Note::Claim { ticket, name } if self.node.roster.is_some() => {
                tell(&self.transport, FromGateway::Claim { host, ticket, name });
            }
            Note::Release { name } if self.node.roster.is_some() => {
                tell(&self.transport, FromGateway::Release { host, name });
            }
            Note::Claim { .. } | Note::Release { .. } | Note::Claimed { .. } | Note::Names { .. } => {
                dropped(host, &"it speaks of who has a name, which only the head says");
            }
            Note::Joined(_) | Note::Left { .. } | Note::Hosts { .. } | Note::Drain { .. } => {
                dropped(host, &"it says who is of the node, which only the head does");
            }
            Note::Drained { .. } => {
                dropped(host, &"it tells this host what only the head asks for");
            }
            Note::Leaving => self.gone(host, "has left the node", HostEnd::Left),
        }
    }

    /// Handles the end of an actor of another host, or the word that it never existed. If the actor has a
    /// place, the node tells all senders first.
    pub(super) fn ended(&mut self, actor: ActorId, why: Option<EndReason>) {
        self.roaming.forget(actor);
        self.reaching.remove(&actor);
        self.watched.remove(&actor);
        tell(&self.transport, FromGateway::OutOfReach { actor, why });
        if self.mailboxes.get(&actor).is_some_and(|mailbox| !matches!(mailbox.place, MailboxPlace::At(_))) {
            self.close(actor, &Refusal::NoSuchActor);
        }
    }

    /// Looks up a name here for another host.
    fn find_here(&mut self, host: u16, ticket: u64, name: String) {
        let Some(remote) = self.hosts.get_mut(&host) else { return };
        // A name of an impossible length is answered here; the node would report an error for it.
        let may_be = (1..=crate::limits::MAX_HOST_TEXT).contains(&name.len());
        if remote.questions >= MAX_HOST_QUESTIONS || !may_be {
            return self.note_to(host, &Note::Found { ticket, found: None });
        }
        remote.questions += 1;
        let session = remote.session;
        let (transport, to) = (Arc::clone(&self.transport), self.to.clone());
        tokio::spawn(async move {
            let found = transport.directory.lookup(name, &*transport.control).await.ok().flatten();
            let found = found.map(|named| (named.actor, named.location));
            let _ = to.send(Command::Found { host, session, ticket, found });
        });
    }

    pub(super) fn found_here(
        &mut self,
        host: u16,
        session: u64,
        ticket: u64,
        found: Option<(ActorId, Location)>,
    ) {
        let own = self.node.number();
        // Only in the same session: the host's next gateway asks again.
        if let Some(remote) = self.hosts.get_mut(&host).filter(|remote| remote.session == session) {
            remote.questions -= 1;
            // An actor of a third host is that host's to report.
            let found = found.filter(|(actor, _)| actor.host() == own);
            self.note_to(host, &Note::Found { ticket, found });
        }
    }

    /// Handles another host's question for an actor of this one.
    pub(super) fn want_local(&mut self, host: u16, actor: ActorId, not: Option<u16>) {
        if actor.host() != self.node.number() && !actor.roams() {
            return self.note_to(host, &Note::Ended { actor, why: None });
        }
        let waits = self.locals.values().filter(|local| local.waiting.contains_key(&host)).count();
        let local = self.locals.entry(actor).or_default();
        if local.address.is_some() {
            if host == self.node.number() {
                return self.close(actor, &last_life_over()); // it lives here; its senders ask the node again
            }
            return self.locals.offer(host, actor, &mut self.hosts);
        }
        if waits >= MAX_HOST_QUESTIONS {
            let why = Some(out_of_reach("too many actors are asked for at a time".to_owned()));
            if local.waiting.is_empty() {
                self.locals.remove(&actor);
            }
            return self.note_to(host, &Note::Ended { actor, why });
        }
        let first = local.waiting.is_empty();
        local.waiting.insert(host, not);
        // For an actor that roams the node is asked again for each host: a `not` given by one asker must not
        // delay the others.
        if first || actor.roams() {
            tell(&self.transport, FromGateway::WantLocal { actor });
        }
    }

    /// Handles the node's word on where an actor of this host is.
    pub(super) fn local_is(&mut self, actor: ActorId, at: Whereabouts, device: Option<DeviceId>) {
        let own = self.node.number();
        let Some(local) = self.locals.get_mut(&actor) else { return };
        let mut waiting = std::mem::take(&mut local.waiting);
        if waiting.remove(&own).is_some() {
            // A late message came for an actor that roams: it lives here now, or has ended.
            self.close(actor, &last_life_over());
        }
        let Some(local) = self.locals.get_mut(&actor) else { return };
        let location = match at {
            Whereabouts::At(location) | Whereabouts::Restarting(location) => location,
            Whereabouts::GaveUp(_) | Whereabouts::Nowhere => {
                // A roaming actor that is not here any more because this host leaves goes on elsewhere.
                let leaves = self.is_stopping && actor.host() != own;
                let at = if leaves { Whereabouts::GaveUp(EndReason::NodeStopped) } else { at };
                let told = self.locals.remove(&actor).map(|local| local.told).unwrap_or_default();
                let why = if let Whereabouts::GaveUp(why) = at { Some(plain(why)) } else { None };
                let note = Note::Ended { actor, why };
                let all = waiting.into_keys().chain(told).collect::<HashSet<_>>();
                return all.into_iter().for_each(|host| self.note_to(host, &note));
            }
        };
        let transport = Arc::clone(&self.transport);
        (local.capacity, local.device) = (location.capacity, device);
        local.address = Some(Address::new(transport, actor, location));
        watch_local(&self.transport, &self.to, actor);
        waiting.into_keys().for_each(|host| self.locals.offer(host, actor, &mut self.hosts));
    }

    /// Removes hosts that the head does not list any more. The head also says how they went.
    fn members_are(&mut self, numbers: &[u16], gone: &[(u16, HostEnd)]) {
        let is_gone = |other: &u16| *other != 0 && !numbers.contains(other);
        let others: Vec<_> = self.hosts.keys().copied().filter(is_gone).collect();
        for other in others {
            // HOST-10: if the head does not know, the host may still run.
            let how =
                gone.iter().find(|(number, _)| *number == other).map_or(HostEnd::GivenUp, |(_, how)| *how);
            self.gone(other, "is not of the node any more", how);
        }
    }

    /// Removes a host that is lost or has left. `why` continues a sentence that begins with its name.
    pub(super) fn gone(&mut self, host: u16, why: &str, how: HostEnd) {
        let Some(mut remote) = self.hosts.remove(&host) else { return };
        let why = format!("{} {why}", remote.shown());
        remote.peer.end();
        remote.store.clear();
        self.node.peers.remove(HostId(host));
        if let (Some(roster), Some(verdict)) = (&self.node.roster, &self.node.verdict) {
            roster.remove(HostId(host));
            verdict.lock().left(HostId(host));
            // The other hosts know its name, so the note leaves that out.
            let told = why.split_once(") ").map_or(why.as_str(), |(_, told)| told).to_owned();
            self.hosts.note_to_all(&Note::Left { host, why: told, how });
        }
        // HOST-4: the messages were sent, and no answer comes.
        let no_answer =
            Refusal::OutOfReach(format!("{why}; whether the message was handled there, nobody knows"));
        for actor in self.roaming.moved_from(&remote) {
            self.less_under_way(actor);
        }
        for (_, asked) in remote.asks.drain() {
            asked.receipt.refuse(&no_answer);
        }
        drop(remote);
        self.roaming.host_gone(host, how);
        tell(&self.transport, FromGateway::HostGone { host, why: why.clone(), how });
        self.lookups.host_gone(host, &self.transport);
        self.locals.forget_host(host);
        // The node tells all senders first, and has the mailboxes closed afterwards. Messages that come in
        // between are refused one by one.
        let not_sent = Refusal::NotPassedOn(format!("{why}; the message was not sent"));
        let known = self.mailboxes.keys().chain(self.reaching.keys()).chain(&self.watched);
        let was_there = |actor: &ActorId| actor.host() == host || self.roaming.is_guest_on(*actor, host);
        let actors: HashSet<_> = known.copied().filter(was_there).collect();
        for actor in actors {
            // This host's node decides about its own actors, their homes about all others (HOST-10).
            let goes_on = how.is_certain() || actor.host() == self.node.number();
            if goes_on && self.roaming.is_guest_on(actor, host) {
                self.life_over(actor, &not_sent);
                continue;
            }
            self.roaming.forget(actor);
            self.reaching.remove(&actor);
            self.watched.remove(&actor);
            self.mailboxes.refuse_waiting(actor, &not_sent, &self.transport);
            if self.mailboxes.get(&actor).is_some_and(|mailbox| mailbox.place == MailboxPlace::Nowhere) {
                self.mailboxes.remove(&actor);
            }
            self.late.is_over(actor);
            let why = Some(out_of_reach(why.clone()));
            tell(&self.transport, FromGateway::OutOfReach { actor, why });
        }
        self.hosts.tell_members(&self.node.own, &self.transport);
        if host == 0 {
            if how == HostEnd::Left {
                // A head that has left begins no further lives, so this host may end in order.
                self.node.page.set(Duration::MAX);
            }
            let why = format!("this host ends: {why}");
            tell(&self.transport, FromGateway::NodeGone { why, cut_off: how != HostEnd::Left });
        }
    }
}
