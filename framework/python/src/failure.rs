//! The reason why a value cannot be written or read, and the place in the value.

use std::cell::Cell;

use pyo3::exceptions::PyRecursionError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tensorpost_core::ids::ProcessId;
use tensorpost_core::tensor::TensorError;

/// The reason, and the path to the place, from the inside out: each level adds its step when the walk leaves
/// it, so a correct value costs nothing.
#[derive(Debug)]
pub(crate) struct Failure {
    why: String,
    cause: Option<PyErr>,
    steps: Vec<String>,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Failure { why: why.into(), cause: None, steps: Vec::new() }
    }

    /// Makes a failure of an exception that Python code raised.
    pub(crate) fn raised(py: Python<'_>, error: PyErr) -> Self {
        Failure { why: text_of(py, &error), cause: Some(error), steps: Vec::new() }
    }

    /// Returns the place of the failure.
    pub(crate) fn place(self, root: &str) -> String {
        let path: String = self.steps.into_iter().rev().collect();
        format!("{root}{path}")
    }

    /// Returns the reason, behind the place of the failure.
    pub(crate) fn text(mut self, root: &str) -> String {
        let why = std::mem::take(&mut self.why);
        format!("{}: {why}", self.place(root))
    }

    pub(crate) fn in_field(mut self, name: &str) -> Self {
        self.steps.push(format!(".{name}"));
        self
    }

    pub(crate) fn at(mut self, index: usize) -> Self {
        self.steps.push(format!("[{index}]"));
        self
    }

    pub(crate) fn of_key(mut self, key: &Bound<'_, PyAny>) -> Self {
        let key = key.repr().map_or_else(|_| "?".to_owned(), |key| key.to_string());
        self.steps.push(format!("[{key}]"));
        self
    }

    /// Makes an exception of `tensorpost`: `"EncodeError"` or `"DecodeError"`. A cause that ends the program,
    /// such as Ctrl-C, goes on as it is.
    pub(crate) fn raise(self, py: Python<'_>, class: &'static str, root: &str) -> PyErr {
        let Failure { why, cause, steps } = self;
        if let Some(error) = &cause
            && (!error.is_instance_of::<pyo3::exceptions::PyException>(py)
                || error.is_instance_of::<PyRecursionError>(py))
        {
            return cause.unwrap_or_else(|| unreachable!("it was just looked at"));
        }
        let path: String = steps.into_iter().rev().collect();
        let error = exception(py, class, format!("{root}{path}: {why}"));
        error.set_cause(py, cause);
        error
    }
}

fn text_of(py: Python<'_>, error: &PyErr) -> String {
    let text = error.value(py).str().map(|text| text.to_string()).unwrap_or_default();
    if text.is_empty() { error.to_string() } else { text }
}

/// Makes an exception that is defined in Python, in `tensorpost._errors`.
pub(crate) fn exception(py: Python<'_>, class: &'static str, text: String) -> PyErr {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = ERRORS.get_or_try_init(py, || py.import("tensorpost._errors").map(Bound::unbind));
    match module.and_then(|module| module.bind(py).getattr(class)?.call1((text,))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

thread_local! {
    /// The process whose death took the data of an error of this thread, since the call of a stage began.
    static LOST_WITH: Cell<Option<ProcessId>> = const { Cell::new(None) };
}

/// Begins a call of a stage on this thread.
pub(crate) fn begin_call() {
    LOST_WITH.set(None);
}

/// Returns the process whose death took the data of an error in the call on this thread (DEATH-3). An
/// exception cannot carry this through the user's code.
pub(crate) fn lost_with() -> Option<ProcessId> {
    LOST_WITH.get()
}

/// Notes the lost process of an error that is about to be raised.
pub(crate) fn note(error: &TensorError) {
    if let Some(by) = error.lost_with() {
        LOST_WITH.set(Some(by));
    }
}

/// Makes the exception for an error of a tensor.
pub(crate) fn tensor_error(py: Python<'_>, error: &TensorError) -> PyErr {
    note(error);
    exception(py, "TensorError", error.to_string())
}
