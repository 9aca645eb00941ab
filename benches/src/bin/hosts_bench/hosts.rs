//! Two hosts of one node: this program, and the same once more as an agent that runs the actors that this one
//! starts there.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::Context as _;
use tensorpost::hosts::{Host, Hosts, Nixl};
use tensorpost::node::Spawned;
use tensorpost::prelude::*;
use tensorpost_benches::memory;

use crate::network::{Link, Network};

/// Gives the number of an agent's lanes, and marks the process as an agent.
const LANES: &str = "HOSTS_BENCH_LANES";
const HEAD: &str = "TENSORPOST_HEAD";
/// Says that an agent uses NIXL.
const NIXL: &str = "HOSTS_BENCH_NIXL";
const KEY_FILE: &str = "TENSORPOST_KEY_FILE";
const WAIT_FOR_HOSTS: Duration = Duration::from_secs(60);
const SHUTDOWN: Duration = Duration::from_secs(20);

/// Runs the actors that the head starts here, and does not return, where this process was started for that.
pub(crate) fn serve_if_agent() -> anyhow::Result<()> {
    let Ok(lanes) = std::env::var(LANES) else { return Ok(()) };
    let hosts = Hosts::from_environment()?.context("no head is named")?;
    let nixl = if std::env::var_os(NIXL).is_some() { Nixl::WhereFaster } else { Nixl::Off };
    let hosts = hosts.name("second").lanes(lanes.parse()?).nixl(nixl).agents_serve();
    Node::builder().hosts(hosts).start()?;
    anyhow::bail!("an agent went on behind its start")
}

/// The key of a run, which is deleted with it.
pub(crate) struct Key(PathBuf);

impl Key {
    pub(crate) fn draw() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("hosts_bench.{}.key", std::process::id()));
        let mut secret = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut secret)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let mut file = file.with_context(|| path.display().to_string())?;
        let key = Key(path);
        file.write_all(&secret)?;
        Ok(key)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}

/// See the module.
pub(crate) struct Pair {
    pub(crate) node: Node,
    pub(crate) there: Host,
    agent: Agent,
    _link: Option<Link>,
}

fn head(listen: &str, key: Option<&Key>, lanes: u16, nixl: Nixl) -> anyhow::Result<Node> {
    let hosts = Hosts::head(listen).name("first").lanes(lanes).nixl(nixl);
    let hosts = match key {
        Some(key) => hosts.key_file(key.path()),
        None => hosts,
    };
    Ok(Node::builder().hosts(hosts).start()?)
}

fn address(node: &Node) -> anyhow::Result<String> {
    let hosts = node.hosts()?;
    Ok(hosts.first().context("this host is of no node")?.address.clone())
}

/// Returns a command that runs this program as an agent of the head.
fn agent_of(head: &str, key: Option<&Key>, lanes: u16) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    // The arguments of all hosts are compared when they join.
    command.args(std::env::args_os().skip(1));
    command.env(HEAD, head).env(LANES, lanes.to_string()).env_remove(KEY_FILE);
    if let Some(key) = key {
        command.env(KEY_FILE, key.path());
    }
    Ok(command)
}

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        // It has ended where all went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Pair {
    /// Starts them over loopback, with mutual TLS where there is a key, and with this many connections for
    /// tensors.
    pub(crate) fn start(key: Option<&Key>, lanes: u16) -> anyhow::Result<Self> {
        Self::with(key, lanes, Nixl::Off)
    }

    /// Does the same, by NIXL too.
    pub(crate) fn with(key: Option<&Key>, lanes: u16, nixl: Nixl) -> anyhow::Result<Self> {
        let node = head("127.0.0.1:0", key, lanes, nixl)?;
        let mut command = agent_of(&address(&node)?, key, lanes)?;
        if nixl != Nixl::Off {
            command.env(NIXL, "1");
        }
        let agent = command.spawn().context("the other host does not start")?;
        Self::joined(node, Agent(agent), None)
    }

    /// Does the same over a link of this many bits a second, with mutual TLS.
    pub(crate) fn over_a_link(
        network: &mut Network,
        rate: &str,
        key: &Key,
        lanes: u16,
    ) -> anyhow::Result<Self> {
        let node = head("0.0.0.0:0", Some(key), lanes, Nixl::Off)?;
        let address = address(&node)?;
        let (_, port) = address.rsplit_once(':').context("the head has no port")?;
        // The agent is told the head's address when its link exists.
        let mut command = agent_of("", Some(key), lanes)?;
        let (agent, link) = network.start(|here| {
            command.env(HEAD, format!("{here}:{port}"));
            command
        });
        let agent = Agent(agent);
        link.limit(rate).map_err(anyhow::Error::msg)?;
        Self::joined(node, agent, Some(link))
    }

    fn joined(node: Node, agent: Agent, link: Option<Link>) -> anyhow::Result<Self> {
        let hosts = node.await_hosts(2, WAIT_FOR_HOSTS)?;
        let there = hosts.get(1).context("the other host has not joined")?.clone();
        Ok(Pair { node, there, agent, _link: link })
    }

    /// Starts an actor in a process of its own on the other host.
    pub(crate) fn spawn_there<A: RemoteActor<Args = ()>>(&self, mailbox: u32) -> anyhow::Result<Spawned<A>> {
        Ok(self.node.spawn::<A>(()).on(&self.there).mailbox(mailbox).start()?)
    }

    /// Starts an actor in a process of its own on this host.
    pub(crate) fn spawn_here<A: RemoteActor<Args = ()>>(&self, mailbox: u32) -> anyhow::Result<Spawned<A>> {
        Ok(self.node.spawn::<A>(()).mailbox(mailbox).start()?)
    }

    /// Returns the resident bytes of all processes of either host.
    pub(crate) fn resident(&self) -> anyhow::Result<[u64; 2]> {
        let mut here = memory::resident(std::process::id())?;
        for worker in self.node.workers() {
            here += memory::resident(worker.pid)?;
        }
        let agent = self.agent.0.id();
        let mut there = memory::resident(agent)?;
        for pid in children(agent)? {
            there += memory::resident(pid)?;
        }
        Ok([here, there])
    }

    /// Kills the other host, with all of its processes.
    pub(crate) fn kill_other(&mut self) -> anyhow::Result<()> {
        self.agent.0.kill()?;
        self.agent.0.wait()?;
        Ok(())
    }

    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        self.node.shutdown(SHUTDOWN)?;
        let status = self.agent.0.wait()?;
        anyhow::ensure!(status.success(), "the other host ended with {status}");
        Ok(())
    }
}

/// Returns the children of a process.
fn children(of: u32) -> anyhow::Result<Vec<u32>> {
    let own = of.to_string();
    let is_child = |pid: &u32| {
        // It may have ended since it was listed.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The state and the parent are behind the name, which may contain anything.
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)) == Some(&own)
    };
    let all = std::fs::read_dir("/proc")?.flatten();
    Ok(all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect())
}
