//! The message types that an actor takes, and the path of a message: from a frame, or from a sender in the
//! same process, into an envelope, and from the envelope into a handler's call.

use std::any::type_name;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};

use actix::dev::MessageResponse;
use actix::{Context, Handler, MessageResult};
use futures_util::future::{FutureExt, LocalBoxFuture};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::RemoteActor;
use super::dead_letter::DeadLetter;
use super::handed_off::HandedOff;
use super::process_actors::short;
use super::receive::Receive;
use crate::clock::{ClockDomain, Ticket};
use crate::device::DeviceError;
#[cfg(feature = "bindings")]
use crate::ids::ActorId;
use crate::ids::ProcessId;
use crate::message::packed::Lists;
use crate::message::portable::Describe;
#[cfg(feature = "raw")]
use crate::message::raw::Unanswered;
use crate::message::{GpuMessage, codec, message_key};
use crate::observe::context::TraceContext;
use crate::observe::trace::FrameId;
use crate::os::vital;
use crate::stream::Stream;
use crate::transport::Transport;
use crate::transport::inbox::{self, Delivery, Refusal, Undelivered};

mod done;
#[cfg(feature = "bindings")]
pub(super) mod raw;
#[cfg(all(test, feature = "testing"))]
mod tests;

use done::taint_in;
pub(super) use done::{Done, LocalReceipt};

/// The list that [`RemoteActor::handles`] fills.
pub struct Handles<A: RemoteActor> {
    /// In the order of the keys.
    by_key: Vec<(u64, Entry<A>)>,
    /// The names of two types that are one message on the wire.
    alike: Option<(&'static str, &'static str)>,
    polls: bool,
    /// Whether messages may stay with the actor for long.
    waits: bool,
    /// For all keys that the list does not have.
    #[cfg(feature = "bindings")]
    any: Option<Entry<A>>,
}

/// An envelope, boxed because a mailbox holds envelopes of all types that its actor takes.
type BoxedEnvelope<A> = Box<dyn AnyEnvelope<A>>;

