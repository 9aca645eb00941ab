//! Actors of other hosts, as this host's node knows them: each is in the roster while its mailbox is, at a place in the gateway.
//!
//! Who wants to send to one is told that place, as of an actor that has moved. Before there is one, the node asks its gateway to
//! reach the actor, and whoever asks meanwhile waits for the same answer. Names that nobody has here are looked up on the other
//! hosts.
//!
//! The gateway has places for so many. When they are used up, the one that nobody has sent to for longest *rests*: it gives its place
//! up, and is not in the roster any more; who has its address asks again. Where all are in use, whoever wants another waits (MBX-2).
//! Whoever watches one that rests is told on what happens to it.
//!
//! Actors that roam are reached in the same way, from their homes too, unless they live here. Where those of this host live, it has noted
//! (`foreign/homes.rs`).
//!
//! Bounded (MBX-2): so many actors that are being reached, names that are looked up, and who waits for them.
//!
//! **On the gateway's death** its actors go as those of any process do; whoever waits here is told.

mod homes;

use std::collections::{HashMap, HashSet, VecDeque};

use crate::ids::{ActorId, ProcessId};
use crate::limits::MAX_MAILBOX;
use crate::node::broker::{Broker, Complaint, Delivery};
use crate::node::limits::{MAX_FAILURE_TEXT, MAX_LOOKUPS, MAX_REACHING, MAX_WAITING_WATCHES};
use crate::node::roster::LocationError;
use crate::observe::text::shown;
use crate::transport::control_channel::{FromNode, Location, ToNode};
use crate::transport::hosts::{FromGateway, ToGateway, starter_of};
use crate::transport::lifecycle::{EndReason, Lifecycle, Whereabouts};

use self::homes::Homes;

/// See the module.
#[derive(Default)]
pub(crate) struct Foreign {
    gateway: Option<ProcessId>,
    /// Where the actors live that roam, and whose home is this host.
    homes: Homes,
    reaching: HashMap<ActorId, Reaching>,
    /// Those of them that wait for a place, with the capacities of their mailboxes. No more than are being reached.
    placeless: VecDeque<(ActorId, u32)>,
    /// Of names: who asked, and by which ticket.
    lookups: HashMap<u64, (ProcessId, u64)>,
    last_lookup: u64,
    /// Whether this host's starter takes messages, and whether another host has asked for it before.
    serves: bool,
    starter_wanted: bool,
}

/// Who waits until an actor is reached, or cannot be.
#[derive(Default)]
struct Reaching {
    senders: HashSet<ProcessId>,
    watchers: Vec<(ProcessId, u64)>,
    /// Whether it has a place, which does not take messages yet, or waits for one.
    placed: bool,
}

fn out_of_reach(why: impl Into<String>) -> EndReason {
    EndReason::OutOfReach(why.into())
}

fn actor_is(to: ProcessId, actor: ActorId, at: Whereabouts) -> Delivery {
    Delivery { to, message: FromNode::Actor { actor, at }, descriptors: Vec::new() }
}

fn watching(to: ProcessId, ticket: u64, down: Option<Lifecycle>) -> Delivery {
    Delivery { to, message: FromNode::Watching { ticket, down }, descriptors: Vec::new() }
}

impl Foreign {
    pub(crate) fn gateway(&self) -> Option<ProcessId> {
        self.gateway
    }

    pub(crate) fn set_gateway(&mut self, gateway: ProcessId) {
        self.gateway = Some(gateway);
    }

    fn tell(&self, message: ToGateway, out: &mut Vec<Delivery>) -> bool {
        let told = self.gateway.map(|to| Delivery {
            to,
            message: FromNode::Hosts(message),
            descriptors: Vec::new(),
        });
        out.extend(told);
        self.gateway.is_some()
    }

    /// What waits.
    #[cfg(feature = "testing")]
    pub(crate) fn kept(&self) -> usize {
        self.reaching.len() + self.placeless.len() + self.lookups.len()
    }
}

impl Broker {
    /// Whether an actor lives on another host, and there may be a way to it.
    pub(super) fn is_foreign(&self, actor: ActorId) -> bool {
        let has_others = self.foreign.gateway.is_some() || self.roster.host_is_known;
        has_others && (actor.host() != self.roster.host || actor.roams()) && !self.is_guest(actor)
    }

