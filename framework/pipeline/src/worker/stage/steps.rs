//! The way of an item through a stage: `take_now` or `take`, its place in the order, `process` with its
//! attempts, and `send` with its results.
//!
//! The header of [`stage`](super) says what holds an item's ack guard meanwhile.

use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::future::{FutureExt, LocalBoxFuture};
use smallvec::smallvec;
use tensorpost_core::api::actor::DeadReason;
use tensorpost_core::api::observe::TraceContext;

use super::super::ack_guard::AckGuard;
use super::super::branch::Unsendable;
use super::super::retained::RetainedItem;
use super::super::waits::Wait;
use super::{Came, Core};
use crate::item::{EdgeMessage, ItemId, ItemOrder, Tag};
use crate::out::{Current, Emitted, Out, mark_several};
use crate::pairs::{PartnerNews, Partners};
use crate::traits::Stage;

/// How long after its time a stage may be called, where nothing holds that up.
const OVERDUE: Duration = Duration::from_secs(1);

impl<S: Stage> Core<S> {
    /// Returns what the actor waits for, for the report of a pipeline that does not move.
    pub(super) fn waits(&self) -> Vec<Wait> {
        let mut waits: Vec<_> = self.results.waits().chain(self.dead.waits()).collect();
        waits.extend(self.pushes.waits());
        let retained = self.part.retained.len();
        waits.extend((retained > 0).then_some(Wait::Retained(retained)));
        // A stage whose time came long ago, and that is not called, waits for something else. A stage that
        // polls names a new time at each call.
        let wakes = self.stage.try_borrow().ok().and_then(|stage| stage.wake_at());
        waits.extend(wakes.filter(|at| at.elapsed() < OVERDUE).map(|_| Wait::Time));
        let ends = self.ends.borrow();
        if !ends.begun {
            let missing = self.part.config.lanes.iter().filter(|lane| !ends.lanes.contains(lane));
            waits.push(Wait::Senders(missing.copied().collect()));
        }
        waits
    }

