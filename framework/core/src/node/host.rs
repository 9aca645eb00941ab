//! What a process of the node runs, as the control code sees it: the seam between the processes (this folder)
//! and the transport with its actors.
//!
//! [`ProcessRuntime`] is implemented once. The node opens one, and so does each worker, by the same code of
//! the same program.
//! * Death: when the node ends, a worker ends at once, whatever its process runtime is doing.
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
use crate::transport::lifecycle::EndReason;

/// Counts of the messages between this process and others, so that a shutdown can wait until none is under
/// way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Messages handed to other processes since the start. What went to a process that has died since may
    /// stay in: after a death only changes of the counts matter, not their sums.
    pub sent: u64,
    /// Messages taken from other processes since the start; the same holds for those of the dead.
    pub received: u64,
    /// Whether anything is queued, running or on its way out, or lies unread where another process put it.
    pub busy: bool,
    /// Whether messages to it will never be read, because it has given up who sent them. Then, too, only
    /// changes of the counts matter.
    pub leaves_unread: bool,
}

/// The transport and the actors of a process. Every method may be called on any thread unless it says
/// otherwise, and none waits: in the node it is the supervisor's thread that calls.
pub trait ProcessRuntime: Send + Sync + 'static {
    /// Takes a message from the node, with its descriptors. Messages arrive in the order in which the node
    /// sent them.
    #[expect(
        clippy::wrong_self_convention,
        reason = "it takes what comes from the node; it converts nothing"
    )]
    fn from_node(&self, message: FromNode, descriptors: Vec<OwnedFd>);

    /// Takes a message from the node whose descriptors are lost, because this process may open no more files.
    /// False where the process cannot go on without them.
    #[expect(clippy::wrong_self_convention, reason = "as for `from_node`")]
    fn from_node_starved(&self, _message: &FromNode) -> bool {
        false
    }

    /// What is going on now. `busy` and the counts must be read so that a message is never missing from both:
    /// count `received` only once `busy` would be true for it, and `sent` before it can be received.
    fn activity(&self) -> Activity;

    /// Counts of what the process and its actors have done.
    fn metrics(&self) -> ProcessMetrics {
        ProcessMetrics::default()
    }

    /// In the node's own process: which host of its node it runs on.
    #[cfg(feature = "hosts")]
    fn set_host(&self, _host: u16) {}

    /// Its memory and its links, for the console.
    fn survey(&self) -> Survey {
        Survey::default()
    }

    /// Snapshot of queues and waits for hang detection. Called on a thread that runs no actor.
    fn hang_probe(&self) -> HangProbe {
        HangProbe::default()
    }

    /// Puts something on each GPU that the process has opened, and waits until that is done. False if one is
    /// lost to it, which the process has said then, and ends.
    fn look_at_gpus(&self) -> bool {
        true
    }

    /// The node traces: from now on the process notes what it does in this ring.
    fn trace(&self, _ring: TraceRing) {}

    /// The node traces no longer: nothing is noted from now on.
    fn end_trace(&self) {}

    /// In a worker: the process is about to end, and its actors with a policy for failures come back
    /// elsewhere.
    fn leaving(&self) {}

    /// Takes in what others have given back so far, for the trace: the process's actors have stopped, or it
    /// is about to end.
    fn note_returns(&self) {}

    /// Resolves when all replies have gone for which there was no room yet. On the thread of
    /// [`begin_hosting`](Self::begin_hosting), when no actor is left.
    fn last_replies(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns a closure that waits, as long as it takes, until everything that was put on the process's
    /// streams is done. Called when no actor is left.
    fn unfinished_work(&self) -> Box<dyn FnOnce() + Send> {
        Box::new(|| {})
    }

    /// In the node's own process: no more messages come from the node.
    fn node_ended(&self) {}

    /// In the node's own process: the program has dropped the node. What runs for it ends.
    fn node_dropped(&self) {}

    /// The node is shutting down: sources should stop making messages. What is under way is still delivered.
    fn stopping(&self) {}

    /// Opens a device for actors that may come, on the thread of [`begin_hosting`](Self::begin_hosting) and
    /// behind it.
    ///
    /// # Errors
    /// Why this process cannot use it, as text for the person who started the node.
    fn open_device(&self, _device: DeviceId) -> Result<(), String> {
        Ok(())
    }

    /// The process is to have actors: called once, on a worker's main thread, inside its actix `System`.
    ///
    /// # Errors
    /// Why there can be no actors here, as text for the person who started the node.
    fn begin_hosting(&self) -> Result<(), String>;

    /// Creates and starts an actor, on the thread of [`begin_hosting`](Self::begin_hosting); ready when it
    /// can take messages. `Err` says why it could not be created. Its end is told to `notices`.
    fn start_actor(
        self: Arc<Self>,
        start: StartActor,
        notices: Notices,
    ) -> LocalBoxFuture<'static, Result<(), String>>;

    /// Stops every actor, on the same thread, and lets its `stopped` run.
    fn stop_actors(&self) -> LocalBoxFuture<'_, ()>;
}

/// Opens this process: called once, before anything is sent to it. The pages are those that the node made for
/// it. An error says why the process cannot take part, as text for the person who started the node.
pub type Open<'a, R> =
    dyn Fn(&Identity, Arc<dyn ControlChannel>, ProcessPages) -> Result<Arc<R>, String> + Send + Sync + 'a;

/// The identity of a process, and what the node lets it use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its slot and life.
    pub process: ProcessId,
    /// The name that the person who started it gave it; `"node"` for the node.
    pub name: String,
    /// The device that it opens before it is ready: it is a spare, and its actors will work there.
    pub opens: Option<DeviceId>,
    /// Bytes that its host pool may take.
    pub host_budget: u64,
    /// The budget of its pool on each GPU; a quarter of the GPU's memory where nothing is said.
    pub gpu_budget: Option<GpuBudget>,
    /// Records that it keeps for a trace, where the node traces.
    pub trace: Option<u32>,
    /// Whether it notes what waits in it: the node has a limit for hangs.
    pub detects_hangs: bool,
    /// The number of the host that it runs on, in a node with several; 0 is the first, and the only one.
    pub host: u16,
}

/// How a worker tells the node about its actors afterwards. Cheap to clone; usable on any thread.
#[derive(Clone)]
pub struct Notices {
    uplink: Arc<Uplink>,
}

impl Notices {
    pub(crate) fn new(uplink: Arc<Uplink>) -> Self {
        Notices { uplink }
    }

    /// An actor ended: by itself (`why` is `None`) or by a failure. Its names become free and its address
    /// leads nowhere. Not needed for actors that [`ProcessRuntime::stop_actors`] stopped.
    #[cfg(any(test, feature = "inside"))]
    pub fn actor_stopped(&self, actor: ActorId, why: Option<String>) {
        self.actor_ended(actor, why.map(EndReason::HandlerPanic), false);
    }

    pub(crate) fn actor_ended(&self, actor: ActorId, why: Option<EndReason>, away: bool) {
        self.uplink.actor_stopped(actor, why, away);
    }
}
