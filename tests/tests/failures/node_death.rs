//! The node's process is killed in the middle of everything, and leaves nothing behind.
//!
//! Each test starts this program again as a node with workers that pass tensors around, waits until the
//! tensors move, and kills the node.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tensorpost::prelude::*;
use tensorpost_core::os::PidFd;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::players;
use tensorpost_tests::wait::{stop, until};

/// Set in the program that is a node to be killed: `isolated` or `mps`.
const SCENE: &str = "TENSORPOST_TESTS_NODE";
/// The file into which the daemon of [`FAKE_MPS`] writes its process id.
const DAEMON: &str = "TENSORPOST_TESTS_DAEMON";

/// Stands in for `nvidia-cuda-mps-control` where there is no GPU: a daemon that runs until it is told to
/// quit.
const FAKE_MPS: &str = "#!/bin/sh
if [ \"$1\" = -f ]; then echo $$ > \"$TENSORPOST_TESTS_DAEMON\"; exec sleep 600; fi
read command
[ \"$command\" != quit ] || kill \"$(cat \"$TENSORPOST_TESTS_DAEMON\")\"
[ -s \"$TENSORPOST_TESTS_DAEMON\" ]
";

/// The node that is to be killed.
fn scene(builder: Builder, sharing: &str) -> anyhow::Result<()> {
    let sharing = if sharing == "mps" { Sharing::Mps } else { Sharing::Isolated };
    let node = builder.sharing(sharing).start()?;
    players::play_for_ever(&node, &Device::host(), 4, 1 << 18)
}

/// A scene, seen from outside.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    folder: tempfile::TempDir,
}

impl Running {
    fn start(sharing: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("/proc/self/exe");
        command.env(SCENE, sharing).env("TMPDIR", folder.path()).env_remove("RUST_LOG");
        if sharing == "mps" {
            let bin = folder.path().join("bin");
            fs::create_dir(&bin).unwrap();
            let control = bin.join("nvidia-cuda-mps-control");
            fs::write(&control, FAKE_MPS).unwrap();
            fs::set_permissions(&control, fs::Permissions::from_mode(0o755)).unwrap();
            let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
            command.env("PATH", path).env(DAEMON, folder.path().join("daemon"));
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, lines, folder }
    }

    fn line(&mut self, with: &str) -> String {
        self.lines.by_ref().map(Result::unwrap).find(|line| line.starts_with(with)).expect("the line")
    }

    /// The node's process and its workers'.
    fn pids(&mut self) -> Vec<u32> {
        self.line("pids ").split(' ').skip(1).map(|pid| pid.parse().unwrap()).collect()
    }

    /// Waits until the balls move.
    fn traffic(&mut self) {
        while self.line("hops ").split(' ').next_back().is_none_or(|hops| hops.parse::<u64>().unwrap() < 400)
        {
        }
    }

    /// Kills the node, and waits for the workers.
    fn kill(&mut self, workers: &[PidFd]) -> Duration {
        let start = Instant::now();
        self.child.kill().unwrap();
        for worker in workers {
            assert!(worker.wait(Some(Duration::from_secs(30))).unwrap(), "a worker outlived its node");
        }
        let took = start.elapsed();
        self.child.wait().unwrap();
        took
    }
}

/// Names in the folder for temporary files.
fn names(folder: &Path) -> HashSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The memory without a name that a process has open or mapped, by device and inode.
fn memory_of(pid: u32) -> HashSet<(u64, u64)> {
    let of_links = |folder: &str| {
        let entries =
            fs::read_dir(format!("/proc/{pid}/{folder}")).into_iter().flatten().filter_map(Result::ok);
        let links = entries.filter(|entry| {
            fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().contains("memfd:"))
        });
        // The identity of the file behind the link.
        links
            .filter_map(|entry| fs::metadata(entry.path()).ok())
            .map(|file| (file.dev(), file.ino()))
            .collect()
    };
    let mut memory: HashSet<_> = of_links("fd");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mapped = maps.lines().filter(|line| line.contains("memfd:")).filter_map(|line| {
        let mut fields = line.split_whitespace().skip(3);
        let (major, minor) = fields.next()?.split_once(':')?;
        let device =
            rustix::fs::makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
        Some((device, fields.next()?.parse().ok()?))
    });
    memory.extend(mapped);
    memory
}

fn all_pids() -> Vec<u32> {
    names(Path::new("/proc")).iter().filter_map(|name| name.parse().ok()).collect()
}

/// Returns whether a process runs. A process for which nobody has waited has ended all the same.
fn runs(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    state.is_some_and(|state| state != "Z" && state != "X")
}

fn nothing_is_left(running: &Running, pids: &[u32], memory: &HashSet<(u64, u64)>) {
    assert!(pids.iter().all(|pid| !runs(*pid)));
    assert_eq!(names(running.folder.path()).iter().filter(|name| name.contains("tensorpost")).count(), 0);
    assert!(names(Path::new("/dev/shm")).iter().all(|name| !name.contains("tensorpost")));
    // Memory without a name goes back to the system when nobody has it open or mapped.
    for pid in all_pids() {
        let left: Vec<_> = memory_of(pid).intersection(memory).copied().collect();
        assert!(left.is_empty(), "process {pid} has {left:?}");
    }
}

fn a_node_that_is_killed_in_the_middle_of_traffic_leaves_nothing(_: Builder) {
    for round in 0..3 {
        let mut running = Running::start("isolated");
        let pids = running.pids();
        let workers: Vec<_> = pids[1..].iter().map(|pid| PidFd::open(*pid).unwrap()).collect();
        running.traffic();
        let memory: HashSet<_> = pids.iter().flat_map(|pid| memory_of(*pid)).collect();
        assert!(memory.len() > 2 * pids.len(), "the look finds memory while it is there: {memory:?}");
        if round > 0 {
            // Processes that cannot act any more end too.
            stop(pids[round]);
        }
        let took = running.kill(&workers);
        println!("round {round}: the workers have ended after {took:?}");
        nothing_is_left(&running, &pids, &memory);
    }
}

fn a_node_that_is_killed_leaves_no_daemon_and_none_of_its_files(_: Builder) {
    let mut running = Running::start("mps");
    let pids = running.pids();
    let workers: Vec<_> = pids[1..].iter().map(|pid| PidFd::open(*pid).unwrap()).collect();
    running.traffic();
    let folder: PathBuf = running.folder.path().to_path_buf();
    let daemon = fs::read_to_string(folder.join("daemon")).unwrap().trim().parse().unwrap();
    assert!(runs(daemon));
    assert!(names(&folder).iter().any(|name| name.starts_with("tensorpost-mps-")), "{:?}", names(&folder));
    let memory: HashSet<_> = pids.iter().flat_map(|pid| memory_of(*pid)).collect();
    running.kill(&workers);
    until("the daemon has ended", || !runs(daemon));
    until("its folder is gone", || names(&folder).iter().all(|name| !name.starts_with("tensorpost-mps-")));
    nothing_is_left(&running, &pids, &memory);
}

/// Plays a scene where this program was started as a node that is to be killed; returns whether it was. The
/// scene is over then.
pub(crate) fn play() -> bool {
    let Ok(sharing) = std::env::var(SCENE) else { return false };
    // A worker of it never returns from the start either.
    if let Err(error) = scene(Node::builder(), &sharing) {
        eprintln!("{error:#}");
    }
    true
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_node_that_is_killed_in_the_middle_of_traffic_leaves_nothing,
        a_node_that_is_killed_leaves_no_daemon_and_none_of_its_files,
    ]
}
