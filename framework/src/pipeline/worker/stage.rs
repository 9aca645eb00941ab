//! The actor around a stage. A sink is a stage that makes nothing.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Instant;

use actix::{ActorContext, AsyncContext, SpawnHandle};
use futures_util::future::{FutureExt, LocalBoxFuture};

use super::args::{Control, Run, StageArgs};
use super::cargo::Cargo;
use super::core::Part;
use super::meter::Counts;
use super::order::Reorder;
use super::outlet::Outlet;
use super::response::{Handled, Settle};
use super::rounds::Rounds;
use crate::actor::{Env, Handles, RemoteActor};
use crate::pipeline::dead::Dead;
use crate::pipeline::item::{ItemId, Order, Parcel, Tag};
use crate::pipeline::out::{Current, Emitted, Out};
use crate::pipeline::traits::Stage;

/// The actor.
pub(in crate::pipeline) struct StageActor<S: Stage> {
    core: Rc<Core<S>>,
    /// When the stage is to be called although nothing came.
    timer: Option<(Instant, SpawnHandle)>,
}

struct Core<S: Stage> {
    part: Rc<Part>,
    stage: RefCell<S>,
    results: Outlet<S::Out>,
    dead: Outlet<Dead<S::In>>,
    order: RefCell<Reorder<Came<S::In>>>,
    ends: RefCell<Ends>,
    /// Where a loop begins.
    rounds: Option<RefCell<Rounds>>,
}

/// Something in its place in the order.
enum Came<T> {
    Item(Tag, T, Cargo),
    Gap(Order),
}

#[derive(Default)]
struct Ends {
    lanes: HashSet<u32>,
    /// Answered when this stage is done too.
    cargo: Vec<Cargo>,
    begun: bool,
}

impl<S: Stage> actix::Actor for StageActor<S> {
    type Context = actix::Context<Self>;
}

impl<S: Stage> RemoteActor for StageActor<S> {
    type Args = StageArgs<S>;

    fn create(args: StageArgs<S>, env: &Env) -> anyhow::Result<Self> {
        let stage = S::create(args.user, env)?;
        let part = Part::new(args.config, env);
        let modes = (part.config.chain, part.config.resend);
        let core = Rc::new(Core {
            results: Outlet::new(args.results, modes, &part.meter, env)?,
            dead: Outlet::new(args.dead, modes, &part.meter, env)?,
            rounds: part.config.round.map(|depth| RefCell::new(Rounds::new(depth))),
            part,
            stage: RefCell::new(stage),
            order: RefCell::new(Reorder::new()),
            ends: RefCell::default(),
        });
        Ok(StageActor { core, timer: None })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Parcel<S::In>>().message::<Run>().message::<Control>();
    }
}

impl<S: Stage> actix::Handler<Parcel<S::In>> for StageActor<S> {
    type Result = Handled;

    fn handle(&mut self, parcel: Parcel<S::In>, ctx: &mut actix::Context<Self>) -> Handled {
        // What came of earlier items is not to wait for this one, which may take long.
        self.core.part.env.publish();
        let cargo = Cargo::default();
        let work = Rc::clone(&self.core).take(parcel, cargo.clone());
        Handled::begin(self, ctx, cargo, work)
    }
}

impl<S: Stage> actix::Handler<Run> for StageActor<S> {
    type Result = actix::ResponseFuture<Counts>;

    fn handle(&mut self, _: Run, _: &mut actix::Context<Self>) -> Self::Result {
        self.core.part.report();
        Rc::clone(&self.core.part).finished().boxed_local()
    }
}

impl<S: Stage> actix::Handler<Control> for StageActor<S> {
    type Result = Handled;

    fn handle(&mut self, control: Control, ctx: &mut actix::Context<Self>) -> Handled {
        let core = Rc::clone(&self.core);
        let work: LocalBoxFuture<'static, ()> = match control {
            Control::Gone(lanes) => async move { core.ended(lanes, None).await }.boxed_local(),
            Control::Close => {
                ctx.stop();
                async {}.boxed_local()
            }
            Control::Stop => async {}.boxed_local(),
        };
        Handled::begin(self, ctx, Cargo::default(), work)
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

/// Work in an actor's context that looks at the clock again when it is done.
fn wrap<S: Stage>(
    work: impl Future<Output = ()> + 'static,
) -> impl actix::ActorFuture<StageActor<S>, Output = ()> + 'static {
    use actix::fut::{ActorFutureExt, wrap_future};
    wrap_future::<_, StageActor<S>>(work).map(|(), actor, ctx| actor.settle(ctx))
}

impl<S: Stage> Core<S> {
    async fn take(self: Rc<Self>, parcel: Parcel<S::In>, cargo: Cargo) {
        let (order, came) = match parcel {
            Parcel::Item(tag, item) => (tag.order, Came::Item(tag, item, cargo)),
            Parcel::Gap(order) => (Some(order), Came::Gap(order)),
            Parcel::End { lane } => return self.ended(vec![lane], Some(cargo)).await,
        };
        // A later life does not know which numbers the earlier ones have passed on, so it passes on what comes.
        let restores = self.part.config.restore && self.part.env.incarnation() == 0;
        if !restores || self.ends.borrow().begun {
            self.one(came).await;
            if self.ends.borrow().begun {
                // Sent again after the end, because the one that had it died; what it left is wanted now.
                self.call(None, S::finish).await;
            }
            return;
        }
        let item = match came {
            Came::Item(tag, item, cargo) => Some(Came::Item(Tag { order: None, ..tag }, item, cargo)),
            Came::Gap(_) => None,
        };
        self.order.borrow_mut().put(order, item);
        self.in_order().await;
    }

