//! Items that the program sends into a pipeline.
//!
//! The worker of the source holds an actor, which takes the items, and the pipeline's source, which the
//! pipeline asks for the next one. Between the two is a queue. An item is answered when the source has taken
//! it, so only the actor's mailbox is ahead of the source.
//!
//! **Locks.** The table's and the queue's, each held for as long as a look takes; a source that waits
//! releases the queue's. **On a crash** of the worker the sender gets an error, as every sender does, and
//! the pipeline fails: the source has no next life. **On cancellation** the source ends, and drops the items
//! that it has not taken.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use actix::{ActorContext as _, ActorFutureExt as _, AsyncContext as _, WrapFuture as _};
use serde::{Deserialize, Serialize};
use tensorpost_core::api::actor::{Address, Env, Handles, RemoteActor, SendError, SendFailure};
use tensorpost_core::api::message::GpuMessage;
use tensorpost_core::api::node::lock::{Condvar, Mutex};
use tensorpost_core::api::node::{ActorError, block_on};
use tokio::sync::{Notify, oneshot};

use super::flow::{AfterSource, Flow, Pipeline};
use super::hosts::Home;
use super::item::Item;
use super::stages::Identity;
use super::traits::Source;
use super::work::{Site, SourceWork, StageWork, Starter, Work};

/// Items that wait ahead of the source, in its actor's mailbox, per sending process.
const AHEAD: u32 = 16;

/// Sends items into a pipeline: see [`Pipeline::input`]. The source ends when all clones have been dropped.
pub struct Input<T: Item>(Arc<Sending<T>>);

struct Sending<T: Item> {
    to: Mutex<Option<(Address<T>, Address<Ended>)>>,
}

impl Pipeline {
    /// Adds a source that this program feeds. `send` waits while the pipeline is full. The source has no
    /// replicas and no restart policy: each item is sent once, to one place.
    ///
    /// ```
    /// # use tensorpost::prelude::*;
    /// # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Number(u64);
    /// # fn main() -> anyhow::Result<()> {
    /// let (input, numbers) = Pipeline::new("squares").input("numbers");
    /// let mut squares = numbers.map("square", |Number(n)| Ok(Number(n * n))).start_here()?;
    /// input.blocking_send(Number(7))?;
    /// assert_eq!(squares.into_iter().next().map(|Number(n)| n), Some(49));
    /// drop(input); // that is its end
    /// squares.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn input<T: Item>(&self, name: &str) -> (Input<T>, Flow<T, AfterSource>) {
        let sending = Arc::new(Sending { to: Mutex::new(None) });
        let work = Rc::new(InputWork(Arc::downgrade(&sending)));
        let flow = self.begin(name, work);
        (Input(sending), flow.own_thread().tune(|stage| stage.is_fed = true))
    }
}

impl<T: Item> Input<T> {
    /// Sends an item when there is room.
    ///
    /// # Errors
    /// Gives the item back: there is [no such actor](SendFailure::NoSuchActor) before the pipeline is
    /// started, nor after the source has ended.
    ///
    /// # Cancel safety
    /// Dropping the future may lose the item.
    pub async fn send(&self, item: T) -> Result<(), SendError<T>> {
        let address = self.0.to.lock().as_ref().map(|(items, _)| items.clone());
        match address {
            Some(address) => address.send(item).await,
            None => Err(SendError::new(item, SendFailure::NoSuchActor)),
        }
    }

    /// As [`send`](Self::send), but blocks the thread.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn blocking_send(&self, item: T) -> Result<(), SendError<T>> {
        block_on(self.send(item))
    }
}

impl<T: Item> Drop for Sending<T> {
    fn drop(&mut self) {
        if let Some((_, ended)) = self.to.lock().take() {
            tell_ended(ended);
        }
    }
}

/// Tells a source that no more items come.
fn tell_ended(ended: Address<Ended>) {
    // The message waits for room as items do, and a drop must not wait for that. If the thread cannot be
    // started, the program has to cancel the pipeline.
    let telling = move || drop(block_on(ended.send(Ended)));
    let _ = std::thread::Builder::new().name("tp-input".to_owned()).spawn(telling);
}

/// Says that no more items come.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core)]
struct Ended;

struct InputWork<T: Item>(Weak<Sending<T>>);

impl<T: Item> Work for InputWork<T> {
    fn defer(&self, site: Site<'_>) -> Result<Starter, ActorError> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let feeder = site.node.spawn::<Feeder<T>>(number).mailbox(AHEAD);
        let feeder = feeder.label(format!("{} input", site.config.stage)).defer()?;
        let source = SourceWork::<Fed<T>>(number).defer(site)?;
        let sending = self.0.clone();
        Ok(Box::new(move |home: Home| {
            let started = feeder.start_with(home.worker, tensorpost_core::api::device::DeviceId::HOST)?;
            let to = (started.address(), started.address());
            let over = match sending.upgrade() {
                // The source of an earlier run of this pipeline gets no more.
                Some(sending) => sending.to.lock().replace(to),
                None => Some(to),
            };
            if let Some((_, ended)) = over {
                tell_ended(ended);
            }
            source(home)
        }))
    }

