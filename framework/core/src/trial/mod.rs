//! Operations that a node needs, tried once each, for the doctor of `tensorpost-watch`: it runs them in
//! processes of its own, and judges what they say.
//!
//! SAFE-1: an operation makes all memory, clocks and descriptors that it uses itself, or checks them as a
//! worker does.

pub mod exchange;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod kernel;
