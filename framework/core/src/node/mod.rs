//! Nodes: the processes that a program starts, supervises and ends.
//!
//! [`Node::builder`](crate::node::Node::builder) makes the running program a node. Each
//! [`spawn`](crate::node::Node::spawn) starts a worker process with an actor in it, unless it is told another
//! place. A worker is this program again, of which it runs nothing but the actors: `main` never begins there.
//! Restart policies, groups, watching and limits for hangs are settings of the spawn and of the builder.
//!
//! ```standalone_crate
//! use std::time::Duration;
//! use tensorpost::prelude::*;
//!
//! #[derive(Serialize, Deserialize, GpuMessage)]
//! #[gpu_message(reply = u32)]
//! struct WhoAreYou;
//!
//! struct Clerk;
//!
//! impl Actor for Clerk {
//!     type Context = Context<Self>;
//! }
//!
//! impl RemoteActor for Clerk {
//!     type Args = ();
//!
//!     fn create((): (), _: &Env) -> anyhow::Result<Self> {
//!         Ok(Clerk)
//!     }
//!
//!     fn handles(on: &mut Handles<Self>) {
//!         on.message::<WhoAreYou>();
//!     }
//! }
//!
//! impl Handler<WhoAreYou> for Clerk {
//!     type Result = MessageResult<WhoAreYou>;
//!
//!     fn handle(&mut self, _: WhoAreYou, _: &mut Context<Self>) -> Self::Result {
//!         MessageResult(std::process::id())
//!     }
//! }
//!
//! fn main() -> anyhow::Result<()> {
//!     let node = Node::builder().start()?;
//!     let clerk = node.spawn::<Clerk>(()).name("clerk").restart(Restart::on_failure(3)).start()?;
//!     assert_ne!(node.block_on(clerk.address().ask(WhoAreYou))?, std::process::id());
//!     assert!(node.shutdown(Duration::from_secs(10))?.is_clean());
//!     Ok(())
//! }
//! ```
//!
//! Nothing is in the file system: a worker inherits its socket to the node. The node's process alone listens,
//! for the command `tensorpost`, at an abstract name that only its user and root get answers from
//! ([`NodeBuilder::console`]). On a worker's death the rest goes on; on the node's death all of it ends.
//!
//! Inside, read in this order: [`host`] (what a process runs), `control` and `line` (what travels on a
//! control socket, and how), `handshake`, `broker` with `roster`, `registry`, `chunks` and `questions` (what
//! the node knows and passes on; no sockets), [`supervisor`] (the thread in the node), `worker` (the other
//! side), [`shutdown`] and `journal`; `console` and `live` (who looks in from outside).

#[cfg(feature = "hosts")]
pub(crate) mod all_hosts;
#[cfg(feature = "hosts")]
mod all_traces;
pub(crate) mod before_main;
#[cfg(feature = "hosts")]
mod behind;
pub(crate) mod broker;
mod builder;
mod chunks;
pub(crate) mod console;
pub(crate) mod control;
mod deaths;
mod deferred;
#[cfg(feature = "hosts")]
mod elsewhere;
mod fences;
mod files;
#[cfg(feature = "hosts")]
mod foreign;
mod gpu_shares;
mod group;
mod handshake;
mod hang;
#[cfg(feature = "hosts")]
mod head_log;
pub mod host;
#[cfg(feature = "hosts")]
pub(crate) mod hosts;
mod journal;
pub mod limits;
#[cfg(all(test, feature = "testing"))]
mod limits_tests;
mod line;
mod link_messages;
mod live;
mod mps;
mod program;
mod questions;
mod reclaim;
mod registry;
mod report;
mod restart;
mod roster;
pub mod shutdown;
mod signals;
mod spawn;
mod spawned;
pub mod supervisor;
// What tests see through `testing::deaths`.
#[cfg_attr(
    not(any(test, feature = "testing")),
    expect(unreachable_pub, reason = "public for the model's test only")
)]
pub(crate) mod taint;
mod wait;
mod watches;
mod worker;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::observe::metrics::{Metrics, export};
use crate::observe::progress::{ProgressDisplay, Shown};
use crate::observe::trace::{Collector, TraceError, TraceSummary};
use crate::os::Inert;
use crate::os::fork::INHERITED;
use crate::transport::Transport;

pub use self::builder::NodeBuilder;
pub use self::console::Console;
#[doc(hidden)]
pub use self::deferred::Deferred;
pub use self::group::{Group, Strategy};
pub use self::handshake::BuildMismatch;
pub use self::hang::{Hang, HangReport, OnHang, WaitsIn};
#[cfg(feature = "inside")]
pub use self::host::{Activity, Identity, Notices, Open, ProcessRuntime};
pub use self::mps::{MpsError, Sharing};
pub use self::registry::NameError;
pub use self::report::NodeReport;
pub use self::restart::Restart;
pub use self::roster::LocationError;
pub use self::shutdown::{Phase, RestartReport, ShutdownReport, WorkerEnd};
pub use self::signals::RunError;
pub use self::spawn::{ActorError, Spawn};
pub use self::spawned::Spawned;
pub use self::supervisor::{
    Closed, NodeError, SpawnError, StartError, Supervisor, WorkerId, WorkerState, WorkerStatus,
};
#[cfg(feature = "inside")]
pub use self::worker::run_if_worker;
#[cfg(feature = "inside")]
pub use crate::actor::{NewActor, StartActor};

