//! Callbacks that wait until a process has taken all messages that others had sent to it.
//!
//! Used before the node sends a message that must not overtake the last messages of a process that has ended.
//! Bounded (MBX-2).
//!
//! **On the end** of the process that was asked there is nothing left to overtake, and its callbacks run.

use std::collections::HashMap;

use crate::ids::ProcessId;
use crate::limits::MAX_FENCES;
use crate::node::broker::{Broker, Delivery};
use crate::transport::control_channel::FromNode;

/// The callback. It must not wait.
pub(crate) type Opened = Box<dyn FnOnce() + Send>;

/// See the module.
#[derive(Default)]
pub(crate) struct Fences {
    last: u64,
    waiting: HashMap<u64, (ProcessId, Opened)>,
}

impl Broker {
    /// Calls `opened` when `process` has taken all messages that others have sent to it by now. If too many
    /// callbacks wait, it calls it at once.
    #[cfg_attr(
        not(feature = "hosts"),
        allow(dead_code, reason = "what must not overtake comes from other hosts")
    )]
    pub(crate) fn fence(&mut self, process: ProcessId, opened: Opened, out: &mut Vec<Delivery>) {
        if self.fences.waiting.len() >= MAX_FENCES || !self.roster.lifecycle(process) {
            return opened();
        }
        self.fences.last += 1;
        let ticket = self.fences.last;
        self.fences.waiting.insert(ticket, (process, opened));
        out.push(Delivery::plain(process, FromNode::Fence { ticket }));
    }

    /// Takes a process's answer to a fence.
    pub(super) fn fenced(&mut self, from: ProcessId, ticket: u64) {
        // WIRE-1: a process answers only its own fences.
        if self.fences.waiting.get(&ticket).is_some_and(|(process, _)| *process == from)
            && let Some((_, opened)) = self.fences.waiting.remove(&ticket)
        {
            opened();
        }
    }

    /// Runs the callbacks for a process that has ended.
    pub(super) fn left_fences(&mut self, process: ProcessId) {
        let over = self.fences.waiting.extract_if(|_, (of, _)| *of == process);
        over.for_each(|(_, (_, opened))| opened());
    }
}