type Decode<A> = fn(Delivery<'_>) -> Result<BoxedEnvelope<A>, Undelivered>;

type Accept<A> = fn(inbox::LocalMessage) -> Result<BoxedEnvelope<A>, inbox::LocalMessage>;

struct Entry<A: RemoteActor> {
    name: &'static str,
    type_name: &'static str,
    decode: Decode<A>,
    accept: Accept<A>,
    /// Set for a portable message.
    describe: Option<Describe>,
}

/// A message in an actor's mailbox.
pub(super) trait AnyEnvelope<A: RemoteActor>: Send {
    /// Runs the handler. A returned future must be polled until the handler's result resolves.
    fn open(
        self: Box<Self>,
        actor: &mut A,
        ctx: &mut Context<A>,
        stream: &Stream,
        transport: &Weak<Transport>,
        handed_off: &Arc<HandedOff>,
    ) -> Option<LocalBoxFuture<'static, ()>>;

    /// As [`open`](Self::open), on any thread, if the message's handler is elsewhere and its sink is known.
    /// Otherwise returns the envelope.
    #[cfg(feature = "bindings")]
    fn put(
        self: Box<Self>,
        own: ActorId,
        stream: &Stream,
        handed_off: &Arc<HandedOff>,
    ) -> Result<(), BoxedEnvelope<A>>;

    /// Copies the message's tensors to the device where they have to be. Pending, with `waker` noted, while
    /// there is no memory for them.
    ///
    /// # Errors
    /// The reason why that is not possible.
    fn fetch(&mut self, receive: &Receive, waker: &Waker) -> Poll<Result<(), String>>;

    /// Refuses the message, with the reason.
    fn refuse(self: Box<Self>, why: String);

    /// Tells a sender that waits for a reply that the actor failed and is restarted.
    fn turn_away(self: Box<Self>);

    /// Returns the message's name, for reports.
    fn name(&self) -> &'static str;

    /// Returns the message's key, and the frame that it came in, for a trace.
    fn origin(&self) -> (u64, Option<FrameId>);
}

impl<A: RemoteActor> Handles<A> {
    /// Lists the messages that the actor takes.
    pub(super) fn of() -> Self {
        let mut handles = Handles {
            by_key: Vec::new(),
            alike: None,
            polls: false,
            waits: false,
            #[cfg(feature = "bindings")]
            any: None,
        };
        A::handles(&mut handles);
        handles
    }

    /// Adds messages of type `M`.
    pub fn message<M>(&mut self) -> &mut Self
    where
        M: GpuMessage,
        A: Handler<M>,
    {
        self.enter::<M>(decode::<A, M>)
    }

    /// As [`message`](Self::message), for messages whose senders ask only to know when they are handled, ask
    /// for several at a time, and wait for none alone. Replies to other processes are not published one by
    /// one. A sleeping sender is woken for several of them: for half of the mailbox's capacity, or when this
    /// process has nothing else to do. (Below a capacity of 4, it is woken for each.) If a handler takes
    /// longer than a millisecond, the reply before its own is published with its own at the latest.
    pub fn acknowledged<M>(&mut self) -> &mut Self
    where
        M: GpuMessage,
        A: Handler<M>,
    {
        self.enter::<M>(decode_acknowledged::<A, M>)
    }

    /// Declares that the actor's handlers poll futures themselves, to see whether they are done at once, and
    /// hand them to their context if they are not. Otherwise a pending send or ask
    /// [is refused](crate::actor::SendFailure::Blocking) then, because it looks as if the handler blocked on
    /// it.
    pub fn polls(&mut self) -> &mut Self {
        self.polls = true;
        self
    }

    /// Declares that the actor's replies, and messages behind them, may wait for a rare event or for others.
    /// Then only a handler that does not return counts as a [hang](crate::node::NodeBuilder::hang_limit), and
    /// not that no message gets handled.
    pub fn waits(&mut self) -> &mut Self {
        self.waits = true;
        self
    }

    pub(super) fn may_wait(&self) -> bool {
        self.waits
    }

    pub(super) fn may_poll(&self) -> bool {
        self.polls
    }

    fn enter<M>(&mut self, decode: Decode<A>) -> &mut Self
    where
        M: GpuMessage,
        A: Handler<M>,
    {
        let type_name = type_name::<M>();
        let entry = Entry { name: M::NAME, type_name, decode, accept: accept::<A, M>, describe: M::PORTABLE };
        let key = message_key::<M>();
        match self.by_key.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => {
                let other = std::mem::replace(&mut self.by_key[at].1, entry).type_name;
                if other != type_name {
                    self.alike = Some((other, type_name));
                }
            }
            Err(at) => self.by_key.insert(at, (key, entry)),
        }
        self
    }

    fn find(&self, key: u64) -> Option<&Entry<A>> {
        let found = self.by_key.binary_search_by_key(&key, |(key, _)| *key);
        let listed = found.ok().and_then(|at| self.by_key.get(at)).map(|(_, entry)| entry);
        #[cfg(feature = "bindings")]
        let listed = listed.or(self.any.as_ref());
        listed
    }

    /// Returns why the actor cannot start: one handler would get messages of another.
    pub(super) fn refusal(&self) -> Option<String> {
        self.alike.map(|(one, other)| {
            format!(
                "its messages `{one}` and `{other}` are one on the wire, because they have one name and the same fields; give one of \
                 them another name, with `#[gpu_message(portable, name = \"..\")]`"
            )
        })
    }

    /// Returns the keys, in order.
    pub(super) fn sorted(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_key.iter().map(|(key, _)| *key)
    }

    /// Returns whether the actor takes messages of types that are not listed.
    pub(super) fn takes_any(&self) -> bool {
        #[cfg(feature = "bindings")]
        let any = self.any.is_some();
        #[cfg(not(feature = "bindings"))]
        let any = false;
        any
    }

    /// Returns names and keys, in order.
    pub(super) fn keys(&self) -> Vec<(&'static str, u64)> {
        let mut keys: Vec<_> = self.by_key.iter().map(|(key, entry)| (entry.name, *key)).collect();
        keys.sort_unstable();
        keys
    }

    /// Returns how the portable messages describe themselves.
    pub(super) fn portable(&self) -> Vec<Describe> {
        self.by_key.iter().filter_map(|(_, entry)| entry.describe).collect()
    }

    pub(super) fn decode(&self, delivery: Delivery<'_>) -> Result<BoxedEnvelope<A>, Undelivered> {
        let key = delivery.key;
        match self.find(key) {
            Some(entry) => (entry.decode)(delivery),
            None => {
                let error = Undelivered::Unregistered { key };
                delivery.receipt.refuse(&Refusal::Undelivered(error.to_string()));
                Err(error)
            }
        }
    }

    pub(super) fn accept(
        &self,
        key: u64,
        message: inbox::LocalMessage,
    ) -> Result<BoxedEnvelope<A>, (inbox::LocalMessage, Undelivered)> {
        match self.find(key) {
            Some(entry) => {
                (entry.accept)(message).map_err(|message| (message, Undelivered::Unregistered { key }))
            }
            None => Err((message, Undelivered::Unregistered { key })),
        }
    }
}