/// A running node. It starts without workers; each [`spawn`](Node::spawn) adds one. Dropping it shuts it
/// down, with [`DROP_DEADLINE`](limits::DROP_DEADLINE), and never panics. In a forked child of its process it
/// is nobody's: calls on it are errors, and its drop does nothing.
///
/// ```
/// use tensorpost::prelude::*;
///
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().host_budget(1 << 30).start()?;
/// let stream = node.host_stream()?;
/// let ones = stream.from_slice(&[2, 2], &[1.0_f32; 4])?.freeze();
/// assert_eq!(ones.to_vec::<f32>()?, [1.0; 4]);
/// # Ok(())
/// # }
/// ```
pub struct Node {
    transport: Arc<Transport>,
    processes: Inert<Processes>,
}

/// The processes of a node, whatever they run. Dropping it shuts them down.
pub struct Processes {
    supervisor: Arc<Supervisor>,
    /// This process's own.
    process_runtime: Arc<dyn host::ProcessRuntime>,
    trace: Option<Arc<Collector>>,
    /// Why workers share GPUs in time slices.
    time_slices: Option<String>,
    /// Looks into it from outside; ends after the workers have.
    _console: Option<console::Server>,
    /// Live pages, the same.
    live: Mutex<Vec<live::Server>>,
    /// Last: the daemon is stopped after the workers, its clients, have ended.
    _mps: Option<mps::Mps>,
}

impl Node {
    inside! {
        /// The transport of the node's own process.
        pub fn transport(&self) -> &Arc<Transport> {
            &self.transport
        }
    }

    /// The handle to the thread that keeps the workers, for whoever starts workers and actors.
    pub fn supervisor(&self) -> &Arc<Supervisor> {
        self.processes.supervisor()
    }

    /// Why workers that share a GPU take turns on it; `None` if their kernels overlap ([`Sharing::Mps`]).
    pub fn time_slices(&self) -> Option<&str> {
        self.processes.time_slices.as_deref()
    }

