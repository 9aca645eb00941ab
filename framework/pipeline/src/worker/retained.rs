//! Tracks the items that a stage keeps beyond its calls, and the senders that wait for them.
//!
//! The stage has only the numbers of the items that it keeps. So the items can be given up, and named, when
//! the stage cannot pass them on any more: a call of it failed and dropped them, or it failed for good and
//! would keep them for ever.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::ack_guard::AckGuards;
use crate::item::{ItemId, ItemOrder, Tag};

/// An item that is kept.
#[derive(Clone)]
pub(crate) struct RetainedItem {
    pub(crate) tag: Tag,
    pub(crate) ack_guard: AckGuards,
}

/// All that a stage keeps. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Retained(Rc<Inner>);

#[derive(Default)]
struct Inner {
    next: Cell<u64>,
    items: RefCell<BTreeMap<u64, RetainedItem>>,
    dropped: RefCell<Vec<RetainedItem>>,
    /// Whether kept items keep their places in an order.
    keeps_places: bool,
    /// How many kept items have each place in an order (`places`), and the places that no kept item has any
    /// more (`left`).
    places: RefCell<BTreeMap<Place, usize>>,
    left: RefCell<Vec<ItemOrder>>,
}

/// A place in an order: lane, life and number.
type Place = (u32, u64, u64);

fn place(order: ItemOrder) -> Place {
    (order.lane, order.life, order.number)
}

impl Retained {
    /// `keeps_places` says whether kept items keep their places in the order. The items of a batch or a pair
    /// do not: the batch has the place of the item that completes it, which may never come.
    pub(crate) fn new(keeps_places: bool) -> Self {
        Retained(Rc::new(Inner { keeps_places, ..Inner::default() }))
    }

    pub(crate) fn keeps_places(&self) -> bool {
        self.0.keeps_places
    }

    /// Returns the number of kept items.
    pub(super) fn len(&self) -> usize {
        self.0.items.borrow().len()
    }

    /// Keeps an item, and returns its number.
    pub(crate) fn keep(&self, item: RetainedItem) -> u64 {
        let number = self.0.next.get();
        self.0.next.set(number + 1);
        if let Some(order) = item.tag.order.filter(|_| self.0.keeps_places) {
            *self.0.places.borrow_mut().entry(place(order)).or_default() += 1;
        }
        self.0.items.borrow_mut().insert(number, item);
        number
    }

    /// Takes out an item that is passed on. `None` if it was given up.
    pub(crate) fn take(&self, number: u64) -> Option<RetainedItem> {
        let item = self.0.items.borrow_mut().remove(&number)?;
        self.leaves(&item);
        Some(item)
    }

    fn leaves(&self, item: &RetainedItem) {
        let Some(order) = item.tag.order else { return };
        let mut places = self.0.places.borrow_mut();
        let Some(kept) = places.get_mut(&place(order)) else { return };
        *kept -= 1;
        if *kept == 0 {
            places.remove(&place(order));
            self.0.left.borrow_mut().push(ItemOrder { last: true, ..order });
        }
    }

    /// Whether a kept item has this place in an order.
    pub(crate) fn has(&self, order: ItemOrder) -> bool {
        self.0.places.borrow().contains_key(&place(order))
    }

    /// Takes the places that lost their last kept item since the last call, unless an item has come back to
    /// them.
    pub(crate) fn left(&self) -> Vec<ItemOrder> {
        let mut left = self.0.left.take();
        left.retain(|order| !self.has(*order));
        left
    }

    /// Returns the ids of all items in a kept item.
    pub(crate) fn ids(&self, number: u64) -> Vec<ItemId> {
        self.0.items.borrow().get(&number).map_or_else(Vec::new, |item| item.tag.ids().collect())
    }

    /// Whether more items may come with one of the ids of a kept item.
    pub(crate) fn is_one_of_several(&self, number: u64) -> bool {
        self.0.items.borrow().get(&number).is_some_and(|item| item.tag.several)
    }

    /// Notes that the stage has dropped an item. Only the result of its call says whether that is a loss.
    pub(crate) fn drop_one(&self, number: u64) {
        let item = self.take(number);
        self.0.dropped.borrow_mut().extend(item);
    }

    /// Takes the items that the stage has dropped since the last call.
    pub(super) fn dropped(&self) -> Vec<RetainedItem> {
        self.0.dropped.take()
    }

    /// Takes everything that the stage still keeps and can no longer pass on.
    pub(super) fn give_up(&self) -> Vec<RetainedItem> {
        let items: Vec<_> = self.0.items.take().into_values().collect();
        items.iter().for_each(|item| self.leaves(item));
        items
    }
}
