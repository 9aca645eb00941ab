//! Ready-made actors for tensorpost, and the plain functions inside them.
//!
//! The module [`ready`] has sources, stages and sinks for pipelines, and a pool of workers. The module
//! [`matmul`] is a chain of matrix products across processes. The modules [`image`] and [`source`] know
//! nothing of actors, devices or messages: they are functions over slices and paths. So a test, a bench or a
//! program without the framework can call them, and the results of GPU kernels can be compared with theirs.
//! The module [`ops`] does the same on tensors, on any device.

pub mod image;
pub mod matmul;
pub mod ops;
pub mod ready;
pub mod source;

/// The examples of the guide to GPUs, which need cudarc, compiled as they are.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../docs/site/guides/gpus.md")]
struct GpusGuide;
