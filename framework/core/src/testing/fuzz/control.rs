//! The node's broker under workers that send anything.
//!
//! Besides "no panic" this holds after each message. Only living processes and the sender are told anything.
//! A chunk's descriptor is one that the chunk's owner has published, for the requested access. The number of
//! workers, not their messages, bounds the tables. And when all have ended, nothing is kept of them (MBX-2).

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::fstat;

use crate::device::Access;
use crate::ids::{ActorId, ProcessId};
use crate::limits::MAX_PROCESSES;
use crate::node::broker::{Broker, Delivery};
use crate::node::control::Up;
use crate::node::limits::MAX_DESCRIPTORS;
use crate::os::Memfd;
use crate::transport::control_channel::{FromNode, ToNode};
use crate::transport::lifecycle::{EndReason, Lifecycle, ProcessDown};

/// Slots of the node that the target uses, the node's own among them.
pub const SLOTS: u16 = 4;

/// Number of deliveries that one message may cause, besides the answers to waiting questions: each living
/// process is told a few things about a death.
const MOST_TOLD: usize = 8 * SLOTS as usize;

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
pub struct Control<'f> {
    broker: Broker,
    files: &'f Files,
    /// The life of each slot that lives.
    living: Vec<Option<ProcessId>>,
    next_life: Vec<u32>,
    actors: Vec<ActorId>,
    parked: usize,
}

impl<'f> Control<'f> {
    /// Creates the node with a living process in every slot.
    pub fn new(files: &'f Files) -> Self {
        let slots = usize::from(SLOTS);
        let mut control = Control {
            broker: Broker::default(),
            files,
            living: vec![None; slots],
            next_life: vec![0; slots],
            actors: Vec::new(),
            parked: 0,
        };
        (0..SLOTS).for_each(|slot| control.joins(slot));
        control
    }

    /// Returns the process in a slot, if it lives.
    pub fn process(&self, slot: u16) -> Option<ProcessId> {
        self.living[usize::from(slot % SLOTS)]
    }

    /// Begins the next life of a slot, where it has none and the last was reclaimed.
    pub fn joins(&mut self, slot: u16) {
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
    pub fn ends(&mut self, slot: u16) {
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
        // The sender of the next deliveries has ended; only living processes may be told.
        told.retain(|delivery| delivery.to != process);
        self.broker.left(process, &mut told);
        self.check(process, &told);
        assert!(told.iter().all(|delivery| delivery.to != process), "the dead were told something");
    }

    /// Starts an actor in a slot.
    pub fn starts(&mut self, slot: u16) {
        let Some(process) = self.process(slot) else { return };
        if let Ok((actor, _)) = self.broker.roster.reserve(process, 8) {
            self.broker.roster.started(actor);
            self.actors.push(actor);
        }
    }

    /// Ends an actor.
    pub fn actor_ends(&mut self, which: usize) {
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

    /// Handles bytes on the control socket of a slot, with that many descriptors.
    pub fn bytes(&mut self, slot: u16, bytes: &[u8], descriptors: usize) {
        match Up::read(bytes) {
            Ok(Up::Node(message)) => self.says(slot, message, descriptors),
            Ok(Up::Pong { number }) => self.answers(slot, number),
            Ok(_) | Err(_) => {}
        }
    }

    /// Handles a message of a slot, with that many descriptors.
    pub fn says(&mut self, slot: u16, message: ToNode, descriptors: usize) {
        let Some(process) = self.process(slot) else { return };
        let descriptors = self.files.duplicates(process.slot(), descriptors.min(MAX_DESCRIPTORS));
        let mut told = Vec::new();
        // Complaint or not does not matter here: the oracle checks what must not have happened.
        let _ = self.broker.handle(process, message, descriptors, &mut told);
        self.check(process, &told);
    }

    /// Handles a slot's answer to a ping: the ping that it was sent, or any other.
    pub fn answers(&mut self, slot: u16, number: u64) {
        let Some(process) = self.process(slot) else { return };
        let mut told = Vec::new();
        let _ = self.broker.pong(process, number, &mut told);
        self.check(process, &told);
    }

    /// Answers all pings that are due, as honest workers do.
    pub fn answers_pings(&mut self) {
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
    pub fn end(mut self) {
        (0..self.living.len()).rev().for_each(|at| self.end_of(at));
        let kept = self.broker.kept();
        assert_eq!(kept, crate::node::broker::Kept::default(), "something is kept of the dead");
    }
}
