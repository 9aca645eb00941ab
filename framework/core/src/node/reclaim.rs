//! Tracks the processes that must still read the last messages of a dead process (LEASE-4).
//!
//! A process that ends may have forwarded leases in frames that nobody has read yet. Their owners must not
//! drop the leases of the dead before the readers have posted their own holds. So the node tells of a death
//! in two steps. First every process that lived at the time drains the dead process's messages to it, and
//! says so. When all have, or have ended themselves, the leases of the dead are *reclaimed*: the node tells
//! the owners, and they drop them.
//!
//! A slot gets its next life only after the leases of the last life were reclaimed, because cursors on wake
//! pages are kept by slot.

use std::collections::{HashMap, HashSet};

use crate::ids::ProcessId;

#[derive(Default)]
pub(crate) struct Reclaims {
    /// By dead process: the processes that have not drained yet.
    open: HashMap<ProcessId, HashSet<ProcessId>>,
}

impl Reclaims {
    /// Notes that `dead` has ended while `living` lived. Returns true if there is nobody to wait for.
    pub(crate) fn died(&mut self, dead: ProcessId, living: impl IntoIterator<Item = ProcessId>) -> bool {
        let drainers: HashSet<_> = living.into_iter().collect();
        if drainers.is_empty() {
            return true;
        }
        self.open.insert(dead, drainers);
        false
    }

    /// Notes that `by` has drained the messages of `dead`. Returns true if it was the last.
    pub(crate) fn drained(&mut self, by: ProcessId, dead: ProcessId) -> bool {
        let Some(drainers) = self.open.get_mut(&dead) else { return false };
        drainers.remove(&by);
        if !drainers.is_empty() {
            return false;
        }
        self.open.remove(&dead);
        true
    }

    /// Whether a process must still drain messages of `dead`.
    pub(crate) fn is_open(&self, dead: ProcessId) -> bool {
        self.open.contains_key(&dead)
    }

    /// Whether `by` must still drain messages of `dead`.
    #[cfg(feature = "hosts")]
    pub(crate) fn waits_for(&self, dead: ProcessId, by: ProcessId) -> bool {
        self.open.get(&dead).is_some_and(|drainers| drainers.contains(&by))
    }

    /// Returns how many dead processes are not drained.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Notes that `process` has ended and drains nothing more. Returns the dead processes that can be
    /// reclaimed now.
    pub(crate) fn left(&mut self, process: ProcessId) -> Vec<ProcessId> {
        let waiting: Vec<_> = self.open.keys().copied().collect();
        waiting.into_iter().filter(|dead| self.drained(process, *dead)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(slot: u16) -> ProcessId {
        ProcessId::new(slot, 0).expect("in range")
    }

    #[test]
    fn the_dead_are_reclaimed_when_the_last_of_the_living_has_drained() {
        let mut reclaims = Reclaims::default();
        assert!(!reclaims.died(process(9), [process(1), process(2), process(3)]));
        assert!(!reclaims.drained(process(1), process(9)));
        assert!(!reclaims.drained(process(1), process(9)), "once is enough, twice is no more");
        assert!(!reclaims.drained(process(2), process(9)));
        assert!(reclaims.drained(process(3), process(9)));
        assert!(!reclaims.drained(process(3), process(9)), "and only once");
    }

    #[test]
    fn who_dies_too_is_not_waited_for() {
        let mut reclaims = Reclaims::default();
        assert!(!reclaims.died(process(8), [process(1), process(2)]));
        assert!(reclaims.left(process(1)).is_empty());
        assert_eq!(reclaims.left(process(2)), [process(8)]);
        assert!(reclaims.died(process(7), []), "nobody is left to wait for");
    }
}
