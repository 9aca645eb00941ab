//! The stages, each in a process of its own. A stage writes its result straight into a loaned sample, and
//! reads its input in the received sample. A received sample may not be written, so edges go to memory of
//! their own.
//!
//! A stage opens the link after it first, which waits for the next stage: the first image starts when all
//! stages are there. A stage that is killed earlier may leave shared memory that is half made, and iceoryx2
//! 0.10 would wait for that without an end.

use std::path::Path;

use anyhow::{Context as _, bail};
use tensorpost_peer_stages::{
    EncodedImage, HEIGHT, ImageFolder, ImageSize, PIXELS, PLANES, WIDTH, edges, resize, target, write,
};

use crate::link::{Header, Receiver, Sender, node};
use crate::process;

/// The stages, in the order of an image's way.
pub(crate) const NAMES: [&str; 4] = ["decode", "resize", "edges", "write"];

/// A stage's orders.
struct Job {
    /// The prefix of the names of all services.
    services: String,
    photographs: ImageFolder,
    frames: u64,
    /// Bytes of the largest photograph.
    largest: usize,
}

impl Job {
    /// Returns the name of the link into which this stage's images go.
    fn after(&self, stage: &str) -> String {
        format!("{}/{stage}", self.services)
    }
}

/// Runs a stage, with these arguments.
pub(crate) fn run(name: &str, words: &[&str]) -> anyhow::Result<()> {
    process::end_with_parent()?;
    let [services, photographs, frames, largest, out] = words else { bail!("a stage has five words") };
    let job = Job {
        services: (*services).to_owned(),
        photographs: ImageFolder::open(photographs)?,
        frames: frames.parse()?,
        largest: largest.parse()?,
    };
    match name {
        "decode" => decode(&job),
        "resize" => resize_all(&job),
        "edges" => find_edges(&job),
        "write" => write_all(&job, Path::new(out)),
        _ => bail!("there is no such stage"),
    }
}

fn decode(job: &Job) -> anyhow::Result<()> {
    let node = node()?;
    let mut to = Sender::open(&node, &job.after("decode"), job.largest)?;
    for (id, photograph) in job.photographs.frames(job.frames) {
        let image = EncodedImage::open(&photograph)?;
        let size = image.size();
        let header = Header { id, width: size.width(), height: size.height() };
        let mut pixels = to.loan(header, size.rgb_len()).with_context(|| photograph.display().to_string())?;
        image.decode_into(pixels.payload_mut())?;
        to.send(pixels)?;
    }
    to.finish()
}

fn resize_all(job: &Job) -> anyhow::Result<()> {
    let node = node()?;
    let mut to = Sender::<f32>::open(&node, &job.after("resize"), PLANES)?;
    let mut from = Receiver::<u8>::open(&node, &job.after("decode"))?;
    for _ in 0..job.frames {
        let pixels = from.receive()?;
        let Header { id, width, height } = *pixels.user_header();
        let mut planes = to.loan(Header { id, width: WIDTH, height: HEIGHT }, PLANES)?;
        resize(&pixels, ImageSize::new(width, height)?, planes.payload_mut())?;
        drop(pixels);
        to.send(planes)?;
    }
    to.finish()
}

fn find_edges(job: &Job) -> anyhow::Result<()> {
    let node = node()?;
    let mut to = Sender::<f32>::open(&node, &job.after("edges"), PIXELS)?;
    let mut from = Receiver::<f32>::open(&node, &job.after("resize"))?;
    let mut scratch = vec![0.0; PIXELS];
    for _ in 0..job.frames {
        let planes = from.receive()?;
        let mut magnitudes = to.loan(*planes.user_header(), PIXELS)?;
        edges(&planes, &mut scratch, magnitudes.payload_mut())?;
        drop(planes);
        to.send(magnitudes)?;
    }
    to.finish()
}

fn write_all(job: &Job, out: &Path) -> anyhow::Result<()> {
    let node = node()?;
    let mut from = Receiver::<f32>::open(&node, &job.after("edges"))?;
    for _ in 0..job.frames {
        let magnitudes = from.receive()?;
        let id = magnitudes.user_header().id;
        write(&target(out, id, job.photographs.frame(id)), &magnitudes)?;
    }
    Ok(())
}
