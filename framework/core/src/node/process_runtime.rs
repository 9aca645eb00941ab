//! The interface through which the control code sees what a process runs: the seam between the processes
//! (this folder) and the transport with its actors.
//!
//! [`ProcessRuntime`] is implemented once. The node opens one, and so does each worker, by the same code of
//! the same program.
//! * Death: when the node ends, a worker ends at once, no matter what its process runtime is doing.
//! * Close: a worker is told to stop its actors ([`ProcessRuntime::stop_actors`]) and exits after that future
//!   is done.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use serde::{Deserialize, Serialize};

use crate::actor::StartActor;
use crate::clock::ProcessPages;
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::lease::GpuBudget;
use crate::node::worker::uplink::Uplink;
use crate::observe::hang_probe::HangProbe;
use crate::observe::metrics::ProcessMetrics;
use crate::observe::survey::Survey;
use crate::observe::trace::TraceRing;
use crate::transport::control_channel::{ControlChannel, FromNode};
pub use crate::transport::lifecycle::Activity;
use crate::transport::lifecycle::EndReason;

/// The transport and the actors of a process. Every method may be called on any thread unless it says
/// otherwise, and none waits, because in the node the supervisor's thread calls them.
pub trait ProcessRuntime: Send + Sync + 'static {
    /// Takes a message from the node, with its descriptors. Messages arrive in the order in which the node
    /// sent them.
    #[expect(
        clippy::wrong_self_convention,
        reason = "it takes what comes from the node; it converts nothing"
    )]
    fn from_node(&self, message: FromNode, descriptors: Vec<OwnedFd>);

    /// Takes a message from the node whose descriptors are lost, because this process may open no more files.
    /// Returns false if the process cannot go on without them.
    #[expect(clippy::wrong_self_convention, reason = "as for `from_node`")]
    fn from_node_starved(&self, _message: &FromNode) -> bool {
        false
    }

    /// Returns the present activity. `busy` and the counts must be read so that a message is never missing
    /// from both: count `received` only once `busy` would be true for it, and `sent` before it can be
    /// received.
    fn activity(&self) -> Activity;

    /// Returns the metrics of the process and its actors.
    fn metrics(&self) -> ProcessMetrics {
        ProcessMetrics::default()
    }

    /// Sets the host that the node's own process runs on.
    #[cfg(feature = "hosts")]
    fn set_host(&self, _host: u16) {}

    /// Returns its memory and its links, for the console.
    fn survey(&self) -> Survey {
        Survey::default()
    }

    /// Returns a snapshot of queues and waits for hang detection. Called on a thread that runs no actor.
    fn hang_probe(&self) -> HangProbe {
        HangProbe::default()
    }

    /// Puts some work on each GPU that the process has opened, and waits until it is done. Returns false if a
    /// GPU is lost; the process has then reported that, and ends.
    fn probe_gpus(&self) -> bool {
        true
    }

    /// Begins to trace: from now on the process writes its records into this ring.
    fn trace(&self, _ring: TraceRing) {}

    /// Ends the trace: nothing is recorded from now on.
    fn end_trace(&self) {}

    /// Tells a worker that it is about to end, and that its actors with a policy for failures come back
    /// elsewhere.
    fn leaving(&self) {}

    /// Takes in the leases that others have returned so far, for the trace. Called when the process's actors
    /// have stopped, or it is about to end.
    fn note_returns(&self) {}

    /// Resolves when all replies that had found no room are sent. Called on the thread of
    /// [`begin_actors`](Self::begin_actors), when no actor is left.
    fn last_replies(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns a closure that waits, as long as it takes, until all work on the process's streams is done.
    /// Called when no actor is left.
    fn unfinished_work(&self) -> Box<dyn FnOnce() + Send> {
        Box::new(|| {})
    }

    /// Tells the node's own process that no more messages come from the node.
    fn node_ended(&self) {}

    /// Tells the node's own process that the program has dropped the node. Everything that runs for the node
    /// ends.
    fn node_dropped(&self) {}

    /// Tells the process that the node is shutting down: sources should stop making messages. Messages under
    /// way are still delivered.
    fn stopping(&self) {}

    /// Opens a device for later actors. Called on the thread of [`begin_actors`](Self::begin_actors), after
    /// it.
    ///
    /// # Errors
    /// Why this process cannot use it, as text for the person who started the node.
    fn open_device(&self, _device: DeviceId) -> Result<(), String> {
        Ok(())
    }

    /// Prepares the process for actors. Called once, on a worker's main thread, inside its actix `System`.
    ///
    /// # Errors
    /// Why there can be no actors here, as text for the person who started the node.
    fn begin_actors(&self) -> Result<(), String>;

    /// Creates and starts an actor, on the thread of [`begin_actors`](Self::begin_actors). Resolves when
    /// the actor can take messages; `Err` says why it could not be created. `notices` hears of its end.
    fn start_actor(
        self: Arc<Self>,
        start: StartActor,
        notices: Notices,
    ) -> LocalBoxFuture<'static, Result<(), String>>;

    /// Stops every actor, on the same thread, and lets its `stopped` run.
    fn stop_actors(&self) -> LocalBoxFuture<'_, ()>;
}

/// Opens this process: called once, before anything is sent to it. The node made the pages for it. An error
/// says why the process cannot take part, as text for the person who started the node.
pub type Open<'a, R> =
    dyn Fn(&Identity, Arc<dyn ControlChannel>, ProcessPages) -> Result<Arc<R>, String> + Send + Sync + 'a;

/// The identity of a process, and what the node lets it use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its slot and life.
    pub process: ProcessId,
    /// The name that the person who started it gave it; `"node"` for the node.
    pub name: String,
    /// Set for a spare: the device that it opens before it is ready, because its actors will work there.
    pub opens: Option<DeviceId>,
    /// Bytes that its host pool may take.
    pub host_budget: u64,
    /// The budget of its pool on each GPU; `None`: a quarter of the GPU's memory.
    pub gpu_budget: Option<GpuBudget>,
    /// How many records it keeps for a trace, if the node traces.
    pub trace: Option<u32>,
    /// Whether it records its waits, because the node has a limit for hangs.
    pub detects_hangs: bool,
    /// The number of the host that it runs on, in a node with several; 0 is the first, and the only one.
    pub host: u16,
}

/// Tells the node about the ends of a worker's actors. Cheap to clone; usable on any thread.
#[derive(Clone)]
pub struct Notices {
    uplink: Arc<Uplink>,
}

impl Notices {
    pub(crate) fn new(uplink: Arc<Uplink>) -> Self {
        Notices { uplink }
    }

    /// Tells the node that an actor ended: by itself (`why` is `None`) or by a failure. Its names become free
    /// and its address leads nowhere. Not needed for actors that [`ProcessRuntime::stop_actors`] stopped.
    #[cfg(any(test, feature = "inside"))]
    pub fn actor_stopped(&self, actor: ActorId, why: Option<String>) {
        self.actor_ended(actor, why.map(EndReason::HandlerPanic), false);
    }

    pub(crate) fn actor_ended(&self, actor: ActorId, why: Option<EndReason>, away: bool) {
        self.uplink.actor_stopped(actor, why, away);
    }
}
