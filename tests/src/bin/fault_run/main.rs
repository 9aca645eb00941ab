//! Plays fault runs (see `tensorpost_tests::faults`):
//!
//! ```sh
//! cargo run -p tensorpost-tests --bin fault_run -- --faults 1000             # a fresh seed, which it prints
//! cargo run -p tensorpost-tests --bin fault_run -- --seed 42 --faults 1000   # that seed again
//! cargo run -p tensorpost-tests --bin fault_run -- --minutes 2               # fresh seeds for two minutes
//! ```
//!
//! `--device best` puts the tensors on a GPU, `--sharing mps` has the workers share it through MPS, `--count-every N`
//! counts everything after each N events, `--verbose` says each event, `--hold` leaves all processes as they are after a
//! failure, for a debugger, until it is interrupted.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tensorpost::device::Device;
use tensorpost::node::Sharing;
use tensorpost_tests::faults::{self, Options};

struct Arguments {
    seed: Option<u64>,
    faults: u64,
    time: Option<Duration>,
    device: Device,
    sharing: Sharing,
    count_every: u64,
    verbose: bool,
    hold: bool,
}

fn arguments() -> Result<Arguments> {
    let mut found = Arguments {
        seed: None,
        faults: 200,
        time: None,
        device: Device::host(),
        sharing: Sharing::Isolated,
        count_every: 25,
        verbose: false,
        hold: false,
    };
    let mut faults = None;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--seed" => found.seed = Some(value()?.parse()?),
            "--faults" => faults = Some(value()?.parse()?),
            "--minutes" => found.time = Some(Duration::from_secs_f64(60.0 * value()?.parse::<f64>()?)),
            "--device" => {
                found.device = match value()?.as_str() {
                    "host" => Device::host(),
                    "best" => Device::best(),
                    other => bail!("`{other}` is no device; `host` or `best`"),
                }
            }
            "--sharing" => {
                found.sharing = match value()?.as_str() {
                    "isolated" => Sharing::Isolated,
                    "mps" => Sharing::Mps,
                    other => bail!("`{other}` is no way to share a GPU; `isolated` or `mps`"),
                }
            }
            "--count-every" => found.count_every = value()?.parse::<u64>()?.max(1),
            "--verbose" => found.verbose = true,
            "--hold" => found.hold = true,
            other => bail!("`{other}` is no option"),
        }
    }
    // With a time, as many as there are time for.
    found.faults = faults.unwrap_or(if found.time.is_some() { u64::MAX } else { found.faults });
    Ok(found)
}

/// A run of one seed is bounded, so that fresh ones come.
const FAULTS_PER_SEED: u64 = 500;

fn main() -> Result<ExitCode> {
    let _ = faults::program(tensorpost::Node::builder()).run_if_worker();
    let arguments = arguments()?;
    let begin = Instant::now();
    let mut left = arguments.faults;
    loop {
        let seed = arguments.seed.unwrap_or_else(fresh_seed);
        let faults = if arguments.seed.is_some() { left } else { left.min(FAULTS_PER_SEED) };
        println!("seed {seed}");
        let options = Options {
            seed,
            faults,
            time: arguments.time.map(|time| time.saturating_sub(begin.elapsed())),
            device: arguments.device.clone(),
            count_every: arguments.count_every,
            verbose: arguments.verbose,
            hold: arguments.hold,
        };
        let builder =
            faults::program(tensorpost::Node::builder()).worker_log("off").sharing(arguments.sharing);
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
        let is_over = arguments.time.is_some_and(|time| begin.elapsed() >= time);
        if left == 0 || is_over || arguments.seed.is_some() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // A hasher's keys are random for each process, and differ from call to call.
    RandomState::new().hash_one(std::process::id())
}
