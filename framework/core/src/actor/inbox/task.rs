//! The task in an actor's context that empties its mailbox and calls the handlers.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use actix::fut::ActorFuture;
use actix::{ActorContext, AsyncContext, Context};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, Stream as _};

use super::{ActorInbox, Queued};
use crate::actor::RemoteActor;
use crate::actor::blocking::Call;
use crate::actor::process_actors::OnActorEnd;
use crate::observe::hang_probe::count_note;
use crate::os::{monotonic_ns, vital};
use crate::stream::turn::{self, Turn};
use crate::transport::inbox::EndsByPanic;
use crate::transport::lifecycle::EndReason;

/// The exit status of a forked child whose handler panics: that of a program whose main thread panics.
const PANICKED: i32 = 101;
/// The number of envelopes handled before other tasks of the thread get their turn.
const BATCH: usize = 64;
/// The time for which short handlers share a turn, in nanoseconds, so that their sends are published
/// together.
const TURN: u64 = 20_000;

/// The result of opening an envelope.
enum Opened<A: RemoteActor> {
    Done,
    /// The handler's result is still to come.
    Goes(LocalBoxFuture<'static, ()>),
    /// There is no memory for the message's tensors yet.
    Not(Queued<A>),
}

impl<A: RemoteActor> ActorInbox<A> {
    fn open(&self, queued: Queued<A>, actor: &mut A, ctx: &mut Context<A>, waker: &Waker) -> Opened<A> {
        let Queued { mut envelope, fetch } = queued;
        if fetch {
            match envelope.fetch(&self.receive, waker) {
                Poll::Pending => return Opened::Not(Queued { envelope, fetch }),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(why)) => {
                    tracing::error!(message = envelope.name(), %why, "a message was dropped: its tensors cannot be fetched");
                    envelope.refuse(why);
                    return Opened::Done;
                }
            }
        }
        envelope
            .open(actor, ctx, &self.stream, &self.transport, &self.handed_off)
            .map_or(Opened::Done, Opened::Goes)
    }
}

/// The task in the actor's context that empties the mailbox.
pub(in crate::actor) struct InboxTask<A: RemoteActor> {
    inbox: Arc<ActorInbox<A>>,
    /// Envelopes that were taken out of the queue, all at once under one lock.
    taken: VecDeque<Queued<A>>,
    /// Handlers whose results have not resolved.
    pending: FuturesUnordered<LocalBoxFuture<'static, ()>>,
    failure: Option<EndReason>,
    ended: Option<OnActorEnd>,
}

impl<A: RemoteActor> InboxTask<A> {
    pub(in crate::actor) fn new(inbox: Arc<ActorInbox<A>>, ended: OnActorEnd) -> Self {
        let (taken, pending) = (VecDeque::new(), FuturesUnordered::new());
        InboxTask { inbox, taken, pending, failure: None, ended: Some(ended) }
    }

    /// Returns whether the supervisor restarts the actor, now that it has ended.
    fn comes_back(&self, failed: bool) -> bool {
        // A stop that the node asked for ends the actor's last life.
        let closing = self.inbox.queue.lock().closing.is_some();
        !closing && self.inbox.how.restarts.after(failed)
    }

