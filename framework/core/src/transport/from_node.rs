//! Passes each message of the node to the part that it concerns.
//!
//! The thread that reads the control socket calls it, one message at a time.
//!
//! **Invariants.** Nothing here blocks. The reader is woken after every kind of message: it checks everything
//! again, so no waiter for one message has to know of the others.
//!
//! **Locks.** No lock is held across a call; see the parts.
//!
//! **On a crash** of the node no message comes any more. **On cancellation** nothing happens: this does not
//! wait.

use std::os::fd::OwnedFd;

use super::chunks::ChunkCame;
use super::connect::PeerHalf;
use super::{LinkRefused, Transport};
use crate::transport::control_channel::{FromNode, LinkMessage, ToNode};

impl Transport {
    /// Handles a message of the node. Any thread may call it; it never blocks.
    #[allow(clippy::wrong_self_convention, reason = "it takes what comes from the node; it converts nothing")]
    pub fn from_node(&self, message: FromNode, descriptors: Vec<OwnedFd>) {
        match message {
            FromNode::LinkMessage { from, link_message: LinkMessage::Link { number } } => {
                PeerHalf { transport: self, from, number }.came(descriptors);
            }
            FromNode::LinkMessage { from, link_message: LinkMessage::Rings { number } } => {
                self.rings_came(from, number, descriptors);
            }
            FromNode::LinkMessage { from, link_message: LinkMessage::RingsAnswer { number, is_taken } } => {
                self.offer_answered(from, number, is_taken);
            }
            FromNode::LinkRefused { peer, number, by, name, why } => {
                self.half_refused(peer, number, LinkRefused::there(by, &name, why));
            }
            FromNode::Chunk { chunk, device, bytes, access } => {
                let came = ChunkCame { chunk, device, bytes, access, descriptors };
                self.memory.chunk_came(came, &self.this, &*self.control, &self.lifecycle);
            }
            FromNode::NoChunk { chunk, access } => self.memory.chunks.no_chunk(chunk, access),
            FromNode::ChunkWithdrawn { chunk } => self.memory.chunks.withdrawn(chunk),
            FromNode::Actor { actor, at } => self.directory.actor_is(actor, at, &self.links, &self.actors),
            FromNode::Unplaced { actor } => self.directory.unplaced(actor, &self.links, &*self.control),
            FromNode::Fence { ticket } => self.fences.begin(ticket, &self.links, &*self.control),
            FromNode::ProcessDown(process_down) => {
                self.directory.on_process_down(process_down, &self.links, &self.actors, &self.lifecycle);
            }
            FromNode::Watching { ticket, down } => self.lifecycle.watching.began(ticket, down.as_ref()),
            FromNode::Lifecycle(event) => self.lifecycle.watching.tell(&event, &*self.control),
            FromNode::Registered { ticket, result } => self.directory.registered(ticket, result),
            FromNode::Found { ticket, found } => self.directory.found(ticket, found),
            FromNode::ActorStarted { ticket, result } => self.directory.started(ticket, result),
            FromNode::Taint(update) => {
                let ranges = self.domain.learn(&update);
                let answer = ToNode::Tainted { round: update.round, ranges };
                if self.control.send(answer, Vec::new()).is_err() {
                    tracing::debug!("the node has ended before it heard what is tainted");
                }
            }
            FromNode::ClocksReleased { process } => self.domain.clocks_released(process),
            FromNode::Exited { process } => self.on_process_exited(process),
            FromNode::Nobody { process } => {
                self.lifecycle.exited.note_nobody(process);
                if let Some(link) = self.links.to(process) {
                    // The slot's place among the links is left to a process that exists.
                    self.links.remove(&link);
                    self.give_up(&link);
                }
            }
            FromNode::Reclaim { process } => self.reclaim(process),
            FromNode::Neighbours(said) => match self.gate.get() {
                Some(gate) => gate.hear(&said),
                None => tracing::error!("the node takes this process for the gateway, which it is not"),
            },
        }
        self.wakeups.wake_reader();
    }

    /// Handles a message of the node whose descriptors are lost because this process may open no more files.
    /// Returns false if the process cannot go on without them. Any thread may call it; it never blocks.
    #[allow(clippy::wrong_self_convention, reason = "as for `from_node`")]
    pub fn from_node_starved(&self, message: &FromNode) -> bool {
        match message {
            FromNode::LinkMessage { from, link_message: LinkMessage::Link { number } } => {
                PeerHalf { transport: self, from: *from, number: *number }.lost();
            }
            FromNode::LinkMessage { from, link_message: LinkMessage::Rings { number } } => {
                self.answer_offer(*from, *number, false);
            }
            _ => return false,
        }
        self.wakeups.wake_reader();
        true
    }
}
