//! Restores an order that replicas have lost. Pure bookkeeping. The sender that numbers the items bounds how
//! many can wait here: it stops [`ORDER_WINDOW`](super::limits::ORDER_WINDOW) numbers ahead of its oldest
//! unanswered item.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::item::Order;

/// Items that came too early, by sender.
pub(super) struct Reorder<T> {
    lanes: HashMap<u32, Lane<T>>,
    ready: VecDeque<T>,
}

struct Lane<T> {
    life: u64,
    next: u64,
    /// By number: the items that came, and whether all with this number have come.
    waiting: BTreeMap<u64, (Vec<T>, bool)>,
}

impl<T> Lane<T> {
    fn of(life: u64) -> Self {
        Lane { life, next: 0, waiting: BTreeMap::new() }
    }
}

impl<T> Reorder<T> {
    pub(super) fn new() -> Self {
        Reorder { lanes: HashMap::new(), ready: VecDeque::new() }
    }

    /// Takes an item with its place in the order; an item without a place is next. `item` is `None` if
    /// nothing comes with the place.
    pub(super) fn put(&mut self, order: Option<Order>, item: Option<T>) {
        let Some(Order { lane, life, number, last }) = order else {
            self.ready.extend(item);
            return;
        };
        let lane = self.lanes.entry(lane).or_insert_with(|| Lane::of(life));
        if life > lane.life {
            // The earlier life can no longer report what was lost, so its missing items are not waited for.
            let earlier = std::mem::replace(lane, Lane::of(life));
            self.ready.extend(earlier.waiting.into_values().flat_map(|(items, _)| items));
        }
        if life < lane.life || number < lane.next {
            // The item was given up as lost and came after all: there is no better place left than here.
            self.ready.extend(item);
            return;
        }
        if number > lane.next {
            let (items, complete) = lane.waiting.entry(number).or_default();
            items.extend(item);
            *complete |= last;
            return;
        }
        self.ready.extend(item);
        if last {
            lane.next += 1;
            while let Some((items, complete)) = lane.waiting.remove(&lane.next) {
                self.ready.extend(items);
                if !complete {
                    break;
                }
                lane.next += 1;
            }
        }
    }

    /// Takes the next item whose turn it is.
    pub(super) fn take(&mut self) -> Option<T> {
        self.ready.pop_front()
    }

    /// Gives up the missing items: those that wait are ready, in order, and later items follow them.
    pub(super) fn skip(&mut self) {
        let mut lanes: Vec<_> = self.lanes.iter_mut().collect();
        lanes.sort_unstable_by_key(|(lane, _)| **lane);
        for (_, lane) in lanes {
            for (number, (items, complete)) in std::mem::take(&mut lane.waiting) {
                self.ready.extend(items);
                // The number comes from a sender, so it may be any.
                lane.next = number.saturating_add(u64::from(complete));
            }
        }
    }

    /// Closes the order, when nothing more will come: items that still wait are ready, in order, without the
    /// missing ones.
    pub(super) fn close(&mut self) {
        let mut lanes: Vec<_> = self.lanes.drain().collect();
        lanes.sort_unstable_by_key(|(lane, _)| *lane);
        let waiting = lanes.into_iter().flat_map(|(_, lane)| lane.waiting.into_values());
        self.ready.extend(waiting.flat_map(|(items, _)| items));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message of a replica: a result, by item and index, or a gap.
    type Sent = (Option<Order>, Option<(u64, usize)>);

    fn order(lane: u32, number: u64, last: bool) -> Option<Order> {
        Some(Order { lane, life: 0, number, last })
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
        let order = |life, number| Some(Order { lane: 4, life, number, last: true });
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
