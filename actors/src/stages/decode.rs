//! The source: decodes the photographs of a folder, on the host straight into the memory that the next stage reads.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use tensorpost::prelude::*;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::Stage;
use super::messages::{End, Event, Frame, Next, Skipped};
use super::meter::Job;
use crate::image::{ImageError, ImageSize, decode};
use crate::source::ImageFolder;

/// Starts the source: so many frames, the folder's photographs over and over.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, GpuMessage)]
pub struct Produce {
    /// How many.
    pub frames: u64,
}

/// What an [`ImageSource`] needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageSourceArgs {
    /// Where the photographs are, see [`ImageFolder`].
    pub folder: PathBuf,
    /// Leaves files out that cannot be decoded, instead of ending with a failure.
    pub skip_bad: bool,
    /// Where frames go.
    pub next: Next<Frame>,
    /// Whom to tell.
    pub events: Address<Event>,
}

/// Decodes photographs into tensors. Started on a GPU, it decodes on the host and uploads.
///
/// It has one frame at a time in work, sends it when it is decoded, and begins the next when that was accepted.
///
/// ```no_run
/// use tensorpost::prelude::*;
/// use tensorpost_actors::stages::{Event, Frame, ImageSource, ImageSourceArgs, Next, Produce};
///
/// # fn example(node: &Node, next: Next<Frame>, events: Address<Event>) -> anyhow::Result<()> {
/// let args = ImageSourceArgs { folder: "photos".into(), skip_bad: false, next, events };
/// let source = node.spawn::<ImageSource>(args).name("decode").start()?;
/// node.block_on(source.address().send(Produce { frames: 200 }))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ImageSource {
    stage: Stage,
    folder: ImageFolder,
    skip_bad: bool,
    next: Next<Frame>,
}

impl Actor for ImageSource {
    type Context = Context<Self>;
}

impl RemoteActor for ImageSource {
    type Args = ImageSourceArgs;

    fn create(args: ImageSourceArgs, env: &Env) -> anyhow::Result<Self> {
        let ImageSourceArgs { folder, skip_bad, next, events } = args;
        let stage = Stage::new("decode", env, events);
        Ok(ImageSource { stage, folder: ImageFolder::open(folder)?, skip_bad, next })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Produce>();
    }
}

impl Handler<Produce> for ImageSource {
    // Unresolved while frames come: a shutdown sees that something is under way, and waits for the end.
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Produce { frames }: Produce, _: &mut Context<Self>) -> Self::Result {
        let source = self.clone();
        Box::pin(async move { source.produce(frames).await })
    }
}

/// What became of decoding; a text is for something else than the file.
type Decoded = Result<Result<(), ImageError>, String>;

const PANICKED: &str = "the decoder panicked; the worker's log says why";

/// Why a frame was not sent.
enum NotSent {
    /// The file.
    Bad(ImageError),
    /// Anything else; it was told.
    Failed,
}

impl ImageSource {
    async fn produce(self, count: u64) {
        let mut frames = 0;
        for (id, path) in self.folder.frames(count) {
            if self.stage.env.stopping().now_or_never().is_some() {
                break;
            }
            match self.send(id, path).await {
                Ok(()) => frames += 1,
                Err(NotSent::Bad(error)) if self.skip_bad => {
                    self.stage.tell(Event::Skipped(Skipped { id, why: error.to_string() })).await;
                }
                Err(NotSent::Bad(error)) => {
                    self.stage.fail(Some(id), error).await;
                    break;
                }
                Err(NotSent::Failed) => break,
            }
        }
        let end = self.stage.end(End { frames, stages: Vec::new() }).await;
        if let Err(error) = self.next.end.send(end).await {
            self.stage.fail(None, error).await;
        }
    }

    async fn send(&self, id: u64, path: Arc<Path>) -> Result<(), NotSent> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let pixels = self.decode(id, path).await?;
        let sent = self.stage.pass(id, &self.next, Frame { id, name, pixels }).await;
        if sent { Ok(()) } else { Err(NotSent::Failed) }
    }

    async fn decode(&self, id: u64, path: Arc<Path>) -> Result<Tensor, NotSent> {
        let size = decode::dimensions(&path).map_err(NotSent::Bad)?;
        let shape = [size.height() as usize, size.width() as usize, 3];
        let mut pixels = match self.stage.room(DType::U8, &shape).await {
            Ok(pixels) => pixels,
            Err(error) => return Err(self.failed(id, error).await),
        };
        let job = self.stage.meter.begin(self.stage.name, id);
        // A later stage's work may go on before its data is there. Here the data may turn out to be bad.
        let decoded = match self.stage.gpu.kind() {
            DeviceKind::Host => self.in_place(job, path, size, &mut pixels).await,
            _ => self.through_memory(job, path, size, &mut pixels).await,
        };
        match decoded {
            Ok(Ok(())) => Ok(pixels.freeze()),
            Ok(Err(error)) => Err(NotSent::Bad(error)),
            Err(why) => Err(self.failed(id, why).await),
        }
    }

    /// Decodes into the tensor's memory.
    async fn in_place(&self, job: Job, path: Arc<Path>, size: ImageSize, to: &mut TensorMut) -> Decoded {
        let (done, decoded) = oneshot::channel();
        let launched = self.stage.gpu.run((to.of_mut::<u8>(),), move |(hwc,)| {
            // Nobody waits for the outcome only when the worker ends.
            let _ = done.send(job.attempt(|| decode_as(&path, size, hwc)));
        });
        launched.map_err(|error| error.to_string())?;
        decoded.await.map_err(|_| PANICKED.to_owned())
    }

    /// Decodes on the host, on a thread of its own, and uploads what came out.
    async fn through_memory(
        &self,
        job: Job,
        path: Arc<Path>,
        size: ImageSize,
        to: &mut TensorMut,
    ) -> Decoded {
        let decoded = spawn_blocking(move || {
            job.attempt(|| {
                let mut hwc = vec![0; size.rgb_len()];
                decode_as(&path, size, &mut hwc).map(|()| hwc)
            })
        });
        match decoded.await.map_err(|_| PANICKED.to_owned())? {
            Ok(hwc) => Ok(Ok(self.stage.gpu.upload(to, &hwc).map_err(|error| error.to_string())?)),
            Err(bad) => Ok(Err(bad)),
        }
    }

    async fn failed(&self, id: u64, why: impl std::fmt::Display) -> NotSent {
        self.stage.fail(Some(id), why).await;
        NotSent::Failed
    }
}

/// Decodes a file that must have the size that was read from it before.
fn decode_as(path: &Path, size: ImageSize, hwc: &mut [u8]) -> Result<(), ImageError> {
    let image = decode::EncodedImage::open(path)?;
    if image.size() != size {
        let source =
            std::io::Error::other(format!("it changed from {size} to {} while it was read", image.size()));
        return Err(ImageError::Read { name: path.display().to_string(), source });
    }
    image.decode_into(hwc)
}
