//! Stages and sources of pipelines that are written in Python: the actors of pipelines
//! (`tensorpost-pipeline`) run these in a worker that is an interpreter.
//!
//! The pipeline crate keeps all promises of a pipeline, in the same code as for stages of Rust. This module
//! only turns a call of the stage into a call in Python. The two run on threads of their own: the actor's
//! thread may not wait for messages in a call, and the Python thread may. So the actor's thread hands a call
//! over, and waits for its answer.
//!
//! **Invariants.** There is one call at a time, and it is answered once: by Python, or by the end of its
//! thread. The results of a call are sent only when it has succeeded. The reader is on a third thread and
//! never waits for the interpreter.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};

use parking_lot::Mutex;
use pyo3::prelude::*;
use tensorpost_core::__private::anyhow;
use tensorpost_core::actor::Env;
use tensorpost_core::bindings::RawItem;
use tensorpost_core::ids::ProcessId;
use tensorpost_core::node::NodeBuilder;
use tensorpost_core::tensor::TensorError;
use tensorpost_pipeline::bindings::{PythonStage, SOURCE, STAGE, source_of_python, stage_of_python};
use tensorpost_pipeline::{Out, Source, Stage};
use tokio::sync::oneshot;

use crate::encode;
use crate::failure::{self, exception};
use crate::garbage;
use crate::mailbox::{self, Mailbox, PyMailbox, Shown};
use crate::plan::Plan;
use crate::spin::{self, look_for};

/// Bytes of the stack of the Python thread: as for an actor.
const STACK: usize = 8 << 20;

/// A call for Python.
enum Ask {
    Item(RawItem),
    /// All items have come.
    Finish,
    /// Make the next item of a source.
    Next,
}

/// The outcome of a call.
struct Answer {
    made: Vec<RawItem>,
    failed: Option<Failed>,
}

struct Failed {
    why: String,
    /// The process whose death took the data of the call, if one did.
    lost_with: Option<ProcessId>,
}

/// A Python thread that runs a stage.
struct Thread {
    asks: SyncSender<Ask>,
    answers: Receiver<Answer>,
    mailbox: Arc<Mailbox>,
}

impl Thread {
    /// Starts the thread, and waits until the stage is made and prepared.
    async fn start(order: PythonStage, env: &Env) -> anyhow::Result<Self> {
        let (ready, started) = oneshot::channel();
        let mailbox = Mailbox::new(env, ready);
        // A call is answered before the next one comes.
        let (asks, asked) = mpsc::sync_channel(1);
        let (answer, answers) = mpsc::sync_channel(1);
        let (inner, calls) = (Arc::clone(&mailbox), PyCalls::new(asked, answer, &mailbox));
        let thread = std::thread::Builder::new().name(env.name().to_owned()).stack_size(STACK);
        thread.spawn(move || run(&inner, calls, &order))?;
        match started.await {
            Ok(how) => how.map_err(anyhow::Error::msg)?,
            Err(_) => anyhow::bail!(mailbox::SILENT),
        }
        Ok(Thread { asks, answers, mailbox })
    }

    fn call(&self, ask: Ask) -> anyhow::Result<Answer> {
        let ended = || anyhow::anyhow!("its thread of Python has ended; its last words are on stderr");
        self.asks.send(ask).map_err(|_| ended())?;
        let mut answer = next(&self.answers, &self.mailbox).ok_or_else(ended)?;
        match answer.failed.take() {
            None => Ok(answer),
            // In the form in which a stage of Rust reports a loss, so that it is told from a failure of the
            // stage (DEATH-3).
            Some(Failed { why, lost_with: Some(by) }) => {
                Err(anyhow::Error::from(TensorError::Tainted { by }).context(why))
            }
            Some(Failed { why, lost_with: None }) => Err(anyhow::Error::msg(why)),
        }
    }
}

/// Waits for the next value from the other thread; `None` if that has ended. It mostly comes soon, so this
/// thread spins before it sleeps.
fn next<T>(from: &Receiver<T>, mailbox: &Mailbox) -> Option<T> {
    let looked = look_for(&mailbox.context().transport, || match from.try_recv() {
        Ok(came) => Some(Some(came)),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(None),
    });
    looked.unwrap_or_else(|| {
        let came = from.recv().ok();
        spin::came();
        came
    })
}

