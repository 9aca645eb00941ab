//! Actors of other hosts, as this host's node knows them. While the gateway has a mailbox for such an actor,
//! the actor is in the roster, with a location in the gateway (its *place*).
//!
//! The node tells a sender that place, as it does for an actor that has moved. If there is no place yet, the
//! node asks its gateway to reach the actor, and all senders that ask meanwhile wait for the same answer. The
//! node looks up names that nobody has here on the other hosts.
//!
//! The gateway has a limited number of places. When they are used up, the actor that nobody has sent to for
//! longest *rests*: it gives up its place, and leaves the roster; a sender with its address asks again. If
//! all places are in use, a sender that needs another one waits (MBX-2). Watchers of an actor that rests
//! still hear of its events.
//!
//! Actors that roam are reached in the same way, also from their homes, unless they live on the sender's
//! host. Each home keeps the hosts on which its actors live (`other_hosts/roaming.rs`).
//!
//! The broker owns [`OtherHosts`] as its neighbours, behind the hooks of `node/broker/neighbours.rs`. The
//! hooks, and the supervisor's part with other hosts, act through [`HostActors`], which has the broker's
//! tables for one call.
//!
//! Both the actors that are being reached (`other_hosts/reaching.rs`) and the names that are being looked up
//! are bounded (MBX-2).
//!
//! **On the gateway's death** the actors with a place in it rest until the next gateway has a place for them:
//! they live, and their addresses go on working. Processes that wait go on waiting, and the node asks the
//! next gateway for all that they wait for. A process here gets messages from the next gateway only when it
//! has taken all messages of the last one (HOST-3). If no gateway follows, its actors go like those of any
//! dead process, and waiting processes are told.

mod names;
mod next_gateway;
mod reaching;
mod roaming;

use std::any::Any;
use std::collections::{HashMap, HashSet, VecDeque};

use crate::ids::{ActorId, ProcessId};
use crate::limits::MAX_MAILBOX;
use crate::node::broker::neighbours::{NeighbourActors, Tables};
use crate::node::broker::{Broker, Complaint, Delivery};
use crate::node::limits::{MAX_FAILURE_TEXT, MAX_LOOKUPS, MAX_WANTED};
use crate::node::roster::{LocationError, Roster};
use crate::observe::text::shown;
use crate::transport::control_channel::{FromNode, Named, ToNode};
use crate::transport::gateway_messages::{FromGateway, ToGateway, starter_of};
use crate::transport::lifecycle::{EndReason, Lifecycle, Whereabouts};

use self::reaching::{Reaching, TooMany};
use self::roaming::RoamingActors;

pub(crate) use self::names::NamesOfHosts;

/// A node with the feature `hosts` is made with these neighbours and no others.
const ARE_OTHER_HOSTS: &str = "the neighbours of a node are other hosts";

/// See the module.
#[derive(Default)]
pub(crate) struct OtherHosts {
    /// Whether the node has, or had, other hosts.
    are_known: bool,
    gateway: Option<ProcessId>,
    /// Whether a gateway has ended and another follows.
    follows: bool,
    /// Gateways that have ended and whose messages not all processes have read.
    unread: Vec<ProcessId>,
    /// Actors of this host that other hosts ask for, in processes that have not read all messages of such a
    /// gateway.
    wanted: HashSet<ActorId>,
    /// The actors that roam and whose home is this host, and where they live.
    roaming: RoamingActors,
    names: NamesOfHosts,
    reaching: Reaching,
    /// Actors that wait for a place, with the capacities of their mailboxes. They are a part of those that
    /// are being reached.
    placeless: VecDeque<(ActorId, u32)>,
    /// Names that are being looked up: the process that asked, its ticket, and the name.
    lookups: HashMap<u64, (ProcessId, u64, String)>,
    last_lookup: u64,
    /// Whether this host's starter takes messages, and whether another host has asked for it before.
    serves: bool,
    starter_wanted: bool,
}

