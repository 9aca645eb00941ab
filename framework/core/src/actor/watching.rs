//! Watching actors and links between them: the ends of [`Lifecycle`] events.
//!
//! * The death of the watched actor is the event. The death of the watcher ends its watching.
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
use crate::os::block_on;
use crate::os::{Inert, PerProcess};
use crate::transport::lifecycle::{EndReason, Lifecycle};
use crate::transport::{Tell, Transport, Watcher};

/// The events of one actor, for the program that started the node: see
/// [`Node::watch`](crate::node::Node::watch).
///
/// It keeps the last [`WATCH_EVENTS`] events. If nobody takes them, the oldest are dropped and counted
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
        // Watched by the address's own node, whichever node is asked: another node has other actors with
        // these numbers.
        address.transport().watch(actor, Watcher { name: None, tell: pass_on(to) });
        Watch { actor, events: Inert::new(events), missed: 0 }
    }

    /// Returns the watched actor.
    pub fn actor(&self) -> ActorId {
        self.actor
    }

    /// Returns the next event, or `None` after the last one ([`Lifecycle::is_final`]), when the node has
    /// ended, and in a forked child.
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

    /// As [`recv`](Self::recv), but blocks the thread.
    pub fn blocking_recv(&mut self) -> Option<Lifecycle> {
        block_on(self.recv())
    }

    /// Returns the next event if there is one.
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

    /// Returns how many events were dropped because nobody took them in time, as far as [`recv`](Self::recv)
    /// has come.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

fn pass_on(to: broadcast::Sender<Lifecycle>) -> Tell {
    // An error means that nobody is left to take the event.
    Box::new(move |event, _| to.send(event.clone()).is_ok())
}

impl Env {
    /// Tells `to` the events of the actor behind `address` from now on: when a life of it ends, when the next
    /// one takes messages, and when its supervisor gives up. If the actor is down at this moment, that is the
    /// first event.
    ///
    /// Usually `to` is this actor, which lists [`Lifecycle`] among its messages:
    /// `env.watch(&other, &env.address())`. Events wait for room in its mailbox, at most [`WATCH_EVENTS`] of
    /// them. The oldest beyond that are dropped, and the log says how many (MBX-2). The watching ends with
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
        // Without the thread nobody takes the events, and the watching ends with the first one.
        let _ = carrier().map(|carrier| carrier.send((queue, to.clone())));
        let watcher =
            Watcher { name: named("watch", to.transport(), address, recipient), tell: pass_on(events) };
        address.transport().watch(address.actor(), watcher);
    }

    /// Makes this actor fail whenever the actor behind `address` fails, from now on; then its own restart
    /// policy decides. A normal stop of the other changes nothing here. If the other is between two lives at
    /// this moment, nothing happens. If it is gone for good, this actor fails.
    ///
    /// If neither of two actors makes sense without the other, let each link the other, or use a
    /// [group](crate::node::Node::group), which also begins their next lives together.
    pub fn link<M: GpuMessage>(&self, address: &Address<M>) {
        let Some(inbox) =
            self.transport.actors.inbox(self.location.index).filter(|inbox| inbox.actor() == self.actor)
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

/// Returns the name of a watcher for `to`, an actor of the node of `of`. An actor of another node has none,
/// because its number belongs to another actor there.
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

/// Returns the queue of the process's thread that carries events. A mailbox may be full for long, and nobody
/// else may wait for it.
fn carrier() -> Option<&'static UnboundedSender<Route>> {
    // The channel is unbounded only in form: it gets one route for each call of `watch`.
    static CARRIER: PerProcess<Option<UnboundedSender<Route>>> = PerProcess::new(|| {
        let log = |error: &std::io::Error| tracing::error!(%error, "there is no thread to tell watchers on");
        start().inspect_err(log).ok()
    });
    fn start() -> std::io::Result<UnboundedSender<Route>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (routes, mut new) = unbounded_channel::<Route>();
        let carrying = async move {
            while let Some((queue, to)) = new.recv().await {
                tokio::spawn(carry(queue, to));
            }
        };
        let thread = std::thread::Builder::new().name("tp-watch".to_owned());
        thread.spawn(move || runtime.block_on(carrying))?;
        Ok(routes)
    }
    CARRIER.get().as_ref()
}
