//! The third stage: finds edges, in the memory that the image came in.

use actix::{AtomicResponse, WrapFuture};
use tensorpost::prelude::*;

use super::Stage;
use super::messages::{Edges, End, Event, Next, Planes};
use crate::image::ImageSize;
use crate::image::edge::edges;
use crate::ops::{self, Op, OpError, check};

/// What an [`EdgeFilter`] needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EdgeFilterArgs {
    /// Compares every result with the host's, and fails where they differ. It blocks for that: to look for mistakes with.
    pub check: bool,
    /// Where results go.
    pub next: Next<Edges>,
    /// Whom to tell.
    pub events: Address<Event>,
}

/// Finds the edges of an image, on whatever device the actor is started.
///
/// The stage before has let go of the image when it sent it, so the memory is this actor's alone
/// ([`Tensor::into_mut`]): the edges are written over the image's green plane, and a view of that plane goes on. An image
/// that somebody else holds too is left as it is; its edges get memory of their own.
///
/// ```no_run
/// use tensorpost::prelude::*;
/// use tensorpost_actors::stages::{EdgeFilter, EdgeFilterArgs, Edges, Event, Next};
///
/// # fn example(node: &Node, next: Next<Edges>, events: Address<Event>) -> anyhow::Result<()> {
/// let edges = node.spawn::<EdgeFilter>(EdgeFilterArgs { check: false, next, events }).name("edges").mailbox(4).start()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EdgeFilter {
    stage: Stage,
    check: bool,
    next: Next<Edges>,
}

impl Actor for EdgeFilter {
    type Context = Context<Self>;
}

impl RemoteActor for EdgeFilter {
    type Args = EdgeFilterArgs;

    fn create(args: EdgeFilterArgs, env: &Env) -> anyhow::Result<Self> {
        let EdgeFilterArgs { check, next, events } = args;
        let stage = Stage::new("edge filter", env, events);
        ops::prepare(&stage.gpu, &[Op::Edges])?;
        Ok(EdgeFilter { stage, check, next })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Planes>().message::<End>();
    }
}

impl Handler<Planes> for EdgeFilter {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, planes: Planes, _: &mut Context<Self>) -> Self::Result {
        let this = self.clone();
        AtomicResponse::new(Box::pin(async move { this.work(planes).await }.into_actor(self)))
    }
}

impl Handler<End> for EdgeFilter {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, end: End, _: &mut Context<Self>) -> Self::Result {
        let this = self.clone();
        let finish = async move {
            let end = this.stage.end(end).await;
            if let Err(error) = this.next.end.send(end).await {
                this.stage.fail(None, error).await;
            }
        };
        AtomicResponse::new(Box::pin(finish.into_actor(self)))
    }
}

impl EdgeFilter {
    async fn work(self, planes: Planes) {
        if self.stage.has_failed().await {
            return;
        }
        let Planes { id, name, pixels } = planes;
        match self.launch(id, pixels).await {
            Ok(magnitude) => _ = self.stage.pass(id, &self.next, Edges { id, name, magnitude }).await,
            Err(error) => self.stage.fail(Some(id), format!("{error:#}")).await,
        }
    }

    async fn launch(&self, id: u64, pixels: Tensor) -> anyhow::Result<Tensor> {
        let side = |axis: usize| u32::try_from(pixels.shape()[axis]).unwrap_or(u32::MAX);
        let size = ImageSize::new(side(2), side(1))?;
        // In place, nothing is left of it afterwards.
        let before = self.check.then(|| self.stage.gpu.download::<f32>(&pixels)).transpose()?;
        let magnitude = match pixels.into_mut(&self.stage.gpu) {
            Ok(pixels) => self.in_place(id, pixels)?,
            Err(shared) => self.beside(id, size, shared.tensor).await?,
        };
        if let Some(before) = before {
            self.check(&before, size, &magnitude)?;
        }
        Ok(magnitude)
    }

    fn in_place(&self, id: u64, pixels: TensorMut) -> Result<Tensor, OpError> {
        let gpu = &self.stage.gpu;
        let job = self.stage.meter.begin(self.stage.name, id);
        let magnitude = job.launch(gpu, || ops::edges_in_place(gpu, pixels))?;
        self.stage.meter.in_place();
        Ok(magnitude)
    }

    async fn beside(&self, id: u64, size: ImageSize, pixels: Tensor) -> anyhow::Result<Tensor> {
        let (height, width) = (size.height() as usize, size.width() as usize);
        let mut own = self.stage.room(DType::F32, &[2, height, width]).await?;
        let gpu = &self.stage.gpu;
        let job = self.stage.meter.begin(self.stage.name, id);
        job.launch(gpu, || ops::edges_into(gpu, &pixels, &mut own))?;
        Ok(own.freeze().index(0, 1)?)
    }

    fn check(&self, before: &[f32], size: ImageSize, magnitude: &Tensor) -> Result<(), OpError> {
        let (mut luma, mut wanted) = (vec![0.0; size.pixels()], vec![0.0; size.pixels()]);
        edges(before, size, &mut luma, &mut wanted)?;
        check::floats(&self.stage.gpu, "the edges", magnitude, &wanted, 0.0)?;
        Ok(())
    }
}
