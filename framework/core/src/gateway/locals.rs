//! Actors of this host that other hosts know or ask for, and the offers of their mailboxes.

use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};

use tensorpost_hosts::ids::ActorId as HostActor;
use tokio::sync::mpsc::UnboundedSender;

use super::command::Command;
use super::note::{Note, plain, plain_event};
use super::remotes::Remotes;
use crate::actor::Address;
use crate::ids::{ActorId, DeviceId};
use crate::limits::MAX_MAILBOX;
use crate::message::raw::RawMessage;
use crate::transport::lifecycle::Lifecycle;
use crate::transport::{Transport, Watcher};

// So an offer fails only if a host has been offered too many mailboxes.
const _: () = assert!(MAX_MAILBOX <= tensorpost_hosts::limits::MAX_CAPACITY);

/// The actors of this host that others know or ask for.
#[derive(Default)]
pub(super) struct Locals(HashMap<ActorId, Local>);

/// An actor of this host that other hosts know or ask for.
#[derive(Default)]
pub(super) struct Local {
    /// Set once the node has said where the actor is.
    pub(super) address: Option<Address<RawMessage>>,
    /// The device on which the tensors of its messages belong, if any.
    pub(super) device: Option<DeviceId>,
    pub(super) capacity: u32,
    /// Hosts to which its mailbox is offered.
    pub(super) offered: HashSet<u16>,
    /// Hosts that send nothing to it for now, and want to hear what happens to it.
    pub(super) told: HashSet<u16>,
    /// Hosts that wait until the node has said where the actor is. For one that roams, the value is the host
    /// that the asker knows it has left, if any.
    pub(super) waiting: HashMap<u16, Option<u16>>,
}

impl Local {
    /// Forgets everything that a host knows of this actor.
    fn forget_host(&mut self, host: u16) {
        self.offered.remove(&host);
        self.told.remove(&host);
        self.waiting.remove(&host);
    }

    /// Returns whether no other host knows the actor or asks for it.
    fn is_forgotten(&self) -> bool {
        self.offered.is_empty() && self.told.is_empty() && self.waiting.is_empty()
    }
}

impl Locals {
    /// Offers the mailbox of an actor of this host to another host.
    pub(super) fn offer(&mut self, host: u16, actor: ActorId, hosts: &mut Remotes) {
        let (Some(local), Some(remote)) = (self.0.get_mut(&actor), hosts.get_mut(&host)) else {
            return;
        };
        if remote.left_behind.contains_key(&actor) {
            // HOST-9: messages of an earlier session still hold their places in the mailbox.
            remote.held_back.insert(actor);
            local.told.insert(host);
            return;
        }
        let capacity = local.capacity;
        match remote.peer.with(|session| session.serve(HostActor(actor.0), capacity)) {
            Ok(()) => {
                local.offered.insert(host);
                local.told.remove(&host);
            }
            // As many mailboxes are offered as the bound allows. This one is offered when others rest.
            Err(_) => {
                remote.held_back.insert(actor);
                local.told.insert(host);
            }
        }
    }

    /// Offers the mailboxes that could not be offered before.
    pub(super) fn offer_held_back(&mut self, hosts: &mut Remotes) {
        let mut again = Vec::new();
        for (host, remote) in hosts.iter_mut() {
            let offered = |actor: &ActorId| !remote.left_behind.contains_key(actor);
            again.extend(remote.held_back.extract_if(offered).map(|actor| (*host, actor)));
        }
        again.into_iter().for_each(|(host, actor)| self.offer(host, actor, hosts));
    }

    /// Records that a mailbox has taken a message of an earlier session with a host (`renewal`).
    pub(super) fn less_left_behind(&mut self, host: u16, actor: ActorId, hosts: &mut Remotes) {
        let Some(remote) = hosts.get_mut(&host) else { return };
        remote.is_done_with(actor);
        if !remote.left_behind.contains_key(&actor) && remote.held_back.remove(&actor) {
            self.offer(host, actor, hosts);
        }
    }

    /// Handles another host's word that it sends nothing to an actor of this host for now (`resting`).
    pub(super) fn rests_there(&mut self, host: u16, actor: ActorId, told: bool, hosts: &mut Remotes) {
        let (Some(local), Some(remote)) = (self.0.get_mut(&actor), hosts.get_mut(&host)) else {
            return;
        };
        remote.held_back.remove(&actor);
        if local.offered.remove(&host) {
            // Capacity 0 takes the offer back, and never exceeds the bound.
            let _ = remote.peer.with(|session| session.serve(HostActor(actor.0), 0));
        }
        match told {
            true => local.told.insert(host),
            false => local.told.remove(&host),
        };
        self.forget_unknown(actor);
    }

    /// Takes what happened to an actor of this host. Returns the note about it, and the hosts that are to be
    /// told: those that know the actor.
    pub(super) fn event(&mut self, event: &Lifecycle, own: u16, hosts: &Remotes) -> Option<(Note, Vec<u16>)> {
        let actor = event.actor();
        let local = self.0.get(&actor)?;
        let offered: Vec<_> = local.offered.iter().copied().collect();
        let mut told: Vec<_> = offered.iter().chain(&local.told).copied().collect();
        if actor.roams() && actor.host() != own && !event.is_final() {
            told.retain(|host| *host == actor.host()); // its home tells the others
        }
        let note = match event {
            Lifecycle::Down { reason, will_restart: false, .. } | Lifecycle::GaveUp { reason, .. } => {
                self.0.remove(&actor);
                for remote in offered.iter().filter_map(|host| hosts.get(host)) {
                    // Capacity 0 takes the offer back, and never exceeds the bound.
                    let _ = remote.peer.with(|session| session.serve(HostActor(actor.0), 0));
                }
                Note::Ended { actor, why: Some(plain(reason.clone())) }
            }
            goes_on => Note::Lifecycle(plain_event(goes_on.clone())),
        };
        Some((note, told))
    }

    /// Forgets everything that a host knows of the actors of this one.
    pub(super) fn forget_host(&mut self, host: u16) {
        self.0.values_mut().for_each(|local| local.forget_host(host));
        self.0.retain(|_, local| !local.is_forgotten());
    }

    /// Forgets an actor of this host that no other host knows.
    pub(super) fn forget_unknown(&mut self, actor: ActorId) {
        if self.0.get(&actor).is_some_and(Local::is_forgotten) {
            self.0.remove(&actor);
        }
    }
}

impl Deref for Locals {
    type Target = HashMap<ActorId, Local>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Locals {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// Asks this host's node to report what happens to an actor that others know.
pub(super) fn watch_local(transport: &Transport, to: &UnboundedSender<Command>, actor: ActorId) {
    let to = to.clone();
    // The current state counts as news only if it is final.
    let tell = move |event: &Lifecycle, before: bool| {
        (before && !event.is_final()) || to.send(Command::Event(event.clone())).is_ok()
    };
    // The watcher has a name, so there is one of it however often other hosts forget the actor and ask again.
    transport.watch(actor, Watcher { name: Some(("gateway", actor)), tell: Box::new(tell) });
}
