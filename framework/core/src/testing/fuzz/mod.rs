//! The parts that the fuzz targets (`framework/core/fuzz`) reach and no program does: the node's broker,
//! parts of split tensors and the wire form of layouts, each with its oracle. An oracle panics where an
//! invariant is broken, so a target is a few lines that turn bytes into calls.
//!
//! The targets whose steps are [drawn](draws) here, `control` and `parts`, also run as ordinary tests, on
//! bytes from seeds.

pub mod control;
pub mod draws;
pub mod layouts;
pub mod parts;
