//! Addresses in Python: sends and asks. A message's class determines its key, and how it is written.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};
use tensorpost_core::actor::{AskError, SendError};
use tensorpost_core::bindings::{RawAddress, RawMessage, RawReply, Together};
use tensorpost_core::ids::ActorId;
use tensorpost_core::limits::MAX_INLINE_BODY;
use tensorpost_core::node::WorkerId;
use tensorpost_core::os::fork::INHERITED;

use crate::context::Context;
use crate::decode;
use crate::encode;
use crate::failure::exception;
use crate::garbage;
use crate::message_class::MessageClass;
use crate::plan::Plan;
use crate::wait::{self, Driven};

/// The address of an actor.
#[pyclass(frozen, name = "Address", module = "tensorpost")]
pub(crate) struct PyAddress {
    pub(crate) raw: RawAddress,
    pub(crate) context: Arc<Context>,
    /// The actor's name for people, if it is known here.
    name: Option<String>,
    /// The actor's worker, if the actor was started here.
    pub(crate) worker: Option<WorkerId>,
}

impl PyAddress {
    pub(crate) fn new(raw: RawAddress, context: Arc<Context>) -> Self {
        PyAddress { raw, context, name: None, worker: None }
    }

    /// Notes the actor's name for people.
    pub(crate) fn named(self, name: Option<String>) -> Self {
        PyAddress { name, ..self }
    }

    /// Notes the worker of an actor that was started here.
    pub(crate) fn in_worker(self, worker: WorkerId) -> Self {
        PyAddress { worker: Some(worker), ..self }
    }

    fn message(&self, plan: &Plan, key: u64, value: &Bound<'_, PyAny>) -> PyResult<RawMessage> {
        let py = value.py();
        if self.context.transport.is_inherited() {
            // Checked before its tensors take memory, because the pool is the parent's.
            let text = format!("{} was not sent to {}: {INHERITED}", plan.name, self.who());
            return Err(failed(py, "SendError", text, false));
        }
        if !self.raw.takes(key) {
            let who = match &self.name {
                Some(name) => format!("{} `{name}`", self.who()),
                None => self.who().to_string(),
            };
            let text = format!(
                "{0} was not sent to {who}, which has no handler for {0} with key {key:016x}; if it has one for this name, the two \
                 definitions differ: compare tp.schema(..) with `Portable::schema()` of Rust",
                plan.name
            );
            return Err(failed(py, "SendError", text, false));
        }
        garbage::clear(py);
        let (body, tensors) = encode::encode(plan, value, Some(&self.context))
            .map_err(|failure| failure.raise(py, "EncodeError", &plan.name))?;
        Ok(RawMessage { key, body, tensors: self.context.shared(py, plan, value, tensors)? })
    }

    fn who(&self) -> ActorId {
        self.raw.actor()
    }
}

/// Makes the first attempt to send or to ask, which never waits. The interpreter is kept meanwhile: releasing
/// and taking it again costs some 350 instructions, and much more if another Python thread has it in between.
/// No thread that holds a lock of the core waits for the interpreter (`garbage`). For a body that is copied
/// into memory of its own, which takes longer, the interpreter is released.
fn begun<R: Send>(py: Python<'_>, message: RawMessage, begin: impl FnOnce(RawMessage) -> R + Send) -> R {
    if message.body.len() > MAX_INLINE_BODY { py.detach(|| begin(message)) } else { begin(message) }
}

/// Makes the exception for an error of sending.
fn not_sent(py: Python<'_>, who: ActorId, name: &str, error: &SendError<RawMessage>) -> PyErr {
    let text = format!("{name} was not sent to {who}: {}", error.reason);
    failed(py, "SendError", text, error.is_retryable())
}

fn failed(py: Python<'_>, class: &'static str, text: String, retryable: bool) -> PyErr {
    let error = exception(py, class, text);
    // The attribute and the exception are ours, so this does not fail.
    let _ = error.value(py).setattr("retryable", retryable);
    error
}

fn no_reply(py: Python<'_>, who: ActorId, name: &str, error: &AskError<RawMessage>) -> PyErr {
    match error {
        AskError::NotSent(error) => not_sent(py, who, name, error),
        AskError::NoReply(failure) => {
            let text = format!("{who} gave no reply to {name}: {failure}");
            failed(py, "AskError", text, error.is_retryable())
        }
        _ => late(py, who, name, "no reply came"),
    }
}

fn late(py: Python<'_>, who: ActorId, name: &str, what: &str) -> PyErr {
    failed(py, "DeadlineError", format!("{name} to {who}: {what} before the deadline"), true)
}

/// Makes the exception for a send that found no room: the mailbox was full, or too much of this process's
/// memory was lent out, or the receiver keeps too many tensors.
fn no_room(py: Python<'_>, raw: &RawAddress, name: &str, context: &Context) -> PyErr {
    let who = raw.actor();
    let lacked = || raw.leases_lacked().map(|limit| limit.to_string());
    match context.transport.lending_refusal().or_else(lacked) {
        None => late(py, who, name, "there was no room"),
        Some(why) => {
            let text = format!("{name} to {who}: there was no room before the deadline: {why}");
            failed(py, "DeadlineError", text, true)
        }
    }
}

/// The outcome of an ask's future.
type Asked = Option<Result<RawReply, AskError<RawMessage>>>;