/// The actors of other hosts, with the broker's tables, for one call.
pub(crate) struct HostActors<'a> {
    other_hosts: &'a mut OtherHosts,
    tables: Tables<'a>,
}

fn out_of_reach(why: impl Into<String>) -> EndReason {
    EndReason::OutOfReach(why.into())
}

fn actor_is(to: ProcessId, actor: ActorId, at: Whereabouts) -> Delivery {
    Delivery::plain(to, FromNode::Actor { actor, at })
}

fn watching(to: ProcessId, ticket: u64, down: Option<Lifecycle>) -> Delivery {
    Delivery::plain(to, FromNode::Watching { ticket, down })
}

impl OtherHosts {
    /// Returns those of a node's broker.
    pub(crate) fn of(broker: &Broker) -> &Self {
        let neighbours: &dyn Any = &*broker.neighbours;
        neighbours.downcast_ref::<Self>().expect(ARE_OTHER_HOSTS)
    }

    pub(crate) fn gateway(&self) -> Option<ProcessId> {
        self.gateway
    }

    /// Whether an actor lives on another host that may be in reach.
    pub(crate) fn have(&self, roster: &Roster, actor: ActorId) -> bool {
        let has_others = self.gateway.is_some() || self.are_known;
        has_others && (actor.host() != roster.host || actor.roams()) && !self.is_guest(roster, actor)
    }

    /// Returns how many actors are in workers of this host other than its gateway, or between two lives
    /// there.
    pub(crate) fn load(&self, roster: &Roster) -> usize {
        let in_worker = |process| process != ProcessId::NODE && Some(process) != self.gateway;
        roster.all().filter(|(_, entry)| in_worker(entry.location.process)).count()
    }

    fn tell(&self, message: ToGateway, out: &mut Vec<Delivery>) -> bool {
        let told = self.gateway.map(|to| Delivery::plain(to, message.sealed()));
        out.extend(told);
        self.gateway.is_some()
    }

    /// Counts everything that waits.
    #[cfg(feature = "testing")]
    pub(crate) fn kept(&self) -> usize {
        self.reaching.len() + self.placeless.len() + self.lookups.len()
    }
}

impl NeighbourActors for OtherHosts {
    fn handle_for_neighbours(
        &mut self,
        tables: Tables<'_>,
        from: ProcessId,
        message: &ToNode,
        out: &mut Vec<Delivery>,
    ) -> Option<Result<(), Complaint>> {
        let mut actors = HostActors { other_hosts: self, tables };
        match message {
            ToNode::WantActor { actor } if actors.is_on_other_host(*actor) => {
                actors.want_on_other_host(from, *actor, out)
            }
            ToNode::Watch { ticket, actor } if actors.is_on_other_host(*actor) => {
                actors.watch_on_other_host(from, *ticket, *actor, out);
            }
            _ => return None,
        }
        Some(Ok(()))
    }

    fn is_neighbours(&self, roster: &Roster, actor: ActorId) -> bool {
        self.have(roster, actor)
    }

    fn host_of_name(&self, name: &str) -> Option<u16> {
        self.names.holder(name)
    }

    fn find_at_neighbours(
        &mut self,
        from: ProcessId,
        ticket: u64,
        name: &str,
        out: &mut Vec<Delivery>,
    ) -> bool {
        // The gateway looks up names for other hosts, and their own nodes ask everybody.
        if self.gateway == Some(from) || self.lookups.len() >= MAX_LOOKUPS {
            return false;
        }
        let lookup = self.last_lookup + 1;
        let name = name.to_owned();
        let asked = self.tell(ToGateway::Find { ticket: lookup, name: name.clone() }, out) || self.follows;
        if asked {
            self.last_lookup = lookup;
            self.lookups.insert(lookup, (from, ticket, name));
        }
        asked
    }

    /// Gives the names of actors that have ended back to the head.
    fn before_deliveries(&mut self, tables: Tables<'_>, out: &mut Vec<Delivery>) {
        for name in tables.registry.take_freed() {
            self.tell(ToGateway::Release { name }, out);
        }
    }

