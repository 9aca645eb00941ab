//! The processes that have exited, as far as this one knows.
//!
//! A process drops the link to a dead peer after it has read the link to the end, with its descriptors, rings
//! and queues. One number per slot says which of the processes in that slot have ended, because a slot is
//! given out again only after its last process has ended. A process that joined later learns of earlier ends
//! from its own incarnation, and from the incarnations of peers that link to it. Memory of earlier
//! incarnations is memory of dead processes (LEASE-4).
//!
//! Part of the process's [lifecycle](super::process). **Invariants.** Nothing noted here is ever taken back.
//! **Locks.** Those of two small tables, and no other lock inside them. The checks for each message read only
//! atomics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::sync::Notify;

use crate::ids::ProcessId;
use crate::limits::MAX_PROCESSES;
use crate::transport::lifecycle::ProcessDown;

/// The processes that exited. Processes of a slot follow each other, so the last one that ended stands for
/// all before it, and thousands of deaths take no more room than one.
#[derive(Debug)]
pub(super) struct ExitedProcesses {
    /// By slot: one more than the incarnation of the last process that ended.
    by_slot: Box<[AtomicU64]>,
    /// By slot, in the same way: the last process that was reclaimed.
    reclaimed: Box<[AtomicU64]>,
    /// Ids of processes that the node had never heard of. Each answers one question only, because there may
    /// be such a process later (WIRE-1).
    nobody: DashMap<ProcessId, ()>,
    /// The node's report on the last process of each slot that ended.
    how: DashMap<usize, Arc<ProcessDown>>,
    /// Wakes the callers that wait until a process that ended was read to the end.
    pub(super) read: Notify,
}

impl ExitedProcesses {
    pub(super) fn new() -> Self {
        let none = || (0..MAX_PROCESSES).map(|_| AtomicU64::new(0)).collect();
        ExitedProcesses {
            by_slot: none(),
            reclaimed: none(),
            nobody: DashMap::new(),
            how: DashMap::new(),
            read: Notify::new(),
        }
    }

    /// Notes that a process has ended, as the node says.
    pub(super) fn note(&self, process: ProcessId) {
        if let Some(last) = self.by_slot.get(process.slot()) {
            last.fetch_max(u64::from(process.incarnation()) + 1, Ordering::AcqRel);
        }
    }

    /// Notes that all processes before `process` in its slot have ended. The node does not tell that to a
    /// process that joined later.
    pub(super) fn note_before(&self, process: ProcessId) {
        if let Some(last) = self.by_slot.get(process.slot()) {
            last.fetch_max(u64::from(process.incarnation()), Ordering::AcqRel);
        }
    }

    pub(super) fn contains(&self, process: ProcessId) -> bool {
        let last = self.by_slot.get(process.slot());
        last.is_some_and(|last| u64::from(process.incarnation()) < last.load(Ordering::Acquire))
    }

    /// Notes that everything which a process had posted was read, as the node says. Its leases are about to
    /// be dropped.
    pub(super) fn note_reclaimed(&self, process: ProcessId) {
        if let Some(last) = self.reclaimed.get(process.slot()) {
            last.fetch_max(u64::from(process.incarnation()) + 1, Ordering::AcqRel);
        }
    }

    pub(super) fn is_reclaimed(&self, process: ProcessId) -> bool {
        let last = self.reclaimed.get(process.slot());
        last.is_some_and(|last| u64::from(process.incarnation()) < last.load(Ordering::Acquire))
    }

    /// Notes that this process has nothing left to read of some process that ended, and wakes the waiters.
    pub(super) fn note_read(&self) {
        self.read.notify_waiters();
    }

    /// Notes how a process has ended, as the node says.
    pub(super) fn note_how(&self, process_down: ProcessDown) {
        self.how.insert(process_down.process.slot(), Arc::new(process_down));
    }

    pub(super) fn how(&self, process: ProcessId) -> Option<Arc<ProcessDown>> {
        let known = self.how.get(&process.slot())?;
        (known.process == process).then(|| Arc::clone(&known))
    }

    /// Notes that there never was such a process, as the node says.
    pub(super) fn note_nobody(&self, process: ProcessId) {
        // MBX-2: the list is bounded. Clearing it also forgets answers that are still needed, and asking
        // again costs a link message.
        if self.nobody.len() >= MAX_PROCESSES {
            self.nobody.clear();
        }
        self.nobody.insert(process, ());
    }

    /// Returns whether the node has just said that there never was such a process.
    pub(super) fn take_nobody(&self, process: ProcessId) -> bool {
        !self.nobody.is_empty() && self.nobody.remove(&process).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::lifecycle::EndReason;

    #[test]
    fn the_last_life_that_ended_stands_for_all_before_it() {
        let exited = ExitedProcesses::new();
        let life = |slot, incarnation| ProcessId::new(slot, incarnation).expect("in range");
        exited.note(life(3, 7));
        exited.note(life(3, 5));
        assert!(exited.contains(life(3, 0)) && exited.contains(life(3, 7)));
        assert!(!exited.contains(life(3, 8)) && !exited.contains(life(4, 0)));
        exited.note_before(life(3, 8));
        assert!(exited.contains(life(3, 7)) && !exited.contains(life(3, 8)));
        exited.note_before(life(5, 2));
        assert!(exited.contains(life(5, 1)) && !exited.contains(life(5, 2)));
        // Only the reason of the last end is known.
        exited.note_how(ProcessDown {
            process: life(3, 7),
            worker: "blur".into(),
            reason: EndReason::Signal(9),
            restarting: Vec::new(),
            gave_up: Vec::new(),
        });
        assert_eq!(exited.how(life(3, 7)).map(|last| last.reason.clone()), Some(EndReason::Signal(9)));
        assert_eq!(exited.how(life(3, 5)), None);
    }

    #[test]
    fn that_there_is_nobody_is_said_once_and_bounded() {
        let exited = ExitedProcesses::new();
        let name = |incarnation| ProcessId::new(9, incarnation).expect("in range");
        exited.note_nobody(name(1));
        assert!(exited.take_nobody(name(1)) && !exited.take_nobody(name(1)));
        (0..10 * MAX_PROCESSES as u32).for_each(|incarnation| exited.note_nobody(name(incarnation)));
        assert!(exited.nobody.len() <= MAX_PROCESSES);
    }
}
