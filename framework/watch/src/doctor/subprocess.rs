//! The doctor's own processes: its program again, with a task as the last argument.
//!
//! A process reports its findings in lines of JSON behind a mark. Its other output, such as a driver's
//! complaints and panics, is kept as its last words. It has a deadline, and is killed when that comes. A
//! process that the kernel cannot end, because a driver hangs, is left behind: nobody waits for it.

use std::ffi::OsString;
#[cfg(feature = "cuda")]
use std::io::Read;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
#[cfg(feature = "cuda")]
use tensorpost_core::api::watch::probe;
use tensorpost_core::api::watch::trial::exchange::{self, ExchangeSide};
use tensorpost_core::api::watch::{THIS_PROGRAM, die_with_parent};

use super::kernel;

/// The beginning of a line that is meant for the doctor.
const MARK: &str = "tensorpost-doctor ";
/// How long a process may take for a task of milliseconds.
pub(super) const SHORT: Duration = Duration::from_secs(15);
/// How long a process may take that uses a driver.
pub(super) const LONG: Duration = Duration::from_secs(30);
/// How long the kernel may take to end a process that has sent its last message.
const END: Duration = Duration::from_secs(5);

/// The way for a program to start itself again as a process of the doctor: the program must call [`run_task`]
/// with the argument that comes behind these.
#[derive(Clone, Debug)]
pub struct Again {
    program: OsString,
    arguments: Vec<OsString>,
}

/// The task of a process of the doctor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// The steps of [`kernel`] from this one on.
    Kernel { from: usize },
    /// One side of an exchange, over the socket that is its standard input.
    Exchange(ExchangeSide),
    #[cfg(feature = "cuda")]
    Driver,
    #[cfg(feature = "cuda")]
    Nvml,
    #[cfg(feature = "cuda")]
    Toolkit,
    /// Keeps an MPS daemon until its standard input closes.
    #[cfg(feature = "cuda")]
    Mps,
    /// Uses the first GPU, as a client of the daemon that the environment names.
    #[cfg(feature = "cuda")]
    MpsClient,
}

impl Task {
    /// Returns whether the process is killed when the doctor ends. The steps of the kernel try this mechanism
    /// themselves, and the keeper of a daemon has to stop the daemon first.
    fn dies_with_parent(&self) -> bool {
        match self {
            Task::Kernel { .. } => false,
            #[cfg(feature = "cuda")]
            Task::Mps => false,
            _ => true,
        }
    }
}

/// A task, and the process that gave it.
#[derive(Serialize, Deserialize)]
struct Order {
    parent: u32,
    task: Task,
}

/// How a process of the doctor ended.
#[derive(Debug)]
pub(super) enum End {
    NotStarted(io::Error),
    Exited { status: Option<ExitStatus>, last_words: String },
    Late,
}

impl Again {
    /// Creates the way to start this program with `arguments` and the task behind them.
    pub fn with(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        // Without /proc, fall back on the name that this program was started by.
        let name = std::env::args_os().next().filter(|_| !Path::new(THIS_PROGRAM).exists());
        let program = name.unwrap_or_else(|| THIS_PROGRAM.into());
        Again { program, arguments: arguments.into_iter().map(Into::into).collect() }
    }

    /// Returns the `Again` by which this process was started.
    #[cfg(feature = "cuda")]
    pub(super) fn of_task() -> Self {
        let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
        arguments.pop();
        Self::with(arguments)
    }

    pub(super) fn start(&self, task: Task, until: Duration) -> Result<Running, End> {
        self.start_with(task, until, Stdio::piped(), &[])
    }

    /// Starts a process as [`start`](Self::start) does, with `input` as its standard input, and with
    /// variables.
    pub(super) fn start_with(
        &self,
        task: Task,
        until: Duration,
        input: Stdio,
        environment: &[(&str, OsString)],
    ) -> Result<Running, End> {
        self.try_start(task, until, input, environment).map_err(End::NotStarted)
    }

    fn try_start(
        &self,
        task: Task,
        until: Duration,
        input: Stdio,
        environment: &[(&str, OsString)],
    ) -> io::Result<Running> {
        let order = serde_json::to_string(&Order { parent: std::process::id(), task })?;
        let (reader, writer) = io::pipe()?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg(order).envs(environment.iter().cloned());
        command.stdin(input).stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn()?;
        // The command has the writing ends of the pipe, which does not end while they are open.
        drop(command);
        let (say, said) = channel();
        let last_words = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&last_words);
        let input = child.stdin.take();
        let listen = move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                match line.strip_prefix(MARK) {
                    Some(text) => drop(say.send(text.to_owned())),
                    None if !line.trim().is_empty() => *kept.lock() = line,
                    None => {}
                }
            }
        };
        let listens = std::thread::Builder::new().name("tp-listen".to_owned()).spawn(listen);
        let running = Running { child: Some(child), said, last_words, input, until: Instant::now() + until };
        listens.map(|_| running)
    }
}

