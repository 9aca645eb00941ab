//! The change from one gateway of this host to the next: actors with a place in the first rest, and the
//! second is asked for everything that processes wait for.
//!
//! Used by the supervisor (`node/supervisor/hosts/gateways.rs`), which decides when one has ended and another
//! begins.
//!
//! **Invariants.** HOST-3: a sender to an actor of another host hears first that the actor has no place, and
//! then that the gateway has ended. So no sender gives the actor up, and all keep their queues. Messages of
//! other hosts reach an actor of this host only when its process has read all messages of the last gateway:
//! before that the next gateway does not learn where the actor is. MBX-2: waits are bounded as before; the
//! gateway asks for a bounded number of actors for each host at a time.

use super::{HostActors, OtherHosts};
use crate::ids::{ActorId, ProcessId};
use crate::node::broker::Delivery;
use crate::transport::control_channel::FromNode;
use crate::transport::gateway_messages::ToGateway;

/// The most actors in one message to the gateway.
const TOLD_AT_ONCE: usize = 1 << 12;

impl OtherHosts {
    /// Whether another gateway follows the one that has ended.
    pub(crate) fn gateway_is_to_follow(&self) -> bool {
        self.follows
    }
}

impl HostActors<'_> {
    /// Handles the end of a gateway that another one follows. The news of its process's end goes out behind
    /// this.
    pub(crate) fn gateway_follows(&mut self, ended: ProcessId, out: &mut Vec<Delivery>) {
        let other_hosts = &mut *self.other_hosts;
        (other_hosts.gateway, other_hosts.follows) = (None, true);
        other_hosts.unread.push(ended);
        other_hosts.wanted.clear();
        other_hosts.placeless.clear();
        other_hosts.reaching.no_places();
        let is_on_other_host = |actor: ActorId| actor.host() != self.tables.roster.host || actor.roams();
        let there = self
            .tables
            .roster
            .all()
            .filter(|(actor, entry)| entry.location.process == ended && is_on_other_host(*actor));
        let there: Vec<_> = there.map(|(actor, _)| actor).collect();
        for actor in there {
            let was_started = self.tables.roster.remove(actor).is_some_and(|entry| entry.started);
            // Nobody tells whether it is up again by now.
            self.tables.watches.forget_down(actor);
            if was_started {
                let others = self.tables.roster.living().filter(|to| *to != ended);
                out.extend(Delivery::to_all(others, FromNode::Unplaced { actor }));
            }
        }
    }

    /// Asks a gateway that has just begun, and knows nothing, for everything that processes wait for.
    pub(crate) fn gateway_goes_on(&mut self, gateway: ProcessId, out: &mut Vec<Delivery>) {
        (self.other_hosts.gateway, self.other_hosts.follows) = (Some(gateway), false);
        let mut senders: Vec<_> = self.other_hosts.reaching.senders().collect();
        senders.sort();
        senders.dedup();
        for process in senders {
            if let Some(device) = self.tables.roster.gpu_of(process) {
                // Before it can ask anything.
                self.other_hosts.tell(ToGateway::Uses { process, device }, out);
            }
        }
        self.say_lives(out);
        let roaming = &self.other_hosts.roaming;
        // In few messages: one by one they might exceed the bound of the queue for one process.
        let asked: Vec<_> = self.other_hosts.reaching.asked().collect();
        for actors in asked.chunks(TOLD_AT_ONCE) {
            self.other_hosts.tell(ToGateway::Reach { actors: actors.to_vec() }, out);
        }
        let told = self.tables.watches.watched().chain(self.tables.registry.named());
        // The gateway hears of this host's own actors in any case.
        let is_told = |actor: &ActorId| self.is_on_other_host(*actor) && !roaming.has(*actor);
        let mut told: Vec<_> = told.filter(is_told).collect();
        told.sort();
        told.dedup();
        for actors in told.chunks(TOLD_AT_ONCE) {
            self.other_hosts.tell(ToGateway::Watch { actors: actors.to_vec() }, out);
        }
        for (ticket, (_, _, name)) in &self.other_hosts.lookups {
            self.other_hosts.tell(ToGateway::Find { ticket: *ticket, name: name.clone() }, out);
        }
    }

    /// Whether an actor of this host is in a process that has not read all messages of an earlier gateway.
    pub(super) fn has_unread(&self, actor: ActorId) -> bool {
        let Some(process) = self.tables.roster.actor(actor).map(|entry| entry.location.process) else {
            return false;
        };
        self.other_hosts.unread.iter().any(|gateway| self.tables.reclaims.waits_for(*gateway, process))
    }

    /// Tells the gateway of actors that it waits for, after a process has read all messages of an earlier
    /// gateway or has ended itself.
    pub(crate) fn say_wanted(&mut self, out: &mut Vec<Delivery>) {
        if self.other_hosts.unread.is_empty() {
            return;
        }
        let reclaims = self.tables.reclaims;
        self.other_hosts.unread.retain(|gateway| reclaims.is_open(*gateway));
        let wanted = self.other_hosts.wanted.iter().copied().filter(|actor| !self.has_unread(*actor));
        for actor in wanted.collect::<Vec<_>>() {
            self.other_hosts.wanted.remove(&actor);
            self.say_where(actor, out);
        }
    }
}
