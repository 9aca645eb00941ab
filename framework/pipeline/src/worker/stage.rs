//! The actor around a stage. A sink is a stage without results.
//!
//! An item passes these steps: `handle`; `take_now` (nearly every item ends there, without a future) or
//! `take`; its place in the order, if this actor restores one; `process` with its attempts; `send` with its
//! results. All work that is left for an item holds its ack guard, which answers the sender when its last
//! clone drops. So a step that drops the ack guard early answers too early, and one that keeps it keeps the
//! sender waiting.
//!
//! No borrow of a `RefCell` is held across an `await`: the task that reports progress borrows meanwhile.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use actix::{ActorContext, AsyncContext, SpawnHandle};
use futures_util::future::{FutureExt, LocalBoxFuture};
use smallvec::smallvec;
use tensorpost_core::api::actor::{DeadLetter, DeadReason, Env, Handles, RemoteActor};
use tensorpost_core::api::node::ProcessId;
use tensorpost_core::api::observe::TraceContext;

use super::ack_guard::AckGuard;
use super::args::{Control, Directive, Run, StageArgs};
use super::branch::{Modes, Unsendable};
use super::core::Part;
use super::loss::Losses;
use super::meter::Counts;
use super::order::Reorder;
use super::orphans::Orphans;
use super::outlet::Outlet;
use super::pushes::Pushes;
use super::response::{Handled, Settle};
use super::retained::RetainedItem;
use super::rounds::Rounds;
use super::waits::Wait;
use crate::dead::DeadItem;
use crate::item::{EdgeMessage, ItemId, Order, Tag};
use crate::out::{Current, Emitted, Out};
use crate::pairs::{PartnerNews, Partners};
use crate::traits::Stage;

mod ends;
mod failures;

use ends::Ends;

/// The actor.
pub(crate) struct StageActor<S: Stage> {
    core: Rc<Core<S>>,
    /// The timer for a call of the stage without an item, and its time.
    timer: Option<(Instant, SpawnHandle)>,
}

struct Core<S: Stage> {
    part: Rc<Part>,
    stage: RefCell<S>,
    results: Outlet<S::Out>,
    dead: Outlet<DeadItem<S::In>>,
    pushes: Rc<Pushes>,
    order: RefCell<Reorder<Came<S::In>>>,
    ends: RefCell<Ends>,
    losses: Losses,
    /// Items that were lost here and are left to their senders.
    orphans: Orphans,
    /// The loop that begins here, if one does.
    rounds: Option<RefCell<Rounds>>,
}

/// An item, or a gap, for its place in the order.
enum Came<T> {
    Item(Tag, T, AckGuard),
    Gap(Order),
}

impl<S: Stage> actix::Actor for StageActor<S> {
    type Context = actix::Context<Self>;
}

impl<S: Stage> Drop for StageActor<S> {
    fn drop(&mut self) {
        self.core.results.abandon();
        self.core.dead.abandon();
        self.core.part.end();
    }
}

impl<S: Stage> RemoteActor for StageActor<S> {
    type Args = StageArgs<S>;
    const ELSEWHERE: Option<&'static str> = S::ELSEWHERE;
    // A stage elsewhere takes items of any type; their tensors are brought to its device.
    const TAKES_ANY: bool = S::ELSEWHERE.is_some();

    fn create(args: StageArgs<S>, env: &Env) -> anyhow::Result<Self> {
        let mut stage = S::create(args.user, env)?;
        if let Some(pairing) = args.config.pairing.clone() {
            stage.partners(PartnerNews(Partners::Begin(pairing)), &mut Out::new());
        }
        let part = Part::new(args.config, env);
        let modes = Modes { chain: part.config.chain, resend: part.config.resend, origin: false };
        let core = Rc::new(Core {
            results: Outlet::new(args.results, modes, &part.meter, env)?,
            dead: Outlet::new(args.dead, modes, &part.meter, env)?,
            rounds: part.config.round.map(|depth| RefCell::new(Rounds::new(depth))),
            orphans: Orphans::new(&part),
            pushes: Pushes::new(&part),
            part,
            stage: RefCell::new(stage),
            order: RefCell::new(Reorder::new()),
            ends: RefCell::default(),
            losses: Losses::default(),
        });
        let weak = Rc::downgrade(&core);
        let (results, dead) = (core.results.toward(), core.dead.toward());
        core.part.toward_as(move || results().into_iter().chain(dead()).collect());
        core.part.waits_as(move || weak.upgrade().map_or_else(Vec::new, |core: Rc<Core<S>>| core.waits()));
        Ok(StageActor { core, timer: None })
    }

