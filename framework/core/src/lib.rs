//! What [`tensorpost`](https://docs.rs/tensorpost) is made of: memory, clocks, leases, messages, actors and nodes. A program
//! depends on `tensorpost`, which re-exports what is meant for it.

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
pub mod pipeline;
pub mod published;
pub mod tensor;
pub mod testing;

/// A running node: see [`node::Node`].
///
/// It starts without workers; each [`spawn`](node::Node::spawn) adds one. Dropping it shuts it down.
///
/// ```
/// use tensorpost::prelude::*;
///
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().host_budget(1 << 30).start()?;
/// let gpu = node.host()?;
/// let ones = gpu.from_slice(&[2, 2], &[1.0_f32; 4])?.freeze();
/// assert_eq!(ones.to_vec::<f32>()?, [1.0; 4]);
/// # Ok(())
/// # }
/// ```
pub type Node = node::Node<actor::Program>;

/// What the derive's code refers to. Not for anyone else.
#[doc(hidden)]
pub mod __private {
    pub use crate::device::DeviceKind;
    pub use crate::message::{CheckTensors, GpuMessage, TensorCheckError, TensorSpec};
    pub use crate::tensor::DType;
    pub use {actix, serde};
}
