//! The second stage: resizes a photograph and normalises it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use actix::{AtomicResponse, WrapFuture};
use tensorpost::prelude::*;

use super::Stage;
use super::messages::{End, Event, Frame, Next, Planes};
use crate::image::normalise::Normalisation;
use crate::image::resize::{Bilinear, Range};
use crate::image::{ImageError, ImageSize};

/// Sizes of photographs whose tables are kept.
const KEPT_SIZES: usize = 16;

/// What a [`Resize`] needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResizeArgs {
    /// The size to make.
    pub size: ImageSize,
    /// What to do with the values afterwards.
    pub normalisation: Normalisation,
    /// Where results go.
    pub next: Next<Planes>,
    /// Whom to tell.
    pub events: Address<Event>,
}

/// Resizes and normalises: bytes in, floats out, both in memory that the other side reads in place.
///
/// ```no_run
/// use tensorpost::prelude::*;
/// use tensorpost_actors::image::{ImageSize, normalise::Normalisation};
/// use tensorpost_actors::stages::{Event, Next, Planes, Resize, ResizeArgs};
///
/// # fn example(node: &Node, next: Next<Planes>, events: Address<Event>) -> anyhow::Result<()> {
/// let (size, normalisation) = (ImageSize::new(224, 224)?, Normalisation::IMAGENET);
/// let args = ResizeArgs { size, normalisation, next, events };
/// let resize = node.spawn::<Resize>(args).name("resize").mailbox(4).start()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Resize {
    stage: Stage,
    size: ImageSize,
    normalisation: Normalisation,
    /// By the photograph's size; used on the stream's thread alone, so the lock is always free.
    tables: Arc<Mutex<HashMap<ImageSize, Bilinear>>>,
    next: Next<Planes>,
}

impl Actor for Resize {
    type Context = Context<Self>;
}

impl RemoteActor for Resize {
    type Args = ResizeArgs;

    fn create(args: ResizeArgs, env: &Env) -> anyhow::Result<Self> {
        let ResizeArgs { size, normalisation, next, events } = args;
        let stage = Stage::new("resize + normalise", env, events);
        Ok(Resize { stage, size, normalisation, tables: Arc::default(), next })
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
        // Any process could send this, so the size is looked at before it is believed.
        let side = |axis: usize| u32::try_from(pixels.shape()[axis]).unwrap_or(u32::MAX);
        let from = ImageSize::new(side(1), side(0))?;
        let (height, width) = (self.size.height() as usize, self.size.width() as usize);
        let mut planes = self.stage.room(DType::F32, &[3, height, width]).await?;
        let job = self.stage.meter.begin(self.stage.name, id);
        let Resize { size, normalisation, .. } = *self;
        let tables = Arc::clone(&self.tables);
        self.stage.gpu.run((pixels.of::<u8>(), planes.of_mut::<f32>()), move |(hwc, chw)| {
            // An error is in the report, which comes behind the frames.
            let _ = job.run(|| {
                resize(&tables, from, size, hwc, chw)?;
                normalisation.apply(chw, size)
            });
        })?;
        Ok(planes.freeze())
    }
}

fn resize(
    tables: &Mutex<HashMap<ImageSize, Bilinear>>,
    from: ImageSize,
    to: ImageSize,
    hwc: &[u8],
    chw: &mut [f32],
) -> Result<(), ImageError> {
    // A panic elsewhere leaves tables that are whole: they are only written while they are made.
    let mut tables = tables.lock().unwrap_or_else(PoisonError::into_inner);
    if tables.len() >= KEPT_SIZES && !tables.contains_key(&from) {
        tables.clear();
    }
    tables.entry(from).or_insert_with(|| Bilinear::new(from, to)).run(hwc, chw, Range::Bytes)
}
