//! The actor around a source.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use actix::fut::wrap_future;
use actix::{ActorContext, AsyncContext};
use futures_util::future::FutureExt;
use smallvec::smallvec;
use tensorpost_core::api::actor::{Env, Handles, RemoteActor, step_aside};
use tensorpost_core::api::node::ProcessId;
use tensorpost_core::api::observe::TraceContext;
use tokio::sync::Notify;

use super::ack_guard::AckGuard;
use super::args::{Control, Directive, Run};
use super::branch::Modes;
use super::core::Part;
use super::meter::Counts;
use super::outlet::Outlet;
use super::stage_args::SourceArgs;
use super::waits::Wait;
use crate::item::{ItemId, Tag};
use crate::out::Emitted;
use crate::traits::Source;

/// The actor.
pub(crate) struct SourceActor<S: Source> {
    core: Rc<Core<S>>,
    running: bool,
}

struct Core<S: Source> {
    part: Rc<Part>,
    source: RefCell<S>,
    results: Outlet<S::Out>,
    stopped: Cell<bool>,
    /// Whether it waits for the time of its next item.
    paused: Cell<bool>,
    /// Notified when the source is stopped.
    changed: Notify,
}

impl<S: Source> actix::Actor for SourceActor<S> {
    type Context = actix::Context<Self>;
}

impl<S: Source> Drop for SourceActor<S> {
    fn drop(&mut self) {
        self.core.results.abandon();
        self.core.part.end();
    }
}

impl<S: Source> RemoteActor for SourceActor<S> {
    type Args = SourceArgs<S>;
    const WIRE_NAME: Option<&'static str> = S::WIRE_NAME;

    fn create(args: SourceArgs<S>, env: &Env) -> anyhow::Result<Self> {
        let source = S::create(args.user, env)?;
        let part = Part::new(args.config, env);
        let length = source.length();
        part.meter.note(|counts| counts.length = length);
        if part.config.pace.is_some() {
            env.note_missed(0); // so that there is a counter before the first that it misses
        }
        let modes = Modes { chain: part.config.chain, resend: part.config.resend, origin: true };
        let core = Core {
            results: Outlet::new(args.results, modes, &part.meter, env)?,
            part,
            source: RefCell::new(source),
            stopped: Cell::new(false),
            paused: Cell::new(false),
            changed: Notify::new(),
        };
        let core = Rc::new(core);
        let weak = Rc::downgrade(&core);
        core.part.toward_as(core.results.toward());
        core.part.waits_as(move || {
            weak.upgrade().map_or_else(Vec::new, |core: Rc<Core<S>>| core.waits().collect())
        });
        Ok(SourceActor { core, running: false })
    }

    #[expect(clippy::await_holding_refcell_ref, reason = "nobody else looks at a source before it is ready")]
    async fn prepare(&mut self, env: &Env) -> anyhow::Result<()> {
        let mut source = self.core.source.borrow_mut();
        source.prepare(env).await
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Run>().message::<Control>().polls().waits();
    }

    fn sent_by(&mut self, process: Option<ProcessId>) {
        self.core.part.gate.sent_by(process);
    }
}

impl<S: Source> actix::Handler<Run> for SourceActor<S> {
    type Result = actix::ResponseFuture<Counts>;

    fn handle(&mut self, run: Run, ctx: &mut actix::Context<Self>) -> Self::Result {
        if !self.core.part.gate.lets_order_in(run.key) {
            return std::future::ready(Counts::default()).boxed_local();
        }
        self.core.part.report();
        if !std::mem::replace(&mut self.running, true) {
            // In the actor's context, so that a panic of the source ends the actor, which is noticed.
            let core = Rc::clone(&self.core);
            ctx.spawn(wrap_future(async move { core.run().await }));
            let core = Rc::clone(&self.core);
            ctx.spawn(wrap_future(async move {
                core.part.env.stopping().await;
                core.stop();
            }));
        }
        Rc::clone(&self.core.part).finished().boxed_local()
    }
}

impl<S: Source> actix::Handler<Control> for SourceActor<S> {
    type Result = ();

    fn handle(&mut self, control: Control, ctx: &mut actix::Context<Self>) {
        let gate = &self.core.part.gate;
        let directive = match control {
            Control::Order { key, directive } if gate.lets_order_in(key) => directive,
            Control::Order { .. } => return,
            // A source pairs nothing. Only the log tells of them.
            Control::Alone { key, .. } | Control::Still { key, .. } => {
                gate.lets_notice_in(key);
                return;
            }
        };
        match directive {
            Directive::Stop => self.core.stop(),
            Directive::Close => ctx.stop(),
            Directive::Places { stage, places } => self.core.results.places(stage, &places),
            Directive::Exited { .. }
            | Directive::NotAgain { .. }
            | Directive::GoOn { .. }
            | Directive::Opens { .. } => {}
        }
    }
}

