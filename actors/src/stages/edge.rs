//! The third stage: finds edges, in the memory that the image came in.

use actix::{AtomicResponse, WrapFuture};
use tensorpost::prelude::*;

use super::Stage;
use super::messages::{Edges, End, Event, Next, Planes};
use crate::image::edge::{EDGES_PLANE, edges, edges_in_place};
use crate::image::{ImageError, ImageSize};

/// What an [`EdgeFilter`] needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EdgeFilterArgs {
    /// Where results go.
    pub next: Next<Edges>,
    /// Whom to tell.
    pub events: Address<Event>,
}

/// Finds the edges of an image.
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
/// let edges = node.spawn::<EdgeFilter>(EdgeFilterArgs { next, events }).name("edges").mailbox(4).start()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EdgeFilter {
    stage: Stage,
    next: Next<Edges>,
}

impl Actor for EdgeFilter {
    type Context = Context<Self>;
}

impl RemoteActor for EdgeFilter {
    type Args = EdgeFilterArgs;

    fn create(args: EdgeFilterArgs, env: &Env) -> anyhow::Result<Self> {
        Ok(EdgeFilter { stage: Stage::new("edge filter", env, args.events), next: args.next })
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
        match pixels.into_mut(&self.stage.gpu) {
            Ok(pixels) => self.in_place(id, size, pixels),
            Err(shared) => self.beside(id, size, shared.tensor).await,
        }
    }

    fn in_place(&self, id: u64, size: ImageSize, mut pixels: TensorMut) -> anyhow::Result<Tensor> {
        let job = self.stage.meter.begin(self.stage.name, id);
        self.stage.gpu.run((pixels.of_mut::<f32>(),), move |(chw,)| {
            let _ = job.run(|| edges_in_place(chw, size));
        })?;
        self.stage.meter.in_place();
        Ok(pixels.freeze().index(0, EDGES_PLANE)?)
    }

    async fn beside(&self, id: u64, size: ImageSize, pixels: Tensor) -> anyhow::Result<Tensor> {
        let (height, width) = (size.height() as usize, size.width() as usize);
        let mut own = self.stage.room(DType::F32, &[2, height, width]).await?;
        let job = self.stage.meter.begin(self.stage.name, id);
        self.stage.gpu.run((pixels.of::<f32>(), own.of_mut::<f32>()), move |(chw, own)| {
            let (luma, magnitude) = own.split_at_mut(size.pixels());
            let _: Result<(), ImageError> = job.run(|| edges(chw, size, luma, magnitude));
        })?;
        Ok(own.freeze().index(0, 1)?)
    }
}
