//! Everything that a program with actors and tensors starts with: `use tensorpost::prelude::*;`.

pub use actix::{
    Actor, ActorContext, AsyncContext, Context, Handler, MessageResult, ResponseActFuture, ResponseFuture,
};
pub use serde::{Deserialize, Serialize};
pub use tensorpost_derive::GpuMessage;

pub use crate::actor::{
    Address, AskError, Channel, DeadLetter, Env, Handles, Lifecycle, RemoteActor, SendError, SendFailure,
};
pub use crate::device::{Device, DeviceKind};
pub use crate::message::GpuMessage;
pub use crate::node::{Node, OnHang, Restart, Sharing, Strategy};
pub use crate::pipeline::{
    AddPipeline, Flow, Item, OnError, Out, Pipeline, RunPipeline, Sink, Source, Stage,
};
pub use crate::tensor::{DType, Element, Gpu, Tensor, TensorError, TensorMut, TensorPart, TensorStatus};