    /// If the process was the gateway, all waits end.
    fn drop_waits(&mut self, tables: Tables<'_>, process: ProcessId, out: &mut Vec<Delivery>) {
        self.reaching.leaves(process);
        self.lookups.retain(|_, (asker, ..)| *asker != process);
        if self.gateway != Some(process) {
            return;
        }
        self.gateway = None;
        HostActors { other_hosts: self, tables }.no_gateway(out);
    }

    fn has_drained(&mut self, tables: Tables<'_>, out: &mut Vec<Delivery>) {
        HostActors { other_hosts: self, tables }.say_wanted(out);
    }

    #[cfg(feature = "testing")]
    fn kept_for_neighbours(&self) -> usize {
        self.kept()
    }
}

impl<'a> HostActors<'a> {
    /// Lends those of a node's broker, with its tables.
    pub(crate) fn of(broker: &'a mut Broker) -> Self {
        let (tables, neighbours) = broker.split();
        let neighbours: &mut dyn Any = neighbours;
        let other_hosts = neighbours.downcast_mut::<OtherHosts>().expect(ARE_OTHER_HOSTS);
        HostActors { other_hosts, tables }
    }

    /// Notes the first gateway: from now on there may be other hosts.
    pub(crate) fn begin(&mut self, gateway: ProcessId) {
        (self.other_hosts.gateway, self.other_hosts.are_known) = (Some(gateway), true);
    }

    /// Whether an actor lives on another host that may be in reach.
    fn is_on_other_host(&self, actor: ActorId) -> bool {
        self.other_hosts.have(self.tables.roster, actor)
    }

    fn is_guest(&self, actor: ActorId) -> bool {
        self.other_hosts.is_guest(self.tables.roster, actor)
    }

    /// Notes that a process waits for an actor of another host, and has the gateway reach it. The process
    /// wants to send to it, or, with a ticket, to watch it.
    fn reach(
        &mut self,
        from: ProcessId,
        actor: ActorId,
        watches: Option<u64>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), EndReason> {
        // Between two gateways the process waits for the next one.
        let has_way = self.other_hosts.gateway.is_some() || self.other_hosts.follows;
        if !has_way && !self.other_hosts.reaching.has(actor) {
            return Err(out_of_reach(
                "the gateway of this host has ended, and with it the way to all others",
            ));
        }
        let waits = self.other_hosts.reaching.wait(from, actor, watches);
        waits.map_err(|TooMany| {
            out_of_reach(format!(
                "{from} waits for {MAX_WANTED} actors of other hosts, as many as one process may; send to {actor} when some \
                 have answered"
            ))
        })?;
        self.reach_next(actor.host(), out);
        Ok(())
    }

    /// Asks the gateway for the next actors of a host.
    fn reach_next(&mut self, home: u16, out: &mut Vec<Delivery>) {
        while let Some(actor) = self.other_hosts.reaching.next(home) {
            // An actor of this host that lives nowhere now is reached when its next life begins.
            if self.other_hosts.roaming.is_away(actor) {
                self.other_hosts.reaching.is_away(actor);
            } else if self.other_hosts.reaching.is_asked(actor) {
                self.other_hosts.tell(ToGateway::Reach { actors: vec![actor] }, out);
            }
        }
    }

    /// Returns where an actor of another host is, unless it has to be reached first.
    fn known_on_other_host(&self, actor: ActorId) -> Option<Whereabouts> {
        if actor.host() == self.tables.roster.host && !self.other_hosts.roaming.has(actor) {
            return Some(self.tables.roster.whereabouts(actor)); // it has ended
        }
        match (self.tables.roster.actor(actor), self.tables.roster.whereabouts(actor)) {
            (Some(entry), at) => entry.started.then_some(at),
            (None, at @ Whereabouts::GaveUp(_)) => Some(at),
            (None, _) => None,
        }
    }

