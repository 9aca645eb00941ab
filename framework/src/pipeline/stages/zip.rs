//! Two flows that become one, item by item.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::marker::PhantomData;

use anyhow::Context as _;

use crate::actor::Env;
use crate::pipeline::closures;
use crate::pipeline::limits::MAX_WAITING;
use crate::pipeline::{Either, Held, Item, ItemId, Out, Pair, Stage};

/// Says from which flow an item is.
pub(in crate::pipeline) struct Lift<A, B, const LEFT: bool>(PhantomData<(A, B)>);

impl<A: Item, B: Item> Stage for Lift<A, B, true> {
    type Args = PhantomData<(A, B)>;
    type In = A;
    type Out = Either<A, B>;

    fn create(_: PhantomData<(A, B)>, _: &Env) -> anyhow::Result<Self> {
        Ok(Lift(PhantomData))
    }

    fn process(&mut self, item: A, out: &mut Out<Either<A, B>>) -> anyhow::Result<()> {
        out.emit(Either::Left(item));
        Ok(())
    }
}

impl<A: Item, B: Item> Stage for Lift<A, B, false> {
    type Args = PhantomData<(A, B)>;
    type In = B;
    type Out = Either<A, B>;

    fn create(_: PhantomData<(A, B)>, _: &Env) -> anyhow::Result<Self> {
        Ok(Lift(PhantomData))
    }

    fn process(&mut self, item: B, out: &mut Out<Either<A, B>>) -> anyhow::Result<()> {
        out.emit(Either::Right(item));
        Ok(())
    }
}

/// What two items have in common that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::pipeline) enum Bond {
    Id(ItemId),
    Key(u64),
}

/// The key of an item of either flow.
pub(in crate::pipeline) type KeyOf<A, B> = dyn Fn(&Either<A, B>) -> u64 + Send + Sync;

/// Puts those together that have the same bond.
pub(in crate::pipeline) struct Zip<A: Item, B: Item> {
    key: Option<std::sync::Arc<KeyOf<A, B>>>,
    waiting: Waiting<(A, Held), (B, Held)>,
}

/// Items that wait for their partners, in the order in which they came. Pure bookkeeping.
struct Waiting<A, B> {
    left: HashMap<Bond, VecDeque<A>>,
    right: HashMap<Bond, VecDeque<B>>,
    count: usize,
}

impl<A, B> Waiting<A, B> {
    /// A new left item: its partner, if that waits.
    fn left(&mut self, bond: Bond, item: A) -> Option<(A, B)> {
        match take_first(&mut self.right, bond) {
            Some(partner) => self.paired((item, partner)),
            None => {
                self.count += 1;
                self.left.entry(bond).or_default().push_back(item);
                None
            }
        }
    }

    fn right(&mut self, bond: Bond, item: B) -> Option<(A, B)> {
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

impl<A, B> Waiting<(A, Held), (B, Held)> {
    /// All that still wait.
    fn drain(&mut self) -> Vec<Held> {
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

impl<A: Item, B: Item> Stage for Zip<A, B> {
    /// The name of the closure that tells an item's key; without one, items belong together that have the same id.
    type Args = Option<String>;
    type In = Either<A, B>;
    type Out = Pair<A, B>;

    fn create(key: Option<String>, _: &Env) -> anyhow::Result<Self> {
        let key = key.map(|name| closures::find::<KeyOf<A, B>>(&name)).transpose()?;
        Ok(Zip { key, waiting: Waiting { left: HashMap::new(), right: HashMap::new(), count: 0 } })
    }

    fn process(&mut self, item: Either<A, B>, out: &mut Out<Pair<A, B>>) -> anyhow::Result<()> {
        let bond = match &self.key {
            Some(key) => Bond::Key(key(&item)),
            None => Bond::Id(out.id().context("an item without an id cannot be joined")?),
        };
        anyhow::ensure!(
            self.waiting.count < MAX_WAITING,
            "{MAX_WAITING} items wait for partners that do not come; one of the flows drops them"
        );
        let held = out.hold();
        let pair = match item {
            Either::Left(item) => self.waiting.left(bond, (item, held)),
            Either::Right(item) => self.waiting.right(bond, (item, held)),
        };
        if let Some(((left, left_held), (right, right_held))) = pair {
            // Of one id the pair has it once.
            if left_held.id() == right_held.id() {
                out.emit_for(Pair { left, right }, [left_held.with(right_held)]);
            } else {
                out.emit_for(Pair { left, right }, [left_held, right_held]);
            }
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Out<Pair<A, B>>) -> anyhow::Result<()> {
        for held in self.waiting.drain() {
            out.leave_over(held, "no partner came for it");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_find_each_other_in_any_order_and_in_turn() {
        let mut waiting = Waiting { left: HashMap::new(), right: HashMap::new(), count: 0 };
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
