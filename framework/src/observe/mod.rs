//! observe.

pub mod log;
