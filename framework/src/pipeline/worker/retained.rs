//! Items that a stage keeps beyond its calls: which they are, and which senders wait for them.
//!
//! The stage has only the numbers of what it keeps. So the items can be given up, and named, when the stage cannot pass
//! them on any more: a call of it failed and dropped them, or it failed for good and would keep them for ever.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::ack_guard::AckGuards;
use crate::pipeline::item::{ItemId, Tag};

/// An item that is kept.
#[derive(Clone)]
pub(in crate::pipeline) struct RetainedItem {
    pub(in crate::pipeline) tag: Tag,
    pub(in crate::pipeline) ack_guard: AckGuards,
}

/// All that a stage keeps. Clones share it.
#[derive(Clone, Default)]
pub(in crate::pipeline) struct Retained(Rc<Inner>);

#[derive(Default)]
struct Inner {
    next: Cell<u64>,
    items: RefCell<BTreeMap<u64, RetainedItem>>,
    dropped: RefCell<Vec<RetainedItem>>,
}

impl Retained {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.items.borrow().len()
    }

    /// Keeps an item under the number that is returned.
    pub(in crate::pipeline) fn keep(&self, item: RetainedItem) -> u64 {
        let number = self.0.next.get();
        self.0.next.set(number + 1);
        self.0.items.borrow_mut().insert(number, item);
        number
    }

    /// The item is passed on. `None` if it was given up.
    pub(in crate::pipeline) fn take(&self, number: u64) -> Option<RetainedItem> {
        self.0.items.borrow_mut().remove(&number)
    }

    /// All items that are in it.
    pub(in crate::pipeline) fn ids(&self, number: u64) -> Vec<ItemId> {
        self.0.items.borrow().get(&number).map_or_else(Vec::new, |item| item.tag.ids().collect())
    }

    /// The stage has dropped it. Only the result of its call says whether that is a loss.
    pub(in crate::pipeline) fn drop_one(&self, number: u64) {
        let item = self.take(number);
        self.0.dropped.borrow_mut().extend(item);
    }

    /// Takes the items that the stage has dropped since the last time.
    pub(super) fn dropped(&self) -> Vec<RetainedItem> {
        self.0.dropped.take()
    }

    /// Takes everything that the stage still keeps and can no longer pass on.
    pub(super) fn give_up(&self) -> Vec<RetainedItem> {
        self.0.items.take().into_values().collect()
    }
}
