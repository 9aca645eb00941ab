//! Feeds objects of the program to a pipeline: each object that the program iterates over is an item of an
//! [`Input`].

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use tensorpost_core::bindings::RawItem;
use tensorpost_core::os::Inert;
use tensorpost_pipeline::Input;

use crate::context::Context;
use crate::encode;
use crate::plan::Plan;
use crate::wait;

/// The program's end of the feed. A forked child has none: its parent's feed goes on.
#[pyclass(frozen, name = "Feed", module = "tensorpost._native")]
pub(crate) struct PyFeed {
    /// `None` after the end.
    input: Inert<Mutex<Option<Input<RawItem>>>>,
    context: Arc<Context>,
}

impl PyFeed {
    pub(crate) fn new(input: Input<RawItem>, context: &Arc<Context>) -> Self {
        PyFeed { input: Inert::new(Mutex::new(Some(input))), context: Arc::clone(context) }
    }
}

#[pymethods]
impl PyFeed {
    /// Sends an item when there is room. Returns false if the source no longer takes items.
    fn send(&self, plan: &Plan, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.input.is_inherited() {
            return Ok(false);
        }
        let py = value.py();
        let encoded = encode::encode(plan, value, Some(&self.context));
        let (body, tensors) = encoded.map_err(|failure| failure.raise(py, "EncodeError", &plan.name))?;
        let tensors = self.context.shared(py, plan, value, tensors)?;
        let input = self.input.lock().clone();
        let Some(input) = input else { return Ok(false) };
        let sent = wait::wait(py, Box::pin(input.send(RawItem { body, tensors })), None)?;
        Ok(matches!(sent, Some(Ok(()))))
    }

    /// Says that no more items come.
    fn end(&self) {
        if !self.input.is_inherited() {
            drop(self.input.lock().take());
        }
    }
}
