//! Sending by hand, one step at a time: the steps of an address, without its waiting.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::inbox::Target;
use crate::ids::{ActorId, ProcessId};
use crate::message::codec::{self, Encoded};
use crate::message::packed::Lists;
use crate::message::wire::Kind;
use crate::transport::control_channel::Location;
use crate::transport::{
    AskFailure, Claim, Destination, NotNow, Parts, PlaceInQueue, TransmitError, Transport,
};

/// The lack because of which a message could not be sent. Waiting helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The link is being made.
    Link,
    /// The mailbox has as many unhandled messages of this process as it takes.
    Credit,
    /// The ring to the process is full.
    Room,
    /// The process holds as many leases of this one as it may.
    Leases,
    /// As much of this process's memory is with others as may be.
    Memory,
}

/// The reason why a message was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// It could be sent later.
    NotNow(Lack),
    /// The actor is gone.
    NoSuchActor,
    /// Its process has ended, or broke the protocol.
    Exited,
    /// Something else, in words.
    Failed(String),
}

impl From<TransmitError> for Unsent {
    fn from(error: TransmitError) -> Self {
        match error {
            TransmitError::NotNow(NotNow::Connecting) => Unsent::NotNow(Lack::Link),
            TransmitError::NotNow(NotNow::MailboxFull) => Unsent::NotNow(Lack::Credit),
            TransmitError::NotNow(NotNow::RingFull) => Unsent::NotNow(Lack::Room),
            TransmitError::NotNow(NotNow::LeasesOut) => Unsent::NotNow(Lack::Leases),
            TransmitError::NotNow(NotNow::MemoryOut) => Unsent::NotNow(Lack::Memory),
            TransmitError::NoSuchActor => Unsent::NoSuchActor,
            TransmitError::Exited(_) | TransmitError::Restarting => Unsent::Exited,
            other => Unsent::Failed(other.to_string()),
        }
    }
}

/// Sends a message as addresses do. On an error the message comes back.
///
/// # Panics
/// An error came without the message.
pub(super) fn send<M: Serialize>(
    transport: &Arc<Transport>,
    to: &Target<M>,
    kind: Kind,
    correlation: u64,
    message: M,
) -> Result<(), (M, Unsent)> {
    let Some(link) = transport.link(to.location.process) else { return Err((message, Unsent::Exited)) };
    let mut message = Some(message);
    let expect = || kind.is_ask().then_some(correlation);
    match transport.frames_to(&link).send(destination(to, kind, 0), &mut message, Lists::Packed, expect) {
        Ok(_) => Ok(()),
        Err(error) => Err((message.expect("an error leaves the message as it was"), error.into())),
    }
}

fn destination<M>(to: &Target<M>, kind: Kind, correlation: u64) -> Destination {
    let (index, actor, key) = (to.location.index, to.actor, to.key);
    Destination { kind, index, actor, correlation, key, has_context: false }
}

/// A message that was encoded and has everything that it needs; its value has been dropped. Dropping this
/// gives everything back.
#[derive(Debug)]
pub struct Prepared {
    transport: Arc<Transport>,
    destination: Destination,
    encoded: Encoded,
    claim: Claim,
}

impl Prepared {
    pub(super) fn new<M: Serialize>(
        transport: &Arc<Transport>,
        to: &Target<M>,
        kind: Kind,
        correlation: u64,
        message: M,
    ) -> Result<Self, (M, Unsent)> {
        let Some(link) = transport.link(to.location.process) else { return Err((message, Unsent::Exited)) };
        let destination = destination(to, kind, correlation);
        let encoded = match codec::encode_in(&message, Vec::new(), transport.domain()) {
            Ok(encoded) => encoded,
            Err(error) => return Err((message, Unsent::Failed(error.to_string()))),
        };
        match transport.frames_to(&link).claim(&destination, &encoded) {
            Ok(claim) => {
                drop(message);
                Ok(Prepared { transport: Arc::clone(transport), destination, encoded, claim })
            }
            Err(error) => Err((message, error.into())),
        }
    }

