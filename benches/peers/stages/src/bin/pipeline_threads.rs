//! The image pipeline of the example `10-image-pipeline` as four threads of one process, with a channel
//! between two.
//!
//! `pipeline_threads PHOTOGRAPHS FRAMES OUT`

use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread::{ScopedJoinHandle, scope};

use anyhow::{anyhow, bail};
use tensorpost_peer_stages::{
    EDGES_PLANE, EncodedImage, ImageFolder, PIXELS, PLANES, edges_in_place, resize, target, write,
};

/// The room of a channel.
const ITEMS: usize = 16;

fn joined(stage: ScopedJoinHandle<'_, anyhow::Result<()>>) -> anyhow::Result<()> {
    stage.join().map_err(|_| anyhow!("a stage panicked"))?
}

fn run(photographs: &Path, frames: u64, out: &Path) -> anyhow::Result<()> {
    let photographs = ImageFolder::open(photographs)?;
    std::fs::create_dir_all(out)?;
    let (to_resize, decoded) = sync_channel(ITEMS);
    let (to_edges, resized) = sync_channel(ITEMS);
    let (to_write, filtered) = sync_channel::<(PathBuf, Vec<f32>)>(ITEMS);
    // Where a stage fails, its ends of the channels are dropped, and the others end.
    scope(|scope| {
        let stages = [
            scope.spawn(move || {
                for (id, photograph) in photographs.frames(frames) {
                    let image = EncodedImage::open(&photograph)?.decode()?;
                    to_resize.send((target(out, id, &photograph), image))?;
                }
                Ok(())
            }),
            scope.spawn(move || {
                for (path, image) in decoded {
                    let mut planes = vec![0.0; PLANES];
                    resize(&image.pixels, image.size, &mut planes)?;
                    to_edges.send((path, planes))?;
                }
                Ok(())
            }),
            scope.spawn(move || {
                for (path, mut planes) in resized {
                    edges_in_place(&mut planes)?;
                    to_write.send((path, planes))?;
                }
                Ok(())
            }),
            scope.spawn(move || {
                for (path, planes) in filtered {
                    write(&path, &planes[EDGES_PLANE * PIXELS..][..PIXELS])?;
                }
                Ok(())
            }),
        ];
        // The last error is the cause; the others only say that a stage has gone.
        stages.into_iter().rev().map(joined).collect::<anyhow::Result<Vec<()>>>()
    })?;
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [photographs, frames, out] = &arguments[..] else {
        bail!("usage: pipeline_threads PHOTOGRAPHS FRAMES OUT")
    };
    run(Path::new(photographs), frames.parse()?, Path::new(out))
}
