//! The same line as actors that are wired by hand: each knows the address of the next and sends to it.

use anyhow::Context as _;
use futures_util::future::LocalBoxFuture;
use tensorpost::prelude::*;

use crate::parts::{Busy, Clock, Frame, Frames, Make, Measure};

/// How an actor hands an item on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Hop {
    /// With a message that the next mailbox accepts.
    Send,
    /// With a message whose reply is awaited beside the next items, as the pipeline builder does.
    Ask,
}

impl Hop {
    /// Hands an item on; the call itself makes the first attempt. Resolves when it was accepted.
    fn pass(self, to: &Address<Frame>, frame: Frame) -> LocalBoxFuture<'static, anyhow::Result<()>> {
        match self {
            Hop::Send => {
                let send = to.send(frame);
                Box::pin(async move { send.await.map_err(|error| error.reason.into()) })
            }
            Hop::Ask => {
                let mut ask = to.ask(frame);
                Box::pin(async move {
                    ask.accepted().await.map_err(|error| anyhow::anyhow!("{error}"))?;
                    actix::spawn(async move {
                        if let Err(error) = ask.await {
                            eprintln!("an item was not answered: {error}");
                        }
                    });
                    Ok(())
                })
            }
        }
    }
}

/// Makes all items.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<(), String>)]
pub(crate) struct Go;

pub(crate) struct WiredSource {
    /// The frames, taken once it runs.
    frames: Option<Frames>,
    to: Address<Frame>,
    hop: Hop,
}

impl Actor for WiredSource {
    type Context = Context<Self>;
}

impl RemoteActor for WiredSource {
    type Args = (Make, Address<Frame>, Hop);

    fn create((make, to, hop): Self::Args, env: &Env) -> anyhow::Result<Self> {
        Ok(WiredSource { frames: Some(Frames::create(make, env)?), to, hop })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Go>();
    }
}

impl Handler<Go> for WiredSource {
    type Result = ResponseFuture<Result<(), String>>;

    fn handle(&mut self, _: Go, _: &mut Context<Self>) -> Self::Result {
        let (frames, to, hop) = (self.frames.take(), self.to.clone(), self.hop);
        let run = async move {
            let mut frames = frames.context("it ran already")?;
            while let Some(frame) = frames.next()? {
                hop.pass(&to, frame).await?;
                // The process has other messages to read.
                tokio::task::yield_now().await;
            }
            Ok(())
        };
        Box::pin(async move { run.await.map_err(|error: anyhow::Error| format!("{error:#}")) })
    }
}

pub(crate) struct WiredStage {
    busy: Busy,
    to: Address<Frame>,
    hop: Hop,
}

impl Actor for WiredStage {
    type Context = Context<Self>;
}

impl RemoteActor for WiredStage {
    type Args = (u64, Address<Frame>, Hop);

    fn create((micros, to, hop): Self::Args, env: &Env) -> anyhow::Result<Self> {
        Ok(WiredStage { busy: Busy::create(micros, env)?, to, hop })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Frame>();
    }
}

impl Handler<Frame> for WiredStage {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, frame: Frame, _: &mut Context<Self>) -> Self::Result {
        let passed = self.hop.pass(&self.to, self.busy.work(frame));
        Box::pin(async move {
            if let Err(error) = passed.await {
                eprintln!("an item was lost: {error:#}");
            }
        })
    }
}

pub(crate) struct WiredSink(Clock);

impl Actor for WiredSink {
    type Context = Context<Self>;
}

impl RemoteActor for WiredSink {
    type Args = Measure;

    fn create(measure: Measure, env: &Env) -> anyhow::Result<Self> {
        Clock::create(measure, env).map(WiredSink)
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Frame>();
    }
}

impl Handler<Frame> for WiredSink {
    type Result = ();

    fn handle(&mut self, frame: Frame, _: &mut Context<Self>) {
        if let Err(error) = self.0.consume(frame) {
            eprintln!("{error:#}");
        }
    }
}
