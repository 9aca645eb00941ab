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
use std::time::Instant;

use actix::{ActorContext, AsyncContext, SpawnHandle};
use futures_util::future::{FutureExt, LocalBoxFuture};
use tensorpost_core::api::actor::{DeadLetter, Env, Handles, RemoteActor};
use tensorpost_core::api::node::ProcessId;

use super::ack_guard::AckGuard;
use super::args::{Control, Directive, Run};
use super::branch::Modes;
use super::core::Part;
use super::loss::Losses;
use super::meter::Counts;
use super::order::Reorder;
use super::orphans::Orphans;
use super::outlet::Outlet;
use super::pushes::Pushes;
use super::response::{Handled, Settle};
use super::rounds::Rounds;
use super::stage_args::StageArgs;
use crate::dead::DeadItem;
use crate::item::{EdgeMessage, ItemOrder, Tag};
use crate::out::Out;
use crate::pairs::{PartnerNews, Partners};
use crate::traits::Stage;

mod ends;
mod failures;
mod steps;

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
    Gap(ItemOrder),
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
    const WIRE_NAME: Option<&'static str> = S::WIRE_NAME;
    // A stage elsewhere takes items of any type; their tensors are brought to its device.
    const TAKES_ANY: bool = S::WIRE_NAME.is_some();

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
        #[cfg(feature = "bindings")]
        if S::TAKES_ANY {
            on.raw_within::<EdgeMessage<S::In>>();
        }
    }

    fn sent_by(&mut self, process: Option<ProcessId>) {
        self.core.part.gate.sent_by(process);
    }

    /// DEATH-3: handles an item whose data was lost with a process. The answer told its sender, which may be
    /// in that process.
    fn dead_letter(&mut self, letter: DeadLetter, ctx: &mut actix::Context<Self>) {
        let why = letter.reason().to_string();
        self.core.part.gate.sent_by(Some(letter.sender()));
        // No other message to this actor has tensors.
        let Ok(EdgeMessage::Item(tag, _)) = letter.into_message::<EdgeMessage<S::In>>() else { return };
        if !self.core.part.gate.lets_item_in(tag.key) {
            return;
        }
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
        if !self.core.part.gate.lets_item_in(message.key()) {
            return Handled::begin(self, ctx, AckGuard::default(), None);
        }
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
