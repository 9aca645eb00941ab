//! Handles the messages of workers.

use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use crate::ids::{DeviceId, ProcessId};
use crate::node::broker::Complaint;
use crate::node::control::{ControlError, Down, Up};
use crate::node::handshake::Build;
use crate::node::limits::{MAX_COMPLAINTS, MAX_FAILURE_TEXT};
use crate::node::process_runtime::Identity;
use crate::observe::log::Severity;
use crate::observe::text::shown;
use crate::os::peer_fd;
use crate::os::remedy::OPEN_FILES;
use crate::transport::control_channel::{FromNode, LinkMessage, ToNode};
use crate::transport::lifecycle::EndReason;

use super::node_state::NodeState;
use super::record::{Asker, WorkerPhase};
use super::run::SupervisorState;
use super::{SpawnError, metrics};

impl SupervisorState {
    pub(super) fn worker_message(&mut self, index: usize, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        let Some(worker) = self.node.workers.at_mut(index) else { return };
        let process = worker.process;
        let message = match Up::read(bytes) {
            Ok(message) => message,
            Err(error) => {
                peer_fd::close(descriptors);
                let is_long = matches!(error, ControlError::TooLong(_));
                self.node.complain(index, error.to_string());
                if is_long && let Some(worker) = self.node.workers.at_mut(index) {
                    // Reading more of its messages would take time from all other workers.
                    worker.line.open = false;
                    worker.give_up(error.to_string());
                }
                return;
            }
        };
        // A GPU's chunk is a file of its driver, and only the driver can check it. Our workers send only
        // memory and local sockets beside that; a worker that sends anything else is hostile.
        let of_a_driver = matches!(message, Up::Node(ToNode::PublishChunk { .. }));
        let is_known = |fd: &OwnedFd| {
            self.neighbours.may_bring(&self.node, process, fd.as_fd()) || peer_fd::closes_at_once(fd.as_fd())
        };
        let are_known = of_a_driver || descriptors.iter().all(is_known);
        let Some(worker) = self.node.workers.at_mut(index) else { return };
        if !are_known {
            peer_fd::close(descriptors);
            worker.give_up("it sent a descriptor that is neither memory nor a local socket".to_owned());
            return;
        }
        if !descriptors.is_empty() && !matches!(message, Up::Node(_) | Up::Trace { .. }) {
            return self
                .node
                .complain(index, format!("it sent {} descriptors that nobody wants", descriptors.len()));
        }
        match (message, &worker.phase) {
            (Up::Log(record), _) => {
                worker.tell_dropped_logs(&self.node.journal);
                let name = worker.name.clone();
                match self.neighbours.is_logged_here_alone(&self.node, process, record.severity) {
                    true => self.node.journal.worker_here(&name, record),
                    false => self.node.journal.worker(&name, record),
                }
            }
            (Up::LogsDropped { count }, _) => {
                worker.faults.logs_dropped = worker.faults.logs_dropped.saturating_add(count);
                worker.faults.untold = worker.faults.untold.saturating_add(count);
                worker.tell_dropped_logs(&self.node.journal);
                self.node.dirty = true;
            }
            (Up::UserMetrics { updates, dropped }, _) => {
                self.node.user_metrics.put(&worker.name, updates, dropped);
            }
            (Up::Hello { build, pid }, WorkerPhase::Greeting { .. }) => self.hello(index, &build, pid),
            (Up::Ready, WorkerPhase::Opening { .. }) => {
                self.node.broker.deaths.ready(process);
                let phase = std::mem::replace(&mut worker.phase, WorkerPhase::Running);
                self.node.dirty = true;
                if let WorkerPhase::Opening { asker, .. } = phase {
                    asker.answer(Ok(worker.id));
                    if matches!(asker, Asker::Restart) {
                        self.worker_is_back(index);
                    }
                    let effect = self.neighbours.worker_is_ready(&self.node, index);
                    self.carry_out(effect);
                }
                self.traces.newcomer(&mut self.node, index);
            }
            (Up::OpenFailed { why }, WorkerPhase::Opening { .. }) => {
                // The first cause counts. The worker exits next, and `reclaim` then answers the caller that
                // asked for it.
                worker.end.because(EndReason::CreateFailed, why);
                worker.end_soon(Instant::now());
            }
            (Up::Failing { why, lost_gpu }, WorkerPhase::Opening { .. } | WorkerPhase::Running) => {
                // First: if the GPU went with another worker, that worker is the cause of this end.
                if lost_gpu {
                    self.has_lost_gpu(index);
                }
                let Some(worker) = self.node.workers.at_mut(index) else { return };
                let reason = if lost_gpu { EndReason::GpuFault } else { EndReason::Broken };
                worker.end.because(reason, why);
                worker.end_soon(Instant::now());
            }
            (Up::Node(message), WorkerPhase::Opening { .. } | WorkerPhase::Running) => {
                self.broker_message(process, message, descriptors);
            }
            (Up::Started { actor, result }, WorkerPhase::Running) => self.actor_started(index, actor, result),
            (Up::ActorStopped { actor, why, away }, WorkerPhase::Running) => {
                self.actor_stopped(index, actor, why, away);
            }
            (Up::Activity { round, activity }, WorkerPhase::Running) => {
                self.activity(process, round, activity)
            }
            (Up::Trace { interval: None }, WorkerPhase::Opening { .. }) => {
                self.traces.run_joined(&mut self.node, index, descriptors);
            }
            (Up::Trace { interval: Some(interval) }, WorkerPhase::Running) => {
                self.traces.interval_joined(&mut self.node, index, interval, descriptors);
            }
            (Up::Metrics { round, metrics: answer, survey }, WorkerPhase::Running) => {
                self.askings.take(process, Some(round), metrics::check(answer), survey);
            }
            (Up::HangProbe { round, hang_probe }, WorkerPhase::Running) => {
                let taken = self.hangs.hang_probe(process, round, hang_probe, &self.node.broker);
                if let Err(lie) = taken {
                    self.node.complain(index, lie);
                }
            }
            (Up::GpusLookedAt { number }, WorkerPhase::Running) => self.gpu_probes.answered(process, number),
            (Up::Pong { number }, WorkerPhase::Opening { .. } | WorkerPhase::Running) => {
                self.node.pong(process, number)
            }
            (Up::ActorsStopped, WorkerPhase::Running) => worker.actors_stop.is_done = true,
            // It ends for another reason already, but it has lost the GPU all the same.
            (Up::Failing { lost_gpu: true, .. }, WorkerPhase::Ending) => self.has_lost_gpu(index),
            // These messages were on their way when the node gave the worker up.
            (_, WorkerPhase::Ending) => {}
            (message, _) => {
                let text = format!("it said something at the wrong time: {}", name_of(&message));
                self.node.complain(index, text);
            }
        }
    }

