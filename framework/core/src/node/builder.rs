//! Settings of a node, and its start.

use std::future::{Future, IntoFuture};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::console::{self, Console, LogRing};
use super::handshake::{KnownTypes, THIS_PROGRAM};
use super::hang::OnHang;
use super::hosts::Hosts;
use super::limits::{ENDLESS, START_DEADLINE};
use super::mps;
use super::mps::Sharing;
use super::process_runtime::{Identity, Open, ProcessRuntime};
use super::program::opens;
use super::supervisor::{NodeError, Program, Settings, Shared, Supervisor};
use super::watcher::{Watched, watcher};
use super::{Node, Processes, before_main, files, worker};
use crate::actor::{self, CapturesNothing, Code, captures_nothing};
use crate::clock::ProcessPages;
use crate::ids::ProcessId;
use crate::lease::GpuBudget;
use crate::limits::DEFAULT_HOST_BUDGET;
use crate::observe::telemetry::Telemetry;
use crate::observe::trace::{self, Collector, TraceRing};
use crate::os::{Inert, on_own_thread};

/// Makes a [`Node`]. [`start`](Self::start) blocks until the node runs. Code that may not block awaits the
/// builder itself.
///
/// ```
/// # use tensorpost::prelude::*;
/// # async fn later() -> anyhow::Result<()> {
/// let node = Node::builder().host_budget(1 << 30).await?;
/// # drop(node);
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// The start goes on if the future of an awaited builder is dropped, and the node is shut down once it runs.
#[must_use = "nothing is started before `start` or `.await`"]
pub struct NodeBuilder {
    pub(crate) types: actor::Program,
    program: Option<PathBuf>,
    start_deadline: Duration,
    worker_log: Option<String>,
    worker_telemetry: Option<Code>,
    host_budget: u64,
    gpu_budget: Option<GpuBudget>,
    sharing: Option<Sharing>,
    #[cfg(feature = "testing")]
    pretends_mps: bool,
    mps_keeper: mps::KeeperProgram,
    hang_limit: Option<(Duration, OnHang)>,
    trace: Option<PathBuf>,
    trace_records: usize,
    console: Console,
    hosts: Option<Hosts>,
}

impl NodeBuilder {
    pub(crate) fn new() -> Self {
        NodeBuilder {
            types: actor::Program::default(),
            program: None,
            start_deadline: START_DEADLINE,
            worker_log: None,
            worker_telemetry: None,
            host_budget: DEFAULT_HOST_BUDGET,
            gpu_budget: None,
            sharing: None,
            #[cfg(feature = "testing")]
            pretends_mps: false,
            mps_keeper: mps::KeeperProgram::default(),
            hang_limit: None,
            trace: None,
            trace_records: trace::DEFAULT_RECORDS,
            console: Console::default(),
            hosts: None,
        }
    }

    /// Makes the workers run the program at `path`, without arguments, instead of this program again: for a
    /// node in a program that cannot be a worker, such as an interpreter. The other program must be built
    /// from the same sources, and spawn the same types somewhere.
    pub fn worker_program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Sets how long a worker may take until it is ready; the default is 30 s.
    pub fn start_deadline(mut self, deadline: Duration) -> Self {
        self.start_deadline = deadline.min(ENDLESS);
        self
    }

    /// Sets the events that workers log, in the form of `RUST_LOG`. The default is the node's `RUST_LOG`, or
    /// else `info`.
    pub fn worker_log(mut self, filter: impl Into<String>) -> Self {
        self.worker_log = Some(filter.into());
        self
    }

