//! Idle actors of other hosts give up their places here, the least recently used one first.
//!
//! A place is given up when the node wants one for another actor. It is kept while a message waits in it, is
//! still under way on the other host, or has no answer. After each of these steps senders can go on as
//! before:
//!
//! 1. The gateway sends [`FromGateway::Rests`]. From now on the actor has a mailbox here but no place.
//! 2. The node tells all processes, which ask it again before they send. Then it answers
//!    [`ToGateway::Rested`], and may give the place to another actor.
//! 3. If nothing arrived meanwhile, the gateway removes the mailbox and tells the other host
//!    ([`Note::Rests`]), which takes its offer back.
//!
//! A process that has not heard of the change still sends to the place. No message is lost by that, because
//! each names its actor. A late one goes into the mailbox that the actor has now, or into a new one without a
//! place, and the gateway asks the actor's host again
//! ([`Gate::late`](crate::transport::gate::Gate::late)). All messages of a process come by one
//! ring, whatever places they name, so they keep their order (HOST-3). A message uses a credit of the place
//! that it named.

use std::sync::atomic::{AtomicBool, Ordering};

use super::mailboxes::{Mailbox, MailboxPlace, Mailboxes};
use super::note::Note;
use super::run::Gateway;
use super::to_node::tell;
use crate::ids::ActorId;
use crate::limits::MAX_ACTORS;
use crate::transport::Transport;
use crate::transport::gateway_messages::FromGateway;

impl Mailbox {
    /// Returns whether no message waits here or is under way to the actor.
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.under_way == 0
    }
}

impl Mailboxes {
    /// Frees a place, because the node wants one for another actor.
    pub(super) fn make_room(&mut self, transport: &Transport) {
        self.places_wanted += 1;
        self.give_places_up(transport);
    }

    /// Takes places from idle actors, as long as the node wants places.
    fn give_places_up(&mut self, transport: &Transport) {
        static SAID: AtomicBool = AtomicBool::new(false);

        while self.places_wanted > 0 {
            let placed = self
                .by_actor
                .iter()
                .filter(|(_, of)| of.is_idle() && matches!(of.place, MailboxPlace::At(_)));
            let Some(actor) = placed.min_by_key(|(_, of)| of.used).map(|(actor, _)| *actor) else {
                if !SAID.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "this host sends to {MAX_ACTORS} actors of other hosts at a time, which all have messages that are not done \
                         with; whoever sends to another waits (said once)"
                    );
                }
                return;
            };
            self.places_wanted -= 1;
            if let Some(mailbox) = self.by_actor.get_mut(&actor) {
                mailbox.place = MailboxPlace::GivenUp;
            }
            tell(transport, FromGateway::Rests { actor });
        }
    }
}

impl Gateway {
    /// Handles the node's word that all processes know that an actor has no place here any more.
    pub(super) fn rested(&mut self, actor: ActorId, told: bool) {
        // An actor that has ended meanwhile has no mailbox.
        let Some(mailbox) = self.mailboxes.get_mut(&actor) else { return };
        mailbox.place = MailboxPlace::Nowhere;
        if told && self.hosts.contains_key(&actor.host()) {
            self.watched.insert(actor);
        }
        self.settle(actor);
    }

    /// Tells the host on which an actor lives, and its home, that this host sends nothing to it for now.
    fn note_rests(&mut self, actor: ActorId) {
        let (home, told) = (actor.host(), self.watched.contains(&actor));
        // Its home hears of what happens to the actor in any case.
        if let Some(host) = self.roaming.host_of(actor, &self.hosts).filter(|host| *host != home) {
            self.note_to(host, &Note::Rests { actor, told: home == self.node.number() });
        }
        self.note_to(home, &Note::Rests { actor, told });
    }

    /// Records that a message or an ask to an actor is finished.
    pub(super) fn less_under_way(&mut self, actor: ActorId) {
        if let Some(mailbox) = self.mailboxes.get_mut(&actor) {
            mailbox.under_way = mailbox.under_way.saturating_sub(1);
            self.settle(actor);
        }
    }

