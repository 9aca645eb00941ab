//! A node in a Python process: starts actors, and talks to them.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use tensorpost_core::actor::{Channel, Python as Start, Watch};
use tensorpost_core::bindings::RawMessage;
use tensorpost_core::ids::ActorId;
use tensorpost_core::node::{Node, OnHang, Restart, Sharing, WorkerId};
use tracing_subscriber::EnvFilter;

use crate::actor::{WORKER, builder};
use crate::address::PyAddress;
use crate::context::Context;
use crate::decode;
use crate::demo;
use crate::failure::exception;
use crate::mailbox::{Told, looked_up, told};
use crate::plan::Plan;
use crate::rust_workers;
use crate::spawn::{Given, Settings};
use crate::tensor::{self, PyTensor};
use crate::topic;
use crate::wait;

/// A node, until it is closed.
#[pyclass(frozen, name = "Node", module = "tensorpost._native")]
pub(crate) struct PyNode {
    running: Mutex<Option<(Arc<Node>, Arc<Context>)>>,
    /// The workers of its actors.
    workers: Mutex<HashMap<ActorId, WorkerId>>,
}

impl PyNode {
    pub(crate) fn running(&self, py: Python<'_>) -> PyResult<(Arc<Node>, Arc<Context>)> {
        let running = self.running.lock().clone();
        let running =
            running.ok_or_else(|| exception(py, "NodeError", "the node has shut down".to_owned()))?;
        running.1.check_fork(py, "NodeError")?;
        Ok(running)
    }
}

fn sharing_of(py: Python<'_>, sharing: &str) -> PyResult<Sharing> {
    match sharing {
        "isolated" => Ok(Sharing::Isolated),
        "mps" => Ok(Sharing::Mps),
        "auto" => Ok(Sharing::Auto),
        other => {
            let why = format!(r#"sharing={other:?}: there are "isolated", "mps" and "auto""#);
            Err(exception(py, "NodeError", why))
        }
    }
}

fn node_error(py: Python<'_>, error: &dyn std::error::Error) -> PyErr {
    exception(py, "NodeError", error.to_string())
}

/// Sends the log of the node and its workers to stderr, unless the process has a subscriber.
fn install_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    // Colours are for terminals; programs read log files.
    let is_plain =
        !std::io::stderr().is_terminal() || std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(!is_plain);
    // An existing subscriber stays.
    let _ = log.try_init();
}

#[pymethods]
impl PyNode {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python calls it, by their names")]
    #[pyo3(signature = (*, host_budget=None, sharing=None, interpreter="python3".into(), start_deadline=None, worker_log=None, hang_limit=None, trace=None, console=true, gpu_budget=None, gpu_share=None))]
    fn new(
        py: Python<'_>,
        host_budget: Option<u64>,
        sharing: Option<&str>,
        interpreter: PathBuf,
        start_deadline: Option<f64>,
        worker_log: Option<String>,
        hang_limit: Option<f64>,
        trace: Option<PathBuf>,
        console: bool,
        gpu_budget: Option<u64>,
        gpu_share: Option<f64>,
    ) -> PyResult<Self> {
        install_log();
        let mut settings = builder().console(console);
        if let Some(sharing) = sharing {
            settings = settings.sharing(sharing_of(py, sharing)?);
            settings = settings.mps_keeper(interpreter, &WORKER);
        }
        if let Some(bytes) = host_budget {
            settings = settings.host_budget(bytes);
        }
        if let Some(bytes) = gpu_budget {
            settings = settings.gpu_budget(bytes);
        }
        if let Some(share) = gpu_share {
            settings = settings.gpu_share(share);
        }
        if let Some(deadline) = wait::seconds(py, start_deadline)? {
            settings = settings.start_deadline(deadline);
        }
        if let Some(log) = worker_log {
            settings = settings.worker_log(log);
        }
        if let Some(limit) = wait::seconds(py, hang_limit)? {
            settings = settings.hang_limit(limit, OnHang::Report);
        }
        if let Some(path) = trace {
            settings = settings.trace(path);
        }
        let started = py.detach(|| {
            let node = settings.start().map_err(|error| error.to_string())?;
            let stream = node.host_stream().map_err(|error| error.to_string())?;
            Ok((node, stream))
        });
        let (node, stream) = started.map_err(|why: String| exception(py, "NodeError", why))?;
        let context = Context::of_node(Arc::clone(node.transport()), stream);
        let running = Mutex::new(Some((Arc::new(node), context)));
        Ok(PyNode { running, workers: Mutex::default() })
    }

