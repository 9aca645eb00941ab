//! Starts a worker's process.
//!
//! A worker is this program again: `/proc/self/exe` with the same arguments, taken over before its `main`. It
//! gets none of the node's memory, because neither the GPU driver nor a thread survives a fork. It inherits
//! its control socket, under the number that the environment variable names.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use command_fds::CommandFdExt;
use rustix::io::fcntl_getfd;
use rustix::stdio::{stderr, stdout};

use crate::actor::WorkerProgram;
use crate::node::handshake::{self, Build, BuildMismatch, KnownTypes, THIS_PROGRAM};
use crate::node::worker::{LINKED, VARIABLE};
use crate::os::last_words::LastWords;
use crate::os::{Launcher, PidFd, Seqpacket, signals};

/// How many descriptors must be free before another worker is started. Running workers send the node memory
/// and links. If the node has no room for a descriptor, it loses the message and kills the sender.
const SPARE_DESCRIPTORS: usize = 16;

/// The program that the workers of a node run.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    path: PathBuf,
    name: Option<OsString>,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    /// The build that its workers must name.
    build: Build,
    /// The suffix of the worker's environment variable.
    mark: &'static str,
    /// Whether this is another program than the node's. Then only the parts of the build that two programs
    /// talk by are compared.
    differs: bool,
    /// The remedy to name if it does not start.
    pub(super) remedy: &'static str,
}

impl Program {
    /// Describes this program again, or `other`, which gets no arguments.
    pub(crate) fn new(other: Option<&Path>, types: KnownTypes) -> io::Result<Self> {
        let mark = if types.are_linked() { LINKED } else { "" };
        match other {
            None => Ok(Program {
                path: THIS_PROGRAM.into(),
                name: std::env::args_os().next(),
                arguments: std::env::args_os().skip(1).collect(),
                environment: Vec::new(),
                build: Build::of_this_process(types)?,
                mark,
                differs: false,
                remedy: "",
            }),
            Some(path) => Ok(Program {
                path: path.to_path_buf(),
                name: None,
                arguments: Vec::new(),
                environment: Vec::new(),
                build: Build::of_program(types, path)?,
                mark,
                differs: false,
                remedy: "",
            }),
        }
    }

    /// Describes an interpreter: a worker's program that is not by the node's author.
    pub(super) fn another(&self, program: WorkerProgram) -> Self {
        let WorkerProgram { path, arguments, environment, remedy } = program;
        Program {
            path,
            name: None,
            arguments: arguments.into_iter().map(OsString::from).collect(),
            environment,
            build: self.build.clone(),
            mark: self.mark,
            differs: true,
            remedy,
        }
    }

    /// Whether a worker of this build may join the node.
    pub(super) fn check(&self, worker: &Build) -> Result<(), BuildMismatch> {
        if self.differs {
            handshake::check_another(&self.build, worker)
        } else {
            handshake::check(&self.build, worker)
        }
    }

    /// Returns its path, if it is not this program again.
    pub(crate) fn other(&self) -> Option<&Path> {
        (self.path != Path::new(THIS_PROGRAM)).then_some(&self.path)
    }

    pub(crate) fn path(&self) -> String {
        self.path.display().to_string()
    }

    /// Starts it. The kernel kills the new process when the launcher is dropped.
    pub(crate) fn launch(
        &self,
        launcher: &Launcher,
        connections: usize,
        environment: &[(&'static str, OsString)],
    ) -> io::Result<Launched> {
        let (socket, theirs) = Seqpacket::pair()?;
        // Closed again when the worker runs.
        let _spare = (0..SPARE_DESCRIPTORS)
            .map(|_| socket.as_fd().try_clone_to_owned())
            .collect::<Result<Vec<_>, _>>()?;
        let mut command = Command::new(&self.path);
        if let Some(program) = &self.name {
            command.arg0(program);
        }
        command.args(&self.arguments);
        // A module that loads lazily would load behind a wait. Under MPS the driver gives only two hardware
        // queues unless the variable asks for more.
        let connections = connections.to_string();
        for (variable, value) in
            [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", connections.as_str())]
        {
            if std::env::var_os(variable).is_none() {
                command.env(variable, value);
            }
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        // A terminal's Ctrl-C is for the node alone, which then lets the workers finish.
        command.process_group(0);
        // Other signals that reach all processes at once are for the node alone, too.
        signals::hold_back(&mut command);
        // Pass on the standard streams as they are now: they may have been redirected since the launcher's
        // table was made.
        let streams = [stdout(), stderr()];
        let open = streams.map(|stream| fcntl_getfd(stream).is_ok());
        // Without it an error only says less.
        let last_words = LastWords::new().ok();
        let given: Vec<_> = std::iter::once(theirs.as_fd())
            .chain(streams.into_iter().zip(open).filter_map(|(stream, open)| open.then_some(stream)))
            .chain(last_words.as_ref().map(AsFd::as_fd))
            .collect();
        let mark = self.mark;
        let mut child = launcher.launch(&given, move |given| {
            let mut given = given.into_iter();
            let Some(socket) = given.next() else { return Err(io::ErrorKind::InvalidData.into()) };
            let mut stream = |open: bool| open.then(|| given.next()).flatten();
            // A stream that is closed here is the null device there.
            command.stdout(stream(open[0]).map_or_else(Stdio::null, Stdio::from));
            let (own, words) = (stream(open[1]), given.next());
            let mut variable = format!("{}:{}", socket.as_raw_fd(), std::process::id());
            let mut preserved = vec![socket];
            match (own, words) {
                (Some(own), Some(words)) => {
                    command.stderr(words);
                    variable.push_str(&format!(":{}", own.as_raw_fd()));
                    preserved.push(own);
                }
                (own, _) => drop(command.stderr(own.map_or_else(Stdio::null, Stdio::from))),
            }
            command.env(VARIABLE, variable + mark);
            command.preserved_fds(preserved);
            command.spawn()
        })?;
        // Close our copy of the worker's socket, or the socket would not show the worker's end.
        drop(theirs);
        match PidFd::open(child.id()) {
            Ok(pidfd) => Ok(Launched { child, pidfd, socket, last_words }),
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
    /// Its standard error until it has greeted.
    pub(crate) last_words: Option<LastWords>,
}
