//! Names what was lost on the way to a stage, and lets nobody wait for it.

use std::rc::Rc;

use futures_util::future::{FutureExt, LocalBoxFuture};

use super::Branch;
use crate::item::{EdgeMessage, Item, Tag};
use crate::worker::ack_guard::AckGuard;
use crate::worker::meter::Cause;

impl<T: Item> Branch<T> {
    /// Names an item that the receiver, or the way to it, has lost.
    ///
    /// Boxed, as what follows: rare, and otherwise part of the future of every item.
    pub(super) fn lost<'a>(
        self: &'a Rc<Self>,
        tag: &'a Tag,
        cause: Cause,
        why: &str,
    ) -> LocalBoxFuture<'a, ()> {
        self.meter.lost(&self.stage, tag.ids(), cause, why);
        self.leave_gap(tag).boxed_local()
    }

    /// An item that was lost in this process (DEATH-3). Where somebody before this actor can send again what it was
    /// made of, its ack guard says so; otherwise it is lost for good, and named.
    pub(super) fn lost_here<'a>(
        self: &'a Rc<Self>,
        tag: &'a Tag,
        why: &str,
        ack_guard: &[AckGuard],
    ) -> LocalBoxFuture<'a, ()> {
        if self.modes.resend && !self.modes.origin {
            ack_guard.iter().for_each(AckGuard::lose);
        } else {
            self.meter.lost(&self.stage, tag.ids(), Cause::Tainted, why);
        }
        self.leave_gap(tag).boxed_local()
    }

    /// Fills an item's place in the order: the restorer behind the replicas must not wait for it. Any replica can pass
    /// that on.
    pub(super) async fn leave_gap(self: &Rc<Self>, tag: &Tag) {
        self.settle(tag);
        if let Some(order) = tag.order.filter(|order| order.last) {
            self.tell(EdgeMessage::Gap(order)).await;
        }
    }
}
