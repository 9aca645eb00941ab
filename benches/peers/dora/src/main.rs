//! Handing memory over by dora: the work of `hand_over`, as a dataflow of Rust nodes.
//!
//! Without a role it writes the dataflow and runs it with `dora run`, which is the daemon too; dora then starts this program as each of
//! the nodes. Prints lines of a name and a number, see [`hand_over`].

mod dataflow;
mod hand_over;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::time::{ClockId, clock_gettime};

/// What this process has used of its cores.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32) // below a thousand million
}

const USAGE: &str = "usage: tensorpost-peer-dora [--dora PROGRAM]";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut dora = Path::new("dora");
    if let ["--dora", program, ..] = words[..] {
        dora = Path::new(program);
        words.drain(..2);
    }
    match &words[..] {
        // Those of the nodes.
        ["source", plan @ ..] => hand_over::source(&hand_over::Plan::parse(plan)?).context("the source"),
        ["sink", number, plan @ ..] => hand_over::sink(number, &hand_over::Plan::parse(plan)?),
        [] => hand_over::run(dora),
        _ => bail!(USAGE),
    }
}
