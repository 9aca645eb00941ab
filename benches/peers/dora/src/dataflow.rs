//! Runs a dataflow of this program's roles.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};

/// The variable that names the file for the nodes' results.
pub(crate) const RESULTS: &str = "TENSORPOST_PEER_RESULTS";
/// After this long a dataflow is stopped: something got lost.
const WAIT_FOR_END: Duration = Duration::from_secs(500);
/// How many lines of the output of `dora run` are shown where it failed.
const LINES: usize = 40;

/// One node of a dataflow.
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) arguments: String,
    /// The inputs: for each a name, and the output that it takes.
    pub(crate) inputs: Vec<(String, String)>,
    pub(crate) outputs: Vec<String>,
    /// The length of each input's queue.
    pub(crate) queue: usize,
    /// The size of the memory in which its outputs are made, in bytes.
    pub(crate) pool: usize,
}

/// Returns the descriptor of the dataflow. An input that has no policy drops its oldest where it is full. An
/// input with `backpressure` would take its messages through the daemon, copied, and up to ten times its
/// size.
fn descriptor(program: &str, nodes: &[Node]) -> Result<String, std::fmt::Error> {
    let mut text = "nodes:\n".to_owned();
    for node in nodes {
        writeln!(text, "  - id: {}\n    path: {program:?}\n    args: {:?}", node.id, node.arguments)?;
        writeln!(text, "    shared_memory_pool_size: {}", node.pool)?;
        if !node.outputs.is_empty() {
            writeln!(text, "    outputs: [{}]", node.outputs.join(", "))?;
        }
        if !node.inputs.is_empty() {
            writeln!(text, "    inputs:")?;
        }
        for (name, source) in &node.inputs {
            writeln!(text, "      {name}: {{ source: {source}, queue_size: {} }}", node.queue)?;
        }
    }
    Ok(text)
}

/// Runs the nodes, with these variables, until all have ended; returns the text that they wrote to the file
/// that [`RESULTS`] names.
pub(crate) fn run(dora: &Path, nodes: &[Node], environment: &[(&str, &OsStr)]) -> anyhow::Result<String> {
    let folder = tempfile::tempdir()?;
    let results = folder.path().join("results");
    std::fs::write(&results, "")?;
    let program = std::env::current_exe()?;
    let program = program.to_str().context("the path of this program is not UTF-8")?;
    std::fs::write(folder.path().join("dataflow.yml"), descriptor(program, nodes)?)?;
    let done = Command::new(dora)
        .args(["run", "dataflow.yml", "--stop-after"])
        .arg(WAIT_FOR_END.as_secs().to_string())
        .env(RESULTS, &results)
        .envs(environment.iter().copied())
        .current_dir(folder.path())
        .output()
        .with_context(|| {
            format!("{}: dora's command was not started; `pip install dora-rs-cli` has it", dora.display())
        })?;
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.lines().collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
    ensure!(done.status.success(), "`dora run` ended with {}:\n{last}", done.status);
    let results = std::fs::read_to_string(&results)?;
    ensure!(!results.is_empty(), "the nodes ended without a result:\n{last}");
    Ok(results)
}
