//! The consequences of an end: which actors come back, which do not, and which processes are told.
//!
//! `decide` runs when a worker's process has ended, `actor_failed` when one actor ended in a worker that goes
//! on. Both decide first, then change the roster and the budgets and collect the deliveries;
//! `NodeState::deliver` sends them last. All deliveries keep one order: the news which actors come back
//! goes out before the news that the process is gone. So a process that sees the broken link does not tell a
//! sender that an actor is gone although it is about to return (DEATH-2).

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Instant;

use crate::actor::NewActor;
use crate::ids::{ActorId, ProcessId};
use crate::node::broker::Delivery;
use crate::node::group::{Group, Supervision};
use crate::node::restart::{Budget, Verdict};
use crate::observe::log::Severity;
use crate::transport::lifecycle::{EndReason, Lifecycle, ProcessDown};

use super::WorkerId;
use super::error::hint;
use super::node_state::NodeState;
use super::record::{Worker, WorkerState};
use super::restarts::{Away, Between, RestartDecisions, Supervised};
use super::run::SupervisorState;

impl SupervisorState {
    /// Decides the fate of the actors of a worker whose process has ended for `reason`, queues its restart,
    /// and adds the news for others to `told`. Returns whether the worker comes back.
    pub(super) fn decide(
        &mut self,
        index: usize,
        worker: &Worker,
        reason: &EndReason,
        ended: WorkerState,
        told: &mut Vec<Delivery>,
    ) -> bool {
        let (is_replaced, effect) = self.neighbours.has_ended(&mut self.node, worker.process, reason, told);
        self.carry_out(effect);
        // The decision first, while the budgets and groups are as the end found them. A worker that ended in
        // another worker's round begins no round: under MPS each client reports the fault of one.
        let now = Instant::now();
        let mut rounds: Vec<_> =
            worker.group_restart.iter().map(|group_restart| group_restart.round).collect();
        let mut decisions = RestartDecisions::default();
        let kill = Some(rustix::process::Signal::KILL.as_raw());
        let was_killed =
            matches!(&ended, WorkerState::Exited { exit: Some(exit), .. } if exit.signal() == kill);
        // In a shutdown nothing comes back.
        if self.node.stopping.is_none() {
            decisions = self.node.restarts.decisions(worker.id, reason, worker.group_restart, now);
            // A worker that was marked to restart with others has its round already, so it decides for no
            // other worker. A spare does not either: it ran no kernel to die in.
            if rounds.is_empty() && worker.spare.is_none() {
                rounds = self.restart_with_group(worker, (reason, was_killed), &mut decisions, now, told);
            }
        }
        // Forgotten before anything is told, so that no later step finds a policy that is used up. Actors
        // that were between two lives in this process begin the next one with the others, and not after their
        // own backoff.
        decisions.gave_up.iter().for_each(|actor| self.node.restarts.forget(*actor));
        self.node.restarts.away.retain(|away| away.worker != worker.id);
        // Built before `on_process_down` changes the roster, because it names the location of each actor in
        // the life that ended.
        let roster = &self.node.broker.roster;
        let location = |actor: &ActorId| Some((*actor, roster.actor(*actor)?.location));
        let process_down = ProcessDown {
            process: worker.process,
            worker: worker.name.to_string(),
            reason: reason.clone(),
            restarting: decisions.restarting.iter().filter_map(location).collect(),
            gave_up: decisions.gave_up.clone(),
        };
        // The events are made before `on_process_down`, which removes the actors from the process's list, and
        // told after it. So a watcher that hears of an end and sends to the actor finds its address waiting
        // for the next life, and not broken.
        let mut events = self.events_of(worker.process, reason, &decisions);
        // First the actors' locations, for senders; then the events, for watchers: a watcher that hears that
        // an actor is down can find out by a send whether it comes back.
        self.node.broker.on_process_down(process_down, told);
        events.drain(..).for_each(|event| self.node.broker.tell(&event, told));
        let comes_back = !decisions.restarting.is_empty();
        if comes_back || !decisions.gave_up.is_empty() {
            self.node.restarts.note_end(worker.id, &worker.name, reason, comes_back);
        }
        if !decisions.gave_up.is_empty() {
            let text = format!(
                "worker `{}`: {} of its actors are not restarted any more, their restarts are used up; last: {reason}",
                worker.name,
                decisions.gave_up.len()
            );
            self.node.journal.node(Severity::Error, Some(&worker.name), text);
        }
        if comes_back {
            // If the system ended it, the next life may end in the same way, so the hint matters.
            let hint = match reason {
                EndReason::Signal(number) => hint(&Some(ExitStatus::from_raw(*number))),
                _ => "",
            };
            let text =
                format!("worker `{}` is restarted in {:?}: {reason}{hint}", worker.name, decisions.delay);
            self.node.journal.node(Severity::Warn, Some(&worker.name), text);
            // The slot stays reserved for the worker from here on; `rounds` hold it back until its companions
            // have ended too.
            let (worker, name, at) = (worker.id, worker.name.clone(), now + decisions.delay);
            self.node.restarts.between.push(Between { worker, name, slot: index, at, rounds, ended });
        }
        comes_back || is_replaced
    }

