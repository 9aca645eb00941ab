//! The faults of a tiny pipeline: an error that fails it, deaths and new lives, partners and items that do
//! not come. Those who wait are told.

use std::collections::BTreeSet;

use tensorpost_core::api::node::Restart;

use crate::pairs::Partner;

use super::steps::Model;
use super::world::{Actor, At, Call, Content, Kept, Lane, Message, Piece, World};
use super::{Act, Flaw};

impl Model {
    /// `Part::failed`: the stage gives up and names all that it has, and the sources are stopped.
    pub(super) fn fail(&self, world: &mut World, actor: usize, piece: Piece) {
        let here = &mut world.actors[actor];
        here.failed = true;
        if self.flaw != Flaw::KeepsOnFailure {
            let kept = std::mem::take(&mut here.kept);
            world.named.extend(kept.iter().flat_map(|kept| &kept.piece.ids));
        }
        world.named.extend(&piece.ids);
        (world.failed, world.stopping) = (true, true);
        self.close(world, actor, piece.order, piece.guards);
    }

    /// A process ends, with all that is in it.
    pub(super) fn die(&self, world: &mut World, actor: usize) {
        let stage = self.actors[actor].0;
        let comes_back = self.shape.plan.restart(stage) != Restart::never();
        (world.deaths, world.died) = (world.deaths - 1, true);
        let before = std::mem::take(&mut world.actors[actor]);
        let at = if comes_back { At::Down } else { At::Gone };
        world.actors[actor] = Actor { at, life: before.life, made: before.made, ..Actor::default() };
        if self.is_source(actor) {
            // A source that dies loses the items that it had not sent.
            world.named.extend(before.pending.iter().flat_map(|piece| &piece.ids));
        }
        for (key, message) in &mut world.messages {
            message.orphan |= key.1 == actor;
        }
        let mut lost = Vec::new();
        world.messages.retain(|key, message| {
            if message.to == actor {
                lost.push((key.1, message.clone()));
            }
            message.to != actor
        });
        for (sender, message) in lost {
            self.unanswered(world, sender, message, comes_back);
        }
        // `Conductor::died`: the run goes on only if another replica takes the items.
        let others = self.replicas[stage].iter().any(|other| world.actors[*other].at != At::Gone);
        world.stopping |= !(comes_back || (self.resends() && others));
    }

    /// `Branch::unanswered`: a message that its receiver had accepted is sent again or named, and its place
    /// in an order is closed.
    fn unanswered(&self, world: &mut World, sender: usize, message: Message, comes_back: bool) {
        let Message { piece, to, orphan, .. } = message;
        if orphan || !world.actors[sender].is_alive() {
            return;
        }
        let again = match piece.content {
            Content::End => Some(piece).filter(|_| comes_back),
            Content::Gap => Some(piece).filter(|_| self.replicas[self.actors[to].0].len() > 1),
            Content::Item if self.resends() => Some(piece),
            Content::Item => {
                world.named.extend(&piece.ids);
                let gap = |order| Piece {
                    content: Content::Gap,
                    edge: piece.edge,
                    order: Some(order),
                    ..Piece::default()
                };
                piece.order.map(gap)
            }
        };
        world.actors[sender].beside.extend(again);
    }

    /// `Conductor::brief`: a new life hears which senders are over.
    pub(super) fn begin_anew(&self, world: &mut World, actor: usize) {
        let is_over = |lane: &&Lane| {
            matches!(world.actors[lane.1].at, At::Done | At::Gone) && !self.has_mail(world, actor, lane)
        };
        let over: BTreeSet<Lane> = self.lanes[actor].iter().filter(is_over).copied().collect();
        let here = &mut world.actors[actor];
        (here.at, here.over) = (At::Running, over);
        here.life += 1;
        self.check_ends(world, actor);
    }

    /// Whether messages of a sender wait in an actor's mailbox.
    fn has_mail(&self, world: &World, actor: usize, lane: &Lane) -> bool {
        world.mailbox(actor).iter().any(|key| (key.0, key.1) == *lane)
    }

    /// `Conductor::tell_exited`: returns the dead senders whose last messages an actor has read.
    pub(super) fn untold(&self, world: &World, actor: usize) -> Vec<Lane> {
        let here = &world.actors[actor];
        if here.at != At::Running || self.flaw == Flaw::UntoldDeath {
            return Vec::new();
        }
        let is_told_next = |lane: &&Lane| {
            let is_new = world.actors[lane.1].at == At::Gone && !here.over.contains(*lane);
            is_new && !self.has_mail(world, actor, lane)
        };
        self.lanes[actor].iter().filter(is_told_next).copied().collect()
    }

    /// `ForkTracker::alone`: returns the half in a `zip` whose partner does not come.
    pub(super) fn alone(&self, world: &World, fork: usize, partner: &Partner, zip: usize) -> Option<usize> {
        let (from, here) = (&world.actors[fork], &world.actors[zip]);
        if !here.is_alive() || !here.pending.is_empty() {
            return None;
        }
        let edges = &self.edges[self.actors[fork].0];
        let is_open = |id: u8, edge: usize| {
            let all = from.pending.iter().chain(&from.beside).filter(|piece| piece.edge == edge);
            all.chain(world.unanswered(fork, edge)).any(|piece| piece.ids.contains(&id))
        };
        let is_alone = |half: &Kept| {
            let id = half.piece.ids[0];
            let mut needed = partner.branches.iter().map(|branch| edges[usize::from(*branch)]);
            half.left != partner.left
                && needed.all(|edge| !is_open(id, edge))
                && edges.iter().any(|edge| is_open(id, *edge))
        };
        here.kept.iter().position(is_alone)
    }

    /// `Core::go_on`: returns the state after the conductor's reminder, if that changes anything.
    pub(super) fn remind(&self, world: &World) -> Option<World> {
        (0..self.actors.len()).find_map(|actor| {
            let (stage, here) = (self.actors[actor].0, &world.actors[actor]);
            if !here.is_alive() || !here.pending.is_empty() {
                return None;
            }
            let mut next = world.clone();
            if matches!(self.shape.acts[stage], Act::Zip) && self.resends() && !here.kept.is_empty() {
                let half = next.actors[actor].kept.remove(0);
                next.left_over.extend(half.piece.ids);
            } else if world.died
                && self.restores(world, actor)
                && here.order.iter().any(|call| call.early().is_some())
            {
                next.actors[actor].order.push(Call::Skip);
                self.in_order(&mut next, actor, false);
            } else {
                return None;
            }
            next.settle();
            Some(next)
        })
    }
}
