//! The node's side: one thread that starts the workers, passes on their messages and notices their ends.
//!
//! * Death of a worker: its pidfd and the end of its socket show it. The thread first handles the messages
//!   that the worker had sent, and takes its exit status. Then it forgets the worker's actors and names,
//!   tells everybody else that the worker is gone, and gives an error to each caller that waits for it.
//!   Nothing else stops.
//! * Death of the node: the kernel kills every worker, because a thread of this process started them and ends
//!   with it.
//! * Close: [`Supervisor::shutdown`]. Dropping the [`Node`](crate::node::Node) calls it too.
//!
//! Nothing that a worker does can make the thread wait. The thread never waits for a socket: it queues, up to
//! a bound, the bytes that a socket does not take. It kills a worker that fills its queue, and the log says
//! why.
//!
//! The thread owns all of `SupervisorState`, part by part, and takes no lock but those of `Shared`, one at a
//! time. A part is lent the processes (`NodeState`) for one call, and knows no other part; where it wants
//! something of one, it returns that as an `Effect`, or its caller lends it that one too. News for several
//! processes is first collected as deliveries, and sent when the bookkeeping is done, so nobody hears of half
//! a change.
//!
//! | file | holds |
//! |---|---|
//! | `run` | the loop: commands, sockets, deadlines, the end of a process; it owns the parts |
//! | `part` | what the loop asks each part: its next event, and to hear of the end of a process |
//! | `node_state` | the processes, and the ways to them, which each part is lent |
//! | `worker_id`, `record`, `departure` | the id of a worker; what the supervisor knows of one, and of its end |
//! | `settings`, `guest` | the supervisor's settings; the name of a roaming actor's life |
//! | `launch`, `worker_settings`, `starts` | a process's program; that of one worker; starting it in a free slot |
//! | `messages` | messages from workers |
//! | `actors` | starting actors, and their ends |
//! | `start_requests` | starts that actors ask for |
//! | `endings` | what an end means: which actors come back, and who is told what |
//! | `restarts`, `due_restarts` | restart budgets and workers between two lives; starting them again |
//! | `spares` | processes that wait to replace a worker that ends |
//! | `groups`, `gpu_probes` | workers that end together; whether a killed worker took a GPU with it |
//! | `shared`, `reply` | state that every thread shares with this one: the queue of commands, the status; answers |
//! | `worker_order`, `worker_orders` | orders about one worker, such as its end |
//! | `stopping` | the end of all workers |
//! | `neighbours` | the hooks and effects of what lies outside this node: today other hosts, or nobody |
//! | `hosts` | other hosts: gateways, names, roaming actors, groups, a shutdown of all |
//! | `hangs`, `metrics` | questions that all workers answer |
//! | `snapshot` | the part of the console's answers that the node knows by itself |
//! | `self_reports` | the lines of pipelines about themselves in these answers |
//! | `traces` | tracing, of the run or of an interval |

mod actors;
mod departure;
mod due_restarts;
mod endings;
mod error;
mod gpu_probes;
mod groups;
mod guest;
mod hangs;
#[cfg(feature = "hosts")]
pub(in crate::node) mod hosts;
#[cfg(not(feature = "hosts"))]
#[path = "no_hosts.rs"]
mod hosts;
mod launch;
mod messages;
mod metrics;
mod neighbours;
mod node_state;
mod part;
mod record;
mod reply;
mod restarts;
mod run;
mod self_reports;
mod settings;
mod shared;
mod snapshot;
mod spares;
mod start_requests;
mod starts;
mod stopping;
mod traces;
mod worker_id;
mod worker_order;
mod worker_orders;
mod worker_settings;
mod workers;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use crate::actor::{NewActor, Python};
use crate::ids::{ActorId, DeviceId};
use crate::limits::CUDA_CONNECTIONS;
use crate::node::group::Supervision;
use crate::node::hang::HangReport;
use crate::node::journal::Journal;
use crate::node::process_runtime::ProcessRuntime;
use crate::node::shutdown::{RestartReport, ShutdownReport};
use crate::observe::metrics::Metrics;
use crate::observe::metrics::user::{Intake, PendingUpdates};
use crate::os::Launcher;
use crate::transport::control_channel::Location;

