//! Starts workers' processes: the first process of a worker, for which a caller waits, and all later ones.
//!
//! Used by commands (`run`), restarts (`due_restarts`) and `spares`.
//!
//! **Invariants.** A life's number is spent only when its process runs, and is never used again. A slot is
//! free when everybody has read the last messages of its last life (`node/reclaim`), and no worker between
//! two lives waits for it. The clock page exists before the process does (DEATH-1).
//!
//! **On a crash** of a process that is just starting its socket and its pidfd show it, as later. **On
//! cancellation** nothing happens: nothing here waits.

use std::collections::HashSet;
use std::time::Instant;

use crate::ids::ProcessId;
use crate::lease::GpuBudget;
use crate::limits::CUDA_CONNECTIONS;
use crate::node::registry::check_name;
use crate::node::watcher::watcher;
use crate::os::remedy_of_start;

use super::node_state::NodeState;
use super::record::{Asker, SpareFor, Worker, WorkerPhase};
use super::reply::Reply;
use super::worker_settings::{Made, Making};
use super::{NodeClosed, Program, SpawnError, WorkerId};

impl NodeState {
    pub(super) fn spawn(&mut self, name: &str, making: Making, reply: Reply<Result<WorkerId, SpawnError>>) {
        let slot = match self.new_slot(name) {
            Ok(slot) => slot,
            Err(error) => {
                reply.answer(Err(error));
                return;
            }
        };
        let deadline = Instant::now() + self.settings.start_deadline;
        let phase = WorkerPhase::Greeting { deadline, asker: Asker::Caller(reply.clone()) };
        let id = self.workers.next_id();
        self.note_making(id, making);
        match self.launch(slot, id, name, phase, None) {
            Ok(()) => self.workers.next_id_is_used(),
            Err(source) => {
                let found = self.examine(id, &remedy_of_start(&source));
                let program = self.program_of(id).path();
                reply.answer(Err(SpawnError::Start { name: name.to_owned(), program, source, found }));
            }
        }
    }

    /// Starts the process of a worker, or of a spare, in a free slot.
    pub(super) fn launch(
        &mut self,
        slot: usize,
        id: WorkerId,
        name: &str,
        phase: WorkerPhase,
        spare: Option<SpareFor>,
    ) -> std::io::Result<()> {
        // The life's number is spent only when the process runs; a launch that fails leaves the slot as it
        // was.
        let life = self.workers.slot(slot).map_or(0, |slot| slot.next_life);
        let process = u16::try_from(slot).ok().and_then(|slot| ProcessId::new(slot, life));
        let process = process.ok_or_else(|| std::io::Error::other("there is no such slot"))?;
        // The clock page before its process: the node must have the page when the process dies (DEATH-1).
        self.broker.deaths.prepare(process)?;
        #[cfg_attr(not(feature = "testing"), expect(unused_mut, reason = "only tests have more of them"))]
        let mut environment: Vec<_> = self.settings.environment.iter().cloned().collect();
        #[cfg(feature = "testing")]
        environment.extend(self.armed_starts());
        let like = spare.as_ref().map_or(id, |spare| spare.worker);
        let (program, connections) = (self.program_of(like), self.connections_of(like));
        let launched = program.launch(&self.launcher, connections, &environment);
        // Nobody else has heard of the process, so forgetting its page is enough.
        let launched = launched.inspect_err(|_| self.broker.deaths.forget(process))?;
        if let Some(slot) = self.workers.slot_mut(slot) {
            slot.next_life += 1;
            slot.worker = Some(Worker::new(id, process, name, launched, phase, spare));
        }
        self.dirty = true;
        Ok(())
    }

