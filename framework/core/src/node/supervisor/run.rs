//! The supervisor's loop: commands, sockets, deadlines, and the end of a worker's process.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::ids::ProcessId;
use crate::node::hang::OnHang;
use crate::node::limits::TURN_MESSAGES;
use crate::node::line::{Flushed, Incoming};
use crate::node::wait;
use crate::node::watcher::watcher;
use crate::node::worker::EXIT_REFUSED;
use crate::observe::log::Severity;
use crate::os::last_words::LastWords;
use crate::os::peer_fd;
use crate::transport::lifecycle::EndReason;

use super::error::{because, exit_text, hint};
use super::gpu_probes::GpuProbes;
use super::hangs::Hangs;
use super::metrics::{Askings, PendingAnswer};
use super::neighbours::{Neighbours, Start};
use super::node_state::NodeState;
use super::part::Part;
use super::record::{WorkerPhase, WorkerState, WorkerStatus};
use super::spares::Spares;
use super::start_requests::ForActors;
use super::stopping::Stopping;
use super::traces::Traces;
use super::{Command, Shared, SpawnError, StartError};

/// A delay that scheduling alone does not explain.
const STALL: Duration = Duration::from_millis(10);

/// The supervisor's state, part by part. One thread owns it, so there are no locks. Each part owns what it
/// knows, and acts through the processes, which it is lent.
pub(super) struct SupervisorState {
    pub(super) node: NodeState,
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
    /// The way to what lies outside this node.
    pub(super) neighbours: Box<dyn Neighbours>,
}

impl SupervisorState {
    pub(super) fn new(node: NodeState, neighbours: Box<dyn Neighbours>) -> Self {
        SupervisorState {
            node,
            spares: Spares::default(),
            gpu_probes: GpuProbes::default(),
            askings: Askings::default(),
            for_actors: ForActors::default(),
            hangs: Hangs::default(),
            traces: Traces::default(),
            neighbours,
        }
    }

