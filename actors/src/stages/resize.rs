//! The second stage: resizes a photograph and normalises it.

use actix::{AtomicResponse, WrapFuture};
use tensorpost::prelude::*;

use super::Stage;
use super::messages::{End, Event, Frame, Next, Planes};
use crate::image::ImageSize;
use crate::image::normalise::Normalisation;
use crate::image::resize::{Range, resize};
use crate::ops::{self, Op, OpError, Resizer, check};

/// What a [`Resize`] needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResizeArgs {
    /// The size to make.
    pub size: ImageSize,
    /// What to do with the values afterwards.
    pub normalisation: Normalisation,
    /// Compares every result with the host's, and fails where they differ. It blocks for that: to look for mistakes with.
    pub check: bool,
    /// Where results go.
    pub next: Next<Planes>,
    /// Whom to tell.
    pub events: Address<Event>,
}

/// Resizes and normalises: bytes in, floats out, both in memory that the other side reads in place; on whatever device the
/// actor is started.
///
/// ```no_run
/// use tensorpost::prelude::*;
/// use tensorpost_actors::image::{ImageSize, normalise::Normalisation};
/// use tensorpost_actors::stages::{Event, Next, Planes, Resize, ResizeArgs};
///
/// # fn example(node: &Node, next: Next<Planes>, events: Address<Event>) -> anyhow::Result<()> {
/// let (size, normalisation) = (ImageSize::new(224, 224)?, Normalisation::IMAGENET);
/// let args = ResizeArgs { size, normalisation, check: false, next, events };
/// let resize = node.spawn::<Resize>(args).name("resize").mailbox(4).start()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Resize {
    stage: Stage,
    resizer: Resizer,
    normalisation: Normalisation,
    check: bool,
    next: Next<Planes>,
}

impl Actor for Resize {
    type Context = Context<Self>;
}

impl RemoteActor for Resize {
    type Args = ResizeArgs;

    fn create(args: ResizeArgs, env: &Env) -> anyhow::Result<Self> {
        let ResizeArgs { size, normalisation, check, next, events } = args;
        let stage = Stage::new("resize + normalise", env, events);
        ops::prepare(&stage.gpu, &[Op::Resize, Op::Normalise])?;
        Ok(Resize { stage, resizer: Resizer::new(size, Range::Bytes), normalisation, check, next })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Frame>().message::<End>();
    }
}

impl Handler<Frame> for Resize {
    // One frame after the other, so that none overtakes; done when the next stage has accepted.
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, frame: Frame, _: &mut Context<Self>) -> Self::Result {
        let this = self.clone();
        AtomicResponse::new(Box::pin(async move { this.work(frame).await }.into_actor(self)))
    }
}

impl Handler<End> for Resize {
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

impl Resize {
    async fn work(self, frame: Frame) {
        if self.stage.has_failed().await {
            return;
        }
        let Frame { id, name, pixels } = frame;
        match self.launch(id, pixels).await {
            // Sent before it is computed: the next stage's stream waits for the data.
            Ok(pixels) => _ = self.stage.pass(id, &self.next, Planes { id, name, pixels }).await,
            Err(error) => self.stage.fail(Some(id), format!("{error:#}")).await,
        }
    }

    async fn launch(&self, id: u64, pixels: Tensor) -> anyhow::Result<Tensor> {
        let gpu = &self.stage.gpu;
        let mut planes = self.stage.room(DType::F32, &self.resizer.shape()).await?;
        let job = self.stage.meter.begin(self.stage.name, id);
        job.launch(gpu, || -> Result<(), OpError> {
            self.resizer.run(gpu, &pixels, &mut planes)?;
            ops::normalise(gpu, &mut planes, &self.normalisation)
        })?;
        let planes = planes.freeze();
        if self.check {
            self.check(&pixels, &planes)?;
        }
        Ok(planes)
    }

    fn check(&self, pixels: &Tensor, planes: &Tensor) -> Result<(), OpError> {
        let gpu = &self.stage.gpu;
        let hwc = gpu.download::<u8>(pixels)?;
        // The shape was looked at before the work was put on the stream.
        let side = |axis: usize| u32::try_from(pixels.shape()[axis]).unwrap_or(u32::MAX);
        let (from, to) = (ImageSize::new(side(1), side(0))?, self.resizer.size());
        let mut wanted = vec![0.0; to.rgb_len()];
        resize(&hwc, from, &mut wanted, to, Range::Bytes)?;
        self.normalisation.apply(&mut wanted, to)?;
        check::floats(gpu, "the resized and normalised image", planes, &wanted, 0.0)?;
        Ok(())
    }
}
