//! The figures of tensorpost on a GPU, beside the bare driver on the same machine in the same run.
//!
//! `gpu_bench --device cuda:0` measures; `gpu_bench --device host` runs the same programs without a GPU.
//! `benches/gpu/README.md` describes the measurements.

mod again;
mod fanout;
mod floor;
mod four;
mod kernels;
mod launcher;
mod options;
mod outcome;
mod peers;
mod report;
mod roundtrip;
mod sink;
mod source;
mod suite;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use tensorpost::prelude::*;

use options::{Mode, Options, Role};
use report::Results;
use suite::{BUDGET, Suite};

/// The longest time that an answer may take, that of a stage that starts or ends before it included.
const WAIT_FOR_ANSWER: std::time::Duration = std::time::Duration::from_secs(60);

fn main() -> anyhow::Result<ExitCode> {
    // A worker never returns from this call.
    let options = Options::parse();
    let ordinal = options.device.0;
    match options.role {
        Some(Role::Floor) => floor::run(ordinal, options.rounds)?,
        Some(Role::FloorPeer) => floor::answer(ordinal)?,
        Some(Role::Context) => floor::context(ordinal)?,
        Some(Role::PeerCopy) => floor::peer_copy(ordinal, options.rounds)?,
        None => return measure(&options),
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(options: &Options) -> anyhow::Result<ExitCode> {
    let device = match options.device.0 {
        Some(ordinal) => Device::cuda(ordinal).context("`--device host` needs no GPU")?,
        None => Device::host(),
    };
    println!("# {} ({device})", device.name());
    let mut results = Results::default();
    results.set("budget", BUDGET as f64);
    for path in &options.peer {
        results.read(path)?;
    }
    for mode in &options.modes {
        if *mode == Mode::Mps && device.kind() == DeviceKind::Host {
            continue;
        }
        match Suite::start(options, device.clone(), *mode) {
            Ok(suite) => suite.run(&mut results),
            Err(error) => results.fail(mode.name(), &error),
        }
    }
    if let Some(path) = &options.out {
        results.write(path)?;
    }
    let met = report::table(&results);
    for failure in results.failures() {
        eprintln!("failed: {failure}");
    }
    let good = results.failures().is_empty() && !results.is_empty() && (met || !options.strict);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