    /// Notes that somebody waits for an actor of another host, and has it reached.
    fn reach(&mut self, actor: ActorId, out: &mut Vec<Delivery>) -> Result<&mut Reaching, EndReason> {
        if !self.foreign.reaching.contains_key(&actor) {
            if self.foreign.reaching.len() >= MAX_REACHING {
                let why = format!(
                    "{MAX_REACHING} actors of other hosts are being reached; {actor} is one too many"
                );
                return Err(out_of_reach(why));
            }
            // One of this host that lives nowhere now is reached when it does.
            let is_away = self.foreign.homes.is_away(actor);
            if self.foreign.gateway.is_none()
                || !is_away && !self.foreign.tell(ToGateway::Reach { actor }, out)
            {
                return Err(out_of_reach(
                    "the gateway of this host has ended, and with it the way to all others",
                ));
            }
        }
        Ok(self.foreign.reaching.entry(actor).or_default())
    }

    /// What is known of an actor of another host, unless it has to be reached first.
    fn known_foreign(&self, actor: ActorId) -> Option<Whereabouts> {
        if actor.host() == self.roster.host && !self.foreign.homes.has(actor) {
            return Some(self.roster.whereabouts(actor)); // it has ended
        }
        match (self.roster.actor(actor), self.roster.whereabouts(actor)) {
            (Some(entry), at) => entry.started.then_some(at),
            (None, at @ Whereabouts::GaveUp(_)) => Some(at),
            (None, _) => None,
        }
    }

    /// Takes a message that is about other hosts; `None` where it is not.
    pub(crate) fn handle_foreign(
        &mut self,
        from: ProcessId,
        message: &ToNode,
        out: &mut Vec<Delivery>,
    ) -> Option<Result<(), Complaint>> {
        match message {
            ToNode::WantActor { actor } if self.is_foreign(*actor) => self.want_foreign(from, *actor, out),
            ToNode::Watch { ticket, actor } if self.is_foreign(*actor) => {
                self.watch_foreign(from, *ticket, *actor, out);
            }
            ToNode::Hosts(said) => return Some(self.gateway_says(from, said.clone(), out)),
            _ => return None,
        }
        Some(Ok(()))
    }

    /// `from` wants to send to an actor of another host.
    fn want_foreign(&mut self, from: ProcessId, actor: ActorId, out: &mut Vec<Delivery>) {
        if let Some(device) = self.roster.gpu_of(from) {
            // Before it can ask anything.
            self.foreign.tell(ToGateway::Uses { process: from, device }, out);
        }
        let at = match self.known_foreign(actor) {
            Some(at) => at,
            None => match self.reach(actor, out) {
                Ok(reaching) => {
                    reaching.senders.insert(from);
                    return;
                }
                Err(why) => Whereabouts::GaveUp(why),
            },
        };
        out.push(actor_is(from, actor, at));
    }

    /// `from` wants to hear what happens to an actor of another host.
    fn watch_foreign(&mut self, from: ProcessId, ticket: u64, actor: ActorId, out: &mut Vec<Delivery>) {
        let down = match self.known_foreign(actor) {
            _ if self.foreign.homes.has(actor) => self.watches.watch(from, actor, true),
            Some(Whereabouts::Nowhere) => self.watches.watch(from, actor, false),
            Some(Whereabouts::GaveUp(reason)) => Some(Lifecycle::GaveUp { actor, reason }),
            Some(_) => self.watches.watch(from, actor, true),
            None => match self.reach(actor, out) {
                Ok(reaching) if reaching.watchers.len() < MAX_WAITING_WATCHES => {
                    reaching.watchers.push((from, ticket));
                    return;
                }
                Ok(_) => Some(Lifecycle::GaveUp { actor, reason: out_of_reach("too many wait to watch it") }),
                Err(reason) => Some(Lifecycle::GaveUp { actor, reason }),
            },
        };
        out.push(watching(from, ticket, down));
    }

