//! The state that every thread shares with the supervisor's: the queue of commands, the status of the
//! workers, and the report of the shutdown.
//!
//! Used by [`Supervisor`](super::Supervisor), by the console, and by the node's own process as its control
//! channel.
//!
//! **Locks.** Those of its fields, one at a time; no other lock is taken inside them. A caller holds no lock
//! while it waits for an answer.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::reply::{Reply, waited_for};
use super::run::SupervisorState;
use super::start_requests::ForActor;
use super::{Making, NodeClosed, SpawnError, StartError, WorkerId, WorkerOrder, WorkerState, WorkerStatus};
use crate::actor::NewActor;
use crate::ids::ActorId;
use crate::node::console::NodeSnapshot;
use crate::node::gpu_shares::GpuShares;
use crate::node::group::Supervision;
use crate::node::hosts::AllHosts;
use crate::node::limits::{ENDLESS, WAIT_FOR_SUPERVISOR};
use crate::node::shutdown::ShutdownReport;
use crate::node::watcher::Watchable;
use crate::observe::log::Severity;
use crate::observe::metrics::Metrics;
use crate::observe::trace::Collector;
use crate::os::{Birth, EventFd};
use crate::transport::control_channel::{ControlChannel, ControlChannelClosed, Location, ToNode};

/// Code that the supervisor's thread runs.
type Step = Box<dyn FnOnce(&mut SupervisorState) + Send>;

/// A command to the supervisor's thread.
pub(super) enum Command {
    Local(ToNode, Vec<OwnedFd>),
    Pong(u64),
    Spawn(String, Making, Reply<Result<WorkerId, SpawnError>>),
    Start(WorkerId, NewActor, Supervision, Reply<Result<(ActorId, Location), StartError>>),
    Adopt(Option<String>, u32, Option<u64>, Reply<Result<(ActorId, Location), StartError>>),
    ActorEnded(ActorId),
    /// A step of a start that an actor asked for.
    ForActor(ForActor),
    AwaitEnd(WorkerId, Reply<WorkerState>),
    Metrics(Reply<Metrics>),
    Snapshot(Reply<NodeSnapshot>),
    /// Begins an interval of tracing; the answer is its collector.
    BeginTrace(Reply<std::io::Result<Arc<Collector>>>),
    Order(WorkerId, WorkerOrder),
    /// A step of the part that pushes it, which alone knows what it does.
    Run(Step),
    Shutdown(Instant, Reply<ShutdownReport>),
    KillAll,
}

/// The state that every thread shares with the supervisor's.
pub(crate) struct Shared {
    birth: Birth,
    pub(super) commands: Mutex<Commands>,
    pub(super) wake: EventFd,
    pub(super) status: Mutex<Vec<WorkerStatus>>,
    pub(super) report: Mutex<Option<ShutdownReport>>,
    /// Whether a shutdown has begun.
    pub(super) stopping: watch::Sender<bool>,
    pub(super) gpu_shares: GpuShares,
    /// The lines of each self-report, see [`SelfReport`](super::SelfReport).
    pub(super) self_reports: Mutex<BTreeMap<u64, Vec<String>>>,
    /// The way to other hosts, if there are any.
    pub(in crate::node) all_hosts: AllHosts,
}

#[derive(Default)]
pub(super) struct Commands {
    pub(super) queue: VecDeque<Command>,
    pub(super) closed: bool,
}

