//! Objects of the program as the source of a pipeline: what the program iterates over goes to the source's
//! worker, one message for each.
//!
//! In that worker are an actor, which takes the items, and the pipeline's source, which the pipeline asks for
//! the next one; between the two is a queue. An item is answered when the source has taken it, or has gone,
//! so the mailbox of the actor is all that is ahead.
//!
//! **Locks.** The list's and the queue's, for as long as a look takes; a source that waits lets go of it.
//! **On a crash** of the worker the sender is told as every sender is, and the pipeline fails: there is
//! nothing to begin anew from.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use tensorpost_core::__private::{actix, anyhow};
use tensorpost_core::actor::{Address, Env, Handles, RemoteActor};
use tensorpost_core::api::message::GpuMessage;
use tensorpost_core::foreign::RawItem;
use tensorpost_core::node::{ActorError, Node, Spawned};
use tensorpost_core::os::PerProcess;
use tensorpost_pipeline::Source;
use tokio::sync::oneshot;

use actix::{Actor, Context as ActorContext, Handler, ResponseFuture};

use crate::context::Context;
use crate::encode;
use crate::failure::exception;
use crate::plan::Plan;
use crate::wait;

/// Items ahead of the source, in its actor's mailbox.
const AHEAD: u32 = 16;

/// Between two looks at whether the node shuts down.
const LOOK: Duration = Duration::from_millis(100);

/// Nothing more comes.
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
    /// The source has gone: what comes now is dropped, and its sender waits for nobody.
    left: bool,
}

/// Of this worker, by the numbers of their sources. One that is there stays: a worker has one or two.
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
                // Its sender may have gone.
                let _ = taken.send(());
                return Ok(Some(item));
            }
            if state.ended || self.env.is_stopping() {
                return Ok(None);
            }
            self.queue.changed.wait_for(&mut state, LOOK);
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

/// The actor that takes them.
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
            // An error is the end of the source.
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

/// Starts the actor in the worker of its source, which has this name.
///
/// # Errors
/// The worker has gone, or did not take it.
pub(crate) fn start(node: &Node, worker: &str, number: u64) -> Result<Spawned<Feeder>, String> {
    let workers = node.workers();
    let there = workers.iter().rev().find(|status| status.name == worker && status.pid != 0);
    let there = there.ok_or_else(|| format!("the worker of the source `{worker}` has ended"))?;
    let spawn = node.spawn::<Feeder>(number).worker(there.worker).mailbox(AHEAD);
    spawn.label(format!("{worker} feed")).start().map_err(|error: ActorError| error.to_string())
}

/// The program's end of it.
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
    /// Sends an item, when there is room. False where nobody takes it any more.
    fn send(&self, plan: &Plan, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = value.py();
        let encoded = encode::encode(plan, value, Some(&self.context));
        let (body, tensors) = encoded.map_err(|failure| failure.raise(py, "EncodeError", &plan.name))?;
        let tensors = self.context.shared(py, plan, value, tensors)?;
        let sent = wait::wait(py, Box::pin(self.items.send(RawItem { body, tensors })), None)?;
        Ok(matches!(sent, Some(Ok(()))))
    }

    /// Nothing more comes.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        match wait::wait(py, Box::pin(self.ended.send(Ended)), None)? {
            // A source that has gone has ended.
            Some(Ok(()) | Err(_)) => Ok(()),
            None => Err(exception(py, "DeadlineError", "the end was not taken".to_owned())),
        }
    }
}
