//! Nodes: the processes that a program starts, supervises and ends.
//!
//! [`Node::builder`](crate::node::Node::builder) makes the running program a node. Each
//! [`spawn`](crate::node::Node::spawn) starts a worker process with an actor in it, unless the spawn names
//! another place. A worker runs this program again, but only its actors: `main` never begins there. Restart
//! policies, groups, watching and limits for hangs are settings of the spawn and of the builder.
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
//! Nothing is in the file system: a worker inherits its socket to the node. Only the node's process listens,
//! at an abstract name, for the command `tensorpost`. It answers only its own user and root
//! ([`NodeBuilder::console`]). When a worker dies, the rest goes on; when the node dies, all workers end.
//!
//! Read the modules in this order. [`process_runtime`] runs inside a process; `control` and `line` define the
//! messages on a control socket and send them; then `handshake`. `broker` with `roster`, `registry`, `chunks`
//! and `questions` holds what the node knows and passes on, without sockets. [`supervisor`] is the thread in
//! the node, `worker` the other side. Then [`shutdown`] and `journal`. `console` answers watchers from
//! outside, and `watcher` is the seam to the crate that shows what was recorded.

pub(crate) mod before_main;
pub(crate) mod broker;
mod builder;
mod chunks;
pub(crate) mod console;
pub(crate) mod control;
mod deaths;
mod deferred;
mod fences;
mod files;
mod gpu_shares;
mod group;
mod handshake;
mod hang;
#[cfg(feature = "hosts")]
pub(crate) mod hosts;
#[cfg(not(feature = "hosts"))]
#[path = "one_host.rs"]
mod hosts;
mod journal;
pub mod limits;
#[cfg(all(test, feature = "testing"))]
mod limits_tests;
mod line;
mod link_messages;
mod mps;
pub mod process_runtime;
mod program;
pub(crate) mod progress;
mod questions;
mod reclaim;
mod registry;
mod report;
mod restart;
mod roster;
pub mod serving;
pub mod shutdown;
mod signals;
mod spawn;
mod spawn_by_actor;
mod spawned;
pub mod supervisor;
mod typed;
// Tests reach it through `testing::deaths`.
#[cfg_attr(
    not(any(test, feature = "testing")),
    expect(unreachable_pub, reason = "public for the model's test only")
)]
pub(crate) mod taint;
pub(crate) mod wait;
pub(crate) mod watcher;
mod watches;
mod worker;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::observe::metrics::Metrics;
use crate::observe::trace::{Collector, TraceError, TraceSummary};
use crate::os::Inert;
use crate::os::fork::INHERITED;
use crate::transport::Transport;

use self::progress::{ProgressDisplay, ShownProgress};
use self::watcher::{Watched, watcher};

pub use self::builder::NodeBuilder;
pub use self::console::Console;
#[doc(hidden)]
pub use self::deferred::Deferred;
pub use self::group::{Group, Strategy};
pub use self::handshake::BuildMismatch;
pub use self::hang::{Hang, HangReport, OnHang, WaitsIn};
pub use self::mps::{MpsError, Sharing};
#[cfg(feature = "inside")]
pub use self::process_runtime::{Activity, Identity, Notices, Open, ProcessRuntime};
pub use self::registry::NameError;
pub use self::report::NodeReport;
pub use self::restart::Restart;
pub use self::roster::LocationError;
pub use self::shutdown::{Phase, RestartReport, ShutdownReport, WorkerEnd};
pub use self::signals::RunError;
pub use self::spawn::{ActorError, Spawn};
pub use self::spawned::Spawned;
#[doc(hidden)]
pub use self::supervisor::SelfReport;
pub use self::supervisor::{
    NodeClosed, NodeError, SpawnError, StartError, Supervisor, WorkerId, WorkerState, WorkerStatus,
};
#[cfg(feature = "inside")]
pub use self::worker::run_if_worker;
#[cfg(feature = "inside")]
pub use crate::actor::{NewActor, StartActor};

/// A running node. It starts without workers; each [`spawn`](Node::spawn) adds one. Dropping it shuts it
/// down, with [`DROP_DEADLINE`](limits::DROP_DEADLINE), and never panics. In a forked child of its process
/// calls on it are errors, and its drop does nothing.
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

/// The processes of a node, independent of what they run. Dropping it shuts them down.
pub struct Processes {
    supervisor: Arc<Supervisor>,
    /// The runtime of the node's own process.
    process_runtime: Arc<dyn process_runtime::ProcessRuntime>,
    trace: Option<Arc<Collector>>,
    /// Why workers share GPUs in time slices.
    time_slices: Option<String>,
    /// Answers watchers from outside; ends after the workers have.
    _console: Option<console::Server>,
    /// Serves the live pages; ends after the workers, too.
    live: Mutex<Vec<serving::Serving>>,
    /// Last: the daemon is stopped after the workers, its clients, have ended.
    _mps: Option<mps::Mps>,
}

