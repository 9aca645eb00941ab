//! Restart bookkeeping: the actors with a restart policy, the workers and actors between two lives, and how
//! often each worker was restarted.
//!
//! A worker that ends is started again, as the same worker in another process, if one of its actors comes
//! back. Its actors with a policy are then made anew in it, from their arguments. An actor that fails in a
//! worker that goes on is made anew there if others live in it too: its neighbours did nothing wrong. If it
//! was alone, its process is ended and started again. A panic can leave behind a lock that is held, a stream
//! that waits, or a lost context of the driver, and none of these reaches the next life. The supervisor asks
//! the process to exit before it kills it, because under MPS a process that is killed in the middle of a
//! kernel takes others with it.
//!
//! No other worker is touched, unless it restarts together with the one that ended (`groups`). `endings`
//! decides what an end means; `due_restarts` starts workers and actors when they are due. The supervisor's
//! own loop counts and times everything.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::actor::NewActor;
use crate::ids::{ActorId, DeviceId};
use crate::node::group::Group;
use crate::node::limits::MAX_ENDS;
use crate::node::restart::{Budget, Restart, Verdict};
use crate::node::shutdown::RestartReport;
use crate::transport::lifecycle::EndReason;

use super::WorkerId;
use super::record::{GroupRestart, WorkerState};

/// An actor under a restart policy.
pub(super) struct Supervised {
    pub(super) worker: WorkerId,
    /// The arguments that it is made from, the same each time.
    pub(super) made_of: NewActor,
    pub(super) budget: Budget,
    pub(super) group: Option<Group>,
    /// Whether its group was given up: the end of its present life is then final.
    pub(super) marked_final: bool,
    /// The number of its present or last life.
    pub(super) life: u32,
}

/// A worker between two lives.
pub(super) struct Between {
    pub(super) worker: WorkerId,
    pub(super) name: Arc<str>,
    /// Its last slot; it goes there again, if it can.
    pub(super) slot: usize,
    pub(super) at: Instant,
    /// The rounds in which it ended together with others; it waits for the ends of all workers in them.
    pub(super) rounds: Vec<u64>,
    /// How its last life ended.
    pub(super) ended: WorkerState,
}

/// An actor between two lives in a worker that goes on.
pub(super) struct Away {
    pub(super) actor: ActorId,
    pub(super) worker: WorkerId,
    pub(super) at: Instant,
}

/// How the lives of a worker ended.
struct History {
    name: String,
    restarts: u32,
    ends: VecDeque<EndReason>,
}

/// The restart bookkeeping of a node.
#[derive(Default)]
pub(super) struct Restarts {
    pub(super) supervised: HashMap<ActorId, Supervised>,
    pub(super) between: Vec<Between>,
    pub(super) away: Vec<Away>,
    histories: HashMap<WorkerId, History>,
    pub(super) last_round: u64,
}

/// The decisions about the actors of a worker that ended.
#[derive(Default)]
pub(super) struct RestartDecisions {
    pub(super) restarting: Vec<ActorId>,
    pub(super) gave_up: Vec<ActorId>,
    pub(super) delay: Duration,
}

impl Restarts {
    /// Returns the supervised actors of a worker.
    pub(super) fn of(&self, worker: WorkerId) -> Vec<ActorId> {
        let mut actors: Vec<_> = self
            .supervised
            .iter()
            .filter(|(_, supervised)| supervised.worker == worker)
            .map(|(id, _)| *id)
            .collect();
        actors.sort();
        actors
    }

    /// Returns the workers with an actor that would come back after a failure.
    pub(super) fn those_that_come_back(&self) -> HashSet<WorkerId> {
        let all = self.supervised.values();
        let come_back = all
            .filter(|supervised| !supervised.marked_final && supervised.budget.policy().when().after(true));
        come_back.map(|supervised| supervised.worker).collect()
    }

    /// Returns the devices of a worker's actors.
    pub(super) fn devices_of(&self, worker: WorkerId) -> HashSet<DeviceId> {
        let all = self.supervised.values().filter(|supervised| supervised.worker == worker);
        all.map(|supervised| supervised.made_of.device).collect()
    }

    /// Returns the policy of one of a worker's actors.
    pub(super) fn policy_of(&self, worker: WorkerId) -> Option<Restart> {
        let mut all = self.supervised.values();
        all.find(|supervised| supervised.worker == worker).map(|supervised| supervised.budget.policy())
    }

