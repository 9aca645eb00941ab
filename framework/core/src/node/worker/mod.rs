//! The worker's side: the code of a process that finds a control socket waiting for it.
//!
//! * When the node ends, the worker ends at once: the kernel kills it. Its own control thread ends it too
//!   when the socket closes, in case the node only lost the thread that started it. It writes nothing and
//!   waits for nobody.
//! * On an agent of several hosts it ends at once, too, when the head may give its actors to other hosts
//!   (HOST-10): see `transport/works_until.rs`. That works even if neither its node nor its gateway can tell
//!   it.
//! * On a clean exit the worker stops its actors and sends its queued messages to the node; the status is 0.
//! * A panic on the main thread ends the worker with its usual status, after an event in the log.

mod inherited;
mod main_loop;
pub(crate) mod uplink;
mod user_metrics;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use self::main_loop::Task;
use self::uplink::Uplink;
use self::user_metrics::UserMetrics;
use crate::actor::Code;
use crate::clock::taint::EpochPage;
use crate::clock::{ClockPage, ProcessPages};
use crate::fault;
use crate::node::control::{ControlError, Down, Up, decode, encode};
use crate::node::files;
use crate::node::handshake::{Build, KnownTypes};
use crate::node::limits::{MAX_FAILURE_TEXT, MAX_MAIN_TASKS, cut};
use crate::node::line::{Flushed, Incoming, LineError, Outgoing, Receiving};
use crate::node::process_runtime::{Identity, Open, ProcessRuntime};
use crate::node::wait;
use crate::observe::log::{Forward, LogSink, forward_panics};
use crate::observe::telemetry::Telemetry;
use crate::observe::trace::{Ring, TraceRing};
use crate::os::remedy::OPEN_FILES;
use crate::os::vital::{self, Blame};
use crate::os::{Seqpacket, process, stack};
use crate::transport::control_channel::ControlChannel;
use crate::transport::works_until::{Present, WorksUntil};

pub(crate) use self::inherited::{LINKED, VARIABLE, has_more_rights, may_be_taken_over, take as take_over};

/// Returns the reason for the end of a worker that may open no more files.
fn starved() -> String {
    format!("this process may open no more files, and the node has sent it some; {OPEN_FILES}")
}

/// The exit status of a worker that the node refused, or that could not be opened.
pub(crate) const EXIT_REFUSED: i32 = 78;

/// Behind the name of a thread.
const STACK_OVERFLOWED: &str = "has overflowed its stack: does something call itself without end? Work that is that deep \
     needs a thread with a larger stack (`std::thread::Builder::stack_size`) or, on a worker's main thread, a higher `ulimit -s`";

/// How long a worker that must end waits until its last line is written.
const LAST_WORD: Duration = Duration::from_millis(100);

/// Makes the telemetry of a worker of this name.
pub(crate) type WorkerTelemetry = Box<dyn FnOnce(&str) -> Telemetry + Send>;

/// Returns if this process is not a worker; otherwise runs it, and the process ends with it.
pub fn run_if_worker<R: ProcessRuntime>(types: impl Into<KnownTypes>, open: &Open<'_, R>) {
    if let Some(socket) = inherited::take() {
        run(socket, types, open)
    }
}

/// Runs this process, which is a worker.
pub(crate) fn run<R: ProcessRuntime>(
    socket: Seqpacket,
    types: impl Into<KnownTypes>,
    open: &Open<'_, R>,
) -> ! {
    let types = types.into();
    let run = || -> ! {
        match Worker::start(types, open, Arc::new(socket)) {
            Ok(worker) => worker.run(),
            Err(failure) => exit_with(&failure),
        }
    };
    if tokio::runtime::Handle::try_current().is_ok() {
        // An actix `System` cannot be made inside another runtime, so the worker gets a thread where there is
        // none.
        std::thread::scope(|scope| {
            let _ = scope.spawn(run).join();
        });
        // The thread returns only after a panic, which the hook has logged.
        std::process::exit(101);
    }
    run()
}

/// A worker that was welcomed.
struct Worker {
    identity: Identity,
    process_runtime: Arc<dyn ProcessRuntime>,
    uplink: Arc<Uplink>,
    tasks: tokio::sync::mpsc::Receiver<Task>,
    user_metrics: UserMetrics,
    /// The program's own action at a clean end.
    at_end: Option<Box<dyn FnOnce() + Send>>,
}