    /// Handles the question of `from` for an actor of another host, to send to it.
    fn want_on_other_host(&mut self, from: ProcessId, actor: ActorId, out: &mut Vec<Delivery>) {
        if let Some(device) = self.tables.roster.gpu_of(from) {
            // The gateway must know the device before the process can ask anything.
            self.other_hosts.tell(ToGateway::Uses { process: from, device }, out);
        }
        let at = match self.known_on_other_host(actor) {
            Some(at) => at,
            None => match self.reach(from, actor, None, out) {
                Ok(()) => return,
                Err(why) => Whereabouts::GaveUp(why),
            },
        };
        out.push(actor_is(from, actor, at));
    }

    /// Handles the request of `from` to watch an actor of another host.
    fn watch_on_other_host(&mut self, from: ProcessId, ticket: u64, actor: ActorId, out: &mut Vec<Delivery>) {
        let down = match self.known_on_other_host(actor) {
            _ if self.other_hosts.roaming.has(actor) => self.tables.watches.watch(from, actor, true),
            Some(Whereabouts::Nowhere) => self.tables.watches.watch(from, actor, false),
            Some(Whereabouts::GaveUp(reason)) => Some(Lifecycle::GaveUp { actor, reason }),
            Some(_) => self.tables.watches.watch(from, actor, true),
            None => match self.reach(from, actor, Some(ticket), out) {
                Ok(()) => return,
                Err(reason) => Some(Lifecycle::GaveUp { actor, reason }),
            },
        };
        out.push(watching(from, ticket, down));
    }

