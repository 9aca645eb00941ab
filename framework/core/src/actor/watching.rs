//! Watching actors and being linked to them: the ends of [`Lifecycle`] events.
//!
//! * Death of the watched: that is the event. Death of the watcher: its watching ends with its life.
//! * Close: when the node ends, a [`Watch`] ends too.

use std::sync::{Arc, Weak};

use tokio::runtime::Builder;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{Address, Env};
use crate::ids::ActorId;
use crate::limits::WATCH_EVENTS;
use crate::message::GpuMessage;
use crate::os::{Inert, PerProcess};
use crate::transport::lifecycle::{EndReason, Lifecycle};
use crate::transport::{Tell, Transport, Watcher};

/// The events of one actor, for the program that started the node: see
/// [`Node::watch`](crate::node::Node::watch).
///
/// It keeps the last [`WATCH_EVENTS`] events; where nobody takes them, the oldest are dropped and counted
/// (MBX-2).
#[derive(Debug)]
pub struct Watch {
    actor: ActorId,
    events: Inert<broadcast::Receiver<Lifecycle>>,
    missed: u64,
}

impl Watch {
    /// Begins to watch.
    pub(crate) fn begin<M: GpuMessage>(address: &Address<M>) -> Self {
        let (to, events) = broadcast::channel(WATCH_EVENTS);
        let actor = address.actor();
        // By the address's own node, whichever node is asked: another one has other actors of these numbers.
        address.transport().watch(actor, Watcher { name: None, tell: pass_on(to) });
        Watch { actor, events: Inert::new(events), missed: 0 }
    }

    /// The actor that is watched.
    pub fn actor(&self) -> ActorId {
        self.actor
    }

    /// The next event; `None` after the last one ([`Lifecycle::is_final`]), when the node has ended, and in a
    /// forked child.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn recv(&mut self) -> Option<Lifecycle> {
        while !self.events.is_inherited() {
            match self.events.recv().await {
                Ok(event) => return Some(event),
                Err(RecvError::Lagged(count)) => self.missed = self.missed.saturating_add(count),
                Err(RecvError::Closed) => return None,
            }
        }
        None
    }

    /// [`recv`](Self::recv) that blocks the thread.
    ///
    /// # Panics
    /// Inside an async runtime.
    pub fn blocking_recv(&mut self) -> Option<Lifecycle> {
        while !self.events.is_inherited() {
            match self.events.blocking_recv() {
                Ok(event) => return Some(event),
                Err(RecvError::Lagged(count)) => self.missed = self.missed.saturating_add(count),
                Err(RecvError::Closed) => return None,
            }
        }
        None
    }

    /// The next event if there is one.
    pub fn try_recv(&mut self) -> Option<Lifecycle> {
        while !self.events.is_inherited() {
            match self.events.try_recv() {
                Ok(event) => return Some(event),
                Err(TryRecvError::Lagged(count)) => self.missed = self.missed.saturating_add(count),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return None,
            }
        }
        None
    }

    /// Events that were dropped because nobody took them in time, as far as [`recv`](Self::recv) has come.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

fn pass_on(to: broadcast::Sender<Lifecycle>) -> Tell {
    // An error: nobody is left to take it.
    Box::new(move |event, _| to.send(event.clone()).is_ok())
}