    /// `from` looks up a name that nobody has here. Whether the other hosts are asked.
    pub(crate) fn find_elsewhere(
        &mut self,
        from: ProcessId,
        ticket: u64,
        name: &str,
        out: &mut Vec<Delivery>,
    ) -> bool {
        // The gateway looks up for others, whose own nodes ask everybody.
        if self.foreign.gateway == Some(from) || self.foreign.lookups.len() >= MAX_LOOKUPS {
            return false;
        }
        let lookup = self.foreign.last_lookup + 1;
        let asked = self.foreign.tell(ToGateway::Find { ticket: lookup, name: name.to_owned() }, out);
        if asked {
            self.foreign.last_lookup = lookup;
            self.foreign.lookups.insert(lookup, (from, ticket));
        }
        asked
    }

    /// The gateway says something. The rest of what it says is for the supervisor.
    fn gateway_says(
        &mut self,
        from: ProcessId,
        said: FromGateway,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Complaint> {
        // WIRE-1: any worker could say it.
        if self.foreign.gateway != Some(from) {
            return Err(Complaint::NotTheGateway);
        }
        match said {
            // What it says of one that is here by now is about its last life, on another host.
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
                self.lost_foreign(actor, why, out);
            }
            FromGateway::Found { ticket, found } => {
                if let Some((to, ticket)) = self.foreign.lookups.remove(&ticket) {
                    let message = FromNode::Found { ticket, found };
                    out.push(Delivery { to, message, descriptors: Vec::new() });
                }
            }
            // Another host may be quicker than this one's own program, and waits until there is one.
            FromGateway::WantLocal { actor } if self.is_starter(actor) && !self.foreign.serves => {
                self.foreign.starter_wanted = true;
            }
            FromGateway::WantLocal { actor } if self.foreign.homes.has(actor) => {
                if let Some(host) = self.foreign.homes.host_of(actor) {
                    self.foreign.tell(ToGateway::LivesOn { actor, host }, out);
                }
            }
            FromGateway::WantLocal { actor } => {
                let at = match actor.host() == self.roster.host || self.is_guest(actor) {
                    true => self.roster.whereabouts(actor),
                    false => Whereabouts::Nowhere,
                };
                let device = self.roster.device_of(actor);
                self.foreign.tell(ToGateway::Local { actor, at, device }, out);
            }
            FromGateway::Lifecycle(event) => {
                let actor = event.actor();
                let is_known = self.roster.actor(actor).is_some()
                    || self.watches.is_watched(actor)
                    || self.foreign.homes.has(actor);
                if is_known && self.is_foreign(actor) && !event.is_final() {
                    self.tell(&event, out);
                }
            }
            FromGateway::Began { .. }
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

    fn is_starter(&self, actor: ActorId) -> bool {
        actor == starter_of(self.roster.host)
    }

    /// This host's starter takes messages.
    pub(crate) fn serve_hosts(&mut self, out: &mut Vec<Delivery>) {
        self.foreign.serves = true;
        if std::mem::take(&mut self.foreign.starter_wanted) {
            let actor = starter_of(self.roster.host);
            let at = self.roster.whereabouts(actor);
            self.foreign.tell(ToGateway::Local { actor, at, device: None }, out);
        }
    }

    /// The actor's host takes messages for it: it gets a place in the gateway.
    fn reached(&mut self, gateway: ProcessId, actor: ActorId, capacity: u32, out: &mut Vec<Delivery>) {
        let Some(reaching) = self.foreign.reaching.get_mut(&actor).filter(|reaching| !reaching.placed) else {
            return;
        };
        if !(1..=MAX_MAILBOX).contains(&capacity) {
            let why = out_of_reach(format!("its host offers a mailbox for {capacity} messages"));
            return self.lost_foreign(actor, Some(why), out);
        }
        reaching.placed = true;
        self.foreign.placeless.push_back((actor, capacity));
        let has_place = self.place_next(gateway, out);
        if !has_place {
            self.foreign.tell(ToGateway::MakeRoom, out);
        }
    }

    /// Gives places to those that wait for one. Whether all have one.
    fn place_next(&mut self, gateway: ProcessId, out: &mut Vec<Delivery>) -> bool {
        while let Some((actor, capacity)) = self.foreign.placeless.front().copied() {
            match self.roster.place(actor, gateway, capacity) {
                Ok(location) => {
                    self.foreign.placeless.pop_front();
                    self.foreign.tell(ToGateway::Serve { actor, location }, out);
                }
                Err(LocationError::Full(_)) => return false,
                Err(error) => {
                    // It is out of the queue by this.
                    let why = format!("it cannot have a mailbox on this host: {error}");
                    self.lost_foreign(actor, Some(out_of_reach(why)), out);
                }
            }
        }
        true
    }

    /// An actor of another host gives its place in the gateway up.
    fn rests(&mut self, gateway: ProcessId, actor: ActorId, out: &mut Vec<Delivery>) {
        let is_placed = self.roster.actor(actor).is_some_and(|entry| entry.started);
        if !is_placed || !self.is_foreign(actor) {
            return; // it has ended meanwhile
        }
        self.roster.remove(actor);
        self.unplaced(actor, out);
        let told = self.watches.is_watched(actor) || self.registry.has(actor);
        if !told && !self.foreign.homes.has(actor) {
            self.watches.forget_down(actor);
        }
        self.foreign.tell(ToGateway::Rested { actor, told }, out);
        self.place_next(gateway, out);
    }

    /// Its mailbox here takes messages.
    fn serving(&mut self, actor: ActorId, out: &mut Vec<Delivery>) {
        let Some(location) = self.roster.actor(actor).map(|entry| entry.location) else { return };
        let Some(reaching) = self.foreign.reaching.remove(&actor) else { return };
        self.roster.started(actor);
        for to in reaching.senders {
            out.push(actor_is(to, actor, Whereabouts::At(location)));
        }
        for (to, ticket) in reaching.watchers {
            let down = self.watches.watch(to, actor, true);
            out.push(watching(to, ticket, down));
        }
    }

    /// An actor of another host cannot be reached (any more): it has ended, or its host is lost.
    pub(super) fn lost_foreign(&mut self, actor: ActorId, why: Option<EndReason>, out: &mut Vec<Delivery>) {
        let is_own = self.foreign.homes.forget(actor);
        let reaching = self.foreign.reaching.remove(&actor);
        self.foreign.placeless.retain(|(waiting, _)| *waiting != actor);
        let was_here = self.roster.remove(actor).is_some();
        self.registry.forget(|named| named == actor);
        let event = match why {
            Some(EndReason::Normal) => {
                Lifecycle::Down { actor, reason: EndReason::Normal, will_restart: false }
            }
            Some(reason) => Lifecycle::GaveUp { actor, reason },
            None => Lifecycle::Down { actor, reason: EndReason::Forgotten, will_restart: false },
        };
        let at = match &event {
            Lifecycle::GaveUp { reason, .. } => {
                // Remembered, for those who ask later.
                self.roster.give_up(actor, reason.clone());
                Whereabouts::GaveUp(reason.clone())
            }
            _ => Whereabouts::Nowhere,
        };
        if was_here {
            self.announce_as(actor, &at, out);
        }
        if was_here || is_own || self.watches.is_watched(actor) {
            self.tell(&event, out);
        }
        if was_here || is_own {
            self.foreign.tell(ToGateway::Withdraw { actor }, out);
            if let Some(gateway) = self.foreign.gateway {
                self.place_next(gateway, out);
            }
        }
        let Some(reaching) = reaching else { return };
        out.extend(reaching.senders.into_iter().map(|to| actor_is(to, actor, at.clone())));
        let watchers = reaching.watchers.into_iter();
        out.extend(watchers.map(|(to, ticket)| watching(to, ticket, Some(event.clone()))));
    }

    /// A process has ended: it waits for nothing, and if it was the gateway, nobody does.
    pub(crate) fn left_foreign(&mut self, process: ProcessId, out: &mut Vec<Delivery>) {
        for reaching in self.foreign.reaching.values_mut() {
            reaching.senders.remove(&process);
            reaching.watchers.retain(|(watcher, _)| *watcher != process);
        }
        self.foreign.lookups.retain(|_, (asker, _)| *asker != process);
        if self.foreign.gateway != Some(process) {
            return;
        }
        self.foreign.gateway = None;
        let why = out_of_reach("the gateway of this host has ended, and with it the way to all others");
        let waited_for = self.foreign.reaching.keys().copied().chain(self.foreign.homes.all());
        // Those in the gateway are the roster's; of those that rest nobody else says it.
        let resting = self.watches.watched().filter(|actor| self.is_foreign(*actor));
        let lost: HashSet<_> = waited_for.chain(resting).collect();
        lost.into_iter().for_each(|actor| self.lost_foreign(actor, Some(why.clone()), out));
        for (_, (to, ticket)) in self.foreign.lookups.drain() {
            let message = FromNode::Found { ticket, found: None::<(ActorId, Location)> };
            out.push(Delivery { to, message, descriptors: Vec::new() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::DeviceId;
    use crate::limits::MAX_ACTORS;

    fn process(slot: u16) -> ProcessId {
        ProcessId::new(slot, 0).unwrap()
    }

    /// A broker on host 3, with a gateway and two workers.
    fn broker() -> Broker {
        let mut broker = Broker::default();
        (0..4).for_each(|slot| drop(broker.joined(process(slot))));
        broker.roster.host = 3;
        broker.roster.host_is_known = true;
        broker.foreign.set_gateway(process(1));
        broker
    }

    fn handle(
        broker: &mut Broker,
        from: u16,
        message: ToNode,
    ) -> Result<Vec<(ProcessId, String)>, Complaint> {
        let mut out = Vec::new();
        broker.handle(process(from), message, Vec::new(), &mut out)?;
        Ok(out.into_iter().map(|said| (said.to, format!("{:?}", said.message))).collect())
    }

    fn says(broker: &mut Broker, said: FromGateway) -> Vec<(ProcessId, String)> {
        handle(broker, 1, ToNode::Hosts(said)).unwrap()
    }

    const FAR: ActorId = ActorId((5 << 48) | 7);

    #[test]
    fn who_wants_an_actor_of_another_host_waits_until_its_mailbox_takes_messages() {
        let mut broker = broker();
        let asked = handle(&mut broker, 2, ToNode::WantActor { actor: FAR }).unwrap();
        assert!(asked[0].0 == process(1) && asked[0].1.contains("Reach"), "{asked:?}");
        // The second waits for the same answer, and so does who watches.
        assert_eq!(handle(&mut broker, 3, ToNode::WantActor { actor: FAR }).unwrap(), []);
        assert_eq!(handle(&mut broker, 3, ToNode::Watch { ticket: 9, actor: FAR }).unwrap(), []);

        let placed = says(&mut broker, FromGateway::Reached { actor: FAR, capacity: 8 });
        assert!(placed.len() == 1 && placed[0].1.contains("Serve"), "{placed:?}");
        assert_eq!(says(&mut broker, FromGateway::Reached { actor: FAR, capacity: 8 }), [], "a second time");
        let told = says(&mut broker, FromGateway::Serving { actor: FAR });
        let at = |to: u16| told.iter().any(|(who, what)| *who == process(to) && what.contains("At(Location"));
        assert!(
            at(2) && at(3) && told.iter().any(|(_, what)| what.contains("ticket: 9, down: None")),
            "{told:?}"
        );
        assert_eq!(broker.foreign.reaching.len(), 0);

        // Its host is lost: all are told, who watches too, and then the mailbox closes.
        let why = Some(EndReason::OutOfReach("host 5 is lost".into()));
        let told = says(&mut broker, FromGateway::OutOfReach { actor: FAR, why });
        let found = |what: &str| told.iter().position(|(_, said)| said.contains(what)).expect(what);
        assert!(found("GaveUp(OutOfReach") < found("Lifecycle(GaveUp"), "{told:?}");
        assert!(found("Lifecycle(GaveUp") < found("Withdraw"), "{told:?}");
        let again = handle(&mut broker, 2, ToNode::WantActor { actor: FAR }).unwrap();
        assert!(again[0].1.contains("host 5 is lost"), "it is remembered: {again:?}");
    }

    // MBX-2.
    #[test]
    fn one_that_nobody_uses_gives_its_place_to_another_and_is_heard_of_where_it_is_watched() {
        let mut broker = broker();
        let far = |number: usize| ActorId((5 << 48) | number as u64);
        let reach = |broker: &mut Broker, actor| {
            let asked = handle(broker, 2, ToNode::WantActor { actor }).unwrap();
            assert!(asked.len() == 1 && asked[0].1.contains("Reach"), "{asked:?}");
            says(broker, FromGateway::Reached { actor, capacity: 8 })
        };
        for number in 0..MAX_ACTORS {
            assert!(reach(&mut broker, far(number))[0].1.contains("Serve"));
            says(&mut broker, FromGateway::Serving { actor: far(number) });
        }
        handle(&mut broker, 3, ToNode::Watch { ticket: 1, actor: far(1) }).unwrap();
        for next in [MAX_ACTORS, MAX_ACTORS + 1] {
            let told = reach(&mut broker, far(next));
            assert!(told.len() == 1 && told[0].1.contains("MakeRoom"), "{told:?}");
        }
        for (rests, told) in [(0, false), (1, true)] {
            let said = says(&mut broker, FromGateway::Rests { actor: far(rests) });
            let at = |what: &str| said.iter().position(|(_, said)| said.contains(what)).expect(what);
            assert_eq!(said.iter().filter(|(_, what)| what.contains("Unplaced")).count(), 4);
            assert!(at("Unplaced") < at("Rested") && at("Rested") < at("Serve"), "{said:?}");
            assert!(said[at("Rested")].1.contains(&format!("told: {told}")), "{said:?}");
            says(&mut broker, FromGateway::Serving { actor: far(MAX_ACTORS + rests) });
        }
        assert_eq!(says(&mut broker, FromGateway::Rests { actor: far(0) }), [], "a second time");
        assert_eq!(broker.foreign.reaching.len() + broker.foreign.placeless.len(), 0);

        // What happens to one that rests is heard by who watches it, and nobody else.
        let down = |actor| Lifecycle::Down { actor, reason: EndReason::Exit(1), will_restart: true };
        assert_eq!(says(&mut broker, FromGateway::Lifecycle(down(far(0)))), []);
        assert_eq!(says(&mut broker, FromGateway::Lifecycle(down(far(1))))[0].0, process(3));
        let gone = |actor| FromGateway::OutOfReach { actor, why: Some(EndReason::Exit(2)) };
        let told = says(&mut broker, gone(far(1)));
        assert!(told.len() == 1 && told[0].0 == process(3) && told[0].1.contains("GaveUp"), "{told:?}");
        // One that has ended makes room, too.
        assert!(reach(&mut broker, far(700))[0].1.contains("MakeRoom"));
        let told = says(&mut broker, gone(far(2)));
        let last = told.iter().rev().take(2).map(|(_, said)| said.as_str()).collect::<Vec<_>>();
        assert!(last[0].contains("Serve") && last[1].contains("Withdraw"), "{told:?}");
        // Its address is asked for again.
        assert!(reach(&mut broker, far(0))[0].1.contains("MakeRoom"));
        assert_eq!((broker.foreign.reaching.len(), broker.foreign.placeless.len()), (2, 1));
    }

    // WIRE-1.
    #[test]
    fn nobody_else_speaks_as_the_gateway_and_its_own_actors_are_no_others() {
        let mut broker = broker();
        let said = ToNode::Hosts(FromGateway::OutOfReach { actor: FAR, why: None });
        assert!(matches!(handle(&mut broker, 2, said), Err(Complaint::NotTheGateway)));
        let own = ActorId((3 << 48) | 1);
        let answer = handle(&mut broker, 2, ToNode::WantActor { actor: own }).unwrap();
        assert!(answer[0].0 == process(2) && answer[0].1.contains("Nowhere"), "{answer:?}");
        handle(&mut broker, 2, ToNode::WantActor { actor: FAR }).unwrap();
        let told = says(&mut broker, FromGateway::Reached { actor: FAR, capacity: MAX_MAILBOX + 1 });
        assert!(told.iter().any(|(to, what)| *to == process(2) && what.contains("GaveUp")), "{told:?}");
        assert_eq!(handle(&mut broker, 1, ToNode::Lookup { ticket: 1, name: "x".into() }).unwrap().len(), 1);
    }

    #[test]
    fn who_asks_for_the_starter_before_there_is_one_waits() {
        let mut broker = broker();
        let (actor, _) = broker.roster.reserve(ProcessId::NODE, 8).unwrap();
        broker.roster.started(actor);
        assert_eq!(actor, starter_of(3));
        assert_eq!(says(&mut broker, FromGateway::WantLocal { actor }), []);
        let mut out = Vec::new();
        broker.serve_hosts(&mut out);
        let told: Vec<_> = out.iter().map(|said| format!("{:?}", said.message)).collect();
        assert!(told.len() == 1 && told[0].contains("Local") && told[0].contains("At("), "{told:?}");
        let at_once = says(&mut broker, FromGateway::WantLocal { actor });
        assert!(at_once.len() == 1 && at_once[0].1.contains("At("), "{at_once:?}");
        assert_eq!(broker.roster.load(broker.foreign.gateway()), 0, "it is in no worker");
        broker.roster.reserve(process(2), 8).unwrap();
        assert_eq!(broker.roster.load(broker.foreign.gateway()), 1);
    }

    #[test]
    fn the_gateway_is_told_where_tensors_belong() {
        let mut broker = broker();
        // The starter's.
        broker.roster.reserve(ProcessId::NODE, 8).unwrap();
        let gpus = [DeviceId([1; 16]), DeviceId([2; 16])];
        for (process_at, receive_on, works_on, belong) in [
            (2, None, gpus[0], Some(gpus[0])),
            (2, Some(gpus[1]), gpus[0], Some(gpus[1])),
            (3, Some(DeviceId::HOST), gpus[1], Some(DeviceId::HOST)),
            (3, None, DeviceId::HOST, None),
        ] {
            let (actor, _) = broker.roster.reserve(process(process_at), 8).unwrap();
            broker.roster.works_on(actor, receive_on, works_on);
            let told = says(&mut broker, FromGateway::WantLocal { actor });
            assert!(told[0].1.contains(&format!("device: {belong:?}")), "{told:?}");
        }
        // Of who may ask, so that it is there for the answers.
        let told = handle(&mut broker, 3, ToNode::WantActor { actor: FAR }).unwrap();
        assert!(told.iter().all(|(_, what)| !what.contains("Uses")), "it works on none: {told:?}");
        let told = handle(&mut broker, 2, ToNode::WantActor { actor: FAR }).unwrap();
        assert!(told[0].0 == process(1) && told[0].1.contains("Uses"), "{told:?}");
    }

    // MBX-2.
    #[test]
    fn what_waits_is_bounded_and_ends_with_the_gateway() {
        let mut broker = broker();
        for number in 0..MAX_REACHING as u64 {
            let actor = ActorId((5 << 48) | number);
            assert_eq!(handle(&mut broker, 2, ToNode::WantActor { actor }).unwrap().len(), 1);
        }
        let more = handle(&mut broker, 2, ToNode::WantActor { actor: ActorId(6 << 48) }).unwrap();
        assert!(more[0].1.contains("one too many"), "{more:?}");
        let lookup = ToNode::Lookup { ticket: 4, name: "far".into() };
        assert!(handle(&mut broker, 3, lookup).unwrap()[0].1.contains("Find"));

        let mut out = Vec::new();
        broker.left(process(1), &mut out);
        let told = |to: u16, what: &str| {
            let count =
                |said: &&Delivery| said.to == process(to) && format!("{:?}", said.message).contains(what);
            out.iter().filter(count).count()
        };
        assert_eq!(told(2, "the gateway of this host has ended"), MAX_REACHING);
        assert_eq!(told(3, "Found { ticket: 4, found: None }"), 1);
        assert!(broker.foreign.reaching.is_empty() && broker.foreign.lookups.is_empty());
        let after = handle(&mut broker, 2, ToNode::Watch { ticket: 1, actor: FAR }).unwrap();
        assert!(matches!(&after[..], [(_, said)] if said.contains("GaveUp")), "{after:?}");
    }
}