    /// Handles a message of the gateway. The supervisor handles the rest of its messages.
    pub(crate) fn gateway_says(
        &mut self,
        from: ProcessId,
        said: FromGateway,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Complaint> {
        // WIRE-1: any worker could send it.
        if self.other_hosts.gateway != Some(from) {
            // The supervisor already knows of a gateway that cannot begin.
            let cannot_begin = matches!(said, FromGateway::Began { result: Err(_) });
            return if cannot_begin { Ok(()) } else { Err(Complaint::NotTheGateway) };
        }
        match said {
            // The actor lives here by now, so the message is about its last life, on another host.
            FromGateway::Reached { actor, .. }
            | FromGateway::Serving { actor }
            | FromGateway::Rests { actor }
            | FromGateway::OutOfReach { actor, .. }
                if self.is_guest(actor) => {}
            FromGateway::Reached { actor, capacity } => self.reached(from, actor, capacity, out),
            FromGateway::Serving { actor } => self.serving(actor, out),
            FromGateway::Rests { actor } => self.rests(from, actor, out),
            FromGateway::OutOfReach { actor, why } => {
                let why = why.map(|why| why.with_text(|text| shown(text, MAX_FAILURE_TEXT)));
                self.lost_on_other_host(actor, why, out);
            }
            FromGateway::Found { ticket, found } => {
                if let Some((to, ticket, _)) = self.other_hosts.lookups.remove(&ticket) {
                    // Only its own host knows which messages it handles.
                    let found = found.map(|(actor, location)| Named { actor, location, takes: None });
                    let message = FromNode::Found { ticket, found };
                    out.push(Delivery::plain(to, message));
                }
            }
            // Another host may ask before this host's own program has made the starter; it waits until there
            // is one.
            FromGateway::WantLocal { actor } if self.is_starter(actor) && !self.other_hosts.serves => {
                self.other_hosts.starter_wanted = true;
            }
            FromGateway::WantLocal { actor } if self.other_hosts.roaming.has(actor) => {
                if let Some(host) = self.other_hosts.roaming.host_of(actor) {
                    self.other_hosts.tell(ToGateway::LivesOn { actor, host }, out);
                }
            }
            FromGateway::WantLocal { actor } if self.has_unread(actor) => {
                // MBX-2: the gateway asks for a bounded number of actors for each host at a time.
                self.other_hosts.wanted.insert(actor);
            }
            FromGateway::WantGuests { host, session, actors } => self.say_guests(host, session, actors, out),
            FromGateway::WantLocal { actor } => self.say_where(actor, out),
            FromGateway::Lifecycle(event) => {
                let actor = event.actor();
                let is_known = self.tables.roster.actor(actor).is_some()
                    || self.tables.watches.is_watched(actor)
                    || self.other_hosts.roaming.has(actor);
                if is_known && self.is_on_other_host(actor) && !event.is_final() {
                    self.tables.tell(&event, out);
                }
            }
            FromGateway::Began { .. }
            | FromGateway::Alive
            | FromGateway::Renewed { .. }
            | FromGateway::Names { .. }
            | FromGateway::Members(_)
            | FromGateway::Drain { .. }
            | FromGateway::Drained { .. }
            | FromGateway::Log { .. }
            | FromGateway::Clock { .. }
            | FromGateway::Claim { .. }
            | FromGateway::Release { .. }
            | FromGateway::Claimed { .. }
            | FromGateway::LifeOver { .. }
            | FromGateway::HostGone { .. }
            | FromGateway::NodeGone { .. } => {}
        }
        Ok(())
    }

    /// Tells the gateway where an actor of this host is.
    fn say_where(&mut self, actor: ActorId, out: &mut Vec<Delivery>) {
        let at = match actor.host() == self.tables.roster.host || self.is_guest(actor) {
            true => self.tables.roster.whereabouts(actor),
            false => Whereabouts::Nowhere,
        };
        let device = self.tables.roster.device_of(actor);
        self.other_hosts.tell(ToGateway::Local { actor, at, device }, out);
    }

    fn is_starter(&self, actor: ActorId) -> bool {
        actor == starter_of(self.tables.roster.host)
    }

    /// Notes that this host's starter takes messages.
    pub(crate) fn serve_hosts(&mut self, out: &mut Vec<Delivery>) {
        self.other_hosts.serves = true;
        if std::mem::take(&mut self.other_hosts.starter_wanted) {
            let actor = starter_of(self.tables.roster.host);
            let at = self.tables.roster.whereabouts(actor);
            self.other_hosts.tell(ToGateway::Local { actor, at, device: None }, out);
        }
    }

    /// Gives an actor a place in the gateway, because its host takes messages for it.
    fn reached(&mut self, gateway: ProcessId, actor: ActorId, capacity: u32, out: &mut Vec<Delivery>) {
        let Some(reaching) = self.other_hosts.reaching.get_mut(actor).filter(|reaching| !reaching.placed)
        else {
            return;
        };
        if !(1..=MAX_MAILBOX).contains(&capacity) {
            let why = out_of_reach(format!("its host offers a mailbox for {capacity} messages"));
            return self.lost_on_other_host(actor, Some(why), out);
        }
        reaching.placed = true;
        self.other_hosts.placeless.push_back((actor, capacity));
        let has_place = self.place_next(gateway, out);
        if !has_place {
            self.other_hosts.tell(ToGateway::MakeRoom, out);
        }
    }

    /// Gives places to the actors that wait for one. Returns whether all have one.
    fn place_next(&mut self, gateway: ProcessId, out: &mut Vec<Delivery>) -> bool {
        while let Some((actor, capacity)) = self.other_hosts.placeless.front().copied() {
            match self.tables.roster.insert(actor, gateway, capacity, false) {
                Ok(location) => {
                    self.other_hosts.placeless.pop_front();
                    self.other_hosts.tell(ToGateway::Serve { actor, location }, out);
                }
                Err(LocationError::Full(_)) => return false,
                Err(error) => {
                    // This also takes it out of the queue.
                    let why = format!("it cannot have a mailbox on this host: {error}");
                    self.lost_on_other_host(actor, Some(out_of_reach(why)), out);
                }
            }
        }
        true
    }

    /// Takes back the place of an actor of another host that rests.
    fn rests(&mut self, gateway: ProcessId, actor: ActorId, out: &mut Vec<Delivery>) {
        let is_placed = self.tables.roster.actor(actor).is_some_and(|entry| entry.started);
        if !is_placed || !self.is_on_other_host(actor) {
            return; // it has ended meanwhile
        }
        self.tables.roster.remove(actor);
        self.unplaced(actor, out);
        let told = self.tables.watches.is_watched(actor) || self.tables.registry.has(actor);
        if !told && !self.other_hosts.roaming.has(actor) {
            self.tables.watches.forget_down(actor);
        }
        self.other_hosts.tell(ToGateway::Rested { actor, told }, out);
        self.place_next(gateway, out);
    }

    /// Notes that an actor's mailbox in the gateway takes messages, and tells the processes that wait.
    fn serving(&mut self, actor: ActorId, out: &mut Vec<Delivery>) {
        let Some(location) = self.tables.roster.actor(actor).map(|entry| entry.location) else { return };
        let Some(reaching) = self.other_hosts.reaching.remove(actor) else { return };
        self.tables.roster.started(actor);
        for to in reaching.senders {
            out.push(actor_is(to, actor, Whereabouts::At(location)));
        }
        for (to, ticket) in reaching.watchers {
            let down = self.tables.watches.watch(to, actor, true);
            out.push(watching(to, ticket, down));
        }
        self.reach_next(actor.host(), out);
    }

    /// Handles the loss of an actor of another host: it has ended, or its host is lost.
    pub(in crate::node) fn lost_on_other_host(
        &mut self,
        actor: ActorId,
        why: Option<EndReason>,
        out: &mut Vec<Delivery>,
    ) {
        let is_own = self.other_hosts.roaming.forget(actor);
        let reaching = self.other_hosts.reaching.remove(actor);
        self.other_hosts.placeless.retain(|(waiting, _)| *waiting != actor);
        let was_here = self.tables.roster.remove(actor).is_some();
        self.tables.registry.forget(|named| named == actor);
        let event = match why {
            Some(EndReason::Normal) => {
                Lifecycle::Down { actor, reason: EndReason::Normal, will_restart: false }
            }
            Some(reason) => Lifecycle::GaveUp { actor, reason },
            None => Lifecycle::Down { actor, reason: EndReason::Forgotten, will_restart: false },
        };
        let at = match &event {
            Lifecycle::GaveUp { reason, .. } => {
                // Remembered for processes that ask later.
                self.tables.roster.give_up(actor, reason.clone());
                Whereabouts::GaveUp(reason.clone())
            }
            _ => Whereabouts::Nowhere,
        };
        if was_here {
            self.tables.announce(actor, &at, out);
        }
        if was_here || is_own || self.tables.watches.is_watched(actor) {
            self.tables.tell(&event, out);
        }
        if was_here || is_own {
            self.other_hosts.tell(ToGateway::Withdraw { actor }, out);
            if let Some(gateway) = self.other_hosts.gateway {
                self.place_next(gateway, out);
            }
        }
        let Some(reaching) = reaching else { return };
        out.extend(reaching.senders.into_iter().map(|to| actor_is(to, actor, at.clone())));
        let watchers = reaching.watchers.into_iter();
        out.extend(watchers.map(|(to, ticket)| watching(to, ticket, Some(event.clone()))));
        self.reach_next(actor.host(), out);
    }

    /// Fails everything that needs the gateway: there is none, and none follows.
    pub(crate) fn no_gateway(&mut self, out: &mut Vec<Delivery>) {
        self.other_hosts.follows = false;
        self.other_hosts.wanted.clear();
        let why = out_of_reach("the gateway of this host has ended, and with it the way to all others");
        let waited_for = self.other_hosts.reaching.all().chain(self.other_hosts.roaming.all());
        // The roster handles the actors in the gateway; the actors that rest must be found by their watches.
        let resting = self.tables.watches.watched().filter(|actor| self.is_on_other_host(*actor));
        let lost: HashSet<_> = waited_for.chain(resting).collect();
        lost.into_iter().for_each(|actor| self.lost_on_other_host(actor, Some(why.clone()), out));
        for (_, (to, ticket, _)) in self.other_hosts.lookups.drain() {
            let message = FromNode::Found { ticket, found: None };
            out.push(Delivery::plain(to, message));
        }
    }
}

#[cfg(test)]
mod tests;