impl Env {
    /// Has `to` told what happens to the actor behind `address` from now on: when a life of it ends, when the
    /// next one takes messages, when its supervisor gives up. If it is down at this moment, that is the first
    /// event.
    ///
    /// Usually `to` is this actor, which lists [`Lifecycle`] among its messages:
    /// `env.watch(&other, &env.address())`. Events wait for room in its mailbox, at most [`WATCH_EVENTS`] of
    /// them; the oldest beyond that are dropped, and the log says how many (MBX-2). The watching ends with
    /// the last event, or when `to` has ended. Watching again for the same `to` changes nothing.
    ///
    /// ```no_run
    /// # use tensorpost::prelude::*;
    /// # #[derive(Serialize, Deserialize, GpuMessage)] struct Frame;
    /// struct Source;
    ///
    /// impl Actor for Source {
    ///     type Context = Context<Self>;
    /// }
    ///
    /// impl RemoteActor for Source {
    ///     type Args = Address<Frame>;
    ///
    ///     fn create(sink: Address<Frame>, env: &Env) -> anyhow::Result<Self> {
    ///         env.watch(&sink, &env.address());
    ///         Ok(Source)
    ///     }
    ///
    ///     fn handles(on: &mut Handles<Self>) {
    ///         on.message::<Lifecycle>();
    ///     }
    /// }
    ///
    /// impl Handler<Lifecycle> for Source {
    ///     type Result = ();
    ///
    ///     fn handle(&mut self, event: Lifecycle, _: &mut Context<Self>) {
    ///         println!("{event}");
    ///     }
    /// }
    /// ```
    pub fn watch<M: GpuMessage>(&self, address: &Address<M>, to: &Address<Lifecycle>) {
        let (events, queue) = broadcast::channel(WATCH_EVENTS);
        let recipient = to.actor();
        // Without the thread nobody takes the events, and the watching ends with the first.
        let _ = carrier().map(|carrier| carrier.send((queue, to.clone())));
        let watcher =
            Watcher { name: named("watch", to.transport(), address, recipient), tell: pass_on(events) };
        address.transport().watch(address.actor(), watcher);
    }

    /// Has this actor fail whenever the one behind `address` goes down for a failure, from now on; then its
    /// own restart policy decides. A normal stop of the other changes nothing here. If the other is between
    /// two lives at this moment, nothing happens; if it is gone for good, this actor fails.
    ///
    /// For two that make no sense without each other, let each link the other, or use a
    /// [group](crate::node::Node::group), which also begins their next lives together.
    pub fn link<M: GpuMessage>(&self, address: &Address<M>) {
        let Some(inbox) =
            self.transport.inbox(self.location.index).filter(|inbox| inbox.actor() == self.actor)
        else {
            return; // this life has ended
        };
        let inbox = Arc::downgrade(&inbox);
        let tell = move |event: &Lifecycle, before: bool| {
            let Some(inbox) = Weak::upgrade(&inbox) else { return false };
            let counts = !before || event.is_final();
            if let Some(reason) = event.failure().filter(|_| counts) {
                inbox.fail(EndReason::Linked(format!("{}: {reason}", event.actor())));
                return false;
            }
            true
        };
        let watcher =
            Watcher { name: named("link", &self.transport, address, self.actor), tell: Box::new(tell) };
        address.transport().watch(address.actor(), watcher);
    }
}

/// The name of a watcher for `to`, an actor of the node of `of`. An actor of another node than the watched
/// one has none: its number is another's there.
fn named<M: GpuMessage>(
    what: &'static str,
    of: &Arc<Transport>,
    watched: &Address<M>,
    to: ActorId,
) -> Option<(&'static str, ActorId)> {
    Arc::ptr_eq(of, watched.transport()).then_some((what, to))
}

/// Sends events to an actor.
async fn carry(mut queue: broadcast::Receiver<Lifecycle>, to: Address<Lifecycle>) {
    loop {
        let mut event = match queue.recv().await {
            Ok(event) => event,
            Err(RecvError::Lagged(count)) => {
                let to = to.actor();
                tracing::warn!(count, %to, "events of a watched actor were dropped: the watcher's mailbox is full");
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        while let Err(error) = to.send(event).await {
            if !error.is_retryable() {
                return;
            }
            event = error.message;
        }
    }
}

type Route = (broadcast::Receiver<Lifecycle>, Address<Lifecycle>);

/// The way to the process's thread that carries events; a mailbox may be full for long, and nobody else may
/// wait for it.
fn carrier() -> Option<&'static UnboundedSender<Route>> {
    // Unbounded only in form: a route for each call of `watch`.
    static CARRIER: PerProcess<Option<UnboundedSender<Route>>> = PerProcess::new(|| {
        let log = |error: &std::io::Error| tracing::error!(%error, "there is no thread to tell watchers on");
        start().inspect_err(log).ok()
    });
    fn start() -> std::io::Result<UnboundedSender<Route>> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let (routes, mut new) = unbounded_channel::<Route>();
        let carrying = async move {
            while let Some((queue, to)) = new.recv().await {
                tokio::spawn(carry(queue, to));
            }
        };
        let thread = std::thread::Builder::new().name("tensorpost-watch".to_owned());
        thread.spawn(move || runtime.block_on(carrying))?;
        Ok(routes)
    }
    CARRIER.get().as_ref()
}
