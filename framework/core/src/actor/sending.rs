//! Sending within a process and to other processes: the steps of an address until a mailbox or a ring has its
//! message.
//!
//! [`Address`] and asks use it. An attempt looks up the [`Route`]. It then either puts the message into the
//! mailbox of an actor of this process ([`offer`]), or hands it to the transport ([`post`]). From there the
//! message goes on through `transport` and does not come back here.
//!
//! **Invariants.** The first attempt is made at once, and only if nobody waits (MBX-1). A waiting sender
//! tries again only at the front of its queue. Until an attempt has succeeded the message is the caller's,
//! and comes back with each error.
//!
//! **Locks.** None is held between two calls.
//!
//! **On a crash** of the receiver an attempt fails, and looks up where the actor lives now. **On
//! cancellation** the sender's place in the queue is given up, and nothing was sent.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use super::address::Address;
use super::blocking::is_blocking_poll;
use super::error::{SendError, SendFailure};
use super::handles::{Done, Envelope, LocalReceipt};
use crate::ids::ActorId;
use crate::message::packed::Lists;
use crate::message::wire::Kind;
use crate::message::{GpuMessage, codec};
use crate::observe::context::TraceContext;
use crate::transport::control_channel::Location;
use crate::transport::inbox::{Inbox, Undelivered};
use crate::transport::{
    AskFailure, Destination, Link, NoRoute, NotNow, PlaceInQueue, Queue, Route, TransmitError, Transport,
};

/// The channel for the reply to an ask, or for the reason why there is none.
pub(super) type Answer<R> = oneshot::Sender<Result<R, AskFailure>>;

/// Returns the route to the actor of an address.
#[inline]
fn route_to<M: GpuMessage>(address: &Address<M>) -> Result<Route, SendFailure> {
    let route = address.transport().route_to(address.actor(), address.location());
    route.map_err(|none| match none {
        NoRoute::NoSuchActor => SendFailure::NoSuchActor,
        NoRoute::GaveUp(reason) => SendFailure::GaveUp(reason),
        NoRoute::Exited(exited) => SendFailure::ProcessExited(exited),
        NoRoute::Lack(why) => SendFailure::NoLink(why.to_string()),
        NoRoute::Forked => SendFailure::Forked,
    })
}

/// Returns whether another attempt makes sense once the mailbox has moved on.
fn may_wait(reason: &SendFailure) -> bool {
    matches!(reason, SendFailure::Full | SendFailure::Connecting | SendFailure::Restarting)
}

/// Returns whether the actor is no longer where it was, and may be elsewhere.
fn is_lost(reason: &SendFailure) -> bool {
    matches!(reason, SendFailure::Restarting | SendFailure::ProcessExited(_) | SendFailure::NoSuchActor)
}

fn failure(transport: &Transport, actor: ActorId, error: TransmitError) -> SendFailure {
    match error {
        TransmitError::NotNow(NotNow::Connecting) => SendFailure::Connecting,
        TransmitError::NotNow(_) => SendFailure::Full,
        TransmitError::NoSuchActor => SendFailure::NoSuchActor,
        TransmitError::Restarting => SendFailure::Restarting,
        TransmitError::Exited(process) => SendFailure::ProcessExited(transport.exited(process, actor)),
        TransmitError::NoLink(why) => SendFailure::NoLink(why.to_string()),
        TransmitError::Body { error, .. } => SendFailure::Body(error),
        TransmitError::Tainted(by) => SendFailure::Tainted(by),
        TransmitError::Tensor(error) => SendFailure::Tensor(error),
        TransmitError::Encode(error) => SendFailure::Encode(error),
    }
}

/// Makes one attempt to send `message`, as an ask if `answer` is given. On failure both stay with the caller.
///
/// Returns the ask's number, for a remote ask.
fn attempt<M: GpuMessage>(
    address: &Address<M>,
    route: &Route,
    message: &mut Option<M>,
    answer: &mut Option<Answer<M::Reply>>,
) -> Result<Option<u64>, SendFailure> {
    match route {
        Route::Short(inbox, _) => offer(address, inbox, message, answer).map(|()| None),
        Route::Long(link, location, _) => post(address, link, location, message, answer),
        Route::Later(_) => Err(SendFailure::Restarting),
    }
}