    /// If nothing is under way to an actor any more, offers its place to others, or removes its mailbox if
    /// that has no place.
    pub(super) fn settle(&mut self, actor: ActorId) {
        let Some(mailbox) = self.mailboxes.get(&actor).filter(|mailbox| mailbox.is_idle()) else { return };
        match mailbox.place {
            MailboxPlace::At(_) => self.mailboxes.give_places_up(&self.transport),
            // The node will answer with `Rested`, or give the actor another place.
            MailboxPlace::GivenUp => {}
            MailboxPlace::Nowhere if self.reaching.contains_key(&actor) => {}
            MailboxPlace::Nowhere => {
                self.mailboxes.remove(&actor);
                self.note_rests(actor);
                self.late.is_over(actor);
            }
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc::unbounded_channel;

    use super::super::Door;
    use super::super::command::Command;
    use super::super::proxy::Proxy;
    use crate::ids::ActorId;
    use crate::testing::Cluster;
    use crate::transport::inbox::LocalCredits;

    // HOST-3, HOST-9.
    #[test]
    fn what_comes_for_a_place_that_is_anothers_by_now_keeps_its_order_and_its_credit() {
        let cluster = Cluster::new(2);
        let (to, mut commands) = unbounded_channel();
        let gateway = cluster.transport(1);
        gateway.set_gate(Arc::new(Door(to.clone())));
        let [rests, other] = [2, 3].map(|number| ActorId::numbered(5, number));
        let (mut to_rests, _inbox) = cluster.inbox::<u32>(1, 4);
        let serve = |actor, capacity| {
            let local = LocalCredits::new(capacity);
            let proxy = Arc::new(Proxy { actor, capacity, local, to: to.clone() });
            gateway.serve_at(to_rests.location.index, proxy).expect("a place");
        };
        serve(rests, 4);
        to_rests.actor = rests;
        let mut to_other = to_rests;
        to_other.actor = other;
        cluster.connect();
        (0..3).for_each(|number| cluster.send(0, &to_rests, number));
        serve(other, 2);
        // A process that has not heard that the place has a new actor still sends to it.
        assert!(cluster.try_send(0, &to_other, 9).is_err(), "three of the place's two credits are taken");
        cluster.run_until_idle();
        let mut came = Vec::new();
        while let Ok(Command::Out(out)) = commands.try_recv() {
            assert_eq!(out.actor, rests);
            came.push(out);
        }
        let bodies: Vec<_> = came.iter().map(|out| out.body.to_vec()).collect();
        assert_eq!(bodies, [[0], [1], [2]]);
        assert!(!cluster.gave_up(1, 0), "it had credits for them");
        came.truncate(1);
        cluster.run_until_idle();
        cluster.send(0, &to_other, 9);
        assert!(cluster.try_send(0, &to_other, 10).is_err(), "one of the two is still taken");
        drop(came);
        cluster.run_until_idle();
        cluster.send(0, &to_other, 10);
        assert!(cluster.try_send(0, &to_other, 11).is_err(), "there are two, and not more");
        cluster.run_until_idle();
        let Ok(Command::Out(out)) = commands.try_recv() else { panic!("it came") };
        assert_eq!((out.actor, out.body.to_vec()), (other, vec![9]));

        // An actor that has ended takes nothing more; messages that were on their way still count.
        gateway.actors.pause(to_other.location.index, &gateway.links);
        drop((out, commands.try_recv()));
        cluster.run_until_idle();
        assert!(cluster.try_send(0, &to_other, 12).is_err());
        serve(rests, 2);
        (0..2).for_each(|number| cluster.send(0, &to_rests, number));
        assert!(cluster.try_send(0, &to_rests, 2).is_err());
        // WIRE-1: a message for an actor of this process's own host is never treated as late.
        to_other.actor = ActorId::numbered(0, 77);
        cluster.run_until_idle();
        drop(std::iter::from_fn(|| commands.try_recv().ok()).collect::<Vec<_>>());
        cluster.run_until_idle();
        cluster.send(0, &to_other, 13);
        cluster.run_until_idle();
        assert!(commands.try_recv().is_err());
    }
}
