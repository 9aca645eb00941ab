//! Restores an order that replicas have lost. Pure bookkeeping. The sender that numbers the items bounds how
//! many can wait here: it stops [`ORDER_WINDOW`](super::limits::ORDER_WINDOW) numbers ahead of its oldest
//! unanswered item. With at-least-once delivery it stops when so many are unanswered, and nothing bounds how
//! far an item falls behind the others. So numbers with which nothing comes take one place together (MBX-2).

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::item::ItemOrder;

/// Items that came too early, by sender.
pub(crate) struct Reorder<T> {
    lanes: HashMap<u32, Lane<T>>,
    ready: VecDeque<T>,
}

struct Lane<T> {
    life: u64,
    next: u64,
    /// By number.
    waiting: BTreeMap<u64, Early<T>>,
}

/// The items of a number whose turn has not come, and the numbers behind it with which nothing comes.
struct Early<T> {
    items: Vec<T>,
    /// The first number behind them; the items' own number if more of them come.
    until: u64,
}

impl<T> Lane<T> {
    fn of(life: u64) -> Self {
        Lane { life, next: 0, waiting: BTreeMap::new() }
    }

    fn put_early(&mut self, number: u64, item: Option<T>, last: bool) {
        // The number comes from a sender, so it may be any.
        let (mut first, mut until) = (number, number.saturating_add(u64::from(last)));
        let before = self.waiting.range_mut(..=number).next_back();
        match before {
            Some((at, early)) if *at == number => {
                early.items.extend(item);
                early.until = early.until.max(until);
                until = early.until;
            }
            // Something comes with it after all.
            Some((_, early)) if early.until > number => {
                let Some(item) = item else { return };
                until = std::mem::replace(&mut early.until, number);
                self.waiting.insert(number, Early { items: vec![item], until });
            }
            Some((at, early)) if early.until == number && item.is_none() => {
                early.until = until;
                first = *at;
            }
            _ => {
                self.waiting.insert(number, Early { items: item.into_iter().collect(), until });
            }
        }
        let behind = self.waiting.get(&until).filter(|behind| behind.items.is_empty());
        if let Some(end) = behind.map(|behind| behind.until).filter(|end| until > first && *end > until)
            && let Some(early) = self.waiting.get_mut(&first)
        {
            early.until = end;
            self.waiting.remove(&until);
        }
    }
}

impl<T> Reorder<T> {
    pub(crate) fn new() -> Self {
        Reorder { lanes: HashMap::new(), ready: VecDeque::new() }
    }

    /// Takes an item with its place in the order; an item without a place is next. `item` is `None` if
    /// nothing comes with the place.
    pub(crate) fn put(&mut self, order: Option<ItemOrder>, item: Option<T>) {
        let Some(ItemOrder { lane, life, number, last }) = order else {
            self.ready.extend(item);
            return;
        };
        let lane = self.lanes.entry(lane).or_insert_with(|| Lane::of(life));
        if life > lane.life {
            // The earlier life can no longer report what was lost, so its missing items are not waited for.
            let earlier = std::mem::replace(lane, Lane::of(life));
            self.ready.extend(earlier.waiting.into_values().flat_map(|early| early.items));
        }
        if life < lane.life || number < lane.next {
            // The item was given up as lost and came after all: there is no better place left than here.
            self.ready.extend(item);
            return;
        }
        if number > lane.next {
            return lane.put_early(number, item, last);
        }
        self.ready.extend(item);
        if last {
            lane.next = number.saturating_add(1);
            while let Some(early) = lane.waiting.remove(&lane.next) {
                self.ready.extend(early.items);
                if early.until == lane.next {
                    break;
                }
                lane.next = early.until;
            }
        }
    }

    /// Takes the next item whose turn it is.
    pub(crate) fn take(&mut self) -> Option<T> {
        self.ready.pop_front()
    }

    /// Gives up the missing items: those that wait are ready, in order, and later items follow them.
    pub(crate) fn skip(&mut self) {
        let mut lanes: Vec<_> = self.lanes.iter_mut().collect();
        lanes.sort_unstable_by_key(|(lane, _)| **lane);
        for (_, lane) in lanes {
            for early in std::mem::take(&mut lane.waiting).into_values() {
                self.ready.extend(early.items);
                lane.next = early.until;
            }
        }
    }