    /// Welcomes the worker, if it runs the right build.
    fn hello(&mut self, index: usize, build: &Build, pid: u32) {
        let made_as = self.node.workers.at(index).map(|worker| worker.made_as());
        let agreed = made_as.map(|made_as| self.node.program_of(made_as).check(build));
        let gpu_budget = made_as.and_then(|made_as| self.node.gpu_budget_of(made_as));
        let Some(worker) = self.node.workers.at_mut(index) else { return };
        if pid != worker.child.id() {
            let text = format!("it says that its process id is {pid}, and it is {}", worker.child.id());
            worker.give_up(text.clone());
            return self.node.complain(index, text);
        }
        worker.line.last_words = None;
        let WorkerPhase::Greeting { deadline, asker } =
            std::mem::replace(&mut worker.phase, WorkerPhase::Ending)
        else {
            return;
        };
        if let Some(Err(source)) = agreed {
            let why = "it runs another build than the node".to_owned();
            worker.end.because(EndReason::CreateFailed, why);
            worker.send(&Down::Refused { why: source.to_string() }, Vec::new());
            worker.end_soon(Instant::now());
            asker.answer(Err(SpawnError::Build { name: worker.name.to_string(), source }));
            return;
        }
        worker.phase = WorkerPhase::Opening { deadline, asker };
        let opens =
            worker.spare.as_ref().map(|spare| spare.device).filter(|device| *device != DeviceId::HOST);
        if let Some(device) = opens {
            worker.uses(device);
        }
        let identity = Identity {
            host: self.node.broker.roster.host,
            process: worker.process,
            name: worker.title().to_string(),
            opens,
            host_budget: self.node.settings.host_budget,
            gpu_budget,
            trace: self.node.settings.trace.as_ref().map(|(_, trace)| trace.records()),
            detects_hangs: self.node.settings.hang_limit.is_some(),
        };
        let log_filter = self.node.settings.worker_log.clone();
        let telemetry = self.node.settings.worker_telemetry.clone();
        let process = worker.process;
        let descriptors = self.node.broker.deaths.descriptors(process);
        let descriptors = descriptors.and_then(|pages| self.neighbours.pages_of(pages));
        let Some(worker) = self.node.workers.at_mut(index) else { return };
        match descriptors {
            Ok(descriptors) => worker.send(&Down::Welcome { identity, log_filter, telemetry }, descriptors),
            Err(error) => return worker.give_up(format!("its pages could not be handed over: {error}")),
        }
        // After the welcome, and before anything else: deaths from before it joined (DEATH-3), and the
        // locations of actors that moved.
        let mut told: Vec<_> = self.node.broker.joined(process).into_iter().collect();
        self.node.broker.brief(process, &mut told);
        self.node.deliver(told);
    }