    /// Does all work on a message that need not wait. Returns the rest of the work.
    ///
    /// Nearly every item needs no more than this. A future would have room for everything that can happen to
    /// an item, and would be moved for each one.
    pub(super) fn take_now(
        self: &Rc<Self>,
        message: EdgeMessage<S::In>,
        ack_guard: AckGuard,
    ) -> Option<LocalBoxFuture<'static, ()>> {
        let config = &self.part.config;
        let is_plain = !config.restore && self.rounds.is_none() && config.on_error.retries() == 0;
        match message {
            EdgeMessage::Item(tag, item)
                if is_plain && !self.part.has_failed() && !self.ends.borrow().begun =>
            {
                self.process_now(tag, item, ack_guard)
            }
            other => Some(Rc::clone(self).take(other, ack_guard).boxed_local()),
        }
    }

    /// As [`process`](Self::process), for one attempt.
    fn process_now(
        self: &Rc<Self>,
        mut tag: Tag,
        item: S::In,
        ack_guard: AckGuard,
    ) -> Option<LocalBoxFuture<'static, ()>> {
        self.part.meter.note(|counts| counts.items_in += 1);
        let copy = self.part.config.on_error.keeps().then(|| item.clone());
        let (result, out) = self.attempt(&tag, &ack_guard, item);
        match result {
            Ok(()) => self.send_now(out, ack_guard),
            Err(error) => {
                let core = Rc::clone(self);
                let failed =
                    async move { drop(core.failed(error, out, &mut tag, copy, &ack_guard, 0).await) };
                Some(failed.boxed_local())
            }
        }
    }

    async fn take(self: Rc<Self>, message: EdgeMessage<S::In>, ack_guard: AckGuard) {
        let (order, came) = match message {
            // The numbers of an order end at the stage that restores it, even if an item comes too late for
            // that. No stage behind it needs them, and in a loop a gap would go around for ever.
            EdgeMessage::Item(tag, item) if self.part.config.restore => {
                (tag.order, Some(Came::Item(Tag { order: None, ..tag }, item, ack_guard)))
            }
            EdgeMessage::Gap { order, .. } if self.part.config.restore => (Some(order), None),
            EdgeMessage::Item(tag, item) => (None, Some(Came::Item(tag, item, ack_guard))),
            EdgeMessage::Gap { order, .. } => (None, Some(Came::Gap(order))),
            // Boxed, as all rare work: it would be part of the future of every item.
            EdgeMessage::End { lane, of, .. } => {
                return self.end_came(lane, of, ack_guard).boxed_local().await;
            }
        };
        if self.restores() {
            self.order.borrow_mut().put(order, came);
            return self.in_order().boxed_local().await;
        }
        let Some(came) = came else { return };
        self.one(came).await;
        if self.ends.borrow().begun {
            // The item came after the end: it was sent again when a replica that had it died, or a source
            // that began anew made it. `finish` is called now, because not every such item has an end behind
            // it.
            self.ends.borrow_mut().late = true;
            self.call(None, S::finish).boxed_local().await;
        }
    }

    /// Handles all items whose turn in the order has come.
    pub(super) async fn in_order(&self) {
        loop {
            let next = self.order.borrow_mut().take();
            match next {
                Some(next) => self.one(next).await,
                None => return,
            }
        }
    }

    /// Goes on when nothing moves. Lets halves go whose partners do not come; after a death, skips the
    /// missing items of the order, because the actor that had them has died.
    pub(super) async fn go_on(&self, after_a_death: bool) {
        if after_a_death {
            self.order.borrow_mut().skip();
            self.in_order().await;
        }
        self.partners(Partners::Standstill).await;
    }

    async fn one(&self, came: Came<S::In>) {
        match came {
            Came::Gap(order) => self.results.gap(order).await,
            Came::Item(tag, item, ack_guard) => self.process(tag, item, ack_guard).await,
        }
    }

    /// Whether this actor waits for the missing items of an order. A later life does not know which numbers
    /// the earlier ones have passed on, so it passes items on as they come.
    pub(super) fn restores(&self) -> bool {
        self.part.config.restore && self.part.env.incarnation() == 0 && !self.ends.borrow().begun
    }

    async fn process(&self, mut tag: Tag, item: S::In, ack_guard: AckGuard) {
        let part = &self.part;
        part.meter.note(|counts| counts.items_in += 1);
        if part.has_failed() {
            // After the error that fails the pipeline, the results of this instance cannot be relied on.
            part.meter.note(|counts| counts.skipped += 1);
            return self.nothing_of(tag.order).await;
        }
        if self.part.config.restore
            && let Some(by) = self.tainted_since(&item)
        {
            let why = DeadReason::Tainted { by }.to_string();
            self.lose(
                Some(RetainedItem { tag: tag.clone(), ack_guard: smallvec![ack_guard] }),
                Out::during(None, &self.part.retained),
                &why,
            );
            return self.nothing_of(tag.order).await;
        }
        // In a loop the rounds of the item share its answer from here on.
        let ack_guard = match &self.rounds {
            Some(rounds) => rounds.borrow_mut().begin(&mut tag, ack_guard),
            None => ack_guard,
        };
        let on_error = part.config.on_error;
        let mut item = Some(item);
        let mut attempt = 0;
        while let Some(given) = item.take() {
            // Cloned only if the copy may be needed: a clone keeps the stage from writing the tensor in
            // place.
            let last = attempt == on_error.retries();
            let copy = if last && !on_error.keeps() { None } else { Some(given.clone()) };
            let (result, out) = self.attempt(&tag, &ack_guard, given);
            match result {
                Ok(()) => return self.send(out).await,
                Err(error) => {
                    item = self.failed(error, out, &mut tag, copy, &ack_guard, attempt).boxed_local().await;
                }
            }
            attempt += 1;
        }
    }

    /// Calls the stage with an item.
    fn attempt(&self, tag: &Tag, ack_guard: &AckGuard, item: S::In) -> (anyhow::Result<()>, Out<S::Out>) {
        let config = &self.part.config;
        let span = tag.span.child(
            || tracing::info_span!("process", otel.name = %config.stage, otel.kind = "consumer", item = %tag.id),
        );
        let _span = span.enter();
        let tag =
            if span.is_none() { tag.clone() } else { Tag { span: TraceContext::current(), ..tag.clone() } };
        let (id, holds) = (tag.id, config.chain || config.holds);
        let current = Current { tag, ack_guard: ack_guard.clone(), holds };
        let mut out = Out::during(Some(current), &self.part.retained);
        let from = Instant::now();
        // The call is plain code: it must not wait, because nothing that it waits for on this thread would
        // ever come.
        let result = self.part.env.without_waiting(|| self.stage.borrow_mut().process(item, &mut out));
        self.part.meter.called(from, Some(id));
        if result.is_ok() {
            self.losses.none_by(self.part.env.losses_learnt());
        }
        (result, out)
    }

    /// Sends the messages and results of a call.
    async fn send(&self, mut out: Out<S::Out>) {
        if out.has_pushed() {
            self.pushes.send(&mut out).boxed_local().await;
        }
        let (emitted, gaps) = self.results_of(out);
        for emitted in emitted {
            let last = emitted.tag.order.filter(|order| order.last);
            let sent = self.results.send(emitted).await;
            self.sent(sent, last).await;
        }
        // Behind the results: a gap that came first would close the item's place in the order before the
        // results are in it.
        self.gaps(gaps).await;
    }

    /// As [`send`](Self::send), but returns the rest of the work if that has to wait. The rest holds
    /// `ack_guard`, so its item is not answered before.
    fn send_now(
        self: &Rc<Self>,
        out: Out<S::Out>,
        ack_guard: AckGuard,
    ) -> Option<LocalBoxFuture<'static, ()>> {
        if out.has_pushed() {
            let core = Rc::clone(self);
            let rest = async move {
                core.send(out).await;
                drop(ack_guard);
            };
            return Some(rest.boxed_local());
        }
        let (emitted, gaps) = self.results_of(out);
        let mut emitted = emitted.into_iter();
        while let Some(next) = emitted.next() {
            let last = next.tag.order.filter(|order| order.last);
            let Err(not_yet) = self.results.send_now(next) else {
                self.part.emitted();
                continue;
            };
            let core = Rc::clone(self);
            let rest = async move {
                // In order: the later results, and the gaps last, must stay behind the result that waits.
                let sent = core.results.send_later(not_yet).await;
                core.sent(sent, last).await;
                for emitted in emitted {
                    let last = emitted.tag.order.filter(|order| order.last);
                    let sent = core.results.send(emitted).await;
                    core.sent(sent, last).await;
                }
                core.gaps(gaps).await;
                drop(ack_guard);
            };
            return Some(rest.boxed_local());
        }
        if gaps.is_empty() {
            return None;
        }
        let core = Rc::clone(self);
        let rest = async move {
            core.gaps(gaps).await;
            drop(ack_guard);
        };
        Some(rest.boxed_local())
    }

    /// Returns the results of a call that has succeeded, and the places in the order with which nothing more
    /// comes.
    fn results_of(&self, mut out: Out<S::Out>) -> (Vec<Emitted<S::Out>>, Vec<ItemOrder>) {
        // Nothing comes of the held items that a successful call has dropped, and that is intended.
        drop(self.part.retained.dropped());
        for (tag, why) in out.take_left_over() {
            self.part.meter.left_over(&self.part.config.stage, tag.ids(), &why);
        }
        let (mut emitted, gaps) = out.finish();
        if self.part.config.is_joined {
            mark_several(&mut emitted, self.part.config.may_hold && self.part.retained.len() > 0);
        }
        (emitted, gaps)
    }

    /// Notes that a result was accepted, or cannot be sent. `last` is its place in an order, if nothing more
    /// comes with that.
    async fn sent(&self, sent: Result<(), Unsendable>, last: Option<ItemOrder>) {
        match sent {
            Ok(()) => self.part.emitted(),
            Err(unsent) => {
                let fatal = self.part.config.on_error.fails();
                self.part.failed(Some(unsent.tag.id), unsent.why, 1, fatal);
                self.nothing_of(last).await;
            }
        }
    }

    /// Closes this place in the order, unless the stage keeps an item that has it, and the places of items
    /// that it keeps no longer.
    pub(super) async fn nothing_of(&self, order: Option<ItemOrder>) {
        let retained = &self.part.retained;
        let order = order.filter(|order| order.last && !retained.has(*order));
        self.gaps(order.into_iter().chain(retained.left())).await;
    }

    async fn gaps(&self, orders: impl IntoIterator<Item = ItemOrder>) {
        for order in orders {
            self.results.gap(order).boxed_local().await;
        }
    }

    /// Tells a stage that pairs about partners that do not come.
    pub(super) async fn partners(&self, notice: Partners<'_>) {
        if self.part.has_failed() {
            return;
        }
        let mut out = Out::during(None, &self.part.retained);
        self.stage.borrow_mut().partners(PartnerNews(notice), &mut out);
        self.send(out).await;
    }

    pub(super) async fn wake(&self) {
        if !self.ends.borrow().begun {
            self.call(None, S::wake).await;
        }
    }

    /// Calls the stage without an item.
    pub(super) async fn call(
        &self,
        id: Option<ItemId>,
        call: impl FnOnce(&mut S, &mut Out<S::Out>) -> anyhow::Result<()>,
    ) {
        if self.part.has_failed() {
            return;
        }
        let mut out = Out::during(None, &self.part.retained);
        let from = Instant::now();
        let result = self.part.env.without_waiting(|| call(&mut self.stage.borrow_mut(), &mut out));
        self.part.meter.called(from, id);
        match result {
            Ok(()) => {
                self.losses.none_by(self.part.env.losses_learnt());
                self.send(out).await;
            }
            Err(error) => {
                let why = format!("{error:#}");
                if self.is_loss(&error) {
                    self.lose(None, out, &why);
                } else {
                    self.fail_too(id, out, &why, 1);
                    self.part.failed(id, why, 1, self.part.config.on_error.fails());
                }
                self.nothing_of(None).await;
            }
        }
    }
}
