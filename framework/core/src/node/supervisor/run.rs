//! The supervisor's loop: commands, sockets, deadlines, and the end of a worker's process.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::ids::ProcessId;
use crate::node::broker::{Broker, Delivery};
use crate::node::control::Down;
use crate::node::hang::OnHang;
use crate::node::journal::Journal;
use crate::node::limits::TURN_MESSAGES;
use crate::node::line::{Flushed, Incoming};
use crate::node::process_runtime::ProcessRuntime;
use crate::node::questions::Ping;
use crate::node::wait;
use crate::node::watcher::watcher;
use crate::observe::log::Severity;
use crate::observe::metrics::user::Intake;
use crate::os::last_words::LastWords;
use crate::os::{Launcher, peer_fd};
use crate::transport::lifecycle::EndReason;

use super::error::{because, exit_text, hint};
use super::gpu_probes::GpuProbes;
use super::hangs::Hangs;
use super::metrics::{Askings, PendingAnswer};
use super::neighbours::Neighbours as _;
use super::record::{WorkerPhase, WorkerState, WorkerStatus};
use super::restarts::Restarts;
use super::spares::Spares;
use super::start_requests::ForActors;
use super::stopping::Stopping;
use super::traces::Traces;
use super::workers::Workers;
use super::{Command, Reply, Settings, Shared, SpawnError, StartError, WorkerId};

/// How often the supervisor looks at the clock while a worker starts, so that it notices time in which it did
/// not run.
const STALL_TICK: Duration = Duration::from_millis(250);
/// A delay that scheduling alone does not explain.
const STALL: Duration = Duration::from_millis(10);

/// The supervisor's state, part by part. One thread owns it, so there are no locks. The parts act through the
/// broker and the workers' sockets.
pub(super) struct SupervisorState {
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
    /// Spares, which wait to replace a worker.
    pub(super) spares: Spares,
    pub(super) gpu_probes: GpuProbes,
    /// Questions for metrics that workers still have to answer.
    pub(super) askings: Askings,
    pub(super) for_actors: ForActors,
    /// Hang detection.
    pub(super) hangs: Hangs,
    /// Intervals of tracing.
    pub(super) traces: Traces,
    /// Other hosts.
    #[cfg(feature = "hosts")]
    pub(super) hosts: super::hosts::Hosts,
    /// The shutdown, once it has begun.
    pub(super) stopping: Option<Stopping>,
    /// Whether the status that callers see is out of date.
    pub(super) dirty: bool,
    /// Whether the log already says that workers on one GPU take turns.
    pub(super) noted_time_slices: bool,
    pub(super) began: Instant,
}

impl SupervisorState {
    pub(super) fn new(
        settings: Settings,
        shared: Arc<Shared>,
        process_runtime: Arc<dyn ProcessRuntime>,
        journal: Journal,
        launcher: Launcher,
        user_metrics: Intake,
    ) -> Self {
        let mut broker = Broker::with_pages(settings.pages.clone());
        let _nothing_yet = broker.joined(ProcessId::NODE);
        broker.deaths.ready(ProcessId::NODE);
        SupervisorState {
            settings,
            shared,
            process_runtime,
            journal,
            launcher,
            user_metrics,
            broker,
            workers: Workers::new(),
            restarts: Restarts::default(),
            spares: Spares::default(),
            gpu_probes: GpuProbes::default(),
            askings: Askings::default(),
            for_actors: ForActors::default(),
            hangs: Hangs::default(),
            traces: Traces::default(),
            #[cfg(feature = "hosts")]
            hosts: Default::default(),
            stopping: None,
            dirty: false,
            noted_time_slices: false,
            began: Instant::now(),
        }
    }

    pub(super) fn run(mut self) {
        let _close = CloseOnDrop(self.shared.clone());
        // Each step may cause work for the steps below it. The loop publishes the status before it waits, and
        // ends before it waits if a shutdown is complete: otherwise it would wait for an event that does not
        // come.
        loop {
            self.take_commands();
            self.check_deadlines();
            self.before_restarts();
            self.restart_due();
            self.after_restarts();
            self.keep_spares();
            self.askings.answer();
            if let Some((limit, then)) = self.settings.hang_limit {
                let then = if self.stopping.is_some() { OnHang::Report } else { then };
                let parties = (&mut self.workers, &self.broker);
                self.hangs.look(limit, then, parties, &*self.process_runtime, &self.journal);
            }
            if self.advance_stopping() {
                break;
            }
            self.publish();
            self.before_wait();
            if let Err(error) = self.wait_and_serve() {
                // Without poll there is no supervision: end the workers, as this process's end would.
                self.journal.node(
                    Severity::Error,
                    None,
                    format!("the supervisor cannot wait for events: {error}"),
                );
                break;
            }
        }
        self.finish();
    }

