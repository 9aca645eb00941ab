//! The node's broker under workers that send anything on their control sockets: each message that there is,
//! with numbers that meet and numbers at their ends, and bytes.
//!
//! Besides "no panic" this holds after each message. Only living processes and the sender are told anything.
//! A chunk's descriptor is one that the chunk's owner has published, for the requested access. A fence is
//! opened by the process that it is for, or by its end. The number of workers, not their messages, bounds the
//! tables. And when all have ended, nothing is kept of them (MBX-2).
//!
//! A message that the node reads has the form in which it reads it again: its texts are cut and plain, its
//! lists are cut, and it is not too long to be passed on. Reports are as the supervisor takes them: the node
//! adds figures up and shows them, and starts only actors within their bounds.
//!
//! A worker's messages to other actors, such as topics and the stages of pipelines, do not come here: they
//! are frames.

mod messages;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::fstat;

use super::draws::Draws;
use crate::device::Access;
use crate::ids::{ActorId, ProcessId};
use crate::limits::{MAX_ACTORS, MAX_LOG_RECORD, MAX_MAILBOX, MAX_METRIC_SERIES, MAX_PROCESSES};
use crate::node::broker::{Broker, Delivery};
use crate::node::control::{Up, encode};
use crate::node::limits::{MAX_DESCRIPTORS, MAX_SPARES};
use crate::node::supervisor::{testing_check_metrics, testing_read_start};
use crate::observe::metrics::{Metrics, NamedProcess, ProcessMetrics, ProcessState};
use crate::os::Memfd;
use crate::transport::control_channel::{FromNode, ToNode};
use crate::transport::lifecycle::{EndReason, Lifecycle, ProcessDown};

/// Slots of the node that the target uses, the node's own among them.
pub const SLOTS: u16 = 4;

/// Number of deliveries that one message may cause, besides the answers to waiting questions: each living
/// process is told a few things about a death.
const MOST_TOLD: usize = 8 * SLOTS as usize;

/// Steps of one input.
const MOST_STEPS: usize = 96;

/// Plays an input. Returns the kinds of the messages that the node has read.
///
/// # Panics
/// An invariant does not hold.
pub fn play(files: &Files, input: &[u8]) -> BTreeSet<&'static str> {
    let mut draws = Draws::new(input);
    let mut control = Control::new(files);
    for _ in 0..MOST_STEPS {
        if draws.are_over() {
            break;
        }
        control.step(&mut draws);
    }
    control.end()
}

/// The chunk files of each slot, one to read and one to write. They are told apart by their inode.
pub struct Files(Vec<[Memfd; 2]>);

impl Files {
    /// Makes the files, once for all inputs.
    ///
    /// # Panics
    /// The system has no memory.
    pub fn create() -> Self {
        let file = |_| Memfd::create("fuzz-chunk", 4096).expect("memory");
        Files((0..SLOTS).map(|_| [0, 1].map(file)).collect())
    }

    fn duplicates(&self, slot: usize, count: usize) -> Vec<OwnedFd> {
        let of_slot = self.0[slot].iter().cycle().take(count);
        of_slot.map(|file| file.as_fd().try_clone_to_owned().expect("a descriptor")).collect()
    }

    fn is(&self, fd: &OwnedFd, slot: usize, access: Access) -> bool {
        let file = &self.0[slot][usize::from(access == Access::ReadWrite)];
        let inode = |fd: std::os::fd::BorrowedFd<'_>| fstat(fd).expect("it is open").st_ino;
        inode(fd.as_fd()) == inode(file.as_fd())
    }
}

/// A broker and its workers.
struct Control<'f> {
    broker: Broker,
    files: &'f Files,
    /// The life of each slot that lives.
    living: Vec<Option<ProcessId>>,
    next_life: Vec<u32>,
    actors: Vec<ActorId>,
    parked: usize,
    fences: Vec<Fence>,
    /// The figures that a process has reported last.
    metrics: Metrics,
    /// The kinds of the messages that were read.
    kinds: BTreeSet<&'static str>,
}

/// A callback that waits until a process has taken all messages.
struct Fence {
    ticket: u64,
    of: ProcessId,
    is_open: Arc<AtomicBool>,
    /// Whether that process has answered it, or has ended.
    may_open: bool,
}

