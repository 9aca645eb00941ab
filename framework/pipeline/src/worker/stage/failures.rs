//! What becomes of items when a call has failed, or their data was lost with a process (DEATH-3): tried
//! again, sent to the dead letters, named as failed or lost, or left to whoever can send them again.
//!
//! Used by the steps of [`Core`]. **On a crash** of this process nothing of it is told any more; senders name
//! what they had under way here.

use std::collections::HashSet;

use futures_util::future::FutureExt;
use smallvec::smallvec;
use tensorpost_core::api::node::ProcessId;

use super::super::ack_guard::AckGuard;
use super::super::meter::{Cause, Failure};
use super::super::retained::RetainedItem;
use super::Core;
use crate::dead::Dead;
use crate::item::{ItemId, Tag};
use crate::out::{Emitted, Out};
use crate::traits::Stage;

impl<S: Stage> Core<S> {
    /// An item came to nothing on its way here.
    pub(super) async fn tainted(&self, tag: Tag, why: &str) {
        // Where it can be sent again, its sender sees to that.
        if self.part.config.resend {
            self.orphans.left(&tag);
        } else {
            self.part.meter.lost(&self.part.config.stage, tag.ids(), Cause::Tainted, why);
        }
        // Its place in the order is filled in both cases, here or behind this stage: nobody waits for it.
        let Some(order) = tag.order else { return };
        if self.restores() {
            self.order.borrow_mut().put(Some(order), None);
            self.in_order().await;
        } else if !self.part.config.restore {
            self.nothing_of(Some(order)).await;
        }
    }

    /// The process that an item was lost with while it waited here for its turn.
    pub(super) fn tainted_since(&self, item: &S::In) -> Option<ProcessId> {
        self.part.env.lost_with(item)
    }

    /// An attempt has failed, the one after so many others; `copy` is what was kept of its item. Gives back
    /// what is to be tried again.
    pub(super) async fn failed(
        &self,
        error: anyhow::Error,
        out: Out<S::Out>,
        tag: &mut Tag,
        copy: Option<S::In>,
        ack_guard: &AckGuard,
        before: u32,
    ) -> Option<S::In> {
        let part = &self.part;
        let on_error = part.config.on_error;
        let (id, order) = (tag.id, tag.order);
        let why = format!("{error:#}");
        // First, because `OnError` is not asked about a loss, and a retry would only find it again.
        if self.is_loss(&error) {
            self.lose(
                Some(RetainedItem { tag: tag.clone(), ack_guard: smallvec![ack_guard.clone()] }),
                out,
                &why,
            );
            self.nothing_of(order).await;
            return None;
        }
        // On every attempt: what the call had emitted or dropped of what it kept does not come back with a
        // retry.
        let attempts = before + 1;
        self.fail_too(Some(id), out, &why, attempts);
        tag.attempt += 1;
        if before < on_error.retries() {
            part.meter.note(|counts| counts.retries += 1);
            return copy;
        }
        // Final. The conductor hears of it before anything of the item is passed on, so that the sources stop
        // soon.
        part.failed(Some(id), why.clone(), attempts, on_error.fails());
        match copy.filter(|_| on_error.keeps()) {
            Some(item) => {
                part.meter.note(|counts| counts.dead_letters += 1);
                let dead = Dead { item, stage: part.config.stage.clone(), why, attempts };
                let tag = Tag { order: None, ..tag.clone() };
                let dead = Emitted { tag, item: dead, ack_guard: smallvec![ack_guard.clone()] };
                if let Err(unsent) = self.dead.send(dead).boxed_local().await {
                    part.failed(Some(unsent.tag.id), unsent.why, 1, false);
                }
            }
            None => {
                part.meter.note(|counts| counts.skipped += 1);
                // Of a batch, all that is in it.
                for other in tag.also.drain(..) {
                    let (stage, why) = (part.config.stage.clone(), why.clone());
                    part.meter.failed_too(Failure { stage, id: Some(other), why, attempts });
                }
            }
        }
        // Last its place in the order, when all that is known of the item was told.
        self.nothing_of(order).await;
        None
    }

    /// Whether the error of a call says that its item was lost with a process (DEATH-3).
    pub(super) fn is_loss(&self, error: &anyhow::Error) -> bool {
        self.losses.is_of_the_item(error, self.part.env.losses_learnt())
    }

    /// Everything that a failed call had in its hands was lost with a process.
    pub(super) fn lose(&self, item: Option<RetainedItem>, mut out: Out<S::Out>, why: &str) {
        let mut lost: Vec<_> =
            item.into_iter().chain(out.withdraw()).chain(self.part.retained.dropped()).collect();
        if self.part.config.resend {
            // Whoever still has them sends them again.
            lost.iter().flat_map(|item| &item.ack_guard).for_each(AckGuard::lose);
            return;
        }
        let mut seen = HashSet::new();
        lost.retain(|item| seen.insert(item.tag.id));
        let ids = lost.iter().flat_map(|item| item.tag.ids());
        self.part.meter.lost(&self.part.config.stage, ids, Cause::Tainted, why);
    }

    /// Names what goes down with the item on which a call has failed: what it had kept and has dropped in
    /// that call.
    pub(super) fn fail_too(&self, failed: Option<ItemId>, mut out: Out<S::Out>, why: &str, attempts: u32) {
        let exited: Vec<_> = out.withdraw().chain(self.part.retained.dropped()).collect();
        let mut seen: HashSet<_> = failed.into_iter().collect();
        for id in exited.iter().flat_map(|item| item.tag.ids()).filter(|id| seen.insert(*id)) {
            let (stage, why) = (self.part.config.stage.clone(), why.to_owned());
            self.part.meter.note(|counts| counts.skipped += 1);
            self.part.meter.failed_too(Failure { stage, id: Some(id), why, attempts });
        }
    }
}
