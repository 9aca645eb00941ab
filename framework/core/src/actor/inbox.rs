//! The mailbox of an actor.
//!
//! Envelopes queue here. A [task](InboxTask) in the actor's own context takes all of them at once and calls
//! the handlers, so `ctx.wait` and `ctx.stop` work as in plain actix. The framework does not use actix's own
//! mailbox, because that does not bound its senders, and its envelopes leave no place for the turn around a
//! handler.
//!
//! The credits that this process granted its senders bound the queue, so the reader never stops at one full
//! mailbox, and other actors go on. The price: a mailbox with n sending processes can hold n times its
//! capacity.
//!
//! A turn may span several short handlers, for 20 us: publishing a tail per message costs more
//! than the messages do.
//!
//! * When a handler panics, the actor ends, its envelopes are refused, and the process goes on.
//! * A stop does the same. A graceful stop first handles the envelopes that are there when it is asked for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::handed_off::HandedOff;
use super::handles::{AnyEnvelope, Handles};
use super::process_actors::How;
use super::receive::Receive;
use super::{Env, RemoteActor};
use crate::ids::{ActorId, DeviceId};
use crate::observe::hang_probe::{ActorProbe, count_note};
use crate::observe::metrics::{ActorMetrics, Meter, Tally};
use crate::observe::trace::{Of, Tracer};
use crate::os::{Birth, fork};
use crate::stream::Stream;
use crate::transport::Transport;
use crate::transport::control_channel::Location;
use crate::transport::inbox::{Delivery, Inbox, LocalCredits, LocalMessage, Undelivered};
use crate::transport::lifecycle::EndReason;

mod channel;
mod task;
#[cfg(all(test, feature = "testing", feature = "bindings"))]
mod tests;
pub use channel::{Channel, ChannelError};
pub(super) use task::InboxTask;

/// An actor's mailbox.
pub(super) struct ActorInbox<A: RemoteActor> {
    actor: ActorId,
    name: String,
    device: DeviceId,
    location: Location,
    meter: Meter,
    tally: Arc<Tally>,
    /// Set only if the node detects hangs. Written only by the actor's thread.
    activity: Option<MailboxActivity>,
    handles: Handles<A>,
    transport: Weak<Transport>,
    stream: Stream,
    receive: Receive,
    local: Arc<LocalCredits>,
    how: How,
    /// Messages whose handlers are elsewhere.
    handed_off: Arc<HandedOff>,
    queue: Mutex<MailboxQueue<A>>,
    /// The number of envelopes in the queue. Written under its lock.
    queued: AtomicUsize,
    /// The number of envelopes that the task has taken out and not opened. Written only by the task.
    taken: AtomicUsize,
    /// Whether the task may be opening envelopes that it has taken out. Set under the queue's lock.
    opening: AtomicBool,
    birth: Birth,
}

/// The activity of an actor, for hang detection.
#[derive(Default)]
struct MailboxActivity {
    /// Whether a handler is being called.
    handling: AtomicBool,
    /// The number of handlers that have returned and whose results have not resolved.
    unresolved: AtomicUsize,
    /// The number of results that have resolved later.
    resolved: AtomicU64,
}

struct MailboxQueue<A: RemoteActor> {
    envelopes: VecDeque<Queued<A>>,
    waker: Option<Waker>,
    /// If set, the actor stops when the queue is empty, and tells these once it is gone.
    closing: Option<Vec<oneshot::Sender<()>>>,
    /// If set, the actor fails, for a reason outside of it.
    failing: Option<EndReason>,
    closed: bool,
}

struct Queued<A: RemoteActor> {
    envelope: Box<dyn AnyEnvelope<A>>,
    /// Whether the message's tensors may have to be fetched first.
    fetch: bool,
}

/// Stops an actor of any type.
pub(super) trait Close: Send + Sync {
    /// Asks the actor to stop once the envelopes that are here are handled. Resolves when it has stopped, its
    /// `stopped` included.
    fn close(&self) -> oneshot::Receiver<()>;
}

/// Owned by the task that runs an actor, and dropped after the actor. Its drop tells the callers that asked
/// for the actor's stop.
pub(super) struct Running<A: RemoteActor>(Arc<ActorInbox<A>>);