    /// Returns the variable with the faults for a process that is started now, together with those of this
    /// process's environment.
    #[cfg(feature = "testing")]
    fn armed_starts(&self) -> Option<(&'static str, std::ffi::OsString)> {
        use crate::fault::VARIABLE;

        let faults = self.workers.start_faults.iter().map(|(name, fault)| format!("{name}/{fault}"));
        let faults: Vec<String> = std::env::var(VARIABLE).into_iter().chain(faults).collect();
        (!self.workers.start_faults.is_empty()).then(|| (VARIABLE, faults.join(";").into()))
    }

    /// Returns a slot for a worker that a caller asked for. An unused slot comes first, so that the status of
    /// dead workers stays as long as possible.
    pub(super) fn new_slot(&mut self, name: &str) -> Result<usize, SpawnError> {
        check_name(name)?;
        if self.stopping.is_some() {
            return Err(NodeClosed::ShuttingDown.into());
        }
        self.workers.take_unused().or_else(|| self.free_slot(|_| true)).ok_or(SpawnError::TooMany)
    }

    /// Returns a slot for a spare. A slot without a last status comes first, so that spares that end one
    /// after the other erase no status of other workers.
    pub(super) fn slot_for_spare(&mut self) -> Option<usize> {
        let forgotten =
            self.free_slot(|slot| self.workers.slot(slot).is_some_and(|slot| slot.last.is_none()));
        forgotten.or_else(|| self.workers.take_unused()).or_else(|| self.free_slot(|_| true))
    }

    /// Returns a free slot that was used before, the one with the fewest lives.
    fn free_slot(&self, also: impl Fn(usize) -> bool) -> Option<usize> {
        let slots = self.workers.slots().iter().enumerate().skip(1);
        let free = slots.filter(|(index, slot)| {
            slot.worker.is_none()
                && self.is_reclaimed(*index)
                && !self.restarts.reserves(*index)
                && also(*index)
        });
        free.min_by_key(|(_, slot)| slot.next_life).map(|(index, _)| index)
    }
}

impl NodeState {
    /// Remembers how this worker is made, for all its lives.
    pub(super) fn note_making(&mut self, id: WorkerId, making: Making) {
        let Making { program, like, connections, gpu_budget } = making;
        let program = match program {
            Some(program) => Some(self.settings.program.another(program)),
            None => like.and_then(|worker| self.another_program_of(worker)).cloned(),
        };
        let (workers, between) = (&mut self.workers, &self.restarts.between);
        // Workers that have ended and do not come back need no entry.
        let known: HashSet<WorkerId> =
            workers.iter().map(|worker| worker.id).chain(between.iter().map(|next| next.worker)).collect();
        workers.makings.retain(|id, _| known.contains(id));
        if program.is_some() || connections != CUDA_CONNECTIONS || gpu_budget.is_some() {
            workers.makings.insert(id, Made { program, connections, gpu_budget });
        }
    }

    fn another_program_of(&self, id: WorkerId) -> Option<&Program> {
        self.workers.makings.get(&id)?.program.as_ref()
    }

    /// Returns the program that a worker runs.
    pub(super) fn program_of(&self, id: WorkerId) -> &Program {
        self.another_program_of(id).unwrap_or(&self.settings.program)
    }

    /// Returns how many hardware queues on a GPU a worker gets.
    pub(super) fn connections_of(&self, id: WorkerId) -> usize {
        self.workers.makings.get(&id).map_or(CUDA_CONNECTIONS, |made| made.connections)
    }

    /// Returns the budget of its pool on each GPU.
    pub(super) fn gpu_budget_of(&self, id: WorkerId) -> Option<GpuBudget> {
        let made = self.workers.makings.get(&id).and_then(|made| made.gpu_budget);
        made.or(self.settings.gpu_budget)
    }

    /// Returns the doctor's findings about a worker that did not start; `said` is the error's own text.
    pub(super) fn examine(&self, id: WorkerId, said: &str) -> String {
        if let Some(program) = self.another_program_of(id) {
            return watcher().obstacles(None, self.settings.host_budget, said) + program.remedy;
        }
        watcher().obstacles(self.settings.program.other(), self.settings.host_budget, said)
    }
}