impl<S: Source> Core<S> {
    async fn run(&self) {
        let part = &self.part;
        let mut number = 0;
        let mut due = Instant::now();
        while !self.stopped.get() && !part.has_failed() {
            if let Some(pace) = part.config.pace {
                let now = self.until(due).await;
                let (next, missed) = after(due, now, pace);
                self.missed(missed);
                due = next;
                if self.stopped.get() {
                    break;
                }
            }
            let from = Instant::now();
            let span = TraceContext::root(
                || tracing::info_span!("next", otel.name = %part.config.stage, otel.kind = "producer", item = number),
            );
            let (next, made_in) = span.in_scope(|| {
                (part.env.without_waiting(|| self.source.borrow_mut().next()), TraceContext::current())
            });
            let id = ItemId { source: part.config.source, number };
            match next {
                Ok(None) => break,
                Ok(Some(item)) => {
                    part.meter.called(from, Some(id));
                    self.send(Tag { span: made_in, ..Tag::of(id) }, item).await;
                    number += 1;
                }
                Err(error) => {
                    part.meter.called(from, None);
                    part.meter.note(|counts| counts.skipped += 1);
                    part.failed(None, format!("{error:#}"), 1, part.config.on_error.fails());
                }
            }
            // The process has other messages to read: answers, and the order to stop.
            step_aside().await;
        }
        self.results.stand(None);
        self.results.end().await;
        self.results.go_on();
        part.meter.note(|counts| counts.made = number);
        part.finish().await;
    }

    fn waits(&self) -> impl Iterator<Item = Wait> {
        self.results.waits().chain(self.paused.get().then_some(Wait::Time))
    }

    /// Waits until `due`, or until the source is stopped. Returns the time; late items are not made up for.
    async fn until(&self, due: Instant) -> Instant {
        self.paused.set(true);
        while !self.stopped.get() && Instant::now() < due {
            tokio::select! {
                () = tokio::time::sleep_until(due.into()) => {}
                () = self.changed.notified() => {}
            }
        }
        self.paused.set(false);
        due.max(Instant::now())
    }

    /// Counts times at which no item could be made.
    fn missed(&self, missed: u32) {
        if missed > 0 {
            self.part.meter.note(|counts| counts.missed += u64::from(missed));
            self.part.env.note_missed(u64::from(missed));
        }
    }

    /// Stops the source. The current item no longer waits for an acknowledgement, because that may need the
    /// end behind the item: only the end lets halves go that wait for partners.
    fn stop(&self) {
        self.stopped.set(true);
        self.changed.notify_one();
        if self.part.config.resend {
            self.results.hurry();
        }
    }

    async fn send(&self, tag: Tag, item: S::Out) {
        let id = tag.id;
        let ack_guard = smallvec![AckGuard::default()];
        let sent = match self.results.send_now(Emitted { tag, item, ack_guard }) {
            Ok(()) => Ok(()),
            Err(not_yet) => {
                self.results.stand(Some(id));
                let sent = self.results.send_later(not_yet).boxed_local().await;
                self.results.go_on();
                sent
            }
        };
        match sent {
            Ok(()) => self.part.emitted(),
            Err(unsent) => {
                let fatal = self.part.config.on_error.fails();
                self.part.failed(Some(unsent.tag.id), unsent.why, 1, fatal);
            }
        }
    }
}

/// Returns the next time after one that was due, and how many have passed since: the times stay `pace` apart
/// however late an item is taken.
fn after(due: Instant, now: Instant, pace: Duration) -> (Instant, u32) {
    let missed = (now - due).as_nanos().checked_div(pace.as_nanos()).unwrap_or_default();
    let missed = u32::try_from(missed).unwrap_or(u32::MAX - 1);
    (due + pace * (1 + missed), missed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_does_not_slow_down_by_how_late_each_item_is() {
        let (begin, pace, late) = (Instant::now(), Duration::from_millis(10), Duration::from_millis(3));
        let mut due = begin;
        for number in 1..=100 {
            let missed;
            (due, missed) = after(due, due + late, pace);
            assert_eq!((due, missed), (begin + number * pace, 0));
        }
        // Later than the next time: that time is missed, and the one behind it keeps its time.
        assert_eq!(after(due, due + 2 * pace + late, pace), (due + 3 * pace, 2));
        assert_eq!(after(due, due + late, Duration::ZERO), (due, 0));
    }
}
