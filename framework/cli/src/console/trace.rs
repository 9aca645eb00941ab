//! `tensorpost trace`: the work of every process of a node in an interval, as a file for a trace viewer. The
//! node need not have been started with a trace, and does not trace afterwards.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use tensorpost_watch::console::{Console, TraceSummary};
use tensorpost_watch::draw::time as in_words;

use super::{Target, choose, put, time};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Length of the trace
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = time)]
    long: Duration,
    /// File to write; by default a new file tensorpost-PID-1.json in this folder
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// A trace that was written.
pub(super) struct Written {
    pub(super) path: PathBuf,
    pub(super) summary: TraceSummary,
    took: Duration,
    silent: Vec<String>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut console = choose::connect(&arguments.target)?;
    let path = arguments.output.clone().unwrap_or_else(|| new_file(console.hello().pid));
    let written = trace(&mut console, arguments.long, path)?;
    let mut text = format!(
        "{} traced for {}: {}\nopen it in https://ui.perfetto.dev\n",
        written.path.display(),
        in_words(written.took),
        written.summary
    );
    if written.summary.dropped > 0 {
        text += "processes keep the latest records: a shorter --for loses fewer\n";
    }
    for name in &written.silent {
        text += &format!("`{name}` did not answer: it is stopped, or has no processor\n");
    }
    put(&text)?;
    Ok(())
}

/// Traces, and writes the file.
pub(super) fn trace(console: &mut Console, long: Duration, path: PathBuf) -> anyhow::Result<Written> {
    // Check the folder first, so that nobody waits for a trace that cannot be written.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        bail!("there is no folder {} to write the trace to", folder.display());
    }
    let traced = console.trace(long).context("the node was not traced")?;
    let summary = traced.write_to(&path)?;
    Ok(Written { path, summary, took: traced.took(), silent: traced.silent().to_vec() })
}

/// Returns a name in the working folder that no file has.
pub(super) fn new_file(pid: u32) -> PathBuf {
    let names = (1_u32..).map(|number| PathBuf::from(format!("tensorpost-{pid}-{number}.json")));
    let mut free = names.filter(|name| !name.exists());
    free.next().unwrap_or_else(|| PathBuf::from(format!("tensorpost-{pid}.json")))
}
