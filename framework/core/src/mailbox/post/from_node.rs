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
use crate::mailbox::port::{FromNode, Letter, ToNode};

impl Transport {
    /// Takes what the node sends. Any thread; never blocks.
    pub fn from_node(&self, message: FromNode, descriptors: Vec<OwnedFd>) {
        match message {
            FromNode::Letter { from, letter: Letter::Link } => {
                if let Err(error) = self.half_came(from, descriptors) {
                    tracing::error!(peer = %from, %error, "a link was refused");
                    if let Some(link) = self.link(from) {
                        self.give_up(&link);
                    }
                }
            }
            FromNode::Letter { from, letter: Letter::LinkAck } => {
                if let Some(link) = self.link(from) {
                    link.acknowledge();
                    link.wake_senders();
                }
            }
            FromNode::Chunk { chunk, device, bytes, access } => {
                let came = ChunkCame { chunk, device, bytes, access, descriptors };
                self.memory.chunk_came(came, &self.this, &*self.port, &self.lifecycle);
            }
            FromNode::NoChunk { chunk, access } => self.memory.chunks.no_chunk(chunk, access),
            FromNode::Actor { actor, at } => self.directory.actor_is(actor, at, &self.links, &self.actors),
            FromNode::Obituary(obituary) => {
                self.directory.mourn(obituary, &self.links, &self.actors, &self.lifecycle);
            }
            FromNode::Watching { ticket, down } => self.lifecycle.watching.began(ticket, down.as_ref()),
            FromNode::Lifecycle(event) => self.lifecycle.watching.tell(&event, &*self.port),
            FromNode::Registered { ticket, result } => self.directory.registered(ticket, result),
            FromNode::Found { ticket, found } => self.directory.found(ticket, found),
            FromNode::Taint(news) => {
                let ranges = self.domain.learn(&news);
                let answer = ToNode::Tainted { round: news.round, ranges };
                if self.port.send(answer, Vec::new()).is_err() {
                    tracing::debug!("the node has ended before it heard what is tainted");
                }
            }
            FromNode::Settled { process } => self.domain.settled(process),
            FromNode::Gone { process } => self.process_gone(process),
            FromNode::Nobody { process } => {
                self.lifecycle.gone.note_nobody(process);
                if let Some(link) = self.links.to(process) {
                    // The place is for a life of the slot that there is.
                    self.links.remove(&link);
                    self.give_up(&link);
                }
            }
            FromNode::Buried { process } => self.bury(process),
        }
        self.wakeups.wake_reader();
    }
}
