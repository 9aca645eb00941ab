//! Restart bookkeeping: the actors with a restart policy, what is between two lives, and how often each was restarted.
//!
//! A worker that ends is started again, as the same worker in another process, if one of its actors comes back. Its
//! actors with a policy are then made anew in it, from their arguments. An actor that fails in a worker that goes on is
//! made anew there if others live in it too: its neighbours did nothing wrong. If it was alone, its process is ended
//! and started again: a panic can leave behind a lock that is held, a stream that waits, or a context of the driver
//! that is lost, and nothing of that reaches the next life. The process is asked to exit before it is killed, because
//! under MPS a process that is killed in the middle of a kernel takes others with it.
//!
//! Nothing else is touched, unless it shares the fate of what ended (`groups`). `endings` decides what an end means;
//! `comebacks` starts what is due. Everything is counted and timed on the supervisor's own loop.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ids::ActorId;
use crate::mailbox::lives::EndReason;
use crate::node::group::Group;
use crate::node::host::NewActor;
use crate::node::limits::MAX_ENDS;
use crate::node::restart::{Budget, Verdict};

use super::groups::Condemned;
use super::record::WorkerState;
use super::{RestartReport, WorkerId};

/// An actor under a restart policy.
pub(super) struct Charge {
    pub(super) worker: WorkerId,
    /// The order to start it, the same each time.
    pub(super) made_of: NewActor,
    pub(super) budget: Budget,
    pub(super) group: Option<Group>,
    /// Its group was given up: the end of its present life is final.
    pub(super) doomed: bool,
    /// The number of its present or last life.
    pub(super) life: u32,
}

/// A worker between two lives.
pub(super) struct Between {
    pub(super) worker: WorkerId,
    pub(super) name: Arc<str>,
    /// Where it was; it goes there again, if it can.
    pub(super) slot: usize,
    pub(super) at: Instant,
    /// Ended together with others, which it waits for.
    pub(super) round: Option<u64>,
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
    pub(super) charges: HashMap<ActorId, Charge>,
    pub(super) between: Vec<Between>,
    pub(super) away: Vec<Away>,
    histories: HashMap<WorkerId, History>,
    pub(super) last_round: u64,
}

/// The decision on the actors of a worker that ended.
#[derive(Default)]
pub(super) struct Fates {
    pub(super) restarting: Vec<ActorId>,
    pub(super) gave_up: Vec<ActorId>,
    pub(super) delay: Duration,
}

impl Restarts {
    /// The supervised actors of a worker.
    pub(super) fn of(&self, worker: WorkerId) -> Vec<ActorId> {
        let mut actors: Vec<_> =
            self.charges.iter().filter(|(_, charge)| charge.worker == worker).map(|(id, _)| *id).collect();
        actors.sort();
        actors
    }

    /// Which of a worker's actors come back after it ended for `reason`, and when.
    pub(super) fn fates(
        &mut self,
        worker: WorkerId,
        reason: &EndReason,
        condemned: Option<Condemned>,
        now: Instant,
    ) -> Fates {
        let mut fates = Fates::default();
        for actor in self.of(worker) {
            let Some(charge) = self.charges.get_mut(&actor) else { continue };
            let verdict = match condemned {
                _ if charge.doomed => Verdict::UsedUp,
                // For what others did, nothing is counted.
                Some(condemned) if charge.budget.policy().when().after(true) => {
                    Verdict::Restart(condemned.at.saturating_duration_since(now))
                }
                Some(_) => Verdict::Final,
                None => charge.budget.spend(reason, now),
            };
            match verdict {
                Verdict::Restart(delay) => {
                    fates.delay = fates.delay.max(delay);
                    fates.restarting.push(actor);
                }
                Verdict::UsedUp => fates.gave_up.push(actor),
                Verdict::Final => {
                    self.charges.remove(&actor);
                }
            }
        }
        fates
    }

    /// The groups that restart as one because of this end, and those that are given up.
    pub(super) fn groups_hit(&self, fates: &Fates, reason: &EndReason) -> (Vec<Group>, Vec<Group>) {
        let of = |actors: &[ActorId]| {
            let mut groups: Vec<Group> = Vec::new();
            for actor in actors {
                let group = self.charges.get(actor).and_then(|charge| charge.group.as_ref());
                if let Some(group) = group.filter(|group| group.is_one() && !groups.contains(group)) {
                    groups.push(group.clone());
                }
            }
            groups
        };
        if !reason.is_failure() {
            return (Vec::new(), Vec::new());
        }
        let given_up = of(&fates.gave_up);
        let mut hit = of(&fates.restarting);
        hit.extend(given_up.iter().filter(|group| !hit.contains(group)).cloned().collect::<Vec<_>>());
        (hit, given_up)
    }

    /// The groups that restart as one in which these workers have actors.
    pub(super) fn groups_of(&self, workers: &HashSet<WorkerId>) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let charges = self.charges.values().filter(|charge| workers.contains(&charge.worker));
        for group in charges.filter_map(|charge| charge.group.as_ref()).filter(|group| group.is_one()) {
            if !groups.contains(group) {
                groups.push(group.clone());
            }
        }
        groups
    }

    /// The workers in which these groups have actors.
    pub(super) fn workers_in(&self, groups: &[Group]) -> Vec<WorkerId> {
        let is_in = |charge: &&Charge| charge.group.as_ref().is_some_and(|group| groups.contains(group));
        self.charges.values().filter(is_in).map(|charge| charge.worker).collect()
    }

    pub(super) fn members(&self, group: &Group) -> Vec<(ActorId, WorkerId)> {
        let members = self.charges.iter().filter(|(actor, _)| self.is_in(**actor, group));
        members.map(|(actor, charge)| (*actor, charge.worker)).collect()
    }

    pub(super) fn is_in(&self, actor: ActorId, group: &Group) -> bool {
        self.charges.get(&actor).is_some_and(|charge| charge.group.as_ref() == Some(group))
    }

    /// Marks the end of its present life as final.
    pub(super) fn doom(&mut self, actor: ActorId) {
        if let Some(charge) = self.charges.get_mut(&actor) {
            charge.doomed = true;
        }
    }

    /// Takes it off its restart policy.
    pub(super) fn forget(&mut self, actor: ActorId) {
        self.charges.remove(&actor);
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

    /// How often a worker, or an actor in it, was restarted, and why that was last.
    pub(super) fn of_worker(&self, worker: WorkerId) -> (u32, Option<EndReason>) {
        self.histories.get(&worker).map_or((0, None), |past| (past.restarts, past.ends.back().cloned()))
    }

    /// All ends that nobody asked for, by worker.
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

    /// How the last life of a worker ended that is between two.
    pub(super) fn last_end(&self, worker: WorkerId) -> Option<WorkerState> {
        self.between.iter().find(|between| between.worker == worker).map(|between| between.ended.clone())
    }

    /// Whether a slot waits for the next life of its worker.
    pub(super) fn reserves(&self, slot: usize) -> bool {
        self.between.iter().any(|between| between.slot == slot)
    }
}