pub use self::error::{NodeClosed, NodeError, SpawnError, StartError};
pub(crate) use self::launch::Program;
#[cfg(feature = "testing")]
pub(crate) use self::metrics::check as testing_check_metrics;
use self::node_state::NodeState;
pub use self::record::{WorkerState, WorkerStatus};
pub use self::self_reports::SelfReport;
pub(crate) use self::settings::Settings;
pub(crate) use self::shared::Shared;
use self::shared::{Command, deadline_after};
#[cfg(feature = "testing")]
pub(crate) use self::start_requests::testing_read as testing_read_start;
pub(in crate::node) use self::start_requests::too_long;
pub(in crate::node) use self::start_requests::{StartPlace, StartRequest};
#[cfg(all(test, feature = "testing"))]
pub(in crate::node) use self::start_requests::{too_many_under_way, too_many_workers, too_much_kept};
pub use self::worker_id::WorkerId;
pub(in crate::node) use self::worker_order::WorkerOrder;
pub(crate) use self::worker_settings::Making;

/// The handle to the supervisor's thread. Its methods may be called on any thread. A method that returns an
/// answer of the supervisor blocks until the answer comes, so call it where blocking is allowed.
pub struct Supervisor {
    shared: Arc<Shared>,
    user_metrics: Arc<PendingUpdates>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Supervisor {
    /// Starts the thread. `shared` is the control channel that `process_runtime` was opened with.
    pub(crate) fn start(
        settings: Settings,
        shared: Arc<Shared>,
        process_runtime: Arc<dyn ProcessRuntime>,
    ) -> Result<Self, NodeError> {
        let journal = Journal::start(settings.log_ring.clone()).map_err(NodeError::system)?;
        let launcher = Launcher::start().map_err(NodeError::system)?;
        let user_metrics = Intake::start().map_err(NodeError::system)?;
        let waiting = user_metrics.waiting();
        let node = NodeState::new(
            settings,
            shared.clone(),
            process_runtime,
            journal,
            launcher,
            user_metrics,
            hosts::neighbour_actors(),
        );
        let state = run::SupervisorState::new(node, hosts::neighbours());
        let thread = std::thread::Builder::new()
            .name("tp-node".to_owned())
            .spawn(move || state.run())
            .map_err(NodeError::system)?;
        Ok(Supervisor { shared, user_metrics: waiting, thread: Mutex::new(Some(thread)) })
    }

    /// Returns the state that every thread shares with the supervisor's.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Starts a worker and waits until it is ready.
    ///
    /// # Errors
    /// [`SpawnError`]: it says why the worker did not get ready.
    pub fn spawn_worker(&self, name: &str) -> Result<WorkerId, SpawnError> {
        self.spawn_worker_of(name, Making { connections: CUDA_CONNECTIONS, ..Making::of(None, 1) })
    }

    /// As [`spawn_worker`](Self::spawn_worker), with `streams` streams on each GPU. Count one for each actor
    /// that the worker will hold, and those that the actors make themselves. A worker with fewer streams
    /// starts faster.
    ///
    /// # Errors
    /// As there.
    pub fn spawn_worker_with(&self, name: &str, streams: usize) -> Result<WorkerId, SpawnError> {
        self.spawn_worker_of(name, Making::of(None, streams))
    }

    /// As [`spawn_worker_with`](Self::spawn_worker_with). The worker runs the interpreter of `python`, if
    /// that is given.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn spawn_worker_for(
        &self,
        name: &str,
        streams: usize,
        python: Option<&Python>,
    ) -> Result<WorkerId, SpawnError> {
        let program = python.map(Python::program);
        self.spawn_worker_of(name, Making::of(program, streams))
    }

    pub(crate) fn spawn_worker_of(&self, name: &str, making: Making) -> Result<WorkerId, SpawnError> {
        self.shared.ask(|reply| Command::Spawn(name.to_owned(), making, reply))?
    }