impl Shared {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Shared {
            birth: Birth::here(),
            commands: Mutex::new(Commands::default()),
            wake: EventFd::create()?,
            status: Mutex::default(),
            report: Mutex::default(),
            stopping: watch::Sender::new(false),
            gpu_shares: GpuShares::default(),
            self_reports: Mutex::default(),
            all_hosts: Default::default(),
        }))
    }

    /// Whether this process was forked from the node's. The node's threads do not run here.
    pub(crate) fn is_inherited(&self) -> bool {
        self.birth.is_inherited()
    }

    pub(super) fn push(&self, command: Command) -> Result<(), NodeClosed> {
        if self.is_inherited() {
            // Dropping it could wrongly tell the caller that the node has ended.
            std::mem::forget(command);
            return Err(NodeClosed::Forked);
        }
        let mut commands = self.commands.lock();
        if commands.closed {
            return Err(NodeClosed::Ended);
        }
        commands.queue.push_back(command);
        drop(commands);
        // If the doorbell is full, it was rung already; nothing else can fail on an eventfd of our own.
        let _ = self.wake.ring();
        Ok(())
    }

    /// Returns the state of everything, for the console. Waits no longer than `patience`, and the supervisor
    /// does not wait for the answer to be taken (CON-1). `None` if the supervisor did not answer in time.
    pub(crate) fn snapshot(&self, patience: Duration) -> Result<Option<NodeSnapshot>, NodeClosed> {
        let (reply, answer) = waited_for();
        self.push(Command::Snapshot(reply))?;
        match answer.recv_timeout(patience) {
            Ok(mut snapshot) => {
                self.gpu_shares.add_to(&mut snapshot);
                snapshot.standing = self.self_reports.lock().values().flatten().cloned().collect();
                Ok(Some(snapshot))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(NodeClosed::Ended),
        }
    }

    /// Begins an interval of tracing. Waits no longer than `patience`: `None` if the supervisor did not
    /// answer in time, and then nothing is traced.
    pub(crate) fn begin_trace(
        &self,
        patience: Duration,
    ) -> Result<Option<std::io::Result<Arc<Collector>>>, NodeClosed> {
        let (reply, answer) = waited_for();
        self.push(Command::BeginTrace(reply))?;
        match answer.recv_timeout(patience) {
            Ok(begun) => Ok(Some(begun)),
            Err(RecvTimeoutError::Timeout) => {
                self.end_trace();
                Ok(None)
            }
            Err(RecvTimeoutError::Disconnected) => Err(NodeClosed::Ended),
        }
    }

    /// Ends the interval of tracing without waiting for it. Commands that are pushed later run after it.
    pub(crate) fn end_trace(&self) {
        // After the node's end nothing is traced.
        let _ = self.run(|state| state.traces.end(&mut state.node));
    }

    /// Begins a shutdown without waiting for it.
    pub(crate) fn begin_shutdown(&self, within: Duration) -> Result<(), NodeClosed> {
        let (reply, _nobody_waits) = waited_for();
        self.push(Command::Shutdown(deadline_after(within), reply))
    }

    /// Writes a warning to the node's log. After the node's end there is none.
    pub(crate) fn say(&self, text: String) {
        let _ = self.run(move |state| state.node.journal.node(Severity::Warn, None, text));
    }

    /// Has the supervisor's thread run `step`, behind all earlier commands.
    pub(super) fn run(
        &self,
        step: impl FnOnce(&mut SupervisorState) + Send + 'static,
    ) -> Result<(), NodeClosed> {
        self.push(Command::Run(Box::new(step)))
    }

    /// Has the supervisor's thread run `step`, and waits for its result.
    pub(super) fn run_for<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut SupervisorState) -> T + Send + 'static,
    ) -> Result<T, NodeClosed> {
        self.ask(|reply| Command::Run(Box::new(move |state| reply.answer(step(state)))))
    }

    /// Pushes a command and waits for the answer.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, NodeClosed> {
        let (reply, answer) = waited_for();
        self.push(command(reply))?;
        answer.recv().map_err(|_| NodeClosed::Ended)
    }
}

/// Returns the instant `time` from now. A time too long for the clock counts as [`ENDLESS`].
pub(super) fn deadline_after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now + ENDLESS)
}

impl Watchable for Shared {
    fn look(&self) -> Result<Option<NodeSnapshot>, NodeClosed> {
        self.snapshot_of_all(WAIT_FOR_SUPERVISOR)
    }

    fn warn(&self, text: String) {
        self.say(text);
    }
}

/// The control channel of the node's own process.
impl ControlChannel for Shared {
    fn send(&self, message: ToNode, descriptors: Vec<OwnedFd>) -> Result<(), ControlChannelClosed> {
        self.push(Command::Local(message, descriptors)).map_err(|_| ControlChannelClosed)
    }
}