    fn take_commands(&mut self) {
        loop {
            let Some(command) = self.shared.commands.lock().queue.pop_front() else { return };
            match command {
                Command::Local(message, descriptors) => {
                    self.broker_message(ProcessId::NODE, message, descriptors);
                }
                Command::Pong(number) => self.pong(ProcessId::NODE, number),
                Command::Spawn(name, making, reply) => self.spawn(&name, making, reply),
                Command::Start(worker, actor, how, reply) => self.start_actor(worker, actor, how, reply),
                Command::Adopt(name, capacity, takes, reply) => {
                    self.adopt_actor(name, capacity, takes, &reply)
                }
                Command::ForActor(step) => self.for_actor(step),
                Command::ActorEnded(actor) => self.actor_ended(actor, EndReason::Normal),
                Command::AwaitEnd(worker, reply) => self.await_end(worker, reply),
                Command::Metrics(reply) => {
                    self.ask_all(PendingAnswer::Metrics(Box::default(), reply));
                }
                Command::Snapshot(reply) => {
                    let draft = Box::new(self.draft_snapshot());
                    self.ask_all(PendingAnswer::Snapshot(draft, reply));
                }
                Command::BeginTrace(reply) => self.begin_trace(&reply),
                Command::Order(worker, order) => self.obey(worker, order),
                Command::Run(step) => step(self),
                Command::Shutdown(deadline, reply) => self.begin_stopping(deadline, reply),
                Command::KillAll => self.kill_all(Instant::now()),
            }
        }
    }