    /// All workers, also those that have ended and whose slot is not used again yet.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        self.supervisor().workers()
    }

    /// What all processes and actors have done and have before them. On the head of several hosts those of
    /// the others are in it too, each with its host. Waits for the answers, at most a second and for other
    /// hosts half a second more, on this thread: an async function calls it in its runtime's
    /// `spawn_blocking`. What comes is also given to the recorder of the `metrics` crate, if the program has
    /// installed one (after the start: before it, each worker would install one too).
    ///
    /// Metrics of user code arrive there by themselves, wherever it runs: what `counter!`, `gauge!` and
    /// `histogram!` say in a worker has the labels `actor` and `worker`. When this returns, the recorder has
    /// all that was said before.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = tensorpost::node::Node::builder().start()?;
    /// let before = node.metrics()?;
    /// // … the actors work …
    /// let now = node.metrics()?;
    /// for row in now.rows(&before) {
    ///     println!("{}: {:.0}/s, {} queued, p99 {:?}", row.name, row.rate, row.queued, row.p99);
    /// }
    /// println!("{} bytes in flight", now.bytes_in_flight());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Closed::Ended`] when the node has shut down.
    pub fn metrics(&self) -> Result<Metrics, Closed> {
        let metrics = self.supervisor().metrics_of_all()?;
        export(&metrics);
        Ok(metrics)
    }

    /// Shows all actors on stderr, until the returned value drops or the node ends: what each has handled,
    /// how fast, what waits for it, and the bytes in flight. See [`ProgressDisplay`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = tensorpost::node::Node::builder().start()?;
    /// let progress = node.progress();
    /// // … the actors work …
    /// drop(progress); // the last line is written
    /// # Ok(())
    /// # }
    /// ```
    pub fn progress(&self) -> ProgressDisplay {
        let supervisor = Arc::clone(self.supervisor());
        ProgressDisplay::start(move || {
            let metrics = supervisor.metrics_of_all().ok()?;
            export(&metrics);
            Some(Shown::from(&metrics))
        })
    }

    /// What has gone wrong so far: all workers, how often each was restarted, and why; what stood still for
    /// too long, where there is a [limit](NodeBuilder::hang_limit). On the head of several hosts it has the
    /// workers of the others too, and waits half a second for them at most.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = tensorpost::node::Node::builder().start()?;
    /// for worker in node.report()?.restarts {
    ///     println!("{}: restarted {} times; {:?}", worker.name, worker.restarts, worker.ends);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Closed::Ended`] when the node has shut down; what [`shutdown`](Self::shutdown) returned says it
    /// then.
    pub fn report(&self) -> Result<NodeReport, Closed> {
        self.supervisor().report_of_all()
    }

    /// Serves the live page at an address, until the node is dropped, and says at which: figures of all
    /// actors, processes, memory and links for a browser at `/`, for Prometheus at `/metrics`, for programs
    /// at `/figures.json` and `/graph.svg`, for probes at `/livez` and `/readyz`. It only reads, and makes no
    /// actor wait. The environment variable `TENSORPOST_HTTP=127.0.0.1:9464` does the same, without a change
    /// of the program.
    ///
    /// Whoever reaches the address is answered, and nobody is asked who they are: other users of the machine
    /// at `127.0.0.1`, everybody in the network at `0.0.0.0`. What they see is names, counts and sizes. To
    /// restrict it, use the command `tensorpost`, which answers its own user alone.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = tensorpost::node::Node::builder().start()?;
    /// let address = node.serve("127.0.0.1:0")?; // a free port
    /// println!("open http://{address}/");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The address cannot be had, or the system refuses a thread.
    pub fn serve(&self, address: impl ToSocketAddrs) -> io::Result<SocketAddr> {
        let shared = self.supervisor().shared();
        if shared.is_inherited() {
            return Err(io::Error::other(INHERITED));
        }
        let (server, address) = live::Server::start(address, shared)?;
        self.processes.live.lock().push(server);
        Ok(address)
    }

    /// Writes the trace of this host as it is now to `path`, while everything goes on; the file that
    /// [`NodeBuilder::trace`] named is written at the end all the same. `None` where this node does not
    /// trace, and in a forked child.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_trace(&self, path: impl AsRef<Path>) -> Option<Result<TraceSummary, TraceError>> {
        let trace = self.processes.trace.as_ref().filter(|_| !self.processes.is_inherited());
        trace.map(|trace| trace.write_to(path.as_ref(), &[]))
    }

    /// Lets everything under way finish, stops the actors and then the workers; what is not done after
    /// `deadline` is killed and named in the report. Waits for the end; a second call returns the same
    /// report.
    ///
    /// # Errors
    /// [`Closed::Ended`] only if the supervisor's thread was lost.
    pub fn shutdown(&self, deadline: Duration) -> Result<ShutdownReport, Closed> {
        self.supervisor().shutdown(deadline)
    }

    /// Waits for Ctrl-C or `SIGTERM` and then shuts down, with `deadline`; a second one kills what is left at
    /// once. A shutdown that somebody else has begun, `tensorpost stop` for example, ends the wait too. While
    /// this runs, and after it, these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// When signals cannot be waited for; the node is shut down all the same, when it is dropped.
    pub fn run_until_ctrl_c(&self, deadline: Duration) -> Result<ShutdownReport, RunError> {
        self.processes.run_until_ctrl_c(deadline)
    }

    /// As [`run_until_ctrl_c`](Self::run_until_ctrl_c), but also shuts down when `ended` resolves: a
    /// pipeline's `running.ended()`, for example.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tensorpost::prelude::*;
    /// # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Number(u32);
    /// # fn main() -> anyhow::Result<()> {
    /// let pipeline = Pipeline::new("numbers");
    /// pipeline.items("count", |_| (0..100).map(Number)).for_each("print", |Number(n)| Ok(println!("{n}")));
    /// let node = Node::builder().start()?;
    /// let running = node.run_pipeline(&pipeline)?;
    /// node.run_until_ctrl_c_or(running.ended(), Duration::from_secs(10))?;
    /// match running.wait() {
    ///     Ok(report) => println!("{report}"),
    ///     Err(error) => {
    ///         // What it did until then is in the report too.
    ///         if let Some(report) = error.report() {
    ///             println!("{report}");
    ///         }
    ///         return Err(error.into());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`run_until_ctrl_c`](Self::run_until_ctrl_c).
    pub fn run_until_ctrl_c_or(
        &self,
        ended: impl Future<Output = ()> + Send,
        deadline: Duration,
    ) -> Result<ShutdownReport, RunError> {
        signals::run_until_ctrl_c(self.supervisor(), ended, deadline)
    }
}

impl Processes {
    inside! {
        /// As [`Node::supervisor`].
        pub fn supervisor(&self) -> &Arc<Supervisor> {
            &self.supervisor
        }
    }

    inside! {
        /// As [`Node::run_until_ctrl_c`].
        pub fn run_until_ctrl_c(&self, deadline: Duration) -> Result<ShutdownReport, RunError> {
            signals::run_until_ctrl_c(&self.supervisor, std::future::pending(), deadline)
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        match self.supervisor.shutdown(limits::DROP_DEADLINE) {
            Ok(report) => {
                for late in report.workers.iter().filter(|worker| worker.killed.is_some()) {
                    tracing::debug!(worker = late.name, "killed when the node was dropped");
                }
            }
            Err(error) => tracing::error!(%error, "the node could not be shut down"),
        }
        self.process_runtime.node_dropped();
    }
}
