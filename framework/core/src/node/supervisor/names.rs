//! Names that are unique in the whole node: the head says who has one.
//!
//! An agent *claims* a name from the head before it gives it to an actor: whoever starts or registers that
//! actor waits for the answer. The head notes the names of all other hosts beside its own registry
//! (`node/registry.rs`), and takes none that one of them has, without asking anybody. So of two hosts that
//! want a name at the same instant, the one that the head hears second is refused. When an actor ends, its
//! host gives its names back, and says so before it says that the actor has ended.
//!
//! **Invariants.** One claim of a host for a name is under way, and whoever else wants that name there waits
//! behind it: an answer is never older than the host's last word of that name. MBX-2: so many names are
//! claimed at a time, and the head notes so many for a host. WIRE-1: only the head's answers are heard, and a
//! host has nobody's names but its own.
//!
//! **With another gateway** on either side an agent says which names it has, and claims again what it waits
//! for. Until then a name that was given back stays taken.
//!
//! **On the loss** of a host the head frees its names. An agent without the head ends (HOST-10), and with it
//! whoever waits here.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::actor::NewActor;
use crate::ids::{ActorId, ProcessId};
use crate::node::broker::Delivery;
use crate::node::group::Supervision;
use crate::node::limits::{MAX_CLAIMS, MAX_NAMES_OF_HOST, MAX_NAMES_TOLD};
use crate::node::registry::{NameError, check_name};
use crate::transport::control_channel::{FromNode, ToNode};
use crate::transport::hosts::{NameRefused, ToGateway};

use super::actors::Started;
use super::run::State;
use super::{Reply, WorkerId};

/// What a name counts beside its bytes where several are told together.
const NAME_BASE: usize = 8;

/// Names that the head was asked for.
#[derive(Default)]
pub(super) struct Claims {
    names: HashMap<String, Claim>,
    last: u64,
    /// On the head: the names that other hosts have begun to say they have.
    told: HashMap<u16, HashSet<String>>,
}

struct Claim {
    ticket: u64,
    /// In the order in which they came: it is claimed for the first.
    waiting: VecDeque<Claimant>,
}

/// Who wants a name.
pub(super) enum Claimant {
    /// An actor that is to be started in a worker.
    Start(Box<(WorkerId, NewActor, Supervision, Reply<Started>)>),
    /// One that lives.
    Register { by: ProcessId, ticket: u64, actor: ActorId },
}

impl State {
    /// Whether the head has to be asked before somebody gets this name.
    pub(super) fn has_to_claim(&self, name: &str) -> bool {
        // Between two gateways it waits for the next.
        let is_reached = self.broker.foreign.gateway().is_some() || self.broker.gateway_is_to_follow();
        let is_agent = self.broker.roster.host != 0 && is_reached;
        // What is refused here need not be asked there.
        is_agent
            && self.stopping.is_none()
            && check_name(name).is_ok()
            && self.broker.registry.find(name).is_none()
    }

    /// Whether it can be given a name: it is here, or roams and is of this host.
    fn exists(&self, actor: ActorId) -> bool {
        self.broker.roster.actor(actor).is_some() || self.broker.is_home_of(actor)
    }

    /// Has the head asked for a name.
    pub(super) fn claim(&mut self, name: String, claimant: Claimant) {
        if let Some(claim) = self.claims.names.get_mut(&name) {
            if claim.waiting.len() < MAX_CLAIMS {
                return claim.waiting.push_back(claimant);
            }
            return self.refuse_name(name, claimant, NameRefused::Busy);
        }
        if self.claims.names.len() >= MAX_CLAIMS {
            return self.refuse_name(name, claimant, NameRefused::Busy);
        }
        self.claims.last += 1;
        let ticket = self.claims.last;
        self.claims.names.insert(name.clone(), Claim { ticket, waiting: VecDeque::from([claimant]) });
        self.tell_gateway(ToGateway::Claim { ticket, name });
    }