    /// Starts an actor in a worker and waits until it can take messages.
    ///
    /// # Errors
    /// [`StartError`]: it has the error of `create`, or says how the worker ended.
    #[cfg(any(test, feature = "inside"))]
    #[doc(hidden)]
    pub fn start_actor(&self, worker: WorkerId, actor: NewActor) -> Result<(ActorId, Location), StartError> {
        self.start_supervised(worker, actor, crate::node::restart::Restart::never())
    }

    inside! {
        /// Starts an actor in a worker and waits until it can take messages. The restart policy holds once
        /// the actor has started: a first start that fails is only an error here.
        ///
        /// # Errors
        /// [`StartError`]: it has the error of `create`, or says how the worker ended.
        pub fn start_supervised(
            &self,
            worker: WorkerId,
            actor: NewActor,
            how: impl Into<Supervision>,
        ) -> Result<(ActorId, Location), StartError> {
            let how = how.into();
            self.shared.ask(|reply| Command::Start(worker, actor, how, reply))?
        }
    }

    inside! {
        /// Makes an id and a location in the node's own process for an actor that the caller runs itself. The
        /// actor takes messages with the key `takes`, if that is given.
        ///
        /// # Errors
        /// The name is taken, or there are too many actors.
        pub fn adopt_actor(
            &self,
            name: Option<&str>,
            capacity: u32,
            takes: Option<u64>,
        ) -> Result<(ActorId, Location), StartError> {
            self.shared.ask(|reply| Command::Adopt(name.map(str::to_owned), capacity, takes, reply))?
        }
    }

    inside! {
        /// Tells the supervisor that an actor of the node's own process has ended. The ends of other actors
        /// are told by their workers.
        pub fn actor_ended(&self, actor: ActorId) {
            // After the node's end its roster of actors is gone too.
            let _ = self.shared.push(Command::ActorEnded(actor));
        }
    }

    /// Waits until the process of a worker has ended, and returns how it ended. For a worker between two
    /// lives it returns how the last life ended. `None` if there is no such worker (any more).
    pub fn await_end(&self, worker: WorkerId) -> Option<WorkerState> {
        let ended = |state: &WorkerState| matches!(state, WorkerState::Exited { .. });
        self.shared
            .ask(|reply| Command::AwaitEnd(worker, reply))
            .ok()
            .or_else(|| self.worker(worker).map(|status| status.state).filter(ended))
    }

    /// Asks all processes for their metrics, and waits at most a second for the answers.
    ///
    /// # Errors
    /// [`NodeClosed::Ended`] when the node has shut down.
    pub fn metrics(&self) -> Result<Metrics, NodeClosed> {
        let metrics = self.shared.ask(Command::Metrics)?;
        // Each worker had sent the metrics of its user code before it answered.
        self.user_metrics.give();
        Ok(metrics)
    }

    /// Returns the ends so far of workers with a restart policy, and the hangs.
    ///
    /// # Errors
    /// [`NodeClosed::Ended`] when the node has shut down; the shutdown's report has both then.
    pub fn report(&self) -> Result<(Vec<RestartReport>, Vec<HangReport>), NodeClosed> {
        self.shared.run_for(|state| (state.node.restarts.report(), state.hangs.report()))
    }

    /// Carries out an order about a worker, or sends it to the worker's host.
    pub(in crate::node) fn order(&self, worker: WorkerId, order: WorkerOrder) {
        if self.tell_host_of(worker, order) {
            return;
        }
        // After the node's end no worker is left, and nothing comes back.
        let _ = self.shared.push(Command::Order(worker, order));
    }

    /// Kills a worker at once. The rest of the node goes on. Restart policies treat this as a failure like
    /// any other.
    pub fn kill_worker(&self, worker: WorkerId) {
        self.order(worker, WorkerOrder::Kill);
    }

    /// Keeps up to [`Node::MAX_SPARES`](crate::node::Node::MAX_SPARES) spare processes ready, with `device`
    /// opened: when this worker's process ends, one of them replaces it. The supervisor starts them in the
    /// background. A worker without an actor that comes back gets none. If spares were asked for before, the
    /// larger number holds.
    pub fn keep_spares(&self, worker: WorkerId, count: u32, device: DeviceId) {
        self.order(worker, WorkerOrder::KeepSpares(count, device));
    }