impl Drop for Thread {
    fn drop(&mut self) {
        // Without a sender of calls the thread ends; its end is waited for, as at the end of an actor.
        let (nobody, _) = mpsc::sync_channel(1);
        self.asks = nobody;
        self.mailbox.close(true);
    }
}

/// Runs the stage, on its Python thread.
fn run(mailbox: &Arc<Mailbox>, calls: PyCalls, order: &PythonStage) {
    let (name, path, own, args) = order.python.order();
    // If the interpreter is ending, so is the process.
    Python::try_attach(|py| {
        let call = || -> PyResult<()> {
            let args = mailbox::bytes(py, args);
            let given = PyMailbox(Arc::clone(mailbox));
            let schemas = (order.takes.as_deref(), order.makes.as_deref());
            let run = py.import("tensorpost._stages")?.getattr("run")?;
            run.call1((given, calls, name, path, own, args, schemas))?;
            Ok(())
        };
        if let Err(error) = call() {
            let why = format!("its thread of Python ended: {error}");
            if !mailbox.started(Err(why)) {
                error.print(py);
            }
        }
    });
    mailbox.ended();
}

/// The calls of a stage, as its Python thread sees them.
#[pyclass(frozen, name = "Calls", module = "tensorpost._native")]
pub(crate) struct PyCalls {
    asked: Mutex<Receiver<Ask>>,
    answer: SyncSender<Answer>,
    mailbox: Arc<Mailbox>,
}

impl PyCalls {
    fn new(asked: Receiver<Ask>, answer: SyncSender<Answer>, mailbox: &Arc<Mailbox>) -> Self {
        PyCalls { asked: Mutex::new(asked), answer, mailbox: Arc::clone(mailbox) }
    }
}

#[pymethods]
impl PyCalls {
    /// Waits for the next call; None if no more come. Blocks.
    fn next(&self, py: Python<'_>) -> Option<PyCall> {
        let ask = py.detach(|| next(&self.asked.lock(), &self.mailbox))?;
        garbage::clear(py);
        failure::begin_call();
        let (kind, item) = match ask {
            Ask::Item(item) => ("item", Some(item)),
            Ask::Finish => ("finish", None),
            Ask::Next => ("next", None),
        };
        let state = State { item, shown: None, made: Vec::new(), answer: Some(self.answer.clone()) };
        Some(PyCall { kind, mailbox: Arc::clone(&self.mailbox), state: Mutex::new(state) })
    }
}

struct State {
    item: Option<RawItem>,
    shown: Option<Shown>,
    made: Vec<RawItem>,
    /// The sender of the answer; `None` once it was sent.
    answer: Option<SyncSender<Answer>>,
}

/// A call of a stage. If it is dropped without an answer, it has failed.
#[pyclass(frozen, name = "Call", module = "tensorpost._native")]
pub(crate) struct PyCall {
    kind: &'static str,
    mailbox: Arc<Mailbox>,
    state: Mutex<State>,
}

impl PyCall {
    fn answer(&self, failed: Option<Failed>) {
        let (answer, made, item, shown) = {
            let mut state = self.state.lock();
            let made = std::mem::take(&mut state.made);
            (state.answer.take(), made, state.item.take(), state.shown.take())
        };
        // The item's leases go back before the end is reported.
        drop((item, shown));
        if let Some(answer) = answer {
            let made = if failed.is_none() { made } else { Vec::new() };
            // The actor waits for the answer, unless it is gone.
            let _ = answer.try_send(Answer { made, failed });
        }
    }
}

#[pymethods]
impl PyCall {
    /// Returns the kind of the call: `"item"`, `"finish"`, or `"next"` for a source.
    #[getter]
    fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the item, once: its tensors go with it.
    fn value(&self, py: Python<'_>, plan: Py<Plan>) -> PyResult<Py<PyAny>> {
        let Some(RawItem { body, tensors }) = self.state.lock().item.take() else {
            return Err(exception(py, "Error", "the item is done with".to_owned()));
        };
        let (value, shown) = Shown::read(py, plan, body, tensors, self.mailbox.context())?;
        self.state.lock().shown = Some(shown);
        Ok(value)
    }