impl Worker {
    fn start<R: ProcessRuntime>(
        types: KnownTypes,
        open: &Open<'_, R>,
        socket: Arc<Seqpacket>,
    ) -> Result<Self, String> {
        let mut receiving = Receiving::new(socket.clone());
        let Welcome { identity, log_filter, telemetry, pages: Pages { own: pages, works_until } } =
            handshake(types, &socket, &mut receiving)?;
        let works_until = works_until.map(Present::new);
        if let Some(works_until) = &works_until {
            // Before anything else runs here: the worker may have been started too late.
            end_in_time(Arc::clone(works_until))?;
        }
        process::show_process_as(&identity.name);
        let uplink = Uplink::new(socket.clone()).map_err(|error| format!("no descriptor left: {error}"))?;
        let uplink = Arc::new(uplink);
        let telemetry = telemetry.map(|code| code.make::<WorkerTelemetry>()).transpose();
        let telemetry = telemetry.map_err(|error| format!("its telemetry cannot be made: {error}"))?;
        let at_end = install_logs(&uplink, &log_filter, telemetry.map(|make| make(&identity.name)));
        let user_metrics = UserMetrics::install(&uplink);
        files::raise_limit();
        end_on_failure(&uplink);
        stack::begin(uplink.wake());

        let ring = identity.trace.and_then(|records| begin_trace(&uplink, records, None));
        let control: Arc<dyn ControlChannel> = uplink.clone();
        #[cfg(feature = "testing")]
        fault::arm_from_environment(&identity.name);
        fault::point("worker.open");
        let process_runtime: Arc<dyn ProcessRuntime> = open(&identity, control, pages).map_err(|why| {
            let why = cut(why, MAX_FAILURE_TEXT);
            let _ = uplink.send(&Up::OpenFailed { why: why.clone() }, Vec::new());
            uplink.drain();
            format!("worker `{}` could not be opened: {why}", identity.name)
        })?;
        if let Some(ring) = ring {
            process_runtime.trace(ring);
        }
        let (to_main, tasks) = tokio::sync::mpsc::channel(MAX_MAIN_TASKS);
        let control = Control {
            socket,
            receiving,
            uplink: uplink.clone(),
            process_runtime: process_runtime.clone(),
            to_main,
            user_metrics: user_metrics.clone(),
            works_until,
        };
        vital::spawn("tp-control", move || control.run())
            .map_err(|error| format!("the control thread could not be started: {error}"))?;
        Ok(Worker { identity, process_runtime, uplink, tasks, user_metrics, at_end })
    }

    fn run(self) -> ! {
        let Worker { identity, process_runtime, uplink, tasks, user_metrics, at_end } = self;
        actix::System::new().block_on(async move {
            let open = |()| identity.opens.map_or(Ok(()), |device| process_runtime.open_device(device));
            match process_runtime.begin_actors().and_then(open) {
                Ok(()) => {
                    let _ = uplink.send(&Up::Ready, Vec::new());
                    main_loop::run(&process_runtime, tasks, &uplink).await;
                    user_metrics.tell(&uplink);
                    if let Some(at_end) = at_end {
                        at_end();
                    }
                    uplink.drain();
                }
                Err(why) => {
                    let why = cut(why, MAX_FAILURE_TEXT);
                    let _ = uplink.send(&Up::OpenFailed { why: why.clone() }, Vec::new());
                    uplink.drain();
                    exit_with(&format!("worker `{}` has no stage: {why}", identity.name));
                }
            }
        });
        std::process::exit(0)
    }
}

/// Makes this process tell the node and end when it cannot go on: its promised values will never come, and
/// its death releases everybody that waits for them (DEATH-1).
fn end_on_failure(uplink: &Arc<Uplink>) {
    let uplink = Arc::clone(uplink);
    vital::on_failure(move |why, blame| {
        let (uplink, why) = (Arc::clone(&uplink), cut(why.to_owned(), MAX_FAILURE_TEXT));
        // The thread that notices may hold a lock that logging or the socket needs.
        let ending = std::thread::Builder::new().name("tp-end".to_owned()).spawn(move || {
            let lost_gpu = blame == Blame::Gpu;
            let _ = uplink.send(&Up::Failing { why: why.clone(), lost_gpu }, Vec::new());
            uplink.drain();
            say(&why);
            // No destructors and no exit handlers, which could wait for the device.
            end_at_once();
        });
        if ending.is_err() {
            end_at_once();
        }
    });
}

