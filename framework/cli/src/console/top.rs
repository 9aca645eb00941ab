//! `tensorpost top`.

use std::io::{self, IsTerminal};
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use tensorpost_watch::console::{Console, Figures, tables};

use super::{Target, choose, put, screen, time};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Show one interval, then exit
    #[arg(long)]
    once: bool,
    /// Print a line of JSON for each interval
    #[arg(long)]
    json: bool,
    /// Length of an interval
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    every: Duration,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut console = choose::connect(&arguments.target)?;
    if arguments.once || arguments.json || !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        return lines(&mut console, arguments);
    }
    // A trace needs the node's name, because it has a connection of its own.
    let node = arguments.target.node.clone().or_else(|| Some(console.hello().pid.to_string()));
    screen::run(console, arguments.every, Target { node, ..arguments.target })
}

/// Prints plain text, or JSON, one interval after the other, until the node ends.
fn lines(console: &mut Console, arguments: &Arguments) -> anyhow::Result<()> {
    let mut earlier = console.snapshot()?;
    loop {
        sleep(arguments.every);
        let now = console.snapshot()?;
        let figures = Figures::between(&earlier, &now);
        match arguments.json {
            true => put(&(serde_json::to_string(&figures)? + "\n"))?,
            false => put(&(tables::plain(&figures) + if arguments.once { "" } else { "\n" }))?,
        }
        if arguments.once {
            return Ok(());
        }
        earlier = now;
    }
}
