//! `tensorpost ps`.

use clap::Args;
use serde::Serialize;
use tensorpost_watch::console::{ConsoleError, FoundNode, NodeSnapshot, ProcessState};
use tensorpost_watch::draw::{Cell, Table, printable, seconds};

use super::{choose, put};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Print a JSON list
    #[arg(long)]
    json: bool,
    /// As root, include nodes of other users; each shows only the figures that its user permits
    #[arg(long)]
    all_users: bool,
}

#[derive(Serialize)]
struct Node {
    pid: u32,
    uid: u32,
    console: String,
    program: Option<String>,
    up: Option<f64>,
    workers: Option<usize>,
    actors: Option<u64>,
    state: String,
    error: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let nodes: Vec<_> = choose::all(arguments.all_users)?.iter().filter_map(node).collect();
    if arguments.json {
        put(&(serde_json::to_string_pretty(&nodes)? + "\n"))?;
        return Ok(());
    }
    if nodes.is_empty() {
        eprintln!("no node of this user runs here");
        return Ok(());
    }
    let table = Table::of(
        &nodes,
        &[],
        &[
            (">PID", |of| Cell::count(Some(u64::from(of.pid)))),
            (">USER", |of| Cell::count(Some(u64::from(of.uid)))),
            (">UP", |of| Cell::figure(of.up, seconds)),
            (">WORKERS", |of| Cell::count(of.workers.map(|count| count as u64))),
            (">ACTORS", |of| Cell::count(of.actors)),
            ("STATE", |of| of.state.clone().into()),
            ("PROGRAM", |of| of.program.clone().or_else(|| of.error.clone()).unwrap_or_default().into()),
        ],
    );
    put(&table.plain())?;
    Ok(())
}

/// Returns the facts of a node; `None` where it has ended meanwhile.
fn node(found: &FoundNode) -> Option<Node> {
    let mut node = Node {
        pid: found.pid,
        uid: found.uid,
        console: found.place(),
        program: None,
        up: None,
        workers: None,
        actors: None,
        state: "running".to_owned(),
        error: None,
    };
    match found.connect().and_then(|mut console| console.snapshot()) {
        Ok(snapshot) => describe(&mut node, &snapshot),
        Err(ConsoleError::Gone { .. }) => return None,
        Err(ConsoleError::Ended) => node.state = ProcessState::Ended.to_string(),
        Err(error) => {
            node.state = match error {
                ConsoleError::Silent(_) => ProcessState::Silent.to_string(),
                _ => "unknown".to_owned(),
            };
            node.error = Some(error.to_string());
        }
    }
    Some(node)
}

fn describe(node: &mut Node, snapshot: &NodeSnapshot) {
    let runs = |state: ProcessState| state != ProcessState::Ended;
    node.program = Some(printable(&snapshot.node.program));
    node.up = Some(snapshot.node.up.as_secs_f64());
    node.workers = Some(snapshot.processes.iter().skip(1).filter(|process| runs(process.state)).count());
    node.actors = Some(snapshot.actors.len() as u64 + snapshot.left_out);
    if snapshot.node.stopping {
        node.state = "stopping".to_owned();
    }
}
