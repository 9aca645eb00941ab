//! The imports that a program with actors and tensors starts with: `use tensorpost::prelude::*;`.
//!
//! It has the items of actix and serde that actors need, the derives and attributes, and the types that
//! nearly every program names. `serde` has to be a dependency of the program itself, because its derives name
//! it.
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

#[doc(no_inline)]
pub use actix::{
    Actor, ActorContext, AsyncContext, Context, Handler, MessageResult, ResponseActFuture, ResponseFuture,
    WrapFuture,
};
#[doc(no_inline)]
pub use serde::{Deserialize, Serialize};
// Not re-exported from the front door itself, where `actor` is a module too.
#[doc(no_inline)]
pub use tensorpost_derive::{actor, stage};

#[doc(no_inline)]
pub use crate::actor::{
    Address, AskError, Channel, DeadLetter, Env, Handles, Lifecycle, RemoteActor, SendError, SendFailure,
};
#[doc(no_inline)]
pub use crate::device::{Device, DeviceKind};
#[doc(no_inline)]
pub use crate::message::GpuMessage;
#[doc(no_inline)]
pub use crate::node::{Node, NodeBuilder, OnHang, Restart, Sharing, Spawned, Strategy};
#[doc(no_inline)]
pub use crate::pipeline::{Flow, Item, OnError, Out, Pipeline, RunPipeline, Sink, Source, Stage};
#[doc(no_inline)]
pub use crate::published::{Publisher, Subscriber, Topic};
#[doc(no_inline)]
pub use crate::tensor::{
    DType, DeviceStream, Element, Tensor, TensorError, TensorMut, TensorPart, TensorStatus,
};
