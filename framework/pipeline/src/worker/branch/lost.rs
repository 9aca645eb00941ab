//! Names items that were lost on the way to a stage, and closes their places in the order.

use std::rc::Rc;

use futures_util::future::{FutureExt, LocalBoxFuture};

use tensorpost_core::api::actor::Ask;

use super::Branch;
use super::delivery::Tried;
use crate::item::{EdgeMessage, Item, ItemOrder, Tag};
use crate::worker::ack_guard::AckGuard;
use crate::worker::answers::is_final;
use crate::worker::meter::Cause;

impl<T: Item> Branch<T> {
    /// Names an item that the receiver, or the way to it, has lost.
    ///
    /// Boxed, like the functions below: losses are rare, and the future would be part of that of every item.
    pub(super) fn lost<'a>(
        self: &'a Rc<Self>,
        tag: &'a Tag,
        cause: Cause,
        why: &str,
    ) -> LocalBoxFuture<'a, ()> {
        self.meter.lost(&self.stage, tag.ids(), cause, why);
        self.leave_gap(tag).boxed_local()
    }

    /// Handles an item that was lost in this process (DEATH-3). If a sender before this actor can send again
    /// the item that it was made of, the ack guards are marked as lost; otherwise the item is lost for good,
    /// and named.
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

    /// Fills a lost item's place in the order: the restorer behind the replicas must not wait for it. Any
    /// replica can pass the gap on.
    pub(super) async fn leave_gap(self: &Rc<Self>, tag: &Tag) {
        self.settle(tag);
        if let Some(order) = tag.order.filter(|order| order.last) {
            self.gap(order).await;
        }
    }

    /// Sends a gap: nothing comes with this place in the order.
    pub(in crate::worker) async fn gap(self: &Rc<Self>, order: ItemOrder) {
        if self.overflow.as_ref().is_none_or(|overflow| !overflow.close(order)) {
            self.gap_by(0, order).await;
        }
    }

    /// As [`gap`](Self::gap), through a replica from `first` on; one that is not between two lives, if there
    /// is one.
    async fn gap_by(self: &Rc<Self>, first: usize, order: ItemOrder) {
        let count = self.to.len();
        let mut tried = Tried::default();
        loop {
            let mut there =
                (0..count).map(|step| (first + step) % count).filter(|at| !self.to[*at].takes_nothing());
            let up = there.clone().find(|at| !tried.has(*at));
            let Some(at) = up.or_else(|| there.next()) else { return };
            let Ok(address) = self.address(at).await else {
                self.to[at].exited.set(true);
                continue;
            };
            let ask = address.ask(EdgeMessage::Gap { key: self.items, order });
            let mut ask = if up.is_some() && count > 1 { ask.unless_restarting() } else { ask };
            match ask.accepted().await {
                Ok(()) => return self.follow_gap(at, ask, order),
                Err(error) if is_final(&error) => self.to[at].exited.set(true),
                // The replica is between two lives, or out of reach just now.
                Err(_) if up.is_some() => tried.note(at),
                Err(_) => return,
            }
        }
    }

    /// Sends a gap through another replica if this one dies before it has passed the gap on. (If the restorer
    /// dies, its later life waits for no place.)
    fn follow_gap(self: &Rc<Self>, at: usize, ask: Ask<EdgeMessage<T>>, order: ItemOrder) {
        self.begin(at, 0);
        let branch = Rc::clone(self);
        crate::worker::spawn(async move {
            if ask.await.is_err() {
                if !branch.restarts {
                    branch.to[at].exited.set(true);
                }
                if branch.to.len() > 1 {
                    branch.gap_by(at + 1, order).boxed_local().await;
                }
            }
            branch.answered(at, 0);
        });
    }
}
