//! Feeds objects of the program to a pipeline as its source: each object that the program iterates over goes
//! to the source's worker in a message.
//!
//! That worker holds an actor, which takes the items, and the pipeline's source, which the pipeline asks for
//! the next one. Between the two is a queue. An item is answered when the source has taken it, or has ended,
//! so only the actor's mailbox is ahead of the source.
//!
//! **Locks.** The list's and the queue's, each held for as long as a look takes; a source that waits
//! releases the queue's. **On a crash** of the worker the sender gets an error, as every sender does, and the
//! pipeline fails: there is nothing to begin anew from.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use tensorpost_core::__private::{actix, anyhow};
use tensorpost_core::actor::{Address, Env, Handles, RemoteActor};
use tensorpost_core::api::message::GpuMessage;
use tensorpost_core::bindings::RawItem;
use tensorpost_core::node::{ActorError, Node, Spawned};
use tensorpost_core::os::PerProcess;
use tensorpost_core::os::lock::{Condvar, Mutex};
use tensorpost_pipeline::Source;
use tokio::sync::oneshot;

use actix::{Actor, Context as ActorContext, Handler, ResponseFuture};

use crate::context::Context;
use crate::encode;
use crate::failure::exception;
use crate::plan::Plan;
use crate::wait;

/// Items that wait ahead of the source, in its actor's mailbox.
const AHEAD: u32 = 16;

/// The time between two checks of whether the node shuts down.
const STOP_CHECKS: Duration = Duration::from_millis(100);

/// Says that no more items come.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core)]
struct Ended;

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    items: VecDeque<(RawItem, oneshot::Sender<()>)>,
    ended: bool,
    /// The source has ended: items that come now are dropped, and their senders do not wait.
    left: bool,
}

/// The queues of this worker, by the numbers of their sources. They are never removed: a worker has one or
/// two.
static QUEUES: PerProcess<Mutex<BTreeMap<u64, Arc<Queue>>>> = PerProcess::new(Mutex::default);

fn queue(number: u64) -> Arc<Queue> {
    Arc::clone(QUEUES.get().lock().entry(number).or_default())
}

/// The source.
pub(crate) struct Feed {
    queue: Arc<Queue>,
    env: Env,
}

impl Source for Feed {
    type Args = u64;
    type Out = RawItem;

    fn create(number: u64, env: &Env) -> anyhow::Result<Self> {
        Ok(Feed { queue: queue(number), env: env.clone() })
    }

    fn next(&mut self) -> anyhow::Result<Option<RawItem>> {
        let mut state = self.queue.state.lock();
        loop {
            if let Some((item, taken)) = state.items.pop_front() {
                // Its sender may have ended.
                let _ = taken.send(());
                return Ok(Some(item));
            }
            if state.ended || self.env.is_stopping() {
                return Ok(None);
            }
            self.queue.changed.wait_for(&mut state, STOP_CHECKS);
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let left = {
            let mut state = self.queue.state.lock();
            state.left = true;
            std::mem::take(&mut state.items)
        };
        drop(left);
    }
}

/// The actor that takes the items.
pub(crate) struct Feeder(Arc<Queue>);

impl Actor for Feeder {
    type Context = ActorContext<Self>;
}

impl RemoteActor for Feeder {
    type Args = u64;

    fn create(number: u64, _: &Env) -> anyhow::Result<Self> {
        Ok(Feeder(queue(number)))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<RawItem>().message::<Ended>().waits();
    }
}

impl Handler<RawItem> for Feeder {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, item: RawItem, _: &mut ActorContext<Self>) -> Self::Result {
        let (taken, was_taken) = oneshot::channel();
        let mut state = self.0.state.lock();
        let refused = if state.left {
            Some(item)
        } else {
            state.items.push_back((item, taken));
            None
        };
        drop(state);
        drop(refused);
        self.0.changed.notify_all();
        Box::pin(async move {
            // An error means that the source has ended.
            let _ = was_taken.await;
        })
    }
}

impl Handler<Ended> for Feeder {
    type Result = ();

    fn handle(&mut self, _: Ended, _: &mut ActorContext<Self>) {
        self.0.state.lock().ended = true;
        self.0.changed.notify_all();
    }
}

/// Starts the actor in the worker of its source; the worker has this name.
///
/// # Errors
/// The worker has ended, or did not take the actor.
pub(crate) fn start(node: &Node, worker: &str, number: u64) -> Result<Spawned<Feeder>, String> {
    let workers = node.workers();
    let there = workers.iter().rev().find(|status| status.name == worker && status.pid != 0);
    let there = there.ok_or_else(|| format!("the worker of the source `{worker}` has ended"))?;
    let spawn = node.spawn::<Feeder>(number).worker(there.worker).mailbox(AHEAD);
    spawn.label(format!("{worker} feed")).start().map_err(|error: ActorError| error.to_string())
}

/// The program's end of the feed.
#[pyclass(frozen, name = "Feed", module = "tensorpost._native")]
pub(crate) struct PyFeed {
    items: Address<RawItem>,
    ended: Address<Ended>,
    context: Arc<Context>,
}

impl PyFeed {
    pub(crate) fn new(feeder: &Spawned<Feeder>, context: &Arc<Context>) -> Self {
        PyFeed { items: feeder.address(), ended: feeder.address(), context: Arc::clone(context) }
    }
}

#[pymethods]
impl PyFeed {
    /// Sends an item when there is room. Returns false if the source no longer takes items.
    fn send(&self, plan: &Plan, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = value.py();
        let encoded = encode::encode(plan, value, Some(&self.context));
        let (body, tensors) = encoded.map_err(|failure| failure.raise(py, "EncodeError", &plan.name))?;
        let tensors = self.context.shared(py, plan, value, tensors)?;
        let sent = wait::wait(py, Box::pin(self.items.send(RawItem { body, tensors })), None)?;
        Ok(matches!(sent, Some(Ok(()))))
    }

    /// Says that no more items come.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        match wait::wait(py, Box::pin(self.ended.send(Ended)), None)? {
            // A source whose actor is gone has ended too.
            Some(Ok(()) | Err(_)) => Ok(()),
            None => Err(exception(py, "DeadlineError", "the end was not taken".to_owned())),
        }
    }
}