fn offer<M: GpuMessage>(
    address: &Address<M>,
    inbox: &Arc<dyn Inbox>,
    message: &mut Option<M>,
    answer: &mut Option<Answer<M::Reply>>,
) -> Result<(), SendFailure> {
    // Closed is checked before full: a mailbox that takes nothing more is no reason to wait.
    let local = inbox.local();
    if local.is_closed() {
        return Err(if local.is_away() { SendFailure::Restarting } else { SendFailure::NoSuchActor });
    }
    let Some(value) = message.take() else { return Ok(()) };
    // The credit is taken before the mailbox is used: a sender with a credit finds room there.
    if !local.take() {
        *message = Some(value);
        return Err(SendFailure::Full);
    }
    let receipt = LocalReceipt::new(Arc::clone(local), Arc::clone(address.transport()), answer.take());
    let envelope = Envelope {
        message: value,
        tickets: Default::default(),
        context: TraceContext::current(),
        done: Done::Local(receipt),
    };
    inbox.offer(address.key(), Box::new(envelope)).map_err(|(envelope, why)| {
        if let Ok(envelope) = envelope.downcast::<Envelope<M>>() {
            let Envelope { message: value, done, .. } = *envelope;
            *message = Some(value);
            if let Done::Local(mut receipt) = done {
                // The asker asks the actor's next life, if there is one, and waits for that.
                *answer = receipt.take_answer();
            }
        }
        match why {
            Undelivered::Unregistered { .. } => SendFailure::Unregistered(M::NAME),
            _ if local.is_away() => SendFailure::Restarting,
            _ => SendFailure::NoSuchActor,
        }
    })
}

fn post<M: GpuMessage>(
    address: &Address<M>,
    link: &Arc<Link>,
    location: &Location,
    message: &mut Option<M>,
    answer: &mut Option<Answer<M::Reply>>,
) -> Result<Option<u64>, SendFailure> {
    let (transport, actor) = (address.transport(), address.actor());
    let destination = Destination {
        kind: match answer {
            Some(_) if M::FOLLOWS => Kind::Follow,
            Some(_) => Kind::Ask,
            None => Kind::Send,
        },
        index: location.index,
        actor,
        correlation: 0,
        key: address.key(),
        has_context: false,
    };
    let expect = || answer.take().map(|answer| expect::<M>(transport, location, actor, answer));
    transport
        .frames_to(link)
        .send(destination, message, Lists::of::<M>(), expect)
        .map_err(|error| failure(transport, actor, error))
}

/// Notes the ask. Its reply is decoded on the reader's thread.
fn expect<M: GpuMessage>(
    transport: &Arc<Transport>,
    location: &Location,
    actor: ActorId,
    answer: Answer<M::Reply>,
) -> u64 {
    let weak = Arc::downgrade(transport);
    transport.asks.expect(
        location.process,
        actor,
        Box::new(move |reply| {
            let reply = reply.and_then(|parts| {
                let context = weak.upgrade().map(|transport| transport as _);
                codec::decode::<M::Reply>(parts.body, parts.tensors, context)
                    .map_err(|error| AskFailure::BadReply(error.to_string()))
            });
            // The asker may have given up. Then the reply drops here, and its leases go back.
            let _ = answer.send(reply);
        }),
    )
}

pub(super) fn try_send<M: GpuMessage>(address: &Address<M>, message: M) -> Result<(), SendError<M>> {
    let (mut message, mut way) = (Some(message), None);
    let Err(mut reason) = first(address, &mut message, &mut None, &mut way) else { return Ok(()) };
    if matches!(reason, SendFailure::Restarting)
        && address.transport().directory.meets_other_host(address.actor())
    {
        // Only the actor's own host knows whether the actor is restarted. From here the way to it is being
        // made.
        reason = SendFailure::Connecting;
    }
    if let Some(way) = way.as_ref().filter(|way| may_wait(&reason) && way.may_lack_leases()) {
        // The lack may be one of leases that the peer has given back. Only the reader takes them in, and as
        // nobody waits, nothing else wakes it.
        address.transport().wakeups.wake_reader();
        if let (SendFailure::Full, Some(limit)) = (&reason, address.transport().leases_lacked(way)) {
            reason = SendFailure::LeasesOut(limit.to_string());
        }
    }
    match message {
        Some(message) => Err(SendError { message, reason }),
        None => Ok(()),
    }
}

/// Makes the first attempt. If it fails and there is a route to the mailbox, leaves that in `way`, to wait on
/// it.
fn first<M: GpuMessage>(
    address: &Address<M>,
    message: &mut Option<M>,
    answer: &mut Option<Answer<M::Reply>>,
    way: &mut Option<Route>,
) -> Result<Option<u64>, SendFailure> {
    if !address.takes() {
        return Err(SendFailure::Unregistered(M::NAME));
    }
    if let Some(message) = message {
        message.check()?;
    }
    let route = route_to(address)?;
    match attempt_in_order(address, &route, message, answer) {
        Ok(correlation) => Ok(correlation),
        Err(reason) => second(address, (route, reason), message, answer, way),
    }
}

