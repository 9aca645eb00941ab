//! The mailbox in which the messages of an actor wait for its Python thread.
//!
//! The actor's Rust thread, which is also the process's reader, puts them in and never takes the interpreter.
//! The Python thread takes them out, and releases the interpreter while there are none. A descriptor wakes an
//! event loop.
//!
//! **Invariants.** Each message is answered once: by its handler, by a refusal, or when it is dropped.
//! Messages that wait here when a handler fails are turned away before the actor's end, as if they still
//! stood in the Rust mailbox.
//!
//! **Locks.** One, for as long as it takes to move a message. Messages are dropped outside of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tensorpost_core::actor::{Env, Lifecycle, Python as Start};
use tensorpost_core::bindings::{RawAddress, RawAnswer, RawMessage, RawReply, RawSink, Together, Unanswered};
use tensorpost_core::os::EventFd;
use tensorpost_core::os::lock::{Condvar, Mutex};
use tensorpost_core::tensor::Tensor;
use tokio::sync::oneshot;

use crate::address::PyAddress;
use crate::context::Context;
use crate::failure::exception;
use crate::plan::Plan;
use crate::spawn::{Given, Settings};
use crate::spin::{came, look_for};
use crate::tensor::{self, PyTensor};
use crate::torch::Ledger;
use crate::wait::{self, Driven};
use crate::{cuda, decode, pool, serve};

/// How long a stopped actor waits for its Python thread to end.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// An entry of the mailbox.
pub(crate) enum Item {
    /// A message, and the handle that answers it.
    Message(RawMessage, RawAnswer),
    Event(Lifecycle, Option<oneshot::Sender<()>>),
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    /// No more items come.
    closed: bool,
    /// A handler has failed, and messages that come now go to the next life.
    failed: bool,
    /// The thread has ended.
    ended: bool,
    /// Wakes an event loop.
    bell: Option<Arc<EventFd>>,
    /// Notified when the actor is ready, or of the reason why it is not.
    ready: Option<oneshot::Sender<Result<(), String>>>,
}

/// See the module.
pub(crate) struct Mailbox {
    env: Env,
    context: Arc<Context>,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether the Python thread finds something: an item, or that no more come. Written under the lock of
    /// the state.
    news: AtomicBool,
}