/// A process of the doctor. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Running {
    child: Option<Child>,
    said: Receiver<String>,
    last_words: Arc<Mutex<String>>,
    /// Closing it tells a process that keeps something to let that go.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "what keeps something is of a GPU"))]
    input: Option<ChildStdin>,
    until: Instant,
}

impl Running {
    /// Returns the next message of the process.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<T, End> {
        let left = self.until.saturating_duration_since(Instant::now());
        match self.said.recv_timeout(left) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|error| End::Exited { status: None, last_words: format!("{error}: {text}") }),
            Err(RecvTimeoutError::Timeout) => {
                self.kill();
                Err(End::Late)
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.take().and_then(reap);
                Err(End::Exited { status, last_words: self.last_words.lock().clone() })
            }
        }
    }

    /// Lets the process end by itself, and waits for that no longer than `patience`.
    #[cfg(feature = "cuda")]
    pub(super) fn leave(mut self, patience: Duration) {
        drop(self.input.take());
        self.until = Instant::now() + patience;
        let _ = self.said.recv_timeout(patience);
        if let Some(child) = self.child.take() {
            std::thread::spawn(move || reap(child));
        }
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            // Wait on another thread: the process may be in a driver call that never ends.
            std::thread::spawn(move || child.wait());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for a process that has closed its output, for a limited time.
fn reap(mut child: Child) -> Option<ExitStatus> {
    let (ended, end) = channel();
    std::thread::spawn(move || drop(ended.send(child.wait())));
    end.recv_timeout(END).ok()?.ok()
}

impl End {
    /// Returns the signal that ended it.
    pub(super) fn signal(&self) -> Option<i32> {
        match self {
            End::Exited { status, .. } => status.and_then(|status| status.signal()),
            _ => None,
        }
    }

    /// Returns the end in words.
    pub(super) fn text(&self) -> String {
        match self {
            End::NotStarted(error) => format!("its process could not be started: {error}"),
            End::Late => "it did not answer in time and was killed".to_owned(),
            End::Exited { status, last_words } => {
                let status = status.map_or_else(|| "no exit status".to_owned(), |status| status.to_string());
                let words = if last_words.is_empty() { String::new() } else { format!(": {last_words}") };
                format!("its process ended ({status}){words}")
            }
        }
    }
}

/// Runs the task that an [`Again`] started this program for, and returns the exit status.
pub fn run_task(order: &str) -> i32 {
    let order: Order = match serde_json::from_str(order) {
        Ok(order) => order,
        Err(error) => {
            eprintln!("`{order}` is no task of the doctor: {error}");
            return 2;
        }
    };
    // Where the kernel refuses that, the deadline still ends the process.
    if order.task.dies_with_parent() && die_with_parent(order.parent).is_err() {
        return 2;
    }
    match order.task {
        Task::Kernel { from } => kernel::run(from, order.parent),
        Task::Exchange(side) => exchange::run(side, &|message| say(message)),
        #[cfg(feature = "cuda")]
        Task::Driver => say(&probe::facts()),
        #[cfg(feature = "cuda")]
        Task::Nvml => say(&crate::nvml::facts()),
        #[cfg(feature = "cuda")]
        Task::Toolkit => say(&super::gpu::libraries::facts()),
        #[cfg(feature = "cuda")]
        Task::Mps => super::gpu::mps::run(),
        #[cfg(feature = "cuda")]
        Task::MpsClient => super::gpu::mps::run_client(),
    }
    0
}

/// Sends the doctor a message.
pub(super) fn say(what: &impl Serialize) {
    let Ok(text) = serde_json::to_string(what) else { return };
    let mut out = io::stdout().lock();
    // If nobody reads, the doctor has ended, and this process ends as well.
    let _ = writeln!(out, "{MARK}{text}").and_then(|()| out.flush());
}

/// Waits until the doctor lets this process end, or has ended itself.
#[cfg(feature = "cuda")]
pub(super) fn await_end() {
    let _ = io::stdin().lock().read_to_end(&mut Vec::new());
}
