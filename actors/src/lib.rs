//! Ready-made actors for tensorpost, and the plain functions inside them.
//!
//! [`stages`] holds the actors of an image pipeline: stages that each run in a process of their own. [`matmul`] is a
//! chain of matrix products across processes. [`image`] and [`source`] know nothing of actors, devices or messages: they
//! are functions over slices and paths, so that a test, a bench or a program without the framework can call them, and
//! so that a GPU kernel has something to be compared with.

pub mod image;
pub mod matmul;
pub mod ops;
pub mod source;
pub mod stages;
