//! A private MPS daemon: its folder, its start and its end. The node's keeper runs one (`node/mps`), and the
//! doctor tries one.
//!
//! A dropped [`Daemon`] quits, and a dropped [`Folder`] is removed. The process that owns one must not be
//! killed before that.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The daemon's program.
pub const CONTROL: &str = "nvidia-cuda-mps-control";
/// The variable that names the daemon's folder to its clients.
pub const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// How long the daemon may take to quit.
const DAEMON_QUITS: Duration = Duration::from_secs(15);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The folder of the daemon's pipes. Any process that can open them can use the GPU as its client. Removed on
/// drop, but only if this value made it.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a folder that only this user can look into, and whose name nobody could take before.
    pub fn create(parent: &Path) -> Result<Self, String> {
        // A hasher's keys come from the system's source of randomness. `mkdir` refuses a name that exists,
        // also that of a link.
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

/// A running daemon. Dropping it makes it quit, and waits for that.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    folder: PathBuf,
}

impl Daemon {
    /// Starts the daemon, for all GPUs, with its pipes in `folder`, and waits until it answers, for at most
    /// `patience`.
    pub fn start(folder: &Path, patience: Duration) -> Result<Self, String> {
        let child = Command::new(CONTROL)
            .arg("-f")
            .env(PIPES, folder)
            .env(LOGS, folder)
            // The daemon would count its clients' GPUs from the first of these on: with 1 here and in a
            // client, the client would see none. The client itself says which GPUs it uses.
            .env_remove(VISIBLE)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{CONTROL}: {error}"))?;
        let mut daemon = Daemon { child, folder: folder.to_path_buf() };
        daemon.await_answer(patience)?;
        Ok(daemon)
    }

    fn await_answer(&mut self, patience: Duration) -> Result<(), String> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("{CONTROL} ended at once, with {status}"));
            }
            match tell(&self.folder, "get_server_list") {
                Ok(()) => return Ok(()),
                Err(error) if started.elapsed() > patience => {
                    return Err(format!("it does not answer: {error}"));
                }
                Err(_) => std::thread::sleep(LOOK_INTERVAL), // another program gets ready, and tells nobody
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let quit = tell(&self.folder, "quit");
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if quit.is_err() || asked.elapsed() > DAEMON_QUITS {
                let _ = self.child.kill();
                let _ = self.child.wait();
            } else {
                // Another program's end, of which there is no event with a deadline in std.
                std::thread::sleep(LOOK_INTERVAL);
            }
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
        // A folder that this has not made stays: it has no guard.
        let refused = Folder::create(&parent.join("is/not/there")).unwrap_err();
        assert!(refused.contains("is/not/there"), "{refused}");
        std::fs::remove_dir(&parent).unwrap();
    }
}
