//! One tensor to several processes at once.

use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tensorpost::prelude::*;

use crate::kernels::Kernels;
use crate::outcome::{Outcome, Text};

/// A tensor to hold for as long as the handler runs. The reply is how many bytes of its own memory the
/// receiver has in use, and the first element if it was asked for.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Outcome<Held>)]
pub(crate) struct Hold {
    tensor: Tensor,
    look: bool,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Held {
    pool_bytes: u64,
    first: Option<f32>,
}

/// Sends one tensor of this many elements to all of `to`, and waits until all have replied, `rounds` times.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Outcome<Cast>)]
pub(crate) struct CastTo {
    pub(crate) to: Vec<Address<Hold>>,
    pub(crate) elements: usize,
    pub(crate) rounds: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cast {
    /// The time of each round until the last receiver had replied, in microseconds.
    pub(crate) times: Vec<f64>,
    /// Bytes of GPU memory that all receivers together allocated for it.
    pub(crate) copied: u64,
}

pub(crate) struct Holder {
    stream: DeviceStream,
}

pub(crate) struct Caster {
    stream: DeviceStream,
    kernels: Kernels,
}

impl Actor for Holder {
    type Context = Context<Self>;
}

impl Actor for Caster {
    type Context = Context<Self>;
}

impl RemoteActor for Holder {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Holder { stream: env.stream() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Hold>();
    }
}

impl RemoteActor for Caster {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        Ok(Caster { kernels: Kernels::load(&stream)?, stream })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<CastTo>();
    }
}

impl Handler<Hold> for Holder {
    type Result = Outcome<Held>;

    fn handle(&mut self, hold: Hold, _: &mut Context<Self>) -> Self::Result {
        let first = if hold.look {
            let first = hold.tensor.slice(0, 0..1).and_then(|first| self.stream.download::<f32>(&first));
            Some(first.map_err(|error| error.to_string())?.first().copied().ok_or("an empty tensor came")?)
        } else {
            None
        };
        Ok(Held { pool_bytes: self.stream.memory().held_bytes, first })
    }
}

impl Handler<CastTo> for Caster {
    type Result = ResponseFuture<Outcome<Cast>>;

    fn handle(&mut self, cast: CastTo, _: &mut Context<Self>) -> Self::Result {
        let tensor = self.make(cast.elements);
        async move { run(tensor?, &cast).await.map_err(|error| format!("{error:#}")) }
            .map(|result: Outcome<Cast>| result)
            .boxed_local()
    }
}

impl Caster {
    fn make(&self, elements: usize) -> Outcome<Tensor> {
        let make = || -> anyhow::Result<Tensor> {
            let mut tensor = self.stream.empty(DType::F32, &[elements])?;
            self.kernels.fill(&self.stream, &mut tensor, 7.0, std::time::Duration::ZERO)?;
            let tensor = tensor.freeze();
            tensor.wait(None)?;
            Ok(tensor)
        };
        make().map_err(|error| format!("{error:#}"))
    }
}

async fn run(tensor: Tensor, cast: &CastTo) -> anyhow::Result<Cast> {
    let mut times = Vec::with_capacity(cast.rounds);
    // The first round maps the memory in the receivers, and reads it.
    let mut copied = 0;
    for round in 0..=cast.rounds {
        let start = Instant::now();
        let asks = cast.to.iter().map(|to| to.ask(Hold { tensor: tensor.clone(), look: round == 0 }));
        // `join_all` walks the iterator first: all sends are made before the first reply is awaited.
        let replies = join_all(asks).await;
        let time = start.elapsed().as_secs_f64() * 1e6;
        if round > 0 {
            times.push(time);
        }
        for reply in replies {
            let held = reply?.map_err(anyhow::Error::msg)?;
            anyhow::ensure!(round > 0 || held.first.text("no element came")? == 7.0, "the tensor is another");
            copied = copied.max(held.pool_bytes);
        }
    }
    Ok(Cast { times, copied })
}
