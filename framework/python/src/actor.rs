//! The Rust actor that stands for a Python actor in a worker: it hands its messages to a Python thread, and
//! fails when that thread says so.

use std::sync::Arc;

use pyo3::prelude::*;
use tensorpost_core::__private::{actix, anyhow};
use tensorpost_core::actor::{Env, Handles, Lifecycle, Python as Start, RemoteActor};
use tensorpost_core::bindings::{RawSink, TakesRaw};
use tensorpost_core::node::NodeBuilder;
use tokio::sync::oneshot;

use actix::dev::{MessageResponse, OneshotSender};
use actix::{Actor, Context, Handler};

use crate::mailbox::{self, Item, Mailbox, PyMailbox};
use crate::stage;

/// The arguments of an interpreter that is a worker. With `-P` it imports nothing from the working directory.
pub(crate) const WORKER: [&str; 3] = ["-P", "-m", "tensorpost.worker"];

/// Bytes of an actor's stack: as much as the main thread has on nearly all systems.
const STACK: usize = 8 << 20;

/// See the module.
pub(crate) struct PyActor {
    order: Option<Start>,
    mailbox: Option<Arc<Mailbox>>,
}

impl Actor for PyActor {
    type Context = Context<Self>;

    fn stopped(&mut self, _: &mut Context<Self>) {
        if let Some(mailbox) = &self.mailbox {
            mailbox.close(true);
        }
    }
}

impl Drop for PyActor {
    fn drop(&mut self) {
        if let Some(mailbox) = &self.mailbox {
            mailbox.close(false);
        }
    }
}

impl RemoteActor for PyActor {
    type Args = Start;

    fn create(order: Start, _: &Env) -> anyhow::Result<Self> {
        Ok(PyActor { order: Some(order), mailbox: None })
    }

    async fn prepare(&mut self, env: &Env) -> anyhow::Result<()> {
        let Some(order) = self.order.take() else { anyhow::bail!("it is prepared once") };
        let (ready, started) = oneshot::channel();
        let mailbox = Mailbox::new(env, ready);
        self.mailbox = Some(Arc::clone(&mailbox));
        let thread = std::thread::Builder::new().name(env.name().to_owned()).stack_size(STACK);
        thread.spawn(move || run(&mailbox, &order))?;
        match started.await {
            Ok(how) => how.map_err(anyhow::Error::msg),
            Err(_) => anyhow::bail!(mailbox::SILENT),
        }
    }

    fn handles(on: &mut Handles<Self>) {
        on.raw().message::<Lifecycle>();
    }
}

/// Runs the actor, on its Python thread, until its mailbox is closed.
fn run(mailbox: &Arc<Mailbox>, order: &Start) {
    let (actor, path, own, args) = order.order();
    // If the interpreter is ending, so is the process.
    Python::try_attach(|py| {
        let call = || -> PyResult<()> {
            let args = mailbox::bytes(py, args);
            let given = PyMailbox(Arc::clone(mailbox));
            py.import("tensorpost._worker")?.call_method1("run", (given, actor, path, own, args))?;
            Ok(())
        };
        if let Err(error) = call() {
            let why = format!("its thread of Python ended: {error}");
            error.print(py);
            // Nobody takes messages out any more, and none may wait here for ever.
            mailbox.broke(why);
        }
    });
    mailbox.ended();
}

impl TakesRaw for PyActor {
    fn sink(&self) -> Arc<dyn RawSink> {
        match &self.mailbox {
            Some(mailbox) => Arc::clone(mailbox) as _,
            // The mailbox is made in `prepare`, before the first message.
            None => unreachable!("an actor of Python is prepared before its first message"),
        }
    }
}

/// The response to an event that goes to Python: it resolves when the event's handler is done.
pub(crate) struct HandedEvent(Option<Arc<Mailbox>>, Lifecycle);

impl MessageResponse<PyActor, Lifecycle> for HandedEvent {
    fn handle(self, _: &mut Context<PyActor>, answer: Option<OneshotSender<()>>) {
        let HandedEvent(mailbox, event) = self;
        if let Some(mailbox) = mailbox {
            mailbox.push(Item::Event(event, answer));
        }
    }
}

impl Handler<Lifecycle> for PyActor {
    type Result = HandedEvent;

    fn handle(&mut self, event: Lifecycle, _: &mut Context<Self>) -> HandedEvent {
        HandedEvent(self.mailbox.clone(), event)
    }
}

/// Makes the settings of a node, and of a worker: both know the actors and stages of Python.
pub(crate) fn builder() -> NodeBuilder {
    stage::register(tensorpost_core::node::Node::builder().actor_as::<PyActor, Start>())
}

/// Runs this process as a worker, and ends it with the worker. Returns if no node has started this process.
#[pyfunction]
pub(crate) fn run_worker(py: Python<'_>) {
    py.detach(|| drop(builder().run_if_worker()));
}
