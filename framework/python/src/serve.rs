//! The loop of an actor whose handlers are plain functions: it reads a message, calls its handler and sends
//! the reply without a line of Python in between. The package (`tensorpost._worker`) does the rest: events,
//! messages without a handler, failures.

use std::sync::Arc;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use tensorpost_core::bindings::{RawAnswer, RawMessage, RawReply, Together};

use crate::context::Context;
use crate::encode;
use crate::garbage;
use crate::lent_out::Handling;
use crate::mailbox::{Delivered, Item, PyMailbox, Shown, check_writes};
use crate::plan::{Node, Plan, Scalar};

/// Nil in MessagePack.
const NIL: u8 = 0xc0;

/// A handler: the key of its messages, their plan, the plan of its reply, and the function.
pub(crate) type Handler = (u64, Py<Plan>, Py<Plan>, Py<PyAny>);

/// A message that needs other treatment, the reason, and the error.
pub(crate) type Left = (Delivered, &'static str, Option<Py<PyAny>>);

/// See [`PyMailbox`].
pub(crate) fn serve(mailbox: &PyMailbox, py: Python<'_>, mut handlers: Vec<Handler>) -> Option<Left> {
    handlers.sort_by_key(|(key, ..)| *key);
    loop {
        // If there is an item, the interpreter is not released.
        let item = mailbox.0.take().unwrap_or_else(|| py.detach(|| mailbox.0.wait()))?;
        garbage::clear(py);
        let (message, answer) = match item {
            Item::Message(message, answer) => (message, answer),
            event @ Item::Event(..) => return Some((mailbox.delivered(event, None), "other", None)),
        };
        let found = handlers.binary_search_by_key(&message.key, |(key, ..)| *key);
        let Some(handler) = found.ok().and_then(|at| handlers.get(at)) else {
            return Some((mailbox.delivered(Item::Message(message, answer), None), "other", None));
        };
        if let Err(left) = handle(mailbox, py, handler, message, answer) {
            return Some(*left);
        }
    }
}

fn handle(
    mailbox: &PyMailbox,
    py: Python<'_>,
    (_, plan, reply_plan, method): &Handler,
    message: RawMessage,
    answer: RawAnswer,
) -> Result<(), Box<Left>> {
    let context = mailbox.0.context();
    let RawMessage { key, body, tensors } = message;
    // The rest of the message, without its tensors, which the handler has.
    let left = |answer, how, shown, error: PyErr| {
        let message = RawMessage { key, body: Vec::new(), tensors: Vec::new() };
        let error = error.into_value(py).into_any();
        Box::new((mailbox.delivered(Item::Message(message, answer), shown), how, Some(error)))
    };
    let (value, shown) = match Shown::read(py, plan.clone_ref(py), body, tensors, context) {
        Ok(read) => read,
        Err(error) => return Err(left(answer, "malformed", None, error)),
    };
    let handling = Handling::begin();
    let returned = method.bind(py).call1((&value,));
    if context.transport.is_inherited() {
        // This is a child that was forked in the handler: the package ends it, and its parent answers the
        // message.
        std::mem::forget((handling, value, shown));
        let message = RawMessage { key, body: Vec::new(), tensors: Vec::new() };
        let error = returned.err().map(|error| error.into_value(py).into_any());
        return Err(Box::new((mailbox.delivered(Item::Message(message, answer), None), "forked", error)));
    }
    let returned = match returned {
        Ok(returned) => returned,
        Err(error) => {
            drop(value);
            return Err(left(answer, "failed", Some(shown), error));
        }
    };
    // The message's leases that go back and the reply share one clock write, and are published together. Code
    // in here that waits for other processes publishes first (`wait`, `address`).
    let _together = Together::begin();
    drop(handling);
    drop(value);
    // Checked first: if the handler has written memory that it must not write, nothing of it may be sent.
    if let Err(error) = check_writes(py, Some(shown), context) {
        return Err(left(answer, "failed", None, error));
    }
    let made = reply(context, reply_plan.get(), &returned);
    drop(returned);
    match made {
        Ok(reply) => {
            answer.send(reply);
            Ok(())
        }
        // The handler has done its work, and an error of this reply does not concern the next message.
        Err(error) if error.is_instance_of::<PyException>(py) => Err(left(answer, "unsent", None, error)),
        Err(error) => Err(left(answer, "failed", None, error)),
    }
}

/// Makes the reply of the value that a handler has returned.
pub(crate) fn reply(context: &Arc<Context>, plan: &Plan, value: &Bound<'_, PyAny>) -> PyResult<RawReply> {
    // Nearly all handlers return nothing.
    if value.is_none() && matches!(plan.nodes.get(plan.root), Some(Node::Scalar(Scalar::Nil))) {
        return Ok(RawReply::Value { body: vec![NIL], tensors: Vec::new() });
    }
    let py = value.py();
    let encoded = encode::encode(plan, value, Some(context));
    let (body, tensors) = encoded.map_err(|failure| failure.raise(py, "EncodeError", &plan.name))?;
    let tensors = context.shared(py, plan, value, tensors)?;
    Ok(RawReply::Value { body, tensors })
}
