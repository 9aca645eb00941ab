//! The stages, each a node. A received image may not be written, so edges go to memory of their own.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use dora_node_api::dora_core::config::DataId;
use dora_node_api::{DoraNode, Event, EventStream, IntoArrow as _};
use tensorpost_peer_stages::{EncodedImage, ImageFolder, PIXELS, PLANES, edges, resize, target, write};

use crate::dataflow;
use crate::image::{Image, Label, send, send_floats};
use crate::pipeline::WINDOW;

/// The variables with each stage's orders.
pub(crate) const PHOTOGRAPHS: &str = "TENSORPOST_PEER_PHOTOGRAPHS";
pub(crate) const FRAMES: &str = "TENSORPOST_PEER_FRAMES";
pub(crate) const OUT: &str = "TENSORPOST_PEER_OUT";
/// The output for the number of written images, and whether the next one is missing.
pub(crate) const WRITTEN: &str = "written";
/// Without a report for this long, all images under way are sent again. It is longer than the stages take for
/// one image.
const RESEND: Duration = Duration::from_secs(2);
/// After this many attempts the first stage gives up.
const ATTEMPTS: u32 = 20;

/// Runs a stage.
pub(crate) fn run(name: &str) -> anyhow::Result<()> {
    let (mut node, mut events) = DoraNode::init_from_env()?;
    match name {
        "decode" => Decode { node, events, written: 0, again: 0 }.run(),
        "resize" => each(&mut events, |image| {
            send_floats(&mut node, image.label, PLANES, |planes| {
                Ok(resize(image.bytes()?, image.label.size, planes)?)
            })
        }),
        "edges" => {
            let mut scratch = vec![0.0; PIXELS];
            each(&mut events, |image| {
                send_floats(&mut node, image.label, PIXELS, |magnitudes| {
                    Ok(edges(image.floats()?, &mut scratch, magnitudes)?)
                })
            })
        }
        "write" => write_all(node, events),
        _ => bail!("there is no such stage"),
    }
}

fn variable(name: &str) -> anyhow::Result<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).with_context(|| format!("{name} is not set: `pipeline` does"))
}

fn frames() -> anyhow::Result<u64> {
    std::env::var(FRAMES)?.parse().with_context(|| format!("{FRAMES} is no number"))
}

/// Gives each received image to `work`, until all are written and the stages before have ended.
fn each(events: &mut EventStream, mut work: impl FnMut(Image) -> anyhow::Result<()>) -> anyhow::Result<()> {
    while let Some(event) = events.recv() {
        match event {
            Event::Input { metadata, data, .. } => work(Image::new(&metadata, data)?)?,
            Event::Stop(_) => break,
            Event::Error(error) => bail!("{error}"),
            _ => {}
        }
    }
    Ok(())
}

/// Writes each image once, in order, and reports it.
fn write_all(mut node: DoraNode, mut events: EventStream) -> anyhow::Result<()> {
    let (photographs, out) = (ImageFolder::open(variable(PHOTOGRAPHS)?)?, variable(OUT)?);
    let (mut written, mut misses) = (0, false);
    each(&mut events, |image| {
        let id = image.label.id;
        let says = if id == written {
            write(&target(&out, id, photographs.frame(id)), image.floats()?)?;
            written += 1;
            misses = false;
            true
        } else {
            // An image that comes twice is answered again: the answer may have been lost. An image that comes
            // too early is reported once.
            let first = !misses;
            misses = id > written;
            first || !misses
        };
        if says {
            let said = vec![written, u64::from(misses)].into_arrow();
            node.send_output(DataId::from(WRITTEN.to_owned()), Default::default(), said)?;
        }
        Ok(())
    })?;
    ensure!(written == frames()?, "{written} of {} images came", frames()?);
    Ok(())
}

/// The first stage, with the progress of the last one.
struct Decode {
    node: DoraNode,
    events: EventStream,
    written: u64,
    /// Images that were sent more than once.
    again: u64,
}

impl Decode {
    /// Sends no more than the window, and again from the first that is missed, until all are written.
    fn run(mut self) -> anyhow::Result<()> {
        let (photographs, frames) = (ImageFolder::open(variable(PHOTOGRAPHS)?)?, frames()?);
        let (mut next, mut silent) = (0, 0);
        while self.written < frames {
            if next < frames.min(self.written + WINDOW) {
                let image = EncodedImage::open(photographs.frame(next))?;
                let label = Label { id: next, size: image.size() };
                send(&mut self.node, label, label.size.rgb_len(), |pixels| Ok(image.decode_into(pixels)?))?;
                next += 1;
                continue;
            }
            let heard = self.hear()?;
            silent = if heard.is_some() { 0 } else { silent + 1 };
            ensure!(silent < ATTEMPTS, "image {} is not written, and nobody says why", self.written);
            if heard != Some(false) {
                self.again += next.saturating_sub(self.written);
                next = next.min(self.written);
            }
        }
        let again = self.again as f64 * 1e6 / frames as f64;
        Ok(std::fs::write(variable(dataflow::RESULTS)?, format!("dora.again.pipeline {again:.0}\n"))?)
    }

    /// Waits for the last stage's next report, and returns whether it misses an image. Returns none where no
    /// report comes in time.
    fn hear(&mut self) -> anyhow::Result<Option<bool>> {
        loop {
            match self.events.recv_timeout(RESEND) {
                Some(Event::Input { data, .. }) => {
                    let said: &[u64] = (&data).try_into().map_err(|error| anyhow!("{error}"))?;
                    let [written, misses] = said else { bail!("{} numbers came", said.len()) };
                    self.written = self.written.max(*written);
                    return Ok(Some(*misses != 0));
                }
                Some(Event::Error(_)) => return Ok(None), // dora's event for a time that is up
                Some(Event::Stop(_)) | None => bail!("stopped; {} images are written", self.written),
                Some(_) => {}
            }
        }
    }
}
