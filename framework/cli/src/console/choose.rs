//! The choice of the node for a command.

use anyhow::{Context, bail};
use tensorpost_watch::console::{Console, FoundNode, nodes, nodes_of_all_users};

use super::Target;

/// Connects to the named node, or to the only one that runs.
pub(super) fn connect(target: &Target) -> anyhow::Result<Console> {
    match target.node.as_deref() {
        Some(path) if path.contains('/') => {
            Console::at(path).with_context(|| format!("cannot look into the node at {path}"))
        }
        Some(pid) => {
            let number: u32 = pid
                .parse()
                .with_context(|| format!("`{pid}` is neither a process id nor the path of a console"))?;
            let found = of_process(number, target.all_users)?;
            found.connect().with_context(|| format!("cannot look into the node {number}"))
        }
        None => {
            let found = the_only_one(target.all_users)?;
            found.connect().with_context(|| format!("cannot look into the node {}", found.pid))
        }
    }
}

fn of_process(pid: u32, all_users: bool) -> anyhow::Result<FoundNode> {
    let mut of_it: Vec<_> = all(all_users)?.into_iter().filter(|node| node.pid == pid).collect();
    match of_it.len() {
        1 => Ok(of_it.remove(0)),
        0 => bail!(
            "process {pid} is no node of this user's; `tensorpost ps` lists those that are, and for root, with --all-users, those of others"
        ),
        // In a program with several nodes, the one that began first has the shortest name.
        _ => Ok(of_it.remove(0)),
    }
}

fn the_only_one(all_users: bool) -> anyhow::Result<FoundNode> {
    let mut nodes = all(all_users)?;
    match nodes.len() {
        1 => Ok(nodes.remove(0)),
        0 => bail!(
            "no node of this user runs here; a node that was started with `.console(Console::At(path))` is named by its \
             path, and one in a container is seen from inside of it"
        ),
        count => {
            let pids: Vec<_> = nodes.iter().map(|node| node.pid.to_string()).collect();
            bail!("{count} nodes run here, so say which by its process id: {}", pids.join(", "))
        }
    }
}

/// Returns the nodes that a command asks. It asks nodes of other users only when it is told to, because each
/// user chooses what their node shows.
pub(super) fn all(all_users: bool) -> anyhow::Result<Vec<FoundNode>> {
    let found = if all_users { nodes_of_all_users() } else { nodes() };
    found.context("the system's table of sockets cannot be read; is /proc mounted?")
}
