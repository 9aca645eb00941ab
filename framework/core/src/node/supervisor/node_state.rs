//! The node's processes: what the supervisor knows of them, and the ways to them.
//!
//! The parts of the supervisor (`part`) own what is theirs, and act through [`NodeState`], which the loop
//! lends them for one call: they send by the broker and by the workers' sockets, and write the log. Methods
//! that need no part stand beside what they are about, in `starts`, `messages`, `endings`, `groups` and
//! others. They know no part, so nothing here can reach back into one.
//!
//! **Invariants.** The order of what a process is told is that of the calls of [`NodeState::deliver`].
//!
//! **Locks.** None: one thread owns it.

use std::sync::Arc;
use std::time::Instant;

use crate::ids::ProcessId;
use crate::node::broker::neighbours::NeighbourActors;
use crate::node::broker::{Broker, Delivery};
use crate::node::control::Down;
use crate::node::journal::Journal;
use crate::node::process_runtime::ProcessRuntime;
use crate::node::questions::Ping;
use crate::observe::log::Severity;
use crate::observe::metrics::user::Intake;
use crate::os::Launcher;

use super::WorkerId;
use super::record::WorkerState;
use super::reply::Reply;
use super::restarts::Restarts;
use super::settings::Settings;
use super::shared::{Command, Shared};
use super::stopping::Stopping;
use super::workers::Workers;

/// See the module.
pub(super) struct NodeState {
    pub(super) settings: Settings,
    /// State that every thread shares with this one.
    pub(super) shared: Arc<Shared>,
    /// The runtime of the node's own process.
    pub(super) process_runtime: Arc<dyn ProcessRuntime>,
    pub(super) journal: Journal,
    /// Starts the workers' processes, which end with it.
    pub(super) launcher: Launcher,
    /// Metrics of the workers' user code, on their way to the program's recorder.
    pub(super) user_metrics: Intake,
    /// State that processes share through the node: the roster, names, chunks, deaths.
    pub(super) broker: Broker,
    /// The workers, by slot.
    pub(super) workers: Workers,
    /// Actors under restart policies, and workers between two lives.
    pub(super) restarts: Restarts,
    /// The shutdown, once it has begun.
    pub(super) stopping: Option<Stopping>,
    /// Whether the status that callers see is out of date.
    pub(super) dirty: bool,
    /// Whether the log already says that workers on one GPU take turns.
    pub(super) noted_time_slices: bool,
    pub(super) began: Instant,
}

impl NodeState {
    pub(super) fn new(
        settings: Settings,
        shared: Arc<Shared>,
        process_runtime: Arc<dyn ProcessRuntime>,
        journal: Journal,
        launcher: Launcher,
        user_metrics: Intake,
        neighbours: Box<dyn NeighbourActors>,
    ) -> Self {
        let broker = Broker::with_pages(settings.pages.clone());
        let mut broker = broker.with_neighbours(neighbours);
        let _nothing_yet = broker.joined(ProcessId::NODE);
        broker.deaths.ready(ProcessId::NODE);
        NodeState {
            settings,
            shared,
            process_runtime,
            journal,
            launcher,
            user_metrics,
            broker,
            workers: Workers::new(),
            restarts: Restarts::default(),
            stopping: None,
            dirty: false,
            noted_time_slices: false,
            began: Instant::now(),
        }
    }

    /// Answers when the process of a worker has ended.
    pub(super) fn await_end(&mut self, id: WorkerId, reply: Reply<WorkerState>) {
        if let Some(worker) = self.workers.by_id(id) {
            worker.awaiting_end.push(reply);
        } else if let Some(ended) = self.restarts.last_end(id) {
            reply.answer(ended);
        } else if let Some(last) = self.workers.last_of(id) {
            reply.answer(last.state.clone());
        }
    }

    /// Sends the broker's deliveries, then its pings: a ping goes behind everything else that was sent to its
    /// process.
    pub(super) fn deliver(&mut self, deliveries: Vec<Delivery>) {
        // Neighbours must learn of freed names before anybody hears of an actor's end, which is among the
        // deliveries.
        self.deliver_first();
        for Delivery { to, mut message, descriptors } in deliveries {
            self.name_who_refused(&mut message);
            if to == ProcessId::NODE {
                self.process_runtime.from_node(message, descriptors);
                continue;
            }
            // By process and not by slot: a message for one life must not reach the next.
            if let Some(worker) = self.workers.of_mut(to) {
                worker.send(&Down::Node(message), descriptors);
            }
        }
        for Ping { to, number } in self.broker.take_pings() {
            if to == ProcessId::NODE {
                // The answer queues behind everything that the node's own process has sent so far. A closed
                // queue means that the node has ended.
                let _ = self.shared.push(Command::Pong(number));
                continue;
            }
            if let Some(worker) = self.workers.of_mut(to) {
                worker.send(&Down::Ping { number }, Vec::new());
            }
        }
    }

    /// Sends neighbours what they must hear before any process here hears the next deliveries.
    pub(super) fn deliver_first(&mut self) {
        let mut first = Vec::new();
        self.broker.before_deliveries(&mut first);
        for delivery in first {
            self.deliver(vec![delivery]);
        }
    }

    /// Changes the broker's state, and sends what it tells processes of the change.
    pub(super) fn with_broker<T>(&mut self, change: impl FnOnce(&mut Broker, &mut Vec<Delivery>) -> T) -> T {
        let mut told = Vec::new();
        let result = change(&mut self.broker, &mut told);
        self.deliver(told);
        result
    }

    /// Goes on without the processes that have not marked in time which of their values depend on a death
    /// (DEATH-1).
    pub(super) fn tick_deaths(&mut self, now: Instant) {
        if self.broker.deaths.next_tick().is_none_or(|at| now < at) {
            return;
        }
        let mut told = Vec::new();
        for process in self.broker.deaths.tick(now, &mut told) {
            let name = self.workers.at(process.slot()).map(|worker| worker.name.clone());
            let text = format!(
                "{process} `{}` has not said in time what a death left it without; is it stopped? What it had not \
                 done by now is not believed before it has",
                name.as_deref().unwrap_or("node")
            );
            self.journal.node(Severity::Warn, name.as_ref(), text);
        }
        self.deliver(told);
    }
}
