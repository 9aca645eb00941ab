//! The command `tensorpost`: inspects running nodes, starts a node on several hosts, and finds out why a node
//! cannot run.

mod console;
mod doctor;
mod up;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The status where the command itself failed; 1 reports a finding.
const FAILED: u8 = 2;

#[derive(Parser)]
#[command(name = "tensorpost", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Console(console::Command),
    Doctor(doctor::Doctor),
    Up(up::Up),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Console(command) => console::run(command),
        Command::Doctor(doctor) => doctor.run(),
        Command::Up(up) => up.run(),
    };
    match done {
        Ok(status) => status,
        // `tensorpost ps | head` has read enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tensorpost: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
