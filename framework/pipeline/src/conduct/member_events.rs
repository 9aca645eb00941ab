//! Handles the events of members, and checks that each comes from the member that it is about.
//!
//! Used by the conductor for each event and each answer. An event names a stage and a replica; it counts only
//! if it came from a process of that member's worker (WIRE-1). So a worker can report wrong facts about
//! itself, but not about another.
//!
//! **On a crash** of a worker its processes stay known: their last events may be read after their end.

use std::collections::{HashMap, HashSet};

use tensorpost_core::api::node::{ProcessId, WorkerId};
use tensorpost_core::api::observe::monotonic_ns;

use super::Conductor;
use crate::worker::args::Event;
use crate::worker::meter::Counts;

/// For each process, the worker that it is, or was, a life of.
#[derive(Default)]
pub(super) struct Tellers {
    workers: HashMap<ProcessId, WorkerId>,
    /// Processes that reported facts about another member; each is logged once.
    liars: HashSet<ProcessId>,
}

impl Tellers {
    /// Whether `process` is, or was, a life of `worker`; `now` lists all current lives.
    fn is_life_of(
        &mut self,
        process: ProcessId,
        worker: WorkerId,
        now: impl FnOnce() -> Vec<(ProcessId, WorkerId)>,
    ) -> bool {
        if self.workers.get(&process) != Some(&worker) {
            // The life has begun since, or a spare process has taken that worker's place.
            self.workers.extend(now());
        }
        self.workers.get(&process) == Some(&worker)
    }
}

impl Conductor {
    pub(super) fn event(&mut self, from: ProcessId, event: Event) {
        match event {
            Event::Progress(counts, waits) => {
                let Some(index) = self.teller(from, counts.stage, counts.replica) else { return };
                let counts = self.as_of(index, *counts);
                // Reports of a life that has ended tell nothing about the running one.
                if let Some(counts) = self.told.note(counts) {
                    self.detector.told(counts, waits);
                }
            }
            Event::Failed(failure) => {
                let plan = &self.plan;
                let named = |index: &usize| plan.stages[self.members[*index].stage].name == failure.stage;
                let of_stage: Vec<_> = (0..self.members.len()).filter(named).collect();
                if of_stage.into_iter().any(|index| self.is_told_by(from, index)) {
                    self.failure.get_or_insert(failure.bounded());
                    self.stop_sources();
                } else {
                    self.note_lie(from, &failure.stage);
                }
            }
            Event::Spans { stage, replica, pid, spans } => {
                if self.trace.is_some()
                    && self.teller(from, stage, replica).is_some()
                    && let Some(trace) = &mut self.trace
                {
                    trace.add(stage, replica, pid, spans);
                }
            }
        }
    }

    /// Returns the member that is this replica, if the event came from it.
    fn teller(&mut self, from: ProcessId, stage: u16, replica: u16) -> Option<usize> {
        let is_it = |index: &usize| {
            let member = &self.members[*index];
            (member.stage, member.replica) == (usize::from(stage), replica)
        };
        let index = (0..self.members.len()).find(is_it);
        let told = index.filter(|index| self.is_told_by(from, *index));
        if told.is_none() {
            let stage =
                self.plan.stages.get(usize::from(stage)).map_or("?".to_owned(), |stage| stage.name.clone());
            self.note_lie(from, &stage);
        }
        told
    }

    /// Whether `from` is a process of the member's worker. Events of a member on another host come through
    /// this host's gateway, and never from a worker of this pipeline.
    fn is_told_by(&mut self, from: ProcessId, index: usize) -> bool {
        let worker = self.members[index].worker;
        let supervisor = &self.supervisor;
        let now = || supervisor.workers().into_iter().map(|of| (of.process, of.worker)).collect();
        if !worker.is_of_another_host() {
            return self.tellers.is_life_of(from, worker, now);
        }
        let members = &self.members;
        !members.iter().any(|member| self.tellers.is_life_of(from, member.worker, now))
    }

    fn note_lie(&mut self, from: ProcessId, stage: &str) {
        if !self.tellers.liars.insert(from) {
            return;
        }
        let (pipeline, worker) = (&self.plan.name, self.tellers.workers.get(&from));
        let worker = worker.and_then(|worker| self.supervisor.worker(*worker)).map(|worker| worker.name);
        let worker = worker.unwrap_or_else(|| from.to_string());
        tracing::warn!(
            target: "tensorpost::pipeline", pipeline, worker, stage,
            "a worker tells of a stage that is not its own; it is not believed"
        );
    }

    /// Makes the counts that a member has reported its own, and bounds them.
    pub(super) fn as_of(&self, index: usize, mut counts: Counts) -> Counts {
        let member = &self.members[index];
        (counts.stage, counts.replica) = (member.stage as u16, member.replica);
        if !member.worker.is_of_another_host() {
            // No life begins later than now.
            counts.life = counts.life.min(monotonic_ns());
        }
        counts.bounded()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_speaks_for_the_worker_that_it_is_a_life_of() {
        let id = |slot, life| ProcessId::new(slot, life).unwrap();
        let [one, other]: [WorkerId; 2] = serde_json::from_str("[1, 2]").unwrap();
        let mut tellers = Tellers::default();
        let now = || vec![(id(1, 0), one), (id(2, 0), other)];
        assert!(tellers.is_life_of(id(1, 0), one, now));
        assert!(!tellers.is_life_of(id(1, 0), other, now) && !tellers.is_life_of(id(3, 0), other, now));
        // The next life is another process, and reports of the last one are read later.
        assert!(tellers.is_life_of(id(1, 1), one, || vec![(id(1, 1), one)]));
        assert!(tellers.is_life_of(id(1, 0), one, Vec::new));
        // A spare has taken a worker's place.
        assert!(tellers.is_life_of(id(2, 0), one, || vec![(id(2, 0), one)]));
    }
}
