//! Compares the builds of two processes.
//!
//! Messages between the processes of a node are laid out by the types that both were compiled with, so the
//! node takes only workers of its own build. These have the same protocol and crate version and, most
//! strictly, the very executable that it meant to start.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::actor::Program;
use crate::message::portable::interfaces::Interfaces;
use crate::node::control::PROTOCOL;
use crate::node::limits::MAX_NAME;
use crate::observe::text::shown;
pub(crate) use crate::os::process::THIS_PROGRAM;

/// The properties that must agree between the node and its workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Build {
    protocol: u32,
    version: String,
    fingerprint: u64,
    interfaces: Interfaces,
    executable: Executable,
}

/// The messages that a program knows.
#[derive(Clone, Debug, Default)]
pub struct KnownTypes {
    /// Stands for the program's types if its processes run no actors; 0 if they do.
    fingerprint: u64,
    /// The portable messages, which two programs may define differently.
    interfaces: Interfaces,
}

impl KnownTypes {
    /// Whether the types are found by what the program links, and so before `main`.
    pub(crate) fn are_linked(&self) -> bool {
        self.fingerprint == 0
    }
}

impl From<&Program> for KnownTypes {
    fn from(program: &Program) -> Self {
        KnownTypes { fingerprint: 0, interfaces: program.interfaces() }
    }
}

/// For processes that run no actors.
impl From<u64> for KnownTypes {
    fn from(fingerprint: u64) -> Self {
        KnownTypes { fingerprint, interfaces: Interfaces::default() }
    }
}

/// A file on disk, as it was at the time of the check.
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
    /// Makes its texts safe to show, because any process may claim any build.
    pub(crate) fn bounded(self) -> Self {
        let Build { protocol, version, fingerprint, interfaces, executable } = self;
        let interfaces = interfaces.bounded();
        let path = shown(executable.path, MAX_NAME);
        let version = shown(version, MAX_NAME);
        Build { protocol, version, fingerprint, interfaces, executable: Executable { path, ..executable } }
    }
}

impl Executable {
    /// Describes the file `program`. For this process itself that is its magic link, so a file that was
    /// replaced since this process started is not mistaken for it.
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
    /// Returns the build of this process, which knows these types.
    ///
    /// # Errors
    /// `/proc/self/exe` cannot be looked at.
    pub(crate) fn of_this_process(types: impl Into<KnownTypes>) -> io::Result<Self> {
        let shown = std::env::current_exe().unwrap_or_else(|_| PathBuf::from(THIS_PROGRAM));
        Ok(Self::new(types.into(), Executable::of(Path::new(THIS_PROGRAM), shown)?))
    }

    /// Returns the build that a worker that runs `program` must have.
    ///
    /// # Errors
    /// `program` cannot be looked at.
    pub(crate) fn of_program(types: impl Into<KnownTypes>, program: &Path) -> io::Result<Self> {
        Ok(Self::new(types.into(), Executable::of(program, program.to_path_buf())?))
    }

    fn new(types: KnownTypes, executable: Executable) -> Self {
        let KnownTypes { fingerprint, interfaces } = types;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Build { protocol: PROTOCOL, version, fingerprint, interfaces, executable }
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
     They differ in {}; rebuild the program{both} and start the node again{}", .differ.parts, .differ.schemas
)]
pub struct BuildMismatch {
    expected: Box<Build>,
    worker: Box<Build>,
    differ: Box<Differ>,
    both: &'static str,
}

#[derive(Clone, Debug)]
struct Differ {
    parts: String,
    /// A line for each difference between the two definitions of the same message.
    schemas: String,
}

/// As [`check`], for a worker that runs another program: only the parts that the two talk by must agree.
pub(crate) fn check_another(expected: &Build, worker: &Build) -> Result<(), BuildMismatch> {
    let Build { fingerprint, executable, .. } = worker.clone();
    check(&Build { fingerprint, executable, ..expected.clone() }, worker)
}

/// Checks whether `worker` may join a node that expects `expected`.
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
    let schemas = expected.interfaces.differences(&worker.interfaces, "the node", "the worker");
    if !schemas.is_empty() {
        differ.push("the definitions of portable messages");
    }
    if differ.is_empty() {
        return Ok(());
    }
    Err(BuildMismatch {
        expected: Box::new(expected.clone()),
        worker: Box::new(worker.clone()),
        differ: Box::new(Differ {
            parts: differ.join(" and "),
            schemas: schemas.iter().map(|line| format!("\n  {line}")).collect(),
        }),
        both: if expected.executable == worker.executable { "" } else { " and its worker program together" },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_its_own_build() {
        let build = Build::of_this_process(1_u64).unwrap();
        let by_path = Build::of_program(1_u64, &std::env::current_exe().unwrap()).unwrap();
        assert!(check(&build, &by_path).is_ok());
    }

    #[test]
    fn a_mismatch_names_both_builds_and_what_to_do() {
        let node = Build::of_this_process(0xaaaa_u64).unwrap();
        let worker = Build::of_this_process(0xbbbb_u64).unwrap();
        let text = check(&node, &worker).unwrap_err().to_string();
        assert!(text.contains("aaaa") && text.contains("bbbb"), "{text}");
        assert!(text.contains("registered actor and message types") && text.contains("rebuild"), "{text}");

        assert!(!text.contains("portable messages"), "{text}");

        let other = Build::of_program(0xaaaa_u64, Path::new("/proc/self/status")).unwrap();
        assert!(check(&node, &other).unwrap_err().to_string().contains("the program file"));
    }

    mod here {
        use serde::{Deserialize, Serialize};

        #[derive(Serialize, Deserialize, tensorpost_derive::GpuMessage)]
        #[gpu_message(crate = crate, portable)]
        pub(super) struct Frame {
            id: u64,
        }
    }

    mod there {
        use serde::{Deserialize, Serialize};

        #[derive(Serialize, Deserialize, tensorpost_derive::GpuMessage)]
        #[gpu_message(crate = crate, portable)]
        pub(super) struct Frame {
            id: u32,
        }
    }

    #[test]
    fn a_message_with_two_definitions_is_told_field_by_field() {
        use crate::message::GpuMessage;
        let of = |interfaces| Build::of_this_process(KnownTypes { fingerprint: 1, interfaces }).unwrap();
        let node = of(Interfaces::of(here::Frame::PORTABLE));
        let worker = of(Interfaces::of(there::Frame::PORTABLE)).bounded();
        let text = check(&node, &worker).unwrap_err().to_string();
        assert!(text.contains("They differ in the definitions of portable messages"), "{text}");
        assert!(text.ends_with("id: the node has u64, the worker has u32"), "{text}");
        assert!(check(&node, &of(Interfaces::default())).is_ok());
    }
}