fn decode_acknowledged<A, M>(mut delivery: Delivery<'_>) -> Result<BoxedEnvelope<A>, Undelivered>
where
    A: RemoteActor + Handler<M>,
    M: GpuMessage,
{
    delivery.receipt.acknowledge();
    decode::<A, M>(delivery)
}

fn decode<A, M>(delivery: Delivery<'_>) -> Result<BoxedEnvelope<A>, Undelivered>
where
    A: RemoteActor + Handler<M>,
    M: GpuMessage,
{
    let Delivery { body, tensors, tickets, mut receipt, context: span, .. } = delivery;
    receipt.reply_with(Lists::of::<M>());
    let context: Arc<dyn std::any::Any + Send + Sync> = Arc::<Transport>::clone(receipt.transport());
    let decoded = codec::decode::<M>(body, tensors, Some(context)).map_err(|error| error.to_string());
    let checked = decoded.and_then(|message| match catch_unwind(AssertUnwindSafe(|| message.check())) {
        Ok(Ok(())) => Ok(message),
        Ok(Err(error)) => Err(error.to_string()),
        Err(panic) => Err(format!("checking it panicked: {}", vital::panic_text(panic.as_ref()))),
    });
    match checked {
        Ok(message) => {
            Ok(Box::new(Envelope { message, tickets, context: span, done: Done::Remote(receipt) }))
        }
        Err(why) => Err(receipt.malformed(M::NAME, why)),
    }
}

fn accept<A, M>(message: inbox::LocalMessage) -> Result<BoxedEnvelope<A>, inbox::LocalMessage>
where
    A: RemoteActor + Handler<M>,
    M: GpuMessage,
{
    let message: Box<Envelope<M>> = message.downcast()?;
    Ok(message)
}

/// A message, with the receipt for the time when it is handled.
pub(super) struct Envelope<M: GpuMessage> {
    pub(super) message: M,
    pub(super) tickets: SmallVec<[Ticket; 2]>,
    /// The context of the span that sent it.
    pub(super) context: TraceContext,
    pub(super) done: Done<M::Reply>,
}

impl<M: GpuMessage> Envelope<M> {
    /// Returns the process whose death took the data of one of the message's tensors, if any did (DEATH-3).
    pub(super) fn taint(&self, domain: &ClockDomain) -> Option<ProcessId> {
        match &self.done {
            // The frame has a ticket for each tensor whose data was not ready when it was sent.
            Done::Remote(_) => self.tickets.iter().find_map(|ticket| domain.tainted_by(ticket)),
            Done::Local(_) if !M::MAY_HOLD_TENSORS => None,
            Done::Local(_) => taint_in(domain, &self.message),
        }
    }

    /// Tells the asker that no handler gets the message, and counts it.
    pub(super) fn refuse_tainted(self, by: ProcessId, transport: Option<Arc<Transport>>) -> (M, ProcessId) {
        let sender = self.done.sender();
        self.done.refuse(Refusal::Tainted(by));
        if let Some(transport) = transport {
            transport.counters.dead_letter();
        }
        (self.message, sender)
    }
}

/// Sends the value that a handler's result has resolved to.
#[inline]
fn finish<M: GpuMessage>(done: Done<M::Reply>, reply: M::Reply) {
    #[cfg(feature = "raw")]
    let reply = match M::answer(reply) {
        Ok(reply) => reply,
        Err(Unanswered::Refused(why)) => return done.refuse(Refusal::Undelivered(why)),
        Err(Unanswered::Unread(why)) => return done.refuse_unread(why),
        Err(Unanswered::TurnedAway) => return done.refuse(Refusal::Restarting),
        Err(Unanswered::BadReply(why)) => return done.refuse(Refusal::BadReply(why).bounded()),
        Err(Unanswered::Failed(why, fail)) => {
            // This comes before the actor's end, which would answer all its messages that there is no reply.
            done.refuse(Refusal::Failed(why).bounded());
            return fail();
        }
    };
    done.reply(reply, M::REPLY_MAY_HOLD_TENSORS);
}

/// Returns whether a handler's result of type `R` has resolved when the handler returns.
fn is_done<M: GpuMessage, R>() -> bool {
    let result = type_name::<R>();
    result == type_name::<()>() || result == type_name::<MessageResult<M>>()
}

impl<M: GpuMessage> Envelope<M> {
    /// Refuses the message: its tensors cannot be waited for.
    #[cold]
    fn unready<A>(self, error: DeviceError, actor: &mut A, ctx: &mut Context<A>, transport: &Weak<Transport>)
    where
        A: RemoteActor + Handler<M>,
    {
        if let DeviceError::Tainted { by } = error {
            return self.tainted(by, actor, ctx, transport);
        }
        tracing::error!(message = M::NAME, %error, "a message was dropped: its tensors cannot be waited for");
        let Envelope { message, done, .. } = self;
        done.refuse(Refusal::Undelivered(error.to_string()));
        drop(message);
    }

    /// DEATH-3: gives the message to `dead_letter`. It is never handed to a handler as if it were good.
    #[cold]
    fn tainted<A>(self, by: ProcessId, actor: &mut A, ctx: &mut Context<A>, transport: &Weak<Transport>)
    where
        A: RemoteActor + Handler<M>,
    {
        let (message, sender) = self.refuse_tainted(by, transport.upgrade());
        actor.dead_letter(DeadLetter::tainted(message, by, sender), ctx);
    }
}

impl<A, M> AnyEnvelope<A> for Envelope<M>
where
    A: RemoteActor + Handler<M>,
    M: GpuMessage,
{
    fn open(
        self: Box<Self>,
        actor: &mut A,
        ctx: &mut Context<A>,
        stream: &Stream,
        transport: &Weak<Transport>,
        _: &Arc<HandedOff>,
    ) -> Option<LocalBoxFuture<'static, ()>> {
        // CLOCK-1, in one batch for all tensors of the message. A tensor from the same process, or one that
        // is used on another stream, is waited for when it is used.
        let tickets = if M::WAITS_AT_USE { [].as_slice() } else { &self.tickets };
        if let Err(error) = stream.begin(tickets) {
            self.unready(error, actor, ctx, transport);
            return None;
        }
        // The taint may be known now that was not known when the message was sent.
        if (M::WAITS_AT_USE || matches!(self.done, Done::Local(_)))
            && let Some(by) = self.taint(stream.domain())
        {
            self.tainted(by, actor, ctx, transport);
            return None;
        }
        let Envelope { message, tickets: _, context, done } = *self;
        // The span lasts until this returns. A future that is the result runs in it if the handler has put it
        // there.
        let span = context.child(|| {
            tracing::info_span!(
                "handle",
                otel.name = M::NAME,
                otel.kind = "consumer",
                actor = short(type_name::<A>())
            )
        });
        let _span = span.enter();
        actor.sent_by(done.sent_by_other());
        let response = <A as Handler<M>>::handle(actor, message, ctx);
        // A handler that returns `()` or its reply is done. Any other result may resolve later, and holds the
        // credit until then.
        if !done.wants_reply() && is_done::<M, <A as Handler<M>>::Result>() {
            response.handle(ctx, None);
            return None;
        }
        let (answer, mut result) = oneshot::channel();
        response.handle(ctx, Some(answer));
        match result.try_recv() {
            Ok(reply) => {
                finish::<M>(done, reply);
                None
            }
            Err(oneshot::error::TryRecvError::Closed) => None,
            Err(oneshot::error::TryRecvError::Empty) => {
                let panics = vital::panics();
                Some(
                    async move {
                        match result.await {
                            Ok(reply) => finish::<M>(done, reply),
                            // The future that should have made the result is a task of this thread, and has
                            // panicked there.
                            Err(_) if vital::panics() > panics => done.refuse(Refusal::of_the_last_panic()),
                            Err(_) => {}
                        }
                    }
                    .boxed_local(),
                )
            }
        }
    }

    #[cfg(feature = "bindings")]
    fn put(self: Box<Self>, _: ActorId, _: &Stream, _: &Arc<HandedOff>) -> Result<(), BoxedEnvelope<A>> {
        Err(self)
    }

    fn fetch(&mut self, receive: &Receive, waker: &Waker) -> Poll<Result<(), String>> {
        self.fetch_by(receive, waker)
    }

    fn refuse(self: Box<Self>, why: String) {
        self.done.refuse(Refusal::Undelivered(why));
    }

    fn turn_away(self: Box<Self>) {
        let Envelope { message, done, .. } = *self;
        drop(message);
        done.refuse(Refusal::Restarting);
    }

    fn name(&self) -> &'static str {
        M::NAME
    }

    fn origin(&self) -> (u64, Option<FrameId>) {
        self.comes_from()
    }
}

