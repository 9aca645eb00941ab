//! Plays random pipelines and failures in them (see `tensorpost_tests::random`).
//!
//! ```sh
//! random_run --minutes 3                     # fresh seeds, which it prints
//! random_run --seeds 0..5000 --faults some   # these, as many at a time as there are cores
//! random_run --seed 42 --shrink              # that one again, and the smallest spec that fails like it
//! random_run --replay spec.json              # a spec
//! ```
//!
//! `--help` lists the options. The program needs no other files.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use tensorpost_tests::faults::plan::fresh_seed;
use tensorpost_tests::random::campaign::{Options, Seeds, campaign, in_words, play, smallest};
use tensorpost_tests::random::draw::{Faults, draw};
use tensorpost_tests::random::run;
use tensorpost_tests::random::spec::Spec;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Runs pipelines drawn from seeds, each in a process of its own. Checks that every item arrives once or is
/// named as lost, that all tensors are right, that every run ends, and that nothing is left behind. Exits
/// with 1 if any check failed.
#[derive(Debug, Parser)]
#[command(name = "random_run")]
struct Arguments {
    /// Plays this seed.
    #[arg(long, conflicts_with_all = ["seeds", "minutes", "replay"])]
    seed: Option<u64>,
    /// Plays these seeds, such as `0..5000`.
    #[arg(long, value_parser = range, conflicts_with_all = ["minutes", "replay"])]
    seeds: Option<(u64, u64)>,
    /// Plays fresh seeds for this long.
    #[arg(long, value_parser = minutes)]
    minutes: Option<Duration>,
    /// Plays the spec in this file.
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// How often `--seed` and `--replay` are played; the first failure ends the loop.
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// Runs at a time; by default as many as there are cores.
    #[arg(long)]
    jobs: Option<usize>,
    /// Whether failures are played: processes that die, pipelines that are stopped.
    #[arg(long, default_value = "mixed")]
    faults: Wrong,
    /// Where the tensors are: `host`, `best` (a GPU, where there is one), `cuda:` and a number.
    #[arg(long, default_value = "host")]
    device: String,
    /// Seconds without progress after which a run has failed.
    #[arg(long, default_value_t = 30)]
    patience: u64,
    /// Shrinks specs that failed, as long as they still fail.
    #[arg(long)]
    shrink: bool,
    /// Keeps the specs and the logs of failed runs in this folder.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Prints the spec of `--seed` and exits.
    #[arg(long)]
    show: bool,
    /// For the program's own use: plays the run in this folder.
    #[arg(long, hide = true, value_name = "FOLDER")]
    child: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Wrong {
    None,
    Some,
    Mixed,
}

fn minutes(text: &str) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(60.0 * text.parse::<f64>()?)?)
}

fn range(text: &str) -> Result<(u64, u64)> {
    let (from, to) = text.split_once("..").context("write it as 0..100")?;
    Ok((from.parse()?, to.parse()?))
}

/// Warnings, unless `RUST_LOG` says otherwise.
fn filter() -> EnvFilter {
    EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).from_env_lossy()
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(folder) = &arguments.child {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter())
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .try_init();
        run::run(folder)?;
        return Ok(ExitCode::SUCCESS);
    }
    let faults = match arguments.faults {
        Wrong::None => Faults::None,
        Wrong::Some => Faults::Some,
        Wrong::Mixed => Faults::Mixed,
    };
    let options = Options {
        program: std::env::current_exe()?,
        jobs: arguments.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
        faults,
        device: arguments.device.clone(),
        patience: Duration::from_secs(arguments.patience),
        keep: arguments.keep.clone(),
        shrink: arguments.shrink,
    };
    if let Some(file) = &arguments.replay {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        return again(&options, &Spec::from_json(&text)?, arguments.times);
    }
    if let Some(seed) = arguments.seed {
        let spec = draw(seed, faults);
        println!("{}", spec.to_json());
        return if arguments.show { Ok(ExitCode::SUCCESS) } else { again(&options, &spec, arguments.times) };
    }
    let seeds = match (arguments.seeds, arguments.minutes) {
        (Some((from, to)), _) => Seeds::All(from..to),
        (None, time) => Seeds::For(fresh_seed(), time.unwrap_or(Duration::from_secs(60))),
    };
    if let Seeds::For(first, _) = &seeds {
        println!("seeds from {first} on");
    }
    let tally = campaign(&options, &seeds);
    print!("{tally}");
    Ok(if tally.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Plays one spec until it fails.
fn again(options: &Options, spec: &Spec, times: u32) -> Result<ExitCode> {
    for _ in 0..times {
        let outcome = play(options, spec, "replayed")?;
        if let Some(why) = &outcome.refused {
            println!("refused: {why}");
        }
        if outcome.verdicts.is_empty() {
            println!("fine ({}), {} items", outcome.end, outcome.items);
            continue;
        }
        println!("FAILED: {}", in_words(&outcome));
        if options.shrink {
            println!("shrunk: {}", smallest(options, spec, &outcome).to_json());
        }
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