    /// Closes the order, when nothing more will come: items that still wait are ready, in order, without the
    /// missing ones.
    pub(crate) fn close(&mut self) {
        let mut lanes: Vec<_> = self.lanes.drain().collect();
        lanes.sort_unstable_by_key(|(lane, _)| *lane);
        let waiting = lanes.into_iter().flat_map(|(_, lane)| lane.waiting.into_values());
        self.ready.extend(waiting.flat_map(|early| early.items));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message of a replica: a result, by item and index, or a gap.
    type Sent = (Option<ItemOrder>, Option<(u64, usize)>);

    fn order(lane: u32, number: u64, last: bool) -> Option<ItemOrder> {
        Some(ItemOrder { lane, life: 0, number, last })
    }

    fn all<T>(reorder: &mut Reorder<T>) -> Vec<T> {
        std::iter::from_fn(|| reorder.take()).collect()
    }

    #[test]
    fn what_is_missing_is_skipped_and_the_order_goes_on() {
        let mut reorder = Reorder::new();
        reorder.put(order(0, 1, true), Some('b'));
        reorder.put(order(0, 3, false), Some('d'));
        reorder.skip();
        assert_eq!(all(&mut reorder), ['b', 'd']);
        reorder.put(order(0, 4, true), Some('f'));
        reorder.put(order(0, 3, true), Some('e'));
        assert_eq!(all(&mut reorder), ['e', 'f']);
        reorder.put(order(0, 0, true), Some('a'));
        assert_eq!(all(&mut reorder), ['a'], "it comes after all");
    }

    #[test]
    fn a_gap_fills_its_place_and_a_late_one_passes() {
        let mut reorder = Reorder::new();
        reorder.put(order(0, 2, true), Some('c'));
        reorder.put(order(0, 1, true), None);
        assert!(all(&mut reorder).is_empty());
        reorder.put(order(0, 0, true), Some('a'));
        assert_eq!(all(&mut reorder), ['a', 'c']);
        reorder.put(order(0, 1, true), Some('b'));
        assert_eq!(all(&mut reorder), ['b']);
    }

    /// However far an item falls behind: with at-least-once delivery nothing bounds that.
    #[test]
    fn numbers_with_which_nothing_comes_take_one_place_and_hide_nothing() {
        let places =
            |reorder: &Reorder<char>| reorder.lanes.values().map(|lane| lane.waiting.len()).sum::<usize>();
        let mut reorder = Reorder::new();
        reorder.put(order(0, 1, true), Some('b'));
        for number in (2..1000).rev().chain(1000..5000) {
            reorder.put(order(0, number, true), None);
            reorder.put(order(1, 2 * number, true), None);
        }
        assert_eq!(places(&reorder), 1 + 4998, "in the other lane every second number is missing");
        for number in 1..5000 {
            reorder.put(order(1, 2 * number - 1, true), None);
        }
        assert_eq!(places(&reorder), 1 + 2, "2 is still missing there");
        reorder.put(order(0, 700, true), Some('x'));
        reorder.put(order(0, 700, true), None);
        reorder.put(order(0, 5000, false), Some('y'));
        assert!(all(&mut reorder).is_empty());
        reorder.put(order(0, 0, true), Some('a'));
        assert_eq!(all(&mut reorder), ['a', 'b', 'x', 'y']);
        reorder.put(order(0, 5001, true), Some('!'));
        reorder.put(order(0, 5000, true), Some('z'));
        assert_eq!(all(&mut reorder), ['z', '!']);
        reorder.put(order(1, u64::MAX, true), Some('m'));
        reorder.skip();
        reorder.put(order(1, u64::MAX, true), Some('n'));
        assert_eq!(all(&mut reorder), ['m', 'n'], "a sender may say any number");
    }

    #[test]
    fn several_results_of_one_item_stay_together() {
        let mut reorder = Reorder::new();
        reorder.put(order(0, 1, false), Some(10));
        reorder.put(order(0, 0, false), Some(0));
        reorder.put(order(0, 0, true), Some(1));
        assert_eq!(
            all(&mut reorder),
            [0, 1, 10],
            "what has come of the next item need not wait for the rest"
        );
        reorder.put(order(0, 2, true), Some(20));
        assert!(all(&mut reorder).is_empty());
        reorder.put(order(0, 1, true), Some(11));
        assert_eq!(all(&mut reorder), [11, 20]);
    }

    #[test]
    fn at_the_end_what_is_missing_holds_up_nothing() {
        let mut reorder = Reorder::new();
        reorder.put(order(1, 5, true), Some(105));
        reorder.put(order(0, 7, true), Some(7));
        reorder.put(order(0, 3, true), Some(3));
        assert!(all(&mut reorder).is_empty());
        reorder.close();
        assert_eq!(all(&mut reorder), [3, 7, 105]);
    }

    #[test]
    fn a_later_life_of_the_sender_ends_the_waiting_for_what_its_earlier_one_lost() {
        let mut reorder = Reorder::new();
        let order = |life, number| Some(ItemOrder { lane: 4, life, number, last: true });
        reorder.put(order(0, 0), Some('a'));
        reorder.put(order(0, 2), Some('c'));
        assert_eq!(all(&mut reorder), ['a']);
        reorder.put(order(1, 1), Some('B'));
        assert_eq!(all(&mut reorder), ['c'], "nobody can say that the item before it was lost");
        reorder.put(order(0, 1), Some('b'));
        assert_eq!(all(&mut reorder), ['b'], "what is late comes as it comes");
        reorder.put(order(1, 0), Some('A'));
        assert_eq!(all(&mut reorder), ['A', 'B']);
    }

    proptest! {
        /// The order comes out as it went in, no matter to which replica each item goes and how the replicas
        /// run.
        #[test]
        fn any_interleaving_of_replicas_is_undone(
            results in prop::collection::vec((0_usize..3, 0_usize..4), 1..80),
            picks in prop::collection::vec(0_usize..3, 0..400),
        ) {
            // Each item has some results, on some replica; each replica keeps its own order.
            let mut replicas: [VecDeque<Sent>; 3] = Default::default();
            for (number, (replica, count)) in (0..).zip(&results) {
                for index in 0..*count {
                    replicas[*replica].push_back((order(9, number, index + 1 == *count), Some((number, index))));
                }
                if *count == 0 {
                    replicas[*replica].push_back((order(9, number, true), None));
                }
            }
            let mut reorder = Reorder::new();
            let mut out = Vec::new();
            for pick in picks.into_iter().chain((0..3).cycle()) {
                match replicas[pick].pop_front() {
                    Some((order, item)) => reorder.put(order, item),
                    None if replicas.iter().all(VecDeque::is_empty) => break,
                    None => {}
                }
                out.extend(std::iter::from_fn(|| reorder.take()));
            }
            let expected: Vec<_> =
                (0..).zip(&results).flat_map(|(number, (_, count))| (0..*count).map(move |i| (number, i))).collect();
            prop_assert_eq!(out, expected);
        }
    }
}