    /// Adds a layer of the program's own to the `tracing` subscriber of each worker, beside the layer that
    /// forwards its log. Each worker calls `telemetry` with its name, so `telemetry` captures nothing; the
    /// environment is the node's. With the feature `otel` and a layer of `tracing-opentelemetry`, in the
    /// node's process too, one trace spans all processes; `docs/OBSERVING.md` has an example.
    pub fn worker_telemetry<F>(mut self, telemetry: F) -> Self
    where
        F: FnOnce(&str) -> Telemetry + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        let make = move |()| Box::new(telemetry) as worker::WorkerTelemetry;
        self.worker_telemetry = Some(Code::new(&(), make));
        self
    }

    /// Sets the bytes that the host pool of each process may take.
    pub fn host_budget(mut self, bytes: u64) -> Self {
        self.host_budget = bytes;
        self
    }

    /// Sets the bytes that each process's pool on each GPU may take, for tensors that it sends, receives and
    /// keeps for others; the default is a quarter of the GPU. PyTorch may allocate more in an actor: that
    /// memory is PyTorch's own, and sending it costs a copy.
    pub fn gpu_budget(mut self, bytes: u64) -> Self {
        self.gpu_budget = Some(GpuBudget::Bytes(bytes));
        self
    }

    /// As [`gpu_budget`](Self::gpu_budget), but as a share of each GPU's memory, from 0 to 1.
    pub fn gpu_share(mut self, share: f64) -> Self {
        self.gpu_budget = Some(GpuBudget::share(share));
        self
    }

    /// Sets how workers share a GPU; the default is [`Sharing::Isolated`].
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = Some(sharing);
        self
    }

    /// Makes the node treat its workers as clients of one MPS server, on devices that tests make up.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn testing_pretend_mps(mut self) -> Self {
        self.pretends_mps = true;
        self
    }

    /// As [`sharing`](Self::sharing), unless it was set before.
    pub fn sharing_or(mut self, sharing: Sharing) -> Self {
        self.sharing.get_or_insert(sharing);
        self
    }

    /// Sets the program that keeps the MPS daemon of [`Sharing::Mps`], for a node in a program that cannot do
    /// that: an interpreter that is started again knows nothing of nodes. The keeper program must call
    /// `run_if_worker` before all else.
    #[cfg(feature = "bindings")]
    #[doc(hidden)]
    pub fn mps_keeper(mut self, program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(Into::into).collect();
        self.mps_keeper = mps::KeeperProgram::new(program.into(), arguments);
        self
    }

    /// Detects hangs: a worker whose process does not answer, an actor that has accepted messages and
    /// finishes none, a wait for a clock that does not move. A hang that lasts longer than `limit` is in the
    /// log and in [`Node::report`], with the waiter and the process to blame. With [`OnHang::Restart`] the
    /// supervisor kills that worker, with [`EndReason::Hung`](crate::transport::lifecycle::EndReason::Hung),
    /// and its policy decides.
    ///
    /// Without this call nothing is detected, and workers record nothing for it. Only `limit` tells a hang
    /// from a slow handler, or from a result that waits for something rare. So choose it longer than either
    /// may last, and at least 10 ms.
    pub fn hang_limit(mut self, limit: Duration, then: OnHang) -> Self {
        self.hang_limit = Some((limit.clamp(Duration::from_millis(10), ENDLESS), then));
        self
    }

    /// Writes a trace of the run to `path` when the node ends: the work of every process over time, in the
    /// Chrome trace event format, which <https://ui.perfetto.dev> and `chrome://tracing` open. If the program
    /// does not call this, the environment variable `TENSORPOST_TRACE` may name a file.
    ///
    /// On several hosts the head's file has the work of all hosts, by the head's clock, until everything was
    /// handled. A host that does not trace by itself traces from the moment when it joins. If the head has
    /// not got the trace of a host (it has left, or the time of the shutdown was up), the log names that
    /// host. The host then writes its own file if it was told one.
    pub fn trace(mut self, path: impl Into<PathBuf>) -> Self {
        self.trace = Some(path.into());
        self
    }

    /// Sets how many records each process keeps for the trace, at 64 bytes each; the default is 131,072, the
    /// least is 16. When they are used up, the oldest are overwritten.
    pub fn trace_records(mut self, records: usize) -> Self {
        self.trace_records = records;
        self
    }

    /// Sets where the command `tensorpost` can look into the running node. `true`, the default: by its
    /// process id, for processes of the same user and of root. [`Console::At`]: at a path. `false`: nowhere.
    /// The environment variable `TENSORPOST_CONSOLE` may say `off`, which always holds, or a path if the
    /// program names none. A look makes no actor wait, and the console costs nothing while nobody looks.
    pub fn console(mut self, console: impl Into<Console>) -> Self {
        self.console = console.into();
        self
    }

    /// Makes the node one of several hosts: see [`Hosts`]. `None` leaves it alone.
    #[cfg(feature = "hosts")]
    pub fn hosts(mut self, hosts: impl Into<Option<Hosts>>) -> Self {
        self.hosts = hosts.into();
        self
    }

    /// Runs this process as a worker, if it is one, and ends it; otherwise returns. A program's own workers
    /// never come here, but workers of a library that another program has loaded do.
    #[doc(hidden)]
    pub fn run_if_worker(self) -> Self {
        mps::run_if_keeper();
        worker::run_if_worker(&self.types, &opens(&self.types));
        self
    }

    /// Starts the node. Raises the process's soft limit of open files to the hard one. Blocks until the node
    /// runs; await the builder where blocking is not allowed.
    ///
    /// # Errors
    /// [`NodeError`] when the process cannot be opened or the system refuses a thread.
    pub fn start(mut self) -> Result<Node, NodeError> {
        let types = std::mem::take(&mut self.types);
        let only_serves = self.hosts.as_ref().is_some_and(Hosts::only_serves);
        let (actors, processes) = self.start_processes(&types, &opens(&types))?;
        let node = Node { transport: Arc::clone(actors.transport()), processes: Inert::new(processes) };
        node.take_part(only_serves)
    }

    inside! {
        /// As [`start`](Self::start), with processes that run something else than actors of registered types.
        /// A worker's program must have the node's types, or the same number in their place.
        pub fn start_processes<R: ProcessRuntime>(
            self,
            types: impl Into<KnownTypes>,
            open: &Open<'_, R>,
        ) -> Result<(Arc<R>, Processes), NodeError> {
            self.start_as(types.into(), open)
        }
    }

    fn start_as<R: ProcessRuntime>(
        self,
        types: KnownTypes,
        open: &Open<'_, R>,
    ) -> Result<(Arc<R>, Processes), NodeError> {
        let (program, host_budget) = (self.program.clone(), self.host_budget);
        let started = self.try_start_as(types, open);
        started.map_err(|error| error.examined(program.as_deref(), host_budget))
    }

    fn try_start_as<R: ProcessRuntime>(
        self,
        types: KnownTypes,
        open: &Open<'_, R>,
    ) -> Result<(Arc<R>, Processes), NodeError> {
        mps::run_if_keeper();
        worker::run_if_worker(types.clone(), open);
        // From here on this process is a node: workers and keepers of a loaded library end in the calls
        // above.
        files::raise_limit();
        #[cfg(feature = "testing")]
        crate::fault::arm_from_environment("node");
        before_main::is_linked();
        let program = Program::new(self.program.as_deref(), types);
        let program = program.map_err(|source| NodeError::Program {
            program: self.program.map_or_else(|| THIS_PROGRAM.to_owned(), |path| path.display().to_string()),
            source,
            found: String::new(),
        })?;
        let shared = Shared::new().map_err(NodeError::system)?;
        let variable =
            || std::env::var_os(trace::VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let trace =
            self.trace.or_else(variable).map(|path| (path, Arc::new(Collector::new(self.trace_records))));
        shared.all_hosts.this_host_traces(trace.is_some());
        let identity = Identity {
            process: ProcessId::NODE,
            name: "node".to_owned(),
            opens: None,
            host_budget: self.host_budget,
            gpu_budget: self.gpu_budget,
            trace: trace.as_ref().map(|(_, trace)| trace.records()),
            detects_hangs: self.hang_limit.is_some(),
            host: 0,
        };
        let pages = ProcessPages::of_the_node().map_err(NodeError::system)?;
        let process_runtime = open(&identity, shared.clone(), pages.clone()).map_err(NodeError::Open)?;
        if let Some((_, trace)) = &trace {
            process_runtime.trace(TraceRing(trace.own(true).map_err(NodeError::system)?));
        }
        let worker_log =
            self.worker_log.or_else(|| std::env::var("RUST_LOG").ok().filter(|log| !log.is_empty()));
        let mps::BegunSharing { mps, time_slices } =
            self.sharing.unwrap_or_default().begin(&self.mps_keeper)?;
        #[cfg(feature = "testing")]
        let time_slices = time_slices.filter(|_| !self.pretends_mps);
        // Listen before the supervisor starts: only a console that listens needs the ring of log records.
        let listening = self.console.listen();
        let log_ring = listening.is_some().then(Arc::<LogRing>::default);
        let settings = Settings {
            program,
            start_deadline: self.start_deadline,
            worker_log: worker_log.unwrap_or_else(|| "info".to_owned()),
            worker_telemetry: self.worker_telemetry,
            host_budget: self.host_budget,
            gpu_budget: self.gpu_budget,
            pages,
            trace: trace.clone(),
            trace_records: self.trace_records,
            hang_limit: self.hang_limit,
            time_slices: time_slices.clone(),
            log_ring: log_ring.clone(),
            environment: mps
                .as_ref()
                .map(|mps| mps.environment())
                .map(|(name, value)| (name, value.to_owned())),
        };
        let supervisor = Supervisor::start(settings, Arc::clone(&shared), process_runtime.clone())?;
        let live = watcher().serve_as_environment_asks(Watched(shared.clone()));
        let console = listening.zip(log_ring);
        let console = console.and_then(|(listener, log)| console::Server::start(listener, shared, log));
        let own: Arc<dyn ProcessRuntime> = process_runtime.clone();
        let supervisor = Arc::new(supervisor);
        let processes = Processes {
            supervisor,
            process_runtime: own,
            trace: trace.map(|(_, trace)| trace),
            time_slices,
            _console: console,
            live: Mutex::new(live.into_iter().collect()),
            _mps: mps,
        };
        // Join once `processes` exists: if that fails, dropping it shuts the node down.
        if let Some(hosts) = self.hosts {
            processes.become_one_of(hosts)?;
        }
        Ok((process_runtime, processes))
    }
}

impl IntoFuture for NodeBuilder {
    type Output = Result<Node, NodeError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let start = on_own_thread("tp-start", move || self.start());
        Box::pin(async move { start.await.map_err(NodeError::system)? })
    }
}