    /// Starts an actor in a worker of its own or in that of another actor, and waits until it takes messages.
    #[expect(clippy::too_many_arguments, reason = "Python calls it")]
    fn spawn(
        &self,
        py: Python<'_>,
        actor: String,
        args: Vec<u8>,
        interpreter: Vec<PathBuf>,
        environment: Vec<(String, String)>,
        beside: Option<&PyAddress>,
        settings: Given,
    ) -> PyResult<PyAddress> {
        let (node, context) = self.running(py)?;
        let known = |beside: &PyAddress| {
            self.owns(py, beside)?;
            self.workers.lock().get(&beside.raw.actor()).copied().ok_or_else(|| {
                let who = beside.raw.actor();
                let why = format!("beside={who}: this node has started no such actor of Python");
                exception(py, "SpawnError", why)
            })
        };
        let worker = beside.map(known).transpose()?;
        let settings = Settings::read(py, settings)?;
        // On another thread, so that Ctrl-C ends the wait.
        let started = wait::aside(py, move || {
            let mut start = Start::actor(actor).with_own_args(args).command(interpreter.into_iter());
            for (name, value) in environment {
                start = start.env(name, value);
            }
            let mut spawn = settings.give(node.spawn::<Start>(start));
            if let Some(worker) = worker {
                spawn = spawn.worker(worker);
            }
            spawn.start().map(|started| (started, settings))
        })?;
        let (started, settings) = started.map_err(|error| exception(py, "SpawnError", error.to_string()))?;
        self.workers.lock().insert(started.actor(), started.worker());
        Ok(settings.address(&started, context))
    }

    /// Starts a topic in a worker of its own, and waits until it takes messages. `value` is the name, the
    /// canonical text and the key of the messages that it keeps, `question` the key of the question for them,
    /// and `program` an interpreter with the file of this extension.
    fn topic(
        &self,
        py: Python<'_>,
        value: (String, String, u64),
        question: u64,
        program: (String, String),
        environment: Vec<(String, String)>,
        settings: Given,
    ) -> PyResult<PyAddress> {
        let (name, schema, value) = value;
        let program = Some(rust_workers::worker(&program.0, &program.1, environment));
        topic::start(py, self.running(py)?, topic::Start { name, schema, value, question, program }, settings)
    }

    /// Raises if an address belongs to another node: that node's actor numbers mean other actors here.
    fn owns(&self, py: Python<'_>, address: &PyAddress) -> PyResult<()> {
        if Arc::ptr_eq(&address.context.transport, &self.running(py)?.1.transport) {
            return Ok(());
        }
        let why = format!(
            "the address of {} is of another node of this program, and no actor of this one has a way to it; give the address of an actor \
             or a channel of this node, which sends the messages on",
            address.raw.actor()
        );
        Err(exception(py, "SpawnError", why))
    }

    /// Starts the Rust actor of the demonstration.
    fn spawn_demo(&self, py: Python<'_>, interpreter: String, next: &PyAddress) -> PyResult<PyAddress> {
        let (node, context) = self.running(py)?;
        demo::spawn(py, &node, &context, interpreter, next)
    }

    /// Makes a mailbox in this process, for messages of one type.
    fn channel(&self, py: Python<'_>, plan: Py<Plan>, key: u64) -> PyResult<(PyAddress, PyChannel)> {
        let (node, context) = self.running(py)?;
        let (raw, channel) = py.detach(|| node.raw_channel(key)).map_err(|error| node_error(py, &error))?;
        let address = PyAddress::new(raw.only(vec![key]), Arc::clone(&context));
        Ok((address, PyChannel { channel: Mutex::new(Some(channel)), plan, context }))
    }

