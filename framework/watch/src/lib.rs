//! Watches nodes of `tensorpost`. The command `tensorpost` and the crate `tensorpost` use it; a program
//! depends on `tensorpost`.
//!
//! `tensorpost-core` records: it has the rings, the counters and one snapshot of a node. This crate shows
//! what was recorded.

pub mod console;
pub mod doctor;
pub mod draw;
mod limits;
mod live;
#[cfg(feature = "cuda")]
mod nvml;
mod progress;
mod registered;
mod series;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
mod trace;

/// The items that `tensorpost` shows, in its module `observe`.
pub mod api {
    pub use crate::progress::ProgressWriter;
    pub use crate::trace::chrome;
}
