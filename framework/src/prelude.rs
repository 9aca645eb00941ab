//! Everything that a program with actors and tensors starts with: `use tensorpost::prelude::*;`.

#[doc(no_inline)]
pub use actix::{
    Actor, ActorContext, AsyncContext, Context, Handler, MessageResult, ResponseActFuture, ResponseFuture,
};
#[doc(no_inline)]
pub use serde::{Deserialize, Serialize};

#[doc(no_inline)]
pub use crate::actor::{
    Address, AskError, Channel, DeadLetter, Env, Handles, Lifecycle, RemoteActor, SendError, SendFailure,
};
#[doc(no_inline)]
pub use crate::device::{Device, DeviceKind};
#[doc(no_inline)]
pub use crate::message::GpuMessage;
#[doc(no_inline)]
pub use crate::node::{Node, OnHang, Restart, Sharing, Strategy};
#[doc(no_inline)]
pub use crate::pipeline::{
    AddPipeline, Flow, Item, OnError, Out, Pipeline, RunPipeline, Sink, Source, Stage,
};
#[doc(no_inline)]
pub use crate::tensor::{DType, Element, Gpu, Tensor, TensorError, TensorMut, TensorPart, TensorStatus};