impl Node {
    inside! {
        /// Returns the transport of the node's own process.
        pub fn transport(&self) -> &Arc<Transport> {
            &self.transport
        }
    }

    /// Returns the handle to the supervisor's thread, for code that starts workers and actors itself.
    pub fn supervisor(&self) -> &Arc<Supervisor> {
        self.processes.supervisor()
    }

    /// Returns why workers that share a GPU take turns on it; `None` if their kernels overlap
    /// ([`Sharing::Mps`]).
    pub fn time_slices(&self) -> Option<&str> {
        self.processes.time_slices.as_deref()
    }

    /// Returns the status of all workers, also of those that have ended and whose slot is not used again yet.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        self.supervisor().workers()
    }

    /// Returns the metrics of all processes and actors. On the head of several hosts the metrics of the other
    /// hosts are in it too, each with its host.
    ///
    /// Blocks this thread until the answers come, for at most a second, and half a second more for other
    /// hosts; an async function calls it in its runtime's `spawn_blocking`. The answers also go to the
    /// recorder of the `metrics` crate, if the program has installed one. Install it after the node's start:
    /// before the start, each worker would install one too.
    ///
    /// Metrics of user code in any process reach that recorder by themselves: values of `counter!`, `gauge!`
    /// and `histogram!` from a worker get the labels `actor` and `worker`. When this returns, the recorder
    /// has all values from before the call.
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
    /// [`NodeClosed::Ended`] when the node has shut down.
    pub fn metrics(&self) -> Result<Metrics, NodeClosed> {
        let metrics = self.supervisor().metrics_of_all()?;
        watcher().export(&metrics);
        Ok(metrics)
    }

    /// Shows all actors on stderr, until the returned value drops or the node ends: how many messages each
    /// has handled, how fast, how many wait, and the bytes in flight. See [`ProgressDisplay`].
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
            watcher().export(&metrics);
            Some(ShownProgress::from(&metrics))
        })
    }

    /// Returns what has gone wrong so far: all workers, how often each was restarted, and why, and the hangs,
    /// if there is a [limit](NodeBuilder::hang_limit). On the head of several hosts the report includes the
    /// workers of the other hosts, and the call waits for their answers for at most half a second.
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
    /// [`NodeClosed::Ended`] when the node has shut down; the report of [`shutdown`](Self::shutdown) has the
    /// restarts then.
    pub fn report(&self) -> Result<NodeReport, NodeClosed> {
        self.supervisor().report_of_all()
    }

    /// Serves the live page at an address, until the node is dropped, and returns the address. A browser sees
    /// figures of all actors, processes, memory and links at `/`, Prometheus reads them at `/metrics`, and
    /// programs at `/figures.json` and `/graph.svg`. Probes use `/livez` and `/readyz`. The page only reads,
    /// and makes no actor wait. The environment variable `TENSORPOST_HTTP=127.0.0.1:9464` does the same,
    /// without a change of the program.
    ///
    /// Everybody who reaches the address is answered, without authentication: other users of the machine at
    /// `127.0.0.1`, everybody in the network at `0.0.0.0`. They see names, counts and sizes. If that is too
    /// much, use the command `tensorpost`: the node answers it only for its own user.
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
    /// The address cannot be bound, or the system refuses a thread.
    pub fn serve(&self, address: impl ToSocketAddrs) -> io::Result<SocketAddr> {
        let shared = self.supervisor().shared();
        if shared.is_inherited() {
            return Err(io::Error::other(INHERITED));
        }
        let addresses: Vec<_> = address.to_socket_addrs()?.collect();
        let (server, address) = watcher().serve(&addresses, Watched(shared))?;
        self.processes.live.lock().push(server);
        Ok(address)
    }

    /// Writes the trace of this host so far to `path`, while everything goes on. The node still writes the
    /// file that [`NodeBuilder::trace`] names at its end. Returns `None` if this node does not trace, and in
    /// a forked child.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_trace(&self, path: impl AsRef<Path>) -> Option<Result<TraceSummary, TraceError>> {
        let trace = self.processes.trace.as_ref().filter(|_| !self.processes.is_inherited());
        trace.map(|trace| watcher().write_trace(path.as_ref(), &trace.so_far(), &[]))
    }

    /// Lets everything under way finish, stops the actors and then the workers, and waits until they have
    /// ended. Workers that have not ended after `deadline` are killed and named in the report. A second call
    /// returns the same report.
    ///
    /// # Errors
    /// [`NodeClosed::Ended`] only if the supervisor's thread was lost.
    pub fn shutdown(&self, deadline: Duration) -> Result<ShutdownReport, NodeClosed> {
        self.supervisor().shutdown(deadline)
    }

    /// Waits for Ctrl-C or `SIGTERM` and then shuts down, with `deadline`. A second signal kills the
    /// remaining workers at once. A shutdown from elsewhere, `tensorpost stop` for example, ends the wait
    /// too. During this call, and after it, these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// The process cannot wait for signals. The node still shuts down when it is dropped.
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