/// Says hello and waits for the answer: this worker's identity, its log filter, and the pages that the node
/// has made for it.
fn handshake(
    types: KnownTypes,
    socket: &Arc<Seqpacket>,
    receiving: &mut Receiving,
) -> Result<Welcome, String> {
    let build = Build::of_this_process(types).map_err(|error| {
        format!("this worker's own program cannot be looked at: {error}; is /proc mounted?")
    })?;
    let hello = encode(&Up::Hello { build, pid: std::process::id() }).map_err(|error| error.to_string())?;
    // The socket is new, so one packet fits.
    Outgoing::new(socket.clone()).send(&hello, Vec::new()).map_err(|error| error.to_string())?;
    loop {
        match receiving.next().map_err(|error| error.to_string())? {
            Incoming::Message(bytes, descriptors) => {
                return match decode(&bytes).map_err(|error| error.to_string())? {
                    Down::Welcome { identity, log_filter, telemetry } => {
                        Ok(Welcome { identity, log_filter, telemetry, pages: adopt_pages(descriptors)? })
                    }
                    Down::Refused { why } => Err(format!("the node refused this worker: {why}")),
                    _ => Err("the node did not answer the greeting".to_owned()),
                };
            }
            Incoming::Part => {}
            Incoming::Empty => {
                let mut fds = [PollFd::new(&**socket, PollFlags::IN)];
                wait::poll(&mut fds, None).map_err(|error| error.to_string())?;
            }
            Incoming::Starved(_) => return Err(starved()),
            Incoming::Closed => end_at_once(),
        }
    }
}

/// The answer of the node to the greeting.
struct Welcome {
    identity: Identity,
    log_filter: String,
    /// Makes the program's own layer of telemetry.
    telemetry: Option<Code>,
    pages: Pages,
}

/// The pages that a worker gets.
struct Pages {
    own: ProcessPages,
    /// Set on an agent of several hosts.
    works_until: Option<Arc<WorksUntil>>,
}

fn adopt_pages(descriptors: Vec<OwnedFd>) -> Result<Pages, String> {
    let count = descriptors.len();
    let mut descriptors = descriptors.into_iter();
    let (Some(clocks), Some(epoch_page), works_until, None) =
        (descriptors.next(), descriptors.next(), descriptors.next(), descriptors.next())
    else {
        return Err(format!("the node's welcome came with {count} descriptors instead of 2 or 3"));
    };
    let clocks = ClockPage::adopt(clocks).map_err(|error| format!("this process's clock page: {error}"))?;
    let epoch_page =
        EpochPage::open(epoch_page).map_err(|error| format!("the node's epoch page: {error}"))?;
    let works_until = works_until.map(WorksUntil::open).transpose().map_err(|error| error.to_string())?;
    Ok(Pages { own: ProcessPages { clocks, epoch_page }, works_until })
}

/// Ends this process at the moment until which its host may work, on a thread that nothing else can hold up.
fn end_in_time(works_until: Arc<Present>) -> Result<(), String> {
    let thread = vital::spawn("tp-until", move || {
        works_until.await_end();
        // The reader of stderr may be stopped, so the line is written on another thread, and the end waits
        // only a moment for it.
        let (said, is_said) = std::sync::mpsc::channel();
        let saying = std::thread::Builder::new().spawn(move || {
            say("its host has had no answer of the head for too long, so another host may run its actors; it ends");
            let _ = said.send(());
        });
        if saying.is_ok() {
            let _ = is_said.recv_timeout(LAST_WORD);
        }
        end_at_once()
    });
    thread.map(drop).map_err(|error| format!("there is no thread that ends it in time: {error}"))
}

/// Makes the memory for this process's trace, and gives the node a descriptor of it. Without it the worker
/// runs, untraced.
fn begin_trace(uplink: &Uplink, records: u32, interval: Option<u64>) -> Option<TraceRing> {
    let made = Ring::create(records as usize).and_then(|ring| ring.export().map(|fd| (ring, fd)));
    match made {
        Ok((ring, fd)) => {
            // When the node is gone, so is this process in a moment.
            let _ = uplink.send(&Up::Trace { interval }, vec![fd]);
            Some(TraceRing(Arc::new(ring)))
        }
        Err(error) => {
            tracing::warn!(%error, records, "there is no memory for this worker's trace; ask for fewer records");
            None
        }
    }
}

