//! Why a value cannot be written or read, and where in it.

use std::cell::Cell;

use pyo3::exceptions::PyRecursionError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tensorpost_core::ids::ProcessId;
use tensorpost_core::tensor::TensorError;

/// What is wrong, and the way to it from the inside out: each level adds its step when it is left, and a
/// value that is in order pays nothing.
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

    /// What Python's own code raised.
    pub(crate) fn raised(py: Python<'_>, error: PyErr) -> Self {
        Failure { why: text_of(py, &error), cause: Some(error), steps: Vec::new() }
    }

    /// Where it is.
    pub(crate) fn place(self, root: &str) -> String {
        let path: String = self.steps.into_iter().rev().collect();
        format!("{root}{path}")
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

    /// As an exception of `tensorpost`'s: `"EncodeError"` or `"DecodeError"`. One that says that the program
    /// itself is to end, such as Ctrl-C, goes on as it is.
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

/// An exception that Python defines, in `tensorpost._errors`.
pub(crate) fn exception(py: Python<'_>, class: &'static str, text: String) -> PyErr {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = ERRORS.get_or_try_init(py, || py.import("tensorpost._errors").map(Bound::unbind));
    match module.and_then(|module| module.bind(py).getattr(class)?.call1((text,))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

thread_local! {
    /// The process whose death took the data that an error of this thread was about, since the call of a
    /// stage began.
    static LOST_WITH: Cell<Option<ProcessId>> = const { Cell::new(None) };
}

/// A call of a stage begins on this thread.
pub(crate) fn begin_call() {
    LOST_WITH.set(None);
}

/// The process whose death took the data that an error of the call on this thread was about (DEATH-3). An
/// exception carries no such thing through code of the user's.
pub(crate) fn lost_with() -> Option<ProcessId> {
    LOST_WITH.get()
}

/// Notes what an error is about that is about to be raised.
pub(crate) fn note(error: &TensorError) {
    if let Some(by) = error.lost_with() {
        LOST_WITH.set(Some(by));
    }
}

/// An error of a tensor as an exception.
pub(crate) fn tensor_error(py: Python<'_>, error: &TensorError) -> PyErr {
    note(error);
    exception(py, "TensorError", error.to_string())
}
