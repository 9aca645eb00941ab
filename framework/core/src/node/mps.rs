//! How workers share a GPU, and the private MPS daemon of [`Sharing::Mps`].
//!
//! A process of its own keeps the daemon: the keeper, this program again. It starts `nvidia-cuda-mps-control` with a
//! pipe folder that only this node knows. When the node closes the keeper's standard input, or ends in whatever way,
//! the keeper stops the daemon and removes the folder. So no daemon and no file outlive a node that was killed.

use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use super::arguments::arguments;

/// How the workers of a node share a GPU. Measured on an H200 (see `benches/README.md` for this build's own figures).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Each worker has its own time slices of the GPU. Two workers that both run kernels take turns, at about 145 µs a
    /// switch; the death or fault of one harms no other.
    #[default]
    Isolated,
    /// Workers are clients of a private MPS daemon, which the node starts and stops: their kernels overlap, and a round
    /// trip with a kernel on each side takes a tenth of the time. A worker that dies in the middle of a kernel, or makes
    /// an illegal access, takes the others on its GPU with it.
    Mps,
}

/// Why there is no MPS.
#[derive(Debug, thiserror::Error)]
pub enum MpsError {
    /// The keeper could not be started.
    #[error("the process that keeps the MPS daemon could not be started: {0}")]
    Keeper(#[from] io::Error),
    /// The daemon did not start.
    #[error(
        "the MPS daemon did not start: {0}; is nvidia-cuda-mps-control installed? `Sharing::Isolated` needs no daemon"
    )]
    Daemon(String),
}

/// Set in the keeper: the process id of its node.
const VARIABLE: &str = "TENSORPOST_MPS_KEEPER";
const CONTROL: &str = "nvidia-cuda-mps-control";
const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
/// For the daemon to answer, and to quit.
const PATIENCE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(10);

/// The node's hold on its keeper. Dropping it stops the daemon, and waits for that.
#[derive(Debug)]
pub(crate) struct Mps {
    keeper: Child,
    input: Option<ChildStdin>,
    folder: PathBuf,
}

impl Mps {
    /// Starts the daemon.
    pub(crate) fn start() -> Result<Self, MpsError> {
        let mut command = Command::new("/proc/self/exe");
        if let Some(name) = std::env::args_os().next() {
            command.arg0(name);
        }
        command.args(arguments());
        command.env(VARIABLE, std::process::id().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut keeper = command.spawn()?;
        let input = keeper.stdin.take();
        let mut answer = String::new();
        if let Some(output) = keeper.stdout.take() {
            // Whatever the program prints before it starts its node comes first.
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

    /// What workers need in their environment.
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
    let Some(node) = std::env::var(VARIABLE).ok().and_then(|node| node.parse::<u32>().ok()) else { return };
    // A program that the keeper's node started otherwise has the variable but another parent.
    if std::os::unix::process::parent_id() != node {
        return;
    }
    let kept = Folder::create(&std::env::temp_dir()).and_then(|folder| keep(&folder.0));
    if let Err(why) = &kept {
        say(&format!("failed {}", why.replace('\n', " ")));
    }
    std::process::exit(i32::from(kept.is_err()))
}

/// The pipes of the daemon: whoever can open them can use the GPU as its client. Removed when this drops, and only where this
/// made it.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    /// A new folder that nobody but this user can look into, and whose name nobody could take before.
    fn create(parent: &Path) -> Result<Self, String> {
        // A hasher's keys come from the system's source of randomness. `mkdir` takes no name that is there, a link included.
        let random = RandomState::new().build_hasher().finish();
        let folder = parent.join(format!("tensorpost-mps-{}-{random:016x}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        made.map(|()| Folder(folder.clone())).map_err(|error| format!("{}: {error}", folder.display()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            eprintln!("{} could not be removed: {error}", self.0.display());
        }
    }
}

fn say(text: &str) {
    let mut out = io::stdout().lock();
    // If nobody reads, the node has ended, and standard input says so next.
    let _ = writeln!(out, "{VARIABLE} {text}").and_then(|()| out.flush());
}

fn keep(folder: &Path) -> Result<(), String> {
    let mut daemon = Command::new(CONTROL)
        .arg("-f")
        .env(PIPES, folder)
        .env(LOGS, folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{CONTROL}: {error}"))?;
    let kept = wait_until_ready(&mut daemon, folder).map(|()| {
        say(&format!("ready {}", folder.display()));
        // Until the node closes it, or ends.
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
    });
    let quit = tell(folder, "quit");
    let asked = Instant::now();
    while matches!(daemon.try_wait(), Ok(None)) {
        if quit.is_err() || asked.elapsed() > PATIENCE {
            let _ = daemon.kill();
            let _ = daemon.wait();
        } else {
            std::thread::sleep(LOOK); // another program's end, of which there is no event with a deadline in std
        }
    }
    kept
}

fn wait_until_ready(daemon: &mut Child, folder: &Path) -> Result<(), String> {
    let started = Instant::now();
    loop {
        if let Some(status) = daemon.try_wait().map_err(|error| error.to_string())? {
            return Err(format!("{CONTROL} ended at once, with {status}"));
        }
        match tell(folder, "get_server_list") {
            Ok(()) => return Ok(()),
            Err(error) if started.elapsed() > PATIENCE => return Err(format!("it does not answer: {error}")),
            Err(_) => std::thread::sleep(LOOK), // another program gets ready, and tells nobody
        }
    }
}

/// Sends one command to the daemon.
fn tell(folder: &Path, command: &str) -> Result<(), String> {
    let mut control = Command::new(CONTROL)
        .env(PIPES, folder)
        .env(LOGS, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{CONTROL}: {error}"))?;
    if let Some(mut input) = control.stdin.take() {
        input.write_all(format!("{command}\n").as_bytes()).map_err(|error| error.to_string())?;
    }
    let status = control.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("`{command}` was answered with {status}")) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_folder_is_this_users_alone_and_has_a_name_that_nobody_knows_before() {
        let parent = std::env::temp_dir().join(format!("tensorpost-test-mps-{}", std::process::id()));
        std::fs::create_dir(&parent).unwrap();
        let (one, other) = (Folder::create(&parent).unwrap(), Folder::create(&parent).unwrap());
        assert_ne!(one.0, other.0);
        let mode = std::fs::metadata(&one.0).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let path = one.0.clone();
        std::fs::write(path.join("log"), "x").unwrap();
        drop((one, other));
        assert!(!path.exists());
        // What this has not made, it leaves: there is no guard of it.
        let refused = Folder::create(&parent.join("is/not/there")).unwrap_err();
        assert!(refused.contains("is/not/there"), "{refused}");
        std::fs::remove_dir(&parent).unwrap();
    }
}
