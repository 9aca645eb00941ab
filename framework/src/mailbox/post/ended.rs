//! Which processes have ended, as far as this one knows.
//!
//! Part of the process's [lifecycle](super::lifecycle). **Invariants.** What is noted here is never taken back. **Locks.**
//! Those of two small tables, and nothing inside of them; what each message asks is atomic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;

use crate::ids::ProcessId;
use crate::limits::MAX_PROCESSES;
use crate::mailbox::lives::Obituary;

/// The processes that ended. A slot's lives follow each other, so the last one that ended stands for all before it, and
/// thousands of deaths take no more room than one.
#[derive(Debug)]
pub(super) struct Ended {
    /// By slot: one more than the incarnation of the last life that ended.
    by_slot: Box<[AtomicU64]>,
    /// By slot, in the same way: the last life that was buried.
    buried: Box<[AtomicU64]>,
    /// Names that the node had never heard of. Each is good for one question: there may be such a process later (WIRE-1).
    nobody: DashMap<ProcessId, ()>,
    /// What the node said of the last life of each slot that ended.
    how: DashMap<usize, Arc<Obituary>>,
}

impl Ended {
    pub(super) fn new() -> Self {
        let none = || (0..MAX_PROCESSES).map(|_| AtomicU64::new(0)).collect();
        Ended { by_slot: none(), buried: none(), nobody: DashMap::new(), how: DashMap::new() }
    }

    /// The node says that a process has ended.
    pub(super) fn note(&self, process: ProcessId) {
        if let Some(last) = self.by_slot.get(process.slot()) {
            last.fetch_max(u64::from(process.incarnation()) + 1, Ordering::AcqRel);
        }
    }

    /// `process` is a life of its slot: all before it have ended. Nobody tells that to a process that joined later.
    pub(super) fn note_before(&self, process: ProcessId) {
        if let Some(last) = self.by_slot.get(process.slot()) {
            last.fetch_max(u64::from(process.incarnation()), Ordering::AcqRel);
        }
    }

    pub(super) fn contains(&self, process: ProcessId) -> bool {
        let last = self.by_slot.get(process.slot());
        last.is_some_and(|last| u64::from(process.incarnation()) < last.load(Ordering::Acquire))
    }

    /// The node says that everything was read which a process had posted: its leases are about to be dropped.
    pub(super) fn note_buried(&self, process: ProcessId) {
        if let Some(last) = self.buried.get(process.slot()) {
            last.fetch_max(u64::from(process.incarnation()) + 1, Ordering::AcqRel);
        }
    }

    pub(super) fn is_buried(&self, process: ProcessId) -> bool {
        let last = self.buried.get(process.slot());
        last.is_some_and(|last| u64::from(process.incarnation()) < last.load(Ordering::Acquire))
    }

    /// The node says how a process has ended.
    pub(super) fn note_how(&self, obituary: Obituary) {
        self.how.insert(obituary.process.slot(), Arc::new(obituary));
    }

    pub(super) fn how(&self, process: ProcessId) -> Option<Arc<Obituary>> {
        let known = self.how.get(&process.slot())?;
        (known.process == process).then(|| Arc::clone(&known))
    }

    /// The node says that there never was such a process.
    pub(super) fn note_nobody(&self, process: ProcessId) {
        // MBX-2: an answer that nobody asks for any more is forgotten with the others; asking again costs a letter.
        if self.nobody.len() >= MAX_PROCESSES {
            self.nobody.clear();
        }
        self.nobody.insert(process, ());
    }

    /// Whether the node has just said that there never was such a process.
    pub(super) fn take_nobody(&self, process: ProcessId) -> bool {
        !self.nobody.is_empty() && self.nobody.remove(&process).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::lives::EndReason;

    #[test]
    fn the_last_life_that_ended_stands_for_all_before_it() {
        let ended = Ended::new();
        let life = |slot, incarnation| ProcessId::new(slot, incarnation).expect("in range");
        ended.note(life(3, 7));
        ended.note(life(3, 5));
        assert!(ended.contains(life(3, 0)) && ended.contains(life(3, 7)));
        assert!(!ended.contains(life(3, 8)) && !ended.contains(life(4, 0)));
        ended.note_before(life(3, 8));
        assert!(ended.contains(life(3, 7)) && !ended.contains(life(3, 8)));
        ended.note_before(life(5, 2));
        assert!(ended.contains(life(5, 1)) && !ended.contains(life(5, 2)));
        // How, is only known of the last.
        ended.note_how(Obituary {
            process: life(3, 7),
            worker: "blur".into(),
            reason: EndReason::Signal(9),
            restarting: Vec::new(),
            gave_up: Vec::new(),
        });
        assert_eq!(ended.how(life(3, 7)).map(|last| last.reason.clone()), Some(EndReason::Signal(9)));
        assert_eq!(ended.how(life(3, 5)), None);
    }

    #[test]
    fn that_there_is_nobody_is_said_once_and_bounded() {
        let ended = Ended::new();
        let name = |incarnation| ProcessId::new(9, incarnation).expect("in range");
        ended.note_nobody(name(1));
        assert!(ended.take_nobody(name(1)) && !ended.take_nobody(name(1)));
        (0..10 * MAX_PROCESSES as u32).for_each(|incarnation| ended.note_nobody(name(incarnation)));
        assert!(ended.nobody.len() <= MAX_PROCESSES);
    }
}