impl<M: GpuMessage> Envelope<M> {
    fn fetch_by(&mut self, receive: &Receive, waker: &Waker) -> Poll<Result<(), String>> {
        if receive.domain().is_some_and(|domain| self.taint(&domain).is_some()) {
            // There is nothing to fetch: the message becomes a dead letter when it is opened.
            return Poll::Ready(Ok(()));
        }
        match receive.fetch(&self.message, waker) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(None)) => {}
            Poll::Ready(Ok(Some(fetched))) => {
                // The originals are dropped here, after the copies were submitted (CLOCK-2).
                #[cfg(feature = "raw")]
                let key = self.message.run_time_key();
                self.message = fetched.message;
                #[cfg(feature = "raw")]
                if let Some(key) = key {
                    self.message.set_run_time_key(key);
                }
                self.tickets = fetched.tickets;
            }
            Poll::Ready(Err(why)) => return Poll::Ready(Err(why)),
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the message's key and frame, for a trace.
    fn comes_from(&self) -> (u64, Option<FrameId>) {
        let frame = match &self.done {
            Done::Remote(receipt) => Some(receipt.frame()),
            Done::Local(_) => None,
        };
        #[cfg(feature = "raw")]
        if let Some(key) = self.message.run_time_key() {
            return (key, frame);
        }
        (message_key::<M>(), frame)
    }
}
