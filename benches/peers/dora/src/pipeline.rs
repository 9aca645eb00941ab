//! The image pipeline of the example `10-image-pipeline` as a dataflow of four nodes, each a stage, see
//! [`stages`](crate::stages). A node writes its results straight into shared memory, and reads its inputs
//! there.
//!
//! That path has no brake and may lose messages, see [`hand_over`](crate::hand_over). So the node that writes
//! reports its progress to the one that decodes, and no more than [`WINDOW`] images are under way. Prints how
//! many of a million images were sent again.

use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::path::Path;

use anyhow::Context as _;
use tensorpost_peer_stages::{ImageFolder, PIXELS, PLANES, largest};

use crate::dataflow::{self, Node};
use crate::image::IMAGES;
use crate::stages::{FRAMES, OUT, PHOTOGRAPHS, WRITTEN};

/// As many as a channel of the other pipelines holds.
pub(crate) const WINDOW: u64 = 16;
/// More samples, for images that are on their way or just being read.
const MORE: usize = 8;
/// The size of a message that is no image, or of an image's label.
const SMALL: usize = 64 << 10;

/// Writes `frames` images to the folder `out`.
pub(crate) fn run(dora: &Path, photographs: &str, frames: &str, out: &str) -> anyhow::Result<()> {
    frames.parse::<NonZeroU64>().with_context(|| format!("{frames:?} is no number of frames"))?;
    std::fs::create_dir_all(out).with_context(|| format!("the folder {out} cannot be made"))?;
    // The nodes run in the dataflow's folder.
    let (photographs, out) = (std::path::absolute(photographs)?, std::path::absolute(out)?);
    let largest = largest(&ImageFolder::open(&photographs)?)?;
    let node = |id: &str, input: &str, source: &str, output: &str, bytes: usize| Node {
        id: id.to_owned(),
        arguments: format!("stage {id}"),
        inputs: vec![(input.to_owned(), format!("{source}/{input}"))],
        outputs: vec![output.to_owned()],
        queue: 4 * WINDOW as usize,
        pool: (bytes + SMALL) * (WINDOW as usize + MORE),
    };
    let nodes = [
        node("decode", WRITTEN, "write", IMAGES, largest),
        node("resize", IMAGES, "decode", IMAGES, PLANES * size_of::<f32>()),
        node("edges", IMAGES, "resize", IMAGES, PIXELS * size_of::<f32>()),
        node("write", IMAGES, "edges", WRITTEN, 0),
    ];
    let environment: [(&str, &OsStr); 3] =
        [(PHOTOGRAPHS, photographs.as_os_str()), (FRAMES, frames.as_ref()), (OUT, out.as_os_str())];
    print!("{}", dataflow::run(dora, &nodes, &environment)?);
    Ok(())
}