impl<'f> Control<'f> {
    /// Creates the node with a living process in every slot.
    fn new(files: &'f Files) -> Self {
        let slots = usize::from(SLOTS);
        let mut control = Control {
            broker: Broker::default(),
            files,
            living: vec![None; slots],
            next_life: vec![0; slots],
            actors: Vec::new(),
            parked: 0,
            fences: Vec::new(),
            metrics: Metrics::default(),
            kinds: BTreeSet::new(),
        };
        (0..SLOTS).for_each(|slot| control.joins(slot));
        control
    }

    fn step(&mut self, draws: &mut Draws<'_>) {
        let slot = u16::from(draws.byte()) % SLOTS;
        match draws.below(16) {
            0..=5 => {
                let (message, descriptors) = messages::to_node(self, slot, draws);
                // Mostly with as many descriptors as it has to have.
                let descriptors = if draws.below(4) == 0 { draws.below(6) } else { descriptors };
                self.says(slot, message, descriptors);
            }
            6..=9 => {
                let said = messages::up(self, slot, draws);
                // A message that is too large finds no way to the node.
                let Ok(mut bytes) = encode(&said) else { return };
                messages::garble(&mut bytes, draws);
                self.bytes(slot, &bytes, draws.below(6));
            }
            10 => self.bytes(slot, draws.bytes(1024), draws.below(6)),
            11 => self.answers_pings(),
            12 => self.joins(slot),
            13 => self.ends(slot),
            14 => {
                if draws.whether() {
                    self.starts(slot);
                } else {
                    self.actor_ends(draws.byte().into());
                }
            }
            _ => self.fences(slot),
        }
    }

    /// Returns the process in a slot, if it lives.
    fn process(&self, slot: u16) -> Option<ProcessId> {
        self.living[usize::from(slot % SLOTS)]
    }

    /// Begins the next life of a slot, where it has none and the last was reclaimed.
    fn joins(&mut self, slot: u16) {
        let at = usize::from(slot % SLOTS);
        let last = self.next_life[at].checked_sub(1).and_then(|life| ProcessId::new(at as u16, life));
        // The node itself has one life.
        if self.living[at].is_some()
            || at == 0 && last.is_some()
            || last.is_some_and(|last| !self.broker.is_reclaimed(last))
        {
            return;
        }
        let process = ProcessId::new(at as u16, self.next_life[at]).expect("a small slot");
        self.next_life[at] += 1;
        self.living[at] = Some(process);
        let _ = self.broker.joined(process);
        self.broker.deaths.ready(process);
        let mut told = Vec::new();
        self.broker.brief(process, &mut told);
        self.check(process, &told);
    }

    /// Ends the process in a slot. The node ends last.
    fn ends(&mut self, slot: u16) {
        let at = usize::from(slot % SLOTS);
        if at > 0 {
            self.end_of(at);
        }
    }

    fn end_of(&mut self, at: usize) {
        let Some(process) = self.living[at].take() else { return };
        let mut told = Vec::new();
        let process_down = ProcessDown {
            process,
            worker: String::new(),
            reason: EndReason::Signal(9),
            restarting: Vec::new(),
            gave_up: self.broker.roster.those_in(process),
        };
        self.broker.on_process_down(process_down, &mut told);
        self.fences.iter_mut().filter(|fence| fence.of == process).for_each(|fence| fence.may_open = true);
        // The sender of the next deliveries has ended; only living processes may be told.
        told.retain(|delivery| delivery.to != process);
        self.broker.left(process, &mut told);
        self.check(process, &told);
        assert!(told.iter().all(|delivery| delivery.to != process), "the dead were told something");
    }

    /// Starts an actor in a slot.
    fn starts(&mut self, slot: u16) {
        let Some(process) = self.process(slot) else { return };
        if let Ok((actor, _)) = self.broker.roster.reserve(process, 8) {
            self.broker.roster.started(actor);
            self.actors.push(actor);
        }
    }

    /// Ends an actor.
    fn actor_ends(&mut self, which: usize) {
        if self.actors.is_empty() {
            return;
        }
        let actor = self.actors.swap_remove(which % self.actors.len());
        let mut told = Vec::new();
        let reason = EndReason::Normal;
        self.broker.tell(&Lifecycle::Down { actor, reason, will_restart: false }, &mut told);
        self.broker.actor_ended(actor);
        self.broker.announce(actor, &mut told);
        self.check(ProcessId::NODE, &told);
    }

