//! A sink as a stage without results.

use serde::{Deserialize, Serialize};
use tensorpost_core::api::actor::Env;
use tensorpost_core::api::message::GpuMessage;

use crate::{Out, Sink, Stage};

/// The output of a sink. It has no value.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core)]
pub(crate) enum Nothing {}

/// See the module.
pub(crate) struct AsSink<S>(S);

impl<S: Sink> Stage for AsSink<S> {
    type Args = S::Args;
    type In = S::In;
    type Out = Nothing;

    fn create(args: S::Args, env: &Env) -> anyhow::Result<Self> {
        S::create(args, env).map(AsSink)
    }

    async fn prepare(&mut self, env: &Env) -> anyhow::Result<()> {
        self.0.prepare(env).await
    }

    fn process(&mut self, item: S::In, _: &mut Out<Nothing>) -> anyhow::Result<()> {
        self.0.consume(item)
    }

    fn finish(&mut self, _: &mut Out<Nothing>) -> anyhow::Result<()> {
        self.0.finish()
    }
}
