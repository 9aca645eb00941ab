//! Keeps, at the sender, the items that wait for a stage that drops items when it has no room.
//!
//! No sender waits for such a stage. An item goes at once if the stage has nothing to do. Otherwise the
//! sender keeps the newest or the oldest few items, and a task, the pump, sends them when the stage is ready.
//! An item that is dropped gives its tensors back at once, because it never left its sender.
//!
//! **On a death of the stage** the kept items wait for its next life. **On a death of the actor that keeps
//! them**, or of its process, they are lost with it. That actor's own senders name them, because an item is
//! not answered before it was accepted or dropped. A process that outlives its actor sends none of the kept
//! items: the actor's next life sends too, and the order between the two would be lost.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use futures_util::future::FutureExt;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::{Asked, Branch, NotYet, Unsendable, bytes_of};
use crate::item::{Item, ItemOrder};
use crate::out::Emitted;
use crate::worker::ack_guard::AckGuard;
use crate::worker::args::{Drops, OverflowArgs};
use crate::worker::meter::Cause;

/// See the module.
pub(super) struct Overflow<T> {
    args: OverflowArgs,
    waiting: RefCell<VecDeque<Emitted<T>>>,
    pumping: Cell<bool>,
    pump: RefCell<Option<JoinHandle<()>>>,
    dropped: Cell<u64>,
    /// Notified when no item waits any more.
    drained: Notify,
}

impl<T> Overflow<T> {
    pub(super) fn new(args: OverflowArgs) -> Self {
        Overflow {
            args,
            waiting: RefCell::default(),
            pumping: Cell::new(false),
            pump: RefCell::default(),
            dropped: Cell::new(0),
            drained: Notify::new(),
        }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Returns how many items wait here.
    pub(super) fn waiting(&self) -> u32 {
        self.waiting.borrow().len() as u32
    }

    /// Keeps an item. Returns the item that is dropped because there is no room.
    fn keep(&self, item: Emitted<T>) -> Option<Emitted<T>> {
        let mut waiting = self.waiting.borrow_mut();
        let dropped = if waiting.len() < self.args.room as usize {
            waiting.push_back(item);
            return None;
        } else if self.args.drops == Drops::Newest {
            Some(item)
        } else {
            waiting.push_back(item);
            waiting.pop_front()
        };
        self.dropped.set(self.dropped.get() + 1);
        dropped
    }

    /// Marks the last waiting item with this place in an order as the one that closes it. Returns whether
    /// there is one. If a gap went ahead of that item, the item would come too late.
    pub(super) fn close(&self, order: ItemOrder) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let mut places = waiting.iter_mut().rev().filter_map(|waits| waits.tag.order.as_mut());
        let place = places.find(|place| ItemOrder { last: order.last, ..**place } == order);
        place.map(|place| place.last |= order.last).is_some()
    }
}

impl<T: Item> Branch<T> {
    /// Sends an item if the receiver has room, and keeps or drops it otherwise. Never waits.
    pub(super) fn put(self: &Rc<Self>, overflow: &Rc<Overflow<T>>, item: Emitted<T>) {
        let mut offered = None;
        let kept = if overflow.pumping.get() {
            Some(item)
        } else {
            match self.offer_now(item) {
                Ok(()) => return,
                Err(NotYet::Untouched(item) | NotYet::On(_, item)) => Some(*item),
                Err(NotYet::Asked(_, asked)) => {
                    offered = Some(asked);
                    None
                }
            }
        };
        if let Some(dropped) = kept.and_then(|item| overflow.keep(item)) {
            self.env.note_dropped(1);
            self.did_without(dropped);
        }
        if !overflow.pumping.replace(true) {
            let (branch, pumped) = (Rc::clone(self), Rc::clone(overflow));
            let pump = crate::worker::spawn(async move { branch.pump(&pumped, offered).await });
            overflow.pump.replace(Some(pump));
        }
    }

    /// Gives up the items that wait, because the actor has ended.
    pub(in crate::worker) fn abandon(&self) {
        let Some(overflow) = &self.overflow else { return };
        if let Some(pump) = overflow.pump.take() {
            pump.abort();
        }
        for Emitted { ack_guard, .. } in overflow.waiting.take() {
            // The item was not handled, so its sender must not get an answer.
            ack_guard.iter().for_each(AckGuard::lose);
        }
        overflow.pumping.set(false);
        overflow.drained.notify_one();
    }

    /// Sends the waiting items as there is room, until none waits.
    async fn pump(self: &Rc<Self>, overflow: &Overflow<T>, offered: Option<Box<Asked<T>>>) {
        if let Some(asked) = offered {
            self.note_unsendable(self.go_on(*asked).await);
        }
        loop {
            // The first item is looked at before it is taken out: until there is room for it, it can be
            // dropped.
            let bytes = match overflow.waiting.borrow().front() {
                None => break,
                Some(first) if self.room.counts_bytes() => bytes_of(&first.item),
                Some(_) => 0,
            };
            if !self.has_room(bytes) {
                self.room.changed().await;
                continue;
            }
            let Some(item) = overflow.waiting.borrow_mut().pop_front() else { break };
            let Emitted { tag, item, ack_guard } = item;
            self.note_unsendable(self.send_in_turn(tag, item, ack_guard).await);
        }
        overflow.pumping.set(false);
        overflow.drained.notify_one();
    }

    /// Names an item that cannot be sent. The stage that made it has gone on to another item by now, so it
    /// counts as one that the receiver could not read.
    fn note_unsendable(&self, sent: Result<(), Unsendable>) {
        if let Err(Unsendable { tag, why }) = sent {
            self.meter.lost(&self.stage, tag.ids(), Cause::Unread, &why);
        }
    }

    /// Drops an item, and closes its place in an order.
    fn did_without(self: &Rc<Self>, item: Emitted<T>) {
        let Emitted { tag, item, ack_guard } = item;
        drop(item);
        if tag.order.is_some() {
            let branch = Rc::clone(self);
            crate::worker::spawn(async move {
                branch.leave_gap(&tag).boxed_local().await;
                drop(ack_guard);
            });
        }
    }

    /// Waits until no item waits.
    pub(in crate::worker) async fn drained(&self) {
        let Some(overflow) = &self.overflow else { return };
        while overflow.pumping.get() {
            overflow.drained.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ItemId;
    use crate::item::Tag;

    fn kept(drops: Drops) -> (Vec<u64>, Vec<u64>, u64) {
        let overflow = Overflow::new(OverflowArgs { drops, room: 2 });
        let mut dropped = Vec::new();
        for number in 0..5 {
            let tag = Tag::of(ItemId { source: 0, number });
            let item = Emitted { tag, item: number, ack_guard: Default::default() };
            dropped.extend(overflow.keep(item).map(|item| item.item));
        }
        let waiting = overflow.waiting.borrow().iter().map(|item| item.item).collect();
        (waiting, dropped, overflow.dropped())
    }

    #[test]
    fn the_newest_stay_or_the_oldest_and_the_others_are_counted() {
        assert_eq!(kept(Drops::Oldest), (vec![3, 4], vec![0, 1, 2], 3));
        assert_eq!(kept(Drops::Newest), (vec![0, 1], vec![2, 3, 4], 3));
    }
}
