//! The command `tensorpost`: looks into running nodes, and finds out why one cannot run.

use clap::{Parser, Subcommand};

mod doctor;

#[derive(Parser)]
#[command(name = "tensorpost", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Doctor(doctor::Doctor),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Doctor(doctor) => doctor.run(),
    }
}