    #[expect(clippy::await_holding_refcell_ref, reason = "nobody else looks at a stage before it is ready")]
    async fn prepare(&mut self, env: &Env) -> anyhow::Result<()> {
        let mut stage = self.core.stage.borrow_mut();
        stage.prepare(env).await
    }

    fn handles(on: &mut Handles<Self>) {
        // Calls of user code do not wait; between them, pending work goes on in the context.
        on.acknowledged::<EdgeMessage<S::In>>().message::<Run>().message::<Control>().polls().waits();
        #[cfg(feature = "foreign")]
        if S::TAKES_ANY {
            on.foreign_within::<EdgeMessage<S::In>>();
        }
    }

    fn sent_by(&mut self, process: Option<ProcessId>) {
        self.core.part.gate.sent_by(process);
    }

    /// DEATH-3: handles an item whose data was lost with a process. The answer told its sender, which may be
    /// in that process.
    fn dead_letter(&mut self, letter: DeadLetter, ctx: &mut actix::Context<Self>) {
        let why = letter.reason().to_string();
        // No other message to this actor has tensors.
        let Ok(EdgeMessage::Item(tag, _)) = letter.into_message::<EdgeMessage<S::In>>() else { return };
        let core = Rc::clone(&self.core);
        let mut work = async move { core.tainted(tag, &why).await }.boxed_local();
        match (&mut work).now_or_never() {
            Some(()) => self.settle(ctx),
            None => ctx.wait(wrap(work)),
        }
    }
}

impl<S: Stage> actix::Handler<EdgeMessage<S::In>> for StageActor<S> {
    type Result = Handled;

    fn handle(&mut self, message: EdgeMessage<S::In>, ctx: &mut actix::Context<Self>) -> Handled {
        // First, so that the results of earlier items of this turn do not wait for this one, which may take
        // long.
        self.core.part.env.publish();
        // If items are sent again: an earlier sending of this item is no orphan any more, and this one
        // becomes an orphan if its ack guard is lost.
        let ack_guard = AckGuard::default();
        if self.core.part.config.resend
            && let EdgeMessage::Item(tag, _) = &message
        {
            ack_guard.left_by(self.core.orphans.came(tag));
        }
        let rest = self.core.take_now(message, ack_guard.clone());
        Handled::begin(self, ctx, ack_guard, rest)
    }
}

impl<S: Stage> actix::Handler<Run> for StageActor<S> {
    type Result = actix::ResponseFuture<Counts>;

    fn handle(&mut self, run: Run, _: &mut actix::Context<Self>) -> Self::Result {
        if !self.core.part.gate.lets_order_in(run.key) {
            return std::future::ready(Counts::default()).boxed_local();
        }
        self.core.part.report();
        Rc::clone(&self.core.part).finished().boxed_local()
    }
}

impl<S: Stage> actix::Handler<Control> for StageActor<S> {
    type Result = Handled;

    fn handle(&mut self, control: Control, ctx: &mut actix::Context<Self>) -> Handled {
        let gate = &self.core.part.gate;
        let is_let_in = match &control {
            Control::Order { key, .. } => gate.lets_order_in(*key),
            Control::Alone { key, .. } | Control::Still { key, .. } => gate.lets_notice_in(*key),
        };
        if !is_let_in {
            return Handled::begin(self, ctx, AckGuard::default(), None);
        }
        let core = Rc::clone(&self.core);
        let work: Option<LocalBoxFuture<'static, ()>> = match control {
            Control::Order { directive, .. } => self.follow(directive, ctx),
            Control::Alone { left, ids, again, .. } => Some(
                async move { core.partners(Partners::Alone { left, ids: &ids, again }).await }.boxed_local(),
            ),
            Control::Still { source, ids, .. } => {
                Some(async move { core.partners(Partners::Still { source, ids: &ids }).await }.boxed_local())
            }
        };
        Handled::begin(self, ctx, AckGuard::default(), work)
    }
}

