//! Look-ups of names on the other hosts.
//!
//! **Invariant.** Each look-up has one outcome, which the node is told once: the actor on the host with the
//! lowest number that has the name, or that none has it. A host that is gone has not got it.

use std::collections::{BTreeMap, HashMap};

use super::to_node::tell;
use crate::ids::ActorId;
use crate::transport::Transport;
use crate::transport::control_channel::Location;
use crate::transport::gateway_messages::FromGateway;

/// The answer to a look-up; `None` if no actor has the name.
type Found = Option<(ActorId, Location)>;

/// The look-ups without an outcome, by ticket.
#[derive(Default)]
pub(super) struct Lookups(HashMap<u64, Lookup>);

struct Lookup {
    name: String,
    /// The answer of each host; `None` until it has answered.
    answers: BTreeMap<u16, Option<Found>>,
}

impl Lookup {
    /// Returns the outcome if it is known: the actor on the host with the lowest number that has the name.
    fn outcome(&self) -> Option<Found> {
        for answer in self.answers.values() {
            match answer {
                None => return None,
                Some(Some(found)) => return Some(Some(*found)),
                Some(None) => {}
            }
        }
        Some(None)
    }
}

impl Lookups {
    /// Begins a look-up on these hosts.
    pub(super) fn begin(&mut self, ticket: u64, name: String, hosts: &[u16]) {
        let answers = hosts.iter().map(|host| (*host, None)).collect();
        self.0.insert(ticket, Lookup { name, answers });
    }

    /// Ends a look-up and tells the node, if its outcome is known.
    pub(super) fn look_at(&mut self, ticket: u64, transport: &Transport) {
        let outcome = self.0.get(&ticket).and_then(Lookup::outcome);
        if let Some(found) = outcome {
            self.0.remove(&ticket);
            tell(transport, FromGateway::Found { ticket, found });
        }
    }

    /// Takes the answer of a host, if it was asked and has not answered yet.
    pub(super) fn answered(&mut self, host: u16, ticket: u64, found: Found, transport: &Transport) {
        let answer = self.0.get_mut(&ticket).and_then(|lookup| lookup.answers.get_mut(&host));
        if let Some(answer) = answer.filter(|answer| answer.is_none()) {
            *answer = Some(found);
            self.look_at(ticket, transport);
        }
    }

    /// Waits no more for the answers of a host.
    pub(super) fn host_gone(&mut self, host: u16, transport: &Transport) {
        for lookup in self.0.values_mut() {
            if let Some(answer) = lookup.answers.get_mut(&host) {
                answer.get_or_insert(None);
            }
        }
        let tickets: Vec<_> = self.0.keys().copied().collect();
        tickets.into_iter().for_each(|ticket| self.look_at(ticket, transport));
    }

    /// Returns the look-ups that a host has not answered: the ticket and the name of each.
    pub(super) fn unanswered_by(&self, host: u16) -> Vec<(u64, String)> {
        let unanswered = |lookup: &Lookup| lookup.answers.get(&host) == Some(&None);
        let asked = self.0.iter().filter(|(_, lookup)| unanswered(lookup));
        asked.map(|(ticket, lookup)| (*ticket, lookup.name.clone())).collect()
    }
}
