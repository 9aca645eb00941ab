//! The bare parts: the cost of a message without the framework around it.
//!
//! Each function makes its threads, runs `count` messages, and returns the time between the first and the
//! last; starting and joining the threads is not part of it.

pub mod actix;
pub mod ring;
pub mod ring_actix;
pub mod socket;

/// Bytes of a message in all comparisons.
pub const MESSAGE: usize = 256;
/// The size of the rings, which is that of the framework's.
pub const RING: usize = tensorpost_core::limits::RING_BYTES;