    /// Adds a result.
    fn emit(&self, plan: &Plan, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = value.py();
        let context = self.mailbox.context();
        let encoded = encode::encode(plan, value, Some(context));
        let (body, tensors) = encoded.map_err(|failure| failure.raise(py, "EncodeError", &plan.name))?;
        let tensors = context.shared(py, plan, value, tensors)?;
        self.state.lock().made.push(RawItem { body, tensors });
        Ok(())
    }

    /// Ends the call with success, unless it has written memory that other processes read. A source that has
    /// made nothing in the call has ended.
    fn done(&self, py: Python<'_>) -> PyResult<()> {
        let shown = self.state.lock().shown.take();
        mailbox::check_writes(py, shown, self.mailbox.context())?;
        self.answer(None);
        Ok(())
    }

    /// Ends the call with a failure.
    fn fail(&self, py: Python<'_>, mut why: String) {
        let shown = self.state.lock().shown.take();
        if let Err(error) = mailbox::check_writes(py, shown, self.mailbox.context()) {
            let error = error.value(py).to_string();
            if !why.contains(&error) {
                why = format!("{why}\nBefore that: {error}");
            }
        }
        self.answer(Some(Failed { why, lost_with: failure::lost_with() }));
    }
}

impl Drop for PyCall {
    fn drop(&mut self) {
        let why = "its thread of Python dropped the call".to_owned();
        self.answer(Some(Failed { why, lost_with: None }));
    }
}

/// A stage, or a sink.
pub(crate) struct PyStage {
    order: Option<PythonStage>,
    thread: Option<Thread>,
}

/// A source.
pub(crate) struct PySource(PyStage);

impl PyStage {
    fn new(order: PythonStage) -> Self {
        PyStage { order: Some(order), thread: None }
    }

    async fn start(&mut self, env: &Env) -> anyhow::Result<()> {
        let Some(order) = self.order.take() else { anyhow::bail!("it is prepared once") };
        self.thread = Some(Thread::start(order, env).await?);
        Ok(())
    }

    fn call(&self, ask: Ask) -> anyhow::Result<Answer> {
        let Some(thread) = &self.thread else { anyhow::bail!("it was not prepared") };
        thread.call(ask)
    }
}

impl Stage for PyStage {
    type Args = PythonStage;
    type In = RawItem;
    type Out = RawItem;
    // Also set for a program in Python: tensors of incoming items are brought to the stage's device.
    const WIRE_NAME: Option<&'static str> = Some(STAGE);
    const TAKES_ANY: bool = true;

    fn create(order: PythonStage, _: &Env) -> anyhow::Result<Self> {
        Ok(PyStage::new(order))
    }

    async fn prepare(&mut self, env: &Env) -> anyhow::Result<()> {
        self.start(env).await
    }

    fn process(&mut self, item: RawItem, out: &mut Out<RawItem>) -> anyhow::Result<()> {
        let answer = self.call(Ask::Item(item))?;
        answer.made.into_iter().for_each(|made| out.emit(made));
        Ok(())
    }

    fn finish(&mut self, out: &mut Out<RawItem>) -> anyhow::Result<()> {
        let answer = self.call(Ask::Finish)?;
        answer.made.into_iter().for_each(|made| out.emit(made));
        Ok(())
    }
}

impl Source for PySource {
    type Args = PythonStage;
    type Out = RawItem;
    const WIRE_NAME: Option<&'static str> = Some(SOURCE);

    fn create(order: PythonStage, _: &Env) -> anyhow::Result<Self> {
        Ok(PySource(PyStage::new(order)))
    }

    async fn prepare(&mut self, env: &Env) -> anyhow::Result<()> {
        self.0.start(env).await
    }

    fn next(&mut self) -> anyhow::Result<Option<RawItem>> {
        Ok(self.0.call(Ask::Next)?.made.pop())
    }
}

/// Registers both with the workers of this program.
pub(crate) fn register(builder: NodeBuilder) -> NodeBuilder {
    source_of_python::<PySource>(stage_of_python::<PyStage>(builder))
}