    /// Gives the broker a message of `from` and sends the deliveries that follow. The complaint comes last,
    /// so that every process that waits for an answer gets it first.
    pub(super) fn broker_message(&mut self, from: ProcessId, message: ToNode, descriptors: Vec<OwnedFd>) {
        let taken = self.neighbours.take_message(&mut self.node, from, message, descriptors);
        let (message, descriptors) = match taken {
            ControlFlow::Continue(left) => left,
            ControlFlow::Break(effects) => return self.carry_out(effects),
        };
        if let ToNode::StartActor { ticket, request } = message {
            peer_fd::close(descriptors);
            if self.neighbours.is_gateway(&self.node, from) {
                let text = "it has no actors, and asks to start one".to_owned();
                return self.node.complain(from.slot(), text);
            }
            let effect = self.for_actors.begin(&mut self.node, from, ticket, &request);
            return self.carry_out(effect);
        }
        let mut deliveries = Vec::new();
        let result = self.node.broker.handle(from, message, descriptors, &mut deliveries);
        self.node.deliver(deliveries);
        self.node.note(from, result);
    }
}

impl NodeState {
    /// Handles a message whose descriptors were lost because the node may open no more files.
    pub(super) fn starved(&mut self, index: usize, bytes: &[u8]) {
        let Some(worker) = self.workers.at_mut(index) else { return };
        let (from, runs) = (worker.process, !matches!(worker.phase, WorkerPhase::Greeting { .. }));
        // If the message was for a link, both ends are told, and nothing else is lost. The same holds if a
        // link only renews its rings.
        if let Ok(Up::Node(ToNode::Route { to, link_message })) = Up::read(bytes)
            && runs
        {
            let mut deliveries = Vec::new();
            let result = match link_message {
                LinkMessage::Link { number } => {
                    let lack = Err(rustix::io::Errno::MFILE.into());
                    Some(self.broker.half(from, to, number, lack, &mut deliveries))
                }
                LinkMessage::Rings { number } => {
                    Some(self.broker.offer(from, to, number, None, &mut deliveries))
                }
                // It has no descriptors.
                LinkMessage::RingsAnswer { .. } => None,
            };
            if let Some(result) = result {
                self.deliver(deliveries);
                return self.note(from, result);
            }
        }
        // The message is lost, and a process that waits for it would wait for ever. So the worker ends, and
        // its end reaches all of them. The node stops starting workers before it comes to this (`launch`).
        worker.line.open = false;
        worker.give_up(format!(
            "the node may open no more files and has lost what this worker sent; {OPEN_FILES}"
        ));
    }

