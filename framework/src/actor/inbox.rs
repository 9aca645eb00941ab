//! The mailbox of an actor, and how it is emptied.
//!
//! Letters queue here; a task in the actor's own context takes them out and calls the handlers, so `ctx.wait` and
//! `ctx.stop` work as in plain actix. actix's own mailbox is not used: it does not bound its senders, and its envelopes
//! leave no place for the turn around a handler.
//!
//! **On a handler's panic** the actor ends, its letters are refused, the process goes on. **On stop** the same, after the
//! letters that are there when a graceful stop is asked for.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use actix::fut::ActorFuture;
use actix::{ActorContext, AsyncContext, Context};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, Stream as _};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::RemoteActor;
use super::handles::{Handles, Letter};
use super::host::Ended;
use crate::clock::stream::Stream;
use crate::clock::turn::Turn;
use crate::ids::ActorId;
use crate::mailbox::port::Place;
use crate::mailbox::post::Office;
use crate::mailbox::post::inbox::{Delivery, Inbox, LocalCredits, Parcel, Undelivered};

mod channel;
pub use channel::{Channel, ChannelError};

/// Letters handled before other tasks of the thread get their turn.
const BATCH: usize = 64;
/// Short handlers share a turn for this long, so that what they send is published together.
const TURN: Duration = Duration::from_micros(20);

/// An actor's mailbox.
pub(super) struct ActorInbox<A: RemoteActor> {
    actor: ActorId,
    place: Place,
    handles: Handles<A>,
    office: Weak<Office>,
    stream: Stream,
    local: Arc<LocalCredits>,
    queue: Mutex<Letters<A>>,
}

struct Letters<A: RemoteActor> {
    letters: VecDeque<Box<dyn Letter<A>>>,
    waker: Option<Waker>,
    /// Stop when empty, and say so once the actor is gone.
    closing: Option<Vec<oneshot::Sender<()>>>,
    closed: bool,
}

/// Stopping an actor of whatever type.
pub(super) trait Close: std::marker::Send + Sync {
    /// Asks the actor to stop once the letters that are here are handled. Resolves when it has stopped, its
    /// `stopped` included.
    fn close(&self) -> oneshot::Receiver<()>;
}

/// Owned by the task that runs an actor, and dropped after the actor: whoever asked for its stop is told then.
pub(super) struct Running<A: RemoteActor>(Arc<ActorInbox<A>>);

impl<A: RemoteActor> ActorInbox<A> {
    pub(super) fn new(actor: ActorId, place: Place, office: &Arc<Office>, stream: Stream) -> Arc<Self> {
        Arc::new(ActorInbox {
            actor,
            place,
            handles: Handles::of(),
            office: Arc::downgrade(office),
            stream,
            local: LocalCredits::new(place.capacity),
            queue: Mutex::new(Letters {
                letters: VecDeque::new(),
                waker: None,
                closing: None,
                closed: false,
            }),
        })
    }

