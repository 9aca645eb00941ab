//! The native half of the Python package `tensorpost`: message types, their values as bytes, tensors by
//! DLPack, and actors.
//!
//! Python reads annotations and makes a [`Plan`](plan::Plan) of each type; the canonical text, the bytes and
//! the checks come from `tensorpost-core`, so there is one definition of each. Nothing here holds a lock
//! while Python runs.
//!
//! A Python actor has a Rust actor before it ([`actor`]), in a worker that is an interpreter. Between the two
//! is a [`mailbox`], because the Rust thread is the process's reader: it never takes the interpreter, and a
//! Python handler may block.

// No item of it is used: it gives each node its live page and its trace.
extern crate tensorpost_watch as _;

mod actor;
mod address;
mod address_space;
mod bounds;
mod capsule;
mod construct;
mod context;
mod cuda;
mod decode;
mod demo;
mod describe;
mod encode;
mod failure;
mod feed;
mod garbage;
mod imports;
mod lent_out;
mod loader;
mod mailbox;
mod message_class;
mod meter;
mod neutral;
mod node;
mod pipeline;
mod plan;
mod pool;
mod reader;
mod rust_workers;
mod serve;
mod spawn;
mod spin;
mod stage;
mod tensor;
mod topic;
mod torch;
mod wait;

use pyo3::prelude::*;

/// Returns the lines in which two schemas of a message differ, as a handshake shows them.
#[pyfunction]
fn differences(text: &str, other: &str, this: &str, that: &str) -> Vec<String> {
    tensorpost_core::message::portable::differences(text, other, this, that)
}

/// The native parts of `tensorpost`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("INHERITED", tensorpost_core::os::fork::INHERITED)?;
    module.add_class::<plan::Plan>()?;
    module.add_class::<tensor::PyTensor>()?;
    module.add_class::<address::PyAddress>()?;
    module.add_class::<stage::PyCalls>()?;
    module.add_class::<stage::PyCall>()?;
    module.add_class::<feed::PyFeed>()?;
    module.add_class::<pipeline::PyEnd>()?;
    module.add_class::<pipeline::PyRunning>()?;
    module.add_function(wrap_pyfunction!(pipeline::check_pipeline, module)?)?;
    module.add_function(wrap_pyfunction!(pipeline::describe_pipeline, module)?)?;
    module.add_function(wrap_pyfunction!(pipeline::run_pipeline, module)?)?;
    module.add_class::<node::PyNode>()?;
    module.add_class::<node::PyChannel>()?;
    module.add_class::<node::PyWatch>()?;
    module.add_class::<loader::PyLoader>()?;
    module.add_function(wrap_pyfunction!(loader::processors, module)?)?;
    module.add_class::<mailbox::PyMailbox>()?;
    module.add_class::<mailbox::Delivered>()?;
    module.add_class::<wait::Driven>()?;
    module.add_function(wrap_pyfunction!(actor::run_worker, module)?)?;
    module.add_function(wrap_pyfunction!(differences, module)?)?;
    let close = wrap_pyfunction!(capsule::close, module)?;
    module.py().import("atexit")?.call_method1("register", (close,))?;
    Ok(())
}