/// Follows a failed first attempt: makes another one if the actor was not found and has moved.
fn second<M: GpuMessage>(
    address: &Address<M>,
    (route, reason): (Route, SendFailure),
    message: &mut Option<M>,
    answer: &mut Option<Answer<M::Reply>>,
    way: &mut Option<Route>,
) -> Result<Option<u64>, SendFailure> {
    if is_lost(&reason) {
        let now = route_to(address)?;
        if !now.is(&route) {
            return attempt_in_order(address, way.insert(now), message, answer);
        }
    }
    *way = Some(route);
    Err(reason)
}

/// Makes one attempt, if nobody waits already (MBX-1).
fn attempt_in_order<M: GpuMessage>(
    address: &Address<M>,
    route: &Route,
    message: &mut Option<M>,
    answer: &mut Option<Answer<M::Reply>>,
) -> Result<Option<u64>, SendFailure> {
    let queue = route.queue().ok_or(SendFailure::NoSuchActor)?;
    if matches!(route, Route::Later(_)) || queue.is_empty() {
        attempt(address, route, message, answer)
    } else {
        Err(SendFailure::Full)
    }
}

/// A message on its way into a mailbox. It is moved with each message, so it is kept small.
pub(super) struct Sending<M: GpuMessage> {
    /// The address that it waits for.
    address: Option<Address<M>>,
    /// Taken when it is sent.
    message: Option<M>,
    answer: Option<Answer<M::Reply>>,
    /// Whether it waits for the actor's next life.
    waits_for_restart: bool,
    state: State,
}

enum State {
    /// The message was sent, as the ask with this number if it is one.
    Sent(Option<u64>),
    /// The message waits for its turn and for room.
    Waiting(Route, PlaceInQueue),
    Failed(Box<SendFailure>),
    /// The caller has its result.
    Told,
}

impl<M: GpuMessage> Sending<M> {
    /// Makes the first attempt. If it fails for want of room, takes a place in the queue.
    pub(super) fn start(address: &Address<M>, message: M, answer: Option<Answer<M::Reply>>) -> Self {
        let (mut message, mut answer, mut way) = (Some(message), answer, None);
        let (state, address) = match first(address, &mut message, &mut answer, &mut way) {
            Ok(correlation) => (State::Sent(correlation), None),
            Err(reason) => (State::after(reason, way), Some(address.clone())),
        };
        Sending { address, message, answer, waits_for_restart: true, state }
    }

    /// Follows an actor that was not found where its route leads, for this reason: finds its new location, or
    /// fails. Returns false if there is no new location.
    fn follow(&mut self, reason: SendFailure) -> bool {
        let (State::Waiting(route, location), Some(address)) = (&mut self.state, &self.address) else {
            return true;
        };
        match route_to(address) {
            Ok(now) if now.is(route) => {
                if may_wait(&reason) {
                    return false;
                }
                self.fail(reason);
            }
            Ok(now) => {
                let Some(queue) = now.queue() else {
                    self.fail(SendFailure::NoSuchActor);
                    return true;
                };
                // It is mostly the same queue, which moved along with the actor, and the place in it stays.
                if !queue.is(location.queue()) {
                    *location = queue.join();
                }
                *route = now;
            }
            Err(reason) => self.fail(reason),
        }
        true
    }

    /// Fails from now on if the actor is between two lives.
    pub(super) fn unless_restarting(&mut self) {
        self.waits_for_restart = false;
    }

    /// Returns the number of an ask that was sent and not polled since.
    pub(super) fn correlation(&self) -> Option<u64> {
        if let State::Sent(correlation) = self.state { correlation } else { None }
    }

    pub(super) fn fail(&mut self, reason: SendFailure) {
        if self.message.is_some() {
            self.state = State::Failed(Box::new(reason));
        }
    }

    /// Fails because the deadline has come, and says what there was no room for.
    pub(super) fn fail_late(&mut self) {
        let lacked = match (&self.state, &self.address) {
            (State::Waiting(route, _), Some(address)) => address.transport().leases_lacked(route),
            _ => None,
        };
        self.fail(lacked.map_or(SendFailure::TimedOut, |limit| SendFailure::LeasesOut(limit.to_string())));
    }

    /// Leaves the wait to the parent, in a forked child. The place in the queue is the parent's, and a thread
    /// that does not exist here may hold its lock.
    fn leave_to_parent(&mut self) {
        if matches!(self.state, State::Waiting(..)) {
            std::mem::forget(std::mem::replace(&mut self.state, State::Told));
        }
    }

