//! `tensorpost graph`.

use std::thread::sleep;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tensorpost_watch::console::Graph;

use super::{Target, choose, put, time};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Mermaid)]
    format: Format,
    /// Label the edges with messages per second and queue lengths, measured over --every
    #[arg(long)]
    live: bool,
    /// Length of the interval
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    every: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For GitHub's Markdown and mermaid.live
    Mermaid,
    /// For Graphviz
    Dot,
    /// For programs
    Json,
    /// A picture, for a README
    Svg,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut console = choose::connect(&arguments.target)?;
    let mut now = console.snapshot()?;
    let mut earlier = None;
    if arguments.live {
        sleep(arguments.every);
        earlier = Some(std::mem::replace(&mut now, console.snapshot()?));
    }
    let graph = Graph::of(earlier.as_ref(), &now);
    let text = match arguments.format {
        Format::Mermaid => graph.mermaid(),
        Format::Dot => graph.dot(),
        Format::Json => serde_json::to_string_pretty(&graph)? + "\n",
        Format::Svg => graph.svg(),
    };
    put(&text)?;
    Ok(())
}