impl<A: RemoteActor> ActorInbox<A> {
    /// Ends a forked child whose handler is done: the actor belongs to its parent.
    #[inline]
    fn end_fork(&self, status: i32) {
        if self.birth.is_inherited() {
            fork::end(status);
        }
    }

    pub(super) fn new(env: &Env, receive: Receive, how: How) -> Arc<Self> {
        let Env { transport, stream, name, actor, location, tally, .. } = env;
        let device = stream.pool().device_id();
        let (actor, location, stream) = (*actor, *location, stream.clocked().clone());
        let handles = Handles::of();
        let tracer = stream.domain().tracer();
        tracer.name(Of::Actor, actor.0, name);
        tracer.name(Of::Stream, u64::from(stream.backend().clock_slot()), name);
        handles.keys().into_iter().for_each(|(name, key)| tracer.name(Of::Message, key, name));
        Arc::new(ActorInbox {
            birth: Birth::here(),
            how,
            actor,
            name: name.clone(),
            device,
            location,
            meter: Meter::default(),
            tally: Arc::clone(tally),
            activity: stream.domain().detects_hangs().then(MailboxActivity::default),
            handles,
            transport: Arc::downgrade(transport),
            stream,
            receive,
            local: LocalCredits::new(location.capacity),
            handed_off: Arc::default(),
            queue: Mutex::new(MailboxQueue {
                envelopes: VecDeque::new(),
                waker: None,
                closing: None,
                failing: None,
                closed: false,
            }),
            queued: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            opening: AtomicBool::new(false),
        })
    }

    /// Takes all envelopes in the queue, if none that was `taken` is left.
    fn take_queued(&self, queue: &mut MailboxQueue<A>, taken: &mut VecDeque<Queued<A>>) {
        if taken.is_empty() {
            std::mem::swap(taken, &mut queue.envelopes);
            self.taken.store(taken.len(), Ordering::Relaxed);
            self.opening.store(!taken.is_empty(), Ordering::Relaxed);
            // Release: a thread that finds none in the queue sees them in `taken`, see `waiting`.
            self.queued.store(0, Ordering::Release);
        }
    }

    /// Returns how many envelopes wait for their handlers. An envelope that is being taken counts twice
    /// rather than not at all.
    fn waiting(&self) -> usize {
        self.queued.load(Ordering::Acquire) + self.taken.load(Ordering::Relaxed)
    }

    fn tracer(&self) -> &Tracer {
        self.stream.domain().tracer()
    }

    /// Notes whether a handler is being called, if hangs are detected.
    fn set_handling(&self, handling: bool) {
        if let Some(activity) = &self.activity {
            count_note();
            activity.handling.store(handling, Ordering::Relaxed);
        }
    }

    /// Returns why an actor that is not ready yet must end, if it must. Later reasons wake the task.
    pub(super) fn told_to_end(&self, waker: &Waker) -> Option<String> {
        let mut queue = self.queue.lock();
        queue.waker = Some(waker.clone());
        let stopped = || queue.closing.is_some().then(|| "it was told to stop".to_owned());
        queue.failing.as_ref().map(ToString::to_string).or_else(stopped)
    }

    /// Takes no more messages, and refuses those that are here. If the actor is `away`, their senders wait
    /// for its next life.
    pub(super) fn shut(&self, away: bool) {
        self.shut_with(away, VecDeque::new());
    }

