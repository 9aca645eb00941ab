//! Restarts of several workers together: the workers of a group that restarts as one, and under MPS the
//! workers on one GPU.
//!
//! When a worker fails, the supervisor first finds all workers that restart with it, also indirectly: a
//! worker may be in several groups. It ends them as one *round*. The end of a worker in a round costs nobody
//! a restart and begins no round of its own, even if the worker itself reports a failure meanwhile: under MPS
//! each client reports the fault of one. No worker of a round begins its next life before the last of them
//! has ended. A client that starts earlier meets an MPS server that still refuses it, and actors that belong
//! together should not meet in different lives.
//!
//! Under MPS a fault costs all clients of the GPU their context. The death of a client that was killed may do
//! so too; the supervisor asks the other clients whether it did (`gpu_probes`).
//!
//! `hosts/groups.rs` handles groups whose actors are on several hosts.

use std::collections::HashSet;
use std::fmt;
use std::time::Instant;

use crate::ids::DeviceId;
use crate::node::broker::Delivery;
use crate::node::group::Group;
use crate::transport::lifecycle::EndReason;

use super::WorkerId;
use super::node_state::NodeState;
use super::record::{GroupRestart, Worker, WorkerPhase};
use super::restarts::RestartDecisions;
use super::run::SupervisorState;

impl SupervisorState {
    /// Ends the workers that restart with `worker`. It has failed for `reason`, or was killed while it ended
    /// for that reason; `decisions` are the decisions about its actors. Returns the rounds of the ended
    /// workers.
    pub(super) fn restart_with_group(
        &mut self,
        worker: &Worker,
        (reason, was_killed): (&EndReason, bool),
        decisions: &mut RestartDecisions,
        now: Instant,
        told: &mut Vec<Delivery>,
    ) -> Vec<u64> {
        let shares = self.node.settings.time_slices.is_none();
        let is_fault = |reason: &EndReason| matches!(reason, EndReason::GpuFault(_));
        // A client that works notices the loss of the GPU, and reports it, before the node sees the end of
        // the client that was killed.
        let was_said = || {
            let mut others = self.node.workers.iter();
            others.any(|other| {
                other.end.cause.as_ref().is_some_and(is_fault) && !other.gpus.is_disjoint(&worker.gpus)
            })
        };
        let lost_gpu = shares && (is_fault(reason) || was_killed && was_said());
        let (ones, given_up) = self.node.restarts.groups_hit(decisions, reason);
        let lost = if lost_gpu { worker.gpus.clone() } else { HashSet::new() };
        let (groups, workers) = self.node.who_restarts_with(ones, Some((Some(worker.id), &lost)));
        // Even if no worker is left to end: actors of the group may be between two lives.
        self.node.give_up_groups(&given_up, Some(worker.id), &reason, decisions, told);
        let text = format!("worker `{}` failed: {reason}", worker.name);
        self.neighbours.groups_fail(&mut self.node, &groups, &given_up, decisions.delay, &text);
        let at = now + decisions.delay;
        let mut rounds = self.node.end_together(workers, at, &text, lost_gpu);
        if shares && !lost_gpu && (was_killed || may_lose_gpu(reason)) {
            rounds.extend(self.gpu_probes.ask_who_has_lost(&mut self.node, worker, &text, at));
        }
        rounds
    }

    /// Ends all workers on these GPUs, because of `text`: the GPUs were lost with workers that were killed.
    /// The next lives begin at the time `at`, or when all have ended, if that is later.
    pub(super) fn gpus_were_lost(&mut self, gpus: &HashSet<DeviceId>, text: &str, at: Instant) {
        let (groups, workers) = self.node.who_restarts_with(Vec::new(), Some((None, gpus)));
        let delay = at.saturating_duration_since(Instant::now());
        self.neighbours.groups_fail(&mut self.node, &groups, &[], delay, text);
        self.node.end_together(workers, at, text, true);
    }
}

impl NodeState {
    /// Finds all groups and workers that restart with the members of the groups `ones`, before any of them is
    /// ended. These are the members' workers, the other groups of these workers, and so on. If a GPU was lost
    /// with the worker that failed (under MPS), the workers on any GPU of these workers belong to them too.
    /// The failed worker itself is left out: `decide` handles its end.
    pub(super) fn who_restarts_with(
        &self,
        mut ones: Vec<Group>,
        failed: Option<(Option<WorkerId>, &HashSet<DeviceId>)>,
    ) -> (Vec<Group>, HashSet<WorkerId>) {
        let dead = failed.and_then(|(worker, _)| worker);
        let mut workers = HashSet::new();
        // It ends because both sets only grow and are bounded.
        loop {
            let before = (ones.len(), workers.len());
            let members = self.restarts.workers_in(&ones).into_iter();
            workers.extend(members.filter(|id| Some(*id) != dead && self.is_there(*id)));
            let further = self.restarts.groups_of(&workers).into_iter();
            let further: Vec<_> = further.filter(|group| !ones.contains(group)).collect();
            ones.extend(further);
            if let Some((worker, lost)) = failed.filter(|(_, lost)| !lost.is_empty()) {
                let on_gpus = self.on_gpus_of(lost, &workers);
                workers.extend(on_gpus.filter(|id| Some(*id) != worker));
            }
            if before == (ones.len(), workers.len()) {
                return (ones, workers);
            }
        }
    }

