//! The image pipeline of the example `10-image-pipeline` as four processes, each a stage, see [`stages`],
//! with a link between two, see [`link`](crate::link). This process starts them and waits for them.

use std::num::NonZeroU64;
use std::process::Command;

use anyhow::{Context as _, ensure};
use tensorpost_peer_stages::{ImageFolder, largest};

use crate::link::node;
use crate::process::{Process, wait_for_any};
use crate::stages;

/// Waits until all have ended. Where one has failed, the others would wait for it.
fn wait_for_all(running: &mut Vec<(&str, Process)>) -> anyhow::Result<()> {
    while !running.is_empty() {
        wait_for_any()?;
        for at in (0..running.len()).rev() {
            let (name, process) = &mut running[at];
            if let Some(status) = process.ended()? {
                ensure!(status.success(), "the stage {name} ended with {status}");
                running.remove(at);
            }
        }
    }
    Ok(())
}

/// Writes `frames` images to the folder `out`.
pub(crate) fn run(photographs: &str, frames: &str, out: &str) -> anyhow::Result<()> {
    frames.parse::<NonZeroU64>().with_context(|| format!("{frames:?} is no number of frames"))?;
    let largest = largest(&ImageFolder::open(photographs)?)?.to_string();
    std::fs::create_dir_all(out).with_context(|| format!("the folder {out} cannot be made"))?;
    let program = std::env::current_exe()?;
    let services = format!("tensorpost/peer/{}/images", std::process::id());
    let mut running = Vec::new();
    for name in stages::NAMES {
        let words = ["stage", name, &services, photographs, frames, &largest, out];
        running.push((name, Process::start(Command::new(&program).args(words))?));
    }
    let done = wait_for_all(&mut running);
    drop(running);
    if done.is_err() {
        // A killed process could not give back its shared memory.
        node()?.try_cleanup_dead_nodes();
    }
    done
}