    /// Fails if it waits. A poll makes no attempt from now on.
    pub(super) fn withdraw(&mut self) {
        if matches!(self.state, State::Waiting(..)) {
            self.fail(SendFailure::Full);
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<u64>, SendError<M>>> {
        while let (State::Waiting(route, location), Some(address)) = (&self.state, &self.address) {
            if address.transport().is_inherited() {
                self.leave_to_parent();
                self.fail(SendFailure::Forked);
                break;
            }
            // The stamp is read before the attempt: a change after that wakes this task.
            let stamp = route.stamp();
            let lent = address.transport().lending_stamp();
            // The waker is stored before the place is checked: a sender that leaves the front meanwhile wakes
            // this one.
            location.remember(cx.waker(), stamp);
            if !self.waits_for_restart && matches!(route_to(address), Ok(Route::Later(_))) {
                self.fail(SendFailure::Restarting);
                break;
            }
            // Only the sender at the front tries (MBX-1). It wakes the next by leaving.
            if !location.is_front() {
                return Poll::Pending;
            }
            match attempt(address, route, &mut self.message, &mut self.answer) {
                Ok(correlation) => self.state = State::Sent(correlation),
                // First look up where the actor is now, and only then decide whether to wait. An actor that
                // is being restarted may be up elsewhere, and nothing at its last place would ever wake this
                // task.
                Err(reason) if is_lost(&reason) => {
                    let is_between_lives = matches!(reason, SendFailure::Restarting);
                    if !self.follow(reason) {
                        if self.waits_for_restart || !is_between_lives {
                            return Poll::Pending;
                        }
                        self.fail(SendFailure::Restarting);
                    }
                }
                // The situation may have changed between the attempt and here. Then this tries again, and
                // nobody is woken.
                Err(reason) if may_wait(&reason) => {
                    // If the actor is on another host, its place may be another actor's by now, whose mailbox
                    // is full.
                    if address.transport().directory.meets_other_host(address.actor()) && self.follow(reason)
                    {
                        continue;
                    }
                    let (State::Waiting(route, _), Some(address)) = (&self.state, &self.address) else {
                        continue;
                    };
                    // Lent memory may come back from any process, not only by this route.
                    let returned = address.transport().wake_when_lent_returns(lent, cx.waker());
                    if route.stamp() == stamp && !returned {
                        // The reader may sleep without knowing that somebody waits.
                        address.transport().wakeups.wake_reader();
                        return Poll::Pending;
                    }
                }
                Err(reason) => self.fail(reason),
            }
        }
        match std::mem::replace(&mut self.state, State::Told) {
            State::Sent(correlation) => Poll::Ready(Ok(correlation)),
            State::Failed(reason) => match self.message.take() {
                Some(message) => Poll::Ready(Err(SendError { message, reason: *reason })),
                None => Poll::Pending,
            },
            State::Told | State::Waiting(..) => Poll::Pending,
        }
    }
}

impl<M: GpuMessage> Drop for Sending<M> {
    fn drop(&mut self) {
        if self.address.as_ref().is_some_and(|address| address.transport().is_inherited()) {
            self.leave_to_parent();
        }
    }
}

impl State {
    /// Returns the state after a failed first attempt.
    #[cold]
    fn after(reason: SendFailure, way: Option<Route>) -> Self {
        match way {
            Some(route) if may_wait(&reason) => match route.queue().map(Queue::join) {
                Some(location) => State::Waiting(route, location),
                None => State::Failed(Box::new(SendFailure::NoSuchActor)),
            },
            _ => State::Failed(Box::new(reason)),
        }
    }
}

/// The future of [`Address::send`].
#[must_use = "a message that finds no room waits only while this is polled, and is not sent where it is dropped before"]
pub struct SendFuture<M: GpuMessage> {
    sending: Sending<M>,
    timeout: Option<Duration>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<M: GpuMessage> Unpin for SendFuture<M> {}

impl<M: GpuMessage> SendFuture<M> {
    pub(super) fn new(address: &Address<M>, message: M) -> Self {
        SendFuture { sending: Sending::start(address, message, None), timeout: None, sleep: None }
    }

    /// Gives the message back if there is no room within `timeout`, counted from the first poll. Needs a
    /// tokio runtime with time, which workers and [`Node::block_on`](crate::node::Node::block_on) have.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<M: GpuMessage> Future for SendFuture<M> {
    type Output = Result<(), SendError<M>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Poll::Ready(outcome) = this.sending.poll(cx) {
            return Poll::Ready(outcome.map(|_| ()));
        }
        if is_blocking_poll(cx) {
            this.sending.fail(SendFailure::Blocking);
            return this.sending.poll(cx).map(|outcome| outcome.map(|_| ()));
        }
        if let Some(timeout) = this.timeout {
            let sleep = this.sleep.get_or_insert_with(|| Box::pin(sleep(timeout)));
            if sleep.as_mut().poll(cx).is_ready() {
                this.sending.fail_late();
                if let Poll::Ready(outcome) = this.sending.poll(cx) {
                    return Poll::Ready(outcome.map(|_| ()));
                }
            }
        }
        Poll::Pending
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
