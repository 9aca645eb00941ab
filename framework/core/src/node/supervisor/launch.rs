//! Starts a worker's process.
//!
//! A worker is this program again, from its beginning: `/proc/self/exe` with the same arguments. Nothing of the node's
//! memory gets into it, which matters because neither the GPU driver nor a thread survives a fork. What it gets is its
//! control socket, under the number that the environment variable names.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use command_fds::CommandFdExt;

use crate::limits::CUDA_CONNECTIONS;
use crate::node::arguments::arguments;
use crate::node::handshake::{Build, THIS_PROGRAM};
use crate::node::worker::VARIABLE;
use crate::os::{PidFd, Seqpacket};

/// The program that the workers of a node run.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    path: PathBuf,
    name: Option<OsString>,
    arguments: Vec<OsString>,
    /// The build that its workers must name.
    pub(crate) build: Build,
}

impl Program {
    /// This program again, or `other`, which gets no arguments.
    pub(crate) fn new(other: Option<&Path>, fingerprint: u64) -> io::Result<Self> {
        match other {
            None => Ok(Program {
                path: THIS_PROGRAM.into(),
                name: std::env::args_os().next(),
                arguments: arguments(),
                build: Build::of_this_process(fingerprint)?,
            }),
            Some(path) => Ok(Program {
                path: path.to_path_buf(),
                name: None,
                arguments: Vec::new(),
                build: Build::of_program(fingerprint, path)?,
            }),
        }
    }

    pub(crate) fn path(&self) -> String {
        self.path.display().to_string()
    }

    /// Starts it. The kernel kills the new process when the calling *thread* ends, so only the supervisor's thread may
    /// call this.
    pub(crate) fn launch(&self, environment: &[(&'static str, OsString)]) -> io::Result<Launched> {
        let (socket, theirs) = Seqpacket::pair()?;
        let theirs = OwnedFd::from(theirs);
        let mut command = Command::new(&self.path);
        if let Some(name) = &self.name {
            command.arg0(name);
        }
        command.args(&self.arguments);
        command.env(VARIABLE, format!("{}:{}", theirs.as_raw_fd(), std::process::id()));
        // Modules that load lazily would load behind a wait; and under MPS the driver gives two hardware queues where
        // nothing is said.
        let connections = CUDA_CONNECTIONS.to_string();
        for (variable, value) in
            [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", connections.as_str())]
        {
            if std::env::var_os(variable).is_none() {
                command.env(variable, value);
            }
        }
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        // A terminal's Ctrl-C is for the node alone, which then lets the workers finish.
        command.process_group(0);
        command.preserved_fds(vec![theirs]);
        let mut child = command.spawn()?;
        // The command owns our copy of the worker's end; while it is open, the worker's end would not show.
        drop(command);
        match PidFd::open(child.id()) {
            Ok(pidfd) => Ok(Launched { child, pidfd, socket }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }
}

/// A process that was started, and the node's end of its control socket.
pub(crate) struct Launched {
    pub(crate) child: Child,
    pub(crate) pidfd: PidFd,
    pub(crate) socket: Seqpacket,
}
