//! The room on the way to a stage: how many items and bytes may be unanswered, and how far their numbers may
//! be ahead.
//!
//! Used by [`Branch`](super::Branch), on the actor's thread. **Invariant.** An item is in the window from the
//! moment that it was accepted until it is answered, and an end until its answer: [`idle`](Room::idle) waits
//! for both. A number is settled once, whether its item was answered or lost.
//!
//! **Cancel safety.** A wait that is dropped takes no room. A dropped [`wait`](Room::wait) leaves its bytes
//! noted until the next one, which sets them anew.

use std::cell::{Cell, RefCell};

use tensorpost_core::api::observe::monotonic_ns;
use tokio::sync::Notify;

use crate::item::ItemOrder;
use crate::worker::args::BranchArgs;
use crate::worker::window::Window;

/// See the module.
pub(super) struct Room {
    /// See [`BranchArgs::number`].
    number: Option<u32>,
    pub(super) max_items: Option<u32>,
    max_bytes: Option<u64>,
    /// Whether items are sent again after a death.
    resends: bool,
    /// When this life of the actor began.
    born: u64,
    window: RefCell<Window>,
    /// Set when the actor was stopped: items no longer wait for room.
    hurried: Cell<bool>,
    /// The bytes of an item that waits for room.
    wanted: Cell<Option<u64>>,
    /// Notified when there may be room. Only the actor waits for it, one item at a time.
    changed: Notify,
    /// Notified when everything was answered. It is not the same as `changed`: a stage that ends still takes
    /// items.
    emptied: Notify,
}

impl Room {
    pub(super) fn new(args: &BranchArgs, resends: bool) -> Self {
        Room {
            number: args.number,
            max_items: args.window,
            max_bytes: args.max_bytes,
            resends,
            born: monotonic_ns(),
            window: RefCell::default(),
            hurried: Cell::new(false),
            wanted: Cell::new(None),
            changed: Notify::new(),
            emptied: Notify::new(),
        }
    }

    /// Whether the bytes of items are bounded. Encoding an item to count its bytes is expensive, so it is
    /// done only then.
    pub(super) fn counts_bytes(&self) -> bool {
        self.max_bytes.is_some()
    }

    /// Returns the place in the order of the next item of this lane, if items have one.
    pub(super) fn order(&self, lane: u32) -> Option<ItemOrder> {
        self.number?;
        let number = self.window.borrow_mut().number(!self.resends);
        Some(ItemOrder { lane, life: self.born, number, last: true })
    }

    /// Whether one more item with so many bytes may go, if `most` may be unanswered.
    pub(super) fn has(&self, bytes: u64, most: Option<u32>) -> bool {
        // With at-least-once delivery an item is unanswered for as long as a later stage keeps it, and all
        // behind it may pass it by: so the bound is on unanswered items, and not on their numbers.
        let (number, items) = match self.number {
            Some(_) if self.resends => (None, self.number.into_iter().chain(most).min()),
            number => (number, most),
        };
        self.hurried.get() || self.window.borrow().has_room(bytes, items, self.max_bytes, number)
    }

    /// Waits until one more item with so many bytes may go, as `has` says.
    pub(super) async fn wait(&self, bytes: u64, has: impl Fn() -> bool) {
        self.wanted.set(Some(bytes));
        while !has() {
            self.changed().await;
        }
        self.wanted.set(None);
    }

    /// Returns the bytes of the item that waits for room.
    pub(super) fn wanted(&self) -> Option<u64> {
        self.wanted.get()
    }

    /// Lets all items go from now on, without waiting for room.
    pub(super) fn hurry(&self) {
        self.hurried.set(true);
        self.changes();
    }

    /// Waits until there may be more room.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Wakes the actor if it waits for room: there may be more now.
    pub(super) fn changes(&self) {
        self.changed.notify_one();
    }

    /// Waits until all items were answered.
    pub(super) async fn settled(&self) {
        while self.window.borrow().items > 0 {
            self.emptied.notified().await;
        }
    }

    /// Waits until everything was answered: the items, and the ends.
    pub(super) async fn idle(&self) {
        while self.unanswered() > 0 {
            self.emptied.notified().await;
        }
    }

    /// Returns the number of items and ends that are not answered.
    pub(super) fn unanswered(&self) -> u32 {
        self.window.borrow().unanswered()
    }

    /// Counts an item as under way.
    pub(super) fn sent(&self, bytes: u64) {
        self.window.borrow_mut().sent(bytes);
    }

    /// Takes an item out of the window, and wakes the tasks that wait for room or for all answers.
    pub(super) fn answered(&self, bytes: u64) {
        self.window.borrow_mut().answered(bytes);
        self.changes();
        if self.window.borrow().items == 0 {
            self.emptied.notify_one();
        }
    }

    /// Takes a number out of the window, if it is from here, so that later ones may go.
    pub(super) fn settle(&self, number: u64) {
        if self.number.is_some() {
            self.window.borrow_mut().settle(number);
            self.changes();
        }
    }

    /// Counts an end, whose answer comes when the receiver is done.
    pub(super) fn begin_end(&self) {
        self.window.borrow_mut().ends += 1;
    }

    pub(super) fn end_answered(&self) {
        self.window.borrow_mut().ends -= 1;
        self.emptied.notify_one();
    }
}
