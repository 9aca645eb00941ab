//! The workers, by slot: the one that runs there now, and the one that was there last.
//!
//! Used by everything that the supervisor does, on its own thread.
//!
//! **Invariants.** Slot 0 is the node, and has no worker. The lives of a slot are numbered upwards, and no
//! number is used twice. A worker has one slot at a time.
//!
//! **Locks.** None: one thread owns it.
//!
//! **On a crash** of a worker the supervisor takes it out once its last messages are handled. Its status
//! stays as the slot's last. **On cancellation** nothing happens: nothing here waits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::ids::ProcessId;
use crate::limits::MAX_PROCESSES;
use crate::node::wait;

use super::WorkerId;
use super::record::{Worker, WorkerPhase, WorkerStatus};
use super::worker_settings::Made;

/// One slot for a process. Slot 0 is the node and has no worker.
#[derive(Default)]
pub(super) struct ProcessSlot {
    /// The number of the slot's next life.
    pub(super) next_life: u32,
    pub(super) worker: Option<Worker>,
    /// The worker that was here last.
    pub(super) last: Option<WorkerStatus>,
}

/// See the module.
pub(super) struct Workers {
    slots: Vec<ProcessSlot>,
    /// How workers are made in all their lives, if they differ from the default.
    pub(super) makings: HashMap<WorkerId, Made>,
    last_id: u64,
    /// Whether any of them has ended since the node began.
    pub(super) deaths: bool,
    /// Faults of processes that are started from now on, by the worker's name.
    #[cfg(feature = "testing")]
    pub(super) start_faults: Vec<(String, crate::fault::Fault)>,
}

/// How often the supervisor looks at the clock while a worker starts, so that it notices time in which it did
/// not run.
const STALL_TICK: Duration = Duration::from_millis(250);

impl Workers {
    pub(super) fn new() -> Self {
        static NODES: AtomicU64 = AtomicU64::new(0);
        let nodes_before = NODES.fetch_add(1, Ordering::Relaxed);
        Workers {
            slots: vec![ProcessSlot::default()],
            makings: HashMap::new(),
            // Each node of a program has a range of its own, so that the id of another node's worker is
            // unknown here. Between hosts an id has 47 bits.
            last_id: (nodes_before % (1 << 15)) << 32,
            deaths: false,
            #[cfg(feature = "testing")]
            start_faults: Vec::new(),
        }
    }

    /// Returns the id of the next worker; it is used up once that worker [has
    /// started](Self::next_id_is_used).
    pub(super) fn next_id(&self) -> WorkerId {
        WorkerId(self.last_id + 1)
    }

    pub(super) fn next_id_is_used(&mut self) {
        self.last_id += 1;
    }

    /// Returns all slots, the node's own first.
    pub(super) fn slots(&self) -> &[ProcessSlot] {
        &self.slots
    }

    pub(super) fn slot(&self, slot: usize) -> Option<&ProcessSlot> {
        self.slots.get(slot)
    }

    pub(super) fn slot_mut(&mut self, slot: usize) -> Option<&mut ProcessSlot> {
        self.slots.get_mut(slot)
    }

    /// Returns the index of a slot that was never used; `None` if all were.
    pub(super) fn next_unused(&self) -> Option<usize> {
        (self.slots.len() < MAX_PROCESSES).then_some(self.slots.len())
    }

    /// Opens a slot that was never used; `None` if all were.
    pub(super) fn take_unused(&mut self) -> Option<usize> {
        let unused = self.next_unused()?;
        self.open_slot(unused);
        Some(unused)
    }

    /// Opens the slot `slot`, if it is the [next](Self::next_unused).
    pub(super) fn open_slot(&mut self, slot: usize) {
        if slot == self.slots.len() {
            self.slots.push(ProcessSlot::default());
        }
    }

    /// Returns the worker in a slot.
    pub(super) fn at(&self, slot: usize) -> Option<&Worker> {
        self.slots.get(slot)?.worker.as_ref()
    }

