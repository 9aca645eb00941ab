//! Where roaming actors live: actors whose home is this host, and actors that this host has taken in.
//!
//! Used by the supervisor, which starts them and their next lives (`node/supervisor/hosts/roaming.rs`),
//! and by the broker, which tells processes where they are.
//!
//! **Invariants.** An actor that roams has its id from its home, and lives on one host at most (the
//! supervisor upholds HOST-10). On the host where it lives the roster has it like any actor of a worker. On
//! all others, its home included, the roster has it like an actor of another host, with a place in the
//! gateway. So a host that takes an actor in first gives up its place for the last life.

use std::collections::HashMap;

use super::{HostActors, OtherHosts, actor_is, watching};
use crate::ids::{ActorId, ProcessId};
use crate::node::broker::Delivery;
use crate::node::roster::{LocationError, Roster};
use crate::transport::control_channel::{FromNode, Location};
use crate::transport::gateway_messages::ToGateway;
use crate::transport::lifecycle::Whereabouts;

/// The actors of this host that roam and live elsewhere, with their hosts; `None` between two lives. The
/// supervisor bounds their number (MBX-2).
#[derive(Default)]
pub(super) struct RoamingActors(HashMap<ActorId, Option<u16>>);

impl RoamingActors {
    pub(super) fn has(&self, actor: ActorId) -> bool {
        self.0.contains_key(&actor)
    }

    pub(super) fn host_of(&self, actor: ActorId) -> Option<u16> {
        self.0.get(&actor).copied().flatten()
    }

    /// Whether its home is this host, and it lives nowhere now.
    pub(super) fn is_away(&self, actor: ActorId) -> bool {
        self.0.get(&actor) == Some(&None)
    }

    pub(super) fn forget(&mut self, actor: ActorId) -> bool {
        self.0.remove(&actor).is_some()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = ActorId> {
        self.0.keys().copied()
    }
}

impl OtherHosts {
    /// Whether an actor that roams lives, or is about to, in a worker of this host.
    pub(crate) fn is_guest(&self, roster: &Roster, actor: ActorId) -> bool {
        let process = roster.actor(actor).map(|entry| entry.location.process);
        actor.roams() && process.is_some_and(|process| self.gateway != Some(process))
    }

    /// Whether this host is the home of an actor that roams and lives elsewhere, or nowhere now.
    pub(crate) fn is_home_of(&self, actor: ActorId) -> bool {
        self.roaming.has(actor)
    }

    /// Returns how many roaming actors of this home live elsewhere, or nowhere now.
    pub(crate) fn roaming_count(&self) -> usize {
        self.roaming.0.len()
    }
}

impl HostActors<'_> {
    /// Makes an id for an actor that will roam and lives nowhere yet.
    pub(crate) fn roaming_actor(&mut self) -> ActorId {
        let actor = self.tables.roster.roaming();
        self.other_hosts.roaming.0.insert(actor, None);
        actor
    }

    /// Notes that an actor of this home lives on `host` from now on, or nowhere.
    pub(crate) fn lives_on(&mut self, actor: ActorId, host: Option<u16>, out: &mut Vec<Delivery>) {
        let Some(home) = self.other_hosts.roaming.0.get_mut(&actor) else { return };
        *home = host;
        let Some(host) = host else {
            // First take its place away: a process that hears of its end and sends then waits for the next
            // life (DEATH-2).
            self.leave_gateway(actor, out);
            self.other_hosts.reaching.is_away(actor);
            return self.reach_next(actor.host(), out);
        };
        self.other_hosts.tell(ToGateway::LivesOn { actor, host }, out);
        // If it has a place already, the gateway asks by itself.
        if self.other_hosts.reaching.is_asked(actor) {
            self.other_hosts.tell(ToGateway::Reach { actors: vec![actor] }, out);
        }
        self.other_hosts.reaching.is_back(actor);
        self.reach_next(actor.host(), out);
    }

