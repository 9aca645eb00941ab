//! Sending, the short way and the long.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use super::address::Address;
use super::error::{SendError, SendFailure};
use super::handles::{Done, LocalReceipt, Parcel};
use crate::limits::{MAX_GRANTED, MAX_TENSORS};
use crate::mailbox::port::Place;
use crate::mailbox::post::inbox::{Inbox, Undelivered};
use crate::mailbox::post::{AskFailure, Envelope, Link, Office, PlaceInQueue, Queue};
use crate::message::wire::Kind;
use crate::message::{GpuMessage, codec};

/// The way to a mailbox.
#[derive(Clone)]
enum Route {
    /// In this process.
    Short(Arc<dyn Inbox>),
    /// In another.
    Long(Arc<Link>, Place),
}

impl Route {
    fn to<M: GpuMessage>(address: &Address<M>) -> Result<Self, SendFailure> {
        let office = address.office();
        let place = address.place().ok_or(SendFailure::NoSuchActor)?;
        if place.process == office.process() {
            let inbox = office.inbox(place.index).filter(|inbox| inbox.actor() == address.actor());
            return inbox.map(Route::Short).ok_or(SendFailure::NoSuchActor);
        }
        let link = office.link(place.process).ok_or(SendFailure::Gone(place.process))?;
        Ok(Route::Long(link, place))
    }

    /// Where senders to the mailbox wait; `None` for a mailbox that there cannot be.
    fn queue(&self) -> Option<&Queue> {
        match self {
            Route::Short(inbox) => Some(inbox.local().queue()),
            Route::Long(link, place) => link.queue(place.index),
        }
    }

    fn stamp(&self) -> u64 {
        match self {
            Route::Short(inbox) => inbox.local().stamp(),
            Route::Long(link, place) => link.stamp(place.index),
        }
    }
}

/// What an ask gets back: the reply, or why there is none.
pub(super) type Answer<R> = oneshot::Sender<Result<R, AskFailure>>;

/// Whether another attempt makes sense when the mailbox has moved.
fn may_wait(reason: &SendFailure) -> bool {
    matches!(reason, SendFailure::Full)
}

/// One attempt to send `message`, as an ask where `answer` is given. On failure both stay with the caller.
///
/// Returns the ask's number, for a remote ask.
fn attempt<M: GpuMessage>(
    address: &Address<M>,
    route: &Route,
    message: &mut Option<M>,
    answer: &mut Option<Answer<M::Reply>>,
) -> Result<Option<u64>, SendFailure> {
    match route {
        Route::Short(inbox) => offer(address, inbox, message, answer).map(|()| None),
        Route::Long(link, place) => post(address, link, place, message, answer),
    }
}

fn offer<M: GpuMessage>(
    address: &Address<M>,
    inbox: &Arc<dyn Inbox>,
    message: &mut Option<M>,
    answer: &mut Option<Answer<M::Reply>>,
) -> Result<(), SendFailure> {
    let local = inbox.local();
    if local.is_closed() {
        return Err(SendFailure::NoSuchActor);
    }
    let Some(value) = message.take() else { return Ok(()) };
    if !local.take() {
        *message = Some(value);
        return Err(SendFailure::Full);
    }
    let receipt = LocalReceipt::new(Arc::clone(local), Arc::clone(address.office()), answer.take());
    let parcel = Parcel { message: value, tickets: Default::default(), done: Done::Local(receipt) };
    inbox.offer(address.key(), Box::new(parcel)).map_err(|(parcel, why)| {
        if let Ok(parcel) = parcel.downcast::<Parcel<M>>() {
            *message = Some(parcel.message);
        }
        match why {
            Undelivered::Unregistered { .. } => SendFailure::Unregistered(M::NAME),
            _ => SendFailure::NoSuchActor,
        }
    })
}

fn post<M: GpuMessage>(
    address: &Address<M>,
    link: &Arc<Link>,
    place: &Place,
    message: &mut Option<M>,
    answer: &mut Option<Answer<M::Reply>>,
) -> Result<Option<u64>, SendFailure> {
    let office = address.office();
    let mut envelope = Envelope {
        kind: if answer.is_some() { Kind::Ask } else { Kind::Send },
        index: place.index,
        actor: address.actor(),
        correlation: 0,
        key: address.key(),
        capacity: place.capacity,
    };
    // Before the work of encoding.
    office.may_send(link, &envelope)?;
    let Some(value) = message.as_ref() else { return Ok(None) };
    let encoded = codec::encode(value, Vec::with_capacity(256))?;
    let claim = office.claim(link, &envelope, &encoded)?;
    let correlation = answer.take().map(|answer| expect::<M>(office, place, answer));
    envelope.correlation = correlation.unwrap_or(0);
    // The value goes before the frame is written: what has no handle left then was moved all the way.
    drop(message.take());
    office.commit(claim, &envelope, encoded);
    Ok(correlation)
}

/// Notes the ask; its reply is decoded on the reader's thread.
fn expect<M: GpuMessage>(office: &Arc<Office>, place: &Place, answer: Answer<M::Reply>) -> u64 {
    let weak = Arc::downgrade(office);
    office.expect_reply(
        place.process,
        Box::new(move |reply| {
            let reply = reply.and_then(|parts| {
                let context = weak.upgrade().map(|office| office as _);
                codec::decode::<M::Reply>(parts.body, parts.tensors, context)
                    .map_err(|error| AskFailure::BadReply(error.to_string()))
            });
            // Whoever asked may have given up: then the reply drops here, and its leases go back.
            let _ = answer.send(reply);
        }),
    )
}

