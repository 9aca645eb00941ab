//! This framework's peer dora: handing memory over, see [`hand_over`], and the image pipeline, see
//! [`pipeline`], as dataflows of Rust nodes.
//!
//! Without a role it writes the dataflow and runs it with `dora run`, which is the daemon too; dora then
//! starts this program as each of the nodes.

mod dataflow;
mod hand_over;
mod image;
mod pipeline;
mod stages;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32) // below a thousand million
}

const USAGE: &str = "usage: tensorpost-peer-dora [--dora PROGRAM] [pipeline PHOTOGRAPHS FRAMES OUT]";

fn run(mut words: &[&str]) -> anyhow::Result<()> {
    let mut dora = Path::new("dora");
    if let ["--dora", program, rest @ ..] = words {
        (dora, words) = (Path::new(*program), rest);
    }
    match words {
        // The roles of the nodes.
        ["source", plan @ ..] => hand_over::source(&hand_over::Plan::parse(plan)?).context("the source"),
        ["sink", number, plan @ ..] => hand_over::sink(number, &hand_over::Plan::parse(plan)?),
        ["stage", name] => stages::run(name).with_context(|| format!("error in the stage {name}")),
        [] => hand_over::run(dora),
        ["pipeline", photographs, frames, out] => pipeline::run(dora, photographs, frames, out),
        _ => bail!(USAGE),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