    /// Makes a place in a worker of this host for an actor that roams.
    pub(crate) fn take_in(
        &mut self,
        actor: ActorId,
        process: ProcessId,
        capacity: u32,
        out: &mut Vec<Delivery>,
    ) -> Result<Location, LocationError> {
        self.leave_gateway(actor, out);
        self.tables.roster.insert(actor, process, capacity, true)
    }

    /// Takes an actor's place in the gateway away: senders ask again.
    fn leave_gateway(&mut self, actor: ActorId, out: &mut Vec<Delivery>) {
        if let Some(reaching) = self.other_hosts.reaching.get_mut(actor) {
            reaching.placed = false; // it gets another place
        }
        self.other_hosts.placeless.retain(|(waiting, _)| *waiting != actor);
        if self.tables.roster.remove(actor).is_some() {
            self.unplaced(actor, out);
            self.other_hosts.tell(ToGateway::Withdraw { actor }, out);
            if let Some(gateway) = self.other_hosts.gateway {
                self.place_next(gateway, out);
            }
        }
    }

    /// Tells all processes to ask where an actor is before they send to it.
    pub(super) fn unplaced(&self, actor: ActorId, out: &mut Vec<Delivery>) {
        out.extend(Delivery::to_all(self.tables.roster.living(), FromNode::Unplaced { actor }));
    }

    /// Announces a roaming actor that takes messages in a worker of this host to all processes that asked for
    /// it.
    pub(crate) fn guest_started(&mut self, actor: ActorId, out: &mut Vec<Delivery>) {
        self.tables.roster.started(actor);
        let at = self.tables.roster.whereabouts(actor);
        self.tables.announce(actor, &at, out);
        // Processes that asked for it before it was here.
        let reaching = self.other_hosts.reaching.remove(actor).unwrap_or_default();
        self.other_hosts.placeless.retain(|(waiting, _)| *waiting != actor);
        out.extend(reaching.senders.into_iter().map(|to| actor_is(to, actor, at.clone())));
        for (to, ticket) in reaching.watchers {
            let down = self.tables.watches.watch(to, actor, true);
            out.push(watching(to, ticket, down));
        }
        self.reach_next(actor.host(), out);
        self.other_hosts.tell(ToGateway::Withdraw { actor }, out);
        if self.other_hosts.roaming.forget(actor) {
            // It lives at its home, and other hosts may have asked for it.
            let device = self.tables.roster.device_of(actor);
            self.other_hosts.tell(ToGateway::Local { actor, at, device }, out);
        }
    }

    /// Tells a new gateway where the roaming actors of this home live. It hears later of those that live
    /// nowhere now.
    pub(super) fn say_lives(&self, out: &mut Vec<Delivery>) {
        let lives = self.other_hosts.roaming.0.iter().filter_map(|(actor, host)| Some((*actor, (*host)?)));
        let mut lives: Vec<_> = lives.collect();
        lives.sort();
        if !lives.is_empty() {
            self.other_hosts.tell(ToGateway::Lives(lives), out);
        }
    }

    /// Answers a home that asks for events of its roaming actors: tells which of them do not live here.
    pub(super) fn say_guests(&self, host: u16, session: u64, actors: Vec<ActorId>, out: &mut Vec<Delivery>) {
        for actor in actors.into_iter().filter(|actor| !self.is_guest(*actor)) {
            let at = match self.tables.roster.whereabouts(actor) {
                ended @ Whereabouts::GaveUp(_) => ended,
                _ => Whereabouts::Nowhere,
            };
            self.other_hosts.tell(ToGateway::Local { actor, at, device: None }, out);
        }
        self.other_hosts.tell(ToGateway::Guests { host, session }, out);
    }

