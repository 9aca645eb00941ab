//! What the node says, passed to the part that it concerns.
//!
//! Used by the thread that the control socket is read on, one message at a time.
//!
//! **Invariants.** Nothing here blocks. The reader is woken after each message, whatever it said: it looks at everything
//! again, and whoever waited for the message need not know of the others.
//!
//! **Locks.** None across a call; see the parts.
//!
//! **On a crash** of the node nothing comes any more. **On cancellation** nothing happens: this does not wait.

use std::os::fd::OwnedFd;

use super::Transport;
use super::chunks::ChunkCame;
use crate::transport::control_channel::{FromNode, LinkMessage, ToNode};

impl Transport {
    /// Takes what the node sends. Any thread; never blocks.
    #[allow(clippy::wrong_self_convention, reason = "it takes what comes from the node; it converts nothing")]
    pub fn from_node(&self, message: FromNode, descriptors: Vec<OwnedFd>) {
        match message {
            FromNode::LinkMessage { from, link_message: LinkMessage::Link } => {
                if let Err(error) = self.half_came(from, descriptors) {
                    tracing::error!(peer = %from, %error, "a link was refused");
                    if let Some(link) = self.link(from) {
                        self.give_up(&link);
                    }
                }
            }
            FromNode::LinkMessage { from, link_message: LinkMessage::LinkAck } => {
                if let Some(link) = self.link(from) {
                    link.acknowledge();
                    link.wake_senders();
                }
            }
            FromNode::Chunk { chunk, device, bytes, access } => {
                let came = ChunkCame { chunk, device, bytes, access, descriptors };
                self.memory.chunk_came(came, &self.this, &*self.control, &self.lifecycle);
            }
            FromNode::NoChunk { chunk, access } => self.memory.chunks.no_chunk(chunk, access),
            FromNode::Actor { actor, at } => self.directory.actor_is(actor, at, &self.links, &self.actors),
            FromNode::ProcessDown(process_down) => {
                self.directory.on_process_down(process_down, &self.links, &self.actors, &self.lifecycle);
            }
            FromNode::Watching { ticket, down } => self.lifecycle.watching.began(ticket, down.as_ref()),
            FromNode::Lifecycle(event) => self.lifecycle.watching.tell(&event, &*self.control),
            FromNode::Registered { ticket, result } => self.directory.registered(ticket, result),
            FromNode::Found { ticket, found } => self.directory.found(ticket, found),
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
                    // The place is for a life of the slot that there is.
                    self.links.remove(&link);
                    self.give_up(&link);
                }
            }
            FromNode::Reclaim { process } => self.reclaim(process),
        }
        self.wakeups.wake_reader();
    }
}
