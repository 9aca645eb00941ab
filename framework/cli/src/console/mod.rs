//! The commands that look into a running node: they ask its console, see `tensorpost_watch::console`.

mod choose;
mod graph;
mod hangs;
mod holders;
mod log;
mod ps;
mod screen;
mod stop;
mod top;
mod trace;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Lists this user's nodes on this machine
    Ps(ps::Arguments),
    /// Shows actors, memory and hangs, refreshed every second
    Top(top::Arguments),
    /// Shows the processes that hold memory, and for how long
    Holders(holders::Arguments),
    /// Shows current and earlier hangs; exits with 1 if something hangs now
    Hangs(hangs::Arguments),
    /// Prints a diagram of senders and receivers
    Graph(graph::Arguments),
    /// Prints the latest records of the node's log
    Log(log::Arguments),
    /// Records the work of every process for an interval, in a file for https://ui.perfetto.dev
    Trace(trace::Arguments),
    /// Stops the node: lets all work under way finish, then stops the actors
    Stop(stop::Arguments),
}

/// The node that a command is about.
#[derive(Args, Clone)]
pub(crate) struct Target {
    /// Process id of the node, or the path of its console; optional if only one node runs
    node: Option<String>,
    /// As root, include nodes of other users; each shows only the figures that its user permits
    #[arg(long)]
    all_users: bool,
}

pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Ps(arguments) => ps::run(&arguments)?,
        Command::Top(arguments) => top::run(&arguments)?,
        Command::Holders(arguments) => holders::run(&arguments)?,
        Command::Hangs(arguments) => return hangs::run(&arguments),
        Command::Graph(arguments) => graph::run(&arguments)?,
        Command::Log(arguments) => log::run(&arguments)?,
        Command::Trace(arguments) => trace::run(&arguments)?,
        Command::Stop(arguments) => stop::run(&arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the whole text to stdout.
pub(crate) fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Parses a time as people write it: `5s`, `500ms`, `2m`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| format!("{error}; write 5s, 500ms or 2m"))?;
    if time.is_zero() { Err("it has to be longer than nothing".to_owned()) } else { Ok(time) }
}