    /// Returns the worker in a slot.
    pub(super) fn at_mut(&mut self, slot: usize) -> Option<&mut Worker> {
        self.slots.get_mut(slot)?.worker.as_mut()
    }

    /// Takes the worker of a slot out.
    pub(super) fn take(&mut self, slot: usize) -> Option<Worker> {
        self.slots.get_mut(slot)?.worker.take()
    }

    /// Returns the worker that runs as this process.
    pub(super) fn of(&self, process: ProcessId) -> Option<&Worker> {
        self.at(process.slot()).filter(|worker| worker.process == process)
    }

    /// Returns the worker that runs as this process.
    pub(super) fn of_mut(&mut self, process: ProcessId) -> Option<&mut Worker> {
        self.at_mut(process.slot()).filter(|worker| worker.process == process)
    }

    pub(super) fn by_id(&mut self, id: WorkerId) -> Option<&mut Worker> {
        self.iter_mut().find(|worker| worker.id == id)
    }

    /// Returns the slot of a worker.
    pub(super) fn slot_of(&self, id: WorkerId) -> Option<usize> {
        self.slots.iter().position(|slot| slot.worker.as_ref().is_some_and(|worker| worker.id == id))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Worker> {
        self.slots.iter().filter_map(|slot| slot.worker.as_ref())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Worker> {
        self.slots.iter_mut().filter_map(|slot| slot.worker.as_mut())
    }

    /// Returns the last status of a worker that does not run now, unless its slot has had another worker
    /// since.
    pub(super) fn last_of(&self, id: WorkerId) -> Option<&WorkerStatus> {
        self.slots.iter().filter_map(|slot| slot.last.as_ref()).find(|last| last.worker == id)
    }

    /// As [`last_of`](Self::last_of).
    pub(super) fn last_of_mut(&mut self, id: WorkerId) -> Option<&mut WorkerStatus> {
        self.slots.iter_mut().filter_map(|slot| slot.last.as_mut()).find(|last| last.worker == id)
    }

    /// Returns the name of a process.
    pub(super) fn name_of(&self, process: ProcessId) -> String {
        if process == ProcessId::NODE {
            return "node".to_owned();
        }
        self.of(process)
            .map_or_else(|| "a process that has ended".to_owned(), |worker| worker.name.to_string())
    }

    /// Whether a process is stopped, as the system reports it.
    pub(super) fn is_stopped(&self, process: ProcessId) -> bool {
        let pid = self.of(process).map(|worker| worker.child.id());
        // The state follows the program's name, which is in parentheses and may hold any character.
        let status = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
        let state = status.as_deref().and_then(|status| status.rsplit_once(") ")).map(|(_, rest)| rest);
        state.is_some_and(|state| state.starts_with(['T', 't']))
    }

    /// Returns when the next deadline of a worker is over, or when to look again at one that starts, or whose
    /// socket takes nothing.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let next = self.iter().filter_map(|worker| {
            let start = match worker.phase {
                WorkerPhase::Greeting { deadline, .. } | WorkerPhase::Opening { deadline, .. } => {
                    Some(deadline.min(Instant::now() + STALL_TICK))
                }
                _ => None,
            };
            let retry = wait::retry_after(worker.line.outgoing.flushed()).map(|after| Instant::now() + after);
            [start, worker.end.kill_at, retry, worker.dropped_logs_due()].into_iter().flatten().min()
        });
        next.min()
    }

    /// Extends the deadlines by `lost`: the node stood still for that long, and others perhaps with it.
    pub(super) fn stalled(&mut self, lost: Duration) {
        for worker in self.iter_mut() {
            if let WorkerPhase::Greeting { deadline, .. } | WorkerPhase::Opening { deadline, .. } =
                &mut worker.phase
            {
                *deadline += lost;
            }
            worker.end.kill_at = worker.end.kill_at.map(|at| at + lost);
        }
    }
}
