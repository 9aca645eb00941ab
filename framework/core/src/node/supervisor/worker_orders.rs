//! Orders about workers, and workers that are not needed any more: each of these ends by itself when its
//! actors have ended.
//!
//! Such a worker finishes the work on its streams before it exits. Memory that it owns stays valid for its
//! holders, as after any end (LEASE-4), so the data must have been written.

use std::time::Instant;

use super::node_state::NodeState;
use super::run::SupervisorState;
use super::start_requests::ForActors;
use super::{WorkerId, WorkerOrder};
use crate::node::control::Down;
use crate::node::limits::LEAVE_GRACE;
use crate::transport::lifecycle::EndReason;

impl SupervisorState {
    /// Carries out an order about a worker.
    pub(super) fn obey(&mut self, id: WorkerId, order: WorkerOrder) {
        match order {
            WorkerOrder::Kill => {
                if let Some(worker) = self.node.workers.by_id(id) {
                    worker.give_up("the node was asked to kill it".to_owned());
                }
            }
            WorkerOrder::AskToStop => {
                if let Some(worker) = self.node.workers.by_id(id).filter(|worker| worker.is_running()) {
                    worker.send(&Down::Stopping, Vec::new());
                }
            }
            WorkerOrder::Retire => self.node.retire(id),
            WorkerOrder::LetGo => self.for_actors.let_go(&mut self.node, id),
            WorkerOrder::KeepSpares(count, device) => self.spares.want(&mut self.node, id, count, device),
        }
    }
}

impl ForActors {
    /// Lets a worker end when nothing is left in it. From now on nothing comes back in it.
    pub(super) fn let_go(&mut self, node: &mut NodeState, id: WorkerId) {
        // First, so that an actor that ends from here on has no next life.
        node.forget_restarts(id);
        let Some(index) = node.workers.slot_of(id) else { return };
        let Some(worker) = node.workers.at_mut(index) else { return };
        worker.end.leaves = true;
        if worker.pending.values().any(|pending| pending.first.is_none()) {
            // An actor is coming back just now, and nobody would stop it.
            node.retire(id);
        } else {
            self.leave_if_empty(node, index);
        }
    }

    /// Ends a worker that has nothing left in it, if it was let go or was started for an actor of an actor.
    pub(super) fn leave_if_empty(&mut self, node: &mut NodeState, index: usize) {
        let Some(worker) = node.workers.at_mut(index) else { return };
        let is_empty = worker.pending.is_empty() && node.broker.roster.actors_of(worker.process) == 0;
        let leaves = worker.end.leaves || self.has_made(worker.id);
        if leaves && worker.is_running() && !worker.end.told_to_exit && is_empty {
            worker.leave(Instant::now() + LEAVE_GRACE);
            worker.send(&Down::Leave, Vec::new());
            node.dirty = true;
        }
    }
}

impl NodeState {
    /// Ends a worker at once, in order, with all actors in it.
    pub(super) fn retire(&mut self, id: WorkerId) {
        self.forget_restarts(id);
        let Some(worker) = self.workers.by_id(id) else { return };
        // A process that is only starting again ends when it has started: nothing comes back in it.
        worker.end.leaves = true;
        if worker.is_running() {
            worker.end.told_to_exit = true;
            worker.retire(EndReason::Normal);
            self.dirty = true;
        }
    }

    /// Takes all actors of this worker off their restart policies.
    fn forget_restarts(&mut self, id: WorkerId) {
        let mut told = Vec::new();
        for actor in self.restarts.of(id) {
            self.restarts.forget(actor);
            if self.broker.roster.actor(actor).is_some_and(|entry| entry.away) {
                self.broker.give_up(actor, EndReason::Normal, &mut told);
            }
        }
        self.deliver(told);
        self.restarts.away.retain(|away| away.worker != id);
        self.stay_ended(id);
        // Its spares are not needed either.
        self.dirty = true;
    }
}
