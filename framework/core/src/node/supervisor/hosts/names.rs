//! Names that are unique in the whole node: the head grants them.
//!
//! An agent *claims* a name from the head before it gives it to an actor. The caller that starts or registers
//! the actor waits for the answer. The head keeps the names of all other hosts beside its own registry
//! (`node/registry.rs`), so it needs to ask nobody before it refuses a name that is taken. If two hosts want
//! a name at the same instant, the head refuses the one that it hears second. When an actor ends, its host
//! first gives the actor's names back, and then says that the actor has ended.
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
use crate::node::broker::Delivery;
use crate::node::limits::{MAX_CLAIMS, MAX_NAMES_OF_HOST, MAX_NAMES_TOLD};
use crate::node::registry::{NameError, check_name};
use crate::transport::control_channel::{FromNode, ToNode};
use crate::transport::gateway_messages::{NameRefused, ToGateway};

use super::super::neighbours::Start;
use super::super::run::SupervisorState;

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

impl SupervisorState {
    /// Whether this host must ask the head before it gives this name to an actor.
    pub(super) fn has_to_claim(&self, name: &str) -> bool {
        // Between two gateways the claim waits for the next gateway.
        let is_reached = self.broker.other_hosts.gateway().is_some() || self.broker.gateway_is_to_follow();
        let is_agent = self.broker.roster.host != 0 && is_reached;
        // A name that this host refuses itself needs no claim.
        is_agent
            && self.stopping.is_none()
            && check_name(name).is_ok()
            && self.broker.registry.find(name).is_none()
    }

    /// Whether an actor can get a name here: it lives on this host, or it roams and this host is its home.
    fn exists(&self, actor: ActorId) -> bool {
        self.broker.roster.actor(actor).is_some() || self.broker.is_home_of(actor)
    }

    /// Claims a name from the head for `claimant`.
    pub(super) fn claim(&mut self, name: String, claimant: Claimant) {
        if let Some(claim) = self.hosts.claims.names.get_mut(&name) {
            if claim.waiting.len() < MAX_CLAIMS {
                return claim.waiting.push_back(claimant);
            }
            return self.refuse_name(name, claimant, NameRefused::Busy);
        }
        if self.hosts.claims.names.len() >= MAX_CLAIMS {
            return self.refuse_name(name, claimant, NameRefused::Busy);
        }
        self.hosts.claims.last += 1;
        let ticket = self.hosts.claims.last;
        self.hosts.claims.names.insert(name.clone(), Claim { ticket, waiting: VecDeque::from([claimant]) });
        self.tell_gateway(ToGateway::Claim { ticket, name });
    }

    /// Returns the message for the broker, or holds it back until the head has answered a claim.
    pub(super) fn claim_first(&mut self, by: ProcessId, message: ToNode) -> Option<ToNode> {
        match message {
            // The broker complains of an unknown actor or a bad name.
            ToNode::Register { ticket, name, actor } if self.exists(actor) && self.has_to_claim(&name) => {
                self.claim(name, Claimant::Register { by, ticket, actor });
                None
            }
            other => Some(other),
        }
    }

    /// Takes the head's answer to a claim of this host.
    pub(super) fn claimed(&mut self, name: String, ticket: u64, result: Result<(), NameRefused>) {
        let Some(claim) = self.hosts.claims.names.get(&name).filter(|claim| claim.ticket == ticket) else {
            return;
        };
        debug_assert!(!claim.waiting.is_empty());
        let Some(Claim { mut waiting, .. }) = self.hosts.claims.names.remove(&name) else { return };
        if let Some(first) = waiting.pop_front() {
            match result {
                Ok(()) => self.give_name(name.clone(), first),
                Err(why) => self.refuse_name(name.clone(), first, why),
            }
        }
        if result.is_ok() && self.broker.registry.find(&name).is_none() {
            // The name could not be given for another reason, so it goes back.
            self.tell_gateway(ToGateway::Release { name: name.clone() });
        }
        // The other claimants find the name taken, or claim it for themselves.
        for claimant in waiting {
            match claimant {
                Claimant::Start(start) => {
                    let Start { worker, actor, how, reply } = *start;
                    self.start_actor(worker, actor, how, reply);
                }
                Claimant::Register { by, ticket, actor } => {
                    self.broker_message(
                        by,
                        ToNode::Register { ticket, name: name.clone(), actor },
                        Vec::new(),
                    );
                }
            }
        }
    }