    /// As [`shut`](Self::shut). The envelopes that the task has `taken` are refused before the others.
    fn shut_with(&self, away: bool, taken: VecDeque<Queued<A>>) {
        self.local.close(away);
        let envelopes = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            queue.waker = None;
            self.queued.store(0, Ordering::Relaxed);
            std::mem::take(&mut queue.envelopes)
        };
        self.taken.store(0, Ordering::Relaxed);
        // Each envelope refuses itself when it drops, and lets its leases go (LEASE-2).
        if away {
            taken.into_iter().chain(envelopes).for_each(|queued| queued.envelope.turn_away());
        } else {
            drop((taken, envelopes));
        }
    }

    /// Hands a peer's envelope past the queue to its handler's sink, if that is elsewhere and no envelope in
    /// the queue must be handled first. The reader calls this, one thread at a time, so one peer's messages
    /// stay in order (ORDER-1).
    #[cfg(feature = "bindings")]
    fn put(&self, envelope: Box<dyn AnyEnvelope<A>>, fetch: bool) -> Result<(), Box<dyn AnyEnvelope<A>>> {
        let is_first = !fetch && self.handed_off.known_sink().is_some() && {
            let queue = self.queue.lock();
            let goes_on = !queue.closed && queue.closing.is_none() && queue.failing.is_none();
            goes_on && queue.envelopes.is_empty() && !self.opening.load(Ordering::Acquire)
        };
        if !is_first {
            return Err(envelope);
        }
        envelope.put(self.actor, &self.stream, &self.handed_off)?;
        self.meter.note(0);
        Ok(())
    }

    fn push(&self, envelope: Box<dyn AnyEnvelope<A>>, fetch: bool) -> Result<(), Box<dyn AnyEnvelope<A>>> {
        let waker = {
            let mut queue = self.queue.lock();
            if queue.closed {
                return Err(envelope);
            }
            queue.envelopes.push_back(Queued { envelope, fetch });
            self.queued.store(queue.envelopes.len(), Ordering::Relaxed);
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

impl<A: RemoteActor> Drop for ActorInbox<A> {
    fn drop(&mut self) {
        self.tracer().forget(Of::Actor, self.actor.0);
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
            // The caller that asked for the stop may have given up.
            let _ = done.send(());
        }
    }
}

impl<A: RemoteActor> Inbox for ActorInbox<A> {
    fn actor(&self) -> ActorId {
        self.actor
    }

    fn capacity(&self) -> u32 {
        self.location.capacity
    }

    fn deliver(&self, delivery: Delivery<'_>) -> Result<(), Undelivered> {
        for tensor in &delivery.tensors {
            tensor.lease().set_home(&self.stream);
        }
        let fetch = self.receive.concerns(&delivery.tensors);
        let envelope = self.handles.decode(delivery)?;
        #[cfg(feature = "bindings")]
        let envelope = match self.put(envelope, fetch) {
            Ok(()) => return Ok(()),
            Err(envelope) => envelope,
        };
        self.push(envelope, fetch).map_err(|_| Undelivered::Stopped)
    }

    fn offer(&self, key: u64, message: LocalMessage) -> Result<(), (LocalMessage, Undelivered)> {
        if self.local.is_closed() {
            return Err((message, Undelivered::Stopped));
        }
        let envelope = self.handles.accept(key, message)?;
        if self.push(envelope, self.receive.may_concern()).is_err() {
            // The actor stopped between the two checks. The envelope's receipt has told a sender that asked.
            tracing::debug!(actor = %self.actor, "a message came as its actor stopped");
        }
        Ok(())
    }

    fn local(&self) -> &Arc<LocalCredits> {
        &self.local
    }

    fn fail(&self, reason: EndReason) {
        let waker = {
            let mut queue = self.queue.lock();
            queue.failing.get_or_insert(reason);
            queue.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn hang_probe(&self) -> Option<ActorProbe> {
        let MailboxActivity { handling, unresolved, resolved } = self.activity.as_ref()?;
        let handling = handling.load(Ordering::Relaxed);
        let (handed_off, answered) = self.handed_off.counts();
        let waiting = if self.handles.may_wait() {
            0
        } else {
            self.waiting() + unresolved.load(Ordering::Relaxed) + handed_off
        };
        Some(ActorProbe {
            actor: self.actor,
            name: self.name.clone(),
            open: (waiting + usize::from(handling)) as u64,
            moved: self.meter.histogram().count() + resolved.load(Ordering::Relaxed) + answered,
            handling,
        })
    }

    fn metrics(&self) -> Option<ActorMetrics> {
        let handler = self.meter.histogram();
        let (busy, longest) = self.meter.total_and_longest();
        let (waits, waited) = self.stream.waits();
        let [emitted, dropped, missed] = self.tally.counts();
        Some(ActorMetrics {
            actor: self.actor,
            name: self.name.clone(),
            device: self.device,
            capacity: self.location.capacity,
            handled: handler.count(),
            emitted,
            dropped,
            missed,
            queued: self.waiting() + self.handed_off.queued(),
            busy,
            longest,
            handler,
            waits,
            waited,
            counted: self.tally.counted(),
            may_wait: self.handles.may_wait(),
        })
    }
}
