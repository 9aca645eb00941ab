//! Everything that a program with actors and tensors starts with: `use tensorpost::prelude::*;`.
//!
//! It has what actors need of actix and serde, the derive, and the types that nearly every program names. `serde` has
//! to be a dependency of the program itself, because its derives name it.
//!
//! ```
//! use tensorpost::prelude::*;
//!
//! #[derive(Clone, Serialize, Deserialize, GpuMessage)]
//! struct Sample(Tensor);
//!
//! # fn main() -> anyhow::Result<()> {
//! let node = Node::builder().start()?;
//! let (address, mut samples) = node.channel::<Sample>()?;
//! node.block_on(address.send(Sample(node.host_stream()?.zeros(DType::F32, &[8])?.freeze())))?;
//! assert_eq!(samples.blocking_recv()?.0.shape(), [8]);
//! # Ok(())
//! # }
//! ```

pub use actix::{
    Actor, ActorContext, AsyncContext, Context, Handler, MessageResult, ResponseActFuture, ResponseFuture,
};
pub use serde::{Deserialize, Serialize};
pub use tensorpost_derive::GpuMessage;

pub use crate::Node;
pub use crate::actor::{
    Address, AskError, Channel, DeadLetter, Env, Handles, Lifecycle, RemoteActor, SendError, SendFailure,
};
pub use crate::device::{Device, DeviceKind};
pub use crate::message::GpuMessage;
pub use crate::node::{OnHang, Restart, Sharing, Strategy};
pub use crate::pipeline::{Flow, Item, OnError, Out, Pipeline, Sink, Source, Stage};
pub use crate::tensor::{
    DType, DeviceStream, Element, Tensor, TensorError, TensorMut, TensorPart, TensorStatus,
};
