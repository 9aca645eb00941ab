//! A stage of a pipeline that is written in Python, and a source: what the actors of pipelines
//! (`tensorpost-pipeline`) run in a worker that is an interpreter.
//!
//! Everything that a pipeline promises is kept there, in the same code as for stages of Rust: what is here
//! makes a call in Python of a call of the stage. The two run on threads of their own: this one is the
//! actor's, which may not wait for messages in a call, and the thread of Python may. So a call is handed
//! over, and waited for.
//!
//! **Invariants.** One call at a time, answered once: by what Python says, or by the end of its thread. What
//! a call has made goes nowhere before it has ended well. The reader is on a third thread and never waits for
//! the interpreter.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};

use parking_lot::Mutex;
use pyo3::prelude::*;
use tensorpost_core::__private::anyhow;
use tensorpost_core::actor::Env;
use tensorpost_core::foreign::RawItem;
use tensorpost_core::ids::ProcessId;
use tensorpost_core::node::NodeBuilder;
use tensorpost_core::tensor::TensorError;
use tensorpost_pipeline::foreign::{Order, SOURCE, STAGE, source_of_python, stage_of_python};
use tensorpost_pipeline::{Out, Source, Stage};
use tokio::sync::oneshot;

use crate::encode;
use crate::failure::{self, exception};
use crate::garbage;
use crate::look::{self, look_for};
use crate::mailbox::{self, Mailbox, PyMailbox, Shown};
use crate::plan::Plan;

/// Bytes of the stack of Python's thread: as an actor's.
const STACK: usize = 8 << 20;

/// What Python is to do.
enum Ask {
    Item(RawItem),
    /// All items have come.
    Finish,
    /// The next item of a source.
    Next,
}

/// What came of it.
struct Answer {
    made: Vec<RawItem>,
    failed: Option<Failed>,
}

struct Failed {
    why: String,
    /// The process whose death took what it was about.
    lost_with: Option<ProcessId>,
}

/// A thread of Python that runs a stage.
struct Thread {
    asks: SyncSender<Ask>,
    answers: Receiver<Answer>,
    mailbox: Arc<Mailbox>,
}

impl Thread {
    /// Starts it, and waits until the stage is made and warm.
    async fn start(order: Order, env: &Env) -> anyhow::Result<Self> {
        let (ready, started) = oneshot::channel();
        let mailbox = Mailbox::new(env, ready);
        // A call is answered before the next one is asked for.
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
            // In the form in which a stage of Rust says it, so that it is told from a failure of the stage
            // (DEATH-3).
            Some(Failed { why, lost_with: Some(by) }) => {
                Err(anyhow::Error::from(TensorError::Tainted { by }).context(why))
            }
            Some(Failed { why, lost_with: None }) => Err(anyhow::Error::msg(why)),
        }
    }
}

/// The next that comes from the other thread, `None` where that has ended. It comes soon, mostly, so it is
/// looked for before this thread sleeps.
fn next<T>(from: &Receiver<T>, mailbox: &Mailbox) -> Option<T> {
    let looked = look_for(&mailbox.context().transport, || match from.try_recv() {
        Ok(came) => Some(Some(came)),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(None),
    });
    looked.unwrap_or_else(|| {
        let came = from.recv().ok();
        look::came();
        came
    })
}

impl Drop for Thread {
    fn drop(&mut self) {
        // Without one who asks its calls end; what it says then is waited for, as at the end of an actor.
        let (nobody, _) = mpsc::sync_channel(1);
        self.asks = nobody;
        self.mailbox.close(true);
    }
}

/// Runs the stage, on its thread of Python.
fn run(mailbox: &Arc<Mailbox>, calls: PyCalls, order: &Order) {
    let (name, path, own, args) = order.python.order();
    // The interpreter's end is the process's.
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

/// The calls of a stage, as its thread of Python has them.
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
    /// The next one; None where no more come. Blocks.
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
    /// Until it is answered.
    answer: Option<SyncSender<Answer>>,
}

/// A call of a stage. One that is dropped without an answer has failed.
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
        // Its leases go back before anybody hears of the end.
        drop((item, shown));
        if let Some(answer) = answer {
            let made = if failed.is_none() { made } else { Vec::new() };
            // The actor waits for it, unless it is gone.
            let _ = answer.try_send(Answer { made, failed });
        }
    }
}

#[pymethods]
impl PyCall {
    /// What is asked for: `"item"`, `"finish"`, or `"next"` of a source.
    #[getter]
    fn kind(&self) -> &'static str {
        self.kind
    }

    /// The item, once: its tensors go with it.
    fn value(&self, py: Python<'_>, plan: Py<Plan>) -> PyResult<Py<PyAny>> {
        let Some(RawItem { body, tensors }) = self.state.lock().item.take() else {
            return Err(exception(py, "Error", "the item is done with".to_owned()));
        };
        let (value, shown) = Shown::read(py, plan, body, tensors, self.mailbox.context())?;
        self.state.lock().shown = Some(shown);
        Ok(value)
    }

    /// One of the results.
    fn emit(&self, plan: &Plan, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = value.py();
        let context = self.mailbox.context();
        let encoded = encode::encode(plan, value, Some(context));
        let (body, tensors) = encoded.map_err(|failure| failure.raise(py, "EncodeError", &plan.name))?;
        let tensors = context.shared(py, plan, value, tensors)?;
        self.state.lock().made.push(RawItem { body, tensors });
        Ok(())
    }

    /// The call has ended well, if it has written nothing that others read. A source that has made nothing in
    /// it has ended.
    fn done(&self, py: Python<'_>) -> PyResult<()> {
        let shown = self.state.lock().shown.take();
        mailbox::check_writes(py, shown, self.mailbox.context())?;
        self.answer(None);
        Ok(())
    }

    /// The call has failed.
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
    order: Option<Order>,
    thread: Option<Thread>,
}

/// A source.
pub(crate) struct PySource(PyStage);

impl PyStage {
    fn new(order: Order) -> Self {
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
    type Args = Order;
    type In = RawItem;
    type Out = RawItem;
    // In a program of Python too: what comes is brought to its device.
    const ELSEWHERE: Option<&'static str> = Some(STAGE);
    const TAKES_ANY: bool = true;

    fn create(order: Order, _: &Env) -> anyhow::Result<Self> {
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
    type Args = Order;
    type Out = RawItem;
    const ELSEWHERE: Option<&'static str> = Some(SOURCE);

    fn create(order: Order, _: &Env) -> anyhow::Result<Self> {
        Ok(PySource(PyStage::new(order)))
    }

    async fn prepare(&mut self, env: &Env) -> anyhow::Result<()> {
        self.0.start(env).await
    }

    fn next(&mut self) -> anyhow::Result<Option<RawItem>> {
        Ok(self.0.call(Ask::Next)?.made.pop())
    }
}

/// Has the workers of this program know both.
pub(crate) fn register(builder: NodeBuilder) -> NodeBuilder {
    source_of_python::<PySource>(stage_of_python::<PyStage>(builder))
}