    /// Makes a tensor in the pool of this process, to be written.
    fn empty(&self, py: Python<'_>, shape: Vec<usize>, dtype: &str) -> PyResult<PyTensor> {
        let (_, context) = self.running(py)?;
        tensor::empty(py, &context, shape, dtype)
    }

    /// Whether this process was forked from the node's.
    #[getter]
    fn is_inherited(&self) -> bool {
        self.running.lock().as_ref().is_some_and(|(_, context)| context.transport.is_inherited())
    }

    /// Raises if the node has shut down, or this process was forked from the node's.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.running(py).map(drop)
    }

    /// Returns how tensors were sent from this process.
    fn counts(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        Ok(self.running(py)?.1.counts())
    }

    fn watch(&self, py: Python<'_>, address: &PyAddress) -> PyResult<PyWatch> {
        let (node, context) = self.running(py)?;
        Ok(PyWatch { watch: Mutex::new(Some(node.watch(address.raw.typed()))), context })
    }

    fn lookup(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<PyAddress> {
        let (node, context) = self.running(py)?;
        let timeout = wait::seconds(py, timeout)?;
        let registry = node.registry();
        let found = wait::wait(py, Box::pin(registry.lookup::<RawMessage>(name)), timeout)?;
        looked_up(py, found, name, &context)
    }

    fn register(&self, py: Python<'_>, name: &str, address: &PyAddress) -> PyResult<()> {
        let (node, _) = self.running(py)?;
        let done = py.detach(|| node.register(name, address.raw.typed()));
        done.map_err(|error| node_error(py, &error))
    }

    /// Returns `(name, process id, state)` of each worker.
    fn workers(&self, py: Python<'_>) -> PyResult<Vec<(String, u32, String)>> {
        let (node, _) = self.running(py)?;
        let workers = py.detach(|| node.workers());
        Ok(workers
            .into_iter()
            .map(|worker| (worker.name, worker.pid, format!("{:?}", worker.state)))
            .collect())
    }

    /// Returns `(worker, restarts, why each of its lives ended)`.
    fn restarts(&self, py: Python<'_>) -> PyResult<Vec<(String, u32, Vec<String>)>> {
        let (node, _) = self.running(py)?;
        let report = py.detach(|| node.report()).map_err(|error| node_error(py, &error))?;
        let ends = |ends: Vec<_>| ends.iter().map(ToString::to_string).collect();
        let rows = report.restarts.into_iter();
        Ok(rows.map(|worker| (worker.name, worker.restarts, ends(worker.ends))).collect())
    }

    /// Waits until a shutdown begins, for example by `tensorpost stop`.
    fn until_stopping(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let (node, _) = self.running(py)?;
        let timeout = wait::seconds(py, timeout)?;
        Ok(wait::wait(py, Box::pin(node.transport().until_stopping()), timeout)?.is_some())
    }

    /// Lets everything under way finish, and ends the node. A second Ctrl-C ends it at once.
    fn shutdown(&self, py: Python<'_>, deadline: f64) -> PyResult<Option<(bool, String)>> {
        if self.running.lock().is_none() {
            return Ok(None);
        }
        self.running(py)?;
        // Before the node is taken: a node with a wrong deadline goes on.
        let deadline = wait::seconds(py, Some(deadline))?.unwrap_or(Duration::ZERO);
        let Some((node, context)) = self.running.lock().take() else { return Ok(None) };
        drop(context);
        let ending = Arc::clone(&node);
        let ended = wait::aside(py, move || {
            let report = ending.shutdown(deadline);
            drop(ending);
            report
        });
        let interrupted = match ended {
            Ok(report) => {
                py.detach(|| drop(node));
                let report = report.map_err(|error| node_error(py, &error))?;
                return Ok(Some((report.drained, report.to_string())));
            }
            Err(interrupted) => interrupted,
        };
        node.supervisor().kill_all();
        py.detach(|| drop(node));
        Err(interrupted)
    }
}