fn reply_of(
    py: Python<'_>,
    asked: Asked,
    reply: &Plan,
    who: ActorId,
    name: &str,
    context: &Arc<Context>,
) -> PyResult<Py<PyAny>> {
    match asked {
        // Perhaps the reply did not come because this process keeps too many tensors.
        None => match context.transport.held_to_the_limit() {
            None => Err(late(py, who, name, "no reply came")),
            Some(limit) => {
                let text = format!("{name} to {who}: no reply came before the deadline: {limit}");
                Err(failed(py, "DeadlineError", text, true))
            }
        },
        Some(Err(error)) => Err(no_reply(py, who, name, &error)),
        Some(Ok(RawReply::Value { body, tensors })) => {
            let value = decode::arrived(reply, py, &body, tensors, context, None);
            let value = value.map_err(|failure| failure.raise(py, "DecodeError", &reply.name))?;
            Ok(value.unbind())
        }
        // `RawReply::None` is made only where a handler ends; a reply that is read is a value.
        Some(Ok(RawReply::None(_))) => Err(failed(py, "AskError", "there is no reply".to_owned(), false)),
    }
}

type Sent = Option<Result<(), SendError<RawMessage>>>;

fn sent(py: Python<'_>, sent: Sent, raw: &RawAddress, name: &str, context: &Context) -> PyResult<()> {
    match sent {
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => Err(not_sent(py, raw.actor(), name, &error)),
        None => Err(no_room(py, raw, name, context)),
    }
}

#[pymethods]
impl PyAddress {
    /// The actor's number in its node.
    #[getter]
    fn actor(&self) -> String {
        self.who().to_string()
    }

    /// Sends a message, and returns when the actor's mailbox has accepted it. Waits for room, at most
    /// ``timeout`` seconds. The mailbox must have room, and for tensors that this process has made, no more
    /// than half of its pool may be lent to other processes.
    ///
    /// Raises :class:`SendError`, or :class:`DeadlineError` if there was no room in time.
    #[pyo3(signature = (message, *, timeout=None))]
    fn send(&self, py: Python<'_>, message: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let way = MessageClass::of(message)?;
        let plan = way.plan.get();
        let timeout = wait::seconds(py, timeout)?;
        let message = self.message(plan, way.key, message)?;
        let mut sending = begun(py, message, |message| self.raw.send(message));
        let outcome = match wait::at_once(&mut sending) {
            Some(outcome) => Some(outcome),
            None => {
                let _waiting = garbage::Waiting::begin(py);
                // Memory that came back with the message would hide that there was too little.
                wait::wait(py, &mut sending, timeout)?
            }
        };
        sent(py, outcome, &self.raw, &plan.name, &self.context)
    }

    /// Sends a message if there is room now, and returns whether it was sent. Raises :class:`SendError` if it
    /// can never be sent.
    fn try_send(&self, py: Python<'_>, message: &Bound<'_, PyAny>) -> PyResult<bool> {
        let way = MessageClass::of(message)?;
        let plan = way.plan.get();
        let message = self.message(plan, way.key, message)?;
        let sent = begun(py, message, |message| self.raw.try_send(message));
        Together::publish();
        match sent {
            Ok(()) => Ok(true),
            Err(error) if error.is_retryable() => Ok(false),
            Err(error) => Err(not_sent(py, self.who(), &plan.name, &error)),
        }
    }

    /// Sends a message, and returns the reply of its handler. Waits at most ``timeout`` seconds in all.
    ///
    /// Raises :class:`SendError`, :class:`AskError` if no reply will come, or :class:`DeadlineError`.
    #[pyo3(signature = (message, *, timeout=None))]
    fn ask(&self, py: Python<'_>, message: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let way = MessageClass::of(message)?;
        let (plan, reply) = (way.plan.get(), way.reply.get());
        let timeout = wait::seconds(py, timeout)?;
        let message = self.message(plan, way.key, message)?;
        let asking = begun(py, message, |message| self.raw.ask(message));
        let outcome = wait::wait_spinning(py, asking, timeout, &self.context.transport)?;
        reply_of(py, outcome, reply, self.who(), &plan.name, &self.context)
    }

    fn _begin_send(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        told: Py<PyAny>,
    ) -> PyResult<Driven> {
        let way = MessageClass::of(message)?;
        let plan = way.plan.get();
        let timeout = wait::seconds(py, timeout)?;
        let message = self.message(plan, way.key, message)?;
        let sending = begun(py, message, |message| self.raw.send(message));
        let (raw, name, context) = (self.raw.clone(), plan.name.clone(), Arc::clone(&self.context));
        wait::drive(told, sending, timeout, move |py, outcome| {
            sent(py, outcome, &raw, &name, &context).map(|()| py.None())
        })
    }

    fn _begin_ask(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        told: Py<PyAny>,
    ) -> PyResult<Driven> {
        let way = MessageClass::of(message)?;
        let plan = way.plan.get();
        let timeout = wait::seconds(py, timeout)?;
        let message = self.message(plan, way.key, message)?;
        let asking = begun(py, message, |message| self.raw.ask(message));
        let (who, name, context) = (self.who(), plan.name.clone(), Arc::clone(&self.context));
        wait::drive(told, asking, timeout, move |py, outcome| {
            reply_of(py, outcome, way.reply.get(), who, &name, &context)
        })
    }

    /// Returns whether the actor takes messages with this key, as far as the address knows.
    fn _takes(&self, key: u64) -> bool {
        self.raw.takes(key)
    }

    /// Returns the address as bytes, for the arguments of an actor.
    fn _bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let encoded = tensorpost_core::message::codec::encode(&self.raw, Vec::new());
        let encoded = encoded.map_err(|error| exception(py, "EncodeError", error.to_string()))?;
        Ok(PyBytes::new(py, &encoded.body))
    }

    /// Makes an annotation with the messages that go to the address: `Address[Frame]`.
    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, PyType>,
        message: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        class.py().import("types")?.call_method1("GenericAlias", (class, message))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PyAddress>().is_ok_and(|other| other.get().raw == self.raw)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.raw.hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        format!("Address({})", self.who())
    }
}
