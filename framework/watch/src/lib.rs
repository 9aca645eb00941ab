//! Watches nodes of `tensorpost`. The command `tensorpost` and the crate `tensorpost` use it; a program
//! depends on `tensorpost`.
//!
//! `tensorpost-core` records: it has the rings, the counters and one snapshot of a node. This crate shows
//! what was recorded.

pub mod console;
pub mod doctor;
mod limits;
mod live;
#[cfg(feature = "cuda")]
mod nvml;
mod registered;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
mod trace;