    /// Returns the events for watchers of the actors of a process that ended.
    fn events_of(
        &self,
        process: ProcessId,
        reason: &EndReason,
        decisions: &RestartDecisions,
    ) -> Vec<Lifecycle> {
        let mut actors = self.node.broker.roster.those_in(process);
        // An actor between two lives in a process that went on is not in the roster's list, because its last
        // end was told when it came. It is added only if it does not come back, which is news.
        actors.extend(decisions.gave_up.iter().filter(|actor| !actors.contains(actor)).collect::<Vec<_>>());
        actors.sort();
        let event = |actor| {
            if decisions.gave_up.contains(&actor) {
                return Lifecycle::GaveUp { actor, reason: reason.clone() };
            }
            let will_restart = decisions.restarting.contains(&actor);
            // An actor that roams continues elsewhere when this host leaves.
            let leaves = self.is_missed_by_other_hosts(actor) && self.node.stopping.is_some();
            let reason = if leaves { EndReason::NodeStopped } else { reason.clone() };
            Lifecycle::Down { actor, reason, will_restart }
        };
        actors.into_iter().map(event).collect()
    }

    /// Tells every process that waits for an actor's next life that none comes, because the node shuts down.
    pub(super) fn end_restarts(&mut self) {
        self.gpu_probes = Default::default();
        // Cleared before anybody is told, so that nothing is started while the messages go out.
        self.node.restarts.between.clear();
        self.node.restarts.away.clear();
        let mut told = Vec::new();
        let supervised = std::mem::take(&mut self.node.restarts.supervised);
        self.neighbours.restarts_end(&supervised);
        for actor in supervised.into_keys() {
            if self.node.broker.roster.actor(actor).is_some_and(|entry| entry.away) {
                self.node.broker.give_up(actor, EndReason::NodeStopped, &mut told);
            }
        }
        self.node.deliver(told);
    }
}

impl NodeState {
    /// Puts `actor` under its restart policy `how`.
    pub(super) fn supervise(
        &mut self,
        actor: ActorId,
        worker: WorkerId,
        made_of: NewActor,
        how: Supervision,
        life: u32,
    ) {
        let Supervision { restart, group } = how;
        let supervised =
            Supervised { worker, made_of, budget: Budget::new(restart), group, marked_final: false, life };
        self.restarts.supervised.insert(actor, supervised);
    }

    /// Takes a worker off the restart list if none of its actors comes back any more.
    pub(super) fn stay_ended(&mut self, id: WorkerId) {
        if !self.restarts.of(id).is_empty() {
            return;
        }
        let Some(at) = self.restarts.between.iter().position(|between| between.worker == id) else { return };
        let Between { ended, .. } = self.restarts.between.swap_remove(at);
        if let Some(last) = self.workers.last_of_mut(id) {
            last.state = ended;
        }
        self.dirty = true;
    }

    /// Handles the end of a supervised actor in a worker that goes on. Returns false if the actor is not
    /// supervised, or if its policy does not restart it after such an end; the caller then tells of its end.
    pub(super) fn actor_failed(&mut self, index: usize, actor: ActorId, reason: EndReason) -> bool {
        let Some(worker) = self.workers.at_mut(index) else { return false };
        let Some(supervised) = self.restarts.supervised.get_mut(&actor) else { return false };
        if !supervised.budget.policy().when().after(reason.is_failure()) || self.stopping.is_some() {
            self.restarts.supervised.remove(&actor);
            return false;
        }
        // An actor that the worker is still starting counts too: it would go down with the process.
        let alone = self.broker.roster.actors_of(worker.process) <= 1 && worker.pending.is_empty();
        let group = supervised.group.as_ref().is_some_and(Group::is_one) && reason.is_failure();
        if alone || group || supervised.marked_final {
            // The actor is alone, or in a group that restarts as one, or its group was given up: the process
            // ends with it. Nothing is charged here, or the failure would count twice: `decide` charges the
            // actor when the process has ended.
            worker.retire(reason);
            self.dirty = true;
            return true;
        }
        // Others live in the process, so it goes on and only the actor is made anew.
        let now = Instant::now();
        let verdict = supervised.budget.spend(&reason, now);
        let (id, name) = (worker.id, worker.name.clone());
        self.restarts.note_end(id, &name, &reason, matches!(verdict, Verdict::Restart(_)));
        let mut told = Vec::new();
        let event = if let Verdict::Restart(delay) = verdict {
            // Detached before it is announced: the announcement then says that the actor has no location for
            // now, so its senders wait.
            self.broker.roster.detach(actor);
            self.restarts.away.push(Away { actor, worker: id, at: now + delay });
            let text = format!("{actor} in worker `{name}` is restarted in {delay:?}: {reason}");
            self.journal.node(Severity::Warn, Some(&name), text);
            Lifecycle::Down { actor, reason, will_restart: true }
        } else {
            let text = format!("{actor} in worker `{name}` ended, its restarts are used up: {reason}");
            self.journal.node(Severity::Error, Some(&name), text);
            self.restarts.supervised.remove(&actor);
            self.broker.given_up(actor, reason.clone());
            Lifecycle::GaveUp { actor, reason }
        };
        // First the actor's location, then the event: a watcher that hears the event and sends finds the new
        // state.
        self.broker.announce(actor, &mut told);
        self.broker.tell(&event, &mut told);
        self.deliver(told);
        self.dirty = true;
        true
    }

    /// Tells the senders and watchers that wait for an actor's next life that it has ended for good.
    pub(super) fn actor_given_up(&mut self, actor: ActorId, reason: EndReason) {
        self.with_broker(|broker, told| broker.give_up(actor, reason, told));
    }
}
