//! Image arithmetic over plain slices: decode, resize, normalise, find edges, measure, write.
//!
//! # Layouts
//! | name | element | index of channel `c`, row `y`, column `x` |
//! |---|---|---|
//! | HWC | `u8`, as from a decoder | `(y * width + x) * 3 + c` |
//! | CHW | `f32`, as for a network | `(c * height + y) * width + x` |
//! | HW | `f32` or `u8`, one channel | `y * width + x` |
//!
//! Channels are red, green, blue. Slices are dense (no row padding) and exactly as long as the layout says;
//! another length is an [`ImageError::Length`], never a panic and never a partial result. Outputs go into the
//! caller's slices, so they can lie in shared memory.
//!
//! # Agreement with a GPU kernel
//! All per-pixel arithmetic is `f32`, one rounding per operation, in the order that each function documents;
//! sampling coordinates are exact integers. A kernel that follows the order is bit-equal when it is compiled
//! without contraction (`-fmad=false`) and with exact division and square root (the compiler's defaults), as
//! those of [`ops`](crate::ops) are. With contraction into fused multiply-adds, expect these differences:
//!
//! | function | range of values | largest difference |
//! |---|---|---|
//! | [`resize`] | 0..=255 | [`resize::TOLERANCE`] |
//! | [`normalise`] | any | none (nothing to contract); its inverse [`normalise::INVERSE_TOLERANCE`] |
//! | [`edge`] | 0..=255 | [`edge::TOLERANCE`] |
//! | [`quantise`] | 0..=255 | 1 step, where a value lies within rounding of a half |
//!
//! Nothing here uses threads: the stages of a pipeline run side by side already.

pub mod convolve;
pub mod decode;
pub mod edge;
mod error;
pub mod normalise;
pub mod png;
pub mod quantise;
pub mod resize;
mod size;
pub mod stats;

pub use error::ImageError;
pub use size::{ImageSize, MAX_SIDE};

pub(crate) use error::expect_len;
