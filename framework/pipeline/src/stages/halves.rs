//! The halves that wait in a `zip` or `join`, and ids that it remembers: pure bookkeeping.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

use crate::limits::MAX_WAITING;
use crate::{HeldItem, ItemId};

/// The id or key that two items share if they belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Bond {
    Id(ItemId),
    Key(u64),
}

/// The newest [`MAX_WAITING`] ids. Older ones are forgotten (MBX-2): a standstill because of one is noticed
/// when the whole pipeline stands still.
#[derive(Default)]
pub(super) struct Recent {
    ids: HashSet<ItemId>,
    in_order: VecDeque<ItemId>,
}

impl Recent {
    pub(super) fn extend(&mut self, ids: impl IntoIterator<Item = ItemId>) {
        for id in ids {
            if self.ids.insert(id) {
                self.in_order.push_back(id);
            }
            if self.in_order.len() > MAX_WAITING
                && let Some(oldest) = self.in_order.pop_front()
            {
                self.ids.remove(&oldest);
            }
        }
    }

    pub(super) fn contains(&self, id: &ItemId) -> bool {
        self.ids.contains(id)
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&ItemId) -> bool) {
        self.in_order.retain(&keep);
        self.ids.retain(keep);
    }
}

/// Items that wait for their partners, in the order in which they came.
pub(super) struct WaitingHalves<A, B> {
    left: HashMap<Bond, VecDeque<A>>,
    right: HashMap<Bond, VecDeque<B>>,
    count: usize,
}

impl<A, B> WaitingHalves<A, B> {
    pub(super) fn new() -> Self {
        WaitingHalves { left: HashMap::new(), right: HashMap::new(), count: 0 }
    }

    /// Returns how many wait, on both sides.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Adds a left item, or takes its partner out if that waits.
    pub(super) fn left(&mut self, bond: Bond, item: A) -> Option<(A, B)> {
        match take_first(&mut self.right, bond) {
            Some(partner) => self.paired((item, partner)),
            None => {
                self.count += 1;
                self.left.entry(bond).or_default().push_back(item);
                None
            }
        }
    }

    pub(super) fn right(&mut self, bond: Bond, item: B) -> Option<(A, B)> {
        match take_first(&mut self.left, bond) {
            Some(partner) => self.paired((partner, item)),
            None => {
                self.count += 1;
                self.right.entry(bond).or_default().push_back(item);
                None
            }
        }
    }

    fn paired<P>(&mut self, pair: P) -> Option<P> {
        self.count -= 1;
        Some(pair)
    }
}

impl<A, B> WaitingHalves<(A, HeldItem), (B, HeldItem)> {
    /// Returns the halves that wait on one side.
    pub(super) fn held(&self, left: bool) -> Box<dyn Iterator<Item = &HeldItem> + '_> {
        if left {
            Box::new(self.left.values().flatten().map(|(_, held)| held))
        } else {
            Box::new(self.right.values().flatten().map(|(_, held)| held))
        }
    }

    /// Takes out the halves of one side that `which` selects.
    pub(super) fn remove(
        &mut self,
        left: bool,
        bond: Option<Bond>,
        which: impl Fn(&HeldItem) -> bool,
    ) -> Vec<HeldItem> {
        let removed = if left {
            remove_from(&mut self.left, bond, which)
        } else {
            remove_from(&mut self.right, bond, which)
        };
        self.count -= removed.len();
        removed
    }

    /// Takes out all halves that still wait.
    pub(super) fn drain(&mut self) -> Vec<HeldItem> {
        self.count = 0;
        let left = self.left.drain().flat_map(|(_, items)| items).map(|(_, held)| held);
        let right = self.right.drain().flat_map(|(_, items)| items).map(|(_, held)| held);
        left.chain(right).collect()
    }
}

fn take_first<K: Hash + Eq, T>(waiting: &mut HashMap<K, VecDeque<T>>, key: K) -> Option<T> {
    let items = waiting.get_mut(&key)?;
    let first = items.pop_front();
    if items.is_empty() {
        waiting.remove(&key);
    }
    first
}

/// Takes out the halves that `which` selects, of one bond if that is known.
fn remove_from<T>(
    waiting: &mut HashMap<Bond, VecDeque<(T, HeldItem)>>,
    bond: Option<Bond>,
    which: impl Fn(&HeldItem) -> bool,
) -> Vec<HeldItem> {
    let mut removed = Vec::new();
    let mut take = |items: &mut VecDeque<(T, HeldItem)>| {
        for (item, held) in std::mem::take(items) {
            if which(&held) { removed.push(held) } else { items.push_back((item, held)) }
        }
        !items.is_empty()
    };
    match bond {
        Some(bond) => {
            if waiting.get_mut(&bond).is_some_and(|items| !take(items)) {
                waiting.remove(&bond);
            }
        }
        None => waiting.retain(|_, items| take(items)),
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_and_the_newest() {
        let mut recent = Recent::default();
        let id = |number| ItemId { source: 0, number };
        recent.extend((0..3 * MAX_WAITING as u64).map(id));
        recent.extend([id(3 * MAX_WAITING as u64 - 1)]);
        assert_eq!((recent.ids.len(), recent.in_order.len()), (MAX_WAITING, MAX_WAITING));
        assert!(
            !recent.contains(&id(2 * MAX_WAITING as u64 - 1)) && recent.contains(&id(2 * MAX_WAITING as u64))
        );
        recent.retain(|id| id.number % 2 == 0);
        assert_eq!((recent.ids.len(), recent.in_order.len()), (MAX_WAITING / 2, MAX_WAITING / 2));
    }

    #[test]
    fn partners_find_each_other_in_any_order_and_in_turn() {
        let mut waiting = WaitingHalves::new();
        assert_eq!(waiting.left(Bond::Key(1), 'a'), None);
        assert_eq!(waiting.left(Bond::Key(1), 'b'), None);
        assert_eq!(waiting.right(Bond::Key(2), 'x'), None);
        assert_eq!(waiting.right(Bond::Key(1), 'y'), Some(('a', 'y')));
        assert_eq!(waiting.right(Bond::Key(1), 'z'), Some(('b', 'z')));
        assert_eq!(waiting.count, 1);
        assert_eq!(waiting.left(Bond::Key(2), 'c'), Some(('c', 'x')));
        assert_eq!(waiting.count, 0);
    }
}
