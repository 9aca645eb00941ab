//! Ready-made actors for tensorpost, and the plain functions inside them.
//!
//! [`ready`] holds sources, stages and sinks for pipelines, and a pool of workers. [`matmul`] is a chain of
//! matrix products across processes. [`image`] and [`source`] know nothing of actors, devices or messages:
//! they are functions over slices and paths, so that a test, a bench or a program without the framework can
//! call them, and so that a GPU kernel has something to be compared with. [`ops`] is the same on tensors, on
//! whatever device they are.

pub mod image;
pub mod matmul;
pub mod ops;
pub mod ready;
pub mod source;