    /// Takes all whose turn it is.
    async fn in_order(&self) {
        loop {
            let next = self.order.borrow_mut().take();
            match next {
                Some(next) => self.one(next).await,
                None => return,
            }
        }
    }

    async fn one(&self, came: Came<S::In>) {
        match came {
            Came::Gap(order) => self.results.gap(order).await,
            Came::Item(tag, item, cargo) => self.process(tag, item, cargo).await,
        }
    }

    async fn process(&self, mut tag: Tag, item: S::In, cargo: Cargo) {
        let part = &self.part;
        part.meter.note(|counts| counts.items_in += 1);
        if part.has_failed() {
            // What an instance makes after the error that fails the pipeline is nothing to rely on.
            part.meter.note(|counts| counts.skipped += 1);
            return self.nothing_of(tag.order).await;
        }
        let cargo = match &self.rounds {
            Some(rounds) => rounds.borrow_mut().begin(&mut tag, cargo),
            None => cargo,
        };
        let on_error = part.config.on_error;
        let (id, order) = (tag.id, tag.order);
        let mut item = Some(item);
        let mut attempt = 0;
        loop {
            let last = attempt == on_error.retries();
            let copy = if last && !on_error.keeps() { None } else { item.clone() };
            let Some(given) = item.take() else { return };
            let current = Current {
                tag: tag.clone(),
                cargo: cargo.clone(),
                holds: part.config.chain || part.config.holds,
            };
            let mut out = Out::during(Some(current));
            let from = Instant::now();
            let result = self.stage.borrow_mut().process(given, &mut out);
            part.meter.called(from, Some(id));
            let error = match result {
                Ok(()) => return self.send(out).await,
                Err(error) => error,
            };
            attempt += 1;
            tag.attempt += 1;
            if !last {
                part.meter.note(|counts| counts.retries += 1);
                item = copy;
                continue;
            }
            let why = format!("{error:#}");
            part.failed(Some(id), why.clone(), attempt, on_error.fails());
            match copy.filter(|_| on_error.keeps()) {
                Some(item) => {
                    part.meter.note(|counts| counts.dead_letters += 1);
                    let dead = Dead { item, stage: part.config.stage.clone(), why, attempts: attempt };
                    let tag = Tag { order: None, ..tag };
                    if let Err(unsent) = self.dead.send(Emitted { tag, item: dead, cargo: vec![cargo] }).await
                    {
                        part.failed(Some(unsent.tag.id), unsent.why, 1, false);
                    }
                }
                None => part.meter.note(|counts| counts.skipped += 1),
            }
            return self.nothing_of(order).await;
        }
    }

    /// Sends what a call has made.
    async fn send(&self, out: Out<S::Out>) {
        let (emitted, gap) = out.finish();
        for emitted in emitted {
            let last = emitted.tag.order.filter(|order| order.last);
            match self.results.send(emitted).await {
                Ok(()) => self.part.meter.note(|counts| counts.items_out += 1),
                Err(unsent) => {
                    let fatal = self.part.config.on_error.fails();
                    self.part.failed(Some(unsent.tag.id), unsent.why, 1, fatal);
                    self.nothing_of(last).await;
                }
            }
        }
        self.nothing_of(gap).await;
    }

    async fn nothing_of(&self, order: Option<Order>) {
        if let Some(order) = order.filter(|order| order.last) {
            self.results.gap(order).await;
        }
    }

    async fn wake(&self) {
        if !self.ends.borrow().begun {
            self.call(None, S::wake).await;
        }
    }

    /// A call without an item.
    async fn call(
        &self,
        id: Option<ItemId>,
        call: impl FnOnce(&mut S, &mut Out<S::Out>) -> anyhow::Result<()>,
    ) {
        if self.part.has_failed() {
            return;
        }
        let mut out = Out::during(None);
        let from = Instant::now();
        let result = call(&mut self.stage.borrow_mut(), &mut out);
        self.part.meter.called(from, id);
        match result {
            Ok(()) => self.send(out).await,
            Err(error) => self.part.failed(id, format!("{error:#}"), 1, self.part.config.on_error.fails()),
        }
    }

    /// Nothing more comes from these senders.
    async fn ended(&self, lanes: Vec<u32>, cargo: Option<Cargo>) {
        {
            let expected = &self.part.config.lanes;
            let mut ends = self.ends.borrow_mut();
            if ends.begun {
                return;
            }
            ends.lanes.extend(lanes);
            ends.cargo.extend(cargo);
            if !expected.iter().all(|lane| ends.lanes.contains(lane)) {
                return;
            }
            ends.begun = true;
        }
        self.order.borrow_mut().close();
        self.in_order().await;
        self.call(None, S::finish).await;
        self.results.end().await;
        self.dead.end().await;
        self.part.finish().await;
        let answered = std::mem::take(&mut self.ends.borrow_mut().cargo);
        drop(answered);
    }
}
