//! The parts that the fuzz targets (`framework/core/fuzz`) reach and no program does: the node's broker, the
//! trace of a process and the wire form of layouts, each with its oracle. An oracle panics where an invariant
//! is broken, so a target is a few lines that turn bytes into calls.

pub mod control;
pub mod layouts;
pub mod trace;