pub(super) fn try_send<M: GpuMessage>(address: &Address<M>, message: M) -> Result<(), SendError<M>> {
    let mut sending = Sending::start(address.clone(), message, None, false);
    match sending.outcome.take() {
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(error),
        // `start` without a wait always has an outcome; a message that is still here was not sent.
        None => match sending.message.take() {
            Some(message) => Err(SendError { message, reason: SendFailure::Full }),
            None => Ok(()),
        },
    }
}

/// A message on its way into a mailbox.
pub(super) struct Sending<M: GpuMessage> {
    address: Address<M>,
    message: Option<M>,
    answer: Option<Answer<M::Reply>>,
    waiting: Option<(Route, PlaceInQueue)>,
    outcome: Option<Result<Option<u64>, SendError<M>>>,
}

impl<M: GpuMessage> Sending<M> {
    /// Makes the first attempt; where it fails for want of room and `wait`, takes a place in the queue.
    pub(super) fn start(
        address: Address<M>,
        message: M,
        answer: Option<Answer<M::Reply>>,
        wait: bool,
    ) -> Self {
        let mut sending = Sending { address, message: Some(message), answer, waiting: None, outcome: None };
        if let Err(reason) = sending.first(wait) {
            sending.fail(reason);
        }
        sending
    }

    fn first(&mut self, wait: bool) -> Result<(), SendFailure> {
        if !self.address.takes() {
            return Err(SendFailure::Unregistered(M::NAME));
        }
        if let Some(message) = &self.message {
            message.check()?;
        }
        let route = Route::to(&self.address)?;
        let queue = route.queue().ok_or(SendFailure::NoSuchActor)?;
        let result = if queue.is_empty() {
            attempt(&self.address, &route, &mut self.message, &mut self.answer)
        } else {
            Err(SendFailure::Full) // behind those who wait already (MBX-1)
        };
        match result {
            Ok(correlation) => self.outcome = Some(Ok(correlation)),
            Err(reason) if wait && may_wait(&reason) => {
                let place = queue.join();
                self.waiting = Some((route, place));
            }
            Err(reason) => {
                if let (Route::Long(link, _), true) = (&route, may_wait(&reason))
                    && link.granted.load(Ordering::Relaxed) + MAX_TENSORS > MAX_GRANTED
                {
                    // The lack may be of leases, which the peer has given back; only the reader takes them in, and
                    // nobody waits, so nothing else wakes it.
                    self.address.office().wake_reader();
                }
                return Err(reason);
            }
        }
        Ok(())
    }

    /// The number of an ask that was sent and not polled since.
    pub(super) fn correlation(&self) -> Option<u64> {
        self.outcome.as_ref().and_then(|outcome| outcome.as_ref().ok().copied().flatten())
    }

    pub(super) fn fail(&mut self, reason: SendFailure) {
        self.waiting = None;
        self.outcome = self.message.take().map(|message| Err(SendError { message, reason }));
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<u64>, SendError<M>>> {
        while self.outcome.is_none() {
            let Some((route, place)) = &self.waiting else { return Poll::Pending };
            // Read before the attempt: what changes after it was read wakes this task.
            let stamp = route.stamp();
            place.remember(cx.waker(), stamp);
            if !place.is_front() {
                return Poll::Pending;
            }
            match attempt(&self.address, route, &mut self.message, &mut self.answer) {
                Ok(correlation) => {
                    self.waiting = None;
                    self.outcome = Some(Ok(correlation));
                }
                Err(reason) if may_wait(&reason) => {
                    if route.stamp() == stamp {
                        // The reader may sleep without knowing that somebody waits.
                        self.address.office().wake_reader();
                        return Poll::Pending;
                    }
                }
                Err(reason) => self.fail(reason),
            }
        }
        match self.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }
}

/// The future of [`Address::send`].
#[must_use = "a send that found no room waits only while it is polled"]
pub struct Send<M: GpuMessage> {
    sending: Sending<M>,
    timeout: Option<Duration>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<M: GpuMessage> Unpin for Send<M> {}

impl<M: GpuMessage> Send<M> {
    pub(super) fn new(address: Address<M>, message: M) -> Self {
        Send { sending: Sending::start(address, message, None, true), timeout: None, sleep: None }
    }

    /// Gives the message back if there is no room within `timeout`, counted from the first poll. Needs a tokio runtime
    /// with time, which workers and [`Node::block_on`](crate::Node::block_on) have.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<M: GpuMessage> Future for Send<M> {
    type Output = Result<(), SendError<M>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Poll::Ready(outcome) = this.sending.poll(cx) {
            return Poll::Ready(outcome.map(|_| ()));
        }
        if let Some(timeout) = this.timeout {
            let sleep = this.sleep.get_or_insert_with(|| Box::pin(sleep(timeout)));
            if sleep.as_mut().poll(cx).is_ready() {
                this.sending.fail(SendFailure::TimedOut);
                if let Poll::Ready(outcome) = this.sending.poll(cx) {
                    return Poll::Ready(outcome.map(|_| ()));
                }
            }
        }
        Poll::Pending
    }
}