/// Installs the log and the program's telemetry. Returns the program's action at a clean end.
fn install_logs(
    uplink: &Arc<Uplink>,
    log_filter: &str,
    telemetry: Option<Telemetry>,
) -> Option<Box<dyn FnOnce() + Send>> {
    let sink: Arc<dyn LogSink> = uplink.clone();
    forward_panics(sink.clone());
    let (filter, error) = match EnvFilter::try_new(log_filter) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    // A program that has installed a subscriber of its own keeps it.
    let (layer, at_end) = telemetry.map(|Telemetry { layer, at_end }| (layer, at_end)).unzip();
    // The filter is only for the log: a layer of the program decides itself what it records.
    let log = Forward::new(sink).with_filter(filter);
    let _ = tracing_subscriber::registry().with(layer).with(log).try_init();
    if let Some(error) = error {
        tracing::warn!(%error, log_filter, "the filter for the workers' logs was not understood; it is `info` now");
    }
    at_end.flatten()
}

/// The control thread: takes the node's messages, and sends the queued ones.
struct Control {
    socket: Arc<Seqpacket>,
    receiving: Receiving,
    uplink: Arc<Uplink>,
    process_runtime: Arc<dyn ProcessRuntime>,
    to_main: Sender<Task>,
    user_metrics: UserMetrics,
    /// Set on an agent of several hosts.
    works_until: Option<Arc<Present>>,
}

impl Control {
    fn run(mut self) {
        let error = loop {
            match self.turn() {
                Ok(()) => {}
                Err(ControlEnd::Line(LineError::Closed)) => end_at_once(),
                Err(error) => break error,
            }
        };
        // Everybody that waits for this worker is told why it ends.
        vital::fail(&format!("the control socket cannot be used any more: {error}"));
        vital::await_end()
    }

    fn turn(&mut self) -> Result<(), ControlEnd> {
        let flushed = self.uplink.flush()?;
        let out = match flushed {
            Flushed::WhenWritable => PollFlags::IN | PollFlags::OUT,
            _ => PollFlags::IN,
        };
        let mut fds = [PollFd::new(&*self.socket, out), PollFd::new(self.uplink.wake(), PollFlags::IN)];
        let timeout = [wait::retry_after(flushed), self.user_metrics.due(&self.uplink)];
        wait::poll(&mut fds, timeout.into_iter().flatten().min()).map_err(LineError::Io)?;
        let readable = !(fds[0].revents() - PollFlags::OUT).is_empty();
        let woken = !fds[1].revents().is_empty();
        if woken {
            self.uplink.wake().drain().map_err(LineError::Io)?;
            if let Some(thread) = stack::overflowed() {
                vital::fail(&format!("its thread `{thread}` {STACK_OVERFLOWED}"));
                vital::await_end()
            }
        }
        if !readable {
            return Ok(());
        }
        loop {
            match self.receiving.next()? {
                Incoming::Message(bytes, descriptors) => self.handle(decode(&bytes)?, descriptors)?,
                Incoming::Part => {}
                Incoming::Empty => return Ok(()),
                Incoming::Starved(bytes) => match decode(&bytes)? {
                    Down::Node(message) if self.process_runtime.from_node_starved(&message) => {}
                    // It ends by its old page, in time.
                    Down::WorksUntil => {}
                    // It cannot go on without the descriptors that the node sent.
                    _ => return Err(LineError::Io(std::io::Error::other(starved())).into()),
                },
                Incoming::Closed => return Err(LineError::Closed.into()),
            }
        }
    }

