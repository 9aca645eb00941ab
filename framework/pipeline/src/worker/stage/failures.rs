//! Handles items when a call has failed, or their data was lost with a process (DEATH-3). They are tried
//! again, sent to the dead letters, named as failed or lost, or left to the sender that can send them again.
//!
//! Used by the steps of [`Core`]. **On a crash** of this process nothing more is reported; the senders name
//! the items that they had under way here.

use std::collections::HashSet;

use futures_util::future::FutureExt;
use smallvec::smallvec;
use tensorpost_core::api::node::ProcessId;

use super::super::ack_guard::AckGuard;
use super::super::meter::{Cause, Failure};
use super::super::retained::RetainedItem;
use super::Core;
use crate::dead::DeadItem;
use crate::item::{ItemId, Tag};
use crate::out::{Emitted, Out};
use crate::traits::Stage;

impl<S: Stage> Core<S> {
    /// Handles an item whose data was lost on its way here.
    pub(super) async fn tainted(&self, tag: Tag, why: &str) {
        // If items are sent again, its sender does that.
        if self.part.config.resend {
            self.orphans.left(&tag);
        } else {
            self.part.meter.lost(&self.part.config.stage, tag.ids(), Cause::Tainted, why);
        }
        // Its place in the order is closed in both cases, here or behind this stage.
        let Some(order) = tag.order else { return };
        if self.restores() {
            self.order.borrow_mut().put(Some(order), None);
            self.in_order().await;
        } else if !self.part.config.restore {
            self.nothing_of(Some(order)).await;
        }
    }

    /// Returns the process with which an item was lost while it waited here for its turn.
    pub(super) fn tainted_since(&self, item: &S::In) -> Option<ProcessId> {
        self.part.env.lost_with(item)
    }

    /// Handles a failed attempt, after `before` earlier ones; `copy` is a copy of its item, if one was kept.
    /// Returns the item if it must be tried again.
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
        // On every attempt: held items that the call had emitted or dropped do not come back with a retry.
        let attempts = before + 1;
        self.fail_too(Some(id), out, &why, attempts);
        tag.attempt += 1;
        if before < on_error.retries() {
            part.meter.note(|counts| counts.retries += 1);
            return copy;
        }
        // The failure is final. The conductor hears of it before anything of the item is passed on, so that
        // the sources stop soon.
        part.failed(Some(id), why.clone(), attempts, on_error.fails());
        match copy.filter(|_| on_error.keeps()) {
            Some(item) => {
                part.meter.note(|counts| counts.dead_letters += 1);
                let dead = DeadItem { item, stage: part.config.stage.clone(), why, attempts };
                let tag = Tag { order: None, ..tag.clone() };
                let dead = Emitted { tag, item: dead, ack_guard: smallvec![ack_guard.clone()] };
                if let Err(unsent) = self.dead.send(dead).boxed_local().await {
                    part.failed(Some(unsent.tag.id), unsent.why, 1, false);
                }
            }
            None => {
                part.meter.note(|counts| counts.skipped += 1);
                // If the item is a batch, all items in it have failed.
                for other in tag.also.drain(..) {
                    let (stage, why) = (part.config.stage.clone(), why.clone());
                    part.meter.failed_too(Failure { stage, id: Some(other), why, attempts });
                }
            }
        }
        // Last its place in the order, when everything about the item was reported.
        self.nothing_of(order).await;
        None
    }

    /// Whether the error of a call says that its item was lost with a process (DEATH-3).
    pub(super) fn is_loss(&self, error: &anyhow::Error) -> bool {
        self.losses.is_of_the_item(error, self.part.env.losses_learnt())
    }

    /// Handles the items of a failed call that were lost with a process.
    pub(super) fn lose(&self, item: Option<RetainedItem>, mut out: Out<S::Out>, why: &str) {
        let mut lost: Vec<_> =
            item.into_iter().chain(out.withdraw()).chain(self.part.retained.dropped()).collect();
        if self.part.config.resend {
            // The senders that still have them send them again.
            lost.iter().flat_map(|item| &item.ack_guard).for_each(AckGuard::lose);
            return;
        }
        let mut seen = HashSet::new();
        lost.retain(|item| seen.insert(item.tag.id));
        let ids = lost.iter().flat_map(|item| item.tag.ids());
        self.part.meter.lost(&self.part.config.stage, ids, Cause::Tainted, why);
    }

    /// Names the items that fail together with the one on which a call has failed: held items that the call
    /// had emitted or dropped.
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
