//! Fault runs (see `tensorpost_tests::faults`). First come fresh seeds, which are printed, for six seconds,
//! or for as many seconds as `TENSORPOST_FAULT_SECONDS` says (60 in CI). Then comes every seed that has once
//! found something. Where that variable is set, as many of its events are played as it takes to find that
//! again, elsewhere the first ten. A failure says how to play it again.

use std::process::{Command, Stdio};

const FAULT_RUN: &str = env!("CARGO_BIN_EXE_fault_run");

/// Seeds that failed once, with the number of events that it took, and the failure.
const FOUND: &[(u64, u64, &str)] = &[(
    542_254_141,
    101,
    "a host stream's thread panicked, and its worker lived on with a clock that stood still",
)];

fn play(arguments: &[&str]) -> String {
    // Workers that are told to panic print long messages.
    let mut command = Command::new(FAULT_RUN);
    command.args(arguments).env("RUST_BACKTRACE", "0").env_remove("RUST_LOG").stdin(Stdio::null());
    let output = command.output().expect("the program of the runs starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{said}");
    assert!(output.status.success(), "{}:\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    said
}

/// Returns for how long fresh seeds are played, where the variable is set.
fn seconds() -> Option<f64> {
    std::env::var("TENSORPOST_FAULT_SECONDS").ok().and_then(|text| text.parse().ok())
}

#[test]
fn fresh_seeds() {
    let said = play(&["--minutes", &(seconds().unwrap_or(6.0) / 60.0).to_string()]);
    assert!(said.contains("Report"), "{said}");
}

#[test]
fn seeds_that_found_something() {
    for (seed, faults, what) in FOUND {
        println!("seed {seed}: {what}");
        let faults = if seconds().is_some() { *faults } else { (*faults).min(10) };
        play(&["--seed", &seed.to_string(), "--faults", &faults.to_string()]);
    }
}