    /// Has the node wait until a slot has taken all messages.
    fn fences(&mut self, slot: u16) {
        let Some(process) = self.process(slot) else { return };
        let is_open = Arc::new(AtomicBool::new(false));
        let opened = Arc::clone(&is_open);
        let mut told = Vec::new();
        self.broker.fence(process, Box::new(move || opened.store(true, Ordering::Relaxed)), &mut told);
        let [Delivery { message: FromNode::Fence { ticket }, .. }] = told[..] else {
            panic!("a living process is told of a fence, and nothing else: {told:?}");
        };
        self.fences.push(Fence { ticket, of: process, is_open, may_open: false });
        self.check(process, &told);
    }

    /// Handles bytes on the control socket of a slot, with that many descriptors.
    fn bytes(&mut self, slot: u16, bytes: &[u8], descriptors: usize) {
        // An error is counted against the worker, and nothing else happens.
        let Ok(said) = Up::read(bytes) else { return };
        self.kinds.insert(messages::kind_of(&said));
        let form = encode(&said).expect("it is short enough to be passed on");
        let again = Up::read(&form).expect("the node reads its own form");
        assert_eq!(encode(&again).ok(), Some(form), "a message has one form: {said:?}");
        match said {
            Up::Node(message) => self.says(slot, message, descriptors),
            Up::Pong { number } => self.answers(slot, number),
            Up::Metrics { metrics, .. } => self.reports(slot, metrics),
            Up::HangProbe { hang_probe, .. } => {
                assert!(hang_probe.actors.len() <= MAX_ACTORS && hang_probe.waits.len() <= MAX_PROCESSES);
            }
            Up::Log(record) => assert!(record.bytes() <= MAX_LOG_RECORD, "{} bytes", record.bytes()),
            Up::UserMetrics { updates, .. } => {
                assert!(updates.len() <= 2 * MAX_METRIC_SERIES, "{} updates", updates.len());
                // A series that may not be is refused, and said so.
                updates.iter().for_each(|update| drop(update.key("worker")));
            }
            Up::Hello { .. }
            | Up::Ready
            | Up::OpenFailed { .. }
            | Up::Failing { .. }
            | Up::Started { .. }
            | Up::ActorStopped { .. }
            | Up::Activity { .. }
            | Up::Trace { .. }
            | Up::GpusLookedAt { .. }
            | Up::ActorsStopped
            | Up::LogsDropped { .. } => {}
        }
    }

    /// Takes a report of figures, as the supervisor does, and shows it beside the one before.
    fn reports(&mut self, slot: u16, metrics: ProcessMetrics) {
        let (Some(process), Some(metrics)) = (self.process(slot), testing_check_metrics(metrics)) else {
            return;
        };
        let (host, name, state) = (None, "worker".to_owned(), ProcessState::Running);
        let named = NamedProcess { host, process, name, state, restarts: 0, metrics };
        let now = Metrics { at: self.metrics.at + 1, processes: vec![named], silent: Vec::new() };
        drop((now.rows(&self.metrics), now.bytes_in_flight()));
        self.metrics = now;
    }

    /// Handles a message of a slot, with that many descriptors.
    fn says(&mut self, slot: u16, message: ToNode, descriptors: usize) {
        let Some(process) = self.process(slot) else { return };
        self.kinds.insert(messages::kind_of_node(&message));
        if let ToNode::StartActor { request, .. } = &message {
            // The supervisor carries it out, and the broker never sees it.
            if let Some((capacity, spares)) = testing_read_start(request) {
                assert!((1..=MAX_MAILBOX).contains(&capacity) && spares <= MAX_SPARES);
            }
            return;
        }
        if let ToNode::Fenced { ticket } = message {
            let answered =
                self.fences.iter_mut().filter(|fence| (fence.ticket, fence.of) == (ticket, process));
            answered.for_each(|fence| fence.may_open = true);
        }
        let is_sealed = matches!(message, ToNode::Neighbours(_));
        let descriptors = self.files.duplicates(process.slot(), descriptors.min(MAX_DESCRIPTORS));
        let mut told = Vec::new();
        // Complaint or not does not matter here: the oracle checks what must not have happened.
        let _ = self.broker.handle(process, message, descriptors, &mut told);
        assert!(!is_sealed || told.is_empty(), "it speaks as the gateway, which it is not: {told:?}");
        self.check(process, &told);
    }