    /// A message of a process, unless it has to wait until the head was asked.
    pub(super) fn claim_first(&mut self, by: ProcessId, message: ToNode) -> Option<ToNode> {
        match message {
            // An actor that is none, and what is wrong with the name, the broker complains of.
            ToNode::Register { ticket, name, actor } if self.exists(actor) && self.has_to_claim(&name) => {
                self.claim(name, Claimant::Register { by, ticket, actor });
                None
            }
            other => Some(other),
        }
    }

    /// The head says whether this host may have a name.
    pub(super) fn claimed(&mut self, name: String, ticket: u64, result: Result<(), NameRefused>) {
        let Some(claim) = self.claims.names.get(&name).filter(|claim| claim.ticket == ticket) else { return };
        debug_assert!(!claim.waiting.is_empty());
        let Some(Claim { mut waiting, .. }) = self.claims.names.remove(&name) else { return };
        if let Some(first) = waiting.pop_front() {
            match result {
                Ok(()) => self.give_name(name.clone(), first),
                Err(why) => self.refuse_name(name.clone(), first, why),
            }
        }
        if result.is_ok() && self.broker.registry.find(&name).is_none() {
            // Something else was wrong with it.
            self.tell_gateway(ToGateway::Release { name: name.clone() });
        }
        // They find it taken, or ask for themselves.
        for claimant in waiting {
            match claimant {
                Claimant::Start(start) => {
                    let (worker, new, how, reply) = *start;
                    self.start_actor(worker, new, how, reply);
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
                let (worker, new, how, reply) = *start;
                self.start_with_name(worker, new, how, reply);
            }
            Claimant::Register { by, ticket, actor } if self.exists(actor) => {
                let mut told = Vec::new();
                let message = ToNode::Register { ticket, name, actor };
                let result = self.broker.handle(by, message, Vec::new(), &mut told);
                self.deliver(told);
                self.note(by, result);
            }
            // It has ended meanwhile.
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
                let _ = start.3.try_send(Err(error.into()));
            }
            Claimant::Register { by, ticket, .. } => {
                let holder = if let NameRefused::By(holder) = why { holder } else { ActorId(0) };
                self.registered(by, ticket, Err(holder));
            }
        }
    }

    fn registered(&mut self, to: ProcessId, ticket: u64, result: Result<(), ActorId>) {
        let message = FromNode::Registered { ticket, result };
        self.deliver(vec![Delivery { to, message, descriptors: Vec::new() }]);
    }

    /// Gives the names of actors that have ended back to the head.
    pub(super) fn release_names(&mut self) {
        for name in self.broker.registry.take_freed() {
            self.tell_gateway(ToGateway::Release { name });
        }
    }

    /// The way to the head begins anew. What was on it is lost: names that this host has given back, so it
    /// says which it has; and its claims, or the answers, so it claims again.
    pub(super) fn say_names(&mut self) {
        if self.broker.roster.host == 0 {
            return;
        }
        // Their end is in what is said now.
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
        let claims = self.claims.names.iter().map(|(name, claim)| (claim.ticket, name.clone()));
        let mut claims: Vec<_> = claims.collect();
        claims.sort();
        for (ticket, name) in claims {
            self.tell_gateway(ToGateway::Claim { ticket, name });
        }
    }

    /// The head: these are names of another host, some of all that it has.
    pub(super) fn names_of_host(&mut self, host: u16, names: Vec<String>, is_last: bool) {
        let known = self.claims.told.entry(host).or_default();
        // MBX-2: of more it may have none.
        let room = MAX_NAMES_OF_HOST.saturating_sub(known.len());
        known.extend(names.into_iter().take(room));
        if is_last {
            let known = self.claims.told.remove(&host).unwrap_or_default();
            self.broker.registry.release_but(host, &known);
        }
    }

    /// The head: a host is not of the node any more, or begins anew.
    pub(super) fn forget_names_of(&mut self, host: u16) {
        self.claims.told.remove(&host);
    }

    /// The head: another host wants a name.
    pub(super) fn claim_of_host(&mut self, host: u16, ticket: u64, name: String) {
        let result = self.broker.registry.claim(host, &name);
        self.tell_gateway(ToGateway::Claimed { host, ticket, name, result });
    }
}
