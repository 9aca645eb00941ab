//! Chooses among several receivers. No I/O.
//!
//! Receivers are the replicas of a stage, or the branches of a fork. Replicas stand in for each other: if the
//! one that a key belongs to is gone, the next one takes the item. If the choice is free, another replica
//! also takes the item while the one whose turn it is restarts. Branches do not stand in for each other: an
//! item that a closure has sent down one branch is lost if no replica is left there.

use std::cell::Cell;

use tensorpost_core::api::actor::CodeError;

use super::args::Select;
use crate::item::Item;

/// A number of an item: a key, or the branch that it goes to.
pub(crate) type NumberOf<T> = Box<dyn Fn(&T) -> u64>;

/// Boxes a closure, without its type.
pub(crate) fn number<T>(of: impl Fn(&T) -> u64 + 'static) -> NumberOf<T> {
    Box::new(of)
}

/// How to choose.
pub(super) struct Pick<T> {
    way: Way<T>,
    turn: Cell<usize>,
}

enum Way<T> {
    All,
    RoundRobin,
    LeastLoaded,
    By(NumberOf<T>),
    /// As `By`, for a branch: no other branch stands in for it.
    Only(NumberOf<T>),
}

/// The state of a receiver that the choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// Items that it has not answered.
    pub(super) unanswered: u32,
    /// Whether it takes no more items.
    pub(super) exited: bool,
}

/// The choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    All,
    One(usize),
    /// No receiver is left.
    None,
}

impl<T: Item> Pick<T> {
    /// Makes the choice among the branches of a fork.
    pub(super) fn among_branches(select: &Select) -> Result<Self, CodeError> {
        let Pick { way, turn } = Pick::among_replicas(select)?;
        let way = match way {
            Way::By(number) => Way::Only(number),
            way => way,
        };
        Ok(Pick { way, turn })
    }

    /// Makes the choice among the replicas of a stage.
    pub(super) fn among_replicas(select: &Select) -> Result<Self, CodeError> {
        let way = match select {
            Select::All => Way::All,
            Select::RoundRobin => Way::RoundRobin,
            Select::LeastLoaded => Way::LeastLoaded,
            Select::By(code) => Way::By(code.make()?),
        };
        Ok(Pick { way, turn: Cell::new(0) })
    }
}

impl<T> Pick<T> {
    /// Whether any receiver is as good as the chosen one.
    pub(super) fn is_free(&self) -> bool {
        matches!(self.way, Way::RoundRobin | Way::LeastLoaded)
    }

    /// Chooses a receiver for `item`. A key keeps its receiver until that has ended, and then goes to the
    /// next one.
    pub(super) fn choose(&self, item: &T, count: usize, load: impl Fn(usize) -> Load) -> Choice {
        let from =
            |first: usize| (0..count).map(move |step| (first + step) % count).find(|at| !load(*at).exited);
        let one = match &self.way {
            // An output that is not a fork has one branch: nearly every item takes this path.
            Way::All if count == 1 => (!load(0).exited).then_some(0),
            _ if count == 0 => None,
            Way::All => return Choice::All,
            Way::RoundRobin => from(self.turn.get() % count),
            Way::By(number) => from((number(item) % count as u64) as usize),
            Way::Only(number) => Some((number(item) % count as u64) as usize),
            Way::LeastLoaded => {
                let turn = self.turn.get();
                let candidates = (0..count).map(|step| (turn + step) % count).filter(|at| !load(*at).exited);
                candidates.min_by_key(|at| load(*at).unanswered)
            }
        };
        match one {
            Some(at) => {
                self.turn.set(at + 1);
                Choice::One(at)
            }
            None => Choice::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(way: Way<u64>) -> Pick<u64> {
        Pick { way, turn: Cell::new(0) }
    }

    fn choose(pick: &Pick<u64>, item: u64, loads: &[Option<u32>]) -> Choice {
        pick.choose(&item, loads.len(), |at| Load {
            unanswered: loads[at].unwrap_or(0),
            exited: loads[at].is_none(),
        })
    }

    #[test]
    fn round_robin_takes_turns_and_leaves_out_the_gone() {
        let pick = pick(Way::RoundRobin);
        let loads = [Some(9), None, Some(0)];
        let chosen: Vec<_> = (0..4).map(|item| choose(&pick, item, &loads)).collect();
        assert_eq!(chosen, [Choice::One(0), Choice::One(2), Choice::One(0), Choice::One(2)]);
    }

    #[test]
    fn the_least_loaded_takes_it_and_equals_take_turns() {
        let pick = pick(Way::LeastLoaded);
        assert_eq!(choose(&pick, 0, &[Some(3), Some(1), Some(2)]), Choice::One(1));
        assert_eq!(choose(&pick, 0, &[Some(1), Some(1), Some(1)]), Choice::One(2));
        assert_eq!(choose(&pick, 0, &[Some(1), Some(1), Some(1)]), Choice::One(0));
        assert_eq!(choose(&pick, 0, &[Some(7), None, None]), Choice::One(0));
    }

    #[test]
    fn a_key_keeps_its_receiver() {
        let pick = pick(Way::By(number(|item| *item)));
        let loads = [Some(9), Some(0), Some(0)];
        for _ in 0..3 {
            assert_eq!(choose(&pick, 6, &loads), Choice::One(0));
            assert_eq!(choose(&pick, 7, &loads), Choice::One(1));
        }
        assert_eq!(choose(&pick, 6, &[None, Some(1), Some(0)]), Choice::One(1));
    }

    #[test]
    fn a_branch_keeps_its_items_though_nobody_is_left_on_it() {
        let pick = pick(Way::Only(number(|item| *item)));
        assert_eq!(choose(&pick, 3, &[Some(0), None]), Choice::One(1));
        assert_eq!(choose(&pick, 4, &[Some(0), None]), Choice::One(0));
    }

    #[test]
    fn nobody_left_is_no_choice() {
        for way in [Way::RoundRobin, Way::LeastLoaded, Way::By(number(|item| *item))] {
            let pick = pick(way);
            assert_eq!(choose(&pick, 1, &[]), Choice::None);
            assert_eq!(choose(&pick, 1, &[None, None]), Choice::None);
        }
        assert_eq!(choose(&pick(Way::All), 1, &[Some(1), None]), Choice::All);
        assert_eq!(choose(&pick(Way::All), 1, &[]), Choice::None);
    }

    #[test]
    fn all_of_one_is_one() {
        assert_eq!(choose(&pick(Way::All), 1, &[Some(1)]), Choice::One(0));
        assert_eq!(choose(&pick(Way::All), 1, &[None]), Choice::None);
    }
}