    /// Adds the name of the worker that refused a link: the receiver of the message knows workers by their
    /// names.
    pub(super) fn name_who_refused(&self, message: &mut FromNode) {
        if let FromNode::LinkRefused { by, name, .. } = message
            && let Some(worker) = self.workers.of(*by)
        {
            *name = worker.name.to_string();
        }
    }

    /// Handles the answer of `from` to a ping; everything that it sent earlier has been handled.
    pub(super) fn pong(&mut self, from: ProcessId, number: u64) {
        let mut deliveries = Vec::new();
        let result = self.broker.pong(from, number, &mut deliveries);
        self.deliver(deliveries);
        self.note(from, result);
    }

    pub(super) fn note(&mut self, from: ProcessId, result: Result<(), Complaint>) {
        match result {
            Err(complaint) if from == ProcessId::NODE => {
                self.journal.node(Severity::Error, None, format!("the node's own process: {complaint}"));
            }
            Err(complaint) if complaint.may_be_innocent() => {
                if let Some(worker) = self.workers.at_mut(from.slot()) {
                    worker.faults.complaints = worker.faults.complaints.saturating_add(1);
                    self.dirty = true;
                    // Nobody ends for them, so there can be any number of them.
                    if let Some(left_out) = worker.faults.innocent.tell(Instant::now()) {
                        let more =
                            if left_out > 0 { format!(" ({left_out} left out)") } else { String::new() };
                        let text = format!("worker `{}`: {complaint}{more}", worker.name);
                        self.journal.about(&worker.name, text);
                    }
                }
            }
            Err(complaint) => self.complain(from.slot(), complaint.to_string()),
            Ok(()) => {}
        }
    }

    /// Logs and counts a message that a worker must not send. Past [`MAX_COMPLAINTS`] it is given up.
    pub(super) fn complain(&mut self, index: usize, text: String) {
        let Some(worker) = self.workers.at_mut(index) else { return };
        // An error about a message may quote the message.
        let text = shown(text, MAX_FAILURE_TEXT);
        worker.faults.complaints = worker.faults.complaints.saturating_add(1);
        self.dirty = true;
        let name = &worker.name;
        self.journal.about(name, format!("worker `{name}`: {text}"));
        worker.faults.offences = worker.faults.offences.saturating_add(1);
        if worker.faults.offences >= MAX_COMPLAINTS {
            // Each complaint costs the node a line of its log and some of its time, so the sender pays for
            // it.
            worker.line.open = false;
            worker.give_up(format!("it said {MAX_COMPLAINTS} things that it must not say; the last: {text}"));
        }
    }
}

fn name_of(message: &Up) -> &'static str {
    match message {
        Up::Hello { .. } => "hello",
        Up::Ready => "that it is ready",
        Up::OpenFailed { .. } => "that it could not open",
        Up::Failing { .. } => "that it cannot go on",
        Up::Node(_) => "something for the broker",
        Up::Started { .. } => "that an actor has started",
        Up::ActorStopped { .. } => "that an actor has stopped",
        Up::Activity { .. } => "its activity",
        Up::Trace { .. } => "where its trace is",
        Up::Metrics { .. } => "its metrics",
        Up::HangProbe { .. } => "what stands still in it",
        Up::GpusLookedAt { .. } => "that it has looked at its GPUs",
        Up::Pong { .. } => "the answer to a ping",
        Up::ActorsStopped => "that its actors have stopped",
        Up::Log(_) | Up::LogsDropped { .. } => "a log event",
        Up::UserMetrics { .. } => "metrics of its user code",
    }
}
