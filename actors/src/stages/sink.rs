//! The last stage: writes PNG files and a table of statistics.

use std::cell::RefCell;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use actix::{AtomicResponse, WrapFuture};
use anyhow::Context as _;
use tempfile::NamedTempFile;
use tensorpost::prelude::*;
use tokio::task::spawn_blocking;

use super::Stage;
use super::messages::{Edges, End, Event, Written};
use crate::image::stats::Stats;
use crate::image::{ImageSize, png};
use crate::ops::{self, Op, OpError, SUMMARY_WORDS};

/// The table's name in the sink's folder.
pub const STATISTICS: &str = "statistics.csv";

/// What a [`PngSink`] needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PngSinkArgs {
    /// Where files go; it is made if it is not there.
    pub folder: PathBuf,
    /// What magnitudes are multiplied with to become bytes, see [`edge_gain`](super::edge_gain).
    pub gain: f32,
    /// Whom to tell.
    pub events: Address<Event>,
}

/// Writes each image as `00042-name.png`, and at the end [`STATISTICS`]: one line for each, in order.
///
/// Bytes and statistics are made on the device that the actor is started on, and brought to the host from there. It is done
/// with a frame when the file is there. Files appear whole or not at all.
///
/// ```no_run
/// use tensorpost::prelude::*;
/// use tensorpost_actors::image::normalise::Normalisation;
/// use tensorpost_actors::stages::{Event, PngSink, PngSinkArgs, edge_gain};
///
/// # fn example(node: &Node) -> anyhow::Result<()> {
/// let (events, mut news) = node.channel::<Event>()?;
/// let gain = edge_gain(&Normalisation::IMAGENET);
/// let args = PngSinkArgs { folder: "out".into(), gain, events };
/// let sink = node.spawn::<PngSink>(args).name("write").mailbox(4).start()?;
/// // … start the other stages, then:
/// while let Ok(event) = news.blocking_recv() {
///     match event {
///         Event::Written(written) => println!("{}", written.file),
///         Event::Finished(_) => break,
///         other => println!("{other:?}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PngSink {
    stage: Stage,
    folder: PathBuf,
    gain: f32,
    /// `None` once it has its final name.
    table: Rc<RefCell<Option<BufWriter<NamedTempFile>>>>,
}

impl Actor for PngSink {
    type Context = Context<Self>;
}

impl RemoteActor for PngSink {
    type Args = PngSinkArgs;

    fn create(args: PngSinkArgs, env: &Env) -> anyhow::Result<Self> {
        let PngSinkArgs { folder, gain, events } = args;
        let table = open_table(&folder).with_context(|| {
            format!("cannot write to {}; give a folder that may be written to", folder.display())
        })?;
        let table = Rc::new(RefCell::new(Some(table)));
        let stage = Stage::new("write", env, events);
        ops::prepare(&stage.gpu, &[Op::ToGray8, Op::Stats])?;
        Ok(PngSink { stage, folder, gain, table })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Edges>().message::<End>();
    }
}

impl Handler<Edges> for PngSink {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, edges: Edges, _: &mut Context<Self>) -> Self::Result {
        let this = self.clone();
        AtomicResponse::new(Box::pin(async move { this.work(edges).await }.into_actor(self)))
    }
}

impl Handler<End> for PngSink {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, end: End, _: &mut Context<Self>) -> Self::Result {
        let this = self.clone();
        let finish = async move {
            if let Err(error) = this.close_table() {
                this.stage.fail(None, format!("{error:#}")).await;
            }
            let end = this.stage.end(end).await;
            this.stage.tell(Event::Finished(end)).await;
        };
        AtomicResponse::new(Box::pin(finish.into_actor(self)))
    }
}

impl PngSink {
    async fn work(self, edges: Edges) {
        if self.stage.has_failed().await {
            return;
        }
        let id = edges.id;
        match self.write(edges).await {
            Ok(written) => self.stage.tell(Event::Written(written)).await,
            Err(error) => self.stage.fail(Some(id), format!("{error:#}")).await,
        }
    }

    async fn write(&self, edges: Edges) -> anyhow::Result<Written> {
        let Edges { id, name, magnitude } = edges;
        let side = |axis: usize| u32::try_from(magnitude.shape()[axis]).unwrap_or(u32::MAX);
        let size = ImageSize::new(side(1), side(0))?;
        let file = file_name(id, &name);
        let mut gray = self.stage.room(DType::U8, magnitude.shape()).await?;
        let mut summary = self.stage.room(DType::U64, &[SUMMARY_WORDS]).await?;
        let gpu = self.stage.gpu.clone();
        let job = self.stage.meter.begin(self.stage.name, id);
        job.launch(&gpu, || -> Result<(), OpError> {
            ops::to_gray8_into(&gpu, &magnitude, self.gain, &mut gray)?;
            ops::stats_into(&gpu, &magnitude, &mut summary)
        })?;
        // Its owner may use the memory again once the device is through with it.
        drop(magnitude);
        let (gray, summary, path) = (gray.freeze(), summary.freeze(), self.folder.join(&file));
        // On a thread of its own: it waits for the device, and encoding takes longer than everything else.
        let written = spawn_blocking(move || -> anyhow::Result<Stats> {
            let (bytes, stats) = (gpu.download::<u8>(&gray)?, ops::read_stats(&gpu, &summary)?);
            job.attempt(|| png::write_gray8(path, &bytes, size))?;
            Ok(stats)
        });
        let stats = written.await.context("the encoder panicked; the worker's log says why")??;
        let row = Written { id, name, file, stats };
        self.add_row(&row)?;
        Ok(row)
    }

    fn add_row(&self, row: &Written) -> anyhow::Result<()> {
        let Written { id, name, stats, .. } = row;
        let Stats { min, max, mean, std, checksum, .. } = stats;
        if let Some(table) = self.table.borrow_mut().as_mut() {
            // RFC 4180: a quote in a quoted field is doubled.
            let name = name.replace('"', "\"\"");
            writeln!(table, "{id},\"{name}\",{min},{max},{mean},{std},{checksum:016x}")
                .context("cannot write the statistics")?;
        }
        Ok(())
    }

    fn close_table(&self) -> anyhow::Result<()> {
        let Some(table) = self.table.borrow_mut().take() else { return Ok(()) };
        let path = self.folder.join(STATISTICS);
        let close = || -> std::io::Result<()> {
            table.into_inner().map_err(|error| error.into_error())?.persist(&path)?;
            Ok(())
        };
        close().with_context(|| format!("cannot write {}", path.display()))
    }
}

fn open_table(folder: &Path) -> std::io::Result<BufWriter<NamedTempFile>> {
    std::fs::create_dir_all(folder)?;
    let mut table = BufWriter::new(png::temporary_in(folder)?);
    writeln!(table, "frame,photograph,min,max,mean,std,checksum")?;
    Ok(table)
}

/// `00042-chelsea.png` for frame 42 of `chelsea.jpg`.
fn file_name(id: u64, name: &str) -> String {
    // What a peer sent is a name and no path.
    let stem =
        Path::new(name).file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    format!("{id:05}-{stem}.png")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_a_peer_stays_in_the_folder() {
        assert_eq!(file_name(42, "chelsea.jpg"), "00042-chelsea.png");
        assert_eq!(file_name(7, "../../etc/passwd.png"), "00007-passwd.png");
        assert_eq!(file_name(1_234_567, ".."), "1234567-.png");
    }
}
