//! This framework's peer iceoryx2: handing memory over, see [`hand_over`], and the image pipeline, see
//! [`pipeline`].

mod hand_over;
mod link;
mod pipeline;
mod process;
mod stages;

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use iceoryx2::prelude::{LogLevel, set_log_level_from_env_or};

fn run(words: &[&str]) -> anyhow::Result<()> {
    match words {
        // The roles of other processes.
        ["answer", words @ ..] => hand_over::other(words),
        ["stage", name, words @ ..] => {
            stages::run(name, words).with_context(|| format!("error in the stage {name}"))
        }
        [] => hand_over::run(),
        ["pipeline", photographs, frames, out] => pipeline::run(photographs, frames, out),
        _ => bail!("usage: tensorpost-peer-iceoryx2 [pipeline PHOTOGRAPHS FRAMES OUT]"),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // It warns that it has no configuration file.
    set_log_level_from_env_or(LogLevel::Error);
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
