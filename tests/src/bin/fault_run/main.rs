//! Plays fault runs (see `tensorpost_tests::faults`).
//!
//! ```sh
//! cargo run -p tensorpost-tests --bin fault_run -- --faults 1000             # a fresh seed, which it prints
//! cargo run -p tensorpost-tests --bin fault_run -- --seed 42 --faults 1000   # that seed again
//! cargo run -p tensorpost-tests --bin fault_run -- --minutes 2               # fresh seeds for two minutes
//! ```
//!
//! `--help` lists the options.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use tensorpost::device::Device;
use tensorpost::node::Sharing;
use tensorpost_tests::faults::plan::fresh_seed;
use tensorpost_tests::faults::{self, Options};

/// Kills, stops and continues workers of a graph at points that a seed chooses. Checks that only items in a
/// dead worker are lost, and that nothing leaks. Prints the seed; the same seed plays the same events.
#[derive(Debug, Parser)]
#[command(name = "fault_run")]
struct Arguments {
    /// Plays this seed; fresh ones otherwise.
    #[arg(long)]
    seed: Option<u64>,
    /// The number of faults: 200, or with `--minutes` as many as there is time for.
    #[arg(long)]
    faults: Option<u64>,
    /// Plays fresh seeds for this long.
    #[arg(long, value_parser = minutes)]
    minutes: Option<Duration>,
    /// Where the tensors are: `host`, `best` (a GPU, where there is one), `cuda:` and a number, or a UUID.
    #[arg(long, default_value = "host", value_parser = device)]
    device: Device,
    /// How the workers share a GPU.
    #[arg(long, default_value = "isolated")]
    sharing: Shared,
    /// Counts descriptors, mappings, leases and processes after each so many events.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..))]
    count_every: u64,
    /// Prints each event.
    #[arg(long)]
    verbose: bool,
    /// After a failure, leaves all processes as they are, for a debugger, until the program is interrupted.
    #[arg(long)]
    hold: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shared {
    Isolated,
    Mps,
}

const FAULTS: u64 = 200;

fn minutes(text: &str) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(60.0 * text.parse::<f64>()?)?)
}

fn device(text: &str) -> Result<Device> {
    Ok(if text == "best" { Device::best() } else { text.parse()? })
}

/// Bounds the run of one seed, so that fresh seeds get their turn.
const FAULTS_PER_SEED: u64 = 500;

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let begin = Instant::now();
    let mut left = arguments.faults.unwrap_or(if arguments.minutes.is_some() { u64::MAX } else { FAULTS });
    let sharing = match arguments.sharing {
        Shared::Isolated => Sharing::Isolated,
        Shared::Mps => Sharing::Mps,
    };
    loop {
        let seed = arguments.seed.unwrap_or_else(fresh_seed);
        let faults = if arguments.seed.is_some() { left } else { left.min(FAULTS_PER_SEED) };
        println!("seed {seed}");
        let options = Options {
            seed,
            faults,
            time: arguments.minutes.map(|time| time.saturating_sub(begin.elapsed())),
            device: arguments.device.clone(),
            count_every: arguments.count_every,
            verbose: arguments.verbose,
            hold: arguments.hold,
        };
        let builder = tensorpost::node::Node::builder().worker_log("off").sharing(sharing);
        match faults::run(builder, &options) {
            Ok(report) => {
                println!("seed {seed}: {report:?}");
                left -= report.faults;
            }
            Err(failure) => {
                println!("seed {seed} FAILED: {failure}");
                println!(
                    "again: fault_run --seed {seed} --faults {} --verbose",
                    failure.report.faults.max(1)
                );
                return Ok(ExitCode::FAILURE);
            }
        }
        let is_over = arguments.minutes.is_some_and(|time| begin.elapsed() >= time);
        if left == 0 || is_over || arguments.seed.is_some() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}