impl Mailbox {
    pub(crate) fn new(env: &Env, ready: oneshot::Sender<Result<(), String>>) -> Arc<Self> {
        let context = Context::new(Arc::clone(env.transport()), env.stream());
        context.watch_sent();
        Arc::new(Mailbox {
            env: env.clone(),
            context,
            state: Mutex::new(State { ready: Some(ready), ..State::default() }),
            changed: Condvar::new(),
            news: AtomicBool::new(false),
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn push(&self, item: Item) {
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            return self.turn_away(item);
        }
        state.items.push_back(item);
        self.news.store(true, Ordering::Release);
        let bell = state.bell.clone();
        drop(state);
        self.wake(bell);
    }

    fn wake(&self, bell: Option<Arc<EventFd>>) {
        self.changed.notify_all();
        if let Some(bell) = bell {
            // Ringing our own eventfd does not fail.
            let _ = bell.ring();
        }
    }

    fn turn_away(&self, item: Item) {
        if self.env.comes_back()
            && let Item::Message(message, answer) = item
        {
            // The message's leases go back first.
            drop(message);
            answer.send(RawReply::None(Unanswered::TurnedAway));
        }
    }

    /// Closes the mailbox, because the actor has ended or is about to. With `wait`, waits until its Python
    /// thread has ended.
    pub(crate) fn close(&self, wait: bool) {
        let (items, bell) = {
            let mut state = self.state.lock();
            state.closed = true;
            self.news.store(true, Ordering::Release);
            (std::mem::take(&mut state.items), state.bell.clone())
        };
        self.wake(bell);
        items.into_iter().for_each(|item| self.turn_away(item));
        if wait {
            let until = Instant::now() + LAST_WORDS;
            let mut state = self.state.lock();
            // After a failure the thread may be in the middle of something, and its process ends soon.
            while !state.ended && !state.failed {
                if self.changed.wait_until(&mut state, until).timed_out() {
                    return;
                }
            }
        }
    }

    /// Returns the next item if there is one; the inner `None` means that no more come.
    pub(crate) fn take(&self) -> Option<Option<Item>> {
        let mut state = self.state.lock();
        let mut item = state.items.pop_front();
        if state.items.is_empty() && !state.closed {
            self.news.store(false, Ordering::Relaxed);
        }
        let closed = state.closed;
        drop(state);
        if let Some(Item::Message(_, answer)) = &mut item {
            answer.begin();
        }
        (item.is_some() || closed).then_some(item)
    }

    /// Waits for the next item; `None` means that no more come. It blocks, so it must not be called with the
    /// interpreter.
    pub(crate) fn wait(&self) -> Option<Item> {
        let looked = look_for(&self.context.transport, || self.news.load(Ordering::Acquire).then_some(()));
        loop {
            if let Some(item) = self.take() {
                if looked.is_none() {
                    came();
                }
                return item;
            }
            let mut state = self.state.lock();
            if state.items.is_empty() && !state.closed {
                self.changed.wait(&mut state);
            }
        }
    }

    /// Tells the starter of the actor how the start went. Returns false if it was told before.
    pub(crate) fn started(&self, how: Result<(), String>) -> bool {
        let ready = self.state.lock().ready.take();
        // If the start was given up, no one receives this.
        ready.is_some_and(|ready| ready.send(how).is_ok())
    }

    /// Notes that the Python thread has ended.
    pub(crate) fn ended(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// Turns away all messages from now on.
    fn fail(&self) {
        self.state.lock().failed = true;
        self.close(false);
    }

    /// Fails the actor outside of a message's handler; or its start, if it is not ready yet.
    pub(crate) fn broke(&self, why: String) {
        if !self.started(Err(why.clone())) {
            self.fail();
            self.failing(why)();
        }
    }

    fn failing(&self, why: String) -> Box<dyn FnOnce() + Send> {
        let env = self.env.clone();
        Box::new(move || env.fail(why))
    }
}

impl RawSink for Mailbox {
    fn put(&self, message: RawMessage, answer: RawAnswer) {
        self.push(Item::Message(message, answer));
    }
}

/// The mailbox as an actor's Python thread sees it, with the actor's place in the node.
#[pyclass(frozen, name = "Mailbox", module = "tensorpost._native")]
pub(crate) struct PyMailbox(pub(crate) Arc<Mailbox>);

impl PyMailbox {
    pub(crate) fn delivered(&self, item: Item, read: Option<Shown>) -> Delivered {
        Delivered { mailbox: Arc::clone(&self.0), item: Mutex::new(Some(item)), read: Mutex::new(read) }
    }
}

#[pymethods]
impl PyMailbox {
    /// Handles messages on this thread, as long as only their handlers must be called. `handlers` are
    /// `(key, plan, plan of the reply, method)`. Returns a message that needs other treatment, with the
    /// reason. The reason is `"other"` if none of these handlers takes it, `"malformed"`, `"unsent"` or
    /// `"failed"` with the error, or `"forked"` in a child that a handler has forked. Returns None when no
    /// more come.
    fn serve(&self, py: Python<'_>, handlers: Vec<serve::Handler>) -> Option<serve::Left> {
        serve::serve(self, py, handlers)
    }

    /// Whether this process was forked from the actor's.
    #[getter]
    fn is_inherited(&self) -> bool {
        self.0.context.transport.is_inherited()
    }

    /// Raises if this process was forked from the actor's.
    fn check_fork(&self, py: Python<'_>) -> PyResult<()> {
        self.0.context.check_fork(py, "NodeError")
    }

    /// Returns the next message if there is one.
    fn take(&self) -> Option<Delivered> {
        self.0.take().flatten().map(|item| self.delivered(item, None))
    }

    /// Whether no more messages come.
    #[getter]
    fn closed(&self) -> bool {
        self.0.state.lock().closed
    }

    /// Returns a descriptor that is readable when messages have come, or no more come.
    fn bell(&self) -> PyResult<i32> {
        use std::os::fd::{AsFd, AsRawFd};
        let bell = Arc::new(EventFd::create()?);
        let number = (*bell).as_fd().as_raw_fd();
        bell.ring()?;
        self.0.state.lock().bell = Some(bell);
        Ok(number)
    }

    /// Resets the descriptor.
    fn drain(&self) -> PyResult<()> {
        let bell = self.0.state.lock().bell.clone();
        if let Some(bell) = bell {
            bell.drain()?;
        }
        Ok(())
    }

    /// Notes that the actor takes messages.
    fn ready(&self) {
        self.0.started(Ok(()));
    }

    /// Fails the actor outside of a message's handler.
    fn fail(&self, why: String) {
        self.0.broke(why);
    }

    /// Reads an address in the arguments of an actor.
    fn address(&self, py: Python<'_>, bytes: &[u8]) -> PyResult<PyAddress> {
        let raw = RawAddress::read(bytes, &self.0.context.transport);
        let raw = raw.map_err(|error| exception(py, "DecodeError", error.to_string()))?;
        Ok(PyAddress::new(raw, Arc::clone(&self.0.context)))
    }

    /// Decodes a value that may hold addresses.
    fn decode(&self, py: Python<'_>, plan: &Plan, body: &[u8]) -> PyResult<Py<PyAny>> {
        let value = decode::arrived(plan, py, body, Vec::new(), &self.0.context, None);
        value.map(Bound::unbind).map_err(|failure| failure.raise(py, "DecodeError", &plan.name))
    }

    #[getter]
    fn own_address(&self) -> PyAddress {
        PyAddress::new(self.0.env.raw_address(), Arc::clone(&self.0.context))
    }

    /// Returns the number of the actor's GPU in this process, and its stream's handle.
    fn gpu(&self) -> Option<(i32, u64)> {
        let stream = self.0.context.stream();
        cuda::ordinal(stream).zip(cuda::handle(stream))
    }

    /// Makes the two functions of [`pool`] allocate from the actor's memory.
    fn lend_pool(&self) {
        pool::open_for(self.0.context.stream());
    }

    /// Makes a tensor in the pool, to be written.
    fn empty(&self, py: Python<'_>, shape: Vec<usize>, dtype: &str) -> PyResult<PyTensor> {
        tensor::empty(py, &self.0.context, shape, dtype)
    }

    /// Returns how many tensors were forwarded, sent without a copy, and copied, and the bytes of the copied
    /// ones.
    fn counts(&self) -> (u64, u64, u64, u64) {
        self.0.context.counts()
    }

    #[getter]
    fn name(&self) -> String {
        self.0.env.name().to_owned()
    }

    #[getter]
    fn incarnation(&self) -> u32 {
        self.0.env.incarnation()
    }

    #[getter]
    fn is_stopping(&self) -> bool {
        self.0.env.is_stopping()
    }

    /// Calls `told` with None and None when the node shuts down.
    fn stopping(&self, told: Py<PyAny>) -> PyResult<Driven> {
        wait::drive(told, self.0.env.stopping(), None, |py, _| Ok(py.None()))
    }

    fn watch(&self, address: &PyAddress) {
        self.0.env.watch_raw(&address.raw);
    }

    fn link(&self, address: &PyAddress) {
        self.0.env.link(address.raw.typed());
    }

    fn lookup(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<PyAddress> {
        let timeout = wait::seconds(py, timeout)?;
        let found = wait::wait(py, Box::pin(self.0.env.lookup::<RawMessage>(name)), timeout)?;
        looked_up(py, found, name, &self.0.context)
    }

    /// Starts an actor: in a worker of its own, with this actor's interpreter, in that of an actor that this
    /// one has started, or in this one's. Waits until it takes messages.
    fn spawn(
        &self,
        py: Python<'_>,
        actor: String,
        args: Vec<u8>,
        beside: Option<&PyAddress>,
        settings: Given,
    ) -> PyResult<PyAddress> {
        let Mailbox { env, context, .. } = &*self.0;
        context.check_fork(py, "NodeError")?;
        let refused = |why: String| exception(py, "SpawnError", why);
        let settings = Settings::read(py, settings)?;
        let start = Start::actor(actor).with_own_args(args).like_asker();
        let mut spawn = settings.give(env.spawn::<Start>(start));
        if let Some(beside) = beside {
            let who = beside.raw.actor();
            spawn = match beside.worker {
                _ if who == env.raw_address().actor() => spawn.here(),
                Some(worker) => spawn.worker(worker),
                None => {
                    let why = format!(
                        "beside={who}: that address is not one that this actor's `spawn` has returned, nor its own \
                         `tp.env().address`"
                    );
                    return Err(refused(why));
                }
            };
        }
        let started = wait::wait(py, spawn.into_future(), None)?;
        let Some(started) = started else { unreachable!("a wait without a deadline has an outcome") };
        let started = started.map_err(|error| refused(error.to_string()))?;
        Ok(settings.address(&started, Arc::clone(context)))
    }

    fn register(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let done = wait::wait(py, Box::pin(self.0.env.register(name)), None)?;
        match done {
            Some(Err(error)) => Err(exception(py, "NodeError", error.to_string())),
            _ => Ok(()),
        }
    }
}

/// Makes the result of a look-up.
pub(crate) fn looked_up<E: std::fmt::Display>(
    py: Python<'_>,
    found: Option<Result<tensorpost_core::actor::Address<RawMessage>, E>>,
    name: &str,
    context: &Arc<Context>,
) -> PyResult<PyAddress> {
    match found {
        Some(Ok(address)) => {
            Ok(PyAddress::new(address.into(), Arc::clone(context)).named(Some(name.to_owned())))
        }
        Some(Err(error)) => Err(exception(py, "NodeError", error.to_string())),
        None => Err(exception(py, "DeadlineError", format!("`{name}` was not found before the deadline"))),
    }
}

/// An event of an actor's life: `(kind, actor, reason, will_restart, incarnation)`.
pub(crate) type Told = (&'static str, String, Option<String>, bool, Option<u32>);

pub(crate) fn told(event: &Lifecycle) -> Told {
    let actor = event.actor().to_string();
    match event {
        Lifecycle::Down { reason, will_restart, .. } => {
            ("down", actor, Some(reason.to_string()), *will_restart, None)
        }
        Lifecycle::Up { incarnation, .. } => ("up", actor, None, false, Some(*incarnation)),
        Lifecycle::GaveUp { reason, .. } => ("gave_up", actor, Some(reason.to_string()), false, None),
        other => ("other", actor, Some(other.to_string()), false, None),
    }
}

/// A message for its handler. One of its methods answers it, or its drop.
#[pyclass(frozen, module = "tensorpost._native")]
pub(crate) struct Delivered {
    mailbox: Arc<Mailbox>,
    item: Mutex<Option<Item>>,
    read: Mutex<Option<Shown>>,
}

/// The message that a handler was given.
pub(crate) struct Shown {
    body: Vec<u8>,
    plan: Py<Plan>,
    /// `None` if it has no tensors.
    ledger: Option<Arc<Ledger>>,
}

impl Shown {
    /// Reads a value for a handler.
    pub(crate) fn read(
        py: Python<'_>,
        plan: Py<Plan>,
        body: Vec<u8>,
        tensors: Vec<Tensor>,
        context: &Arc<Context>,
    ) -> PyResult<(Py<PyAny>, Self)> {
        let ledger = (!tensors.is_empty()).then(|| Arc::new(Ledger::open()));
        let value = decode::arrived(plan.get(), py, &body, tensors, context, ledger.as_ref());
        let value = value.map(Bound::unbind);
        let value = value.map_err(|failure| failure.raise(py, "DecodeError", &plan.get().name))?;
        Ok((value, Shown { body, plan, ledger }))
    }
}

/// Returns an error if a handler has written memory that other processes read: tensors that it was shown, or
/// that it had sent.
pub(crate) fn check_writes(py: Python<'_>, shown: Option<Shown>, context: &Context) -> PyResult<()> {
    if let Some(Shown { body, plan, ledger: Some(ledger) }) = shown
        && let Some((index, times)) = ledger.close(py)?
    {
        let place = decode::place_of(plan.get(), py, &body, index);
        let why = format!(
            "{place}: the handler has written this tensor in place ({times} times), and others read it; annotate the \
             field with tp.Owned, or write a copy, as of `.clone()`"
        );
        return Err(exception(py, "TensorError", why));
    }
    if context.written_after_send(py)? {
        let why = "the handler has written a tensor in place after it sent it; send it last, or send a copy, as of `.clone()`";
        return Err(exception(py, "TensorError", why.to_owned()));
    }
    Ok(())
}

impl Delivered {
    fn answer(&self) -> Option<RawAnswer> {
        match self.item.lock().take() {
            Some(Item::Message(_, answer)) => Some(answer),
            _ => None,
        }
    }
}

#[pymethods]
impl Delivered {
    /// Returns the key of its type; None for an event.
    #[getter]
    fn key(&self) -> Option<u64> {
        match &*self.item.lock() {
            Some(Item::Message(message, _)) => Some(message.key),
            _ => None,
        }
    }

    /// Returns the event; None for a message.
    fn event(&self) -> Option<Told> {
        match &*self.item.lock() {
            Some(Item::Event(event, _)) => Some(told(event)),
            _ => None,
        }
    }

    /// Returns its value, once: the tensors go with it.
    fn value(&self, py: Python<'_>, plan: Py<Plan>) -> PyResult<Py<PyAny>> {
        let parts = match &mut *self.item.lock() {
            Some(Item::Message(message, _)) => {
                (std::mem::take(&mut message.body), std::mem::take(&mut message.tensors))
            }
            _ => return Err(exception(py, "Error", "the message is done with".to_owned())),
        };
        let (value, shown) = Shown::read(py, plan, parts.0, parts.1, &self.mailbox.context)?;
        *self.read.lock() = Some(shown);
        Ok(value)
    }

    /// Raises an error if the handler has written memory that other processes read.
    fn check_writes(&self, py: Python<'_>) -> PyResult<()> {
        let read = self.read.lock().take();
        check_writes(py, read, &self.mailbox.context)
    }

    /// Sends the reply, when the handler is done. Writes must have been checked before
    /// ([`check_writes`](Self::check_writes)).
    fn reply(&self, plan: &Plan, value: &Bound<'_, PyAny>) -> PyResult<()> {
        // As in `serve`.
        let _together = Together::begin();
        let reply = serve::reply(&self.mailbox.context, plan, value)?;
        match self.item.lock().take() {
            Some(Item::Message(message, answer)) => {
                drop(message);
                answer.send(reply);
            }
            Some(Item::Event(_, Some(answer))) => drop(answer.send(())),
            _ => {}
        }
        Ok(())
    }

    /// Refuses a message for which no handler can be called any more.
    fn refuse(&self, why: String) {
        if let Some(answer) = self.answer() {
            answer.send(RawReply::None(Unanswered::Refused(why)));
        }
    }

    /// Refuses a message that nobody can read, or for which there is no handler: its sender is to blame.
    fn unread(&self, why: String) {
        if let Some(answer) = self.answer() {
            answer.send(RawReply::None(Unanswered::Unread(why)));
        }
    }

    /// Answers a message that was handled, but whose reply cannot be sent.
    fn unsent(&self, why: String) {
        if let Some(answer) = self.answer() {
            answer.send(RawReply::None(Unanswered::BadReply(why)));
        }
    }

    /// Fails the actor because its handler failed; `what` says why in one line.
    fn fail(&self, py: Python<'_>, what: String, mut why: String) {
        if let Err(error) = self.check_writes(py) {
            let error = error.value(py).to_string();
            // This error may be the cause of the other failure, or the same one.
            if !why.contains(&error) {
                why = format!("{why}\nBefore that: {error}");
            }
        }
        // Messages that wait behind it are turned away before the actor's end.
        self.mailbox.fail();
        let fail = self.mailbox.failing(why);
        match self.answer() {
            Some(answer) => answer.send(RawReply::None(Unanswered::Failed(what, fail))),
            None => fail(),
        }
    }
}

/// The error of an actor whose thread ended without saying why.
pub(crate) const SILENT: &str = "its thread ended before it was ready";

/// Returns the bytes of the arguments, as the package reads them.
pub(crate) fn bytes<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, bytes)
}
