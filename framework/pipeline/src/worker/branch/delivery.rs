//! Delivers an item to a replica's mailbox, and finds another replica if the chosen one is between two lives
//! or gone.

use std::rc::Rc;

use futures_util::future::{FutureExt, LocalBoxFuture};
use tensorpost_core::api::actor::{Address, Ask, AskError, SendFailure};

use super::{Branch, Underway, Unsendable};
use crate::item::{EdgeMessage, Item, Tag};
use crate::limits::MAX_REPLICAS;
use crate::worker::ack_guard::AckGuards;
use crate::worker::answers::{Unanswered, is_exited, why};
use crate::worker::meter::Cause;
use crate::worker::pick::{Choice, Load};

/// The replicas that were found between two lives, for an item that any replica can take.
#[derive(Default)]
pub(super) struct Tried {
    /// One bit for each replica, by number.
    replicas: u128,
    /// Whether all are between two lives: then the item waits for the next life of one.
    all: bool,
}

impl Tried {
    pub(super) fn note(&mut self, at: usize) {
        self.replicas |= 1 << at;
    }

    pub(super) fn has(&self, at: usize) -> bool {
        self.replicas & (1 << at) != 0
    }
}

const _: () = assert!(MAX_REPLICAS <= u128::BITS);

/// The fate of an item that a receiver has not accepted.
pub(super) enum Turned<T> {
    /// It goes to another receiver.
    To(usize, T),
    /// No receiver takes it.
    Away(Result<(), Unsendable>),
}

impl<T: Item> Branch<T> {
    /// Sends an item to this replica, or to one that stands in for it, and waits until it was accepted.
    pub(super) async fn deliver(
        self: &Rc<Self>,
        at: usize,
        tag: Tag,
        item: T,
        bytes: u64,
        ack_guard: AckGuards,
    ) -> Result<(), Unsendable> {
        self.deliver_past(at, tag, item, bytes, ack_guard, Tried::default()).await
    }

    /// As [`deliver`](Self::deliver), but not to replicas that were tried.
    pub(super) async fn deliver_past(
        self: &Rc<Self>,
        mut at: usize,
        mut tag: Tag,
        mut item: T,
        bytes: u64,
        ack_guard: AckGuards,
        mut tried: Tried,
    ) -> Result<(), Unsendable> {
        loop {
            let copy = self.modes.resend.then(|| item.clone());
            let address = match self.address(at).await {
                Ok(address) => address,
                // No replica has the name any more. The item is lost, and named; that is not an error of this
                // stage.
                Err(why) => {
                    self.lost(&tag, Cause::Ended, &why).await;
                    return Ok(());
                }
            };
            let mut ask = self.ask(address, EdgeMessage::Item(tag.clone(), item), &tried);
            match ask.accepted().await {
                Ok(()) => {
                    self.follow(ask, Underway { to: at, tag, bytes, copy, since: None, ack_guard });
                    return Ok(());
                }
                Err(error) => {
                    let turned = self.turned_away(error, at, &mut tag, &ack_guard, &mut tried);
                    match turned.boxed_local().await {
                        Turned::To(other, back) => (at, item) = (other, back),
                        Turned::Away(end) => return end,
                    }
                }
            }
        }
    }

    /// Asks a replica. If another could take the item as well, the ask does not wait for the next life of a
    /// replica that restarts.
    pub(super) fn ask(
        &self,
        to: Address<EdgeMessage<T>>,
        message: EdgeMessage<T>,
        tried: &Tried,
    ) -> Ask<EdgeMessage<T>> {
        let ask = to.ask(message);
        let free = self.restarts && self.to.len() > 1 && self.pick.is_free() && !tried.all;
        if free { ask.unless_restarting() } else { ask }
    }

    /// Finds out why the receiver `at` has not accepted an item, and which replica takes it instead.
    pub(super) async fn turned_away(
        self: &Rc<Self>,
        error: AskError<EdgeMessage<T>>,
        at: usize,
        tag: &mut Tag,
        ack_guard: &AckGuards,
        tried: &mut Tried,
    ) -> Turned<T> {
        // A mailbox accepted the message and ended at once: the message is gone, and nothing is left to send
        // to another replica.
        let why = why(&error);
        let AskError::NotSent(error) = error else {
            self.lost(tag, Unanswered::of(&error).cause(), &why).await;
            return Turned::Away(Ok(()));
        };
        let EdgeMessage::Item(_, back) = error.message else { return Turned::Away(Ok(())) };
        if let SendFailure::Tainted(_) = error.reason {
            // The item was lost with a process (DEATH-3), which is not an error of any stage.
            drop(back);
            self.lost_here(tag, &why, ack_guard).await;
            return Turned::Away(Ok(()));
        }
        if let SendFailure::Restarting = error.reason {
            tried.note(at);
            let left = |at| {
                let load = self.replica(at);
                Load { exited: load.exited || tried.has(at), ..load }
            };
            let Choice::One(other) = self.pick.choose(&back, self.to.len(), left) else {
                tried.all = true;
                return Turned::To(at, back);
            };
            return Turned::To(other, back);
        }
        // The item itself cannot be sent, to this replica or to any other. Its number must be settled, or the
        // window would wait for it.
        if !is_exited(&error.reason) {
            self.settle(tag);
            return Turned::Away(Err(Unsendable { tag: tag.clone(), why }));
        }
        // Marked before the choice, which must not fall on this replica again. If no replica is left, the
        // item is lost.
        self.to[at].exited.set(true);
        if let Choice::One(other) = self.pick.choose(&back, self.to.len(), |at| self.replica(at)) {
            tag.attempt += 1;
            return Turned::To(other, back);
        }
        self.lost(tag, Cause::Ended, &why).await;
        Turned::Away(Ok(()))
    }

    /// As [`deliver`](Self::deliver), but boxed, because a delivery is watched, and watching may deliver.
    pub(super) fn deliver_again(
        self: &Rc<Self>,
        at: usize,
        tag: Tag,
        item: T,
        bytes: u64,
        ack_guard: AckGuards,
    ) -> LocalBoxFuture<'static, bool> {
        let branch = Rc::clone(self);
        Box::pin(async move { branch.deliver(at, tag, item, bytes, ack_guard).await.is_ok() })
    }
}