impl Drop for PyNode {
    fn drop(&mut self) {
        if let Some(running) = self.running.lock().take() {
            // Values that are dropped with the node may need the interpreter.
            Python::try_attach(|py| py.detach(|| drop(running)));
        }
    }
}

/// `(kind, budget, window, (first, most))`, with times in seconds.
pub(crate) type Policy = (String, u32, Option<f64>, Option<(f64, f64)>);

pub(crate) fn policy(py: Python<'_>, (kind, budget, window, backoff): Policy) -> PyResult<Restart> {
    let mut policy = match kind.as_str() {
        "failure" => Restart::on_failure(budget),
        "always" => Restart::always(budget),
        _ => Restart::never(),
    };
    if let Some(window) = wait::seconds(py, window)? {
        policy = policy.within(window);
    }
    if let Some((first, most)) = backoff {
        let time = |seconds| wait::seconds(py, Some(seconds)).map(Option::unwrap_or_default);
        policy = policy.backoff(time(first)?, time(most)?);
    }
    Ok(policy)
}

/// A mailbox that the program itself reads.
#[pyclass(frozen, name = "Channel", module = "tensorpost._native")]
pub(crate) struct PyChannel {
    channel: Mutex<Option<Channel<RawMessage>>>,
    plan: Py<Plan>,
    context: Arc<Context>,
}

impl PyChannel {
    fn next(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<RawMessage> {
        self.context.check_fork(py, "NodeError")?;
        let mut taken = self.channel.lock().take().ok_or_else(|| {
            exception(
                py,
                "NodeError",
                "the channel was closed, or another thread receives from it".to_owned(),
            )
        })?;
        let received = wait::wait(py, Box::pin(taken.recv()), timeout);
        *self.channel.lock() = Some(taken);
        match received? {
            None => {
                let limit = self.context.transport.held_to_the_limit();
                let why = limit.map_or_else(String::new, |limit| format!(": {limit}"));
                Err(exception(py, "DeadlineError", format!("no message came before the deadline{why}")))
            }
            Some(Err(error)) => Err(node_error(py, &error)),
            Some(Ok(message)) => Ok(message),
        }
    }
}

#[pymethods]
impl PyChannel {
    /// Waits for the next message.
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let timeout = wait::seconds(py, timeout)?;
        let message = self.next(py, timeout)?;
        let plan = self.plan.get();
        let value = decode::arrived(plan, py, &message.body, message.tensors, &self.context, None);
        value.map(Bound::unbind).map_err(|failure| failure.raise(py, "DecodeError", &plan.name))
    }

    /// Waits for the next message and drops it; raises if there will be none.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        self.next(py, None).map(drop)
    }

    /// Takes no more messages: senders are told that there is no such actor.
    fn close(&self, py: Python<'_>) {
        let channel = self.channel.lock().take();
        py.detach(|| drop(channel));
    }
}

/// The events of one actor.
#[pyclass(frozen, name = "Watch", module = "tensorpost._native")]
pub(crate) struct PyWatch {
    watch: Mutex<Option<Watch>>,
    context: Arc<Context>,
}

#[pymethods]
impl PyWatch {
    /// Waits for the next event; None after the last one.
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Told>> {
        self.context.check_fork(py, "NodeError")?;
        let timeout = wait::seconds(py, timeout)?;
        let mut taken = self.watch.lock().take().ok_or_else(|| {
            exception(py, "NodeError", "another thread waits for the next event".to_owned())
        })?;
        let received = wait::wait(py, Box::pin(taken.recv()), timeout);
        *self.watch.lock() = Some(taken);
        match received? {
            None => Err(exception(py, "DeadlineError", "nothing happened before the deadline".to_owned())),
            Some(event) => Ok(event.as_ref().map(told)),
        }
    }
}