    fn push(&self, letter: Box<dyn Letter<A>>) -> Result<(), Box<dyn Letter<A>>> {
        let waker = {
            let mut queue = self.queue.lock();
            if queue.closed {
                return Err(letter);
            }
            queue.letters.push_back(letter);
            queue.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

impl<A: RemoteActor> Close for ActorInbox<A> {
    fn close(&self) -> oneshot::Receiver<()> {
        let (done, stopped) = oneshot::channel();
        let waker = {
            let mut queue = self.queue.lock();
            queue.closing.get_or_insert_default().push(done);
            queue.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        stopped
    }
}

impl<A: RemoteActor> Running<A> {
    pub(super) fn new(inbox: Arc<ActorInbox<A>>) -> Self {
        Running(inbox)
    }
}

impl<A: RemoteActor> Drop for Running<A> {
    fn drop(&mut self) {
        let closing = self.0.queue.lock().closing.take();
        for done in closing.into_iter().flatten() {
            // Whoever asked for the stop may have given up.
            let _ = done.send(());
        }
    }
}

impl<A: RemoteActor> Inbox for ActorInbox<A> {
    fn actor(&self) -> ActorId {
        self.actor
    }

    fn capacity(&self) -> u32 {
        self.place.capacity
    }

    fn deliver(&self, delivery: Delivery<'_>) -> Result<(), Undelivered> {
        let Some(office) = self.office.upgrade() else { return Err(Undelivered::Stopped) };
        for tensor in &delivery.tensors {
            tensor.lease().set_home(&self.stream);
        }
        let letter = self.handles.decode(&office, delivery)?;
        self.push(letter).map_err(|_| Undelivered::Stopped)
    }

    fn offer(&self, key: u64, parcel: Parcel) -> Result<(), (Parcel, Undelivered)> {
        if self.local.is_closed() {
            return Err((parcel, Undelivered::Stopped));
        }
        let letter = self.handles.accept(key, parcel)?;
        if self.push(letter).is_err() {
            // It stopped between the two looks: the letter's receipt has told the sender who asked.
            tracing::debug!(actor = %self.actor, "a message came as its actor stopped");
        }
        Ok(())
    }

    fn local(&self) -> &Arc<LocalCredits> {
        &self.local
    }
}

/// The task in the actor's context that empties the mailbox.
pub(super) struct InboxTask<A: RemoteActor> {
    inbox: Arc<ActorInbox<A>>,
    /// Handlers whose results have not resolved.
    pending: FuturesUnordered<LocalBoxFuture<'static, ()>>,
    failure: Option<String>,
    ended: Option<Ended>,
}

impl<A: RemoteActor> InboxTask<A> {
    pub(super) fn new(inbox: Arc<ActorInbox<A>>, ended: Ended) -> Self {
        InboxTask { inbox, pending: FuturesUnordered::new(), failure: None, ended: Some(ended) }
    }

    /// Handles letters until the batch or the mailbox is empty; true if there are more.
    fn handle_some(&mut self, actor: &mut A, ctx: &mut Context<A>) -> bool {
        let mut turn = Turn::begin_on(&self.inbox.stream);
        let mut since: Option<Instant> = None;
        for _ in 0..BATCH {
            if ctx.waiting() {
                return false; // the context polls again when what it waits for is done
            }
            let Some(letter) = self.inbox.queue.lock().letters.pop_front() else { return false };
            let name = letter.name();
            match catch_unwind(AssertUnwindSafe(|| {
                letter.open(actor, ctx, &self.inbox.stream, &self.inbox.office)
            })) {
                Ok(None) => {}
                Ok(Some(result)) => self.pending.push(result),
                Err(panic) => {
                    self.failure =
                        Some(format!("its handler of {name} panicked: {}", panic_text(panic.as_ref())));
                    ctx.terminate();
                    return false;
                }
            }
            if since.get_or_insert_with(Instant::now).elapsed() > TURN {
                drop(turn);
                turn = Turn::begin_on(&self.inbox.stream);
                since = None;
            }
        }
        true
    }
}

impl<A: RemoteActor> ActorFuture<A> for InboxTask<A> {
    type Output = ();

    fn poll(
        mut self: Pin<&mut Self>,
        actor: &mut A,
        ctx: &mut Context<A>,
        task: &mut std::task::Context<'_>,
    ) -> Poll<()> {
        self.inbox.queue.lock().waker = Some(task.waker().clone());
        while let Poll::Ready(Some(())) = Pin::new(&mut self.pending).poll_next(task) {}
        if self.handle_some(actor, ctx) {
            task.waker().wake_by_ref();
        }
        if self.failure.is_some() {
            return Poll::Ready(());
        }
        while let Poll::Ready(Some(())) = Pin::new(&mut self.pending).poll_next(task) {}
        let finished = {
            let queue = self.inbox.queue.lock();
            queue.closing.is_some() && queue.letters.is_empty() && self.pending.is_empty()
        };
        if finished && !ctx.waiting() {
            ctx.stop();
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl<A: RemoteActor> Drop for InboxTask<A> {
    fn drop(&mut self) {
        self.inbox.local.close();
        if let Some(office) = self.inbox.office.upgrade() {
            office.withdraw(self.inbox.place.index);
        }
        let letters = {
            let mut queue = self.inbox.queue.lock();
            queue.closed = true;
            queue.waker = None;
            std::mem::take(&mut queue.letters)
        };
        // Each refuses for itself, and lets its leases go (LEASE-2).
        drop(letters);
        let failure =
            self.failure.take().or_else(|| std::thread::panicking().then(|| "it panicked".to_owned()));
        if let Some(ended) = self.ended.take() {
            ended(failure);
        }
    }
}

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn Any + std::marker::Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("something that is no text")
}
