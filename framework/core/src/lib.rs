//! What [`tensorpost`](https://docs.rs/tensorpost) is made of: memory, clocks, leases, messages, actors and nodes. A program
//! depends on `tensorpost`, which re-exports what is meant for it: [`api`]. Everything else is private, and `pub` only with
//! the feature `testing`, for this framework's own tests.

pub mod api;

pub mod ids;
pub mod limits;

pub mod actor;
pub mod clock;
pub mod device;
pub mod fault;
pub mod lease;
pub mod mailbox;
pub mod message;
pub mod node;
pub mod observe;
pub mod os;
pub mod tensor;
pub mod testing;

/// What the derive's code refers to. Not for anyone else.
#[doc(hidden)]
pub mod __private {
    pub use crate::device::DeviceKind;
    pub use crate::message::{CheckTensors, GpuMessage, TensorCheckError, TensorSpec};
    pub use crate::tensor::DType;
    pub use {actix, serde};
}
