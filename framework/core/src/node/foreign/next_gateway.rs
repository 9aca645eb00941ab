//! From one gateway of this host to the next: what stands in the places of the first rests, and what waits
//! for it is asked of the second.
//!
//! Used by the supervisor (`node/supervisor/gateways.rs`), which says when one has ended, and when another
//! begins.
//!
//! **Invariants.** HOST-3: whoever sends to an actor of another host hears first that it has no place, and
//! then that the gateway has ended; so nobody gives the actor up, and all go on in the queue that they had.
//! What others send to an actor of this host comes to its process when that has read all that the last
//! gateway had sent it: before that the next one is not told where the actor is. MBX-2: what waits is bounded
//! as before; for each host the gateway asks for so many actors at a time.

use crate::ids::{ActorId, ProcessId};
use crate::node::broker::{Broker, Delivery};
use crate::transport::control_channel::FromNode;
use crate::transport::hosts::ToGateway;

/// Actors in one message to the gateway.
const TOLD_AT_ONCE: usize = 1 << 12;

impl Broker {
    /// The gateway has ended, and another follows. What becomes of its process is told behind this.
    pub(crate) fn gateway_follows(&mut self, ended: ProcessId, out: &mut Vec<Delivery>) {
        let foreign = &mut self.foreign;
        (foreign.gateway, foreign.follows) = (None, true);
        foreign.unread.push(ended);
        foreign.wanted.clear();
        foreign.placeless.clear();
        foreign.reaching.no_places();
        let is_foreign = |actor: ActorId| actor.host() != self.roster.host || actor.roams();
        let there =
            self.roster.all().filter(|(actor, entry)| entry.location.process == ended && is_foreign(*actor));
        let there: Vec<_> = there.map(|(actor, _)| actor).collect();
        for actor in there {
            let was_started = self.roster.remove(actor).is_some_and(|entry| entry.started);
            // Whether it is up again by now, nobody says.
            self.watches.forget_down(actor);
            if was_started {
                let others = self.roster.living().filter(|to| *to != ended);
                out.extend(others.map(|to| Delivery {
                    to,
                    message: FromNode::Unplaced { actor },
                    descriptors: Vec::new(),
                }));
            }
        }
    }

    /// Another gateway has begun, and knows nothing: it is asked for all that is waited for.
    pub(crate) fn gateway_goes_on(&mut self, gateway: ProcessId, out: &mut Vec<Delivery>) {
        (self.foreign.gateway, self.foreign.follows) = (Some(gateway), false);
        let mut senders: Vec<_> = self.foreign.reaching.senders().collect();
        senders.sort();
        senders.dedup();
        for process in senders {
            if let Some(device) = self.roster.gpu_of(process) {
                // Before it can ask anything.
                self.foreign.tell(ToGateway::Uses { process, device }, out);
            }
        }
        self.say_lives(out);
        let homes = &self.foreign.homes;
        // Together: one by one they might be more than wait for one process.
        let asked: Vec<_> = self.foreign.reaching.asked().collect();
        for actors in asked.chunks(TOLD_AT_ONCE) {
            self.foreign.tell(ToGateway::Reach { actors: actors.to_vec() }, out);
        }
        let told = self.watches.watched().chain(self.registry.named());
        // Of those that are of this host the gateway hears in any case.
        let is_told = |actor: &ActorId| self.is_foreign(*actor) && !homes.has(*actor);
        let mut told: Vec<_> = told.filter(is_told).collect();
        told.sort();
        told.dedup();
        for actors in told.chunks(TOLD_AT_ONCE) {
            self.foreign.tell(ToGateway::Watch { actors: actors.to_vec() }, out);
        }
        for (ticket, (_, _, name)) in &self.foreign.lookups {
            self.foreign.tell(ToGateway::Find { ticket: *ticket, name: name.clone() }, out);
        }
    }

    /// Whether another gateway follows the one that has ended.
    pub(crate) fn gateway_is_to_follow(&self) -> bool {
        self.foreign.follows
    }

    /// Whether an actor of this host is in a process that has not taken all that a gateway before this one
    /// had sent it.
    pub(super) fn has_unread(&self, actor: ActorId) -> bool {
        let Some(process) = self.roster.actor(actor).map(|entry| entry.location.process) else {
            return false;
        };
        self.foreign.unread.iter().any(|gateway| self.reclaims.waits_for(*gateway, process))
    }

    /// A process has read one that has ended to its end, or has ended itself: the gateway is told what it
    /// waits for.
    pub(crate) fn say_wanted(&mut self, out: &mut Vec<Delivery>) {
        if self.foreign.unread.is_empty() {
            return;
        }
        let reclaims = &self.reclaims;
        self.foreign.unread.retain(|gateway| reclaims.is_open(*gateway));
        let wanted = self.foreign.wanted.iter().copied().filter(|actor| !self.has_unread(*actor));
        for actor in wanted.collect::<Vec<_>>() {
            self.foreign.wanted.remove(&actor);
            self.say_where(actor, out);
        }
    }
}