    fn give_name(&mut self, name: String, claimant: Claimant) {
        match claimant {
            Claimant::Start(start) => {
                let Start { worker, actor, how, reply } = *start;
                self.start_as(worker, actor, how, None, reply);
            }
            Claimant::Register { by, ticket, actor } if self.exists(actor) => {
                let message = ToNode::Register { ticket, name, actor };
                let result = self.with_broker(|broker, told| broker.handle(by, message, Vec::new(), told));
                self.note(by, result);
            }
            // The actor has ended meanwhile.
            Claimant::Register { by, ticket, .. } => self.registered(by, ticket, Err(ActorId(0))),
        }
    }

    fn refuse_name(&mut self, name: String, claimant: Claimant, why: NameRefused) {
        match claimant {
            Claimant::Start(start) => {
                let error = match why {
                    NameRefused::By(holder) => NameError::Elsewhere { name, host: holder.host() },
                    NameRefused::Full => NameError::Full,
                    NameRefused::Busy => NameError::Busy,
                };
                start.reply.answer(Err(error.into()));
            }
            Claimant::Register { by, ticket, .. } => {
                let holder = if let NameRefused::By(holder) = why { holder } else { ActorId(0) };
                self.registered(by, ticket, Err(holder));
            }
        }
    }

    fn registered(&mut self, to: ProcessId, ticket: u64, result: Result<(), ActorId>) {
        let message = FromNode::Registered { ticket, result };
        self.deliver(vec![Delivery::plain(to, message)]);
    }

    /// Gives the names of actors that have ended back to the head.
    pub(super) fn release_names(&mut self) {
        for name in self.broker.registry.take_freed() {
            self.tell_gateway(ToGateway::Release { name });
        }
    }

    /// Tells the head again which names this host has, and repeats its claims, because the link to the head
    /// begins anew. Messages on the old link are lost: names that this host gave back, its claims, or the
    /// answers to them.
    pub(super) fn say_names(&mut self) {
        if self.broker.roster.host == 0 {
            return;
        }
        // The complete list below already leaves these names out.
        drop(self.broker.registry.take_freed());
        let mut names: Vec<Vec<String>> = vec![Vec::new()];
        let mut bytes = 0;
        for name in self.broker.registry.all() {
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
        for (count, names) in (1..).zip(names) {
            self.tell_gateway(ToGateway::Names { names, is_last: count == last });
        }
        let claims = self.hosts.claims.names.iter().map(|(name, claim)| (claim.ticket, name.clone()));
        let mut claims: Vec<_> = claims.collect();
        claims.sort();
        for (ticket, name) in claims {
            self.tell_gateway(ToGateway::Claim { ticket, name });
        }
    }

    /// On the head: takes a part of the list of another host's names.
    pub(super) fn names_of_host(&mut self, host: u16, names: Vec<String>, is_last: bool) {
        let known = self.hosts.claims.told.entry(host).or_default();
        // MBX-2: names past the limit are dropped.
        let room = MAX_NAMES_OF_HOST.saturating_sub(known.len());
        known.extend(names.into_iter().take(room));
        if is_last {
            let known = self.hosts.claims.told.remove(&host).unwrap_or_default();
            self.broker.registry.release_but(host, &known);
        }
    }

    /// On the head: drops the partial list of a host that has left the node, or begins anew.
    pub(super) fn forget_names_of(&mut self, host: u16) {
        self.hosts.claims.told.remove(&host);
    }

    /// On the head: answers another host's claim of a name.
    pub(super) fn claim_of_host(&mut self, host: u16, ticket: u64, name: String) {
        let result = self.broker.registry.claim(host, &name);
        self.tell_gateway(ToGateway::Claimed { host, ticket, name, result });
    }
}
