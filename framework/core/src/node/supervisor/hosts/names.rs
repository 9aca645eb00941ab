//! Names that are unique in the whole node: the head grants them.
//!
//! An agent *claims* a name from the head before it gives it to an actor. The caller that starts or registers
//! the actor waits for the answer. The head keeps the names of all other hosts beside its own registry
//! (`node/hosts/other_hosts/names.rs`), so it needs to ask nobody before it refuses a name that is taken. If
//! two hosts want a name at the same instant, the head refuses the one that it hears second. When an actor
//! ends, its host first gives the actor's names back, and then says that the actor has ended.
//!
//! **Invariants.** At most one claim of a host for a name is under way, and other claimants on that host wait
//! behind it: an answer is never older than the host's last message about that name. MBX-2: the claims under
//! way are bounded, and so are the names that the head keeps for a host. WIRE-1: an agent takes answers only
//! from the head, and a host can change only its own names.
//!
//! **With another gateway** on either side an agent tells the head which names it has, and repeats its open
//! claims. Until then a name that was given back stays taken.
//!
//! **On the loss** of a host the head frees its names. An agent without the head ends (HOST-10), and its
//! waiting claimants with it.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::ids::{ActorId, ProcessId};
use crate::node::broker::{Broker, Delivery};
use crate::node::hosts::other_hosts::{NamesOfHosts, OtherHosts};
use crate::node::limits::{MAX_CLAIMS, MAX_NAMES_TOLD};
use crate::node::registry::{NameError, check_name};
use crate::transport::control_channel::{FromNode, ToNode};
use crate::transport::gateway_messages::{NameRefused, ToGateway};

use super::super::neighbours::{Effect, Start};
use super::to_gateway;

/// Bytes that a name counts beside its own in a message with several names.
const NAME_BASE: usize = 8;

/// Claims that the head has not answered.
#[derive(Default)]
pub(super) struct Claims {
    names: HashMap<String, Claim>,
    last: u64,
    /// On the head: names from lists that other hosts have begun to send.
    told: HashMap<u16, HashSet<String>>,
}

struct Claim {
    ticket: u64,
    /// In order of arrival: the name is claimed for the first one.
    waiting: VecDeque<Claimant>,
}

/// An actor that gets a name.
pub(super) enum Claimant {
    /// An actor that starts in a worker.
    Start(Box<Start>),
    /// An actor that already runs.
    Register { by: ProcessId, ticket: u64, actor: ActorId },
}

impl Claims {
    /// Claims a name from the head for `claimant`.
    pub(super) fn claim(&mut self, broker: &Broker, name: String, claimant: Claimant) -> Vec<Effect> {
        if let Some(claim) = self.names.get_mut(&name) {
            if claim.waiting.len() < MAX_CLAIMS {
                claim.waiting.push_back(claimant);
                return Vec::new();
            }
            return refuse(name, claimant, NameRefused::Busy);
        }
        if self.names.len() >= MAX_CLAIMS {
            return refuse(name, claimant, NameRefused::Busy);
        }
        self.last += 1;
        let ticket = self.last;
        self.names.insert(name.clone(), Claim { ticket, waiting: VecDeque::from([claimant]) });
        let claim = to_gateway(broker, &ToGateway::Claim { ticket, name });
        claim.map(|claim| Effect::Deliver(vec![claim])).into_iter().collect()
    }

    /// Takes the head's answer to a claim of this host.
    pub(super) fn claimed(
        &mut self,
        broker: &Broker,
        name: String,
        ticket: u64,
        result: Result<(), NameRefused>,
    ) -> Vec<Effect> {
        if self.names.get(&name).is_none_or(|claim| claim.ticket != ticket) {
            return Vec::new();
        }
        let Some(Claim { mut waiting, .. }) = self.names.remove(&name) else { return Vec::new() };
        debug_assert!(!waiting.is_empty());
        let mut effects = Vec::new();
        if let Some(first) = waiting.pop_front() {
            effects.extend(match result {
                Ok(()) => give(broker, name.clone(), first),
                Err(why) => refuse(name.clone(), first, why),
            });
        }
        if result.is_ok() {
            // It may not have been given after all, for another reason.
            effects.push(Effect::NameGiven(name.clone()));
        }
        // The other claimants find the name taken, or claim it for themselves.
        effects.extend(waiting.into_iter().map(|claimant| match claimant {
            Claimant::Start(start) => Effect::Start(start),
            Claimant::Register { by, ticket, actor } => {
                Effect::Handle(by, ToNode::Register { ticket, name: name.clone(), actor })
            }
        }));
        effects
    }

