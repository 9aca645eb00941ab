//! Which build a process runs, and whether two processes run the same one.
//!
//! Messages between the processes of a node are laid out by the types that both were compiled with, so the node takes
//! only workers of its own build: the same protocol and crate version, the same registered types and, as the last
//! word, the very executable that it meant to start.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::node::control::PROTOCOL;
use crate::node::limits::MAX_NAME;
use crate::observe::text::shown;
pub(crate) use crate::os::process::THIS_PROGRAM;

/// What must agree between the node and its workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Build {
    protocol: u32,
    version: String,
    fingerprint: u64,
    executable: Executable,
}

/// A file on disk, as it was when it was looked at.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Executable {
    path: String,
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

// The path is for people: one file has several.
impl PartialEq for Executable {
    fn eq(&self, other: &Self) -> bool {
        (self.device, self.inode, self.size, self.modified)
            == (other.device, other.inode, other.size, other.modified)
    }
}

impl Eq for Executable {}

impl Build {
    /// As it can be shown, whoever says that it runs this.
    pub(crate) fn bounded(self) -> Self {
        let Build { protocol, version, fingerprint, executable } = self;
        let path = shown(executable.path, MAX_NAME);
        let version = shown(version, MAX_NAME);
        Build { protocol, version, fingerprint, executable: Executable { path, ..executable } }
    }
}

impl Executable {
    /// `program` is opened by its magic link for this process itself, so a file that was replaced since this process
    /// started is not mistaken for it.
    fn of(program: &Path, shown: PathBuf) -> io::Result<Self> {
        let stat = rustix::fs::stat(program)?;
        Ok(Executable {
            path: shown.to_string_lossy().into_owned(),
            device: stat.st_dev,
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        })
    }
}

impl Build {
    /// The build of this process, whose registered types have `fingerprint`.
    ///
    /// # Errors
    /// When `/proc/self/exe` cannot be looked at.
    pub(crate) fn of_this_process(fingerprint: u64) -> io::Result<Self> {
        let shown = std::env::current_exe().unwrap_or_else(|_| PathBuf::from(THIS_PROGRAM));
        Self::new(fingerprint, Executable::of(Path::new(THIS_PROGRAM), shown)?)
    }

    /// The build that a worker which runs `program` must have.
    ///
    /// # Errors
    /// When `program` cannot be looked at.
    pub(crate) fn of_program(fingerprint: u64, program: &Path) -> io::Result<Self> {
        Self::new(fingerprint, Executable::of(program, program.to_path_buf())?)
    }

    fn new(fingerprint: u64, executable: Executable) -> io::Result<Self> {
        Ok(Build {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            fingerprint,
            executable,
        })
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "tensorpost {} (protocol {}), types {:016x}, program {} (inode {}, {} bytes, modified {}.{:09})",
            self.version,
            self.protocol,
            self.fingerprint,
            self.executable.path,
            self.executable.inode,
            self.executable.size,
            self.executable.modified.0,
            self.executable.modified.1,
        )
    }
}

/// Two processes run different builds.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the worker runs another build than the node expects.\n  expected: {expected}\n  worker:   {worker}\n\
     They differ in {differ}; rebuild the program{both} and start the node again"
)]
pub struct BuildMismatch {
    expected: Box<Build>,
    worker: Box<Build>,
    differ: String,
    both: &'static str,
}

/// Whether `worker` may join a node that expects `expected`.
pub(crate) fn check(expected: &Build, worker: &Build) -> Result<(), BuildMismatch> {
    let mut differ = Vec::new();
    if expected.protocol != worker.protocol || expected.version != worker.version {
        differ.push("the version of tensorpost");
    }
    if expected.fingerprint != worker.fingerprint {
        differ.push("the registered actor and message types");
    }
    if expected.executable != worker.executable {
        differ.push("the program file");
    }
    if differ.is_empty() {
        return Ok(());
    }
    Err(BuildMismatch {
        expected: Box::new(expected.clone()),
        worker: Box::new(worker.clone()),
        differ: differ.join(" and "),
        both: if expected.executable == worker.executable { "" } else { " and its worker program together" },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_its_own_build() {
        let build = Build::of_this_process(1).unwrap();
        let by_path = Build::of_program(1, &std::env::current_exe().unwrap()).unwrap();
        assert!(check(&build, &by_path).is_ok());
    }

    #[test]
    fn a_mismatch_names_both_builds_and_what_to_do() {
        let node = Build::of_this_process(0xaaaa).unwrap();
        let worker = Build::of_this_process(0xbbbb).unwrap();
        let text = check(&node, &worker).unwrap_err().to_string();
        assert!(text.contains("aaaa") && text.contains("bbbb"), "{text}");
        assert!(text.contains("registered actor and message types") && text.contains("rebuild"), "{text}");

        let other = Build::of_program(0xaaaa, Path::new("/proc/self/status")).unwrap();
        assert!(check(&node, &other).unwrap_err().to_string().contains("the program file"));
    }
}