    /// Ends a worker in order, with all actors in it, because not everything that it was started for has
    /// started. Nothing comes back in it.
    pub fn retire(&self, worker: WorkerId) {
        self.order(worker, WorkerOrder::Retire);
    }

    /// Tells the actors in a worker to end, as a shutdown of the node tells all actors:
    /// [`Env::is_stopping`](crate::actor::Env::is_stopping) becomes true. A worker that is not running now is
    /// not told.
    pub fn ask_to_stop(&self, worker: WorkerId) {
        self.order(worker, WorkerOrder::AskToStop);
    }

    /// Lets a worker end as soon as its actors have ended. None of them comes back, even if its policy would
    /// restart it. The worker finishes the work on its streams first.
    pub fn let_go(&self, worker: WorkerId) {
        self.order(worker, WorkerOrder::LetGo);
    }

    /// Arms a fault in a worker; see [`fault`](crate::fault). The worker gets it after all earlier messages
    /// of the node; a worker that does not read its socket never gets it. In the node itself, call
    /// `fault::arm`.
    #[cfg(feature = "testing")]
    pub fn arm(&self, worker: WorkerId, fault: crate::fault::Fault) {
        // After the node's end there is nothing left to go wrong.
        let _ = self.shared.run(move |state| {
            if let Some(worker) = state.node.workers.by_id(worker) {
                worker.send(&crate::node::control::Down::Arm(fault), Vec::new());
            }
        });
    }

    /// Arms a fault in every process that is started from now on for the worker called `name`, its later
    /// lives included. Use it for code that a worker runs before the node can send it anything.
    #[cfg(feature = "testing")]
    pub fn arm_starts(&self, name: &str, fault: crate::fault::Fault) {
        // After the node's end there is nothing left to go wrong.
        let name = name.to_owned();
        let _ = self.shared.run(move |state| state.node.workers.start_faults.push((name, fault)));
    }

    /// Disarms all faults that [`arm_starts`](Self::arm_starts) has armed.
    #[cfg(feature = "testing")]
    pub fn disarm_starts(&self) {
        let _ = self.shared.run(|state| state.node.workers.start_faults.clear());
    }

    /// Returns the status of all workers, also of those that have ended and whose slot is not used again yet.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        // In a forked child a thread that does not exist there may hold the lock, and the child has no
        // workers.
        if self.shared.is_inherited() { Vec::new() } else { self.shared.status.lock().clone() }
    }

    /// Returns the status of one worker.
    pub fn worker(&self, worker: WorkerId) -> Option<WorkerStatus> {
        self.workers().into_iter().find(|status| status.worker == worker)
    }

    /// Lets everything under way finish, stops the actors, then the workers, and waits until they have ended.
    /// Workers that have not ended after `deadline` are killed. A second call waits for the same end, or
    /// returns the same report.
    ///
    /// # Errors
    /// [`NodeClosed::Ended`] only if the supervisor's thread was lost.
    pub fn shutdown(&self, deadline: Duration) -> Result<ShutdownReport, NodeClosed> {
        let until = deadline_after(deadline);
        let answer = self.shared.ask(|reply| Command::Shutdown(until, reply));
        if let Err(NodeClosed::Forked) = answer {
            return answer;
        }
        self.join();
        answer.or_else(|closed| self.shared.report.lock().clone().ok_or(closed))
    }

    /// Resolves when a shutdown has begun, from any caller.
    pub(crate) fn until_stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopping = self.shared.stopping.subscribe();
        async move {
            // An error means that the supervisor has ended, and thus has shut down.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        }
    }

    /// Kills every worker at once; a shutdown in progress then ends.
    pub fn kill_all(&self) {
        // After the node's end there is nothing left to kill.
        let _ = self.shared.push(Command::KillAll);
    }

    fn join(&self) {
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the node's supervisor panicked; its workers have ended with it");
        }
    }
}
