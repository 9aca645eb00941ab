//! The part of a console's snapshot that the node knows by itself: the processes and actors, their states,
//! and the hangs. `metrics` adds the processes' counts as they answer.

use crate::ids::ProcessId;
use crate::limits::MAX_ACTORS;
use crate::node::console::{
    ActorFacts, HangFacts, LinkFacts, NodeFacts, NodeSnapshot, PoolFacts, ProcessFacts,
};
use crate::node::limits::MAX_SHOWN_ACTORS;
use crate::observe::metrics::{ProcessMetrics, ProcessState};
use crate::observe::survey::Survey;

use super::node_state::NodeState;
use super::record::{WorkerState, WorkerStatus};
use super::run::SupervisorState;

impl SupervisorState {
    /// Makes a snapshot without the answers of the processes.
    pub(super) fn draft_snapshot(&self) -> NodeSnapshot {
        let own = ProcessFacts {
            process: ProcessId::NODE,
            name: "node".to_owned(),
            pid: std::process::id(),
            state: if self.node.stopping.is_some() { ProcessState::Ending } else { ProcessState::Running },
            restarts: 0,
            last_end: None,
            metrics: None,
            gpu: None,
        };
        let processes = std::iter::once(own).chain(self.node.statuses(|_| 0).map(process_facts)).collect();
        let mut actors: Vec<_> = self.node.broker.roster.all().collect();
        actors.sort_by_key(|(_, entry)| (entry.location.process, entry.location.index));
        let left_out = actors.len().saturating_sub(MAX_SHOWN_ACTORS) as u64;
        let actors = actors.into_iter().take(MAX_SHOWN_ACTORS).map(|(actor, entry)| ActorFacts {
            actor,
            name: entry.name.clone(),
            process: entry.location.process,
            index: entry.location.index,
            capacity: entry.location.capacity,
            state: match entry {
                entry if entry.away => ProcessState::Restarting,
                entry if !entry.started => ProcessState::Starting,
                _ => ProcessState::Running,
            },
            metrics: None,
        });
        let hangs = self.hangs.report().into_iter().map(|hang| HangFacts {
            process: hang.process,
            text: hang.to_string(),
            lasted: hang.lasted,
            killed: hang.killed,
            name: hang.name,
        });
        NodeSnapshot {
            at: 0,
            node: NodeFacts {
                pid: std::process::id(),
                program: std::env::args().next().unwrap_or_default(),
                up: self.node.began.elapsed(),
                stopping: self.node.stopping.is_some(),
                hang_limit: self.node.settings.hang_limit.map(|(limit, _)| limit),
                tracing: self.traces.are_on(&self.node),
            },
            processes,
            actors: actors.collect(),
            pools: Vec::new(),
            links: Vec::new(),
            hangs: hangs.collect(),
            left_out,
            hosts: Vec::new(),
            ways: Vec::new(),
            standing: Vec::new(),
        }
    }
}

impl NodeState {
    /// Returns the status of each worker, with its number of actors, and of the last worker of each slot that
    /// has none.
    pub(super) fn statuses(&self, actors: impl Fn(ProcessId) -> usize) -> impl Iterator<Item = WorkerStatus> {
        self.workers.slots().iter().filter_map(move |slot| match &slot.worker {
            Some(worker) => {
                let (restarts, last_end) = self.restarts.of_worker(worker.id);
                Some(WorkerStatus { restarts, last_end, ..worker.status(actors(worker.process)) })
            }
            None => slot.last.clone(),
        })
    }
}

fn process_facts(status: WorkerStatus) -> ProcessFacts {
    let ended = match &status.state {
        WorkerState::Exited { why, .. } => why.clone(),
        WorkerState::Restarting { reason } => Some(reason.to_string()),
        _ => None,
    };
    ProcessFacts {
        process: status.process,
        name: status.name,
        pid: status.pid,
        state: status.state.shown(),
        restarts: status.restarts,
        last_end: ended.or_else(|| status.last_end.map(|end| end.to_string())),
        metrics: None,
        gpu: None,
    }
}

impl NodeSnapshot {
    /// Adds a process's answer.
    pub(super) fn add(&mut self, process: ProcessId, mut metrics: ProcessMetrics, survey: Survey) {
        // WIRE-1: a process may report only its own actors. The draft lists actors in the order of their
        // processes.
        let first = self.actors.partition_point(|known| known.process < process);
        let end = self.actors.partition_point(|known| known.process <= process);
        let own = self.actors.get_mut(first..end).unwrap_or_default();
        for actor in std::mem::take(&mut metrics.actors).into_iter().take(MAX_ACTORS) {
            if let Some(known) = own.iter_mut().find(|known| known.actor == actor.actor) {
                if known.name.is_empty() {
                    known.name.clone_from(&actor.name);
                }
                known.metrics = Some(actor);
            }
        }
        self.pools.extend(survey.pools.into_iter().map(|pool| PoolFacts { owner: process, pool }));
        self.links.extend(survey.links.into_iter().map(|link| LinkFacts { from: process, link }));
        if let Some(of) = self.processes.iter_mut().find(|of| of.process == process) {
            of.metrics = Some(metrics);
        }
    }

    /// Completes the snapshot, when no more answers come in time.
    pub(super) fn finish(&mut self) {
        for of in &mut self.processes {
            if of.state == ProcessState::Running && of.metrics.is_none() {
                of.state = ProcessState::Silent;
            }
        }
        for actor in &mut self.actors {
            let of = self.processes.iter().find(|of| of.process == actor.process);
            // A mailbox without an actor, such as the node's for the reports of a pipeline.
            if let Some(of) = of.filter(|_| actor.name.is_empty()) {
                actor.name = format!("inbox of {}", of.name);
            }
            if let Some(of) = of.filter(|_| actor.state == ProcessState::Running) {
                actor.state = of.state;
            }
        }
        self.pools.sort_by_key(|of| (of.owner, of.pool.device));
        self.links.sort_by_key(|of| (of.from, of.link.peer));
    }
}