    pub(super) fn run(mut self) {
        let _close = CloseOnDrop(self.node.shared.clone());
        // Each step may cause work for the steps below it. The loop publishes the status before it waits, and
        // ends before it waits if a shutdown is complete: otherwise it would wait for an event that does not
        // come.
        loop {
            self.take_commands();
            self.check_deadlines();
            self.neighbours.before_restarts(&mut self.node);
            self.restart_due();
            let effects = self.neighbours.after_restarts(&mut self.node);
            self.carry_out(effects);
            self.spares.keep(&mut self.node);
            self.askings.answer();
            if let Some((limit, then)) = self.node.settings.hang_limit {
                let then = if self.node.stopping.is_some() { OnHang::Report } else { then };
                let NodeState { workers, broker, process_runtime, journal, .. } = &mut self.node;
                self.hangs.look(limit, then, (workers, &*broker), &**process_runtime, journal);
            }
            if self.advance_stopping() {
                break;
            }
            self.publish();
            self.neighbours.before_wait(&mut self.node);
            if let Err(error) = self.wait_and_serve() {
                // Without poll there is no supervision: end the workers, as this process's end would.
                self.node.journal.node(
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
            let Some(command) = self.node.shared.commands.lock().queue.pop_front() else { return };
            match command {
                Command::Local(message, descriptors) => {
                    self.broker_message(ProcessId::NODE, message, descriptors);
                }
                Command::Pong(number) => self.node.pong(ProcessId::NODE, number),
                Command::Spawn(name, making, reply) => self.node.spawn(&name, making, reply),
                Command::Start(worker, actor, how, reply) => {
                    self.start_actor(Start { worker, actor, how, reply });
                }
                Command::Adopt(name, capacity, takes, reply) => {
                    self.node.adopt_actor(name, capacity, takes, &reply)
                }
                Command::ForActor(step) => {
                    let effect = self.for_actors.go_on(&mut self.node, &mut self.spares, step);
                    self.carry_out(effect);
                }
                Command::ActorEnded(actor) => self.node.actor_ended(actor, EndReason::Normal),
                Command::AwaitEnd(worker, reply) => self.node.await_end(worker, reply),
                Command::Metrics(reply) => {
                    self.askings.ask(PendingAnswer::Metrics(Box::default(), reply), &mut self.node);
                }
                Command::Snapshot(reply) => {
                    let draft = Box::new(self.draft_snapshot());
                    self.askings.ask(PendingAnswer::Snapshot(draft, reply), &mut self.node);
                }
                Command::BeginTrace(reply) => self.traces.begin(&mut self.node, &reply),
                Command::Order(worker, order) => self.obey(worker, order),
                Command::Run(step) => step(self),
                Command::Shutdown(deadline, reply) => self.begin_stopping(deadline, reply),
                Command::KillAll => self.node.kill_all(Instant::now()),
            }
        }
    }

    fn check_deadlines(&mut self) {
        let now = Instant::now();
        self.node.tick_deaths(now);
        self.parts_mut().into_iter().for_each(|part| part.tick(now));
        let effects = self.neighbours.check(&mut self.node, now);
        self.carry_out(effects);
        let time = self.node.settings.start_deadline;
        for worker in self.node.workers.iter_mut() {
            worker.tell_dropped_logs(&self.node.journal);
            let doing = match worker.phase {
                WorkerPhase::Greeting { deadline, .. } if deadline <= now => "it has not said hello",
                WorkerPhase::Opening { deadline, .. } if deadline <= now => {
                    "it said hello and then did not open"
                }
                _ => {
                    if worker.end.kill_at.is_some_and(|at| at <= now) {
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
                let found = watcher().obstacles(
                    self.node.settings.program.other(),
                    self.node.settings.host_budget,
                    "",
                );
                asker.answer(Err(SpawnError::Deadline { name, deadline: time, doing, found }));
            }
            worker.give_up(format!("it was not ready in time: {doing}"));
            self.node.dirty = true;
        }
    }

    /// Extends all deadlines by `lost`, because this thread was woken that much too late: the node was
    /// stopped, or its machine was, or it had no processor. Others may have stood still with it, so that time
    /// counts against nobody.
    fn stalled(&mut self, lost: Duration) {
        self.node.workers.stalled(lost);
        self.parts_mut().into_iter().for_each(|part| part.stalled(lost));
        self.neighbours.stalled(lost);
    }

    fn next_event(&self) -> Option<Instant> {
        let parts = self.parts().into_iter().filter_map(|part| part.next_event());
        parts
            .chain(self.node.workers.next_event())
            .chain(self.node.stopping.as_ref().and_then(Stopping::next_event))
            .chain(self.node.broker.deaths.next_tick())
            .chain(self.neighbours.next_event(&self.node))
            .chain(self.next_restart())
            .min()
    }

    fn parts(&self) -> [&dyn Part; 5] {
        let SupervisorState { askings, hangs, gpu_probes, for_actors, spares, .. } = self;
        [askings, hangs, gpu_probes, for_actors, spares]
    }

    fn parts_mut(&mut self) -> [&mut dyn Part; 5] {
        let SupervisorState { askings, hangs, gpu_probes, for_actors, spares, .. } = self;
        [askings, hangs, gpu_probes, for_actors, spares]
    }

    /// Waits for the next event and serves every worker that has one.
    fn wait_and_serve(&mut self) -> std::io::Result<()> {
        let next = self.next_event();
        let timeout = next.map(|at| {
            // The kernel rounds the timeout. Waking a little late is better than waking early and waiting
            // once more.
            at.saturating_duration_since(Instant::now()) + Duration::from_micros(50)
        });
        let shared = self.node.shared.clone();
        let mut fds = vec![PollFd::new(&shared.wake, PollFlags::IN)];
        let mut owners = Vec::new();
        for (index, slot) in self.node.workers.slots().iter().enumerate() {
            let Some(worker) = &slot.worker else { continue };
            owners.push(index);
            fds.push(PollFd::new(&worker.pidfd, PollFlags::IN));
            let out = if worker.line.outgoing.flushed() == Flushed::WhenWritable {
                PollFlags::OUT
            } else {
                PollFlags::empty()
            };
            fds.push(if worker.line.open {
                PollFd::new(&*worker.line.socket, PollFlags::IN | out)
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
            let retry =
                self.node.workers.at(index).is_some_and(|w| w.line.outgoing.flushed() == Flushed::Later);
            if (retry || socket.contains(PollFlags::OUT))
                && let Some(worker) = self.node.workers.at_mut(index)
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
            let Some(worker) = self.node.workers.at_mut(index).filter(|worker| worker.line.open) else {
                return;
            };
            match worker.line.incoming.next() {
                Ok(Incoming::Message(bytes, descriptors)) => self.worker_message(index, &bytes, descriptors),
                Ok(Incoming::Part) => {}
                Ok(Incoming::Empty) => return,
                Ok(Incoming::Starved(bytes)) => self.node.starved(index, &bytes),
                Ok(Incoming::Closed) => {
                    (worker.line.open, worker.line.read_to_the_end) = (false, true);
                    worker.end_soon(Instant::now());
                }
                Err(error) => {
                    worker.line.open = false;
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
        let Some(mut worker) = self.node.workers.take(index) else { return };
        if !worker.end.told_to_exit {
            // Its process group may hold processes that it had no chance to end.
            worker.kill();
        }
        // Reaped after the kill: until then its process id cannot be somebody else's.
        let exit = worker.child.wait().ok();
        self.traces.ended(&self.node, worker.process, &format!("ended: {}", exit_text(&exit)));
        // Nobody waits for its answers any longer.
        self.parts_mut().into_iter().for_each(|part| part.left(worker.process));
        let actors = self.node.broker.roster.actors_of(worker.process);
        let reason = worker.end.reason(exit);
        let ended = WorkerState::Exited { exit, why: worker.end.why.clone() };
        // First announce which actors come back, then that the process is gone: a sender that sees the broken
        // link then knows already whether its actor comes back, and where to wait (DEATH-2).
        let mut told = Vec::new();
        let comes_back = self.decide(index, &worker, &reason, ended, &mut told);
        let text = format!("worker `{}` (pid {}) ended", worker.name, worker.child.id());
        let hint = if worker.end.why.is_none() { hint(&exit) } else { "" };
        let text = format!("{text}: {}{}{hint}", exit_text(&exit), because(&worker.end.why));
        self.node.broker.left(worker.process, &mut told);
        // From now on a shutdown cannot rely on sums of messages (`node/shutdown`). A spare has exchanged
        // none.
        self.node.workers.deaths |= worker.spare.is_none();
        let name = worker.name.clone();
        let why = worker.end.why.take();
        // `decide` has already logged a restart, with the reason, and `Spares::ended` logs the end of a
        // spare.
        let is_known = worker.end.is_in_order(exit) || comes_back || worker.spare.is_some();
        let severity = if is_known { Severity::Debug } else { Severity::Error };
        if worker.faults.untold > 0 {
            self.node.journal.worker_dropped(&name, worker.faults.untold);
        }
        self.node.journal.node(severity, Some(&name), text);
        if worker.spare.is_some() {
            self.spares.ended(
                &mut self.node,
                &worker,
                format!("{}{}{hint}", exit_text(&exit), because(&why)),
            );
        }

        let ended = WorkerState::Exited { exit, why: why.clone() };
        let state = if comes_back { WorkerState::Restarting { reason } } else { ended.clone() };
        let (restarts, last_end) = self.node.restarts.of_worker(worker.id);
        let status = WorkerStatus { state, restarts, last_end, ..worker.status(actors) };
        self.note_end(&worker, exit);
        // Nobody asks for the status of a spare that has not replaced a worker.
        if let Some(slot) = self.node.workers.slot_mut(index).filter(|_| worker.spare.is_none()) {
            slot.last = Some(status);
        }
        self.node.dirty = true;
        // Publish the status before any answer, so that a caller that gets an error finds the same in the
        // status.
        self.publish();
        self.node.deliver(told);
        // Last, so that a caller that has waited for the end finds it everywhere in this process: from now on
        // its sends fail.
        for reply in worker.awaiting_end.drain(..) {
            reply.answer(ended.clone());
        }
        for (actor, pending) in worker.pending.drain() {
            let Some(first) = pending.first else { continue };
            self.neighbours.guest_failed(&mut self.node, actor);
            first.reply.answer(Err(StartError::WorkerExited {
                worker: name.to_string(),
                type_name: pending.type_name,
                exit,
                why: why.clone(),
            }));
        }
        let said = worker.line.last_words.take().map_or_else(String::new, |words| words_of(&words));
        // An interpreter has a remedy of its own.
        let ran_main = matches!(worker.phase, WorkerPhase::Greeting { .. })
            && exit.and_then(|exit| exit.code()).is_some_and(|code| code != EXIT_REFUSED)
            && self.node.program_of(worker.made_as()).remedy.is_empty();
        if let WorkerPhase::Greeting { asker, .. } | WorkerPhase::Opening { asker, .. } = worker.phase
            && asker.waits()
        {
            let remedy = if ran_main { RAN_MAIN } else { "" };
            let found = format!("{said}{remedy}{}", self.node.examine(worker.id, ""));
            asker.answer(Err(SpawnError::Exited { name: name.to_string(), exit, why, found }));
        }
        if !worker.line.read_to_the_end {
            // Unread messages in the socket may carry descriptors, which close with the socket. Closing some
            // of them may block, so another thread does it.
            peer_fd::drop_on_own_thread(worker.line);
        }
    }

    pub(super) fn publish(&mut self) {
        if !std::mem::take(&mut self.node.dirty) {
            return;
        }
        self.spares.note_change();
        let roster = &self.node.broker.roster;
        *self.node.shared.status.lock() = self.node.statuses(|process| roster.actors_of(process)).collect();
    }

    /// Writes the report where a late caller finds it, and answers the callers that wait.
    fn finish(mut self) {
        self.node.dirty = true;
        self.publish();
        self.node.process_runtime.node_ended();
        self.write_run();
        let NodeState { shared, journal, user_metrics, stopping, restarts, .. } = self.node;
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

/// The remedy for a worker that exited by itself before it greeted.
const RAN_MAIN: &str = "; it ended in its program's own `main`, where nothing took it over as a worker: put \
                        `#[tensorpost::main]` there, or, if that `main` is not in Rust, name a program with `worker_program`";

/// Copies the standard error of a worker that never greeted to this process's, and returns its last lines for
/// an error.
fn words_of(words: &LastWords) -> String {
    let (all, last) = words.read();
    let _ = std::io::stderr().write_all(&all);
    if last.is_empty() { String::new() } else { format!("; its last words:\n{last}\n") }
}