    fn await_end(&mut self, id: WorkerId, reply: Reply<WorkerState>) {
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
        self.before_deliveries();
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

    /// Changes the broker's state, and sends what it tells processes of the change.
    pub(super) fn with_broker<T>(&mut self, change: impl FnOnce(&mut Broker, &mut Vec<Delivery>) -> T) -> T {
        let mut told = Vec::new();
        let result = change(&mut self.broker, &mut told);
        self.deliver(told);
        result
    }

    /// Goes on without the processes that have not marked in time which of their values depend on a death
    /// (DEATH-1).
    fn tick_deaths(&mut self, now: Instant) {
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

    fn check_deadlines(&mut self) {
        let now = Instant::now();
        self.tick_deaths(now);
        self.gpu_probes.tick(now);
        self.check_neighbours(now);
        let time = self.settings.start_deadline;
        for worker in self.workers.iter_mut() {
            let doing = match worker.phase {
                WorkerPhase::Greeting { deadline, .. } if deadline <= now => "it has not said hello",
                WorkerPhase::Opening { deadline, .. } if deadline <= now => {
                    "it said hello and then did not open"
                }
                _ => {
                    if worker.kill_at.is_some_and(|at| at <= now) {
                        worker.kill();
                    }
                    continue;
                }
            };
            // From here on nothing that it says counts, so a late hello cannot answer the caller a second
            // time.
            let phase = std::mem::replace(&mut worker.phase, WorkerPhase::Ending);
            if let WorkerPhase::Greeting { asker, .. } | WorkerPhase::Opening { asker, .. } = phase
                && asker.waits()
            {
                let name = worker.name.to_string();
                let found = watcher().obstacles(self.settings.program.other(), self.settings.host_budget, "");
                asker.answer(Err(SpawnError::Deadline { name, deadline: time, doing, found }));
            }
            worker.give_up(format!("it was not ready in time: {doing}"));
            self.dirty = true;
        }
    }

    /// Extends all deadlines by `lost`, because this thread was woken that much too late: the node was
    /// stopped, or its machine was, or it had no processor. Others may have stood still with it, so that time
    /// counts against nobody.
    fn stalled(&mut self, lost: Duration) {
        for worker in self.workers.iter_mut() {
            if let WorkerPhase::Greeting { deadline, .. } | WorkerPhase::Opening { deadline, .. } =
                &mut worker.phase
            {
                *deadline += lost;
            }
            worker.kill_at = worker.kill_at.map(|at| at + lost);
        }
        self.hangs.stalled(lost);
        self.gpu_probes.stalled(lost);
        self.stalled_neighbours(lost);
    }

    fn next_event(&mut self) -> Option<Instant> {
        let stopping = self.stopping.as_ref().and_then(Stopping::next_event);
        let workers = self.workers.iter().filter_map(|worker| {
            let start = match worker.phase {
                WorkerPhase::Greeting { deadline, .. } | WorkerPhase::Opening { deadline, .. } => {
                    Some(deadline.min(Instant::now() + STALL_TICK))
                }
                _ => None,
            };
            let retry = wait::retry_after(worker.outgoing.flushed()).map(|after| Instant::now() + after);
            [start, worker.kill_at, retry].into_iter().flatten().min()
        });
        workers
            .chain(stopping)
            .chain(self.next_of_neighbours())
            .chain(self.next_restart())
            .chain(self.spares.next_event())
            .chain(self.gpu_probes.next_event())
            .chain(self.askings.next_event())
            .chain(self.hangs.next_event())
            .chain(self.broker.deaths.next_tick())
            .min()
    }

    /// Waits for the next event and serves every worker that has one.
    fn wait_and_serve(&mut self) -> std::io::Result<()> {
        let next = self.next_event();
        let timeout = next.map(|at| {
            // The kernel rounds the timeout. Waking a little late is better than waking early and waiting
            // once more.
            at.saturating_duration_since(Instant::now()) + Duration::from_micros(50)
        });
        let shared = self.shared.clone();
        let mut fds = vec![PollFd::new(&shared.wake, PollFlags::IN)];
        let mut owners = Vec::new();
        for (index, slot) in self.workers.slots().iter().enumerate() {
            let Some(worker) = &slot.worker else { continue };
            owners.push(index);
            fds.push(PollFd::new(&worker.pidfd, PollFlags::IN));
            let out = if worker.outgoing.flushed() == Flushed::WhenWritable {
                PollFlags::OUT
            } else {
                PollFlags::empty()
            };
            fds.push(if worker.open {
                PollFd::new(&*worker.socket, PollFlags::IN | out)
            } else {
                // Poll would report a closed socket for ever, even with no flags. It never reports this one.
                PollFd::new(&shared.wake, PollFlags::empty())
            });
        }
        wait::poll(&mut fds, timeout)?;
        let late = next.map_or(Duration::ZERO, |at| at.elapsed());
        let woken = !fds[0].revents().is_empty();
        let events: Vec<_> = owners
            .into_iter()
            .zip(fds[1..].chunks(2))
            .map(|(index, pair)| (index, !pair[0].revents().is_empty(), pair[1].revents()))
            .collect();
        drop(fds);
        if late >= STALL {
            self.stalled(late);
        }
        if woken {
            shared.wake.drain()?;
        }
        for (index, ended, socket) in events {
            let retry = self.workers.at(index).is_some_and(|w| w.outgoing.flushed() == Flushed::Later);
            if (retry || socket.contains(PollFlags::OUT))
                && let Some(worker) = self.workers.at_mut(index)
            {
                worker.flush();
            }
            // A process's end may come before its messages are read: `reclaim` first reads them all.
            if ended {
                self.reclaim(index);
            } else if !(socket - PollFlags::OUT).is_empty() {
                self.read(index, TURN_MESSAGES);
            }
        }
        Ok(())
    }

    /// Handles up to `most` messages of a worker.
    fn read(&mut self, index: usize, most: usize) {
        for _ in 0..most {
            let Some(worker) = self.workers.at_mut(index).filter(|worker| worker.open) else { return };
            match worker.incoming.next() {
                Ok(Incoming::Message(bytes, descriptors)) => self.worker_message(index, &bytes, descriptors),
                Ok(Incoming::Part) => {}
                Ok(Incoming::Empty) => return,
                Ok(Incoming::Starved(bytes)) => self.starved(index, &bytes),
                Ok(Incoming::Closed) => {
                    (worker.open, worker.read_to_the_end) = (false, true);
                    worker.end_soon(Instant::now());
                }
                Err(error) => {
                    worker.open = false;
                    worker.give_up(error.to_string());
                }
            }
        }
    }

    /// Handles the last messages of a worker whose process has ended, takes its exit status and tells
    /// everybody.
    fn reclaim(&mut self, index: usize) {
        // Last messages first: they may say why it ends, or that an actor had ended before. A dead process
        // sends nothing new, so this ends. The bound is for a child of the worker that inherited its socket.
        self.read(index, 1 << 16);
        let Some(mut worker) = self.workers.take(index) else { return };
        if !worker.told_to_exit {
            // Its process group may hold processes that it had no chance to end.
            worker.kill();
        }
        // Reaped after the kill: until then its process id cannot be somebody else's.
        let exit = worker.child.wait().ok();
        self.trace_ended(worker.process, &format!("ended: {}", exit_text(&exit)));
        // Nobody waits for its answers any longer.
        self.askings.left(worker.process);
        self.hangs.left(worker.process);
        self.gpu_probes.left(worker.process);
        self.for_actors.left(worker.process);
        let actors = self.broker.roster.actors_of(worker.process);
        let reason = worker.reason(exit);
        let ended = WorkerState::Exited { exit, why: worker.why.clone() };
        // First announce which actors come back, then that the process is gone: a sender that sees the broken
        // link then knows already whether its actor comes back, and where to wait (DEATH-2).
        let mut told = Vec::new();
        let comes_back = self.decide(index, &worker, &reason, ended, &mut told);
        let text = format!("worker `{}` (pid {}) ended", worker.name, worker.child.id());
        let hint = if worker.why.is_none() { hint(&exit) } else { "" };
        let text = format!("{text}: {}{}{hint}", exit_text(&exit), because(&worker.why));
        self.broker.left(worker.process, &mut told);
        // From now on a shutdown cannot rely on sums of messages (`node/shutdown`). A spare has exchanged
        // none.
        self.workers.deaths |= worker.spare.is_none();
        let name = worker.name.clone();
        let why = worker.why.take();
        // `decide` has already logged a restart, with the reason, and `spare_ended` logs the end of a spare.
        let is_known = worker.was_to_end(exit) || comes_back || worker.spare.is_some();
        let severity = if is_known { Severity::Debug } else { Severity::Error };
        self.journal.node(severity, Some(&name), text);
        if worker.spare.is_some() {
            self.spare_ended(&worker, format!("{}{}{hint}", exit_text(&exit), because(&why)));
        }

        let ended = WorkerState::Exited { exit, why: why.clone() };
        let state = if comes_back { WorkerState::Restarting { reason } } else { ended.clone() };
        let (restarts, last_end) = self.restarts.of_worker(worker.id);
        let status = WorkerStatus { state, restarts, last_end, ..worker.status(actors) };
        self.note_end(&worker, exit);
        // Nobody asks for the status of a spare that has not replaced a worker.
        if let Some(slot) = self.workers.slot_mut(index).filter(|_| worker.spare.is_none()) {
            slot.last = Some(status);
        }
        self.dirty = true;
        // Publish the status before any answer, so that a caller that gets an error finds the same in the
        // status.
        self.publish();
        self.deliver(told);
        // Last, so that a caller that has waited for the end finds it everywhere in this process: from now on
        // its sends fail.
        for reply in worker.awaiting_end.drain(..) {
            reply.answer(ended.clone());
        }
        for (actor, pending) in worker.pending.drain() {
            let Some(first) = pending.first else { continue };
            self.guest_failed(actor);
            first.reply.answer(Err(StartError::WorkerExited {
                worker: name.to_string(),
                type_name: pending.type_name,
                exit,
                why: why.clone(),
            }));
        }
        let said = worker.last_words.take().map_or_else(String::new, |words| words_of(&words));
        if let WorkerPhase::Greeting { asker, .. } | WorkerPhase::Opening { asker, .. } = worker.phase
            && asker.waits()
        {
            let found = said + &self.examine(worker.id, "");
            asker.answer(Err(SpawnError::Exited { name: name.to_string(), exit, why, found }));
        }
        if !worker.read_to_the_end {
            // Unread messages in the socket may carry descriptors, which close with the socket. Closing some
            // of them may block, so another thread does it.
            peer_fd::drop_on_own_thread((worker.incoming, worker.outgoing, worker.socket));
        }
    }

    pub(super) fn publish(&mut self) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        self.spares.note_change();
        let roster = &self.broker.roster;
        *self.shared.status.lock() = self.statuses(|process| roster.actors_of(process)).collect();
    }

    /// Writes the report where a late caller finds it, and answers the callers that wait.
    fn finish(mut self) {
        self.dirty = true;
        self.publish();
        self.process_runtime.node_ended();
        self.write_run();
        let SupervisorState { shared, journal, user_metrics, stopping, restarts, .. } = self;
        // The recorder and the log have everything before anybody is told that the node has ended.
        drop(user_metrics);
        drop(journal);
        if let Some(stopping) = stopping {
            let (report, replies) = stopping.into_report(restarts.report());
            *shared.report.lock() = Some(report.clone());
            for reply in replies {
                reply.answer(report.clone());
            }
        }
    }
}

/// On drop it refuses further commands and drops the queued ones, however the thread ends: nobody waits for
/// an answer for ever.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let mut commands = self.0.commands.lock();
        commands.closed = true;
        let queue = std::mem::take(&mut commands.queue);
        drop(commands);
        drop(queue);
    }
}

/// Copies the standard error of a worker that never greeted to this process's, and returns its last lines for
/// an error.
fn words_of(words: &LastWords) -> String {
    let (all, last) = words.read();
    let _ = std::io::stderr().write_all(&all);
    if last.is_empty() { String::new() } else { format!("; its last words:\n{last}\n") }
}