    fn relay(&self) -> Rc<dyn Work> {
        Rc::new(StageWork::<Identity<T>>(std::marker::PhantomData))
    }
}

/// The queue between the actor and the source.
struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// The source has ended and does not come back, so its actor ends too.
    is_over: Notify,
}

struct State<T> {
    items: VecDeque<(T, oneshot::Sender<()>)>,
    /// No more items come.
    ended: bool,
    /// The source has been dropped: items that come now are dropped too.
    left: bool,
}

impl<T> Queue<T> {
    /// Notes that no more items come, and wakes the source.
    fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }
}

/// The queues of this worker, by the numbers of their sources.
static QUEUES: LazyLock<Mutex<HashMap<u64, Box<dyn std::any::Any + Send>>>> = LazyLock::new(Mutex::default);

fn queue<T: Item>(number: u64) -> anyhow::Result<Arc<Queue<T>>> {
    let new = || {
        let state = State { items: VecDeque::new(), ended: false, left: false };
        Box::new(Arc::new(Queue::<T> {
            state: Mutex::new(state),
            changed: Condvar::new(),
            is_over: Notify::new(),
        })) as Box<dyn std::any::Any + Send>
    };
    let mut queues = QUEUES.lock();
    let queue = queues.entry(number).or_insert_with(new).downcast_ref::<Arc<Queue<T>>>().cloned();
    queue.ok_or_else(|| anyhow::anyhow!("the queue of an input has items of another type"))
}

/// The source.
struct Fed<T: Item> {
    number: u64,
    queue: Arc<Queue<T>>,
}

impl<T: Item> Source for Fed<T> {
    type Args = u64;
    type Out = T;

    fn create(number: u64, _: &Env) -> anyhow::Result<Self> {
        Ok(Fed { number, queue: queue(number)? })
    }

    fn next(&mut self) -> anyhow::Result<Option<T>> {
        let mut state = self.queue.state.lock();
        loop {
            if let Some((item, taken)) = state.items.pop_front() {
                // Its sender may have ended.
                let _ = taken.send(());
                return Ok(Some(item));
            }
            if state.ended {
                return Ok(None);
            }
            self.queue.changed.wait(&mut state);
        }
    }
}

impl<T: Item> Drop for Fed<T> {
    fn drop(&mut self) {
        let left = {
            let mut state = self.queue.state.lock();
            state.left = true;
            std::mem::take(&mut state.items)
        };
        drop(left);
        QUEUES.lock().remove(&self.number);
        // It has no next life: the pipeline refuses a restart policy for it.
        self.queue.is_over.notify_one();
    }
}

/// The actor.
struct Feeder<T: Item> {
    queue: Arc<Queue<T>>,
    env: Env,
}

impl<T: Item> actix::Actor for Feeder<T> {
    type Context = actix::Context<Self>;

    /// Ends the actor with its source, so that senders hear of it and the worker has nothing left to do.
    fn started(&mut self, context: &mut actix::Context<Self>) {
        let queue = Arc::clone(&self.queue);
        let over = async move { queue.is_over.notified().await }.into_actor(self);
        context.spawn(over.map(|(), _, context| context.stop()));
        // A cancelled pipeline tells its sources so.
        let stopping = self.env.stopping().into_actor(self);
        context.spawn(stopping.map(|(), feeder, _| feeder.queue.end()));
    }
}

impl<T: Item> Drop for Feeder<T> {
    fn drop(&mut self) {
        // Without its actor the source would wait for ever.
        self.queue.end();
    }
}

impl<T: Item> RemoteActor for Feeder<T> {
    /// The number of the source.
    type Args = u64;

    fn create(number: u64, env: &Env) -> anyhow::Result<Self> {
        Ok(Feeder { queue: queue(number)?, env: env.clone() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<T>().message::<Ended>().waits();
    }
}

impl<T: Item> actix::Handler<T> for Feeder<T> {
    type Result = actix::ResponseFuture<()>;

    fn handle(&mut self, item: T, _: &mut actix::Context<Self>) -> Self::Result {
        let (taken, was_taken) = oneshot::channel();
        let mut state = self.queue.state.lock();
        let refused = if state.left {
            Some(item)
        } else {
            state.items.push_back((item, taken));
            None
        };
        drop(state);
        drop(refused);
        self.queue.changed.notify_all();
        Box::pin(async move {
            // An error means that the source has ended.
            let _ = was_taken.await;
        })
    }
}

impl<T: Item> actix::Handler<Ended> for Feeder<T> {
    type Result = ();

    fn handle(&mut self, _: Ended, _: &mut actix::Context<Self>) {
        self.queue.end();
    }
}

impl<T: Item> Clone for Input<T> {
    fn clone(&self) -> Self {
        Input(Arc::clone(&self.0))
    }
}

impl<T: Item> std::fmt::Debug for Input<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Input<{}>", T::NAME)
    }
}