    /// Decides which of a worker's actors come back after it ended for `reason`, and when.
    pub(super) fn decisions(
        &mut self,
        worker: WorkerId,
        reason: &EndReason,
        group_restart: Option<GroupRestart>,
        now: Instant,
    ) -> RestartDecisions {
        let mut decisions = RestartDecisions::default();
        for actor in self.of(worker) {
            let Some(supervised) = self.supervised.get_mut(&actor) else { continue };
            let verdict = match group_restart {
                _ if supervised.marked_final => Verdict::UsedUp,
                // A failure of others costs no budget.
                Some(group_restart) if supervised.budget.policy().when().after(true) => {
                    Verdict::Restart(group_restart.at.saturating_duration_since(now))
                }
                Some(_) => Verdict::Final,
                None => supervised.budget.spend(reason, now),
            };
            match verdict {
                Verdict::Restart(delay) => {
                    decisions.delay = decisions.delay.max(delay);
                    decisions.restarting.push(actor);
                }
                Verdict::UsedUp => decisions.gave_up.push(actor),
                Verdict::Final => {
                    self.supervised.remove(&actor);
                }
            }
        }
        decisions
    }

    /// Returns the groups that restart as one because of this end, and the groups that are given up.
    pub(super) fn groups_hit(
        &self,
        decisions: &RestartDecisions,
        reason: &EndReason,
    ) -> (Vec<Group>, Vec<Group>) {
        let of = |actors: &[ActorId]| {
            let mut groups: Vec<Group> = Vec::new();
            for actor in actors {
                let group = self.supervised.get(actor).and_then(|supervised| supervised.group.as_ref());
                if let Some(group) = group.filter(|group| group.is_one() && !groups.contains(group)) {
                    groups.push(group.clone());
                }
            }
            groups
        };
        if !reason.is_failure() {
            return (Vec::new(), Vec::new());
        }
        let given_up = of(&decisions.gave_up);
        let mut hit = of(&decisions.restarting);
        hit.extend(given_up.iter().filter(|group| !hit.contains(group)).cloned().collect::<Vec<_>>());
        (hit, given_up)
    }

    /// Returns the groups that restart as one and have actors in these workers.
    pub(super) fn groups_of(&self, workers: &HashSet<WorkerId>) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let supervised = self.supervised.values().filter(|supervised| workers.contains(&supervised.worker));
        for group in
            supervised.filter_map(|supervised| supervised.group.as_ref()).filter(|group| group.is_one())
        {
            if !groups.contains(group) {
                groups.push(group.clone());
            }
        }
        groups
    }

    /// Returns the workers in which these groups have actors.
    pub(super) fn workers_in(&self, groups: &[Group]) -> Vec<WorkerId> {
        let is_in =
            |supervised: &&Supervised| supervised.group.as_ref().is_some_and(|group| groups.contains(group));
        self.supervised.values().filter(is_in).map(|supervised| supervised.worker).collect()
    }

    pub(super) fn members(&self, group: &Group) -> Vec<(ActorId, WorkerId)> {
        let members = self.supervised.iter().filter(|(actor, _)| self.is_in(**actor, group));
        members.map(|(actor, supervised)| (*actor, supervised.worker)).collect()
    }

    pub(super) fn is_in(&self, actor: ActorId, group: &Group) -> bool {
        self.supervised.get(&actor).is_some_and(|supervised| supervised.group.as_ref() == Some(group))
    }

    /// Marks the end of an actor's present life as final.
    pub(super) fn mark_final(&mut self, actor: ActorId) {
        if let Some(supervised) = self.supervised.get_mut(&actor) {
            supervised.marked_final = true;
        }
    }

    /// Takes an actor off its restart policy.
    pub(super) fn forget(&mut self, actor: ActorId) {
        self.supervised.remove(&actor);
    }

    pub(super) fn note_end(&mut self, worker: WorkerId, name: &str, reason: &EndReason, restarts: bool) {
        let history = self.histories.entry(worker).or_insert_with(|| History {
            name: name.to_owned(),
            restarts: 0,
            ends: VecDeque::new(),
        });
        history.restarts += u32::from(restarts);
        if history.ends.len() >= MAX_ENDS {
            history.ends.pop_front();
        }
        history.ends.push_back(reason.clone());
    }

    /// Returns how often a worker, or an actor in it, was restarted, and the reason of the last restart.
    pub(super) fn of_worker(&self, worker: WorkerId) -> (u32, Option<EndReason>) {
        self.histories.get(&worker).map_or((0, None), |past| (past.restarts, past.ends.back().cloned()))
    }

    /// Returns all ends that nobody asked for, by worker.
    pub(super) fn report(&self) -> Vec<RestartReport> {
        let mut report: Vec<_> = self
            .histories
            .iter()
            .map(|(worker, past)| RestartReport {
                worker: *worker,
                name: past.name.clone(),
                restarts: past.restarts,
                ends: past.ends.iter().cloned().collect(),
            })
            .collect();
        report.sort_by_key(|past| past.worker);
        report
    }

    /// Returns how the last life of a worker between two lives ended.
    pub(super) fn last_end(&self, worker: WorkerId) -> Option<WorkerState> {
        self.between.iter().find(|between| between.worker == worker).map(|between| between.ended.clone())
    }

    /// Whether a slot waits for the next life of its worker.
    pub(super) fn reserves(&self, slot: usize) -> bool {
        self.between.iter().any(|between| between.slot == slot)
    }
}
