//! Nodes on two hosts: two programs of this machine, with a gateway each, that are one node over loopback.
//!
//! The other host is this binary again, with the same arguments and a variable that names its part.

mod actors;
mod broken;
mod ends;
mod figures;
#[path = "../../../framework/hosts/src/net/tests/flood.rs"]
mod flood;
mod gateways;
mod groups;
mod kills;
mod listens;
mod logs;
mod many;
mod messages;
mod names;
mod nixl;
mod partitions;
mod pipelines;
mod placed;
mod published;
mod python;
#[path = "../../../framework/hosts/src/net/tests/relay.rs"]
mod relay;
mod roaming;
mod scaling;
mod strangers;
mod traces;
mod users;

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tensorpost::hosts::{Hosts, Nixl};
use tensorpost::prelude::*;
use tensorpost_tests::harness::{self, Builder};
use tensorpost_tests::wait::until;

use crate::actors::{Counter, Echoer};

/// Reading and hashing this binary takes 0.1 s, in each gateway of each host. `examples/tests/hosts.rs` tests
/// that.
const BUILD: &str = "tests between hosts";

/// Has this binary be the other host.
const OTHER: &str = "TENSORPOST_TEST_HOST";

/// Runs the other host: an agent, with actors that others find by their names, until its standard input ends.
/// With `asks` it has started an actor on host 1, too.
fn be_the_other(lanes: u16, asks: bool, has_many: bool) -> ! {
    let hosts = Hosts::from_environment().expect("variables that make sense").expect("a head");
    // NIXL is used where a variable names the library, as the head does, too.
    let nixl = if std::env::var_os(nixl::LIBRARY).is_some() { Nixl::WhereFaster } else { Nixl::Off };
    let hosts = hosts.name("other").build_name(BUILD).lanes(lanes).nixl(nixl);
    let node = Node::builder().hosts(hosts).start().expect("it joins");
    assert!(!node.is_head());
    let echo = node.spawn::<Echoer>(()).name("echo").start().expect("an actor");
    let counter = node.spawn::<Counter>(()).name("counter").mailbox(4).start().expect("an actor");
    let again =
        node.spawn::<Echoer>(()).name("again").restart(Restart::on_failure(3)).start().expect("an actor");
    let placed = asks.then(|| {
        let hosts = node.await_hosts(3, Duration::from_secs(20)).expect("hosts");
        node.spawn::<Echoer>(())
            .on(&hosts[1])
            .restart(Restart::on_failure(3).on_other_hosts())
            .start()
            .expect("an actor there")
    });
    let many = has_many.then(|| many::start_many(&node));
    println!("ready");
    std::io::stdout().flush().expect("somebody reads it");
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    let supervisor = node.supervisor().clone();
    std::thread::spawn(move || {
        let mut told = String::new();
        while std::io::stdin().read_line(&mut told).is_ok_and(|bytes| bytes > 0) {
            // Its workers have names, and the test does not know their processes. A worker that comes back is
            // killed again, until this process ends.
            let named = told.trim().to_owned();
            let supervisor = supervisor.clone();
            std::thread::spawn(move || {
                loop {
                    for worker in supervisor.workers().iter().filter(|worker| worker.name == named) {
                        supervisor.kill_worker(worker.worker);
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            told.clear();
        }
        drop(ended);
    });
    let end = async { drop(end.await) };
    let report = node.run_until_ctrl_c_or(end, Duration::from_secs(20)).expect("it shuts down");
    drop((echo, counter, again, placed, many));
    if !report.is_clean() {
        eprintln!("the other host: {report}");
    }
    std::process::exit(i32::from(!report.is_clean()));
}

/// The other host, as this test sees it. Dropping it kills the host.
pub(crate) struct Other {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Other {
    pub(crate) fn start(head: &Node) -> Self {
        Self::start_at(&address(head), 1)
    }

    /// Starts one that reaches the head at this address, with this many lanes.
    pub(crate) fn start_at(head: &str, lanes: u16) -> Self {
        Self::begun(Self::command(head, &lanes.to_string()))
    }

    /// Starts one as [`start_at`](Self::start_at) does. Tensors between its memory and the other hosts go
    /// through slots, as those of a GPU do.
    pub(crate) fn staging_at(head: &str, lanes: u16) -> Self {
        let mut command = Self::command(head, &lanes.to_string());
        command.env("TENSORPOST_TESTING_STAGE_HOST", "1");
        Self::begun(command)
    }

    /// Starts one that has had host 1 start an actor for it.
    pub(crate) fn asking(head: &Node) -> Self {
        Self::asking_with(head, &[])
    }

    /// As [`asking`](Self::asking), with these variables.
    pub(crate) fn asking_with(head: &Node, variables: &[(&str, &OsStr)]) -> Self {
        let mut command = Self::command(&address(head), "asks");
        command.envs(variables.iter().copied());
        Self::begun(command)
    }

    /// Starts one that has more actors than a gateway has places.
    pub(crate) fn with_many(head: &Node) -> Self {
        Self::begun(Self::command(&address(head), "many"))
    }

    fn begun(mut command: Command) -> Self {
        let mut child = command.spawn().expect("it starts");
        let stdin = child.stdin.take();
        let mut line = [0; 6];
        child.stdout.take().expect("its output").read_exact(&mut line).expect("it is ready");
        assert_eq!(&line, b"ready\n");
        Other { child, stdin }
    }

    /// Starts one that only serves. It has joined when this returns.
    pub(crate) fn serving(head: &Node) -> Self {
        Self::serving_with(head, &address(head), &[])
    }

    /// Starts one that reaches the head at this address.
    pub(crate) fn serving_at(head: &Node, at: &str) -> Self {
        Self::serving_with(head, at, &[])
    }

    /// As [`serving`](Self::serving), but it sees no GPU.
    pub(crate) fn without_gpus(head: &Node) -> Self {
        Self::serving_with(head, &address(head), &[("CUDA_VISIBLE_DEVICES", OsStr::new(""))])
    }

    /// As [`serving_at`](Self::serving_at), with these variables.
    pub(crate) fn serving_with(head: &Node, at: &str, variables: &[(&str, &OsStr)]) -> Self {
        let before = head.hosts().expect("hosts").len();
        let mut command = Self::command(at, "serves");
        let child = command.envs(variables.iter().copied()).spawn().expect("it starts");
        let other = Other { child, stdin: None };
        let hosts = head.await_hosts(before + 1, Duration::from_secs(20)).expect("hosts");
        assert_eq!(hosts.len(), before + 1, "it did not join");
        other
    }

    fn command(head: &str, as_what: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(std::env::args_os().skip(1))
            .env(OTHER, as_what)
            .env("TENSORPOST_HEAD", head)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    /// Has it kill one of its workers, as often as it comes back, and waits until the host has ended by
    /// itself.
    pub(crate) fn ends_without(&mut self, worker: &str) -> ExitStatus {
        let stdin = self.stdin.as_mut().expect("it listens");
        writeln!(stdin, "{worker}").expect("it listens");
        self.end_of()
    }

    /// Waits until it has ended by itself, in order.
    pub(crate) fn ends(&mut self) {
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }

    /// Tells it to end, and waits until it has.
    pub(crate) fn end(mut self) {
        drop(self.stdin.take());
        self.ends();
    }

    /// Sends the signal that a starter of hosts sends.
    pub(crate) fn terminate(&self) {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it is there");
    }

    /// Returns the process of its node.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the process of its gateway.
    pub(crate) fn gateway(&self) -> Pid {
        let found = self.processes().into_iter().find(|(_, name)| name == "gateway");
        found.and_then(|(pid, _)| Pid::from_raw(pid)).expect("it has one")
    }

    /// Returns the names of its workers but for the gateway.
    pub(crate) fn workers(&self) -> Vec<String> {
        self.processes().into_iter().map(|(_, name)| name).filter(|name| name != "gateway").collect()
    }

    /// Returns its workers' processes, with the beginnings of their names, as the system keeps them.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        let own = self.child.id().to_string();
        let all = std::fs::read_dir("/proc").expect("processes").flatten();
        let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        all.filter_map(|pid| {
            // It may have ended since it was listed.
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (name, rest) = stat.split_once("(tp:")?.1.split_once(") ")?;
            (rest.split(' ').nth(1)? == own).then(|| (pid, name.to_owned()))
        })
        .collect()
    }

    /// Has its node stand still.
    pub(crate) fn stop(&self) {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::STOP).expect("it is there");
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::CONT).expect("it is there");
    }

    /// Waits until it has ended by itself.
    pub(crate) fn end_of(&mut self) -> ExitStatus {
        until("it ends", || self.child.try_wait().expect("a child").is_some());
        self.child.wait().expect("it has ended")
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it was there");
        self.child.wait().expect("it has ended");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn address(head: &Node) -> String {
    head.hosts().expect("hosts")[0].address.clone()
}

pub(crate) fn head(builder: Builder) -> Node {
    builder.hosts(Hosts::head("127.0.0.1:0").name("first").build_name(BUILD)).start().expect("a head")
}

/// Writes the key of a node's hosts.
pub(crate) fn key_in(folder: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let key = folder.join("key");
    std::fs::write(&key, [7; 32]).expect("a file");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("its mode");
    key
}

pub(crate) fn find<M: GpuMessage>(node: &Node, name: &str) -> Address<M> {
    node.block_on(node.registry().lookup(name)).expect("it is found on the other host")
}

fn main() {
    tensorpost_tests::user::be_another_if_told();
    match std::env::var(OTHER).as_deref() {
        Ok("serves") => placed::serve(),
        Ok("head") => kills::be_the_head(),
        Ok("nixl") => nixl::run_as_head(),
        Ok("asks") => be_the_other(1, true, false),
        Ok("many") => be_the_other(1, false, true),
        Ok(scene) if scene.ends_with(" cuts") => partitions::play(scene),
        Ok(scene) if scene.starts_with("flooded ") => strangers::play(scene),
        Ok(lanes) => be_the_other(lanes.parse().expect("a number of lanes"), false, false),
        Err(_) => {
            // Cases that wait for silence come first: the others run beside them.
            let cases = [
                ends::cases(),
                partitions::cases(),
                kills::cases(),
                listens::cases(),
                gateways::cases(),
                pipelines::cases(),
                messages::cases(),
                many::cases(),
                names::cases(),
                nixl::cases(),
                broken::cases(),
                placed::cases(),
                roaming::cases(),
                groups::cases(),
                published::cases(),
                logs::cases(),
                figures::cases(),
                python::cases(),
                scaling::cases(),
                traces::cases(),
                users::cases(),
                strangers::cases(),
            ];
            harness::run_waiting(cases.concat())
        }
    }
}