    /// Forgets a roaming actor that has not started in a worker of this host. Its home decides what happens
    /// next.
    pub(crate) fn guest_failed(&mut self, actor: ActorId, out: &mut Vec<Delivery>) {
        if self.tables.roster.remove(actor).is_some() {
            self.unplaced(actor, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::broker::{Broker, Complaint};
    use crate::transport::control_channel::ToNode;
    use crate::transport::gateway_messages::FromGateway;
    use crate::transport::lifecycle::{EndReason, Lifecycle};

    const GATEWAY: u16 = 1;

    fn process(slot: u16) -> ProcessId {
        ProcessId::new(slot, 0).unwrap()
    }

    /// Makes a broker on this host, with a gateway and two workers.
    fn broker(host: u16) -> Broker {
        let mut broker = Broker::default().with_neighbours(Box::<OtherHosts>::default());
        (0..4).for_each(|slot| drop(broker.joined(process(slot))));
        broker.roster.host = host;
        HostActors::of(&mut broker).begin(process(GATEWAY));
        broker
    }

    fn texts(told: Vec<Delivery>) -> Vec<(ProcessId, String)> {
        told.into_iter().map(|said| (said.to, super::super::tests::shown(&said.message))).collect()
    }

    fn handle(broker: &mut Broker, from: u16, message: ToNode) -> Vec<(ProcessId, String)> {
        let mut out = Vec::new();
        let result: Result<(), Complaint> = broker.handle(process(from), message, Vec::new(), &mut out);
        result.expect("nothing is wrong with it");
        texts(out)
    }

    fn does(
        broker: &mut Broker,
        what: impl FnOnce(&mut HostActors<'_>, &mut Vec<Delivery>),
    ) -> Vec<(ProcessId, String)> {
        let mut out = Vec::new();
        what(&mut HostActors::of(broker), &mut out);
        texts(out)
    }

    fn says(broker: &mut Broker, said: FromGateway) -> Vec<(ProcessId, String)> {
        let mut out = Vec::new();
        let result = HostActors::of(broker).gateway_says(process(GATEWAY), said, &mut out);
        result.expect("nothing is wrong with it");
        texts(out)
    }

    fn reach(broker: &mut Broker, actor: ActorId) {
        says(broker, FromGateway::Reached { actor, capacity: 8 });
        let told = says(broker, FromGateway::Serving { actor });
        assert!(told.iter().any(|(_, what)| what.contains("At(Location")), "{told:?}");
    }

    #[test]
    fn who_wants_one_that_lives_nowhere_waits_at_its_home_until_it_does() {
        let mut broker = broker(3);
        let actor = HostActors::of(&mut broker).roaming_actor();
        assert!(actor.roams() && actor.host() == 3 && HostActors::of(&mut broker).is_on_other_host(actor));
        let want = ToNode::WantActor { actor };
        assert_eq!(handle(&mut broker, 2, want.clone()), [], "nobody could be asked");
        assert_eq!(says(&mut broker, FromGateway::WantLocal { actor }), [], "nor answered");
        // A watch is answered at once: this host knows the actor's events.
        let watching = handle(&mut broker, 3, ToNode::Watch { ticket: 9, actor });
        assert!(watching[0].1.contains("ticket: 9, down: None"), "{watching:?}");

        let told = does(&mut broker, |actors, out| actors.lives_on(actor, Some(5), out));
        let position = |what: &str| told.iter().position(|(_, said)| said.contains(what)).expect(what);
        assert!(position("LivesOn") < position("Reach"), "{told:?}");
        reach(&mut broker, actor);
        let other_host = says(&mut broker, FromGateway::WantLocal { actor });
        assert!(other_host[0].1.contains("LivesOn") && other_host[0].1.contains("host: 5"), "{other_host:?}");

        // Its host is lost: it has no place any more, and senders wait for the next life.
        let away = does(&mut broker, |actors, out| actors.lives_on(actor, None, out));
        assert!(away.iter().any(|(to, what)| *to == process(2) && what.contains("Unplaced")), "{away:?}");
        assert!(away.iter().any(|(to, what)| *to == process(1) && what.contains("Withdraw")), "{away:?}");
        assert_eq!(says(&mut broker, FromGateway::Rests { actor }), [], "it says so too late");
        assert_eq!(handle(&mut broker, 2, want.clone()), []);

        // There is no next life.
        let why = Some(EndReason::OutOfReach("host 5 is lost".into()));
        let told = does(&mut broker, |actors, out| actors.lost_on_other_host(actor, why, out));
        let hears =
            |to: u16, what: &str| told.iter().any(|(who, said)| *who == process(to) && said.contains(what));
        assert!(hears(2, "GaveUp") && hears(3, "Lifecycle(GaveUp") && hears(GATEWAY, "Withdraw"), "{told:?}");
        assert!(OtherHosts::of(&broker).kept() == 0 && OtherHosts::of(&broker).roaming_count() == 0);
        assert!(handle(&mut broker, 2, want)[0].1.contains("host 5 is lost"), "it is remembered");
        let local = says(&mut broker, FromGateway::WantLocal { actor });
        assert!(local[0].1.contains("Local") && local[0].1.contains("GaveUp"), "{local:?}");
    }

    #[test]
    fn a_host_that_takes_one_in_leaves_the_way_to_its_last_life() {
        let actor = ActorId::roaming(3, 7);
        let mut broker = broker(6);
        let want = ToNode::WantActor { actor };
        handle(&mut broker, 2, want.clone());
        reach(&mut broker, actor);
        handle(&mut broker, 3, ToNode::Watch { ticket: 1, actor });

        let told = does(&mut broker, |actors, out| {
            actors.take_in(actor, process(3), 8, out).expect("there is room");
        });
        let hears = |told: &[(ProcessId, String)], to: u16, what: &str| {
            told.iter().any(|(who, said)| *who == process(to) && said.contains(what))
        };
        assert!(hears(&told, 2, "Unplaced") && hears(&told, GATEWAY, "Withdraw"), "{told:?}");
        assert!(
            !HostActors::of(&mut broker).is_on_other_host(actor)
                && HostActors::of(&mut broker).is_guest(actor)
        );
        let early = handle(&mut broker, 2, want.clone());
        assert!(hears(&early, 2, "Restarting"), "it does not take messages yet: {early:?}");
        // The gateway's messages about its last life come late, and give nobody a place.
        for late in [
            FromGateway::Reached { actor, capacity: 8 },
            FromGateway::Serving { actor },
            FromGateway::Rests { actor },
            FromGateway::OutOfReach { actor, why: None },
        ] {
            assert_eq!(says(&mut broker, late), []);
        }
        // The home tells its events on other hosts; here this host does.
        let up = Lifecycle::Up { actor, incarnation: 4 };
        assert_eq!(says(&mut broker, FromGateway::Lifecycle(up)), []);

        let told = does(&mut broker, |actors, out| actors.guest_started(actor, out));
        assert!(hears(&told, 2, "At(Location"), "{told:?}");
        let local = says(&mut broker, FromGateway::WantLocal { actor });
        assert!(hears(&local, GATEWAY, "At(Location"), "{local:?}");
        assert_eq!(OtherHosts::of(&broker).load(&broker.roster), 1);
    }

    #[test]
    fn one_that_could_not_begin_on_a_host_is_asked_for_elsewhere_again() {
        let actor = ActorId::roaming(3, 7);
        let mut broker = broker(6);
        does(&mut broker, |actors, out| {
            actors.take_in(actor, process(3), 8, out).expect("room");
        });
        let told = does(&mut broker, |actors, out| actors.guest_failed(actor, out));
        assert_eq!(told.iter().filter(|(_, what)| what.contains("Unplaced")).count(), 4, "all are told");
        assert_eq!(broker.roster.whereabouts(actor), Whereabouts::Nowhere);
        let asked = handle(&mut broker, 2, ToNode::WantActor { actor });
        assert!(asked[0].0 == process(GATEWAY) && asked[0].1.contains("Reach"), "{asked:?}");
    }

    /// The end of a gateway is not the loss of a host.
    #[test]
    fn the_next_gateway_hears_where_actors_live_before_it_is_asked_for_them() {
        let mut broker = broker(3);
        let [lives, away] = [(); 2].map(|()| HostActors::of(&mut broker).roaming_actor());
        does(&mut broker, |actors, out| actors.lives_on(lives, Some(5), out));
        handle(&mut broker, 2, ToNode::WantActor { actor: lives });
        reach(&mut broker, lives);
        handle(&mut broker, 3, ToNode::Watch { ticket: 9, actor: lives });
        handle(&mut broker, 2, ToNode::WantActor { actor: away });

        let told = does(&mut broker, |actors, out| actors.gateway_follows(process(GATEWAY), out));
        assert!(told.iter().any(|(to, what)| *to == process(2) && what.contains("Unplaced")), "{told:?}");
        assert!(told.iter().all(|(_, what)| !what.contains("GaveUp")), "{told:?}");
        assert!(OtherHosts::of(&broker).is_home_of(lives) && OtherHosts::of(&broker).is_home_of(away));
        assert_eq!(handle(&mut broker, 2, ToNode::WantActor { actor: lives }), [], "it waits");

        let next = ProcessId::new(GATEWAY, 1).unwrap();
        drop(broker.joined(next));
        let told = does(&mut broker, |actors, out| actors.gateway_goes_on(next, out));
        let said: Vec<_> = told.iter().filter(|(to, _)| *to == next).map(|(_, what)| what.as_str()).collect();
        assert!(said.len() == 2 && said[0].contains("Lives") && said[1].contains("Reach"), "{told:?}");
        assert!(said[0].contains(&format!("({lives:?}, 5)")) && !said[0].contains(&format!("{away:?}")));
        assert!(said[1].contains(&format!("{lives:?}")), "{told:?}");
        // The gateway at that time hears of its next life.
        let told = does(&mut broker, |actors, out| actors.lives_on(away, Some(6), out));
        assert!(told.iter().any(|(to, what)| *to == next && what.contains("LivesOn")), "{told:?}");
    }

    #[test]
    fn a_home_that_asks_for_guests_hears_which_are_none() {
        let [lives, ended, never] = [7, 8, 9].map(|number| ActorId::roaming(3, number));
        let mut broker = broker(6);
        for actor in [lives, ended] {
            does(&mut broker, |actors, out| {
                actors.take_in(actor, process(3), 8, out).expect("room");
                actors.guest_started(actor, out);
            });
        }
        broker.roster.give_up(ended, EndReason::Exit(3));
        let want = FromGateway::WantGuests { host: 3, session: 2, actors: vec![lives, ended, never] };
        let told = says(&mut broker, want);
        let said: Vec<_> = told.iter().map(|(_, what)| what.as_str()).collect();
        assert!(said.len() == 3 && told.iter().all(|(to, _)| *to == process(GATEWAY)), "{told:?}");
        assert!(said[0].contains(&format!("{ended:?}")) && said[0].contains("GaveUp(Exit(3))"), "{told:?}");
        assert!(said[1].contains(&format!("{never:?}")) && said[1].contains("Nowhere"), "{told:?}");
        assert!(said[2].contains("Guests { host: 3, session: 2 }"), "{told:?}");
    }

    /// From then on it is an actor of this host like all others.
    #[test]
    fn one_that_goes_on_at_its_home_is_offered_to_those_who_have_asked() {
        let mut broker = broker(3);
        let actor = HostActors::of(&mut broker).roaming_actor();
        handle(&mut broker, 2, ToNode::WantActor { actor });
        assert_eq!(says(&mut broker, FromGateway::WantLocal { actor }), []);
        does(&mut broker, |actors, out| {
            actors.take_in(actor, process(3), 8, out).expect("room");
        });
        let told = does(&mut broker, |actors, out| actors.guest_started(actor, out));
        let hears =
            |to: u16, what: &str| told.iter().any(|(who, said)| *who == process(to) && said.contains(what));
        assert!(hears(2, "At(Location") && hears(GATEWAY, "Local {"), "{told:?}");
        assert!(
            !OtherHosts::of(&broker).is_home_of(actor)
                && !HostActors::of(&mut broker).is_on_other_host(actor)
        );
    }
}