impl<S: Stage> StageActor<S> {
    /// Follows an order. Returns the work that is left.
    fn follow(
        &self,
        directive: Directive,
        ctx: &mut actix::Context<Self>,
    ) -> Option<LocalBoxFuture<'static, ()>> {
        let core = Rc::clone(&self.core);
        match directive {
            // The conductor's order comes over another link than the last messages of the dead actor. So the
            // actor sends it to itself again, behind these messages. This also holds if the actor died by a
            // panic and its process goes on.
            Directive::Exited { lanes, orphans, with: Some(process) } => {
                let env = core.part.env.clone();
                crate::worker::spawn(async move {
                    env.until_read(process).await;
                    let directive = Directive::Exited { lanes, orphans, with: None };
                    // If this actor has ended, it need not get the order.
                    let _ = env.address().send(Control::Order { key: None, directive }).await;
                });
                None
            }
            Directive::Exited { lanes, orphans, with: None } => {
                if orphans {
                    core.orphans.exited(&lanes);
                }
                Some(async move { core.ended(lanes, None).await }.boxed_local())
            }
            Directive::NotAgain { lanes, made } => {
                core.orphans.not_made_again(&lanes, &made);
                None
            }
            Directive::GoOn { after_a_death } => {
                Some(async move { core.go_on(after_a_death).await }.boxed_local())
            }
            Directive::Close => {
                ctx.stop();
                None
            }
            Directive::Places { stage, places } => {
                core.results.places(stage, &places);
                core.dead.places(stage, &places);
                None
            }
            Directive::Opens { lanes } => {
                core.opens(&lanes);
                None
            }
            Directive::Stop => None,
        }
    }
}

impl<S: Stage> Settle for StageActor<S> {
    fn settle(&mut self, ctx: &mut actix::Context<Self>) {
        let wanted = self.core.stage.borrow().wake_at();
        let wanted = wanted.filter(|_| !self.core.ends.borrow().begun);
        if self.timer.as_ref().map(|(at, _)| *at) == wanted {
            return;
        }
        if let Some((_, timer)) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        self.timer = wanted.map(|at| {
            let after = at.saturating_duration_since(Instant::now());
            let timer = ctx.run_later(after, |actor, ctx| {
                actor.timer = None;
                let core = Rc::clone(&actor.core);
                let work = wrap(async move { core.wake().await });
                ctx.wait(work);
            });
            (at, timer)
        });
    }
}

/// Wraps work for an actor's context so that the timer is checked when the work is done.
fn wrap<S: Stage>(
    work: impl Future<Output = ()> + 'static,
) -> impl actix::ActorFuture<StageActor<S>, Output = ()> + 'static {
    use actix::fut::{ActorFutureExt, wrap_future};
    wrap_future::<_, StageActor<S>>(work).map(|(), actor, ctx| actor.settle(ctx))
}

/// How long after its time a stage may be called, where nothing holds that up.
const OVERDUE: Duration = Duration::from_secs(1);

impl<S: Stage> Core<S> {
    /// Returns what the actor waits for, for the report of a pipeline that does not move.
    fn waits(&self) -> Vec<Wait> {
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
    fn take_now(
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
            EdgeMessage::Gap(order) if self.part.config.restore => (Some(order), None),
            EdgeMessage::Item(tag, item) => (None, Some(Came::Item(tag, item, ack_guard))),
            EdgeMessage::Gap(order) => (None, Some(Came::Gap(order))),
            // Boxed, as all rare work: it would be part of the future of every item.
            EdgeMessage::End { lane, of } => return self.end_came(lane, of, ack_guard).boxed_local().await,
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
    async fn in_order(&self) {
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
    async fn go_on(&self, after_a_death: bool) {
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
    fn restores(&self) -> bool {
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
    fn results_of(&self, mut out: Out<S::Out>) -> (Vec<Emitted<S::Out>>, Vec<Order>) {
        // Nothing comes of the held items that a successful call has dropped, and that is intended.
        drop(self.part.retained.dropped());
        for (tag, why) in out.take_left_over() {
            self.part.meter.left_over(&self.part.config.stage, tag.ids(), &why);
        }
        out.finish()
    }

    /// Notes that a result was accepted, or cannot be sent. `last` is its place in an order, if nothing more
    /// comes with that.
    async fn sent(&self, sent: Result<(), Unsendable>, last: Option<Order>) {
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
    async fn nothing_of(&self, order: Option<Order>) {
        let retained = &self.part.retained;
        let order = order.filter(|order| order.last && !retained.has(*order));
        self.gaps(order.into_iter().chain(retained.left())).await;
    }

    async fn gaps(&self, orders: impl IntoIterator<Item = Order>) {
        for order in orders {
            self.results.gap(order).boxed_local().await;
        }
    }

    /// Tells a stage that pairs about partners that do not come.
    async fn partners(&self, notice: Partners<'_>) {
        if self.part.has_failed() {
            return;
        }
        let mut out = Out::during(None, &self.part.retained);
        self.stage.borrow_mut().partners(PartnerNews(notice), &mut out);
        self.send(out).await;
    }

    async fn wake(&self) {
        if !self.ends.borrow().begun {
            self.call(None, S::wake).await;
        }
    }

    /// Calls the stage without an item.
    async fn call(
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