    /// Polls the futures that handlers have returned.
    fn poll_pending(&mut self, task: &mut std::task::Context<'_>) {
        // Polling an empty list would cost it a waker.
        if self.pending.is_empty() {
            return;
        }
        let _acting = self.inbox.tracer().acting(self.inbox.actor);
        let activity = self.inbox.activity.as_ref();
        let mut poll = || {
            let polled = Pin::new(&mut self.pending).poll_next(task);
            self.inbox.end_fork(0);
            polled
        };
        while let Poll::Ready(Some(())) = poll() {
            if let Some(activity) = activity {
                activity.resolved.store(activity.resolved.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
        }
        if let Some(activity) = activity {
            count_note();
            activity.unresolved.store(self.pending.len(), Ordering::Relaxed);
        }
    }

    /// Takes the next envelope. Envelopes that were taken before come ahead of those in the queue.
    fn next(&mut self) -> Option<Queued<A>> {
        let InboxTask { inbox, taken, .. } = self;
        #[cfg(feature = "bindings")]
        if taken.is_empty() {
            // Release: a thread that sees this also sees that the envelopes opened before have been handed
            // on.
            inbox.opening.store(false, Ordering::Release);
        }
        if taken.is_empty() && inbox.queued.load(Ordering::Relaxed) > 0 {
            inbox.take_queued(&mut inbox.queue.lock(), taken);
        }
        let queued = taken.pop_front()?;
        inbox.taken.store(taken.len(), Ordering::Relaxed);
        Some(queued)
    }

    /// Handles envelopes until the batch or the mailbox is empty. Returns true if there are more.
    fn handle_some(&mut self, actor: &mut A, ctx: &mut Context<A>, waker: &Waker) -> bool {
        // A handler that blocks would keep the reader from the very event that it blocks on. The guard is
        // outside of the loop, because nothing here awaits.
        let _call = (!self.inbox.handles.may_poll()).then(|| Call::begin(self.inbox.how.own_thread));
        let mut turn = Turn::begin_on(&self.inbox.stream);
        let (mut since, mut last): (Option<u64>, Option<u64>) = (None, None);
        for _ in 0..BATCH {
            if ctx.waiting() {
                return false; // the context polls again when what it waits for is done
            }
            let Some(queued) = self.next() else { return false };
            let name = queued.envelope.name();
            // The end of one handler is the beginning of the next, so each costs one clock read.
            let began = last.unwrap_or_else(monotonic_ns);
            turn::note_time(began);
            let handling = self.inbox.tracer().handler(self.inbox.actor, || queued.envelope.origin());
            self.inbox.set_handling(true);
            let opened = catch_unwind(AssertUnwindSafe(|| self.inbox.open(queued, actor, ctx, waker)));
            self.inbox.end_fork(if opened.is_ok() { 0 } else { PANICKED });
            self.inbox.set_handling(false);
            drop(handling);
            let now = monotonic_ns();
            last = Some(now);
            if !matches!(opened, Ok(Opened::Not(_))) {
                self.inbox.meter.note(now.saturating_sub(began));
            }
            match opened {
                Ok(Opened::Done) => {}
                Ok(Opened::Goes(result)) => self.pending.push(result),
                Ok(Opened::Not(queued)) => {
                    // The envelope stays the first, until there is memory for its tensors.
                    self.taken.push_front(queued);
                    self.inbox.taken.store(self.taken.len(), Ordering::Relaxed);
                    return false;
                }
                Err(panic) => {
                    let text =
                        format!("its handler of {name} panicked: {}", vital::panic_text(panic.as_ref()));
                    self.failure = Some(EndReason::HandlerPanic(text));
                    ctx.terminate();
                    return false;
                }
            }
            if now.saturating_sub(*since.get_or_insert(now)) > TURN {
                drop(turn);
                turn = Turn::begin_on(&self.inbox.stream);
                (since, last) = (None, None);
            }
        }
        true
    }
}

/// The task's answer when it has terminated its context. A terminated context looks for cancelled futures
/// only behind one that is pending. If a handler cancels a future and the next handler panics in the same
/// poll, the context would look for it for ever otherwise (actix 0.13.5, `ContextFut::poll`).
const TERMINATED: Poll<()> = Poll::Pending;

impl<A: RemoteActor> ActorFuture<A> for InboxTask<A> {
    type Output = ();

    fn poll(
        mut self: Pin<&mut Self>,
        actor: &mut A,
        ctx: &mut Context<A>,
        task: &mut std::task::Context<'_>,
    ) -> Poll<()> {
        let closing = {
            let InboxTask { inbox, taken, failure, .. } = &mut *self;
            let mut queue = inbox.queue.lock();
            queue.waker = Some(task.waker().clone());
            if let Some(reason) = queue.failing.take() {
                drop(queue);
                *failure = Some(reason);
                ctx.terminate();
                return TERMINATED;
            }
            inbox.take_queued(&mut queue, taken);
            // A caller that asks for the stop after this wakes the task.
            queue.closing.is_some()
        };
        self.poll_pending(task);
        if self.handle_some(actor, ctx, task.waker()) {
            task.waker().wake_by_ref();
        }
        if self.failure.is_some() {
            return TERMINATED;
        }
        self.poll_pending(task);
        let finished = closing
            && self.taken.is_empty()
            && self.pending.is_empty()
            && self.inbox.queue.lock().envelopes.is_empty();
        if finished && !ctx.waiting() && self.inbox.handed_off.is_idle(task.waker()) {
            ctx.stop();
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl<A: RemoteActor> Drop for InboxTask<A> {
    fn drop(&mut self) {
        self.inbox.end_fork(PANICKED);
        let panicked = || {
            let text = || vital::last_panic().map_or_else(String::new, |text| format!(": {text}"));
            std::thread::panicking().then(|| EndReason::HandlerPanic(format!("it panicked{}", text())))
        };
        let failure = self.failure.take().or_else(panicked);
        let ActorInbox { actor, location, .. } = *self.inbox;
        let transport = self.inbox.transport.upgrade();
        let leaving = transport.as_ref().is_some_and(|transport| transport.lifecycle.is_leaving());
        let away = self.comes_back(failure.is_some() || leaving);
        // Noted before the mailbox closes: a sender that finds it closed looks the actor up, and must find
        // that it is restarted.
        if let Some(transport) = transport.as_ref().filter(|_| away) {
            transport.goes_away(actor, location);
        }
        self.inbox.local.close(away);
        if let Some(transport) = transport {
            transport.withdraw_for(location.index, away);
        }
        // While this exists, the futures and envelopes that drop below tell their senders of the panic.
        let by_panic = match &failure {
            Some(EndReason::HandlerPanic(why)) => Some(EndsByPanic::begin(why)),
            _ => None,
        };
        drop(std::mem::take(&mut self.pending));
        self.inbox.shut_with(away, std::mem::take(&mut self.taken));
        drop(by_panic);
        if let Some(ended) = self.ended.take() {
            ended(failure, away);
        }
    }
}
