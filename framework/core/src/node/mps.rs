//! How workers share a GPU, and the private MPS daemon of [`Sharing::Mps`].
//!
//! A process of its own, the *keeper*, keeps the daemon; it runs this program again. It starts
//! `nvidia-cuda-mps-control` with a pipe folder that only this node knows. When the node closes the keeper's
//! standard input, or ends in any way, the keeper stops the daemon and removes the folder. So no daemon and
//! no file outlive a node that was killed.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use super::worker;
use crate::device::Device;
use crate::device::mps::{Daemon, Folder, PIPES};
use crate::os::remedy::MPS_PROGRAM;
use crate::os::signals;

/// How the workers of a node share a GPU. Measured on an H200 (see `benches/README.md` for this build's own
/// figures).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Each worker has its own time slices of the GPU. Two workers that both run kernels take turns, at about
    /// 145 µs a switch; the death or fault of one harms no other.
    #[default]
    Isolated,
    /// Workers are clients of a private MPS daemon, which the node starts and stops: their kernels overlap,
    /// and a round trip with a kernel on each side takes a tenth of the time. A worker that dies in the
    /// middle of a kernel, or makes an illegal access, takes the others on its GPU with it.
    Mps,
    /// [`Mps`](Self::Mps) if there is a GPU and the daemon starts, [`Isolated`](Self::Isolated) otherwise:
    /// [`Node::time_slices`](crate::node::Node::time_slices) and the log say why. A pipeline with a node of
    /// its own chooses this if several of its workers are on one GPU.
    Auto,
}

/// The result of beginning a [`Sharing`].
pub(super) struct BegunSharing {
    pub(super) mps: Option<Mps>,
    /// Why there is no MPS.
    pub(super) time_slices: Option<String>,
}

impl Sharing {
    /// Starts the daemon, if this sharing needs it.
    pub(super) fn begin(self, keeper: &KeeperProgram) -> Result<BegunSharing, MpsError> {
        let slices = |why: String| BegunSharing { mps: None, time_slices: Some(why) };
        match self {
            Sharing::Isolated => Ok(slices("the node was built with `Sharing::Isolated`".to_owned())),
            Sharing::Auto if Device::best() == Device::host() => Ok(slices("there is no GPU".to_owned())),
            Sharing::Mps | Sharing::Auto => match (Mps::start(keeper), self) {
                (Ok(mps), _) => Ok(BegunSharing { mps: Some(mps), time_slices: None }),
                (Err(error), Sharing::Auto) => {
                    tracing::info!(target: "tensorpost::node", "workers share GPUs in time slices: {error}");
                    Ok(slices(error.to_string()))
                }
                (Err(error), _) => Err(error),
            },
        }
    }
}

/// Why there is no MPS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MpsError {
    /// The keeper could not be started.
    #[error("the process that keeps the MPS daemon could not be started: {0}")]
    Keeper(#[from] io::Error),
    /// The daemon did not start.
    #[error(
        "the MPS daemon did not start: {0}; where it is missing, {MPS_PROGRAM}; `Sharing::Isolated` needs no daemon"
    )]
    Daemon(String),
}

/// Set in the keeper: the process id of its node.
const VARIABLE: &str = "TENSORPOST_MPS_KEEPER";
/// How long the daemon may take to answer.
const DAEMON_STARTS: Duration = Duration::from_secs(15);

/// The keeper runs this program, which is taken over before its `main`, or one that calls [`run_if_keeper`].
#[derive(Debug)]
pub(crate) struct KeeperProgram {
    path: PathBuf,
    name: Option<OsString>,
    arguments: Vec<OsString>,
}

impl Default for KeeperProgram {
    /// Uses this program again.
    fn default() -> Self {
        KeeperProgram {
            path: "/proc/self/exe".into(),
            name: std::env::args_os().next(),
            arguments: std::env::args_os().skip(1).collect(),
        }
    }
}

#[cfg(feature = "bindings")]
impl KeeperProgram {
    pub(super) fn new(path: PathBuf, arguments: Vec<OsString>) -> Self {
        KeeperProgram { path, name: None, arguments }
    }
}

/// The node's handle of its keeper. Dropping it stops the daemon, and waits for that.
#[derive(Debug)]
pub(crate) struct Mps {
    keeper: Child,
    input: Option<ChildStdin>,
    folder: PathBuf,
}

impl Mps {
    /// Starts the daemon.
    pub(crate) fn start(program: &KeeperProgram) -> Result<Self, MpsError> {
        let mut command = Command::new(&program.path);
        if let Some(name) = &program.name {
            command.arg0(name);
        }
        command.args(&program.arguments);
        command.env(VARIABLE, std::process::id().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut keeper = command.spawn()?;
        let input = keeper.stdin.take();
        let mut answer = String::new();
        if let Some(output) = keeper.stdout.take() {
            // Skip the lines that the program prints before it starts its node.
            let mut lines = BufReader::new(output).lines();
            while let Some(line) = lines.next().transpose()? {
                if let Some(rest) = line.strip_prefix(VARIABLE) {
                    answer = rest.trim().to_owned();
                    break;
                }
            }
        }
        match answer.strip_prefix("ready ") {
            Some(folder) => Ok(Mps { keeper, input, folder: folder.into() }),
            None => {
                drop(input);
                let _ = keeper.wait();
                let why = answer.strip_prefix("failed ").unwrap_or("its keeper ended without a word");
                Err(MpsError::Daemon(why.to_owned()))
            }
        }
    }

    /// Returns the environment variable that workers need.
    pub(crate) fn environment(&self) -> (&'static str, &OsStr) {
        (PIPES, self.folder.as_os_str())
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        drop(self.input.take());
        if let Err(error) = self.keeper.wait() {
            tracing::warn!(%error, "the keeper of the MPS daemon could not be waited for");
        }
    }
}

/// Returns if this process is not a keeper; otherwise keeps the daemon, and the process ends with it.
pub(crate) fn run_if_keeper() {
    if is_keeper() {
        keep_until_end()
    }
}

pub(super) fn is_keeper() -> bool {
    let node = std::env::var(VARIABLE).ok().and_then(|node| node.parse::<u32>().ok());
    // A program that inherited the variable in another way has another parent.
    node == Some(std::os::unix::process::parent_id()) && !worker::has_more_rights()
}

/// Keeps the daemon for the node that has started this process.
pub(super) fn keep_until_end() -> ! {
    // As in a worker: the daemon ends when the node says so, or has ended.
    signals::leave_to_node();
    let kept = Folder::create(&std::env::temp_dir()).and_then(|folder| keep(folder.path()));
    if let Err(why) = &kept {
        say(&format!("failed {}", why.replace('\n', " ")));
    }
    std::process::exit(i32::from(kept.is_err()))
}

fn say(text: &str) {
    let mut out = io::stdout().lock();
    // If nobody reads, the node has ended, and standard input says so next.
    let _ = writeln!(out, "{VARIABLE} {text}").and_then(|()| out.flush());
}

fn keep(folder: &Path) -> Result<(), String> {
    let _daemon = Daemon::start(folder, DAEMON_STARTS)?;
    say(&format!("ready {}", folder.display()));
    // Block until the node closes standard input, or ends.
    let _ = io::stdin().lock().read_to_end(&mut Vec::new());
    Ok(())
}