    /// Ends these workers as one round, whose next lives begin at `at`. Returns the rounds that they are in:
    /// workers that were ending already may be in an earlier round.
    pub(super) fn end_together(
        &mut self,
        workers: HashSet<WorkerId>,
        at: Instant,
        text: &str,
        lost_gpu: bool,
    ) -> Vec<u64> {
        if workers.is_empty() {
            return Vec::new();
        }
        // One number and one time for all: `slot_for` holds each next life back until the whole round has
        // ended.
        self.restarts.last_round += 1;
        let group_restart = GroupRestart { round: self.restarts.last_round, at };
        let (mut rounds, mut gpus) = (Vec::new(), HashSet::new());
        for id in workers {
            if let Some(companion) = self.workers.by_id(id) {
                companion.end_with_group(group_restart, text, lost_gpu);
                rounds.extend(companion.group_restart.map(|group_restart| group_restart.round));
                gpus.extend(&companion.gpus);
            }
        }
        rounds.sort_unstable();
        rounds.dedup();
        if lost_gpu {
            // A worker that ended earlier, for any reason, and has not begun its next life yet would meet an
            // MPS server that refuses it. So it waits for this round too.
            let waits: Vec<_> = (self.restarts.between.iter())
                .map(|next| !self.restarts.devices_of(next.worker).is_disjoint(&gpus))
                .collect();
            for (next, _) in self.restarts.between.iter_mut().zip(waits).filter(|(_, waits)| *waits) {
                next.rounds.extend(&rounds);
            }
        }
        self.dirty = true;
        rounds
    }

    /// Returns the workers on any of these GPUs, or on a GPU of one of `workers`.
    fn on_gpus_of(
        &self,
        lost: &HashSet<DeviceId>,
        workers: &HashSet<WorkerId>,
    ) -> impl Iterator<Item = WorkerId> + use<> {
        let living = || self.workers.iter();
        let mut gpus = lost.clone();
        gpus.extend(living().filter(|worker| workers.contains(&worker.id)).flat_map(|worker| &worker.gpus));
        let on = living().filter(|worker| !worker.gpus.is_disjoint(&gpus)).map(|worker| worker.id);
        on.collect::<Vec<_>>().into_iter()
    }

    fn is_there(&self, id: WorkerId) -> bool {
        self.workers.slot_of(id).is_some()
    }

    /// Gives up all actors of these groups, because one member of each does not come back, for the reason
    /// `why`.
    pub(super) fn give_up_groups(
        &mut self,
        groups: &[Group],
        dead: Option<WorkerId>,
        why: &dyn fmt::Display,
        decisions: &mut RestartDecisions,
        told: &mut Vec<Delivery>,
    ) {
        for group in groups {
            // Actors of the dead worker itself: `decide` announces them.
            let here: Vec<_> =
                decisions.restarting.extract_if(.., |actor| self.restarts.is_in(*actor, group)).collect();
            here.iter().for_each(|actor| self.restarts.forget(*actor));
            decisions.gave_up.extend(here);
            for (actor, worker) in self.restarts.members(group) {
                if Some(worker) == dead || self.workers.by_id(worker).is_some() {
                    // It still runs, so it is marked now and given up when its process has ended.
                    self.restarts.mark_final(actor);
                    continue;
                }
                // It is between two lives, so there is no process to end.
                self.restarts.forget(actor);
                let reason = EndReason::Group(format!("its group `{}` was given up: {why}", group.name()));
                self.broker.give_up(actor, reason, told);
                self.stay_ended(worker);
            }
        }
    }

    /// Whether a worker of one of these rounds has still to end.
    pub(super) fn is_ending(&self, rounds: &[u64]) -> bool {
        let is_of_them = |worker: &Worker| {
            worker.group_restart.is_some_and(|group_restart| rounds.contains(&group_restart.round))
        };
        !rounds.is_empty() && self.workers.iter().any(is_of_them)
    }
}

/// Whether such an end may have come in the middle of a kernel, which under MPS costs all clients of the GPU
/// their context. A worker that exits by itself, after a handler's panic for example, finishes its kernels
/// first; a broken worker does not.
fn may_lose_gpu(reason: &EndReason) -> bool {
    matches!(
        reason,
        EndReason::Signal(_) | EndReason::KilledByNode(_) | EndReason::Hung(_) | EndReason::Broken(_)
    )
}

impl Worker {
    /// Ends it with the others of a round. It is killed at once if its GPU is lost anyway, and asked to exit
    /// otherwise.
    fn end_with_group(&mut self, group_restart: GroupRestart, text: &str, at_once: bool) {
        // A worker that is ending by itself already joins the round as well: it ends for the same failure, or
        // at the same time.
        if self.group_restart.is_some() || self.end.told_to_exit {
            return;
        }
        self.group_restart = Some(group_restart);
        if at_once {
            // The first cause counts: it may have reported a fault of its own that led here.
            self.end.because(EndReason::Group, text.to_owned());
            self.kill();
        } else if !matches!(self.phase, WorkerPhase::Ending) {
            self.retire(EndReason::Group(text.to_owned()));
        }
    }
}