    /// Makes it an ask, as an address does between the claim and the commit.
    pub fn expecting<R: DeserializeOwned + Send + 'static>(mut self) -> (Self, Asked<R>) {
        let asked = Asked::note(&self.transport, self.claim.peer(), self.destination.actor);
        self.destination.kind = Kind::Ask;
        self.destination.correlation = asked.correlation;
        (self, asked)
    }

    /// Sends it.
    pub fn commit(self) {
        let link = Arc::clone(self.claim.link());
        self.transport.frames_to(&link).commit(self.claim, &self.destination, self.encoded);
    }
}

type Slot<R> = Arc<Mutex<Option<Result<R, AskFailure>>>>;

/// An ask on its way.
pub struct Asked<R> {
    transport: Arc<Transport>,
    correlation: u64,
    answer: Slot<R>,
    reply: PhantomData<fn() -> R>,
}

impl<R> std::fmt::Debug for Asked<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Asked({})", self.correlation)
    }
}

impl<R: DeserializeOwned + Send + 'static> Asked<R> {
    pub(super) fn send<M: Serialize>(
        transport: &Arc<Transport>,
        to: &Target<M>,
        message: M,
    ) -> Result<Self, (M, Unsent)> {
        let asked = Self::note(transport, to.location.process, to.actor);
        match send(transport, to, Kind::Ask, asked.correlation, message) {
            Ok(()) => Ok(asked),
            Err(unsent) => {
                transport.forget_ask(asked.correlation);
                Err(unsent)
            }
        }
    }

    fn note(transport: &Arc<Transport>, peer: ProcessId, actor: ActorId) -> Self {
        let answer: Slot<R> = Arc::default();
        let slot = Arc::clone(&answer);
        let take = move |reply: Result<Parts<'_>, AskFailure>| {
            let reply = reply.and_then(|Parts { body, tensors }| {
                codec::decode(body, tensors, None).map_err(|error| AskFailure::BadReply(error.to_string()))
            });
            *slot.lock() = Some(reply);
        };
        let correlation = transport.asks.expect(peer, actor, Box::new(take));
        Asked { transport: Arc::clone(transport), correlation, answer, reply: PhantomData }
    }

    /// Returns the reply, if it has come.
    pub fn take(&self) -> Option<Result<R, AskFailure>> {
        self.answer.lock().take()
    }

    /// Stops waiting for the reply, as a dropped future does.
    pub fn give_up(self) {
        self.transport.forget_ask(self.correlation);
    }
}

/// A sender that waits in the queue of a mailbox.
#[derive(Debug)]
pub struct Waiter {
    transport: Arc<Transport>,
    to: Location,
    place: PlaceInQueue,
    woken: Arc<Count>,
}

#[derive(Debug, Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Waiter {
    /// Joins the queue at its end.
    pub(super) fn join(transport: &Arc<Transport>, to: Location) -> Option<Self> {
        let link = transport.link(to.process)?;
        let place = link.queue(to.index)?.join();
        let waiter = Waiter { transport: Arc::clone(transport), to, place, woken: Arc::default() };
        waiter.remember();
        Some(waiter)
    }

    /// Returns whether it is this sender's turn to try.
    pub fn is_front(&self) -> bool {
        self.place.is_front()
    }

    /// Returns how often it was woken.
    pub fn wakes(&self) -> usize {
        self.woken.0.load(Ordering::SeqCst)
    }

    /// Waits for the next change, after a try that failed.
    pub fn remember(&self) {
        if let Some(link) = self.transport.link(self.to.process) {
            self.place.remember(&Waker::from(Arc::clone(&self.woken)), link.stamp(self.to.index));
        }
    }

    /// Waits as [`remember`](Self::remember) does, and makes the reader notice before it sleeps that a sender
    /// waits, as a send does.
    pub fn wait(&self) {
        self.remember();
        self.transport.wakeups.wake_reader();
    }
}