    /// Tells the head again which names this host has, and repeats its claims, because the link to the head
    /// begins anew. Messages on the old link are lost: names that this host gave back, its claims, or the
    /// answers to them.
    pub(super) fn say_again(&self, broker: &mut Broker) -> Vec<Delivery> {
        if broker.roster.host == 0 {
            return Vec::new();
        }
        // The complete list below already leaves these names out.
        drop(broker.registry.take_freed());
        let mut names: Vec<Vec<String>> = vec![Vec::new()];
        let mut bytes = 0;
        for name in broker.registry.all() {
            bytes += name.len() + NAME_BASE;
            if bytes > MAX_NAMES_TOLD {
                bytes = name.len() + NAME_BASE;
                names.push(Vec::new());
            }
            if let Some(last) = names.last_mut() {
                last.push(name.to_owned());
            }
        }
        let last = names.len();
        let names = (1..).zip(names);
        let names = names.map(|(count, names)| ToGateway::Names { names, is_last: count == last });
        let mut claims: Vec<_> =
            self.names.iter().map(|(name, claim)| (claim.ticket, name.clone())).collect();
        claims.sort();
        let claims = claims.into_iter().map(|(ticket, name)| ToGateway::Claim { ticket, name });
        names.chain(claims).filter_map(|said| to_gateway(broker, &said)).collect()
    }

    /// On the head: takes a part of the list of another host's names.
    pub(super) fn names_of_host(
        &mut self,
        given: &mut NamesOfHosts,
        host: u16,
        names: Vec<String>,
        is_last: bool,
    ) {
        let known = self.told.entry(host).or_default();
        // MBX-2: of the names that the host could make up, none is kept.
        known.extend(names.into_iter().filter(|name| given.is_of(host, name)));
        if is_last {
            let known = self.told.remove(&host).unwrap_or_default();
            given.release_but(host, &known);
        }
    }

    /// On the head: drops the partial list of a host that has left the node, or begins anew.
    pub(super) fn forget_names_of(&mut self, host: u16) {
        self.told.remove(&host);
    }
}

/// Whether this host must ask the head before it gives this name to an actor.
pub(super) fn has_to_claim(broker: &Broker, is_stopping: bool, name: &str) -> bool {
    // Between two gateways the claim waits for the next gateway.
    let other_hosts = OtherHosts::of(broker);
    let is_reached = other_hosts.gateway().is_some() || other_hosts.gateway_is_to_follow();
    let is_agent = broker.roster.host != 0 && is_reached;
    // A name that this host refuses itself needs no claim.
    is_agent && !is_stopping && check_name(name).is_ok() && broker.registry.find(name).is_none()
}

/// Whether an actor can get a name here: it lives on this host, or it roams and this host is its home.
pub(super) fn exists(broker: &Broker, actor: ActorId) -> bool {
    broker.roster.actor(actor).is_some() || OtherHosts::of(broker).is_home_of(actor)
}

fn give(broker: &Broker, name: String, claimant: Claimant) -> Vec<Effect> {
    match claimant {
        Claimant::Start(start) => vec![Effect::StartNamed(start)],
        Claimant::Register { by, ticket, actor } if exists(broker, actor) => {
            vec![Effect::HandleNamed(by, ToNode::Register { ticket, name, actor })]
        }
        // The actor has ended meanwhile.
        Claimant::Register { by, ticket, .. } => vec![registered(by, ticket, Err(ActorId(0)))],
    }
}

fn refuse(name: String, claimant: Claimant, why: NameRefused) -> Vec<Effect> {
    match claimant {
        Claimant::Start(start) => {
            let error = match why {
                NameRefused::By(holder) => NameError::Elsewhere { name, host: holder.host() },
                NameRefused::Full => NameError::Full,
                NameRefused::Busy => NameError::Busy,
            };
            start.reply.answer(Err(error.into()));
            Vec::new()
        }
        Claimant::Register { by, ticket, .. } => {
            let holder = if let NameRefused::By(holder) = why { holder } else { ActorId(0) };
            vec![registered(by, ticket, Err(holder))]
        }
    }
}