    /// Handles a slot's answer to a ping: the ping that it was sent, or any other.
    fn answers(&mut self, slot: u16, number: u64) {
        let Some(process) = self.process(slot) else { return };
        let mut told = Vec::new();
        let _ = self.broker.pong(process, number, &mut told);
        self.check(process, &told);
    }

    /// Answers all pings that are due, as honest workers do.
    fn answers_pings(&mut self) {
        for ping in self.broker.take_pings() {
            let slot = ping.to.slot() as u16;
            assert_eq!(self.process(slot), Some(ping.to), "the dead are asked nothing");
            self.answers(slot, ping.number);
        }
    }

    fn check(&mut self, sender: ProcessId, told: &[Delivery]) {
        for Delivery { to, message, descriptors } in told {
            let lives = self.living[to.slot()] == Some(*to);
            assert!(lives || *to == sender, "{to} is told {message:?} and does not live");
            if let FromNode::Chunk { chunk, access, .. } = message {
                let [descriptor] = &descriptors[..] else { panic!("a chunk has one descriptor") };
                let is_the_owners = self.files.is(descriptor, chunk.owner.slot(), *access);
                assert!(is_the_owners, "{to} was given something else than {chunk:?} for {access:?}");
            } else if !matches!(message, FromNode::LinkMessage { .. }) {
                assert!(descriptors.is_empty(), "{message:?} came with descriptors");
            }
        }
        for Fence { ticket, of, is_open, may_open } in &self.fences {
            let is_open = is_open.load(Ordering::Relaxed);
            assert_eq!(is_open, *may_open, "fence {ticket} of {of}: whether it is open, and may be");
        }
        let kept = self.broker.kept();
        assert!(told.len() <= MOST_TOLD + self.parked, "{} deliveries at once", told.len());
        assert!(kept.pairs <= usize::from(SLOTS).pow(2), "{kept:?}");
        assert!(kept.dying <= self.next_life.iter().sum::<u32>() as usize, "{kept:?}");
        assert!(kept.watched <= self.actors.len() + MAX_PROCESSES, "{kept:?}");
        self.parked = kept.parked;
    }

    /// Ends all processes, the node last, and checks that nothing is kept.
    ///
    /// # Panics
    /// Something is kept.
    fn end(mut self) -> BTreeSet<&'static str> {
        (0..self.living.len()).rev().for_each(|at| self.end_of(at));
        let kept = self.broker.kept();
        assert_eq!(kept, crate::node::broker::TableLengths::default(), "something is kept of the dead");
        self.kinds
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::super::draws::of_seed;
    use super::*;
    use crate::os::thorough;

    /// Fails if the node reads a message and the target never sends it. A kind that is new does not compile
    /// before it has a name in [`messages`].
    #[test]
    fn whatever_workers_say_the_node_tells_only_the_living_and_keeps_nothing_of_the_dead() {
        let files = Files::create();
        let mut kinds = BTreeSet::new();
        for seed in 0..if thorough() { 2_000 } else { 200 } {
            kinds.extend(play(&files, &of_seed(seed, 1_500)));
        }
        assert_eq!(kinds, messages::kinds(), "left: read; right: all");
    }

    /// The node must not give a worker what another one published: the oracle would see it.
    #[test]
    #[should_panic(expected = "was given something else")]
    fn a_descriptor_of_another_is_seen() {
        let files = Files::create();
        let mut control = Control::new(&files);
        let chunk = crate::ids::ChunkId { owner: control.living[1].expect("it lives"), index: 0 };
        let (device, access) = (crate::ids::DeviceId::HOST, Access::ReadOnly);
        let message = FromNode::Chunk { chunk, device, bytes: 1, access };
        let descriptors = files.duplicates(2, 1);
        let to = control.living[3].expect("it lives");
        control.check(to, &[Delivery { to, message, descriptors }]);
    }
}