    fn handle(&self, message: Down, descriptors: Vec<OwnedFd>) -> Result<(), ControlEnd> {
        let task = match message {
            Down::Node(message) => {
                self.process_runtime.from_node(message, descriptors);
                return Ok(());
            }
            Down::Probe { round } => {
                let _ = self
                    .uplink
                    .send(&Up::Activity { round, activity: self.process_runtime.activity() }, Vec::new());
                return Ok(());
            }
            Down::Metrics { round, closely } => {
                if !closely {
                    // Before the answer, so that the caller finds these metrics in the recorder.
                    self.user_metrics.tell(&self.uplink);
                }
                let survey = closely.then(|| self.process_runtime.survey());
                let metrics = self.process_runtime.metrics();
                let _ = self.uplink.send(&Up::Metrics { round, metrics, survey }, Vec::new());
                return Ok(());
            }
            Down::Look { round } => {
                let _ = self.uplink.send(
                    &Up::HangProbe { round, hang_probe: self.process_runtime.hang_probe() },
                    Vec::new(),
                );
                return Ok(());
            }
            Down::LookAtGpus { number } => {
                let (process_runtime, uplink) = (Arc::clone(&self.process_runtime), Arc::clone(&self.uplink));
                // The driver may block the thread that asks it, so another thread does. Without one, the node
                // waits a moment longer.
                let looking = std::thread::Builder::new().name("tp-look".to_owned()).spawn(move || {
                    // If a GPU is lost, that news is on its way to the node already.
                    if process_runtime.probe_gpus() {
                        let _ = uplink.send(&Up::GpusLookedAt { number }, Vec::new());
                    }
                });
                if let Err(error) = looking {
                    tracing::warn!(%error, "no thread to look at this worker's GPUs on");
                }
                return Ok(());
            }
            Down::Ping { number } => {
                let _ = self.uplink.send(&Up::Pong { number }, Vec::new());
                return Ok(());
            }
            Down::Trace { interval, records } => {
                if let Some(ring) = begin_trace(&self.uplink, records, Some(interval)) {
                    self.process_runtime.trace(ring);
                }
                return Ok(());
            }
            Down::WorksUntil => {
                let page = descriptors.into_iter().next().map(WorksUntil::open);
                // Without the new page this process ends by the old one, in time.
                if let (Some(Ok(page)), Some(works_until)) = (page, &self.works_until) {
                    works_until.replace(page);
                }
                return Ok(());
            }
            Down::EndTrace => {
                self.process_runtime.end_trace();
                return Ok(());
            }
            Down::Stopping => {
                self.process_runtime.stopping();
                return Ok(());
            }
            #[cfg(feature = "testing")]
            Down::Arm(fault) => {
                fault::arm(fault);
                return Ok(());
            }
            Down::Start(start) => Task::Start(Box::new(start)),
            Down::StopActors => Task::StopActors,
            Down::Leave => Task::Leave,
            Down::Exit { comes_back } => {
                if comes_back {
                    self.process_runtime.leaving();
                }
                Task::Exit
            }
            Down::Welcome { .. } | Down::Refused { .. } => return Err(ControlEnd::Unexpected),
        };
        hand_over(&self.to_main, task)
    }
}

/// Gives a task to the main thread, unless that has finished: a node that shuts down may have more orders for
/// a worker that was let go a moment ago.
fn hand_over(to_main: &Sender<Task>, task: Task) -> Result<(), ControlEnd> {
    match to_main.try_send(task) {
        Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
        Err(TrySendError::Full(_)) => Err(ControlEnd::Busy),
    }
}

#[derive(Debug, thiserror::Error)]
enum ControlEnd {
    #[error(transparent)]
    Line(#[from] LineError),
    #[error(transparent)]
    Message(#[from] ControlError),
    #[error("the node greeted this worker twice")]
    Unexpected,
    #[error(
        "the worker's main thread has more than {MAX_MAIN_TASKS} requests of the node to do, which no node sends"
    )]
    Busy,
}

/// Writes a line to stderr, and ignores errors. It writes the line in one piece: stderr is not buffered, and
/// text of other writers would come between pieces.
fn say(text: &str) {
    let line = format!("tensorpost worker {}: {text}\n", std::process::id());
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn exit_with(failure: &str) -> ! {
    say(failure);
    std::process::exit(EXIT_REFUSED)
}

/// Ends the process now: no destructors, which could wait for a GPU or for a node that is gone.
fn end_at_once() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The node lets a worker go, and the program shuts the node down at that moment.
    #[test]
    fn what_a_main_thread_that_has_done_its_last_does_not_take_is_no_error() {
        let (to_main, mut tasks) = tokio::sync::mpsc::channel(1);
        assert!(hand_over(&to_main, Task::Leave).is_ok());
        assert!(matches!(hand_over(&to_main, Task::StopActors), Err(ControlEnd::Busy)));
        assert!(matches!(tasks.try_recv(), Ok(Task::Leave)));
        drop(tasks);
        assert!(hand_over(&to_main, Task::StopActors).is_ok());
        assert!(hand_over(&to_main, Task::Exit).is_ok());
    }
}