fn registered(to: ProcessId, ticket: u64, result: Result<(), ActorId>) -> Effect {
    Effect::Deliver(vec![Delivery::plain(to, FromNode::Registered { ticket, result })])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::hosts::other_hosts::HostActors;
    use crate::node::registry::Registry;

    const WORKER: ProcessId = ProcessId::NODE;

    /// Makes a broker of an agent, whose gateway is `process(1)`.
    fn agent() -> Broker {
        let gateway = ProcessId::new(1, 0).unwrap();
        let mut broker = Broker::default().with_neighbours(Box::<OtherHosts>::default());
        drop(broker.joined(gateway));
        broker.roster.host = 3;
        HostActors::of(&mut broker).begin(gateway);
        broker.registry.note_freed();
        broker
    }

    fn register(ticket: u64, actor: ActorId) -> Claimant {
        Claimant::Register { by: WORKER, ticket, actor }
    }

    /// Returns the messages to the gateway among these.
    fn said(told: &[Delivery]) -> Vec<String> {
        let envelopes = told.iter().filter_map(|told| match &told.message {
            FromNode::Neighbours(said) => Some(said),
            _ => None,
        });
        envelopes.map(|said| format!("{:?}", ToGateway::open(said).unwrap())).collect()
    }

    #[test]
    fn a_name_is_claimed_once_and_each_claimant_has_its_answer() {
        let (mut broker, mut claims) = (agent(), Claims::default());
        let (actor, _) = broker.roster.reserve(WORKER, 1).unwrap();
        assert!(has_to_claim(&broker, false, "a") && !has_to_claim(&broker, true, "a"));
        let first = claims.claim(&broker, "a".into(), register(7, actor));
        assert!(matches!(&first[..], [Effect::Deliver(told)] if said(told).len() == 1));
        assert!(
            claims.claim(&broker, "a".into(), register(8, actor)).is_empty(),
            "it waits behind the first"
        );
        // The claim is repeated to the head with the names of this host.
        let again = said(&claims.say_again(&mut broker));
        assert!(again.len() == 2 && again[0].contains("Names") && again[1].contains("Claim"), "{again:?}");

        assert!(claims.claimed(&broker, "a".into(), 9, Ok(())).is_empty(), "the answer to another claim");
        let effects = claims.claimed(&broker, "a".into(), 1, Ok(()));
        let ticket = |effect: &Effect| match effect {
            Effect::HandleNamed(WORKER, ToNode::Register { ticket, .. }) => Some(("named", *ticket)),
            Effect::Handle(WORKER, ToNode::Register { ticket, .. }) => Some(("again", *ticket)),
            Effect::NameGiven(name) if name == "a" => Some(("given", 0)),
            _ => None,
        };
        let order: Vec<_> = effects.iter().map(ticket).collect();
        assert_eq!(order, [Some(("named", 7)), Some(("given", 0)), Some(("again", 8))]);
        assert!(claims.claimed(&broker, "a".into(), 1, Ok(())).is_empty(), "a second time");
    }

    // MBX-2, WIRE-1.
    #[test]
    fn no_name_is_kept_that_a_host_has_made_up() {
        let (registry, mut given, mut claims) =
            (Registry::default(), NamesOfHosts::default(), Claims::default());
        for (host, name) in [(1, "a"), (1, "b"), (2, "c")] {
            given.claim(&registry, host, name).unwrap();
        }
        let mut tells = |names: &[&str], is_last| {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            claims.names_of_host(&mut given, 1, names, is_last);
            claims.told.get(&1).map_or(0, HashSet::len)
        };
        assert_eq!(tells(&["d", "c", &"x".repeat(1 << 16)], false), 0);
        assert_eq!(tells(&["a", "a"], false), 1);
        assert_eq!(tells(&["e"], true), 0);
        // It has given `b` back, and another host's name is no business of it.
        assert_eq!(given.claim(&registry, 2, "b"), Ok(()));
        assert!(given.claim(&registry, 2, "a").is_err() && given.claim(&registry, 1, "c").is_err());
    }

    #[test]
    fn the_name_of_an_actor_that_has_ended_goes_back_before_other_news_and_once() {
        let mut broker = agent();
        let (actor, _) = broker.roster.reserve(WORKER, 1).unwrap();
        broker.registry.register("a".into(), actor).unwrap();
        broker.actor_ended(actor);
        let mut first = Vec::new();
        broker.before_deliveries(&mut first);
        let release = said(&first);
        assert!(release.len() == 1 && release[0].contains("Release { name: \"a\" }"), "{release:?}");
        broker.before_deliveries(&mut first);
        assert_eq!(first.len(), 1);
    }

    // MBX-2.
    #[test]
    fn claims_under_way_are_bounded() {
        let (mut broker, mut claims) = (agent(), Claims::default());
        let (actor, _) = broker.roster.reserve(WORKER, 1).unwrap();
        for number in 0..MAX_CLAIMS {
            assert_eq!(claims.claim(&broker, number.to_string(), register(0, actor)).len(), 1);
        }
        let refused = claims.claim(&broker, "one more".into(), register(5, actor));
        let is_refusal = |effect: &Effect| {
            let Effect::Deliver(told) = effect else { return false };
            matches!(told[0].message, FromNode::Registered { ticket: 5, result: Err(ActorId(0)) })
        };
        assert!(refused.len() == 1 && is_refusal(&refused[0]));
    }
}
